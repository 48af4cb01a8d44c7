"""`EmbeddingDrift`: do questions still come from where they came from?"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rag_eval_otel.drift.betting import FORMAT, BettingDetector
from rag_eval_otel.drift.options import check_count
from rag_eval_otel.drift.records import Alarm

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rag_eval_otel.protocols import Vectors

_DIRECTIONS = 4
_WATCHED = _DIRECTIONS + 1  # and the nearness
_CENTRES, _OF_EACH = 32, 4  # at most so many, of at least so many questions on average
_ROUNDS = 10
_RANKS = 100


class EmbeddingDrift:
    """Do questions still come from where they came from? Embeddings against a reference window.

    Of the first ``window`` embeddings the first half gives a map: the centres of up to 32 groups of
    like questions, and four main directions. The second half says how questions lie there: how near
    to the nearest centre, and at which rank along each direction. From then on each of these five
    numbers is watched like a score, in both directions, with a fifth of the budget: at most one
    false alarm in ``every`` questions, as `BettingDetector` says of a learned baseline. New topics
    change the nearness, another mix of topics the ranks. The alarm is that of the number that has
    moved. Single questions are kept only while the map is learned.
    """

    kind = "embedding"

    def __init__(self, *, window: int = 1000, every: float = 100_000, cooldown: int = 500) -> None:
        """Learn from the first ``window`` embeddings; raises `ConfigError` for fewer than 20."""
        check_count("window", window, least=20)
        self._half = window // 2
        self._first: list[Vectors] = []
        self._map: _Map | None = None
        self._make = partial(
            BettingDetector, every=every * _WATCHED, learn=window - self._half, cooldown=cooldown
        )
        self._detectors = [self._make() for _ in range(_WATCHED)]
        self.drift_detected = False
        """Whether the last embedding raised an alarm."""
        self.alarm: Alarm | None = None
        """The last alarm; its indexes count the embeddings that were given a place."""

    @property
    def count(self) -> int:
        """Embeddings that were given a place; those that the map was learned from are not."""
        return self._detectors[0].count

    @property
    def since(self) -> int:
        """The index from which on embeddings are part of what evidence there is."""
        return min(detector.since for detector in self._detectors)

    @property
    def log10_evidence(self) -> float:
        """The evidence of a change, 0 or more; an alarm is at log10 of ``every``."""
        most = max(detector.log10_evidence for detector in self._detectors)
        return max(0.0, most - math.log10(_WATCHED))

    def nearness(self, embedding: Vectors | Sequence[float]) -> float | None:
        """Return the cosine with the nearest centre, 0 for those below; None where there is none.

        There is none of an embedding that is passed over, and while the map is learned.
        """
        row = self._unit(embedding)
        return None if row is None or self._map is None else self._map.nearness(row)

    def update(self, embedding: Vectors | Sequence[float], *, stratum: str | None = None) -> bool:
        """Take the embedding of a question, and tell whether it raises an alarm.

        ``stratum`` as for `BettingDetector.update`. An embedding without a direction (zero, or not
        finite), or of another length than the first, is passed over.
        """
        self.drift_detected = False
        row = self._unit(embedding)
        if row is not None:
            if self._map is None:
                self._learn(row)
            else:
                self._weigh(self._map.place(row), stratum)
        return self.drift_detected

    def _unit(self, embedding: Vectors | Sequence[float]) -> Vectors | None:
        """Return ``embedding`` with length 1; None for one that is passed over."""
        row = np.asarray(embedding, dtype=np.float64)
        norm = float(np.linalg.norm(row))
        known = self._map.mean if self._map else next(iter(self._first), row)
        return row / norm if 0 < norm < math.inf and row.shape == known.shape else None

    def _learn(self, row: Vectors) -> None:
        self._first.append(row)
        if len(self._first) >= self._half:
            self._map, self._first = _Map.of(np.stack(self._first)), []

    def _weigh(self, place: Sequence[float], stratum: str | None) -> None:
        for detector, number in zip(self._detectors, place, strict=True):
            if detector.update(number, stratum=stratum) and not self.drift_detected:
                self.drift_detected = True
                self.alarm = detector.alarm

    # --- state ------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Return what it has learned and gathered, as JSON can hold it; options are not in it.

        Embeddings that it is still learning from are left out: they tell much of the questions.
        """
        return {
            "format": FORMAT,
            "kind": self.kind,
            "map": self._map and [_packed(part) for part in astuple(self._map)],
            "detectors": [detector.to_state() for detector in self._detectors],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `to_state` returned; errors as for `BettingDetector.restore`."""
        if (state["format"], state["kind"]) != (FORMAT, self.kind):
            msg = f"it is of {state['format']!r}, {state['kind']!r}, not {FORMAT}, {self.kind!r}"
            raise ValueError(msg)
        if state["map"] is None:
            return
        found = _Map(*map(_unpacked, state["map"]))
        found.check()
        detectors = [self._make() for _ in range(_WATCHED)]
        for detector, one in zip(detectors, state["detectors"], strict=True):
            detector.restore(one)
        self._map, self._first, self._detectors = found, [], detectors


@dataclass(frozen=True, slots=True)
class _Map:
    """Where questions lie: ``d`` numbers each, ``k`` centres, ``n`` directions."""

    mean: NDArray[np.float32]  # d
    directions: NDArray[np.float32]  # n x d
    ranks: NDArray[np.float32]  # n x 100, rising: quantiles along each direction
    centres: NDArray[np.float32]  # k x d, each of length 1

    @classmethod
    def of(cls, rows: Vectors) -> _Map:
        """Return the map of ``rows``, each of length 1."""
        mean = rows.mean(axis=0)
        _, _, directions = np.linalg.svd(rows - mean, full_matrices=False)
        directions = directions[:_DIRECTIONS]
        along = (rows - mean) @ directions.T
        ranks = np.quantile(along, np.linspace(0, 1, _RANKS), axis=0).T
        parts = (mean, directions, ranks, _centres(rows))
        return cls(*(part.astype(np.float32) for part in parts))

    def check(self) -> None:
        """Raise ValueError unless the parts can be those of one map."""
        n, d = self.directions.shape
        fits = self.mean.shape == (d,) and self.ranks.shape == (n, _RANKS) and n <= _DIRECTIONS
        if not (fits and self.centres.shape[1:] == (d,) and len(self.centres)):
            msg = "the parts of its map do not fit each other"
            raise ValueError(msg)
        if not all(np.isfinite(part).all() for part in astuple(self)):
            msg = "a number of its map is not finite"
            raise ValueError(msg)

    def nearness(self, row: Vectors) -> float:
        """Return the cosine with the nearest centre, 0 for those below."""
        return min(1.0, max(0.0, float(np.max(self.centres @ row.astype(np.float32)))))

    def place(self, row: Vectors) -> list[float]:
        """Return five numbers in [0, 1]: the nearness, and the rank along each direction."""
        along = self.directions @ (row - self.mean)
        ranks = [
            float(np.searchsorted(ranks, x)) / _RANKS
            for ranks, x in zip(self.ranks, along, strict=True)
        ]
        return [self.nearness(row), *ranks, *[0.5] * (_DIRECTIONS - len(ranks))]


def _centres(rows: Vectors) -> Vectors:
    """Return the directions of the means of groups of ``rows`` that are near each other (k-means).

    They begin at rows that came at even distances, so that the same rows give the same centres.
    """
    count = max(1, min(_CENTRES, len(rows) // _OF_EACH))
    centres: Vectors = rows[np.linspace(0, len(rows) - 1, count).astype(int)]
    for _ in range(_ROUNDS):
        sums = np.zeros_like(centres)
        np.add.at(sums, np.argmax(rows @ centres.T, axis=1), rows)
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        centres = np.where(norms > 0, sums / np.maximum(norms, 1e-12), centres)
    return centres


def _packed(part: NDArray[np.float32]) -> dict[str, Any]:
    return {
        "shape": list(part.shape),
        "float32": base64.b64encode(part.astype("<f4").tobytes()).decode(),
    }


def _unpacked(part: Mapping[str, Any]) -> NDArray[np.float32]:
    flat = np.frombuffer(base64.b64decode(part["float32"]), dtype="<f4")
    return np.array(flat.reshape(part["shape"]), dtype=np.float32)
