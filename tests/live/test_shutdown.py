"""SIGTERM, forks and calls that may hang, each in a process of its own."""

from __future__ import annotations

import signal
import sys

import pytest

from processes import ran

pytestmark = [
    pytest.mark.slow,  # each runs a process
    pytest.mark.skipif(sys.platform == "win32", reason="needs fork and signals of POSIX"),
]

WORK = """
import os, signal, sys, threading, time
from rag_eval_otel.live import shutdown as endings
from rag_eval_otel.live.shutdown import call_at_end
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
    def flush_all(self, timeout): self.say("flushed")

def register(work, seconds=100.0):
    return call_at_end(work, seconds=seconds, at_sigterm=True)
def kill(): os.kill(os.getpid(), signal.SIGTERM)
"""


def run(script: str) -> tuple[int, list[str]]:
    """Run ``script`` in a process; return its exit status and the lines that it has printed."""
    done = ran(WORK + script)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()


def test_an_application_that_chains_our_handler_ends_by_itself() -> None:
    """Its handler has replaced ours and calls ours: spans are flushed, and its shutdown goes on."""
    status, said = run("""
flushed = threading.Event()
work = Work()
work.flush_all = lambda timeout: flushed.set()
register(work)
before = signal.getsignal(signal.SIGTERM)
signal.signal(signal.SIGTERM, lambda *told: before(*told))
kill()
assert flushed.wait(100)
print("graceful shutdown done", flush=True)
""")
    assert (status, said) == (0, ["graceful shutdown done"])


def test_work_that_is_cancelled_leaves_a_chained_handler_without_effect() -> None:
    """The application still calls our handler after the shutdown of the pipeline, and goes on."""
    status, said = run("""
made = register(Work())
before = signal.getsignal(signal.SIGTERM)
signal.signal(signal.SIGTERM, lambda *told: before(*told))
made()
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


def test_the_handler_stands_only_where_the_default_stood() -> None:
    """`signal.signal` is the original, and a handler of the application is not replaced."""
    status, said = run("""
original, theirs = signal.signal, lambda *_: None
made = register(Work())
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)
made()
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)
signal.signal(signal.SIGTERM, theirs)
register(Work())
print(signal.getsignal(signal.SIGTERM) is theirs, signal.signal is original, flush=True)
""")
    assert (status, said) == (0, ["False", "True", "True True"])


def test_the_main_thread_goes_on_while_the_last_work_is_done() -> None:
    """So a lock that it holds when the signal comes cannot stop the last work."""
    status, said = run("""
lock = threading.Lock()
register(Work("work", lock.acquire))
with lock:
    kill()
time.sleep(600)
""")
    assert (status, said) == (-signal.SIGTERM, ["work drained"])


def test_uvicorn_flushes_after_its_shutdown_off_the_event_loop() -> None:
    """The server's method still returns what it returned, and is wrapped once."""
    status, said = run("""
import asyncio, types
class Server:
    async def shutdown(self, sockets=None):
        os.write(1, b"answered all\\n")
        return sockets
sys.modules["uvicorn.server"] = types.SimpleNamespace(Server=Server)
work = Work()
work.flush_all = lambda timeout: work.say(f"flushed {threading.current_thread() is main}")
main = threading.main_thread()
register(work)
register(Work("other"))
print(asyncio.run(Server().shutdown(7)), flush=True)
""")
    assert status == 0
    assert said[0] == "answered all"
    assert sorted(said[1:3]) == ["other flushed", "work flushed False"]
    assert said[3] == "7"


def test_where_no_handler_can_be_set_nothing_is_raised() -> None:
    """In a sub-interpreter, `signal.signal` raises ValueError; the rest of the work is done."""
    status, said = run("""
def refuse(*_):
    raise ValueError("signal only works in main thread of the main interpreter")
signal.signal = refuse
register(Work())()
print("registered and cancelled", flush=True)
""")
    assert (status, said) == (0, ["registered and cancelled"])


METERS = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from rag_eval_otel import instrument, record_answer, record_question, record_retrieval
provider = TracerProvider()
instrument(tracer_provider=provider, judge="lexical", embedder="hashing", shutdown_seconds=TIME)
reader = PeriodicExportingMetricReader(ConsoleMetricExporter(), export_interval_millis=10**9)
metrics.set_meter_provider(MeterProvider([reader]))
metrics.get_meter("app").create_counter("orders").add(1)
"""


def test_metrics_whose_provider_is_set_later_are_flushed_at_sigterm() -> None:
    """`instrument` may come before the global meter provider of the application."""
    status, said = run(METERS.replace("TIME", "5") + "kill()\ntime.sleep(600)\n")
    assert status == -signal.SIGTERM
    assert '"orders"' in "".join(said)


CHILDREN = """
import multiprocessing
def nothing(): pass
def turn():
    with provider.get_tracer("app").start_as_current_span("turn"):
        record_question("Who founded it?")
        record_retrieval("Who founded it?", ["Ada founded it."])
        record_answer("Ada founded it.")
turn()
child = multiprocessing.get_context("fork").Process(target=WORK)
child.start(); child.join()
print(child.exitcode, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(("work", "seconds"), [("nothing", "3600"), ("turn", "5")])
def test_forked_children_do_not_export_the_metrics_of_their_parent(work: str, seconds: str) -> None:
    """A child that has recorded nothing ends at once; none exports what the parent has counted."""
    script = (METERS + CHILDREN).replace("WORK", work).replace("TIME", seconds)
    assert run(script) == (0, ["0"])
