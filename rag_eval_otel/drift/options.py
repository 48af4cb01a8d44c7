"""Define `DriftOptions`, the options of drift detection on live scores.

A *turn* is one question of a user and its answer. A *stream* is the sequence of scores of one
service, metric and version of the metric.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rag_eval_otel.drift.betting import BettingDetector
from rag_eval_otel.drift.detectors import (
    Detector,
    DetectorSource,
    check_detector_source,
    make_detector,
)
from rag_eval_otel.drift.inputs import EmbeddingDrift
from rag_eval_otel.drift.records import Directions, Report, Stream
from rag_eval_otel.drift.validation import check_count, check_targets
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.types import Evaluation

MAX_STREAMS = 50 * 200  # 50 metrics of 200 services
QUESTIONS = "question_embedding"
"""The name under which the embeddings of questions are watched for drift."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftOptions:
    """Options of drift detection on live scores: ``instrument(drift=DriftOptions(every=10_000))``.

    ``every``, ``learn``, ``tail``, ``direction`` and ``cooldown`` are options of `BettingDetector`.
    Each metric has a detector of its own, so m metrics raise about one false alarm in ``every / m``
    turns. ``targets`` maps the name of a metric to the mean that its scores should have, or to a
    mapping of strata to means. A stratum is a kind of turn, such as a route. For a metric without
    a target, the detector learns a baseline from the first scores.

    ``detector`` replaces `BettingDetector`. The options named so far have no effect on the
    replacement. ``detector`` is one of these:

    - the name of an entry point in the group ``rag_eval_otel.detectors``
    - a function that returns a `Detector`; if it has a required parameter, it gets the `Stream`
    - an object with the interface of the detectors in the river library, which is copied for each
      stream

    ``stratum`` is a function that returns the stratum of a turn, or None. ``questions`` is the
    number of questions from which `EmbeddingDrift` learns; 0 turns it off. ``on_drift`` is called
    with each `Drift` and `NewBaseline`, on the thread that evaluates. Exceptions of ``on_drift``
    and ``stratum`` are counted and logged. ``state`` is the path of a file that keeps baselines,
    evidence and the names of strata for the next process. ``streams`` is the largest number of
    detectors. Raises `ConfigError` for invalid options.
    """

    every: float = 100_000
    learn: int = 2000
    tail: float = 0.5
    direction: Directions = "both"
    cooldown: int = 500
    targets: Mapping[str, float | Mapping[str, float]] = field(default_factory=dict, hash=False)
    detector: DetectorSource = field(default="betting", hash=False)
    stratum: Callable[[Evaluation], str | None] | None = None
    questions: int = 1000
    on_drift: Callable[[Report], object] | None = None
    state: str | Path | None = None
    streams: int = MAX_STREAMS

    def __post_init__(self) -> None:
        check_count("streams", self.streams, least=1)
        check_count("questions", self.questions)
        self._check_targets()
        check_detector_source(self.detector)
        for name in ("stratum", "on_drift"):
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
                msg = f"the targets of {name} are for strata: set stratum, which returns a turn's"
                raise ConfigError(msg)

    def make_detector(self, stream: Stream) -> Detector:
        """Make the detector that these options ask for, for the scores of ``stream``."""
        if stream.name == QUESTIONS:
            return self._embedding()
        if self.detector == "betting":
            return self._betting(self.targets.get(stream.name))
        return make_detector(self.detector, stream)

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
