"""Words, sentences and passages of a text, as the offline judge compares them."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Literal, TypeAlias

STOP_WORDS = frozenset(
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

    aber alle als also auch auf aus bei beim bis das dass dein dem der des diese dieser
    dieses doch dort durch ein eine einem einen einer eines für gegen haben ich ihr ihre ihrer
    ist jede jeden jeder jedes kann können kein keine mein mit muss müssen nach nein nicht noch
    nur oder ohne sein seine seiner sich sie sind soll sollte über und uns unter vom von vor
    waren wann warum was welche welchem welchen welcher welches wenn wer werden wie wird wurde
    wurden wozu zum zur zwischen

    aux avec avez ces cet cette ceux chez comme dans des donc dont elle elles entre est
    été être ils les leur leurs lui mais mes mon non nos notre nous ont oui par pas peut plus
    pourquoi quand que quel quelle quelles quels qui quoi sans ses sont sous sur tous tout toute
    très une vos votre vous

    ante aunque como con cual cuál cuales cuando cuándo del desde dónde donde ella ellas ellos entre
     eran esa ese eso esta está están este esto fue fueron muy nos otra otro para
    pero por porque puede qué que quien quién según ser sobre sus también tiene una unas uno
    unos
    """.split()  # noqa: SIM905 # words read best as text
)

NEGATIONS = frozenset(
    """
    not no never none nor neither without cannot
    nicht kein keine keinen keiner keinem keines nie niemals ohne
    pas jamais sans aucun aucune
    nunca sin jamás ningún ninguna ninguno
    """.split()  # noqa: SIM905  # same
)
COMPARING = frozenset(
    """
    more less later earlier fewer only just merely exceed mehr nur später weniger plus moins más
    menos solo
    """.split()  # noqa: SIM905  # same
)
"""After one of these, a negation sets a limit and denies nothing: no later than, not only."""

CLAUSES = frozenset(
    """
    although because but if since though unless when whereas while aber obwohl sondern weil wenn
    car mais parce quand si aunque cuando pero porque
    """.split()  # noqa: SIM905  # same
)
"""Words that begin another clause, which a negation before them does not reach."""

DENIALS: Mapping[str, str] = {
    **dict.fromkeys(("forbidden", "prohibited", "banned", "disallowed"), "allowed"),
    **dict.fromkeys(("impossible", "unable"), "possible"),
    **{f"in{word}": word for word in ("valid", "complete", "correct", "sufficient", "eligible")},
    **{f"un{word}": word for word in ("available", "safe", "necessary", "limited", "paid", "used")},
    **dict.fromkeys(("verboten", "untersagt", "unzulässig"), "erlaubt"),
    **dict.fromkeys(("interdit", "interdite"), "permis"),
    **dict.fromkeys(("prohibido", "prohibida"), "permitido"),
}
"""Words that deny another without a negation."""

TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
ONES = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_ROWS = (
    (*ONES[1:], "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen",
     "seventeen", "eighteen", "nineteen"),
    ("zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf"),
    ("deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf", "dix", "onze", "douze"),
    ("dos", "tres", "cuatro", "cinco", "seis", "siete", "ocho", "nueve", "diez", "once", "doce"),
)  # fmt: skip
_ORDINALS = (
    *("third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh"),
    *("twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth"),
    *("eighteenth", "nineteenth", "twentieth"),
)
_ALIKE = frozenset({"neuf", "once", "six"})  # what is a number word in one language only

NUMBERS: Mapping[str, int] = {
    **{word: i for row in _ROWS[1:] for i, word in enumerate(row, start=2) if word not in _ALIKE},
    **{word: i for i, word in enumerate(_ORDINALS, start=3)},
    **{word: i for i, word in enumerate(_ROWS[0], start=2)},
    **{word: 10 * i for i, word in enumerate(TENS, start=2)},
}


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


