"""`EmbeddingDrift`: do questions still come from where they came from?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rag_eval_otel.drift.betting import BettingDetector
from rag_eval_otel.drift.options import check_count
from rag_eval_otel.drift.records import Alarm

if TYPE_CHECKING:
    from rag_eval_otel.protocols import Vectors

_DIRECTIONS = 4


class EmbeddingDrift:
    """Do questions still come from where they came from? Embeddings against a reference window.

    Of the first ``window`` embeddings the first half spans a map: four main directions, and how
    near a question is to the nearest of that half. The second half says how they lie there; from
    then on each of the five numbers is watched like a score, in both directions, with a fifth of
    the budget: at most one false alarm in ``every`` questions, as `BettingDetector` says of a
    learned baseline. New topics change the nearness, another mix of topics the directions.
    """

    def __init__(self, *, window: int = 1000, every: float = 100_000) -> None:
        """Learn from the first ``window`` embeddings; raises `ConfigError` for fewer than 20."""
        check_count("window", window, least=20)
        self._half = window // 2
        self._first: list[Vectors] = []
        self._map: _Map | None = None
        each = {"every": every * (_DIRECTIONS + 1), "learn": window - self._half}
        self._detectors = [BettingDetector(**each) for _ in range(_DIRECTIONS + 1)]  # type: ignore[arg-type]
        self.alarm: Alarm | None = None

    def update(self, embedding: Vectors | Sequence[float]) -> bool:
        """Take the embedding of a question, and tell whether it raises an alarm.

        One without a direction (zero, or not finite) is passed over.
        """
        row = np.asarray(embedding, dtype=np.float64)
        norm = float(np.linalg.norm(row))
        if not 0 < norm < math.inf:
            return False
        if self._map is None:
            self._learn(row / norm)
            return False
        raised = [
            d
            for d, x in zip(self._detectors, self._map.place(row / norm), strict=True)
            if d.update(x)
        ]
        if raised:
            self.alarm = raised[0].alarm
        return bool(raised)

    def _learn(self, row: Vectors) -> None:
        self._first.append(row)
        if len(self._first) >= self._half:
            self._map, self._first = _Map(np.stack(self._first)), []


class _Map:
    """Five numbers in [0, 1] for every embedding."""

    def __init__(self, rows: Vectors) -> None:
        self._rows = rows.astype(np.float32)
        self._mean = rows.mean(axis=0)
        _, _, directions = np.linalg.svd(rows - self._mean, full_matrices=False)
        self._directions = directions[:_DIRECTIONS]
        self._sorted = np.sort((rows - self._mean) @ self._directions.T, axis=0)

    def place(self, row: Vectors) -> list[float]:
        """Return the nearness to the nearest, and the rank along each direction."""
        nearest = float(np.max(self._rows @ row.astype(np.float32)))
        along = (row - self._mean) @ self._directions.T
        ranks = [
            float(np.searchsorted(c, x)) / len(c)
            for c, x in zip(self._sorted.T, along, strict=True)
        ]
        ranks += [0.5] * (_DIRECTIONS - len(ranks))
        return [min(1.0, max(0.0, nearest)), *ranks]
