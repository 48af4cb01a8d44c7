"""A RAG app that gives good or bad answers on request, and exports to a collector."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from langchain_core.messages import AIMessage, BaseMessage
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.trace.export import SpanExporter

from apps import company
from apps.fakes import ScriptedChat
from apps.parts import rag
from rag_eval_otel import Handle, instrument
from rag_eval_otel.runtime.sdk import Providers

GOOD = "Borealis Kites was founded in 1987 in a boathouse."
BAD = "The moon is a wheel of green cheese, made in Paris."
SECRET = "sk-live-0123456789abcdefghij"

Signals = Literal["traces", "all"]


@dataclass(kw_only=True)
class Fickle:
    """The app; `ask` runs turns with good or bad answers."""

    providers: Providers
    handle: Handle
    said: list[str] = field(default_factory=lambda: [GOOD])

    def ask(self, count: int, answer: str = GOOD) -> None:
        self.run(count, answer)
        assert self.handle.flush()
        self.providers.meter_provider.force_flush()
        self.providers.logger_provider.force_flush()

    def run(self, count: int, answer: str = GOOD) -> None:
        self.said[:] = [answer]
        for _ in range(count):
            self._chain.invoke(company.FOUNDED, {"callbacks": [self.handle.callback]})

    @property
    def _chain(self) -> Any:
        return rag(llm=ScriptedChat(reply=self._reply))

    def _reply(self, _: Sequence[BaseMessage]) -> AIMessage:
        return AIMessage(content=self.said[0])


@contextmanager
def fickle(
    target: Any,
    service: str,
    *,
    signals: Signals = "all",
    traces: Sequence[SpanExporter] = (),
    **options: Any,
) -> Iterator[Fickle]:
    """Run the app; ``target`` has the endpoints of a receiver, `grpc` and `http` without a path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_SERVICE_NAME", service)
        every = signals == "all"
        providers = Providers.exporting(
            traces=traces or [OTLPSpanExporter(endpoint=target.grpc, insecure=True)],
            metrics=[OTLPMetricExporter(endpoint=f"{target.http}/v1/metrics")] if every else [],
            logs=[OTLPLogExporter(endpoint=f"{target.http}/v1/logs")] if every else [],
        )
    handle = instrument(
        tracer_provider=providers.tracer_provider,
        meter_provider=providers.meter_provider,
        logger_provider=providers.logger_provider,
        hold_seconds=60,
        **options,
    )
    try:
        yield Fickle(providers=providers, handle=handle)
    finally:
        handle.shutdown()
        providers.shutdown()
