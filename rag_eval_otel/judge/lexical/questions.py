"""Questions: what one asks for and is about, what an answer gives, and whether that fits.

What is asked for is told by question words (English, and the common ones of German, French and
Spanish), what is given by the form of dates, numbers and names: nothing belongs to a subject.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from rag_eval_otel.judge.lexical.claims import (
    PAIR,
    STOP,
    WORD,
    claims_of,
    evades,
    has_content,
    keys_of,
    sentences,
    terms,
)

Kind: TypeAlias = Literal["name", "place", "time", "amount", "said", "thing", "polar", "any"]
Forms: TypeAlias = Mapping[Kind, re.Pattern[str]]

_ASKING: Mapping[Kind, str] = {  # of two at the same place, the first counts
    "amount": r"how much|how (?:many|few|long|old|often|soon|far|tall|high|deep|wide|large|big"
    r"|heavy|fast|hot|cold)|was koste[nt]|wie ?(?:viele?|lange|alt|oft|hoch|weit|groß|schwer|tief)"
    r"|combien|quel âge|cuánt[oa]s?",
    "name": r"who|whom|whose|by what name|wer|wem|wen|wessen|wie heißt|qui|quién(?:es)?",
    "place": r"where|wo|wohin|woher|où|a?dónde",
    "time": r"when|wann|quand|cuándo",
    "any": r"what about",
    "said": r"why|how|warum|wieso|wie|wozu|pourquoi|comment|por qué|cómo",
    "thing": r"what|which|was|welche[rsnm]?|qu'est-ce qu[ie]|que|quoi|quel(?:le)?s?|qué|cuál\w*",
}
_ASKED: Forms = {kind: re.compile(rf"\b(?:{form})\b") for kind, form in _ASKING.items()}
_LEADS = {kind: form.partition("|")[0].capitalize() for kind, form in _ASKING.items()}
_POLAR = re.compile(
    r"^\W*(?:is|are|was(?! (?:ist|muss|kann|kostet|macht|braucht))|were|do|does|did|can|could|may"
    r"|must|shall|should|will|would|has|have|had|ist|sind|war|hat|kann|darf|muss|wird|gibt|est-ce"
    r"|peut-on|hay|puede)\b"
)
_PARTS = re.compile(
    rf"(?i)(?<=\?)\s+|,? +(?:and|und|et|y) (?=(?:by |in |at |for |since |until )?"
    rf"(?:{'|'.join(_ASKING.values())})\b)"
)
_NOUNS: Mapping[Kind, str] = {
    "name": "actor actress agency album artist association author band book brand character club"
    " company composer director episode film game group king leader magazine man movie name novel"
    " person player president producer school series show singer song team title university writer",
    "place": "address birthplace capital city country county district island location place region"
    " state street town venue village",
    "time": "birthday century date day decade era hour month season time week year",
    "amount": "age amount budget capacity charge cost count deposit depth distance dose duration"
    " fee frequency height income length limit maximum minimum number pay percentage period"
    " population price rate rating ratio rent salary score size speed temperature value weight",
}
_HEADS: Mapping[str, Kind] = {
    noun: kind for kind, nouns in _NOUNS.items() for noun in nouns.split()
}
_MONTH = (
    r"(?:jan|feb|f[eé]v|m[aä]r|a[pbv]r|ma[iy]|jun|jui|jul|aug|ao[uû]|ago|sep|o[ck]t|nov|d[eé][cz]"
    r"|ene)[a-zé]{0,7}"
)
_FIGURES: Forms = {
    "time": re.compile(
        rf"(?i)\b(?:{_MONTH} \d|\d\d?(?:st|nd|rd|th|\.)? (?:of |de )?{_MONTH}\b|(?:1\d|20)\d\ds?\b"
        rf"|(?:on|by|until|each|every|am|bis|le|el) (?:{_MONTH}\b|morning|\w+(?:day|tag|di)s?\b)"
        r"|\d\d?[:.]\d\d\b|\d\d? ?(?:am|pm|uhr|h)\b|\w+ (?:century|jahrhundert)\b|^when\b)"
    ),
    "amount": re.compile(
        r"(?i)(?<![\w-])(?:\d[\d.,]*|two|three|four|five|six|seven|eight|nine|ten|hundred|zwei|drei"
        r"|vier|fünf|sechs|deux|trois|quatre|cinq|dos|tres|cuatro|cinco|half an?|none|once|twice"
        r"|\w+mal)(?!\w|-[a-z])"
    ),
}
_CALLED: Forms = {
    "place": re.compile(r"\b(?:[Ii]n|[Aa]t|near|from|im|am|bei|à|en) (?:the |la )?[A-ZÀ-Þ]\w"),
    "name": re.compile(r"(?<=[\w,] )[A-ZÀ-Þ][\w.-]+ (?:(?:of|the|de|von) )*[A-ZÀ-Þ]|[\"“„«]\w"),
}
_MARKED: Forms = {
    "polar": re.compile(r"(?i)^(?:yes|no|yeah|nope|ja|nein|doch|oui|non|sí)\b"),
    "said": re.compile(r"(?i)^(?:because|due to|to|by|weil|um|durch|parce|pour|porque|para) "),
}
_AT = re.compile(r"(?i)(?:in|at|near|from|on|im|am|beim?|à|au|dans|en) ")
_IN_COMMON: Mapping[Kind, Mapping[str, float]] = {  # with other kinds
    "place": {"name": 0.5},
    "time": {"amount": 0.3},
    "thing": {"name": 0.6, "said": 0.4, "amount": 0.2},
    "any": dict.fromkeys([*_ASKING, "polar"], 1.0),
}

MAX, _READ = 10_000, 1000  # characters of a question, and of those that have its question word
_WINDOW = 5  # words after "what" in which its noun is looked for
_TELLS, _LONG = 5, 40  # words from which an answer tells more than was asked for, and anything
_MAX_ASKED = 12  # words of an answer that a question for it has
_GIVES, _UNKNOWN = 0.15, 0.5  # what it counts whether a context gives the kind of thing asked for
_CURVE = 0.62  # makes a share of .33, below which few contexts serve, a half
_ABOUT, _ASKS = 0.75, 0.25  # what the words of a question count, and the kind of thing asked for
_COMMON = 0.6  # what all texts have in common, beside 1


def read(question: str) -> tuple[Kind | None, str]:
    """Return what kind of thing ``question`` asks for first, and ``question`` without the asking.

    A text is a question if it begins with a question word or has a question mark; of another, the
    kind is None.
    """
    text = question[:_READ].lower().replace("\u2019", "'")
    is_marked = "?" in text and len(question) <= _READ
    polar = _POLAR.search(text)
    if is_marked and polar:
        return "polar", question[polar.end() : MAX]
    found = [(match, kind) for kind, form in _ASKED.items() if (match := form.search(text))]
    match, asked = min(found, key=lambda one: one[0].start(), default=(None, None))
    if match is None or (match.start() and not is_marked):
        return "thing" if is_marked else None, question[:MAX]
    kind = _by_noun(text[match.end() :]) if asked == "thing" else asked
    return kind, f"{question[: match.start()]} {question[match.end() : MAX]}"


def _by_noun(rest: str) -> Kind:
    words = re.findall(r"[^\W\d_]+", rest)[:_WINDOW]
    kinds = [_HEADS.get(word) or _HEADS.get(word.removesuffix("s")) for word in words]
    return next((kind for kind in reversed(kinds) if kind), "thing")


def _kinds_of(claims: Sequence[str]) -> list[Kind]:
    """Return three kinds of thing that ``claims`` may give, the likeliest first."""
    text = " ".join(claims)
    words = text.split()
    found = _matching(_MARKED, text)
    if len(claims) != 1 or len(words) >= _LONG:
        found = ["any"]
    elif not found and len(words) >= _TELLS:
        found = [*_matching(_FIGURES, text)[:1], *_matching(_CALLED, text)[:1], "said", "thing"]
        found = [found[0], found[1], found[0]]
    found = found or _matching(_FIGURES, text)[:1] or _named(text, words)
    return (found * 3)[:3]


def _named(text: str, words: Sequence[str]) -> list[Kind]:
    capitals = sum(word.lstrip("\"'“„«(")[:1].isupper() for word in words)
    if _AT.match(text) or "," in text:
        return ["place"]
    if 2 * capitals <= len(words):
        return ["thing"]
    return ["name"] if len(words) > 1 else ["name", "thing", "place"]


def _matching(forms: Forms, text: str) -> list[Kind]:
    return [kind for kind, form in forms.items() if form.search(text)]


def reverse_questions(answer: str) -> list[str]:
    """Return three questions that ``answer`` may be the answer to; none if it says nothing.

    They ask for the kinds of thing it may give, about its commonest words but the numbers.
    """
    claims = claims_of(answer) or sentences(answer)
    counts = Counter(
        term.text.casefold()
        for term in terms("\n".join(claims))
        if term.weight in (PAIR, WORD) and not term.is_exact
    )
    about = " ".join(word for word, _ in counts.most_common(_MAX_ASKED))
    leads = [_LEADS.get(kind, "Is it so") for kind in _kinds_of(claims)]
    return [f"{lead}: {about}?" if about else f"{lead}?" for lead in leads if claims]


def features(text: str) -> dict[str, float]:
    """Return what ``text`` is about, asks for and shares with all texts, of a length of 1."""
    kind, rest = read(text)
    words: dict[str, float] = defaultdict(float)
    for term in terms(rest):
        words[f"word {term.key}"] += term.weight if term.weight > STOP or not kind else 0.0
    parts = _scaled(_scaled(words, _ABOUT) | _scaled(_features_of(kind), _ASKS), 1.0)
    return _scaled(parts | {"text": math.sqrt(_COMMON)}, 1.0) if parts else {}


def _features_of(kind: Kind | None) -> dict[str, float]:
    common = {kind: 1.0, **_IN_COMMON.get(kind, {})} if kind else {}
    return {f"asks for {name}": weight for name, weight in common.items()}


def _scaled(weights: Mapping[str, float], square: float) -> dict[str, float]:
    length = math.hypot(*weights.values())
    scale = math.sqrt(square) / length if length else 0.0
    return {name: scale * weight for name, weight in weights.items() if weight}


def similarity(one: str, other: str) -> float:
    """Return how near two questions are, in [0, 1], by their words and by what they ask for."""
    return _cosine(features(one), features(other))


def _cosine(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    return min(1.0, sum(weight * other.get(name, 0.0) for name, weight in one.items()))


def relevancy(question: str, answer: str) -> float:
    """Return how well ``answer`` takes up ``question`` and gives the kind of thing it asks for."""
    if evades(answer):
        return 0.0
    kind, about = read(question)
    asked, given = _scaled(_features_of(kind), 1.0), _kinds_of(claims_of(answer))
    fit = sum(_cosine(asked, _scaled(_features_of(one), 1.0)) for one in given) / len(given)
    return min(1.0, math.sqrt(_ABOUT * _share(about, answer, least=PAIR) + _ASKS * fit))


def coverage(question: str, context: str) -> float:
    """Return how far ``context`` has words of ``question`` and what it asks for, in [0, 1]."""
    kind, rest = read(question)
    share = _share(rest if has_content(terms(rest)) else question, context, least=STOP)
    form = {**_FIGURES, **_CALLED}.get(kind or "any")
    gives = bool(form.search(context)) if form else _UNKNOWN
    return math.pow((1 - _GIVES) * share + _GIVES * gives, _CURVE) if share else 0.0


def _share(about: str, text: str, *, least: float) -> float:
    """Return the share of the words of ``about``, of a weight of ``least``, that ``text`` has."""
    wanted = {term.key: term.weight for term in terms(about[:MAX]) if term.weight >= least}
    held = keys_of(text)
    total = sum(wanted.values())
    found = sum(weight for key, weight in wanted.items() if key in held)
    return min(1.0, found / total) if total else 0.0


def sub_questions(question: str) -> list[str]:
    """Return the parts of ``question`` that have a question word each."""
    parts = (part.strip(" ,") for part in _PARTS.split(" ".join(question[:MAX].split())))
    asked = [part for part in parts if part.strip("?")][:8]
    return [part if part.endswith("?") else f"{part}?" for part in asked]
