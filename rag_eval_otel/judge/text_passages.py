"""How far passages back a claim: the offline judge's reading of contexts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rag_eval_otel.judge.text import Term, sentences, terms, within_limit

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
