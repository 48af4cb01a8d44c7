"""Score the answers of an app that has its tracing set up already: attach to its provider.

``instrument()`` stands in front of the processors that are there. Adding a processor beside them
instead would export every scored span twice.
"""

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from rag_eval_otel import instrument
from rag_eval_otel.demo.app import TURNS, build_app

provider = TracerProvider()  # yours, with your processors and exporters
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))

handle = instrument(
    tracer_provider=provider,
    judge="lexical",
    metrics=["dual"],  # two judges and claims that they find: 4 judge requests a turn in place of 2
    hold_seconds=5,  # a span waits that long for its scores, at most
    sample_rate=1.0,
)

chain, question = build_app(), TURNS[0].question
with provider.get_tracer("web").start_as_current_span("GET /ask"):
    chain.invoke(question, config={"callbacks": [handle.callback]})

handle.flush()
handle.shutdown()  # the provider goes on as if nothing had been there
provider.shutdown()
