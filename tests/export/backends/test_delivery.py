"""The queue of a backend, the sink that fills it, and what is left at the end of a process."""

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acme import Acme, acme
from live import App, attached
from rag_eval_otel import Config
from rag_eval_otel.errors import ConfigError, MissingDependencyError
from rag_eval_otel.export.backends import delivery as sinks
from rag_eval_otel.export.backends.annotation import Annotation, BackendError, Client, Rejection
from rag_eval_otel.export.backends.delivery import BackendSink, Delivery, Limits, Outcome
from rag_eval_otel.types import Feedback

LIMITS = Limits(linger=1.0)


def annotation(number: int = 1, name: str = "faithfulness") -> Annotation:
    return Annotation(name=name, trace_id=7, span_id=number, value=0.5, kind="LLM")


@dataclass
class Backend:
    """A backend of which the next requests fail as ``script`` says; ``invalid`` fails all."""

    script: list[Exception | None] = field(default_factory=list)
    missing: set[int] = field(default_factory=set)
    invalid: set[int] = field(default_factory=set)
    stored: Counter[int] = field(default_factory=Counter)
    requests: list[int] = field(default_factory=list)

    def send(self, annotations: Sequence[Annotation]) -> Sequence[Rejection]:
        self.requests.append(len(annotations))
        error = self.script.pop(0) if self.script else None
        if error is not None:
            raise error
        if any(one.span_id in self.invalid for one in annotations):
            told = "invalid"
            raise BackendError(told, status=422)
        found = [one for one in annotations if one.span_id not in self.missing]
        self.stored.update(one.span_id for one in found if one.span_id is not None)
        lost = [one for one in annotations if one.span_id in self.missing]
        error = BackendError("no span", status=404)
        return [Rejection(annotation=one, error=error) for one in lost]


class Unthreaded(Delivery):
    """A delivery without a thread: the test calls `run`, with a clock of its own."""

    def __init__(self, connect: Callable[[], Client], *, limits: Limits = LIMITS) -> None:
        self.now = 1000.0
        self.ended: Counter[str] = Counter()
        self.failures: list[str] = []
        super().__init__(
            connect,
            name="phoenix",
            report=self._note,
            on_error=self.failures.append,
            limits=limits,
            clock=lambda: self.now,
        )

    def _note(self, outcome: Outcome, number: int) -> None:
        self.ended[outcome] += number

    def _start(self) -> None:
        """Start no thread."""

    def run(self, seconds: float = 10_000.0) -> list[float]:
        end, pauses = self.now + seconds, list[float]()
        while True:
            left = self.send_due()
            if left is None or self.now + left > end:
                return pauses
            pauses.append(left)
            self.now += left


@pytest.mark.parametrize(("after", "pauses"), [(0.0, [1, 1, 2, 4, 8]), (3.0, [1, 3, 3, 4, 8])])
def test_a_failed_batch_is_sent_after_growing_pauses(after: float, pauses: list[float]) -> None:
    """They double, or are the Retry-After if that is longer; the annotations arrive once."""
    backend = Backend(script=[BackendError("down", retry_after=after)] * 4)
    delivery = Unthreaded(lambda: backend)
    delivery.put([annotation()])
    assert delivery.run() == pauses
    assert delivery.ended == {"delivered": 1}
    assert backend.stored == {1: 1}


def test_memory_is_bounded_while_a_backend_is_down(caplog: pytest.LogCaptureFixture) -> None:
    """Ten minutes without a backend: what has no room is dropped and counted, the rest arrives."""
    backend = Backend(script=[BackendError("down")] * 1000)
    delivery = Unthreaded(lambda: backend, limits=Limits(items=500, linger=1.0))
    for number in range(600):
        delivery.put([annotation(2 * number), annotation(2 * number + 1)])
        delivery.run(1.0)
    assert len(delivery) == 500
    backend.script.clear()
    delivery.run()
    assert delivery.ended == {"delivered": 500, "overload": 700}
    assert backend.requests[-6:] == [1, 100, 100, 100, 100, 99]
    assert set(backend.stored.values()) == {1}
    assert "scores were dropped (overload)" in caplog.text


def test_an_annotation_waits_for_its_span() -> None:
    """It is sent again until the span is there; the others of its batch are not delayed."""
    backend = Backend(missing={2})
    delivery = Unthreaded(lambda: backend)
    delivery.put([annotation(1), annotation(2)])
    delivery.run(6.0)
    assert backend.stored == {1: 1}
    backend.missing.clear()
    delivery.run()
    assert backend.stored == {1: 1, 2: 1}
    assert backend.requests == [2, 1, 1, 1]
    assert delivery.ended == {"delivered": 2}


