"""`DriftMonitor`: a sink that keeps one detector for each service, metric and version."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, TypeAlias

from rag_eval_otel.drift.betting import FORMAT
from rag_eval_otel.drift.records import Cause, Drift, NewBaseline, Stream
from rag_eval_otel.drift.values import Value, watched_values
from rag_eval_otel.drift.watched import Detector, Watched, make_detector
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.types import Evaluation, SpanRef

_log = logging.getLogger("rag_eval_otel")

Report: TypeAlias = "Drift | NewBaseline"
MAX_STREAMS = 50 * 200


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
        self._watched: OrderedDict[Stream, Watched] = OrderedDict()
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
        """Take all that is watched of ``evaluation``, and report.

        What ``stratum`` raises is raised before anything is taken; what a detector or ``report``
        raises, after the rest has been taken and reported.
        """
        stratum = None if self._stratum is None else self._stratum(evaluation)
        with ExitStack() as all_of_them:
            for name, version, value in reversed(list(watched_values(evaluation))):
                stream = Stream(service=self.service, name=name, version=version)
                all_of_them.callback(
                    self.update, stream, value, span=evaluation.span, stratum=stratum
                )

    def update(
        self,
        stream: Stream,
        value: Value,
        *,
        span: SpanRef | None = None,
        stratum: str | None = None,
    ) -> None:
        """Take one score in [0, 1], or one embedding, of ``stream``, from the turn ``span``."""
        kind = None if stratum is None else str(stratum)
        with ExitStack() as all_of_them:  # a report that raises does not keep the next one back
            for report in reversed(self._take(stream, value, span, kind)):
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

    def _watch(self, stream: Stream) -> Watched:
        watched = self._watched[stream] = Watched(stream, self._made(stream))
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
    LookupError,
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
