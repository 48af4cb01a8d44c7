"""What watches a stream: its detector, and the turns to look at when the alarm comes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from rag_eval_otel.drift.betting import BettingDetector
from rag_eval_otel.drift.inputs import EmbeddingDrift
from rag_eval_otel.drift.options import usable
from rag_eval_otel.drift.records import Alarm, Stream
from rag_eval_otel.drift.values import QUESTIONS
from rag_eval_otel.drift.worst import WorstTurns
from rag_eval_otel.types import SpanRef


class Detector(Protocol):
    """What watches the scores of one stream: one of `rag_eval_otel.drift`, or one of your own."""

    alarm: Alarm | None
    """The last alarm."""

    @property
    def count(self) -> int:
        """Values taken."""

    @property
    def since(self) -> int:
        """The index from which on values are part of what evidence there is."""

    @property
    def log10_evidence(self) -> float | None:
        """The evidence of a change; None for a detector that knows none."""

    def update(self, value: Any, *, stratum: str | None = None) -> bool:
        """Take ``value`` and tell whether it raises an alarm."""

    def to_state(self) -> Mapping[str, Any]:
        """Return what it knows, as JSON can hold it."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `to_state` returned; raise ValueError or a like error for all else."""


class Watched:
    """One stream: its detector, and its worst turns."""

    __slots__ = ("detector", "stream", "worst")

    def __init__(self, stream: Stream, detector: Detector) -> None:
        """Know no turns yet."""
        self.stream = stream
        self.detector = detector
        self.worst = WorstTurns()

    def take(self, value: Any, span: SpanRef | None, stratum: str | None) -> Alarm | None:
        """Take a score or an embedding of the turn ``span``, and return the alarm it raises."""
        detector = self.detector
        if isinstance(detector, EmbeddingDrift):
            score = detector.nearness(value)
        elif self.stream.name == QUESTIONS:  # a detector of scores has no use for it
            return None
        else:
            score = usable(value)
        if score is not None:
            self.worst.add(score, span, index=detector.count, since=detector.since)
        return detector.alarm if detector.update(value, stratum=stratum) else None


def make_detector(stream: Stream) -> Detector:
    """Return the usual detector of ``stream``."""
    return EmbeddingDrift() if stream.name == QUESTIONS else BettingDetector()
