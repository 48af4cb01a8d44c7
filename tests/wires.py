"""Requests of spans for the tests of the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from rag_eval_otel.types import Sample
from rag_eval_otel.worker.exporter import Rejection

UNKNOWN = b"\xfa\x07\x03new"  # field 127, a text, that no version of OTLP has
START = 1_700_000_000_000_000_000
FRANCE = "Paris is the capital of France."


def span(
    trace: int, number: int, *, parent: int = 0, name: str = "GET /", **attributes: Any
) -> Span:
    """Return a span of ``trace`` with an unknown field; ``__`` in names of attributes is a dot."""
    message = Span(
        trace_id=trace.to_bytes(16, "big"),
        span_id=(trace << 8 | number).to_bytes(8, "big"),
        parent_span_id=(trace << 8 | parent).to_bytes(8, "big") if parent else b"",
        name=name,
        start_time_unix_nano=START + number * 1000,
        end_time_unix_nano=START + 1_000_000 - number * 1000,
        flags=0x101,  # sampled; whether the parent is remote is known: it is not
    )
    for key, value in attributes.items():
        message.attributes.add(key=key.replace("__", ".")).value.string_value = value
    message.MergeFromString(UNKNOWN)
    return message


def turn(trace: int, *, question: str = "", answer: str = FRANCE) -> list[Span]:
    """Return the spans of a RAG turn as OpenInference writes them, those that end first first."""
    question = question or f"What is the capital of France, number {trace}?"
    kind, document = "openinference__span__kind", "retrieval__documents__0__document__content"
    prompt = f"Context: {FRANCE}\nQuestion: {question}"
    of_root = {kind: "CHAIN", "input__value": question, "output__value": answer}
    of_search = {kind: "RETRIEVER", "input__value": question, document: FRANCE}
    messages = {
        "llm__input_messages__0__message__role": "user",
        "llm__input_messages__0__message__content": prompt,
        "llm__output_messages__0__message__role": "assistant",
        "llm__output_messages__0__message__content": answer,
    }
    of_call = {kind: "LLM", "input__value": prompt, "output__value": answer, **messages}
    return [
        span(trace, 2, parent=1, name="retriever", **of_search),
        span(trace, 3, parent=1, name="llm", **of_call),
        span(trace, 1, name="chain", **of_root),
    ]


def request(*spans: Span, service: str = "shop", scope: str = "acme") -> ExportTraceServiceRequest:
    message = ExportTraceServiceRequest()
    resource = message.resource_spans.add(schema_url="resource/1")
    resource.resource.attributes.add(key="service.name").value.string_value = service
    group = resource.scope_spans.add(schema_url="scope/1")
    group.scope.name = scope
    group.spans.extend(spans)
    return message


def content(*spans: Span, **names: str) -> bytes:
    return bytes(request(*spans, **names).SerializeToString())


def attributes(message: Span) -> Mapping[str, Any]:
    return {
        item.key: getattr(item.value, item.value.WhichOneof("value")) for item in message.attributes
    }


@dataclass
class FakeSender:
    """Keeps what it is asked to send, once ``may_send`` is set, and answers in turn."""

    answers: list[bytes | Rejection] = field(default_factory=list)
    may_send: asyncio.Event | None = None
    sent: list[bytes] = field(default_factory=list)

    async def send(self, body: bytes) -> bytes | Rejection:
        if self.may_send:
            await self.may_send.wait()
        self.sent.append(body)
        return self.answers.pop(0) if self.answers else b""

    async def close(self) -> None: ...


async def never(sample: Sample) -> float:
    """Return a score after a minute."""
    await asyncio.sleep(60)
    return 1.0


async def until(check: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until ``check()`` is true; raise `TimeoutError` after ``seconds``."""
    for _ in range(int(seconds / 0.01)):
        if check():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError
