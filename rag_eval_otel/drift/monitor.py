"""Watch live evaluation scores for drift, with one detector for each stream of scores.

A *stream* is the sequence of scores of one service, metric and version of the metric. A *turn* is
one question of a user and its answer.
"""

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
from rag_eval_otel.runtime.limited_log import LimitedLog
from rag_eval_otel.types import Evaluation, SpanRef, Vectors
from rag_eval_otel.untrusted import DELIBERATE

_log = logging.getLogger("rag_eval_otel")

Value: TypeAlias = "float | Vectors"
"""What a detector watches: a score in [0, 1], or the embedding of a question."""

_MAX_LENGTH = math.log1p(20_000)  # characters


def length_score(characters: int) -> float:
    """Return a number in [0, 1] for the length of a text with this number of ``characters``.

    It is the logarithm of the length, scaled so that 20,000 characters and more give 1.
    """
    return min(1.0, math.log1p(characters) / _MAX_LENGTH)


def monitored_values(evaluation: Evaluation) -> Iterator[tuple[str, str, Value]]:
    """Yield each value in ``evaluation`` that is watched for drift, as (name, version, value).

    Each metric yields its score under the name of the metric. Each metric also yields, under the
    name ``<metric>.scored``, 1 if it has a score and 0 if the evaluation failed. The value
    ``<metric>.scored`` has no version, so that a new judge that fails more often than the judge
    before is detected. Scores of texts with a `DELIBERATE` sign of an attempt to steer the judge
    are left out. The length of the answer and the embedding of the question follow if they are
    known.
    """
    for score in evaluation.scores:
        value = score.value if score.normalized is None else score.normalized
        if value is not None and DELIBERATE.isdisjoint(score.detail.get("injection", ())):
            yield score.name, score.version, value
        yield f"{score.name}.scored", "", float(value is not None)
    if evaluation.answer_length is not None:
        yield "answer_length", "", length_score(evaluation.answer_length)
    embedding = evaluation.question_embedding
    if embedding is not None:
        yield QUESTIONS, f"{evaluation.embedder}/{len(embedding)}", embedding


