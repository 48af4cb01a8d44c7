"""Score the answers of an app with existing tracing: attach to its provider.

``instrument()`` attaches in front of the existing processors. A processor beside them would export
every scored span twice.
"""

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from rag_eval_otel import instrument
from rag_eval_otel.tools.demo import TURNS, build_app

provider = TracerProvider()  # your own, with your processors and exporters
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))

handle = instrument(
    tracer_provider=provider,
    judge="lexical",
    # Two judges, and claims in place of sentences: 4 judge requests a turn, not 2.
    metrics=["dual"],
    hold_seconds=5,  # the longest time that a span waits for its scores
    sample_rate=1.0,
)

chain, question = build_app(), TURNS[0].question
with provider.get_tracer("web").start_as_current_span("GET /ask"):
    chain.invoke(question, config={"callbacks": [handle.callback]})

handle.flush()
handle.shutdown()  # the provider works on as if it had never been instrumented
provider.shutdown()
