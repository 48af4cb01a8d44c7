"""The list of all shapes, each with the samples that are truly in it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import TypeAlias

from opentelemetry import trace

from corpus.kit import App, Config, Truth

Run: TypeAlias = Callable[[], object]

SHAPES: dict[str, App] = {}


def shape(*truths: Truth) -> Callable[[Run], Run]:
    """Register the function below, with the samples it must give; none if it is no RAG."""

    def add(run: Run) -> Run:
        @wraps(run)
        def without_config(_config: Config) -> None:
            with suppress(ConnectionError):  # what the failing shapes raise
                run()

        SHAPES[run.__name__] = App(without_config, truths)
        return run

    return add


@contextmanager
def span(name: str) -> Iterator[None]:
    """Run a block under a span of the application's own."""
    with trace.get_tracer("app").start_as_current_span(name):
        yield


__all__ = ["SHAPES", "Truth", "shape", "span"]
