"""Plain text tools of the offline judge: sentences, terms, and how far passages back a claim.

Made for languages that put spaces between words. The stop words are English; for other languages
the rule that very short words carry little has to do. Work is bounded: texts are read up to a
limit, and every step is linear in it.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

MAX_CHARACTERS = 200_000
"""How much of a text, and of all passages together, is read."""

Kind: TypeAlias = Literal["number", "name", "word", "short", "stop"]

WEIGHTS: Mapping[Kind, float] = {"number": 2.0, "name": 1.5, "word": 1.0, "short": 0.5, "stop": 0.0}
"""How much a term counts, by what it is."""

_STOP_WORDS = frozenset(
    """
    about above according after again against all also although always among and another any anyone
    anything are around aren because been before behind being below between both but can cannot
    could did does doing done don during each either else ever every few for from further get gets
    given gives had has have having her here hers him his how however into isn its itself just kind
    less like made make makes many may might more most much must near neither never nor not now
    off once one only onto other others our out over own per please rather same several shall she
    should since some somebody someone something such than that the their them then there therefore
    these they this those though through thus too toward towards under until upon very was wasn way
    were weren what whatever when where whether which while who whom whose why will with within
    without would yes yet you your yours answer
    """.split()  # noqa: SIM905  # words read best as text
)
_NEGATIONS = frozenset(
    """
    not no never none nor neither without cannot
    nicht kein keine keinen keiner keinem keines nie niemals ohne
    pas jamais sans aucun aucune
    nunca sin jamás ningún ninguna ninguno
    """.split()  # noqa: SIM905  # same
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SMALL = (
    *("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"),
    *("eighteen", "nineteen"),
)
_NUMBER_WORDS: Mapping[str, int] = {
    **{word: i for i, word in enumerate(_SMALL, start=2)},
    **{word: 10 * i for i, word in enumerate(_TENS, start=2)},
}
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
_TOKEN = re.compile(r"\d+(?:[.,:]\d+)+|\w+(?:['\u2019]\w+)*|[,;:()\u2014\u2013]")
_COMPOUND = re.compile(
    rf"\b({'|'.join(_TENS)})[- ]({'|'.join(['one', *_SMALL[:8]])})\b", re.IGNORECASE
)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_ORDINAL = re.compile(r"(\d+)(?:st|nd|rd|th)$")
_NEGATED_WORDS = 5  # how many words a negation reaches, within its clause
_STEM = 8  # letters of a word that are compared
_SHORT = 3  # letters of a word that counts little; also the least that a stem has
_DENSE = 0x2E80  # from here on, scripts in which two letters make a full word
_NEIGHBOURS = 2  # sentences in a place; also words that must be found together elsewhere
_WHOLE_PASSAGE = 0.95  # what a find counts that is spread over a whole passage
_ELSEWHERE = 0.85  # what a find counts in a second place
_STOP_WEIGHT = 0.1  # what a stop word counts in a claim that has nothing else
_TITLED = 0.5  # share of capitals from which a capital tells nothing (titles, German)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A word as it is compared: ``key`` is its stem, marked if negated; ``text`` what was read."""

    key: str
    text: str
    kind: Kind

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
    text = _THOUSANDS.sub("", _COMPOUND.sub(_compound, text))
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


def _compound(match: re.Match[str]) -> str:
    tens, ones = match.groups()
    return str(_NUMBER_WORDS[tens.lower()] + _NUMBER_WORDS.get(ones.lower(), 1))


def _names(tokens: Sequence[str]) -> set[str]:
    """Return the tokens that are written like names, where capitals tell something."""
    inner = [token for token in tokens[1:] if token[0].isalpha()]
    capital = {token for token in inner if token[0].isupper()}
    if sum(token in capital for token in inner) > _TITLED * len(inner):
        capital = set()
    return capital | {token for token in tokens if any(c.isupper() for c in token[1:])}


