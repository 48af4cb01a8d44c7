"""The demo: a RAG app with the callback installed, its traces exported, received and shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from rag_eval_otel.config import Config, Signal, otlp_endpoint
from rag_eval_otel.demo.app import TURNS, build_app
from rag_eval_otel.demo.show import Shown, as_json, as_text, collect
from rag_eval_otel.live.instrument import instrument
from rag_eval_otel.runtime.providers import Providers, exporters
from rag_eval_otel.testing import OtlpReceiver

Form = Literal["text", "json"]

_SHOW: Mapping[Form, Callable[[Shown], str]] = {"text": as_text, "json": as_json}
_PATIENCE = 120.0  # seconds; a judge over the network may be slow


def run_demo(*, form: Form, options: Mapping[str, Any], write: Callable[[str], object]) -> int:
    """Ask the demo's questions and show what arrived; 0 if every turn came once and was scored."""
    config = Config.from_env(**{"hold_seconds": _PATIENCE, **options})
    with OtlpReceiver() as receiver:
        _ask_all(config, receiver.http_endpoint)
        shown = collect(receiver, judge=config.judge, also_to=otlp_endpoint())
    write(_SHOW[form](shown))
    return 0 if shown.is_complete else 1


def _ask_all(config: Config, receiver: str) -> None:
    providers = Providers.exporting(
        traces=[OTLPSpanExporter(endpoint=f"{receiver}/v1/traces"), *_elsewhere("traces")],
        metrics=[OTLPMetricExporter(endpoint=f"{receiver}/v1/metrics"), *_elsewhere("metrics")],
        logs=[OTLPLogExporter(endpoint=f"{receiver}/v1/logs"), *_elsewhere("logs")],
        service="rag-eval-otel-demo",
    )
    handle = instrument(
        config,
        tracer_provider=providers.tracer_provider,
        meter_provider=providers.meter_provider,
        logger_provider=providers.logger_provider,
    )
    app = build_app()
    for turn in TURNS:
        app.invoke(turn.question, config={"callbacks": [handle.callback]})
    handle.shutdown(_PATIENCE)
    providers.shutdown()


def _elsewhere(signal: Signal) -> Iterator[Any]:
    """Yield the exporters to the user's own endpoint, where the environment names one."""
    if otlp_endpoint() is not None:
        yield from exporters(signal)
