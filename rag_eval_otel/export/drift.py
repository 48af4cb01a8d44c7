"""Detect drift in live scores, report alarms to OpenTelemetry, and save the state in a file."""

from __future__ import annotations

import atexit
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry.metrics import MeterProvider, Observation

from rag_eval_otel import semconv
from rag_eval_otel.drift.monitor import (
    Drift,
    DriftMonitor,
    DriftOptions,
    NewBaseline,
    Report,
    Stream,
)
from rag_eval_otel.export.attributes import EventLog
from rag_eval_otel.export.backends.annotation import exportable_attributes
from rag_eval_otel.export.metrics import Meters, add_gauges
from rag_eval_otel.log import log
from rag_eval_otel.runtime.guard import LimitedLog
from rag_eval_otel.types import Evaluation, Sampling

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider
    from opentelemetry.util.types import AttributeValue

_SAVE_INTERVAL = 100  # evaluations after which the state is saved


class DriftSink:
    """A sink that detects drift in the scores of live evaluations, and reports alarms.

    An alarm is emitted as a log event, counted, and passed to ``options.on_drift``. A gauge has the
    evidence of drift in each stream. The file ``options.state``, if set, is read at the start and
    written every 100 evaluations and at the end.
    """

    def __init__(
        self,
        options: DriftOptions,
        *,
        meter_provider: MeterProvider | None = None,
        logger_provider: LoggerProvider | None = None,
        service: str = "",
    ) -> None:
        self._on_drift = options.on_drift
        self._log, self._meters = EventLog(logger_provider), Meters(meter_provider)
        self.monitor = DriftMonitor(self.report, make=options.make_detector, service=service)
        self._path = Path(options.state) if options.state is not None else None
        self._warnings = LimitedLog()
        self._unsaved = 0
        if self._path is not None:
            try:
                self.monitor.restore(json.loads(self._path.read_text(encoding="utf-8")))
            except FileNotFoundError:
                pass
            except (OSError, ValueError, RecursionError) as error:  # RecursionError: deep nesting
                text = "drift: %s cannot be read (%s); baselines are learned anew"
                log.warning(text, self._path, error)
            # Before the exit handler of the pipeline: so it runs after it, with the last scores.
            atexit.register(self.save)
        add_gauges(meter_provider, self, {semconv.DRIFT_EVIDENCE: DriftSink._observations})

    def __call__(self, evaluation: Evaluation) -> None:
        try:
            for watched in _watched(evaluation):
                self.monitor.emit(watched)
        finally:
            self._unsaved += 1
            if self._unsaved >= _SAVE_INTERVAL:
                self.save()

    def report(self, report: Report) -> None:
        stream = report.stream
        if isinstance(report, NewBaseline):
            text = f"{stream.name} is another measurement: its baseline is learned anew"
            attributes: dict[str, AttributeValue | None] = {
                **self._of_stream(stream),
                f"{semconv.EVALUATION_VERSION}.previous": report.previous,
            }
            self._log.emit(semconv.BASELINE_EVENT, attributes, span=None, body=text)
        else:
            worst = report.worst[0].span if report.worst else None  # the event gets its ids
            kind = {semconv.DRIFT_DIRECTION: report.alarm.direction}
            attributes = {**self._of_stream(stream), **kind, **_of_drift(report)}
            text = str(report)
            self._log.emit(semconv.DRIFT_EVENT, attributes, span=worst, body=text, is_warning=True)
            named = {semconv.GEN_AI_EVALUATION_NAME: stream.name, **kind}
            self._meters.record(semconv.DRIFT_ALARMS, 1, named)
        if self._on_drift is not None:
            self._on_drift(report)

    def _observations(self) -> Iterator[Observation]:
        for stream, value in self.monitor.evidence():
            yield Observation(value, exportable_attributes(self._of_stream(stream)))

    def _of_stream(self, stream: Stream) -> dict[str, AttributeValue | None]:
        is_other = stream.service != self.monitor.service  # than this process, in a worker
        return {
            semconv.GEN_AI_EVALUATION_NAME: stream.name,
            semconv.EVALUATION_VERSION: stream.version,
            semconv.SERVICE_NAME: stream.service if is_other else None,
        }

    def save(self) -> None:
        """Write the state to its file, unless it is unchanged; an error is logged."""
        if self._path is None or not self._unsaved:
            return
        self._unsaved = 0
        part = self._path.with_name(f"{self._path.name}.part")
        try:
            part.write_text(json.dumps(self.monitor.to_state()), encoding="utf-8")
            part.replace(self._path)
        except OSError as error:
            self._warnings.write("save", "drift: %s cannot be written (%s)", self._path, error)

    def close(self) -> None:
        atexit.unregister(self.save)
        self.save()


def _of_drift(drift: Drift) -> dict[str, AttributeValue | None]:
    alarm, prefix = drift.alarm, semconv.DRIFT_PREFIX
    return {
        f"{prefix}.before": alarm.before,
        f"{prefix}.after": alarm.after,
        f"{prefix}.change": alarm.change,
        f"{prefix}.change_low": alarm.interval[0],
        f"{prefix}.change_high": alarm.interval[1],
        f"{prefix}.scores_since_onset": alarm.n,
        semconv.DRIFT_EVIDENCE: alarm.log10_evidence,
        f"{prefix}.worst_traces": [f"{t.span.trace_id:032x}" for t in drift.worst if t.span]
        or None,
    }


def _watched(evaluation: Evaluation) -> Iterator[Evaluation]:
    """Yield the evaluations to watch for drift; a cascade's offline scores as ``offline.<metric>``.

    The judge's scores of targeted turns are left out: a change of their share is no drift.
    """
    sampling = evaluation.sampling or Sampling()
    is_offline = sampling.stage == "offline"
    offline = evaluation if is_offline else evaluation.offline
    if offline is not None:
        scores = [replace(s, name=f"{semconv.OFFLINE}.{s.name}") for s in offline.scores]
        yield replace(offline, scores=tuple(scores))
    if not is_offline and not sampling.is_targeted:
        # The length of an answer is counted once, by the offline scores if there are any.
        yield evaluation if offline is None else replace(evaluation, answer_length=None)
