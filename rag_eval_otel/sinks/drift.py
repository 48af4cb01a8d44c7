"""Drift as telemetry: a log event and a counter for each alarm, and a gauge of the evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from opentelemetry.metrics import MeterProvider, Observation, get_meter_provider

from rag_eval_otel import semconv
from rag_eval_otel.drift.monitor import Report
from rag_eval_otel.drift.records import Drift, Stream
from rag_eval_otel.sinks.attributes import exportable_attributes
from rag_eval_otel.sinks.events import DriftEvents
from rag_eval_otel.sinks.instruments import Gauge, watch

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider
    from opentelemetry.util.types import AttributeValue

Evidence: TypeAlias = Callable[[], Iterable[tuple[Stream, float]]]

_EVIDENCE = Gauge(
    name=semconv.DRIFT_EVIDENCE,
    unit="1",
    description="Evidence of drift, log10; an alarm is at log10 of the scores for one.",
    join=max,
)
_COLLECTIONS = 2  # for which an alarm stands in the gauge: whoever scrapes one late still sees it


class DriftTelemetry:
    """Reports what a `DriftMonitor` finds."""

    def __init__(
        self,
        *,
        meter_provider: MeterProvider | None = None,
        logger_provider: LoggerProvider | None = None,
    ) -> None:
        """Report through these providers, by default the global ones."""
        self._events = DriftEvents(logger_provider)
        self._meter_provider = meter_provider
        meter = (meter_provider or get_meter_provider()).get_meter(
            semconv.SCOPE, semconv.VERSION, schema_url=semconv.GEN_AI_SCHEMA_URL
        )
        self._alarms = meter.create_counter(
            semconv.DRIFT_ALARMS, unit="{alarm}", description="Alarms: the scores have drifted."
        )
        self._held: dict[Stream, tuple[float, int]] = {}
        self._stop: Callable[[], None] = lambda: None

    def report(self, report: Report) -> None:
        """Emit ``report`` as an event, and count it if it is an alarm."""
        if not isinstance(report, Drift):
            self._events.new_baseline(report)
            return
        self._held[report.stream] = (report.alarm.log10_evidence or 0.0, _COLLECTIONS)
        self._events.drift(report)
        alarm = {
            semconv.GEN_AI_EVALUATION_NAME: report.stream.name,
            semconv.DRIFT_DIRECTION: report.alarm.direction,
            semconv.DRIFT_CAUSE: report.cause,
        }
        self._alarms.add(1, alarm)

    def watch(self, evidence: Evidence) -> None:
        """Report ``evidence()`` at every collection, until `stop` or the end of this object."""
        self._evidence = evidence
        self._stop = watch(self._meter_provider, _EVIDENCE, self._observe)

    def stop(self) -> None:
        """Report no evidence any more."""
        self._stop()

    def _observe(self) -> list[Observation]:
        return [self._observation(stream, value) for stream, value in self._evidence()]

    def _observation(self, stream: Stream, value: float) -> Observation:
        held, left = self._held.pop(stream, (0.0, 0))
        if left > 1:
            self._held[stream] = (held, left - 1)
        attributes: dict[str, AttributeValue] = exportable_attributes(
            [
                (semconv.GEN_AI_EVALUATION_NAME, stream.name),
                (semconv.EVALUATION_VERSION, stream.version),
            ]
        )
        return Observation(max(value, held), attributes)