class DriftMonitor:
    """Watch the scores of live evaluations, with one detector per service, metric and version.

    ``report`` is called with a `Drift` for each alarm of a detector. When the scores of a metric
    come in another version than before, ``report`` is called with a `NewBaseline`, because another
    judge, prompt or definition is another measurement and not a drift.

    Missing scores are not evidence of a change. The fraction of turns with a score is watched as a
    stream of its own, ``<metric>.scored``. The lengths of answers are watched as ``answer_length``,
    and the embeddings of questions as ``question_embedding``. A turn is one question and its
    answer.

    ``make`` returns the detector for a stream. ``stratum`` returns the kind of a turn, for instance
    its route, which must not depend on the scores. ``service`` is the name of the service that
    emits the evaluations. At most ``capacity`` streams are kept. If there are more, the least
    recently used stream is removed, with a warning in the log. ``guard`` is a context manager that
    handles exceptions of a detector while its evidence or state is read. A monitor is thread-safe.
    ``report`` is called without the lock, on the thread that adds the score.
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
        self._warnings = LimitedLog(_log)

    def _create_lock(self) -> None:
        """Create a new lock for the monitor.

        This is also called in a forked child process, where the lock that was copied from the
        parent process could stay locked for ever.
        """
        self._lock = threading.RLock()

    def explain(self, cause: Callable[[Stream], Cause]) -> None:
        """Set the function that says whether the judge or the system caused an alarm.

        ``cause`` is called with the stream of each alarm. A canary set, which is a fixed set of
        samples that is scored regularly, can tell these two causes apart.
        """
        self._cause = cause

    def emit(self, evaluation: Evaluation) -> None:
        """Add all scores and other values of ``evaluation`` to their streams, and report alarms.

        If the function ``stratum`` raises an exception, no value is added. If a detector or the
        function ``report`` raises an exception, it is raised again after all values were added.
        """
        stratum = None if self._stratum is None else self._stratum(evaluation)
        service = self.service if evaluation.service is None else evaluation.service
        with ExitStack() as updates:
            for name, version, value in reversed(list(monitored_values(evaluation))):
                stream = Stream(service=service, name=name, version=version)
                updates.callback(self.update, stream, value, span=evaluation.span, stratum=stratum)

    def update(
        self,
        stream: Stream,
        value: Value,
        *,
        span: SpanRef | None = None,
        stratum: str | None = None,
    ) -> None:
        """Add ``value`` to the detector of ``stream``, and report an alarm if it raises one.

        ``value`` is a score in [0, 1] or the embedding of a question. ``span`` refers to the span
        of the evaluated turn, and ``stratum`` names the kind of the turn.
        """
        label = None if stratum is None else str(stratum)
        with ExitStack() as reports:  # an exception of one report does not prevent the next
            for report in reversed(self._add(stream, value, span, label)):
                reports.callback(self.report, report)

    def _add(
        self, stream: Stream, value: Value, span: SpanRef | None, stratum: str | None
    ) -> list[Report]:
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
        """Yield a `NewBaseline` if the scores of the same metric had another version before."""
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
            self._warnings.write(
                "removed",
                "drift: there are more than %d streams of scores; removed the least recently used"
                " one, %s of %s",
                self._capacity,
                removed.name,
                removed.service or "unknown service",
            )

    def evidence(self) -> list[tuple[Stream, float]]:
        """Return each stream with the logarithm to base 10 of its evidence of a change.

        `BettingDetector` raises an alarm when this number reaches log10 of its option ``every``.
        Streams with a detector that does not measure evidence are left out.
        """
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
        """Return the state of all detectors as JSON values, for `restore`.

        If a stream was restored and has had no score since, its restored state is included.
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
        """Continue from ``state``, which `to_state` returned in an earlier process.

        The detector of a stream gets its state at the first score of the stream. If a state is
        invalid, a warning is logged, and the baseline is learned anew.
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
        """Make a detector for ``stream``, and restore the saved state of the stream if any."""
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
"""A score, the negative index of this score, and the span of the evaluated turn.

The index is negative so that the latest of equal scores comes first in sorted order.
"""

_MAX_TURNS = 5


class _StreamMonitor:
    """The detector of one stream of scores, and the turns with the lowest and the highest scores.

    A turn is one question of a user and its answer. Only turns are kept that came since the
    evidence of a change began to grow.
    """

    __slots__ = ("_highest", "_lowest", "detector")

    def __init__(self, detector: Detector) -> None:
        self.detector = detector
        self._lowest: list[_TurnScore] = []
        self._highest: list[_TurnScore] = []

    def update(
        self, value: Any, *, stream: Stream, span: SpanRef | None, stratum: str | None
    ) -> Alarm | None:
        """Add ``value`` to the detector, and return the alarm if ``value`` raises one.

        ``value`` is a score or the embedding of a question. ``span`` refers to the span of the
        evaluated turn, which is kept if its score is among the lowest or highest.
        """
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
        """Return up to five turns with the lowest scores since the score with the index ``onset``.

        A turn is one question of a user and its answer. If ``direction`` is "up", the turns with
        the highest scores are returned instead.
        """
        sign, turns = (-1, self._highest) if direction == "up" else (1, self._lowest)
        return tuple(
            WorstTurn(score=sign * score, span=span) for score, at, span in turns if -at >= onset
        )


def _with_turn(turns: list[_TurnScore], turn: _TurnScore, since: int) -> list[_TurnScore]:
    if turns and min(-at for _, at, _ in turns) < since:
        turns = [kept for kept in turns if -kept[1] >= since]
    if len(turns) < _MAX_TURNS or turn[:2] < turns[-1][:2]:
        insort(turns, turn, key=_order)
    return turns[:_MAX_TURNS]


def _order(turn: _TurnScore) -> tuple[float, int]:
    return turn[:2]
