"""The package without fork, signals and POSIX modules, as on Windows."""

from __future__ import annotations

import pytest

from processes import ran

PROGRAM = '''
import asyncio, importlib, os, pkgutil, signal, sys

def import_all():
    """Import every module of the package, and return their names."""
    package = importlib.import_module("rag_eval_otel")
    names = [one.name for one in pkgutil.walk_packages(package.__path__, "rag_eval_otel.")]
    for name in names:
        if not name.endswith("__main__"):
            importlib.import_module(name)
    return names

# The first import loads other libraries, which know this system; the second finds them loaded.
import_all()
for name in [name for name in sys.modules if name.partition(".")[0] == "rag_eval_otel"]:
    del sys.modules[name]

absent = {"SIGHUP", "SIGKILL", "SIGUSR1", "SIGALRM", "SIGCHLD", "SIGPIPE", "pause", "setitimer"}
for name in absent:
    delattr(signal, name)
for name in ("fork", "forkpty", "register_at_fork", "getpgrp", "tcgetpgrp", "getuid", "geteuid"):
    delattr(os, name)
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None  # importing it is an ImportError

print(len(import_all()))

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rag_eval_otel import Sample, aevaluate, instrument, LexicalJudge, HashingEmbedder
from rag_eval_otel import record_answer, record_question, record_retrieval

asked, page, said = "When was it founded?", "It was founded in 1987.", "It was founded in 1987."
provider, exporter = TracerProvider(), InMemorySpanExporter()
provider.add_span_processor(SimpleSpanProcessor(exporter))
handle = instrument(tracer_provider=provider, raise_errors=True)
with provider.get_tracer("app").start_as_current_span("turn"):
    record_question(asked)
    record_retrieval(asked, [page])
    record_answer(said)
handle.flush()
(span,) = exporter.get_finished_spans()
print(span.attributes["rag.evaluation.status"])

sample = Sample(question=asked, contexts=(page,), answer=said)
scored = asyncio.run(aevaluate(sample, judge=LexicalJudge(), embedder=HashingEmbedder()))
print(scored.status)

handle.shutdown()
'''


@pytest.mark.slow
def test_the_package_runs_without_posix_functions() -> None:
    """Every module is imported, and a turn and a sample are scored, without them."""
    done = ran(PROGRAM)
    assert not done.returncode, done.stderr
    number, turn, sample = done.stdout.splitlines()
    assert int(number) > 50
    assert (turn, sample) == ("scored", "scored")
