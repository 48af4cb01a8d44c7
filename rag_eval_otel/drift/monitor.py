"""`DriftMonitor`: a sink that keeps one detector for each service, metric and version."""

from __future__ import annotations

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from rag_eval_otel.drift.betting import FORMAT, BettingDetector
from rag_eval_otel.drift.inputs import EmbeddingDrift
from rag_eval_otel.drift.options import usable
from rag_eval_otel.drift.records import Alarm, Cause, Drift, NewBaseline, Stream
from rag_eval_otel.drift.worst import WorstTurns
from rag_eval_otel.fork import call_in_child
from rag_eval_otel.types import Evaluation, SpanRef

if TYPE_CHECKING:
    from rag_eval_otel.protocols import Vectors

_log = logging.getLogger("rag_eval_otel")

Report: TypeAlias = "Drift | NewBaseline"
Value: TypeAlias = "float | Vectors"
"""A score in [0, 1], or the embedding of a question."""
MAX_STREAMS = 50 * 200
QUESTIONS = "question_embedding"
"""The name of the stream of embeddings: an `EmbeddingDrift` watches it."""


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


class _Watched:
    """One stream: its detector, and its worst turns."""

    __slots__ = ("detector", "stream", "worst")

    def __init__(self, stream: Stream, detector: Detector) -> None:
        self.stream = stream
        self.detector = detector
        self.worst = WorstTurns()

    def take(self, value: Any, span: SpanRef | None, stratum: str | None) -> Alarm | None:
        detector = self.detector
        score = detector.nearness(value) if isinstance(detector, EmbeddingDrift) else usable(value)
        if score is not None:
            self.worst.add(score, span, index=detector.count, since=detector.since)
        return detector.alarm if detector.update(value, stratum=stratum) else None


def make_detector(stream: Stream) -> Detector:
    """Return the usual detector of ``stream``."""
    return EmbeddingDrift() if stream.name == QUESTIONS else BettingDetector()


