"""`DriftOptions`: how live scores are watched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rag_eval_otel.drift.betting import BettingDetector
from rag_eval_otel.drift.evidence import Directions
from rag_eval_otel.drift.monitor import MAX_STREAMS, Report
from rag_eval_otel.drift.options import check_count


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftOptions:
    """How live scores are watched: ``instrument(drift=DriftOptions(every=10_000))``.

    ``every``, ``learn``, ``tail``, ``direction`` and ``cooldown`` are those of `BettingDetector`;
    of m metrics each gets ``every`` scores for a false alarm, so all together ``every / m`` turns.
    ``on_drift`` is called with each `Drift` and `NewBaseline`, on the evaluator's thread; what it
    raises is counted and logged. ``state`` is a file in which what was learned is kept for the next
    process. Raises `ConfigError` for options that cannot be used.
    """

    every: float = 100_000
    learn: int = 2000
    tail: float = 0.5
    direction: Directions = "both"
    cooldown: int = 500
    on_drift: Callable[[Report], object] | None = None
    state: str | Path | None = None
    streams: int = MAX_STREAMS

    def __post_init__(self) -> None:
        """Check the options."""
        self.detector()
        check_count("streams", self.streams, least=1)

    def detector(self) -> BettingDetector:
        """Return a detector that has yet to learn."""
        return BettingDetector(
            every=self.every,
            learn=self.learn,
            tail=self.tail,
            direction=self.direction,
            cooldown=self.cooldown,
        )
