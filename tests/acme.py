"""A backend that another package brings, which keeps scores and fails as a test says."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint

import pytest

from rag_eval_otel import registry
from rag_eval_otel.sinks.backends.annotations import Annotation
from rag_eval_otel.sinks.backends.client import BackendError, Refusal
from rag_eval_otel.sinks.backends.sink import BACKENDS


class Acme:
    """A backend that another package brings. ``errors`` are what the next requests raise."""

    stored: Counter[tuple[int | None, str, float | None]]
    errors: list[BackendError]
    hangs: threading.Event

    def send(self, annotations: Sequence[Annotation]) -> Sequence[Refusal]:
        self.hangs.wait(60)
        if self.errors:
            raise self.errors.pop(0)
        self.stored.update((one.span_id, one.name, one.value) for one in annotations)
        return []


current = Acme


@pytest.fixture
def acme(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Acme]]:
    """Return the backend that an entry point called ``acme`` has."""

    class Fresh(Acme):
        """The threads of an earlier test may still use another class."""

        stored, errors, hangs = Counter(), [], threading.Event()

    Fresh.hangs.set()
    entry = EntryPoint("acme", "acme:current", BACKENDS.group)
    monkeypatch.setattr(sys.modules[__name__], "current", Fresh)
    monkeypatch.setattr(
        registry,
        "entry_points",
        lambda group="", name="acme", **_: (entry,) * (name == entry.name and group == entry.group),
    )
    yield Fresh
    Fresh.hangs.set()
