"""``serve`` refuses options that it cannot use, and says what became of spans and turns."""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys

import pytest
import requests

from otlp_receiver import OtlpReceiver
from processes import environment
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.worker import command
from rag_eval_otel.worker.exporter import build_sender
from wires import content, turn

pytest.importorskip("aiohttp")


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_options(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--memory=0"], "--memory must be at least 1 MiB"),
        (["--grpc-port=70000"], "--grpc-port must be a port"),
        (["--http-port=-1"], "--http-port must be a port"),
        ([], "where are the spans to be sent"),
        (["--endpoint=ftp://x"], "must be an http or https URL"),
        (["--endpoint=http://x", "--kafka=x", "--kafka-option=a"], "must be NAME=VALUE"),
        (["--endpoint=http://x", "--kafka=x", "--kafka-option=a=@/no/such"], "cannot be read"),
        (["--endpoint=http://x", "--kafka=x", "--kafka-option=no.such=1"], "refuses its options"),
    ],
)
def test_unusable_options(words: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything listens."""
    if "--kafka=x" in words:
        pytest.importorskip("confluent_kafka")
    monkeypatch.setenv("RAG_EVAL_JUDGE", "lexical")
    with pytest.raises(ConfigError, match=message):
        command.run(options(*words))


@pytest.mark.parametrize(
    ("variables", "message"),
    [({"TIMEOUT": "soon"}, "must be seconds"), ({"CERTIFICATE": "/no/such.pem"}, "cannot be read")],
)
def test_variables_that_cannot_be_used_are_named(variables: dict[str, str], message: str) -> None:
    """The message has the name of the variable, or of the file."""
    environ = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in variables.items()}
    with pytest.raises(ConfigError, match=message):
        build_sender(environ, "https://localhost:4317")


# Signals may be ignored where the tests run in the background, and children inherit that.
RUN = """
import runpy, signal, sys
for name in ("SIGTERM", "SIGINT", "SIGHUP"):
    signal.signal(getattr(signal, name), signal.SIG_IGN if name in sys.argv[1] else signal.SIG_DFL)
del sys.argv[1]
runpy.run_module("rag_eval_otel", run_name="__main__")
"""


def end_of(backend: OtlpReceiver, number: int, *, ignored: str = "") -> tuple[int, str]:
    """Send a turn to a worker, and then a signal; return the exit status and the log.

    The signals with names in ``ignored`` are ignored, and sent before.
    """
    words = ["serve", "--grpc-port=0", "--http-port=0", f"--endpoint={backend.grpc_endpoint}"]
    with subprocess.Popen(
        [sys.executable, "-c", RUN, ignored or "none", *words],
        env=environment(RAG_EVAL_JUDGE="lexical", OTEL_METRICS_EXPORTER="none"),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        port = re.findall(r"port (\d+)", process.stderr.readline())[1]
        if ignored:
            process.send_signal(getattr(signal, ignored))
        headers = {"content-type": "application/x-protobuf"}
        url = f"http://127.0.0.1:{port}/v1/traces"
        assert requests.post(url, content(*turn(1)), headers=headers, timeout=30).ok
        process.send_signal(number)
        _, log = process.communicate(timeout=60)
    return process.returncode, log


def test_a_signal_ends_the_worker(backend: OtlpReceiver) -> None:
    """The turn under way is scored, and the totals are printed; SIGHUP is ignored under nohup."""
    status, log = end_of(backend, signal.SIGTERM, ignored="SIGHUP")
    assert status == 0, log
    assert "spans: 3 in, 3 sent\n" in log
    assert "turns: 1 scored, 0 refused, 0 failed\n" in log
    assert len(backend.spans()) == 3


def test_totals_have_reasons() -> None:
    """Turns by what became of them, with the reasons of those without scores."""
    turns = {"scored": 3, "skipped no_answer": 2, "error timeout": 1, "dropped overload": 1}
    told = [command._counted(turns, name, of) for name, of in command._OUTCOMES.items()]  # noqa: SLF001
    assert told == ["3 scored", "2 refused (2 no_answer)", "2 failed (1 timeout, 1 overload)"]


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)]
)
def test_spans_that_were_lost_are_said_by_the_exit_status(
    number: int, backend: OtlpReceiver
) -> None:
    """The backend refuses them for good; ^C and the end of a terminal end the worker, too."""
    backend.fail_next(9, status=400)
    status, log = end_of(backend, number)
    assert status == 1, log
    assert "3 refused" in log
