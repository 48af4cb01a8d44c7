"""`DriftMonitor`: one detector for each service, metric and version."""

from __future__ import annotations

import logging
import math
import threading
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict
from typing import Any, TypeAlias

from rag_eval_otel.drift.betting import FORMAT
from rag_eval_otel.drift.detectors import Detector
from rag_eval_otel.drift.inputs import EmbeddingDrift
from rag_eval_otel.drift.options import MAX_STREAMS, QUESTIONS, DriftOptions
from rag_eval_otel.drift.records import (
    Alarm,
    Cause,
    Direction,
    Drift,
    NewBaseline,
    Report,
    Stream,
    WorstTurn,
)
from rag_eval_otel.drift.validation import valid_score
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.types import Evaluation, SpanRef, Vectors

_log = logging.getLogger("rag_eval_otel")

Value: TypeAlias = "float | Vectors"
"""A score in [0, 1], or the embedding of a question."""

_MAX_LENGTH = math.log1p(20_000)  # characters


def length_score(characters: int) -> float:
    """Return the logarithm of a text's length, scaled to [0, 1]; 20,000 characters give 1."""
    return min(1.0, math.log1p(characters) / _MAX_LENGTH)


def monitored_values(evaluation: Evaluation) -> Iterator[tuple[str, str, Value]]:
    """Yield name, version and value of each stream that ``evaluation`` adds to.

    A failed score adds to ``<metric>.scored`` alone, which has no version, so that a new judge that
    fails more often is detected.
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


class DriftMonitor:
    """Adds each score to the detector of its service, metric and version.

    The first score in another version than the metric's last one is reported as `NewBaseline`:
    another judge, prompt or definition is another measurement, not a drift. Missing scores are not
    evidence; their share is monitored as ``<metric>.scored``, the length of answers as
    ``answer_length``, and the embeddings of questions as ``question_embedding``, for each embedder.
    ``report`` is called with a `Drift` for each alarm.

    ``make`` returns the detector of a stream. ``stratum`` returns the stratum of a turn, for
    instance its route, which must not depend on the scores. ``service`` is the service that emits
    the evaluations. At most ``capacity`` streams are kept; beyond, the least recently used one is
    removed, which is logged once. ``guard`` is entered around calls of detectors that read evidence
    or state, to handle their exceptions. Thread-safe; ``report`` is called without the lock, on the
    caller's thread.
    """

    def __init__(
        self,
        report: Callable[[Report], object],
        *,
        make: Callable[[Stream], Detector] | None = None,
        stratum: Callable[[Evaluation], str | None] | None = None,
        service: str = "",
        capacity: int = MAX_STREAMS,
        guard: AbstractContextManager[object, bool | None] | None = None,
    ) -> None:
        self.report = report
        self._make = make or DriftOptions().make_detector
        self._stratum = stratum
        self.service = service
        self._capacity = capacity
        self._guard = guard or nullcontext()
        self._cause: Callable[[Stream], Cause] = lambda _: "unknown"
        self._create_lock()
        call_in_child(self._create_lock)
        self._streams: OrderedDict[Stream, _StreamMonitor] = OrderedDict()
        self._versions: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._restored: dict[Stream, Mapping[str, Any]] = {}
        self._has_removed = False

    def _create_lock(self) -> None:
        """Create the lock; also in a forked child, where the parent's may stay locked."""
        self._lock = threading.RLock()

    def explain(self, cause: Callable[[Stream], Cause]) -> None:
        """Set the function that returns the cause of an alarm, such as that of a canary set."""
        self._cause = cause

    def emit(self, evaluation: Evaluation) -> None:
        """Add all values of ``evaluation``, and report alarms.

        An exception of ``stratum`` is raised before any value is added, exceptions of detectors and
        of ``report`` after all values were added and reported.
        """
        stratum = None if self._stratum is None else self._stratum(evaluation)
        with ExitStack() as updates:
            for name, version, value in reversed(list(monitored_values(evaluation))):
                stream = Stream(service=self.service, name=name, version=version)
                updates.callback(self.update, stream, value, span=evaluation.span, stratum=stratum)

    def update(
        self,
        stream: Stream,
        value: Value,
        *,
        span: SpanRef | None = None,
        stratum: str | None = None,
    ) -> None:
        """Add ``value``, a score in [0, 1] or an embedding, of the turn ``span`` to ``stream``."""
        label = None if stratum is None else str(stratum)
        with ExitStack() as reports:  # an exception of one report does not prevent the next
            for report in reversed(self._add(stream, value, span, label)):
                reports.callback(self.report, report)

    def _add(
        self, stream: Stream, value: Value, span: SpanRef | None, stratum: str | None
    ) -> list[Report]:
        """Add ``value`` and return the reports it causes."""
        reports: list[Report] = []
        with self._lock:
            monitor = self._streams.get(stream)
            if monitor is None:
                monitor = self._streams[stream] = _StreamMonitor(self._make_detector(stream))
                self._remove_unused()
                reports.extend(self._new_baseline(stream))
            self._streams.move_to_end(stream)
            alarm = monitor.update(value, stream=stream, span=span, stratum=stratum)
            if alarm is not None:
                worst = monitor.worst_since(alarm.onset, direction=alarm.direction)
                cause = self._cause(stream)
                reports.append(Drift(stream=stream, alarm=alarm, cause=cause, worst=worst))
        return reports

    def _new_baseline(self, stream: Stream) -> Iterator[NewBaseline]:
        """Yield a report if the metric of ``stream`` had another version before."""
        key = (stream.service, stream.name)
        previous = self._versions.pop(key, stream.version)
        self._versions[key] = stream.version
        if len(self._versions) > self._capacity:
            self._versions.popitem(last=False)
        if previous != stream.version:
            yield NewBaseline(stream=stream, previous=previous)

    def _remove_unused(self) -> None:
        while len(self._streams) > self._capacity:
            removed, _ = self._streams.popitem(last=False)
            if not self._has_removed:
                self._has_removed = True
                _log.warning(
                    "drift: there are more than %d streams of scores; removed the least recently"
                    " used one, %s of %s, and will remove others; logged once",
                    self._capacity,
                    removed.name,
                    removed.service or "unknown service",
                )

    def evidence(self) -> list[tuple[Stream, float]]:
        """Return every stream with the log10 of its evidence; an alarm is at log10 of ``every``."""
        found: list[tuple[Stream, float]] = []
        with self._lock:
            for stream, monitor in self._streams.items():
                with self._guard:
                    evidence = monitor.detector.log10_evidence
                    if evidence is not None:
                        found.append((stream, float(evidence)))
        return found

    # --- state ------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Return the state of all detectors as JSON values.

        It includes restored states of streams that have had no score since.
        """
        with self._lock:
            states = dict(self._restored)
            for stream, monitor in self._streams.items():
                with self._guard:
                    state = monitor.detector.to_state()
                    if state is not None:
                        states[stream] = state
        streams = [asdict(stream) | {"detector": state} for stream, state in states.items()]
        return {"format": FORMAT, "streams": streams[-self._capacity :]}

    def restore(self, state: object) -> None:
        """Restore what `to_state` returned in an earlier process.

        The detector of a stream is restored at its first score. For invalid states a warning is
        logged, and the baselines are learned again.
        """
        try:
            found = dict(_detector_states(state))
        except _INVALID_STATE as error:
            _log.warning("drift: the state cannot be used (%s); baselines are learned anew", error)
            return
        with self._lock:
            self._restored = found
            for stream in found:
                self._versions[stream.service, stream.name] = stream.version

    def _make_detector(self, stream: Stream) -> Detector:
        """Return a new detector for ``stream``, with its restored state if there is one."""
        detector = self._make(stream)
        if stream in self._restored:
            try:
                detector.restore(self._restored.pop(stream))
            except _INVALID_STATE as error:
                _log.warning(
                    "drift: the state of %s cannot be used (%s); its baseline is learned anew",
                    stream.name,
                    error,
                )
        return detector


_INVALID_STATE = (AttributeError, LookupError, OverflowError, TypeError, ValueError)
"""The exceptions that reading an arbitrary JSON value as a state can raise."""


def _detector_states(state: Any) -> Iterator[tuple[Stream, Mapping[str, Any]]]:
    if state["format"] != FORMAT:
        msg = f"its format is {state['format']!r}, not {FORMAT}"
        raise ValueError(msg)
    for saved in state["streams"]:
        names = {name: str(saved[name]) for name in ("service", "name", "version")}
        yield Stream(**names), saved["detector"]


# --- one stream -----------------------------------------------------------------------------------

_TurnScore: TypeAlias = "tuple[float, int, SpanRef | None]"
"""A score, its negative index (so that of equal scores the latest comes first), and its turn."""

_MAX_TURNS = 5


class _StreamMonitor:
    """The detector of one stream, and the turns with the lowest and the highest scores."""

    __slots__ = ("_highest", "_lowest", "detector")

    def __init__(self, detector: Detector) -> None:
        self.detector = detector
        self._lowest: list[_TurnScore] = []
        self._highest: list[_TurnScore] = []

    def update(
        self, value: Any, *, stream: Stream, span: SpanRef | None, stratum: str | None
    ) -> Alarm | None:
        """Add a score or an embedding of the turn ``span``, and return the alarm it raises."""
        detector = self.detector
        if isinstance(detector, EmbeddingDrift):
            score = detector.nearness(value)
        elif stream.name == QUESTIONS:  # a detector of scores cannot use an embedding
            return None
        else:
            score = valid_score(value)
        if score is not None:
            index, since = detector.count, detector.since
            self._lowest = _with_turn(self._lowest, (score, -index, span), since)
            self._highest = _with_turn(self._highest, (-score, -index, span), since)
        return detector.alarm if detector.update(value, stratum=stratum) else None

    def worst_since(self, onset: int, *, direction: Direction) -> tuple[WorstTurn, ...]:
        """Return the turns since ``onset`` with the lowest scores; after a rise, the highest."""
        sign, turns = (-1, self._highest) if direction == "up" else (1, self._lowest)
        return tuple(
            WorstTurn(score=sign * score, span=span) for score, at, span in turns if -at >= onset
        )


def _with_turn(turns: list[_TurnScore], turn: _TurnScore, since: int) -> list[_TurnScore]:
    """Return the five lowest of ``turns`` and ``turn``, without those before index ``since``."""
    if turns and min(-at for _, at, _ in turns) < since:
        turns = [kept for kept in turns if -kept[1] >= since]
    if len(turns) < _MAX_TURNS or turn[:2] < turns[-1][:2]:
        insort(turns, turn, key=_order)
    return turns[:_MAX_TURNS]


def _order(turn: _TurnScore) -> tuple[float, int]:
    return turn[:2]
