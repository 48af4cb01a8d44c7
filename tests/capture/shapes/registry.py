"""The list of all shapes, each with the samples that are truly in it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from opentelemetry import trace

Truth: TypeAlias = dict[str, Any]
Run: TypeAlias = Callable[[], object]

SHAPES: dict[str, tuple[Run, list[Truth]]] = {}
"""By name: what to run, and the samples that are truly in it."""


def truth(question: str, contexts: Sequence[str], answer: str) -> Truth:
    """State a sample: contexts that reached the generator, in its order, each once."""
    return {"question": question, "contexts": list(contexts), "answer": answer}


def shape(*truths: Truth) -> Callable[[Run], Run]:
    """Register the function below, with the samples it must give; none if it is no RAG."""

    def add(run: Run) -> Run:
        SHAPES[run.__name__] = (run, list(truths))
        return run

    return add


@contextmanager
def span(name: str) -> Iterator[None]:
    """Run a block under a span of the application's own."""
    with trace.get_tracer("app").start_as_current_span(name):
        yield