def _with_negation(tokens: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Yield the words, and whether a negation stands before them in their clause."""
    reach = 0
    for token in tokens:
        lower = token.lower()
        if not (token[0].isalnum() or token[0] == "_"):
            reach = 0
        elif lower in _NEGATIONS or lower.endswith(("n't", "n\u2019t")):
            reach = _NEGATED_WORDS
        else:
            yield token, reach > 0
            reach -= 1


def _term(token: str, *, is_name: bool, is_negated: bool) -> Term:
    lower = max(re.split("['\u2019]", token.casefold()), key=len)  # Anna's, l'usine
    number = number_of(lower)
    if number is not None:
        return Term(key=number, text=token, kind="number" if number != "1" else "short")
    kind = _kind(lower, is_name=is_name)
    mark = "¬" if is_negated and kind != "stop" else ""
    return Term(key=f"{mark}{stem(lower)}", text=token, kind=kind)


def _kind(lower: str, *, is_name: bool) -> Kind:
    if lower in _STOP_WORDS:
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
    if word in _NUMBER_WORDS:
        return str(_NUMBER_WORDS[word])
    ordinal = _ORDINAL.match(word)
    word = ordinal[1] if ordinal else word
    if not word[0].isdecimal():
        return None
    if re.fullmatch(r"\d+[.,]\d+", word):
        word = word.replace(",", ".").rstrip("0").rstrip(".")
    return re.sub(r"^0+(?=\d)", "", word)


def stem(word: str) -> str:
    """Cut endings, and what goes beyond `_STEM` letters, so that forms of a word agree."""
    for ending in ("ings", "ing", "ed", "es", "s", "ly", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= _SHORT and not word.endswith("ss"):
            word = word[: -len(ending)]
            break
    if len(word) > _SHORT and word[-1] == word[-2]:
        word = word[:-1]
    if word.endswith("y") and len(word) >= _SHORT:
        word = f"{word[:-1]}i"
    return word[:_STEM]


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """How far passages back a claim: ``share`` of its weight, in [0, 1]; ``missing`` words."""

    share: float
    missing: tuple[Term, ...] = ()

    @property
    def lacks_exact(self) -> bool:
        """Whether a number or a name was not found."""
        return any(term.is_exact for term in self.missing)


class Passages:
    """Passages, indexed to find the place that backs a claim best.

    A place is two neighbouring sentences or, at a discount, a whole passage. What the best place
    lacks may stand in one other place, at a further discount; not scattered over all of them.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        """Index ``texts``, up to `MAX_CHARACTERS` in all."""
        self._places: dict[str, set[int]] = defaultdict(set)
        self._trust: list[float] = []
        for text in within_limit(texts):
            self._add([keys(sentence) for sentence in sentences(text)])

    def _add(self, passage: Sequence[set[str]]) -> None:
        for keys, following in zip(passage, [*passage[1:], set()], strict=False):
            self._place(keys | following, 1.0)
        if len(passage) > _NEIGHBOURS:
            self._place(set().union(*passage), _WHOLE_PASSAGE)

    def _place(self, keys: set[str], trust: float) -> None:
        for key in keys:
            self._places[key].add(len(self._trust))
        self._trust.append(trust)

    def support(self, claim: Iterable[Term]) -> Support:
        """Tell how far ``claim`` is found in the best place and at most one other."""
        wanted = {term.key: term for term in claim}
        total = sum(term.weight or _STOP_WEIGHT for term in wanted.values())
        found, share = self._best(wanted)
        left = {key: term for key, term in wanted.items() if key not in found}
        more, rest = self._best(left)
        if len(more) >= _NEIGHBOURS:
            share += _ELSEWHERE * rest
            left = {key: term for key, term in left.items() if key not in more}
        return Support(share=share / total if total else 0.0, missing=tuple(left.values()))

    def _best(self, wanted: Mapping[str, Term]) -> tuple[set[str], float]:
        """Return what is found in the best place, and its trusted weight."""
        weights: dict[int, float] = defaultdict(float)
        for key, term in wanted.items():
            for place in self._places.get(key, ()):
                weights[place] += (term.weight or _STOP_WEIGHT) * self._trust[place]
        if not weights:
            return set(), 0.0
        place = max(weights, key=lambda one: (weights[one], -one))
        return {key for key in wanted if place in self._places.get(key, ())}, weights[place]


def keys(sentence: str) -> set[str]:
    """Return what the words of one sentence are compared by."""
    return {term.key for term in terms(sentence)}
