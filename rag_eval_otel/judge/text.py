"""Plain text tools of the offline judge: sentences and terms.

Made for languages that put spaces between words. The stop words are English, German, French and
Spanish; for other languages the rule that very short words carry little has to do. Work is
bounded: texts are read up to a limit, and every step is linear in it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, TypeAlias

from rag_eval_otel.judge.text_words import (
    CLAUSES,
    COMPARING,
    DENIALS,
    NEGATIONS,
    NUMBERS,
    ONES,
    STOP_WORDS,
    TENS,
)

MAX_CHARACTERS = 100_000
"""How much of a text, and of all passages together, is read."""

TermKind: TypeAlias = Literal["number", "name", "word", "short", "stop"]

WEIGHTS: Mapping[TermKind, float] = {
    "number": 2.0,
    "name": 1.5,
    "word": 1.0,
    "short": 0.5,
    "stop": 0.0,
}
"""How much a term counts, by what it is."""

_SYMBOLS = {"%": " percent ", "€": " euro ", "$": " dollar ", "£": " pound ", "&": " and "}

_CITATION = re.compile(r"\[\^?\d{1,3}\]")
_BULLET = re.compile(r"^\s*(?:[-*•\u2013#>]+|\(?\d{1,2}[.)])\s+")
_BREAK = re.compile(
    r"(?<=[.!?…])\s+|(?<=[.!?…][\"'”\u2019»)\]*])\s+|(?<=[\u3002\uff01\uff1f])|(?P<hard>;\s+|[\n\r]+)"
)
_ABBREVIATION = re.compile(
    r"(?:^|[\s.(])(?:[^\W\d_]|\d{1,2}|dr|mr|mrs|ms|prof|st|no|nr|vs|approx|ca|inc|ltd|e\.g|i\.e)\.$",
    re.IGNORECASE,
)
_TOKEN = re.compile(
    r"\d+(?:[.,:]\d+)+"
    r"|[^\W\d]\w*(?:\.[a-z]\w+)+"  # a file, a domain, a module: one name, not its parts
    r"|\w+(?:['\u2019]\w+)*|[,;:()\u2014\u2013]"
)
_COMPOUND = re.compile(rf"\b({'|'.join(TENS)})[- ]({'|'.join(ONES)})\b", re.IGNORECASE)
_DOTTED = re.compile(r"\b(?:[^\W\d_]\.){2,}")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_ORDINAL = re.compile(r"(\d+)(?:st|nd|rd|th)$")
_NEGATED_WORDS = 5  # how many words a negation reaches, within its clause
_STEM = 8  # letters of a word that are compared
_SHORT = 3  # letters of a word that counts little; also the least that a stem has
_DENSE = 0x2E80  # from here on, scripts in which two letters make a full word
_TITLED = 0.5  # share of capitals from which a capital tells nothing (titles, German)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A word as it is compared: ``key`` is its stem, ``text`` what was read."""

    key: str
    text: str
    kind: TermKind
    is_negated: bool = False

    @property
    def weight(self) -> float:
        """How much it counts."""
        return WEIGHTS[self.kind]

    @property
    def is_exact(self) -> bool:
        """Whether nothing else will do in its place."""
        return self.kind in {"number", "name"}


def sentences(text: str) -> list[str]:
    """Split ``text`` into sentences, also at semicolons and line breaks, in order.

    List marks and bracketed citation numbers are left out.
    """
    found: list[list[str]] = []
    for piece, is_joined in _pieces(_CITATION.sub(" ", text[:MAX_CHARACTERS])):
        if not is_joined:
            found.append([])
        found[-1].append(piece)
    tidy = (_BULLET.sub("", " ".join(pieces)).strip() for pieces in found)
    return [sentence for sentence in tidy if _TOKEN.search(sentence)]


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Yield what stands between breaks, and whether it goes on with the sentence before it."""
    start, is_new, before = 0, True, ""
    for match in [*_BREAK.finditer(text), None]:
        piece = text[start : match.start() if match else None].strip()
        if piece:
            goes_on = piece[0].islower() or _ABBREVIATION.search(before[-12:])
            yield piece, not is_new and bool(goes_on)
            is_new, before = False, piece
        if match:
            start, is_new = match.end(), is_new or match["hard"] is not None


def within_limit(texts: Iterable[str]) -> Iterator[str]:
    """Yield ``texts``, cut where `MAX_CHARACTERS` in all are reached."""
    left = MAX_CHARACTERS
    for text in texts:
        yield text[:left]
        left = max(0, left - len(text))


def terms(text: str) -> list[Term]:
    """Return every word of one sentence with what it is."""
    text = unicodedata.normalize("NFKC", text[:MAX_CHARACTERS])[:MAX_CHARACTERS]
    text = _THOUSANDS.sub("", _COMPOUND.sub(_compound, _DOTTED.sub(_undotted, text)))
    for symbol, word in _SYMBOLS.items():
        text = text.replace(symbol, word)
    tokens = _TOKEN.findall(text)
    names = _names(tokens)
    return [
        _term(token, is_name=token in names, is_negated=is_negated)
        for token, is_negated in _with_negation(tokens)
    ]


def content(found: Iterable[Term]) -> list[Term]:
    """Return the terms that carry content; all of them where none does."""
    found = list(found)
    return [term for term in found if term.weight] or found


def _undotted(match: re.Match[str]) -> str:
    return match[0].replace(".", "")


def _compound(match: re.Match[str]) -> str:
    tens, ones = match.groups()
    return str(NUMBERS[tens.lower()] + NUMBERS.get(ones.lower(), 1))


def _names(tokens: Sequence[str]) -> set[str]:
    """Return the tokens that are written like names, where capitals tell something."""
    inner = [token for token in tokens[1:] if token[0].isalpha()]
    capital = {token for token in inner if token[0].isupper()}
    if sum(token in capital for token in inner) > _TITLED * len(inner):
        capital = set()
    return capital | {t for t in tokens if "." in t or any(c.isupper() for c in t[1:])}


def _with_negation(tokens: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield the words, and whether a negation stands before them in their clause."""
    reach = 0
    for token, following in zip_longest(tokens, tokens[1:], fillvalue=""):
        lower = token.lower()
        if not (token[0].isalnum() or token[0] == "_"):
            reach = 0
        elif lower in NEGATIONS or lower.endswith(("n't", "n\u2019t")):
            reach = 0 if following.lower() in COMPARING else _NEGATED_WORDS
        else:
            reach = 0 if lower in CLAUSES else reach
            yield token, reach > 0
            reach -= 1


def _term(token: str, *, is_name: bool, is_negated: bool) -> Term:
    lower = max(re.split("['\u2019]", token.casefold()), key=len)  # Anna's, l'usine
    denied = DENIALS.get(lower)
    if denied:
        return Term(key=stem(denied), text=token, kind="word", is_negated=not is_negated)
    number = number_of(lower)
    kind = ("number" if number != "1" else "short") if number else _kind(lower, is_name=is_name)
    return Term(
        key=number or stem(lower),
        text=token,
        kind=kind,
        is_negated=is_negated and kind != "stop",
    )


def _kind(lower: str, *, is_name: bool) -> TermKind:
    if lower in STOP_WORDS:
        return "stop"
    if is_name and len(lower) > 1:
        return "name"
    size = 2 * len(lower) if ord(lower[0]) >= _DENSE else len(lower)
    if size > _SHORT:
        return "word"
    return "short" if size == _SHORT else "stop"


def number_of(word: str) -> str | None:
    """Return the number a word writes, in one spelling for all; None for other words."""
    if word == "one":
        return "1"
    if word.removesuffix("mal") in NUMBERS:
        return str(NUMBERS[word.removesuffix("mal")])
    ordinal = _ORDINAL.match(word)
    word = ordinal[1] if ordinal else word
    if not word[0].isdecimal():
        return None
    if re.fullmatch(r"\d+[.,]\d+", word):
        word = word.replace(",", ".").rstrip("0").rstrip(".")
    return re.sub(r"^0+(?=\d)", "", word)


def stem(word: str) -> str:
    """Cut endings, and what goes beyond `_STEM` letters, so that forms of a word agree.

    A name with dots in it has one form.
    """
    if "." in word:
        return word
    for ending in ("ings", "ing", "ed", "es", "s", "ly", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= _SHORT and not word.endswith("ss"):
            word = word[: -len(ending)]
            break
    if len(word) > _SHORT and word[-1] == word[-2]:
        word = word[:-1]
    if word.endswith("y") and len(word) >= _SHORT:
        word = f"{word[:-1]}i"
    return word[:_STEM]


def keys(sentence: str) -> set[str]:
    """Return what the words of one sentence are compared by."""
    return {term.key for term in terms(sentence)}
