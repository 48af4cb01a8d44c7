"""`DriftOptions`: how live scores are watched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rag_eval_otel.drift.betting import BettingDetector
from rag_eval_otel.drift.evidence import Directions
from rag_eval_otel.drift.inputs import EmbeddingDrift
from rag_eval_otel.drift.monitor import MAX_STREAMS, Report
from rag_eval_otel.drift.options import check_count, check_targets
from rag_eval_otel.drift.records import Stream
from rag_eval_otel.drift.values import QUESTIONS
from rag_eval_otel.drift.watched import Detector
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.types import Evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftOptions:
    """How live scores are watched: ``instrument(drift=DriftOptions(every=10_000))``.

    ``every``, ``learn``, ``tail``, ``direction`` and ``cooldown`` are those of `BettingDetector`;
    of m metrics each gets ``every`` scores for a false alarm, so all together ``every / m`` turns.
    ``targets`` has, for each metric that has one to keep, the mean its scores should have, or a
    mapping of strata to means; the others learn theirs. ``detector`` makes another detector for the
    scores of a stream; on it, the options so far have no effect.

    ``stratum`` says of which kind a turn is (``lambda evaluation: evaluation.about.get("route")``):
    its scores are then compared with those of the same kind. ``questions`` is the window of
    `EmbeddingDrift`, which watches the questions' embeddings where a metric has asked for them; 0
    watches none.

    ``on_drift`` is called with each `Drift` and `NewBaseline`, on the evaluator's thread; what it
    or ``stratum`` raises is counted and logged. ``state`` is a file in which what was learned is
    kept for the next process; names of strata are in it. Raises `ConfigError` for options that
    cannot be used.
    """

    every: float = 100_000
    learn: int = 2000
    tail: float = 0.5
    direction: Directions = "both"
    cooldown: int = 500
    targets: Mapping[str, float | Mapping[str, float]] = field(default_factory=dict, hash=False)
    detector: Callable[[Stream], Detector] | None = None
    stratum: Callable[[Evaluation], str | None] | None = None
    questions: int = 1000
    on_drift: Callable[[Report], object] | None = None
    state: str | Path | None = None
    streams: int = MAX_STREAMS

    def __post_init__(self) -> None:
        """Check the options."""
        check_count("streams", self.streams, least=1)
        check_count("questions", self.questions)
        self._check_targets()
        for name in ("detector", "stratum", "on_drift"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                msg = f"{name} must be a function, not {getattr(self, name)!r}"
                raise ConfigError(msg)
        self._betting(None)
        if self.questions:
            self._embedding()

    def _check_targets(self) -> None:
        targets: object = self.targets
        if not isinstance(targets, Mapping):
            msg = f"targets must be a mapping of metrics to means, not {targets!r}"
            raise ConfigError(msg)
        for name, target in targets.items():
            check_targets(target)
            if isinstance(target, Mapping) and self.stratum is None:
                msg = f"the target of {name} is one for each stratum: stratum has to tell which"
                raise ConfigError(msg)

    def make_detector(self, stream: Stream) -> Detector:
        """Return a detector for ``stream`` that has yet to learn."""
        if stream.name == QUESTIONS:
            return self._embedding()
        if self.detector is not None:
            return self.detector(stream)
        return self._betting(self.targets.get(stream.name))

    def _betting(self, target: float | Mapping[str, float] | None) -> BettingDetector:
        return BettingDetector(
            target=target,
            every=self.every,
            learn=self.learn,
            tail=self.tail,
            direction=self.direction,
            cooldown=self.cooldown,
        )

    def _embedding(self) -> EmbeddingDrift:
        return EmbeddingDrift(window=self.questions, every=self.every, cooldown=self.cooldown)
