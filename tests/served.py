"""An application of one turn a request, as servers and worker processes run it.

``asgi`` and ``wsgi`` are its entry points. Each request makes one turn: a span with its question,
contexts and answer, and a span below it.
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from rag_eval_otel import instrument

sys.modules.update(dict.fromkeys(os.environ.get("SERVED_WITHOUT", "").split()))  # not installed
_numbers = count()
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
handle = instrument()


def turn() -> str:
    """Make one turn, whose spans have the number of the process that made them."""
    tracer = trace.get_tracer("app")
    company = f"company {next(_numbers)} of {os.getpid()}"
    question = f"Who founded {company}?"
    told: Mapping[str, Any] = {
        "process": os.getpid(),
        "rag.question": question,
        "rag.contexts": ["The company was founded by Ada."],
        "rag.answer": f"Ada founded {company}.",
    }
    with (
        tracer.start_as_current_span("turn", attributes=told),
        tracer.start_as_current_span("child"),
    ):
        return question


async def asgi(
    scope: Mapping[str, Any], receive: Callable[[], Any], send: Callable[[Mapping[str, Any]], Any]
) -> None:
    """Serve one turn for each request, by ASGI."""
    while scope["type"] == "lifespan":
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return
    turn()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(os.getpid()).encode()})


def wsgi(environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    turn()
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]


if os.environ.get("SERVED_TURNS_AT_IMPORT"):  # then the judge's thread imports its client
    turn()
