"""The sinks of a live pipeline: the built-in ones, and the user's by object or by name."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from pipeline import good_judge, running
from rag_eval_otel import instrument, registry
from rag_eval_otel.config import Config
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.export.attributes import EventSink
from rag_eval_otel.live.instrument import SINKS, build_sinks
from rag_eval_otel.types import Evaluation


class Recorder:
    """A sink that keeps its evaluations."""

    made: list[Recorder]

    def __init__(self) -> None:
        self.evaluations: list[Evaluation] = []
        self.is_closed = False
        self.made.append(self)

    def __call__(self, evaluation: Evaluation) -> None:
        self.evaluations.append(evaluation)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """Return the recorders made in a test; an entry point called ``recorder`` makes them."""
    Recorder.made = []
    entry = EntryPoint("recorder", "acme:Recorder", SINKS.group)
    monkeypatch.setattr(EntryPoint, "load", lambda _: Recorder)
    monkeypatch.setattr(
        registry, "entry_points", lambda name="recorder", **_: (entry,) * (name == entry.name)
    )
    return Recorder.made


def test_a_sink_is_found_by_name(made: list[Recorder]) -> None:
    """It gets every evaluation, and is closed at shutdown."""
    with running(judge=good_judge(), sinks=["recorder"]) as app:
        app.run_turns(2)
        assert app.handle.flush()
        (recorder,) = made
        assert len(recorder.evaluations) == 2
        app.handle.shutdown()
        assert recorder.is_closed


@pytest.mark.parametrize(
    ("sink", "told"),
    [
        ("recoder", "unknown sink 'recoder'; did you mean 'recorder'?"),
        (7, "a sink must be a name, a function, or an object with __call__"),
    ],
)
def test_an_invalid_sink_is_refused(sink: Any, told: str) -> None:
    """The error names the sinks there are."""
    with pytest.raises(ConfigError, match=told):
        instrument(sinks=[sink])


def test_without_drift_there_is_no_drift_sink() -> None:
    """Events are always emitted."""
    (sink,) = build_sinks(Config(drift=False), provider=None)
    assert isinstance(sink, EventSink)