_NEIGHBOURS = 2  # sentences in a place; also words that must be found together elsewhere
_WHOLE_PASSAGE = 0.95  # what a find counts that is spread over a whole passage
_MOST = 0.5  # what the best place must have, so that another is looked at
_ELSEWHERE = 0.85  # what a find counts in a second place
_STOP_WEIGHT = 0.1  # what a stop word counts in a claim that has nothing else
_ANCHORED = 0.25  # share of a claim's words that must stand in one sentence with its number
_READABLE = 100  # terms of a claim, and sentences with its number, up to which it is looked at
_GOES_ON = re.compile(
    r"^\W*(?:it|its|they|their|he|his|she|her|this|these|that|those|there|then|er|sie|es|dies\w*|dort"
    r"|il|elle|ils|elles|ce|cette|este|esta)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """How far passages back a claim: ``share`` of its weight, in [0, 1]; ``missing`` words.

    ``is_denied`` if the place found says the opposite: one of the two is negated.
    """

    share: float
    missing: tuple[Term, ...] = ()
    is_denied: bool = False

    @property
    def lacks_exact(self) -> bool:
        """Whether a number or a name was not found."""
        return any(term.is_exact for term in self.missing)


class Passages:
    """Passages, indexed to find the place that backs a claim best.

    A place is two neighbouring sentences or, at a discount, a whole passage. What the best place
    lacks may stand in one other place, at a further discount; not scattered over all of them. A
    number must stand in one sentence with some of what is said of it; a sentence that begins with a
    pronoun belongs to the one before.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        """Index ``texts``, up to `MAX_CHARACTERS` in all."""
        self._places: dict[str, set[int]] = defaultdict(set)
        self._trust: list[float] = []
        self._told: dict[str, list[int]] = defaultdict(list)
        self._sentences: list[Mapping[str, bool]] = []
        for text in within_limit(texts):
            self._add(sentences(text))

    def _add(self, passage: Sequence[str]) -> None:
        read = [_negated(sentence) for sentence in passage]
        for one, following in zip(read, [*read[1:], {}], strict=False):
            self._place({*one, *following}, 1.0)
        if len(read) > _NEIGHBOURS:
            self._place(set().union(*read), _WHOLE_PASSAGE)
        for i, (sentence, found) in enumerate(zip(passage, read, strict=True)):
            goes_on = i > 0 and _GOES_ON.search(sentence)
            for key in found:
                self._told[key].append(len(self._sentences))
            self._sentences.append({**read[i - 1], **found} if goes_on else found)

    def _place(self, keys: set[str], trust: float) -> None:
        for key in keys:
            self._places[key].add(len(self._trust))
        self._trust.append(trust)

    def support(self, claim: Iterable[Term], *, about: Sequence[Term] = ()) -> Support:
        """Tell how far ``claim`` is found in the best place and at most one other.

        ``about`` is what a claim without words is said of.
        """
        claim = list(claim)
        wanted = {term.key: term for term in claim}
        total = sum(_weight(term) for term in wanted.values())
        found, share = self._best(wanted)
        left = {key: term for key, term in wanted.items() if key not in found}
        more, rest = self._best(left)
        if len(more) >= _NEIGHBOURS and share >= _MOST * total:
            share += _ELSEWHERE * rest
            left = {key: term for key, term in left.items() if key not in more}
        loose = [
            t for t in wanted.values() if t.key not in left and self._is_loose(t, claim, about)
        ]
        return Support(
            share=share / total if total else 0.0,
            missing=(*left.values(), *loose),
            is_denied=bool(found) and self._denies(wanted),
        )

    def _best(self, wanted: Mapping[str, Term]) -> tuple[set[str], float]:
        """Return what is found in the best place, and its trusted weight."""
        weights: dict[int, float] = defaultdict(float)
        for key, term in wanted.items():
            for place in self._places.get(key, ()):
                weights[place] += _weight(term) * self._trust[place]
        if not weights:
            return set(), 0.0
        place = max(weights, key=lambda one: (weights[one], -one))
        return {key for key in wanted if place in self._places.get(key, ())}, weights[place]

    def _denies(self, wanted: Mapping[str, Term]) -> bool:
        """Tell whether the sentence nearest to a claim is negated where the claim is not, or so."""
        weights: dict[int, float] = defaultdict(float)
        for key, term in wanted.items():
            for i in self._told.get(key, ()):
                weights[i] += _weight(term)
        nearest = self._sentences[max(weights, key=lambda one: (weights[one], -one))]
        said = any(is_negated for key, is_negated in nearest.items() if key in wanted)
        return said != any(term.is_negated for term in wanted.values())

    def _is_loose(self, term: Term, claim: Sequence[Term], about: Sequence[Term]) -> bool:
        """Tell whether a number stands only where nothing is said of it that ``claim`` says."""
        if term.kind != "number" or len(claim) + len(about) > _READABLE:
            return False
        unit = {after.key for one, after in pairwise(claim) if one == term}
        others = [t for t in claim if t.kind in {"word", "name"} and t.key not in unit] or about
        least = _ANCHORED * sum(t.weight for t in others)
        told = (self._sentences[i] for i in self._told[term.key][:_READABLE])
        return all(sum(t.weight for t in others if t.key in one) < least for one in told)


def _weight(term: Term) -> float:
    return term.weight or _STOP_WEIGHT


def _negated(sentence: str) -> Mapping[str, bool]:
    """Return the keys of one sentence, and for each whether it is negated wherever it stands."""
    found: dict[str, bool] = {}
    for term in terms(sentence):
        found[term.key] = found.get(term.key, True) and term.is_negated
    return found
