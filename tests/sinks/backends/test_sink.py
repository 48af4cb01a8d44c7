"""Backends in a live pipeline: every score arrives once, and nothing waits for a backend."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from acme import Acme, acme
from live import KIND, App, answered, attached
from pipeline import good_judge
from rag_eval_otel import Config
from rag_eval_otel.errors import ConfigError, MissingDependencyError
from rag_eval_otel.sinks.backends import sink as sinks
from rag_eval_otel.sinks.backends.client import BackendError
from rag_eval_otel.sinks.backends.sink import BackendSink
from rag_eval_otel.testing import FakeJudge
from rag_eval_otel.types import Evaluation, Feedback

TURNS = 5

__all__ = ["acme"]  # a fixture


def expected(app: App) -> Counter[tuple[int | None, str, float | None]]:
    """Return the scores on the exported spans, and the overall labels."""
    found: Counter[tuple[int | None, str, float | None]] = Counter()
    for span in app.exported():
        attributes: Any = span.attributes or {}
        if "rag.evaluation.label" in attributes:
            found[span.context.span_id, "rag.evaluation", None] += 1
        for name, value in attributes.items():
            if name.endswith(".score"):
                found[span.context.span_id, name.split(".")[2], value] += 1
    return found


def outcomes(app: App) -> dict[Any, int]:
    """Return the counter of scores by outcome and reason."""
    points = app.points("rag.evaluation.backend.scores")
    assert all(point.attributes["backend"] == "acme" for point in points)
    return {
        (point.attributes["outcome"], point.attributes.get("reason")): point.value
        for point in points
    }


@pytest.mark.slow
def test_every_score_arrives_once(acme: type[Acme]) -> None:
    """The values are those on the spans, also if the backend failed twice."""
    acme.errors = [BackendError("down"), BackendError("broken", status=500)]
    with attached(backends=["acme"]) as app:
        for number in range(TURNS):
            app.turn(number)
        assert app.handle.flush(60)
        assert acme.stored == expected(app)
        assert outcomes(app) == {("delivered", None): sum(acme.stored.values())}
    assert len(acme.stored) >= 4 * TURNS


def test_a_shutdown_delivers_what_is_left(acme: type[Acme]) -> None:
    """Without a flush before."""
    with attached(backends=["acme"], shutdown_seconds=60) as app:
        for number in range(TURNS):
            app.turn(number)
        app.handle.shutdown()
        assert acme.stored == expected(app)
        assert outcomes(app)["delivered", None] == sum(acme.stored.values())


def test_late_scores_arrive(acme: type[Acme]) -> None:
    """The span has left without scores; the backend gets them."""
    with attached(backends=["acme"], hold_seconds=0) as app:
        span = app.turn()
        assert app.handle.flush(60)
        assert app.status_of(span) == "timeout"
    names = {(span_id, name) for span_id, name, _ in acme.stored}
    own = span.get_span_context().span_id
    assert {(own, "rag.evaluation"), (own, "faithfulness")} <= names


@pytest.mark.parametrize("hours", [-24, 24])
def test_clock_skew_loses_no_score(acme: type[Acme], hours: int) -> None:
    """The spans are a day old, or of tomorrow; a score is joined to its span by ids alone."""
    start = time.time_ns() + hours * 3600 * 10**9
    with attached(backends=["acme"]) as app:
        turn = app.tracer.start_span("turn", start_time=start, attributes={KIND: "CHAIN"})
        turn.set_attributes(answered(1))
        app.retrieve(1, turn)
        app.generate(1, turn)
        turn.end(start + 10**9)
        assert app.handle.flush(60)
        assert acme.stored == expected(app)
        assert set(outcomes(app)) == {("delivered", None)}
    assert (turn.get_span_context().span_id, "rag.evaluation", None) in acme.stored


@pytest.mark.slow
def test_a_hanging_backend_delays_no_span(acme: type[Acme]) -> None:
    """The spans leave with their scores. A shutdown takes its time only, and counts the loss."""
    acme.hangs.clear()
    with attached(backends=["acme"], shutdown_seconds=1) as app:
        for number in range(TURNS):
            app.turn(number)
        assert app.handle.flush(2) is False
        app.handle.shutdown()
        assert app.statuses()["scored"] == TURNS
        assert set(outcomes(app)) == {("dropped", "shutdown")}
        assert not acme.stored


@pytest.mark.slow
def test_a_flush_by_a_sink_waits_for_no_backend(acme: type[Acme]) -> None:
    """It is on the thread that evaluates turns, which must not stand still."""
    acme.hangs.clear()
    done: list[bool] = []

    class Flushing:
        """A sink that flushes the pipeline."""

        def emit(self, evaluation: Evaluation) -> None:
            done.append(app.handle.flush(600))

    with attached(backends=["acme"], sinks=[Flushing()], shutdown_seconds=0.5) as app:
        app.turn()
        app.turn(2)
        app.handle.flush(2)
        app.handle.shutdown()
    assert done
    assert not any(done)


def test_failed_scores_are_not_sent(acme: type[Acme]) -> None:
    """A failure is not a score."""
    judge = FakeJudge({})
    with attached(backends=["acme"], judge=judge, errors="swallow") as app:
        app.turn()
        assert app.handle.flush(60)
        sent = {name for _, name, _ in acme.stored}
        assert sent == {name for _, name, _ in expected(app)}
        assert "faithfulness" not in sent


def test_feedback_of_people_is_sent(acme: type[Acme]) -> None:
    """To the span that it is about."""
    sink = BackendSink(["acme"])
    sink.emit_feedback(Feedback(trace_id=1, span_id=2, score=1.0))
    assert sink.flush(60)
    sink.close()
    assert acme.stored == {(2, "user", 1.0): 1}


@pytest.mark.slow
def test_the_queue_is_reported(acme: type[Acme]) -> None:
    """A gauge shows how many scores wait."""
    acme.hangs.clear()
    with attached(backends=["acme"], shutdown_seconds=0.1) as app:
        app.turn()
        app.handle.flush(0.5)
        assert sum(p.value for p in app.points("rag.evaluation.backend.queued")) > 0


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["phoneix"], "unknown backend 'phoneix'; did you mean 'phoenix'?"),
        ("phoenix", "backends must be a sequence of names, not 'phoenix'"),
    ],
)
def test_a_backend_that_is_not_known_is_refused(names: Any, told: str) -> None:
    """The message names the ones that there are."""
    with pytest.raises(ConfigError, match="backend") as caught:
        BackendSink(Config(backends=names).backends)
    assert told in str(caught.value)


def test_a_missing_client_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the command that installs it."""
    monkeypatch.setitem(
        sinks._NEEDS,  # noqa: SLF001
        "phoenix",
        sinks._Needs(package="no-such-package"),  # noqa: SLF001
    )
    with pytest.raises(MissingDependencyError, match=r"pip install 'rag-eval-otel\[phoenix\]'"):
        BackendSink(["phoenix"])


def test_a_missing_variable_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is sent."""
    needs = sinks._Needs(package="pytest", variables=("PHOENIX_NO_SUCH_KEY",))  # noqa: SLF001
    monkeypatch.setitem(sinks._NEEDS, "phoenix", needs)  # noqa: SLF001
    with pytest.raises(ConfigError, match="needs the variable PHOENIX_NO_SUCH_KEY"):
        BackendSink(["phoenix"])


def test_nothing_is_sent_if_the_sdk_is_disabled(acme: type[Acme]) -> None:
    """No thread is started, and no client is made."""
    with attached(backends=["acme"], sdk_disabled=True) as app:
        app.turn()
        assert app.handle.flush(10)
        assert not acme.stored
        assert good_judge() is not None
