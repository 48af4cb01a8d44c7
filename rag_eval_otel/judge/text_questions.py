"""What two questions have in common: what they are about, and what they ask for."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping

from rag_eval_otel.judge.text import Term, sentences, terms
from rag_eval_otel.judge.text_kinds import FEATURES, AnswerKind, asked, read

_WORD = re.compile(r"\w+")
_PART = 0.15  # what a trigram of a word counts beside the word
ABOUT, ASKED = 0.8, 0.6
"""What the words of a question and the kind of thing it asks for count; the squares sum to 1."""


def features(text: str) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Return the features of what ``text`` is about, and of what it asks for.

    The first are the stems and trigrams of its words with content; of all its words, where it is
    no question and none has content. The second are empty unless it is a question.
    """
    kind, about = read(text)
    found = [(term.text, term.key, term.weight) for term in _terms(about) if term.weight]
    if not found and kind is None:
        found = [(word, word, 1.0) for word in _WORD.findall(text.casefold())]
    words: dict[str, float] = defaultdict(float)
    for word, key, weight in found:
        words[key] += weight
        padded = f"<{word.casefold()}>"
        for i in range(len(padded) - 2):
            words[f"<{padded[i : i + 3]}>"] += _PART * weight
    return words, asks_for(kind)


def _terms(text: str) -> list[Term]:
    return [term for sentence in sentences(text) for term in terms(sentence)]


def asks_for(kind: AnswerKind | None) -> Mapping[str, float]:
    """Return the features of asking for ``kind``."""
    return {f"asks for {name}": w for name, w in FEATURES[kind].items()} if kind else {}


def similarity(one: str, other: str) -> float:
    """Return how near two questions are, in [0, 1], by their words and by what they ask for."""
    (about, ask), (about_other, ask_other) = features(one), features(other)
    return ABOUT**2 * _cosine(about, about_other) + ASKED**2 * _cosine(ask, ask_other)


def agreement(question: str, kind: AnswerKind) -> float:
    """Return how far a thing of ``kind`` is what ``question`` asks for, in [0, 1]."""
    return _cosine(asks_for(asked(question)), asks_for(kind))


def _cosine(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    norms = math.hypot(*one.values()) * math.hypot(*other.values())
    shared = sum(weight * other.get(name, 0.0) for name, weight in one.items())
    return min(1.0, shared / norms) if norms else 0.0