def test_an_annotation_of_a_span_that_never_comes_is_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After five minutes it counts as expired, and the log says what the backend said."""
    backend = Backend(missing={1})
    delivery = Unthreaded(lambda: backend)
    delivery.put([annotation(1)])
    delivery.run()
    assert delivery.ended == {"expired": 1}
    assert delivery.now == 1304
    assert "(expired): no span" in caplog.text


def test_an_invalid_annotation_does_not_lose_the_others() -> None:
    """After a refused batch, annotations are sent alone until one is stored."""
    backend = Backend(invalid={3})
    delivery = Unthreaded(lambda: backend)
    delivery.put(annotation(number) for number in range(5))
    delivery.run()
    assert delivery.ended == {"delivered": 4, "rejected": 1}
    assert backend.requests == [5, 1, 4, 1, 3, 1, 2, 1, 1]


def test_an_annotation_that_breaks_the_server_does_not_block_the_others() -> None:
    """After a failure, one annotation is sent alone, and what failed goes to the end."""

    class Fragile(Backend):
        def send(self, annotations: Sequence[Annotation]) -> Sequence[Rejection]:
            if any(one.span_id == 3 for one in annotations):
                told = "oops"
                raise BackendError(told, status=500)
            return super().send(annotations)

    backend = Fragile()
    delivery = Unthreaded(lambda: backend)
    delivery.put(annotation(number) for number in range(20))
    delivery.run(600.0)
    assert sum(backend.stored.values()) == 19
    delivery.run()
    assert delivery.ended == {"delivered": 19, "expired": 1}


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key_is_told_and_counted(status: int, caplog: pytest.LogCaptureFixture) -> None:
    """The annotations are dropped at once, because a wrong key stays wrong."""
    backend = Backend(script=[BackendError("HTTP 401 for http://phoenix", status=status)])
    delivery = Unthreaded(lambda: backend)
    delivery.put([annotation(1), annotation(2)])
    delivery.run()
    assert delivery.ended == {"unauthorized": 2}
    assert "phoenix: 2 scores were dropped (unauthorized): HTTP 401" in caplog.text


def test_an_unexpected_error_of_a_client_is_counted() -> None:
    """Its annotation is dropped, and the next one is sent."""
    backend = Backend(script=[ZeroDivisionError()])
    delivery = Unthreaded(lambda: backend)
    delivery.put([annotation(1)])
    delivery.run()
    delivery.put([annotation(2)])
    delivery.run()
    assert delivery.ended == {"rejected": 1, "delivered": 1}
    assert delivery.failures == ["backend phoenix"]


def test_a_flush_sends_at_once() -> None:
    """Without waiting for a batch, with short pauses, and until all has arrived."""
    backend = Backend(script=[BackendError("down")] * 3)
    delivery = Unthreaded(lambda: backend)
    delivery.put([annotation(1), annotation(2)])
    limit = delivery.begin_flush()
    assert delivery.run(1.0) == [0.25, 0.25, 0.25, 0.0]
    delivery.put([annotation(3), annotation(4)])
    assert delivery.end_flush(limit, timeout=0.0)
    assert delivery.ended == {"delivered": 2}


def test_a_close_counts_what_is_left() -> None:
    """Nothing is sent after it, and later annotations are dropped."""
    backend = Backend(missing={1})
    delivery = Unthreaded(lambda: backend)
    delivery.put([annotation(1)])
    delivery.run(2.0)
    delivery.put(annotation(number) for number in (2, 3, 4))
    delivery.close()
    delivery.put([annotation(5)])
    assert delivery.send_due() is None
    assert delivery.ended == {"shutdown": 5}
    assert (len(delivery), backend.requests) == (0, [1, 1])


def test_a_request_under_way_is_counted_once_at_a_close() -> None:
    """It may hang: the close does not wait for it, and its end is not counted again."""
    begun, go_on = threading.Event(), threading.Event()
    ended: Counter[str] = Counter()

    class Hanging(Backend):
        def send(self, annotations: Sequence[Annotation]) -> Sequence[Rejection]:
            begun.set()
            go_on.wait(60)
            return super().send(annotations)

    delivery = Delivery(
        Hanging,
        name="phoenix",
        limits=Limits(linger=0.0),
        report=lambda outcome, number: ended.update({outcome: number}),
    )
    delivery.put([annotation()])
    assert begun.wait(60)
    delivery.close()
    go_on.set()
    thread = delivery._thread  # noqa: SLF001
    assert thread is not None
    thread.join(60)
    assert not thread.is_alive()
    assert ended == {"shutdown": 1}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_starts_with_an_empty_queue() -> None:
    """The parent sends its annotations; the child sends its own, by a client of its own."""
    clients: list[Backend] = []

    def connect() -> Backend:
        clients.append(Backend())
        return clients[-1]

    delivery = Delivery(connect, name="phoenix")
    delivery.put([annotation(1)])
    assert delivery.end_flush(delivery.begin_flush(), timeout=60)
    delivery.put([annotation(2)])
    child = os.fork()
    if child == 0:
        delivery.put([annotation(3)])
        is_done = delivery.end_flush(delivery.begin_flush(), timeout=60)
        os._exit(0 if is_done and clients[-1].stored == {3: 1} and len(clients) == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert delivery.end_flush(delivery.begin_flush(), timeout=60)
    delivery.close()
    assert clients[0].stored == {1: 1, 2: 1}


@given(
    failing=st.lists(st.sampled_from(["ok", "down", "error", "quota"]), max_size=30),
    missing=st.sets(st.integers(0, 29)),
    arriving=st.integers(0, 200),
)
def test_each_annotation_ends_once(failing: list[str], missing: set[int], arriving: int) -> None:
    """Whatever fails, and whenever spans arrive: everything is stored once, and counted once."""
    errors: dict[str, Exception | None] = {
        "ok": None,
        "down": BackendError("down"),
        "error": BackendError("error", status=500),
        "quota": BackendError("quota", status=429, retry_after=3.0),
    }
    logging.getLogger("rag_eval_otel").disabled = True
    backend = Backend(script=[errors[name] for name in failing], missing=missing)
    delivery = Unthreaded(lambda: backend, limits=Limits(batch=7))
    try:
        delivery.put(annotation(number) for number in range(30))
        delivery.run(arriving)
        backend.missing.clear()
        delivery.run()
    finally:
        logging.getLogger("rag_eval_otel").disabled = False
    assert delivery.ended == {"delivered": 30}
    assert backend.stored == dict.fromkeys(range(30), 1)


TURNS = 5
__all__ = ["acme"]  # a fixture


def expected(app: App) -> Counter[tuple[int | None, str, float | None]]:
    found: Counter[tuple[int | None, str, float | None]] = Counter()
    for span in app.exported():
        attributes: Any = span.attributes or {}
        if "rag.evaluation.label" in attributes:
            found[span.context.span_id, "rag.evaluation", None] += 1
        for name, value in attributes.items():
            if name.startswith("rag.") and name.endswith(".score"):
                found[span.context.span_id, name.split(".")[2], value] += 1
    return found


def outcomes(app: App) -> dict[Any, int]:
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


@pytest.mark.slow
def test_a_hanging_backend_delays_no_span(acme: type[Acme]) -> None:
    """The spans leave with their scores. A shutdown takes its time only, and counts the loss."""
    acme.hangs.clear()
    with attached(backends=["acme"], shutdown_seconds=1) as app:
        for number in range(TURNS):
            app.turn(number)
        assert app.handle.flush(2) is False
        assert sum(p.value for p in app.points("rag.evaluation.backend.queued")) > 0
        app.handle.shutdown()
        assert app.statuses()["scored"] == TURNS
        assert set(outcomes(app)) == {("dropped", "shutdown")}
        assert not acme.stored


def test_feedback_of_people_is_sent(acme: type[Acme]) -> None:
    """To the span that it is about."""
    sink = BackendSink(["acme"])
    sink.emit_feedback(Feedback(trace_id=1, span_id=2, score=1.0))
    assert sink.flush(60)
    sink.close()
    assert acme.stored == {(2, "user", 1.0): 1}


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
    """The message has the command that installs it, or the variable that is missing."""
    needs: dict[str, Any] = sinks._NEEDS  # type: ignore[assignment]  # noqa: SLF001
    monkeypatch.setitem(needs, "phoenix", ("Phoenix", "pytest", ("PHOENIX_NO_SUCH_KEY",)))
    with pytest.raises(ConfigError, match="needs the variable PHOENIX_NO_SUCH_KEY"):
        BackendSink(["phoenix"])
    monkeypatch.setitem(needs, "phoenix", ("Phoenix", "no-such-package", ()))
    with pytest.raises(MissingDependencyError, match=r'pip install "rag-eval-otel\[phoenix\]'):
        BackendSink(["phoenix"])
