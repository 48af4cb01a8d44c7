"""The sinks of a live pipeline: the built-in ones, and the user's by object or by name."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from pipeline import good_judge, running
from rag_eval_otel import instrument, registry
from rag_eval_otel.config import Config
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.sinks.events import EventSink
from rag_eval_otel.sinks.factory import SINKS, build_sinks
from rag_eval_otel.types import Evaluation


class Recorder:
    """A sink that keeps its evaluations."""

    made: list[Recorder]

    def __init__(self) -> None:
        self.evaluations: list[Evaluation] = []
        self.is_closed = False
        self.made.append(self)

    def emit(self, evaluation: Evaluation) -> None:
        self.evaluations.append(evaluation)

    def close(self) -> None:
        self.is_closed = True


class EmbeddingRecorder(Recorder):
    """A sink that gets the embeddings of questions."""

    takes_question_embeddings = True


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


def test_only_a_sink_that_asks_for_them_gets_question_embeddings() -> None:
    """They reveal much of the questions."""
    sinks = [Recorder(), EmbeddingRecorder()]
    with running(judge=good_judge(), sinks=sinks) as app:
        app.run_turns(1)
        assert app.handle.flush()
    embeddings = [sink.evaluations[0].question_embedding is not None for sink in sinks]
    assert embeddings == [False, True]


@pytest.mark.parametrize(
    ("sink", "told"),
    [
        ("recoder", "unknown sink 'recoder'; did you mean 'recorder'?"),
        (7, "a sink must be a name, or an object with a method emit"),
    ],
)
def test_an_invalid_sink_is_refused(sink: Any, told: str) -> None:
    """The error names the sinks there are."""
    with pytest.raises(ConfigError, match=told):
        instrument(sinks=[sink])


def test_without_drift_there_is_no_drift_sink() -> None:
    """Events are always emitted."""
    (sink,) = build_sinks(Config(drift="off"), provider=None)
    assert isinstance(sink, EventSink)
