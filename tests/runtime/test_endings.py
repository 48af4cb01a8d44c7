"""SIGTERM, forks and calls that may hang, each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from processes import PATIENCE

TESTS = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and signals of POSIX")

WORK = """
import os, signal, sys, threading, time
from rag_eval_otel.runtime import endings
from rag_eval_otel.runtime.endings import call_at_end
signal.signal(signal.SIGTERM, signal.SIG_DFL)  # coverage sets a handler, which ends the process

class Work:
    def __init__(self, name="work", before=lambda: None):
        self.name, self.before = name, before
    def say(self, what):
        os.write(1, f"{self.name} {what}\\n".encode())
    def drain(self): pass
    def drain_and_flush(self, timeout):
        self.before()
        self.say("drained")
    def flush(self, timeout): self.say("flushed")

def register(work, seconds=100.0):
    return call_at_end(work, seconds=seconds, on_sigterm="drain")
def kill(): os.kill(os.getpid(), signal.SIGTERM)
"""


def run(script: str, *arguments: str) -> tuple[int, list[str]]:
    """Run ``script`` in a process; return its exit status and the lines that it has printed."""
    paths = os.pathsep.join((str(TESTS), str(TESTS.parent)))
    done = subprocess.run(  # our own script
        [sys.executable, "-c", WORK + script, *arguments],
        env={**os.environ, "PYTHONPATH": paths},
        timeout=PATIENCE,
        check=False,
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()


def test_an_application_that_chains_our_handler_ends_by_itself() -> None:
    """Its handler has replaced ours and calls ours: spans are flushed, and its shutdown goes on."""
    status, said = run("""
flushed = threading.Event()
work = Work()
work.flush = lambda timeout: flushed.set()
register(work)
before = signal.getsignal(signal.SIGTERM)
signal.signal(signal.SIGTERM, lambda *told: before(*told))
kill()
assert flushed.wait(100)
print("graceful shutdown done", flush=True)
""")
    assert (status, said) == (0, ["graceful shutdown done"])


def test_an_application_that_chains_our_handler_raises_the_signal_again() -> None:
    """If its handler restores the default one, the last work is done before the process ends."""
    status, said = run("""
register(Work())
before = signal.getsignal(signal.SIGTERM)
signal.signal(signal.SIGTERM, lambda *told: before(*told))
kill()
signal.signal(signal.SIGTERM, signal.SIG_DFL)
kill()
time.sleep(600)
""")
    assert status == -signal.SIGTERM
    assert "work drained" in said


def test_work_that_is_cancelled_leaves_a_chained_handler_without_effect() -> None:
    """The application still calls our handler after the shutdown of the pipeline, and goes on."""
    status, said = run("""
made = register(Work())
before = signal.getsignal(signal.SIGTERM)
signal.signal(signal.SIGTERM, lambda *told: before(*told))
made.cancel()
kill()
print("alive", flush=True)
""")
    assert (status, said) == (0, ["alive"])


def test_two_pipelines_end_at_the_same_time() -> None:
    """At SIGTERM, a pipeline that needs all the time takes none of another pipeline's time."""
    status, said = run("""
gate = threading.Barrier(2)  # each waits until the other is being drained, too
register(Work("first", gate.wait))
register(Work("second", gate.wait))
kill()
time.sleep(600)
""")
    assert status == -signal.SIGTERM
    assert sorted(said) == ["first drained", "second drained"]


@pytest.mark.slow
def test_sigterm_that_comes_twice_is_one_request() -> None:
    """A supervisor and its process group send it at once; the last work is done all the same."""
    status, said = run("""
endings._REPEATED = 600.0  # a busy machine may be slow to deliver the second one
def second():
    kill()
    time.sleep(.2)  # until the main thread has handled it
register(Work("work", second))
kill()
time.sleep(600)
""")
    assert status == -signal.SIGTERM
    assert said == ["work drained"]


def test_a_second_sigterm_after_a_second_ends_the_process_at_once() -> None:
    """Someone has lost patience."""
    status, said = run("""
endings._REPEATED = 0.0
register(Work("work", lambda: (time.sleep(.1), kill(), time.sleep(600))))
kill()
time.sleep(600)
""")
    assert status == -signal.SIGTERM
    assert said == []


def test_where_no_handler_can_be_set_nothing_is_raised() -> None:
    """In a sub-interpreter, `signal.signal` raises ValueError; the rest of the work is done."""
    status, said = run("""
def refuse(*_):
    raise ValueError("signal only works in main thread of the main interpreter")
signal.signal = refuse
register(Work()).cancel()
print("registered and cancelled", flush=True)
""")
    assert (status, said) == (0, ["registered and cancelled"])


def test_the_setter_of_handlers_is_replaced_once() -> None:
    """Other libraries may wrap `signal.signal` as well, however many signals come."""
    status, said = run("""
import functools
signal.signal(signal.SIGTERM, lambda *_: None)
register(Work())
def wrap():
    inner = signal.signal
    signal.signal = functools.wraps(inner)(lambda *given: inner(*given))
for _ in range(3):
    kill(); wrap()
setter, depth = signal.signal, 0
while hasattr(setter, "__wrapped__"): setter, depth = setter.__wrapped__, depth + 1
print(depth, flush=True)
""")
    assert (status, said) == (0, ["4"])


