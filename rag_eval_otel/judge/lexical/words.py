"""Words and sentences as the offline judge compares them, in any script.

Scripts without spaces between words (Chinese, Japanese, Thai and their neighbours) are compared by
pairs of characters. Texts are read up to a limit, and every step is linear in them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import NamedTuple

MAX_CHARACTERS = 100_000  # of a text, and of all passages together, that are read
NUMBER, WORD, PAIR, STOP = 2.0, 1.0, 0.5, 0.3  # what counts how much; PAIR: of characters

_STEM = 6  # letters of a word that are compared
_LEAST = 3  # letters of a word with content
_STOP_WORDS = frozenset(
    "about all also and any are because been being but can could did does each for from had has"
    " have her him his how into its just many may might more most much must one only other our over"
    " shall she should some such than that the their them then there these they this those very was"
    " were what when where which while who whom whose why will with would yes you your".split()
)
_NEGATIONS = frozenset("not never cannot without nicht kein keine nie pas".split())
_UNITS = "two three four five six seven eight nine ten".split()
_NUMBERS = {word: str(number) for number, word in enumerate(_UNITS, start=2)}
_MARKS = (  # signs of vowels and tones, which `\w` leaves out
    "\u0300-\u036f\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed"
    "\u0900-\u0963\u0970-\u0dff\u200c\u200d"
)
_DENSE = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17df\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_RUN = re.compile(rf"[{_DENSE}]+")
_TOKEN = re.compile(rf"\d+(?:[.,:]\d+)+|[\w{_MARKS}]+")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_MARK = re.compile(r"\[\^?\d{1,3}\]|^[ \t]*(?:[-*•\u2013#>]+|\(?\d{1,2}[.)])\s+", re.MULTILINE)
_BREAK = re.compile(
    r"(?<=[.!?…])[\"'”\u2019»)\]*]*\s+(?![\sa-zà-þ])|;\s+|[\n\r]+"
    r"|(?<=[\u0964\u0965\u061f\u06d4\u3002\uff01\uff1f])"
)


class Term(NamedTuple):
    """A word as it is compared: ``key`` is its beginning, ``text`` what was read.

    Nothing else will do in the place of one that ``is_exact``: a number, or a negation.
    """

    key: str
    text: str
    weight: float
    is_exact: bool = False


def sentences(text: str) -> list[str]:
    """Split ``text`` into sentences, also at semicolons and line breaks, in order.

    List marks and bracketed citation numbers are left out.
    """
    pieces = _BREAK.split(_MARK.sub(" ", text[:MAX_CHARACTERS]))
    return [piece.strip() for piece in pieces if _TOKEN.search(piece)]


def within_limit(texts: Iterable[str]) -> Iterator[str]:
    """Yield ``texts``, cut where `MAX_CHARACTERS` in all are reached."""
    left = MAX_CHARACTERS
    for text in texts:
        yield text[:left]
        left = max(0, left - len(text))


def terms(text: str) -> list[Term]:
    """Return every word of ``text``, in order."""
    text = unicodedata.normalize("NFKC", text[:MAX_CHARACTERS])[:MAX_CHARACTERS]
    text = _THOUSANDS.sub("", text.replace("\u2019", "'").replace("n't", " not"))
    if _RUN.search(text):
        text = _RUN.sub(r" \g<0> ", text)
    return [term for token in _TOKEN.findall(text) for term in _terms(token)]


def _terms(token: str) -> list[Term]:
    if _RUN.match(token):
        pairs = (token[i : i + 2] for i in range(max(1, len(token) - 1)))
        return [Term(pair, pair, PAIR) for pair in pairs]
    word = token.casefold()
    if word[0].isdecimal() or word in _NUMBERS:
        return [Term(_number(_NUMBERS.get(word, word)), token, NUMBER, is_exact=True)]
    if word in _NEGATIONS:
        return [Term("not", token, WORD, is_exact=True)]
    is_stop = len(word) < _LEAST or word in _STOP_WORDS
    return [Term(word[:_STEM], token, STOP if is_stop else WORD)]


def _number(word: str) -> str:
    """Return a number in one spelling for all scripts."""
    digits = (str(unicodedata.decimal(one, one)) for one in word.replace(",", "."))
    return "".join(digits).lstrip("0") or "0"


def has_content(found: Iterable[Term]) -> bool:
    """Tell whether any of ``found`` says something of a subject."""
    return any(term.weight > STOP and term.key != "not" for term in found)


def keys_of(text: str) -> set[str]:
    """Return what the words of ``text`` are compared by."""
    return {term.key for term in terms(text)}
