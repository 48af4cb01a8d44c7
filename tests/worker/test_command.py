"""``serve`` refuses options that it cannot use, and says what became of spans and turns."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys

import pytest
import requests

from otlp_receiver import OtlpReceiver
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
        (["--endpoint=http://x", "--kafka=x", "--kafka-option=no.such=1"], "refuses its options"),
    ],
)
def test_options_that_cannot_be_used_are_named(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything listens."""
    if "--kafka=x" in words:
        pytest.importorskip("confluent_kafka")
    monkeypatch.setenv("RAG_EVAL_JUDGE", "lexical")
    with pytest.raises(ConfigError, match=message):
        command.run(options(*words))


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"TIMEOUT": "soon"}, "must be seconds"),
        ({"CERTIFICATE": "/no/such.pem"}, "cannot be read"),
    ],
)
def test_variables_that_cannot_be_used_are_named(variables: dict[str, str], message: str) -> None:
    """The message has the name of the variable, or of the file."""
    environ = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in variables.items()}
    with pytest.raises(ConfigError, match=message):
        build_sender(environ, "https://localhost:4317")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_worker_after_the_scores(number: int) -> None:
    """The turn under way is scored, and the totals are printed."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL", "PYTEST"))}
    with OtlpReceiver() as backend:
        ports = ["--grpc-port=0", "--http-port=0", f"--endpoint={backend.grpc_endpoint}"]
        with subprocess.Popen(
            [sys.executable, "-m", "rag_eval_otel", "serve", *ports],
            env={**kept, "RAG_EVAL_JUDGE": "lexical", "OTEL_METRICS_EXPORTER": "none"},
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            port = re.findall(r"port (\d+)", process.stderr.readline())[1]
            headers = {"content-type": "application/x-protobuf"}
            url = f"http://127.0.0.1:{port}/v1/traces"
            assert requests.post(url, content(*turn(1)), headers=headers, timeout=30).ok
            process.send_signal(number)
            _, log = process.communicate(timeout=60)
        assert process.returncode == 0, log
        assert "spans: 3 sent" in log
        assert "turns: 1 scored" in log
        assert len(backend.spans()) == 3


def test_spans_that_were_lost_are_said_by_the_exit_status() -> None:
    """The backend refuses them for good."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL", "PYTEST"))}
    with OtlpReceiver() as backend:
        backend.fail_next(9, status=400)
        ports = ["--grpc-port=0", "--http-port=0", f"--endpoint={backend.grpc_endpoint}"]
        with subprocess.Popen(
            [sys.executable, "-m", "rag_eval_otel", "serve", *ports],
            env={**kept, "RAG_EVAL_JUDGE": "lexical"},
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            port = re.findall(r"port (\d+)", process.stderr.readline())[1]
            headers = {"content-type": "application/x-protobuf"}
            url = f"http://127.0.0.1:{port}/v1/traces"
            assert requests.post(url, content(*turn(1)), headers=headers, timeout=30).ok
            process.terminate()
            _, log = process.communicate(timeout=60)
    assert process.returncode == 1, log
    assert "3 refused" in log
