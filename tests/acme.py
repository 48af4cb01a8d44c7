"""A backend that another package brings, which keeps scores and fails as a test says."""

import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import EntryPoint

import httpx
import pytest
from opentelemetry.metrics import MeterProvider

from rag_eval_otel import registry
from rag_eval_otel.export.backends.annotation import Annotation, BackendError, Rejection
from rag_eval_otel.export.backends.delivery import BACKENDS, BackendSink
from rag_eval_otel.types import Feedback


class Acme:
    """A backend that another package brings. ``errors`` are what the next requests raise."""

    stored: Counter[tuple[int | None, str, float | None]]
    errors: list[BackendError]
    hangs: threading.Event

    def send(self, annotations: Sequence[Annotation]) -> Sequence[Rejection]:
        self.hangs.wait(60)
        if self.errors:
            raise self.errors.pop(0)
        self.stored.update((one.span_id, one.name, one.value) for one in annotations)
        return []


current = Acme


@pytest.fixture
def acme() -> Iterator[type[Acme]]:
    with installed() as made:
        yield made


@contextmanager
def installed() -> Iterator[type[Acme]]:
    """Have an entry point called ``acme``, for a backend of its own."""

    class Fresh(Acme):
        """The threads of an earlier test may still use another class."""

        stored, errors, hangs = Counter(), [], threading.Event()

    Fresh.hangs.set()
    entry = EntryPoint("acme", "acme:current", BACKENDS.group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[__name__], "current", Fresh)
        patch.setattr(registry, "entry_points", partial(_found, entry))
        yield Fresh
    Fresh.hangs.set()


def _found(
    entry: EntryPoint, *, group: str = "", name: str = "acme", **_: object
) -> tuple[EntryPoint, ...]:
    return (entry,) * (name == entry.name and group == entry.group)


def lose_a_score(meters: MeterProvider) -> BackendSink:
    """Count a score that did not reach a backend, because the process ended; return its sink."""
    with installed():
        sink = BackendSink(["acme"], meter_provider=meters)
    sink.close()
    sink.emit_feedback(Feedback(trace_id=1, span_id=2, score=1.0))
    return sink


def http_error(status: int, text: str = "", **headers: str) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://there")
    response = httpx.Response(status, text=text, headers=headers, request=request)
    return httpx.HTTPStatusError(f"HTTP {status}", request=request, response=response)
