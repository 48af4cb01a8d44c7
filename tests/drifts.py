"""An alarm of the drift monitor, and a drift sink with its telemetry, for tests."""

from typing import Any

from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from rag_eval_otel.config import Config
from rag_eval_otel.drift import Alarm, Drift, DriftOptions, Stream
from rag_eval_otel.export.drift import DriftSink
from rag_eval_otel.live.instrument import build_sinks
from rag_eval_otel.types import Evaluation, Score, SpanRef

QUICK = {"every": 100, "learn": 100, "cooldown": 50}


class Backend:
    """The drift sink of a pipeline, and the telemetry it exports."""

    def __init__(self, **options: Any) -> None:
        self.reader = InMemoryMetricReader()
        self.logs = InMemoryLogRecordExporter()
        provider = LoggerProvider()
        provider.add_log_record_processor(SimpleLogRecordProcessor(self.logs))
        self.config = Config(drift=DriftOptions(**{**QUICK, **options}))
        resource = Resource.create({"service.name": "shop"})
        self.tracers, self.logging = TracerProvider(resource=resource), provider
        self.meters = MeterProvider([self.reader])
        self.sink = self.made()
        self.turns = 0

    def made(self) -> DriftSink:
        _, sink = build_sinks(
            self.config, provider=self.tracers, meters=self.meters, logs=self.logging
        )
        assert isinstance(sink, DriftSink)
        return sink

    def score(self, *values: float, version: str = "1") -> None:
        for value in values:
            self.turns += 1
            score = Score(name="faithfulness", value=value, version=version)
            span = SpanRef(trace_id=self.turns, span_id=1)
            self.sink(Evaluation(scores=(score,), span=span))

    def events(self) -> list[Any]:
        return [record.log_record for record in self.logs.get_finished_logs()]

    def points(self, name: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        metrics = data.resource_metrics[0].scope_metrics[0].metrics if data else []
        return [p for m in metrics if m.name == name for p in m.data.data_points]

    def evidence(self) -> dict[str, float]:
        points = self.points("rag.evaluation.drift.log10_evidence")
        mine = [p for p in points if p.attributes["gen_ai.evaluation.name"] == "faithfulness"]
        found = {str(p.attributes["rag.evaluation.version"]): p.value for p in mine}
        assert len(found) == len(mine)
        return found


def drifted(service: str = "shop") -> Drift:
    """Return an alarm on a metric whose mean has fallen by 0.3."""
    alarm = Alarm(
        index=2100,
        onset=2040,
        n=60,
        direction="down",
        view="level",
        before=0.9,
        after=0.6,
        interval=(-0.4, -0.2),
        log10_evidence=5.1,
        every=100_000,
    )
    return Drift(stream=Stream(service=service, name="faithfulness"), alarm=alarm)
