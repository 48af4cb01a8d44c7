"""An application that is given texts which are slow to read, and tells how long a thread waited.

``python -m long_texts handler`` passes them to the callback handler, ``spans`` to the span
processor. It prints the longest wait of another thread in seconds, and waits for a signal.
"""

import base64
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rag_eval_otel import instrument

LENGTH = 99_000  # the prompt around it is read, too
_PAIRS = ":".join(f"{37 * number % 256:02X}" for number in range(32))
_LINE = base64.b64encode(random.Random(22).randbytes(LENGTH * 3 // 4)).decode()

Texts = tuple[str, str, str]
TEXTS: Mapping[str, Texts] = {  # what a tool returned, what the prompt ends with, the answer
    "fingerprint": (f"SHA1 Fingerprint={_PAIRS}\n{_PAIRS}", "", "It is valid."),
    "line": (_LINE, "", "It is a file."),
    "escapes": (f"['{chr(92)}'" * (LENGTH // 4), "", "It is escaped."),
    "ends": ("One page.", "\n" * 10_000, "It has ends."),
    "words": ("One page.", "", "ab cd. " * (LENGTH // 7)),
}


def by_handler(texts: Texts) -> None:
    """Ask a question in LangChain: a tool returns a text, and a model is shown it."""
    returned, end, answer = texts

    @tool
    def search(query: str) -> str:
        """Search the pages."""
        return f"{returned}{query[:0]}"

    model = FakeListChatModel(responses=[answer])

    def ask(question: str) -> str:
        found = search.invoke(question)
        return str(model.invoke(f"Context:\n{found}\n\nQuestion: {question}{end}").content)

    RunnableLambda(ask).invoke("What is it?")


def attributes_of(texts: Texts) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the spans of a turn, as OpenInference writes them: tool, model and chain."""
    returned, end, answer = texts
    prompt = f"Context:\n{returned}\n\nQuestion: What is it?{end}"
    yield "search", {"openinference.span.kind": "TOOL", "output.value": returned}
    yield (
        "model",
        {
            "openinference.span.kind": "LLM",
            "llm.input_messages.0.message.role": "user",
            "llm.input_messages.0.message.content": prompt,
            "llm.output_messages.0.message.role": "assistant",
            "llm.output_messages.0.message.content": answer,
        },
    )
    about = {"input.value": "What is it?", "output.value": answer}
    yield "chain", {"openinference.span.kind": "CHAIN", **about}


def by_spans(texts: Texts, provider: TracerProvider) -> None:
    *inner, (name, about) = attributes_of(texts)
    tracer = provider.get_tracer("openinference.instrumentation.fake")
    with tracer.start_as_current_span(name, attributes=about):
        for inner_name, values in inner:
            tracer.start_span(inner_name, attributes=values).end()


@contextmanager
def ticking() -> Iterator[list[float]]:
    """Run a thread that only sleeps, and yield how long it waited each time."""
    waits, stop = [0.0], threading.Event()

    def tick() -> None:
        last = time.perf_counter()
        while not stop.wait(0.005):
            now = time.perf_counter()
            waits.append(now - last)
            last = now

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    yield waits
    stop.set()
    thread.join()


def main(way: str) -> None:
    """Pass on each text, and print the longest wait of the other thread."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    handle = instrument(
        tracer_provider=provider, judge="lexical", embedder="hashing", hold_seconds=60
    )
    turn: Callable[[Texts], None] = (
        by_handler if way == "handler" else lambda texts: by_spans(texts, provider)
    )
    turn(("One page.", "", "It is a page."))  # imports
    handle.flush(60)
    for name, texts in TEXTS.items():
        with ticking() as waits:
            turn(texts)
            done = handle.flush(60)
        sys.stdout.write(f"{name} {max(waits):.3f} {done}\n")
    sys.stdout.write("waits\n")
    sys.stdout.flush()
    while True:  # a handler that returns ends a pause
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1])
