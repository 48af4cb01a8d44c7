"""Faults of processes that end, fork, or export through an exporter that hangs."""

import json
import signal
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from live import GatedExporter, Row, attached
from processes import PATIENCE, stage

pytestmark = pytest.mark.slow  # most start processes
posix = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and signals of POSIX")

TURNS = """
import asyncio, multiprocessing, os, signal, sys, threading, time
from served import turn, handle
def made(turns):
    for _ in range(turns): turn()
"""
KILLED = "os.kill(os.getpid(), signal.SIGTERM); time.sleep(600)"


def measure(row: Row, name: str, script: str, *, turns: int, **variables: str) -> int:
    with stage(latency=0.1) as found:
        status, _, errors = found.run(TURNS + script, **variables)
        statuses, children = found.statuses(), len(found.spans("child"))
    row.measured(f"{name}: turns scored", f"{statuses['scored']} of {turns}")
    assert statuses == {"scored": turns}, errors
    assert children == turns
    assert "Traceback" not in errors
    return status


@posix
@pytest.mark.fault(18, expected="each process scores its own turns")
@pytest.mark.parametrize("missing", ["", "aiohttp"])
def test_fault_18_a_fork_right_after_the_first_turn(row: Row, missing: str) -> None:
    """The threads of this library import nothing: a child could never import it."""
    script = """
class Finder:
    def find_spec(self, *_): assert "rag-eval" not in threading.current_thread().name
sys.meta_path.insert(0, Finder())
made(1)
child = os.fork()
made(5)
if child: os.waitpid(child, 0)
"""
    assert measure(row, "parent and child", script, turns=11, SERVED_WITHOUT=missing) == 0


@posix
@pytest.mark.fault(19, expected="no deadlock")
def test_fault_19_many_forks_while_turns_are_scored(row: Row) -> None:
    """Each of the children ends by itself, and the parent still scores its turns."""
    script = """
made(20)
loads = [threading.Thread(target=made, args=(200,)) for _ in range(2)]
for load in loads: load.start()
for _ in range(200):
    child = os.fork()
    if not child: os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    made(1)
for load in loads: load.join()
"""
    assert measure(row, "200 forks", script, turns=620) == 0


ENDINGS = {
    "end of the program": ("made(20)", 0),
    "sys.exit": ("made(20); sys.exit(3)", 3),
    "exit in a thread": (
        "thread = threading.Thread(target=lambda: (made(20), sys.exit())); thread.start()",
        0,
    ),
    "asyncio.run": ("async def main(): made(10)\nasyncio.run(main()); asyncio.run(main())", 0),
}


@pytest.mark.fault(20, expected="all turns scored and exported")
@pytest.mark.parametrize("name", ENDINGS)
def test_fault_20_a_program_ends(name: str, row: Row) -> None:
    """Turns that have just ended are scored before the process is gone."""
    script, status = ENDINGS[name]
    assert measure(row, name, script, turns=20) == status


@posix
@pytest.mark.fault(21, expected="what has ended is scored and exported")
def test_fault_21_a_child_of_multiprocessing_is_terminated(row: Row) -> None:
    """`Process.terminate` sends SIGTERM, and the exit code of the child says so."""
    script = """
def work(ready):
    made(10); ready.set(); time.sleep(600)
context = multiprocessing.get_context("fork")
ready = context.Event()
child = context.Process(target=work, args=(ready,))
child.start(); ready.wait(); child.terminate(); child.join()
assert child.exitcode == -signal.SIGTERM, child.exitcode
"""
    assert measure(row, "terminated child", script, turns=10) == 0


@posix
@pytest.mark.fault(24, expected="all turns scored, within shutdown_seconds, exit status 143")
def test_fault_24_sigterm_with_the_default_handler(row: Row) -> None:
    """The signal ends the process as before, after the scores have come."""
    status = measure(row, "default handler", "made(50)\n" + KILLED, turns=50)
    assert status == -signal.SIGTERM


@posix
@pytest.mark.fault(24, expected="all turns scored, within shutdown_seconds, exit status 143")
def test_fault_24_sigterm_is_ignored_or_handled(row: Row) -> None:
    """A process that ignores SIGTERM goes on; handlers of asyncio and of the application work."""
    script = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
before = signal.getsignal(signal.SIGTERM)
from rag_eval_otel import instrument
from opentelemetry.sdk.trace import TracerProvider
instrument(tracer_provider=TracerProvider()).shutdown()
assert signal.getsignal(signal.SIGTERM) is before
os.kill(os.getpid(), signal.SIGTERM)
made(10)
async def main():
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    instrument(tracer_provider=TracerProvider())  # over the handler of the loop
    os.kill(os.getpid(), signal.SIGTERM)
    await stopped.wait()
    made(10)
asyncio.run(main())
"""
    assert measure(row, "handlers of the application", script, turns=20) == 0


@posix
@pytest.mark.fault(24, expected="all turns scored, within shutdown_seconds, exit status 143")
def test_fault_24_sigterm_while_the_exporter_hangs_or_the_option_is_off(row: Row) -> None:
    """The limit holds whatever the exporter does; with ``off`` the signal ends the process."""
    hung = """
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from served import provider
class Hangs:
    def export(self, spans): threading.Event().wait()
    def shutdown(self): pass
    def force_flush(self, timeout_millis=0): return True