class DriftMonitor:
    """Feeds every score to the detector of its service, metric and version.

    A score in another version than the metric's last starts a new baseline and is reported as
    `NewBaseline`: another judge, prompt or definition is another measurement, and no drift. Scores
    that are undefined or failed are no evidence; their share is watched as ``<metric>.scored``, the
    length of answers as ``answer_length``, and the embeddings of questions, where there are any, as
    ``question_embedding`` (of each embedder apart). ``report`` gets a `Drift` for each alarm.

    ``make`` makes the detector of a stream. ``stratum`` says of which kind a turn is, its route for
    instance, which must not depend on its scores. ``service`` is whose evaluations are emitted. At
    most ``capacity`` streams are kept; the one unused for longest is given up, and said.
    Thread-safe; ``report`` is called outside of the lock, on the caller's thread.
    """

    def __init__(
        self,
        report: Callable[[Report], object],
        *,
        make: Callable[[Stream], Detector] = make_detector,
        stratum: Callable[[Evaluation], str | None] | None = None,
        service: str = "",
        capacity: int = MAX_STREAMS,
    ) -> None:
        """Watch nothing yet."""
        self.report = report
        self._make = make
        self._stratum = stratum
        self.service = service
        self._capacity = capacity
        self._cause: Callable[[Stream], Cause] = _unknown
        self._unlock()
        call_in_child(self._unlock)
        self._watched: OrderedDict[Stream, _Watched] = OrderedDict()
        self._versions: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._restored: dict[Stream, Mapping[str, Any]] = {}
        self._given_up = 0

    def _unlock(self) -> None:
        """Make the lock; in a forked child nobody would release the parent's."""
        self._lock = threading.RLock()

    def explain(self, cause: Callable[[Stream], Cause]) -> None:
        """Ask ``cause`` whose change an alarm is; a canary set knows."""
        self._cause = cause

    def emit(self, evaluation: Evaluation) -> None:
        """Take ``evaluation``, then report; raises what ``stratum`` or ``report`` raised, last."""
        stratum = None if self._stratum is None else self._stratum(evaluation)
        reports: list[Report] = []
        for name, version, value in _watched_values(evaluation):
            stream = Stream(service=self.service, name=name, version=version)
            reports += self._take(stream, value, evaluation.span, stratum)
        self._tell(reports)

    def update(
        self,
        stream: Stream,
        value: Value,
        *,
        span: SpanRef | None = None,
        stratum: str | None = None,
    ) -> None:
        """Take one score in [0, 1], or one embedding, of ``stream``, from the turn ``span``."""
        self._tell(self._take(stream, value, span, stratum))

    def _tell(self, reports: Iterable[Report]) -> None:
        with ExitStack() as all_of_them:  # one that raises does not keep the others back
            for report in reports:
                all_of_them.callback(self.report, report)

    def _take(
        self, stream: Stream, value: Value, span: SpanRef | None, stratum: str | None
    ) -> list[Report]:
        """Return what there is to report of ``value``."""
        found: list[Report] = []
        with self._lock:
            watched = self._watched.get(stream)
            if watched is None:
                watched = self._watch(stream)
                found.extend(self._renewed(stream))
            self._watched.move_to_end(stream)
            alarm = watched.take(value, span, stratum)
            if alarm is not None:
                worst = watched.worst.since(alarm.onset, direction=alarm.direction)
                cause = self._cause(stream)
                found.append(Drift(stream=stream, alarm=alarm, cause=cause, worst=worst))
        return found

    def _watch(self, stream: Stream) -> _Watched:
        watched = self._watched[stream] = _Watched(stream, self._made(stream))
        self._make_room()
        return watched

    def _renewed(self, stream: Stream) -> Iterator[NewBaseline]:
        """Yield a report where ``stream`` is the metric in another version than before."""
        key = (stream.service, stream.name)
        previous = self._versions.pop(key, stream.version)
        self._versions[key] = stream.version
        if len(self._versions) > self._capacity:
            self._versions.popitem(last=False)
        if previous != stream.version:
            yield NewBaseline(stream=stream, previous=previous)

    def _make_room(self) -> None:
        while len(self._watched) > self._capacity:
            gone, _ = self._watched.popitem(last=False)
            if not self._given_up:
                _log.warning(
                    "drift: more than %d streams of scores; gave up %s of %s, unused for longest,"
                    " and will do so with others; said once",
                    self._capacity,
                    gone.name,
                    gone.service or "unknown service",
                )
            self._given_up += 1

    def evidence(self) -> Iterator[tuple[Stream, float]]:
        """Yield every stream and the log10 of its evidence; an alarm is at log10 of ``every``."""
        with self._lock:
            found = [(one.stream, one.detector.log10_evidence) for one in self._watched.values()]
        yield from ((stream, value) for stream, value in found if value is not None)

    # --- state ------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Return what all detectors know, as JSON can hold it.

        That includes what was restored of streams that have had no score yet.
        """
        with self._lock:
            states = self._restored | {
                stream: one.detector.to_state() for stream, one in self._watched.items()
            }
        streams = [asdict(stream) | {"detector": state} for stream, state in states.items()]
        return {"format": FORMAT, "streams": streams[-self._capacity :]}

    def restore(self, state: object) -> None:
        """Go on from what `to_state` returned, in another process.

        A stream takes up its part with its first score, if it is of the same version; what cannot
        be used is left out with a warning, and its baseline is learned anew.
        """
        try:
            found = dict(_parts(state))
        except _UNUSABLE as error:
            _log.warning("drift: the state cannot be used (%s); baselines are learned anew", error)
            return
        with self._lock:
            self._restored = found
            for stream in found:
                self._versions[stream.service, stream.name] = stream.version

    def _made(self, stream: Stream) -> Detector:
        detector = self._make(stream)
        if stream in self._restored:
            try:
                detector.restore(self._restored.pop(stream))
            except _UNUSABLE as error:
                _log.warning(
                    "drift: the state of %s cannot be used (%s); its baseline is learned anew",
                    stream.name,
                    error,
                )
        return detector


_UNUSABLE = (
    AttributeError,
    KeyError,
    OverflowError,
    TypeError,
    ValueError,
)  # what a state of any content raises


def _parts(state: Any) -> Iterator[tuple[Stream, Mapping[str, Any]]]:
    if state["format"] != FORMAT:
        msg = f"it is of format {state['format']!r}, not {FORMAT}"
        raise ValueError(msg)
    for one in state["streams"]:
        names = {name: str(one[name]) for name in ("service", "name", "version")}
        yield Stream(**names), one["detector"]


def _unknown(_: Stream) -> Cause:
    return "unknown"


def _watched_values(evaluation: Evaluation) -> Iterator[tuple[str, str, Value]]:
    """Yield name, version and value of all that is watched in a turn.

    A score that failed is no score, but the share of those that did not fail is watched, too, in
    all versions together: a new judge that fails more often is to be found.
    """
    for score in evaluation.scores:
        value = score.value if score.normalized is None else score.normalized
        if value is not None:
            yield score.name, score.version, value
        yield f"{score.name}.scored", "", float(value is not None)
    if evaluation.answer_length is not None:
        yield "answer_length", "", length_score(evaluation.answer_length)
    embedding = evaluation.question_embedding
    if embedding is not None:
        yield QUESTIONS, f"{evaluation.embedder}/{len(embedding)}", embedding


_LONG = math.log1p(20_000)  # characters: longer answers are all alike


def length_score(characters: int) -> float:
    """Return the length of a text on [0, 1], by its logarithm; 20,000 characters and more are 1."""
    return min(1.0, math.log1p(characters) / _LONG)
