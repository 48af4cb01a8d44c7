"""`EmbeddingDrift`: do questions still come from where they came from?"""

from __future__ import annotations

import base64
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rag_eval_otel.drift.betting import FORMAT, BettingDetector
from rag_eval_otel.drift.options import check_count, check_every
from rag_eval_otel.drift.records import Alarm

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rag_eval_otel.types import Vectors

_log = logging.getLogger("rag_eval_otel")

_SMALLEST, _LARGEST = 100, 2000  # windows: fewer questions say nothing, of more the map takes long
_DIRECTIONS = 4
_WATCHED = _DIRECTIONS + 1  # and the nearness
_CENTRES, _OF_EACH = 32, 4  # at most so many, of at least so many questions each
_ROUNDS = 10
_RANKS = 100
_SAME = 1e-3  # along a direction: what differs by less, by rounding for instance, ranks alike


class EmbeddingDrift:
    """Do questions still come from where they came from? Embeddings against a reference window.

    Of the first ``window`` embeddings the first half gives a map: the centres of up to 32 groups of
    like questions, and four main directions. The second half says how questions lie there: how near
    to the nearest centre, and at which rank along each direction. From then on each of these five
    numbers is watched like a score, in both directions, with a fifth of the budget: at most one
    false alarm in ``every`` questions, as `BettingDetector` says of a learned baseline.

    An alarm ``down`` (or ``up``) is of the nearness: questions like none before (or fewer kinds).
    ``spread`` is of a rank: another mix of known topics. Either ends the evidence of all five, and
    the next ``cooldown`` questions are passed over. Single questions are kept only while the map is
    learned. Raises `ConfigError` for options that cannot be used; ``window`` is 100 to 2,000.
    """

    kind = "embedding"

    def __init__(self, *, window: int = 1000, every: float = 100_000, cooldown: int = 500) -> None:
        """Know nothing yet."""
        check_count("window", window, least=_SMALLEST, most=_LARGEST)
        check_every(every)
        self._half = window // 2
        self._first: list[Vectors] = []
        self._map: _Map | None = None
        self._every = float(every)
        self._make = partial(
            BettingDetector, every=every * _WATCHED, learn=window - self._half, cooldown=cooldown
        )
        self._detectors = [self._make() for _ in range(_WATCHED)]
        self.ignored = 0
        """How many embeddings were passed over."""
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

        ``stratum`` as for `BettingDetector.update`. What is no row of numbers with a direction (it
        is zero, or not finite), or has another length than the first, is passed over.
        """
        self.drift_detected = False
        row = self._unit(embedding)
        if row is None:
            self._ignore()
        elif self._map is None:
            self._learn(row)
        else:
            self._weigh(self._map.place(row), stratum)
        return self.drift_detected

    def _unit(self, embedding: Vectors | Sequence[float]) -> Vectors | None:
        """Return ``embedding`` with length 1; None for one that is passed over."""
        try:
            row = np.asarray(embedding, dtype=np.float64)
        except (TypeError, ValueError):
            return None
        norm = float(np.linalg.norm(row))
        known = self._map.mean if self._map else next(iter(self._first), row)
        usable = row.ndim == 1 and row.shape == known.shape and 0 < norm < math.inf
        return row / norm if usable else None

    def _ignore(self) -> None:
        if not self.ignored:
            _log.warning("drift: an embedding has no direction, or another length; said once")
        self.ignored += 1

    def _learn(self, row: Vectors) -> None:
        self._first.append(row)
        if len(self._first) >= self._half:
            self._map, self._first = _Map.of(np.stack(self._first)), []

    def _weigh(self, place: Sequence[float], stratum: str | None) -> None:
        raised = [
            number
            for number, (detector, value) in enumerate(zip(self._detectors, place, strict=True))
            if detector.update(value, stratum=stratum)
        ]
        if raised:
            self.drift_detected = True
            self.alarm = self._describe(raised[0])
            for detector in self._detectors:
                detector.rest()

    def _describe(self, number: int) -> Alarm | None:
        """Return the alarm of one of the five numbers, the nearness being the first."""
        alarm = self._detectors[number].alarm
        if alarm is None:
            return None
        direction = "spread" if number else alarm.direction
        return replace(
            alarm, direction=direction, every=self._every, log10_evidence=self.log10_evidence
        )

    # --- state ------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Return what it has learned and gathered, as JSON can hold it; options are not in it.

        Embeddings that the map is learned from are left out: they tell much of the questions.
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
        directions = _main_directions(rows - mean)
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
        ranks = [_rank(ranks, x) for ranks, x in zip(self.ranks, along, strict=True)]
        return [self.nearness(row), *ranks, *[0.5] * (_DIRECTIONS - len(ranks))]


def _rank(values: NDArray[np.float32], x: float) -> float:
    """Return the share of the rising ``values`` that are below ``x``, and half of those like it."""
    below, above = np.searchsorted(values, (x - _SAME, x + _SAME))
    return float(below + above) / 2 / len(values)


def _main_directions(rows: Vectors) -> Vectors:
    """Return the up to four directions along which ``rows``, of mean 0, differ most."""
    n, d = rows.shape
    variances, axes = np.linalg.eigh(rows @ rows.T if n < d else rows.T @ rows)
    found = axes[:, ::-1][:, : min(_DIRECTIONS, n, d)].T
    found = found @ rows if n < d else found
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    kept: Vectors = (found / np.maximum(lengths, 1e-12))[variances[::-1][: len(found)] > _SAME**2]
    return kept


def _centres(rows: Vectors) -> Vectors:
    """Return the directions of the means of groups of ``rows`` that are near each other (k-means).

    They begin at rows that came at even distances, so that the same rows give the same centres. Of
    groups that may be a single question there is none.
    """
    count = max(1, min(_CENTRES, len(rows) // _OF_EACH))
    centres: Vectors = rows[np.linspace(0, len(rows) - 1, count).astype(int)]
    sizes = np.ones(count, dtype=int)
    for _ in range(_ROUNDS):
        nearest = np.argmax(rows @ centres.T, axis=1)
        sizes = np.bincount(nearest, minlength=count)
        sums = np.zeros_like(centres)
        np.add.at(sums, nearest, rows)
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        centres = np.where(norms > 0, sums / np.maximum(norms, 1e-12), centres)
    return centres[sizes >= _OF_EACH]


def _packed(part: NDArray[np.float32]) -> dict[str, Any]:
    return {
        "shape": list(part.shape),
        "float32": base64.b64encode(part.astype("<f4").tobytes()).decode(),
    }


def _unpacked(part: Mapping[str, Any]) -> NDArray[np.float32]:
    flat = np.frombuffer(base64.b64decode(part["float32"]), dtype="<f4")
    return np.array(flat.reshape(part["shape"]), dtype=np.float32)