from opentelemetry.sdk.trace.export import BatchSpanProcessor
provider.add_span_processor(BatchSpanProcessor(Hangs()))
made(300)
os.kill(os.getpid(), signal.SIGTERM); time.sleep(600)
"""
    with stage() as found:
        limit = {"RAG_EVAL_SHUTDOWN_SECONDS": "1"}
        assert found.run(TURNS + hung, **limit)[0] == -signal.SIGTERM
        off = "made(5)\n" + KILLED
        assert found.run(TURNS + off, RAG_EVAL_HOST_HOOKS="off")[0] == -signal.SIGTERM
    row.measured("exporter that hangs, shutdown_seconds=1", "ended")


@pytest.mark.fault(23, expected="all spans exported, within shutdown_seconds")
@pytest.mark.parametrize("order", ["before", "after"])
def test_fault_23_a_program_ends_with_500_spans_held(order: str, row: Row) -> None:
    """A judge that does not answer delays the end by ``shutdown_seconds``, and no span is lost."""
    late = "from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter\n"
    late += "from served import provider\n"
    late += "provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(out=sys.stderr)))\n"
    script = (
        (late if order == "after" else "")
        + """
made(500)
start = time.monotonic()
handle.shutdown()
print(round(time.monotonic() - start, 1))
"""
    )
    with stage(latency=PATIENCE) as found:
        status, said, _ = found.run(TURNS + script, RAG_EVAL_SHUTDOWN_SECONDS="3")
        statuses, children = found.statuses(), len(found.spans("child"))
    row.measured(f"processor {order}: seconds with shutdown_seconds=3", said.strip())
    assert status == 0
    assert statuses == {"shutdown": 500}
    assert children == 500


@pytest.mark.fault(25, expected="every turn counted once, no span exported twice")
def test_fault_25_turns_end_while_the_provider_shuts_down(row: Row) -> None:
    """64 threads end turns before, during and after the shutdown."""
    began = threading.Barrier(65)

    def work(number: int) -> None:
        began.wait(PATIENCE)
        for each in range(10):
            app.turn(number * 100 + each)

    with attached(shutdown_seconds=1.0) as app:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
        for thread in threads:
            thread.start()
        began.wait(PATIENCE)
        app.provider.shutdown()
        for thread in threads:
            thread.join(PATIENCE)
        row.check(app, turns=640)
        row.measured("turns counted", f"{sum(app.counted().values())} of 640")


FORKED = """
child = multiprocessing.get_context("fork").Process(target=made, args=(3,))
child.start(); child.join()
"""
BACKEND_ENDINGS = {
    "falls off the end": ("made(3)", 0),
    "SIGTERM": ("made(3)\n" + KILLED, -signal.SIGTERM),
    "a child of multiprocessing": (FORKED, 0),
}


KEPT = """
import json, pathlib
class Kept:
    def send(self, annotations):
        with pathlib.Path(__file__).with_name("scores").open("a") as file:
            for one in annotations:
                file.write(json.dumps([one.span_id, one.name, one.value]) + "\\n")
        return []
"""


@pytest.mark.fault("flush", expected="returns False within its time, whatever the exporter does")
def test_fault_flush_with_an_exporter_that_hangs(row: Row) -> None:
    """`flush`, `force_flush` and `shutdown` return while the exporter hangs; no span is lost."""
    exporter = GatedExporter()
    exporter.close()
    with attached(exporter=InMemorySpanExporter()) as app:
        app.provider.add_span_processor(BatchSpanProcessor(exporter))
        app.turn()
        assert app.handle.flush(PATIENCE / 400) is False
        assert app.provider.force_flush(200) is False
        app.handle.shutdown(0.2)
        exporter.open()
        app.provider.force_flush()
        assert len(exporter.get_finished_spans()) == 3
        row.measured("flush, force_flush", "False")


@posix
@pytest.mark.parametrize("end", BACKEND_ENDINGS)
def test_scores_reach_a_backend_though_the_process_ends(end: str, tmp_path: Path) -> None:
    """Each once, and on the spans that were exported."""
    script, status = BACKEND_ENDINGS[end]
    (tmp_path / "kept.py").write_text(KEPT, encoding="utf-8")
    entry = tmp_path / "kept-1.dist-info" / "entry_points.txt"
    entry.parent.mkdir()
    entry.write_text("[rag_eval_otel.backends]\nkept = kept:Kept\n", encoding="utf-8")
    found_first = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    with stage() as run:
        ended, _, errors = run.run(found_first + TURNS + script, RAG_EVAL_BACKENDS="kept")
        spans = {span.span_id: span.attributes for span in run.spans()}
    assert ended == status, errors
    assert len(spans) == 3
    lines = (tmp_path / "scores").read_text(encoding="utf-8").splitlines()
    found = Counter(tuple(sent) for sent in map(json.loads, lines) if sent[2] is not None)
    assert len(found) >= len(spans)
    assert found == Counter(
        (span, name.split(".")[2], value)
        for span, attributes in spans.items()
        for name, value in attributes.items()
        if name.startswith("rag.evaluation.") and name.endswith(".score")
    )