def test_a_removed_pipeline_replaces_no_handler() -> None:
    """Behind the wrapper of another library ours has no effect once the pipeline has ended."""
    status, said = run("""
import functools
signal.signal(signal.SIGTERM, lambda *_: None)
made = register(Work())
kill()
inner = signal.signal
signal.signal = functools.wraps(inner)(lambda *given: inner(*given))
made.cancel()
signal.signal(signal.SIGTERM, signal.SIG_DFL)
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)
""")
    assert (status, said) == (0, ["True"])


def test_without_pthread_kill_the_signal_is_sent_again() -> None:
    """Windows has no pthread_kill; the handler waits for the main thread to leave our code."""
    status, said = run("""
del signal.pthread_kill
register(Work())
inside = {"__name__": "rag_eval_otel.inside", "kill": kill}
exec("kill()", inside)  # the handler finds a function of ours on the main thread
while True: time.sleep(.01)
""")
    assert (status, said) == (-signal.SIGTERM, ["work drained"])


def test_a_fork_inside_an_import_does_not_wait_for_those_who_wait_for_it(tmp_path: Path) -> None:
    """Our thread waits for the module that the forking thread imports, so waiting is in vain."""
    (tmp_path / "forking.py").write_text("import __main__; __main__.fork()")
    status, said = run(
        """
from rag_eval_otel.runtime.fork import wait_to_fork
sys.path.insert(0, sys.argv[1])
def fork():
    thread = threading.Thread(target=__import__, args=("forking",), name="rag-eval-otel-io")
    thread.start()
    while sys._current_frames()[thread.ident].f_code.co_name != "acquire": time.sleep(.001)
    print(wait_to_fork(600.0), flush=True)
import forking
""",
        str(tmp_path),
    )
    assert (status, said) == (0, ["True"])


def test_a_setter_of_handlers_that_came_later_keeps_all_other_signals() -> None:
    """As gevent's, which must see the handlers of SIGCHLD; ours is put over it in a child."""
    status, said = run("""
register(Work())
set_handler, seen = signal.signal, []
def of_gevent(signum, handler):
    seen.append(signum)
    return set_handler(signum, handler)
child = os.fork()
if not child:
    signal.signal = of_gevent
    from rag_eval_otel.runtime import fork
    fork._call_all()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    print(seen == [signal.SIGCHLD], flush=True)
    os._exit(0)
os.waitpid(child, 0)
""")
    assert (status, said) == (0, ["True"])


def test_a_fork_waits_for_what_must_not_be_forked() -> None:
    """A thread of ours is in a marked function until the fork has begun to wait for it."""
    status, said = run("""
from rag_eval_otel.runtime.fork import finish_before_fork, wait_to_fork
entered, leave, left = threading.Event(), threading.Event(), []
@finish_before_fork
def make():
    entered.set()
    leave.wait()
    left.append(True)
threading.Thread(target=make, name="rag-eval-otel-io").start()
entered.wait()
print(wait_to_fork(0.05), flush=True)
threading.Timer(0.05, leave.set).start()
print(wait_to_fork(600.0), left, flush=True)
""")
    assert (status, said) == (0, ["False", "True [True]"])


METERS = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter, MetricExportResult, PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import TracerProvider
from rag_eval_otel import instrument
PARENT = os.getpid()
class Exporter(MetricExporter):
    def export(self, data, timeout_millis=0, **_):
        os.write(1, b"metrics of the parent\\n" if os.getpid() == PARENT else b"again\\n")
        if os.getpid() != PARENT: time.sleep(600)
        return MetricExportResult.SUCCESS
    def force_flush(self, timeout_millis=0): return True
    def shutdown(self, timeout_millis=0, **_): pass
def set_meters():
    reader = PeriodicExportingMetricReader(Exporter(), export_interval_millis=10**9)
    metrics.set_meter_provider(MeterProvider([reader]))
    metrics.get_meter("app").create_counter("orders").add(1)
"""


@pytest.mark.slow
def test_metrics_whose_provider_is_set_later_are_flushed_at_sigterm() -> None:
    """`instrument` may come before the global meter provider of the application."""
    status, said = run(
        METERS
        + """
instrument(tracer_provider=TracerProvider(), judge="lexical", embedder="hashing")
set_meters()
kill()
time.sleep(600)
"""
    )
    assert (status, said) == (-signal.SIGTERM, ["metrics of the parent"])


CHILDREN = """
import multiprocessing
from rag_eval_otel import record_answer, record_question, record_retrieval
set_meters()
provider = TracerProvider()
instrument(
    tracer_provider=provider, judge="lexical", embedder="hashing", shutdown_seconds=TIME
)
def nothing(): pass
def turn():
    with provider.get_tracer("app").start_as_current_span("turn"):
        record_question("Who founded it?")
        record_retrieval("Who founded it?", ["Ada founded it."])
        record_answer("Ada founded it.")
context = multiprocessing.get_context("fork")
turn()
for _ in range(2):
    child = context.Process(target=WORK)
    child.start(); child.join()
    print(child.exitcode, flush=True)
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("work", "seconds"), [("nothing", "3600"), ("turn", "5")])
def test_forked_children_do_not_export_the_metrics_of_their_parent(work: str, seconds: str) -> None:
    """A child that has recorded nothing ends at once; none exports what the parent has counted."""
    script = CHILDREN.replace("WORK", work).replace("TIME", seconds)
    assert run(METERS + script) == (0, ["0", "0"])
