"""The time that a drain takes, and the providers that it flushes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from live import GatedExporter, attached
from pipeline import GatedJudge
from processes import PATIENCE
from rag_eval_otel.capture.trace import Held, Key
from rag_eval_otel.live.pipeline import Pipeline


@dataclass
class HangingPart:
    """A store, an evaluator, a scorer and flushes that never end; time runs while they wait."""

    time: float = 0.0
    delivers: bool = False
    held: dict[Key, Held] = field(default_factory=dict)

    def close(self) -> None: ...

    def flush(self, timeout: float) -> bool:
        raise AssertionError(timeout)  # `wait_for` calls nothing

    def wait_left(self, timeout: float) -> bool:
        self.time += timeout
        return False

    def wait_for(self, function: Callable[[], bool], timeout: float) -> bool:
        self.time += timeout
        return False

    def shutdown(self, timeout: float = 0.0, *, grace: float = 0.0) -> bool:
        self.time += timeout + grace
        return False


class HangingPipeline(Pipeline):
    """A pipeline in which nothing ends by itself."""

    def __init__(self, part: HangingPart) -> None:
        self.is_forked = self.is_off = False
        self.now = lambda: part.time
        vars(self).update(dict.fromkeys(("store", "evaluator", "scorer", "flushes"), part))

    def is_own_thread(self) -> bool:
        return False

    def close(self) -> None: ...


@pytest.mark.parametrize("seconds", [2.0, 5.0, 100.0])
@pytest.mark.parametrize("delivers", [False, True], ids=["no backends", "backends"])
def test_a_drain_in_which_everything_hangs_takes_its_time(
    seconds: float, *, delivers: bool
) -> None:
    """Judge, exporter and sinks hang: it ends in a second; backends that hang add half of one."""
    part = HangingPart(delivers=delivers)
    HangingPipeline(part).drain(seconds)
    assert seconds - 1 <= part.time <= seconds + (1.5 if delivers else 1)


class HangingFlush(BatchSpanProcessor):
    """A processor whose flush never returns, but whose spans are taken."""

    def __init__(self, gate: threading.Event) -> None:
        super().__init__(InMemorySpanExporter())
        self.gate = gate
        self.has_turn = threading.Event()

    def on_end(self, span: ReadableSpan) -> None:
        if span.name == "chain":
            self.has_turn.set()

    def force_flush(self, timeout_millis: int | None = None) -> bool:
        return self.gate.wait(PATIENCE)


@pytest.mark.slow
def test_spans_are_released_though_every_flush_hangs() -> None:
    """Flushes that hang have threads of their own, and those that find no thread are dropped."""
    gate = threading.Event()
    processor = HangingFlush(gate)
    with attached(judge=GatedJudge(), shutdown_seconds=0.5, hold_seconds=3600) as app:
        app.provider.add_span_processor(processor)
        for _ in range(8):
            assert app.handle.flush(0.05) is False
        app.turn()
        assert app.handle.flush(0.5) is False
        assert processor.has_turn.wait(PATIENCE / 6)
        gate.set()


@pytest.mark.slow
def test_a_process_of_langchain_alone_can_end_without_new_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From Python 3.12 on no thread starts at exit; the shutdown is limited all the same."""
    from apps.parts import rag  # noqa: PLC0415

    judge, exporter = GatedJudge(), GatedExporter()
    with attached(judge=judge, exporter=exporter, shutdown_seconds=0.2) as app:
        rag().invoke(
            "When was Borealis Kites founded?", config={"callbacks": [app.handle.callback]}
        )
        judge.asked.result(PATIENCE)
        exporter.close()
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", _refuse)
            app.handle.shutdown()
        assert app.handle.stats.held == 0
        left = exporter.get_finished_spans()
        assert all(span.parent for span in left)  # the export of the root has not come back
        exporter.open()


def _refuse(thread: threading.Thread) -> None:
    msg = "can't create new thread at interpreter shutdown"
    raise RuntimeError(msg)
