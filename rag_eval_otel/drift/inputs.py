"""Detect a change of the questions that users ask, from the embeddings of the questions."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rag_eval_otel.drift.betting import FORMAT, BettingDetector
from rag_eval_otel.drift.records import Alarm
from rag_eval_otel.drift.validation import check_count, check_every
from rag_eval_otel.runtime.limited_log import LimitedLog

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rag_eval_otel.types import Vectors

_MIN_WINDOW, _MAX_WINDOW = 100, 2000  # the time to compute the map grows with the window
_DIRECTIONS = 4
_FEATURES = _DIRECTIONS + 1  # the similarity to a centre, and a rank along each direction
_MAX_CENTRES, _MIN_GROUP = 32, 4  # most groups of questions, and fewest questions in a group
_ROUNDS = 10
_RANKS = 100
_SAME = 1e-3  # values that differ by less, for instance by rounding, have the same rank


class EmbeddingDrift:
    """Raise an alarm when the embeddings of questions differ from those of the first questions.

    The detector learns from the first ``window`` questions, 100 to 2,000. From the first half of
    them it computes the centres of up to 32 groups of similar questions, and the four directions in
    which the embeddings vary most (principal components). Centres and directions are called the
    *map*. Every later question then has five features, which are numbers in [0, 1]: the cosine
    similarity to the most similar centre, and a rank along each of the four directions.

    The second half of the window gives the baselines of the five features. After the window, a
    `BettingDetector` watches each feature for rises and falls. A fifth of the false alarms may come
    from each feature, so that together they raise about one false alarm in ``every`` questions.

    The direction of an alarm is ``down`` if questions are unlike any question before (the
    similarity falls), ``up`` if there are fewer kinds of questions (the similarity rises), and
    ``spread`` if the mix of known topics has changed (a rank changes). After an alarm the evidence
    of all five features is discarded, and the next ``cooldown`` questions are ignored. Embeddings
    are kept only until the map is computed. Raises `ConfigError` for invalid options.
    """

    kind = "embedding"

    def __init__(self, *, window: int = 1000, every: float = 100_000, cooldown: int = 500) -> None:
        check_count("window", window, least=_MIN_WINDOW, most=_MAX_WINDOW)
        check_every(every)
        self._log = LimitedLog()
        self._half = window // 2
        self._first: list[Vectors] = []
        self._map: _Map | None = None
        self._every = float(every)
        self._make = partial(
            BettingDetector, every=every * _FEATURES, learn=window - self._half, cooldown=cooldown
        )
        self._detectors = [self._make() for _ in range(_FEATURES)]
        self.ignored = 0
        """The number of embeddings that were ignored because they are invalid."""
        self.drift_detected = False
        """Whether the last embedding raised an alarm."""
        self.alarm: Alarm | None = None
        """The last alarm, or None. Its indexes count the embeddings after the first half window."""

    @property
    def count(self) -> int:
        """The number of embeddings that were compared with the first questions.

        The embeddings from which the centres and main directions were computed are not counted.
        """
        return self._detectors[0].count

    @property
    def since(self) -> int:
        """The index of the first embedding on which the present evidence of a change is based."""
        return min(detector.since for detector in self._detectors)

    @property
    def log10_evidence(self) -> float:
        """The logarithm to base 10 of the evidence of a change, 0 or more.

        The detector raises an alarm when this number reaches log10 of ``every``.
        """
        most = max(detector.log10_evidence for detector in self._detectors)
        return max(0.0, most - math.log10(_FEATURES))

    def nearness(self, embedding: Vectors | Sequence[float]) -> float | None:
        """Return the similarity of ``embedding`` to the most similar group of the first questions.

        The similarity is the cosine of ``embedding`` and the mean embedding (centre) of the group,
        or 0 if the cosine is negative. The result is None if the groups have not been computed yet,
        or if ``embedding`` is invalid.
        """
        row = self._unit(embedding)
        return None if row is None or self._map is None else self._map.nearness(row)

    def update(self, embedding: Vectors | Sequence[float], *, stratum: str | None = None) -> bool:
        """Add the embedding of a question and return True if the embedding raises an alarm.

        ``stratum`` names the kind of question, such as a route. The question is then compared with
        the first questions of the same kind. An embedding is ignored if it is zero, not finite, not
        a row of numbers, or of another length than the first embedding.
        """
        self.drift_detected = False
        row = self._unit(embedding)
        if row is None:
            self._ignore()
        elif self._map is None:
            self._learn(row)
        else:
            self._watch(self._map.features(row), stratum)
        return self.drift_detected

    def _unit(self, embedding: Vectors | Sequence[float]) -> Vectors | None:
        """Return ``embedding`` scaled to length 1, or None if it is invalid."""
        try:
            row = np.asarray(embedding, dtype=np.float64)
        except (TypeError, ValueError):
            return None
        norm = float(np.linalg.norm(row))
        known = self._map.mean if self._map else next(iter(self._first), row)
        usable = row.ndim == 1 and row.shape == known.shape and 0 < norm < math.inf
        return row / norm if usable else None

    def _ignore(self) -> None:
        self._log.write("ignored", "drift: ignored an embedding that is zero or of another length")
        self.ignored += 1

    def _learn(self, row: Vectors) -> None:
        self._first.append(row)
        if len(self._first) >= self._half:
            self._map, self._first = _Map.of(np.stack(self._first)), []

    def _watch(self, features: Sequence[float], stratum: str | None) -> None:
        raised = [
            number
            for number, (detector, value) in enumerate(zip(self._detectors, features, strict=True))
            if detector.update(value, stratum=stratum)
        ]
        if raised:
            self.drift_detected = True
            self.alarm = self._make_alarm(raised[0])
            for detector in self._detectors:
                detector.pause()

    def _make_alarm(self, number: int) -> Alarm | None:
        # ``number`` is 0 for the similarity to the nearest centre, and 1 to 4 for the ranks.
        alarm = self._detectors[number].alarm
        if alarm is None:
            return None
        direction = "spread" if number else alarm.direction
        return replace(
            alarm, direction=direction, every=self._every, log10_evidence=self.log10_evidence
        )

    # --- state ------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Return the map (centres and main directions) and the evidence as JSON values.

        Embeddings of single questions are left out, because they reveal much of the text of the
        questions.
        """
        return {
            "format": FORMAT,
            "kind": self.kind,
            "map": self._map and [_packed(part) for part in astuple(self._map)],
            "detectors": [detector.to_state() for detector in self._detectors],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with the map and the evidence in ``state``, which `to_state` returned.

        The map has the centres and main directions of the first questions. Raises KeyError,
        TypeError, ValueError or OverflowError if ``state`` is invalid, or comes from a detector
        with other options.
        """
        if (state["format"], state["kind"]) != (FORMAT, self.kind):
            msg = (
                f"it belongs to {state['format']!r}, {state['kind']!r}, not {FORMAT}, {self.kind!r}"
            )
            raise ValueError(msg)
        if state["map"] is None:
            return
        found = _Map(*map(_unpacked, state["map"]))
        found.check()
        detectors = [self._make() for _ in range(_FEATURES)]
        for detector, saved in zip(detectors, state["detectors"], strict=True):
            detector.restore(saved)
        self._map, self._first, self._detectors = found, [], detectors


@dataclass(frozen=True, slots=True)
class _Map:
    """What `EmbeddingDrift` has learned from the embeddings of the first questions.

    It has the mean of the embeddings, ``n`` principal directions, and the centres of ``k`` groups
    of similar questions. The embeddings have ``d`` dimensions.
    """

    mean: NDArray[np.float32]  # d
    directions: NDArray[np.float32]  # n x d
    ranks: NDArray[np.float32]  # n x 100, rising: quantiles along each direction
    centres: NDArray[np.float32]  # k x d, each of length 1

    @classmethod
    def of(cls, rows: Vectors) -> _Map:
        """Compute centres and main directions from ``rows``, which are embeddings of length 1."""
        mean = rows.mean(axis=0)
        directions = _main_directions(rows - mean)
        along = (rows - mean) @ directions.T
        ranks = np.quantile(along, np.linspace(0, 1, _RANKS), axis=0).T
        parts = (mean, directions, ranks, _centres(rows))
        return cls(*(part.astype(np.float32) for part in parts))

    def check(self) -> None:
        """Raise ValueError if the shapes of the arrays do not match or a number is not finite."""
        n, d = self.directions.shape
        fits = self.mean.shape == (d,) and self.ranks.shape == (n, _RANKS) and n <= _DIRECTIONS
        if not (fits and self.centres.shape[1:] == (d,) and len(self.centres)):
            msg = "the shapes of the parts of its map do not match"
            raise ValueError(msg)
        if not all(np.isfinite(part).all() for part in astuple(self)):
            msg = "a number of its map is not finite"
            raise ValueError(msg)

    def nearness(self, row: Vectors) -> float:
        """Return the cosine of ``row``, an embedding of length 1, and the most similar centre.

        The result is 0 if the cosine is negative.
        """
        return min(1.0, max(0.0, float(np.max(self.centres @ row.astype(np.float32)))))

    def features(self, row: Vectors) -> list[float]:
        """Return the five numbers that are compared with the first questions, for one embedding.

        ``row`` is the embedding, scaled to length 1. The numbers are in [0, 1]. The first is the
        similarity to the most similar centre of a group of questions. The other four are ranks
        along the main directions of the embeddings. If there are fewer than four directions, .5
        replaces the missing ranks.
        """
        along = self.directions @ (row - self.mean)
        ranks = [_rank(ranks, x) for ranks, x in zip(self.ranks, along, strict=True)]
        return [self.nearness(row), *ranks, *[0.5] * (_DIRECTIONS - len(ranks))]


def _rank(values: NDArray[np.float32], x: float) -> float:
    """Return the rank of ``x`` in the sorted ``values``, as a number from 0 to 1.

    It is the fraction of values below ``x`` plus half the fraction of values equal to ``x``.
    """
    below, above = np.searchsorted(values, (x - _SAME, x + _SAME))
    return float(below + above) / 2 / len(values)


def _main_directions(rows: Vectors) -> Vectors:
    """Return up to four principal directions of ``rows``, which are vectors with the mean 0."""
    n, d = rows.shape
    variances, axes = np.linalg.eigh(rows @ rows.T if n < d else rows.T @ rows)
    found = axes[:, ::-1][:, : min(_DIRECTIONS, n, d)].T
    found = found @ rows if n < d else found
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    kept: Vectors = (found / np.maximum(lengths, 1e-12))[variances[::-1][: len(found)] > _SAME**2]
    return kept


def _centres(rows: Vectors) -> Vectors:
    """Group similar ``rows`` by k-means, and return the centre of each group, scaled to length 1.

    The rows are embeddings of questions. The initial centres are evenly spaced rows, so that the
    result is reproducible. Groups of fewer than four questions are left out, because their centres
    would reveal single questions.
    """
    count = max(1, min(_MAX_CENTRES, len(rows) // _MIN_GROUP))
    centres: Vectors = rows[np.linspace(0, len(rows) - 1, count).astype(int)]
    sizes = np.ones(count, dtype=int)
    for _ in range(_ROUNDS):
        nearest = np.argmax(rows @ centres.T, axis=1)
        sizes = np.bincount(nearest, minlength=count)
        sums = np.zeros_like(centres)
        np.add.at(sums, nearest, rows)
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        centres = np.where(norms > 0, sums / np.maximum(norms, 1e-12), centres)
    return centres[sizes >= _MIN_GROUP]


def _packed(part: NDArray[np.float32]) -> dict[str, Any]:
    return {
        "shape": list(part.shape),
        "float32": base64.b64encode(part.astype("<f4").tobytes()).decode(),
    }


def _unpacked(part: Mapping[str, Any]) -> NDArray[np.float32]:
    flat = np.frombuffer(base64.b64decode(part["float32"]), dtype="<f4")
    return np.array(flat.reshape(part["shape"]), dtype=np.float32)
