"""The background evaluator and workers: bounded, hidden, and gone when told."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future

import pytest
from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from parallel import forking, in_child, refuse_threads
from rag_eval_otel.runtime.threads import BackgroundEvaluator, GivenUp, Workers


async def _nothing() -> None:
    """Do nothing."""


class Call:
    """A job that calls ``work``, and ``given_up`` if it is cancelled."""

    def __init__(
        self,
        work: Callable[[], Coroutine[None, None, None]] = _nothing,
        given_up: Callable[[GivenUp], None] = lambda _: None,
        size: int = 1,
        begin: Callable[[], object] = lambda: None,
    ) -> None:
        self._begin = begin
        self.run = work
        self.give_up = given_up
        self.size = size
        self.is_late = lambda: False

    def begin(self) -> bool:
        self._begin()
        return True


class Gate:
    """A job that waits until it is opened."""

    def __init__(self) -> None:
        self.begun: Future[None] = Future()
        self.opened: Future[None] = Future()

    async def __call__(self) -> None:
        if not self.begun.done():
            self.begun.set_result(None)
        await asyncio.wrap_future(self.opened)


def test_concurrency_is_bounded() -> None:
    """No more jobs run at once than asked for."""
    evaluator = BackgroundEvaluator(concurrency=3)
    running, most = 0, 0

    async def job() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(20):  # meanwhile, further jobs could begin
            await asyncio.sleep(0)
        running -= 1

    for _ in range(50):
        evaluator.submit(Call(job))
    assert evaluator.flush(10)
    assert most == 3
    evaluator.shutdown(1)


def test_jobs_begin_though_others_wait() -> None:
    """The beginning of a job does not wait for the judge of another job."""
    evaluator, gate, begun = BackgroundEvaluator(concurrency=1), Gate(), Future[bool]()
    assert evaluator.submit(Call(gate))
    gate.begun.result(10)
    assert evaluator.submit(Call(begin=lambda: begun.set_result(evaluator.is_current())))
    assert begun.result(10)
    gate.opened.set_result(None)
    assert evaluator.flush(10)
    evaluator.shutdown(10)


def test_shutdown_gives_up_what_is_left() -> None:
    """Jobs that do not finish in time are cancelled and reported, begun or waiting."""
    evaluator, gate = BackgroundEvaluator(concurrency=1), Gate()
    given_up: list[GivenUp] = []
    for _ in range(3):
        evaluator.submit(Call(gate, given_up.append))
    gate.begun.result(10)
    assert not evaluator.shutdown(0.01)
    assert given_up == ["shutdown"] * 3
    assert not evaluator.submit(Call())
    assert evaluator.shutdown(0.01), "a second shutdown finds nothing to do"


def test_a_cancelled_call_holds_nothing() -> None:
    """What it was given is freed, though all threads are stuck."""
    workers, gate, held = Workers(1), threading.Event(), Gate()
    blocker, alive = workers.submit(gate.wait, 10), weakref.ref(held)
    waiting = workers.submit(id, held)
    del held
    assert waiting.cancel()
    gc.collect()
    assert alive() is None
    gate.set()
    assert blocker.result(10)


def test_bytes_are_bounded() -> None:
    """Waiting jobs are bounded by their texts as well, also after their span has left."""
    evaluator, gate = BackgroundEvaluator(max_bytes=10), Gate()
    assert [evaluator.submit(Call(gate, size=6)) for _ in range(2)] == [True, False]
    gate.opened.set_result(None)
    assert evaluator.flush(10)
    assert evaluator.submit(Call(size=10))
    evaluator.shutdown(1)


@pytest.mark.parametrize("error", [ValueError, GeneratorExit, SystemExit, KeyboardInterrupt])
def test_a_job_that_raises(error: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a judge throws, the job is given up, logged, and the thread goes on."""
    evaluator, gate = BackgroundEvaluator(), Gate()
    given_up: list[GivenUp] = []

    async def job() -> None:
        raise error

    evaluator.submit(Call(gate))
    evaluator.submit(Call(job, given_up.append))
    gate.begun.result(10)
    gate.opened.set_result(None)
    assert evaluator.flush(10)
    assert evaluator.submit(Call())
    assert evaluator.flush(10)
    assert given_up == ["error"]
    assert f"failed in a job; the application is unaffected: {error.__name__} at" in caplog.text
    evaluator.shutdown(1)


def test_under_overload_a_late_job_is_given_up() -> None:
    """When a place gets free, late jobs are given up, and those that are in time are done."""
    evaluator, gate = BackgroundEvaluator(concurrency=1), Gate()
    given_up: Future[GivenUp] = Future()
    late, done = Call(given_up=given_up.set_result), Future[None]()
    late.is_late = lambda: True

    async def work() -> None:
        done.set_result(None)

    evaluator.submit(Call(gate))
    gate.begun.result(30)
    begun: Future[None] = Future()
    last = Call(begin=lambda: begun.set_result(None))
    for job in (late, Call(work), Call(), Call(), last):
        assert evaluator.submit(job)
    begun.result(30)
    gate.opened.set_result(None)
    assert given_up.result(30) == "overload"
    assert evaluator.flush(30)
    assert done.done()
    evaluator.shutdown(10)


def test_workers_count_as_threads_of_the_evaluator() -> None:
    """A call runs hidden, on a thread that counts as the evaluator's while it runs."""
    evaluator, workers = BackgroundEvaluator(), Workers(1)
    seen: Future[tuple[bool, bool]] = Future()

    def blocking() -> tuple[bool, bool]:
        return is_instrumentation_enabled(), evaluator.is_current()

    async def job() -> None:
        seen.set_result(await workers.run(blocking))

    evaluator.submit(Call(job))
    assert seen.result(10) == (False, True)
    evaluator.shutdown(1)


def test_workers_are_bounded_and_serve_every_loop() -> None:
    """At most two calls run at once, in one loop after the other; errors come back."""
    workers, lock = Workers(2), threading.Lock()
    running: set[int] = set()
    most: list[int] = []
    barrier = threading.Barrier(2)

    def blocking(i: int) -> int:
        with lock:
            running.add(i)
            most.append(len(running))
        barrier.wait(10)
        with lock:
            running.discard(i)
        return i

    async def several() -> list[int]:
        return await asyncio.gather(*(workers.run(lambda i=i: blocking(i)) for i in range(6)))

    for _ in range(2):
        assert asyncio.run(several()) == [0, 1, 2, 3, 4, 5]
    assert max(most) == 2
    with pytest.raises(ZeroDivisionError):
        asyncio.run(workers.run(lambda: divmod(1, 0)))


@pytest.mark.slow
@forking
def test_workers_start_anew_in_a_forked_child() -> None:
    """A child has none of the threads of its parent and starts its own."""
    workers = Workers(1)
    assert asyncio.run(workers.run(lambda: 1)) == 1
    assert in_child(lambda: asyncio.run(workers.run(lambda: 7)) == 7)


def test_without_threads_the_call_is_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the interpreter exits it starts no thread; the last call is still made."""
    refuse_threads(monkeypatch)
    assert asyncio.run(Workers(1).run(threading.current_thread)) is threading.current_thread()


def test_a_call_that_hangs_leaves_a_thread_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """At exit no thread can be started: two that were prepared serve a flush and the sinks."""
    workers, gate = Workers(), threading.Event()
    assert workers.prepare(2)
    monkeypatch.setattr(threading.Thread, "start", None)
    hanging = workers.submit(gate.wait, 60)
    assert workers.wait_for(lambda: True, 60)
    gate.set()
    assert hanging.result(60)
