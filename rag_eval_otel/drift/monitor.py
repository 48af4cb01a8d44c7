"""Detect drift in live evaluation scores, with one detector for each stream of scores."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

from rag_eval_otel.drift.detector import FORMAT, Alarm, BettingDetector, check_target, valid_score
from rag_eval_otel.drift.evidence import Directions
from rag_eval_otel.log import cause_of, log
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.types import Evaluation, SpanRef

_MAX_LENGTH = math.log1p(20_000)  # characters
_MAX_STREAMS = 10_000  # at a time; old versions of metrics are the first to be forgotten
_KEPT_TURNS, _MAX_TURNS = 50, 5  # of a stream, and in an alarm


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The key of a sequence of values that one detector watches.

    ``name`` is that of a metric, ``<metric>.scored``, ``declined`` or ``answer_length``.
    ``version`` changes if the metric is measured in another way, for instance with another judge.
    """

    service: str
    name: str
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstTurn:
    """The score and the span of one of the worst turns after a change of the scores."""

    score: float
    span: SpanRef | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """An alarm with its stream, and up to five of the worst turns since the onset."""

    stream: Stream
    alarm: Alarm
    worst: tuple[WorstTurn, ...] = ()

    def __str__(self) -> str:
        alarm = self.alarm
        low, high = alarm.interval
        return (
            f"{self.stream.name} of {self.stream.service or 'unknown service'} drifted"
            f" ({alarm.direction}): mean {alarm.before:.3f} -> {alarm.after:.3f}, change"
            f" {alarm.change:+.3f} [{low:+.3f}, {high:+.3f}], {alarm.n} scores since the onset"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBaseline:
    """The version of a metric changed from ``previous``; ``stream`` learns a new baseline."""

    stream: Stream
    previous: str


Report: TypeAlias = Drift | NewBaseline


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftOptions:
    """Options of drift detection on live scores: ``instrument(drift=DriftOptions(every=10_000))``.

    ``every``, ``learn``, ``direction`` and ``cooldown`` are options of `BettingDetector`. Each
    metric has a detector of its own, so m metrics raise about one false alarm in ``every / m``
    turns. ``targets`` maps the name of a metric to the mean that its scores should have; other
    baselines are learned. ``on_drift`` is called with each `Drift` and `NewBaseline`, on the thread
    that evaluates. ``state`` is the path of a file that keeps baselines and evidence for the next
    process. Raises `ConfigError` for invalid options.
    """

    every: float = 100_000
    learn: int = 2000
    direction: Directions = "both"
    cooldown: int = 500
    targets: Mapping[str, float] = field(default_factory=dict, hash=False)
    on_drift: Callable[[Report], object] | None = None
    state: str | Path | None = None

    def __post_init__(self) -> None:
        for target in self.targets.values():
            check_target(target)
        self.make_detector(Stream(service="", name=""))  # checks the other options

    def make_detector(self, stream: Stream) -> BettingDetector:
        """Make the detector that these options ask for, for the scores of ``stream``."""
        return BettingDetector(
            target=self.targets.get(stream.name),
            every=self.every,
            learn=self.learn,
            direction=self.direction,
            cooldown=self.cooldown,
        )


def monitored_values(evaluation: Evaluation) -> Iterator[tuple[str, str, float]]:
    """Yield each value in ``evaluation`` that is watched for drift, as (name, version, value).

    They are the scores, unless the texts seem to have an instruction to the judge,
    ``<metric>.scored`` (1 or 0, without a version, to detect a new judge that fails more often),
    ``declined`` (1 or 0), and ``answer_length``, a logarithm that is 1 for 20,000 characters.
    """
    for score in evaluation.scores:
        value = score.value if score.normalized is None else score.normalized
        if value is not None and not score.detail.get("injection"):
            yield score.name, score.version, value
        yield f"{score.name}.scored", "", float(value is not None)
    if evaluation.outcome is not None:
        version = evaluation["answer_relevancy"].version
        yield "declined", version, float(evaluation.outcome == "declined")
    if evaluation.answer_length is not None:
        yield "answer_length", "", min(1.0, math.log1p(evaluation.answer_length) / _MAX_LENGTH)


@dataclass(slots=True)
class _StreamMonitor:
    """The detector of a stream, and its last 50 turns, each with the index of its score."""

    detector: BettingDetector
    turns: deque[tuple[int, float, SpanRef | None]] = field(
        default_factory=lambda: deque(maxlen=_KEPT_TURNS)
    )

    def update(self, value: float, span: SpanRef | None) -> Alarm | None:
        score = valid_score(value)
        if score is not None:
            self.turns.append((self.detector.count, score, span))
        return self.detector.alarm if self.detector.update(value) else None

    def worst_since(self, alarm: Alarm) -> tuple[WorstTurn, ...]:
        """Return up to 5 turns since the onset with the lowest scores (after a rise, highest)."""
        turns = [turn for turn in reversed(self.turns) if turn[0] >= alarm.onset]
        turns.sort(key=itemgetter(1), reverse=alarm.direction == "up")
        return tuple(WorstTurn(score=score, span=span) for _, score, span in turns[:_MAX_TURNS])


class DriftMonitor:
    """Watch the scores of live evaluations, with one detector per service, metric and version.

    ``report`` is called on the thread that adds the score, with a `Drift` for each alarm, and with
    a `NewBaseline` when the version of a metric changes: another judge, prompt or definition is
    another measurement. ``make`` returns the detector for a stream, and ``service`` is the name of
    the service that emits the evaluations. A monitor is thread-safe.
    """

    def __init__(
        self,
        report: Callable[[Report], object],
        *,
        make: Callable[[Stream], BettingDetector] | None = None,
        service: str = "",
    ) -> None:
        self.report = report
        self._make = make or DriftOptions().make_detector
        self.service = service
        self._create_lock()
        call_in_child(self._create_lock)  # another thread may hold the lock at a fork
        self._streams: dict[Stream, _StreamMonitor] = {}
        self._versions: dict[tuple[str, str], str] = {}  # the last one, by service and name
        self._restored: dict[Stream, Mapping[str, Any]] = {}

    def _create_lock(self) -> None:
        self._lock = threading.RLock()

    def emit(self, evaluation: Evaluation) -> None:
        """Add all `monitored_values` of ``evaluation`` to their streams, and report alarms."""
        reports: list[Report] = []
        for name, version, value in monitored_values(evaluation):
            service = str(evaluation.about.get("service.name", self.service))
            stream = Stream(service=service, name=name, version=version)
            reports += self._add(stream, value, evaluation.span)
        self._report_all(reports)

    def update(self, stream: Stream, value: float, *, span: SpanRef | None = None) -> None:
        """Add ``value`` in [0, 1], of the turn with ``span``, to ``stream``; report an alarm."""
        self._report_all(self._add(stream, value, span))

    def _report_all(self, reports: list[Report]) -> None:
        with ExitStack() as calls:  # an exception is raised after all reports
            for report in reversed(reports):
                calls.callback(self.report, report)

    def _add(self, stream: Stream, value: float, span: SpanRef | None) -> list[Report]:
        reports: list[Report] = []
        with self._lock:
            monitor = self._streams.pop(stream, None)
            if monitor is None:
                monitor = _StreamMonitor(detector := self._make(stream))
                try:
                    if stream in self._restored:
                        detector.restore(self._restored.pop(stream))
                except _INVALID_STATE as error:
                    log.warning(_UNUSABLE, stream.name, cause_of(error))
                previous = self._versions.get((stream.service, stream.name), stream.version)
                self._versions[stream.service, stream.name] = stream.version
                if previous != stream.version:
                    reports.append(NewBaseline(stream=stream, previous=previous))
            self._streams[stream] = monitor  # the last used is the last
            if len(self._streams) > _MAX_STREAMS:
                del self._streams[next(iter(self._streams))]
            alarm = monitor.update(value, span)
            if alarm is not None:
                worst = monitor.worst_since(alarm)
                reports.append(Drift(stream=stream, alarm=alarm, worst=worst))
        return reports

    def evidence(self) -> list[tuple[Stream, float]]:
        """Return each stream with the `BettingDetector.log10_evidence` of its detector."""
        with self._lock:
            return [(key, each.detector.log10_evidence) for key, each in self._streams.items()]

    def to_state(self) -> dict[str, Any]:
        """Return the state of all detectors as JSON values, for `restore`."""
        with self._lock:
            states = dict(self._restored)
            for stream, monitor in self._streams.items():
                states[stream] = monitor.detector.to_state()
        streams = [asdict(stream) | {"detector": state} for stream, state in states.items()]
        return {"format": FORMAT, "streams": streams[-_MAX_STREAMS:]}

    def restore(self, state: Any) -> None:
        """Continue from ``state``, which `to_state` returned in an earlier process.

        If the state of a stream is invalid, a warning is logged, and the baseline is learned anew.
        """
        states: dict[Stream, Mapping[str, Any]] = {}
        try:
            if state["format"] != FORMAT:
                raise ValueError(f"its format is {state['format']!r}, not {FORMAT}")
            for saved in state["streams"]:
                names = {name: str(saved[name]) for name in ("service", "name", "version")}
                states[Stream(**names)] = saved["detector"]
        except _INVALID_STATE as error:
            log.warning(_UNUSABLE, "all streams", cause_of(error))
            return
        with self._lock:
            self._restored = states
            for stream in states:
                self._versions[stream.service, stream.name] = stream.version


_INVALID_STATE = (AttributeError, LookupError, OverflowError, TypeError, ValueError)
"""The exceptions that reading an arbitrary JSON value as a state can raise."""
_UNUSABLE = "drift: the state of %s cannot be used (%s); baselines are learned anew"
