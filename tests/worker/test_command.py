"""Tests of ``rag-eval-otel serve`` and of ``evaluate --traces``: spans of other processes."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import grpc  # type: ignore[import-untyped]
import pytest
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from requests import post

from live import points_of
from otlp_receiver import OtlpReceiver
from rag_eval_otel.config import Config
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.tools.cli import main
from rag_eval_otel.worker.command import _Files, _Receivers, _requests_in, add_options
from rag_eval_otel.worker.engine import Engine
from wires import UNKNOWN, FakeOutput, request_with, turn_spans

STATUS = "rag.evaluation.status"
SCOPE = "openinference.instrumentation.x"
TURNS = 3


def requests() -> list[ExportTraceServiceRequest]:
    return [request_with(*turn_spans(n), scope=SCOPE) for n in range(1, TURNS + 1)]


def write_protobuf(path: Path) -> None:
    contents = [one.SerializeToString() for one in requests()]
    path.write_bytes(b"".join(len(one).to_bytes(4, "big") + one for one in contents))


def write_json(path: Path) -> None:
    found = [MessageToDict(one) for one in requests()]
    for i, message in enumerate(found, start=1):
        spans: list[dict[str, Any]] = message["resourceSpans"][0]["scopeSpans"][0]["spans"]
        for part, span in zip(spans, turn_spans(i), strict=True):
            part["traceId"], part["spanId"] = span.trace_id.hex(), span.span_id.hex()
            if span.parent_span_id:
                part["parentSpanId"] = span.parent_span_id.hex()
    path.write_text("".join(f"{json.dumps(one)}\n" for one in found), encoding="utf-8")


WRITERS = pytest.mark.parametrize("write", [write_protobuf, write_json])


@pytest.mark.slow
@WRITERS
def test_the_turns_in_a_file_are_scored_and_sent(write: Any, tmp_path: Path) -> None:
    """Each span of the file arrives once, those of turns with scores."""
    file = tmp_path / "traces"
    write(file)
    with OtlpReceiver() as receiver:
        status = main(["serve", "--file", str(file), "--endpoint", receiver.grpc_endpoint])
        spans = receiver.wait_for_spans(3 * TURNS)
    assert status == 0
    assert len({(one.trace_id, one.span_id) for one in spans}) == len(spans) == 3 * TURNS
    assert [one.attributes.get(STATUS) for one in spans if one.name == "chain"] == ["scored"] * 3


def test_protobuf_in_a_file_is_sent_as_it_is(tmp_path: Path) -> None:
    """Fields that this library does not know survive, and metrics are not sent as log records."""
    file = tmp_path / "traces"
    write_protobuf(file)
    metrics = ExportMetricsServiceRequest()
    metrics.resource_metrics.add().scope_metrics.add().metrics.add(
        name="requests"
    ).sum.SetInParent()
    logs = ExportLogsServiceRequest()
    logs.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=1, severity_text="x")
    with file.open("ab") as out:
        for one in (metrics, logs):
            content = one.SerializeToString()
            out.write(len(content).to_bytes(4, "big") + content)
    output = FakeOutput()
    engine = Engine(Config(hold_seconds=600), output)
    reader = _Files([file])
    reader.start(engine)
    reader.wait(threading.Event())
    engine.shutdown(100)
    assert len(output.sent) == 3 * TURNS
    assert all(one.message.SerializeToString().endswith(UNKNOWN) for one in output.sent)
    sent = [r for one in output.logs for r in one.resource_logs[0].scope_logs[0].log_records]
    assert [one.severity_text for one in sent if not one.trace_id] == ["x"]


@pytest.mark.parametrize(
    ("trace_id", "span_id"),
    [("AAAAAAAAAAAAAAAAAAAAAQ==", "AAAAAAAAAAE="), ("0" * 31 + "1", "1" * 16)],
)
def test_a_file_with_a_value_of_another_type_is_refused(
    trace_id: str, span_id: str, tmp_path: Path
) -> None:
    """The message names the field, and does not quote the value, in both forms of JSON."""
    attributes = [{"key": "input.value", "value": {"intValue": "Who is Ada?"}}]
    spans = [{"traceId": trace_id, "spanId": span_id, "attributes": attributes}]
    file = tmp_path / "traces.json"
    file.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}))
    with pytest.raises(ConfigError, match=r"is not valid OTLP: .*attributes\.value") as caught:
        list(_requests_in(file))
    assert "Ada" not in str(caught.value)


def test_a_file_without_log_records_makes_no_requests_of_them(tmp_path: Path) -> None:
    """A backend that takes no log records would refuse also an empty request."""
    file = tmp_path / "traces.json"
    write_json(file)
    assert [kind for kind, _ in _requests_in(file)] == ["traces"] * TURNS


def test_a_file_is_not_read_on_after_a_signal(tmp_path: Path) -> None:
    """A large file would otherwise hold up the end."""
    file = tmp_path / "traces.json"
    write_json(file)
    with file.open("a", encoding="utf-8") as out:
        out.write("not read\n")
    stopping = threading.Event()
    stopping.set()
    assert _Files([file]).wait(stopping) is None


@WRITERS
def test_the_turns_in_a_file_are_evaluated(
    write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rows of the output have the ids of the spans."""
    file, output = tmp_path / "traces", tmp_path / "scores.jsonl"
    write(file)
    assert main(["evaluate", str(file), "--traces", "--output", str(output)]) == 0
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert {row["trace_id"] for row in rows} == {f"{n:032x}" for n in range(1, TURNS + 1)}
    assert "3 samples of 3 traces" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--grpc", "off", "--http", "off"], "nothing to read"),
        (["--grpc", "0", "--http", "off"], "Name --endpoint"),
        (["--memory", "0"], "--memory must be"),
        (["--output-topic", "scored"], "--output-topic concerns reading from Kafka"),
        (["--max-bytes", "1"], "--max-bytes concerns reading from Kafka"),
        (["--kafka-option", "acks=1"], "--kafka-option concerns reading from Kafka"),
        (["--file", "absent"], "absent cannot be read"),
        (["--token-file", "absent"], "--token-file absent cannot be read"),
        (["--kafka", "b:1", "--grpc", "127.0.0.1:4317"], "--grpc cannot be used together with"),
        (["--kafka", "b:1", "--http", "0"], "--http cannot be used together with --kafka"),
        (["--kafka", "b:1", "--file", "x"], "--file cannot be used together with --kafka"),
        (["--kafka", "b:1", "--token-file", "x"], "--token-file cannot be used together with"),
        (["--kafka", "b:1", "--output-logs-topic", "e"], "needs --output-topic"),
        (
            ["--kafka", "b:1", "--output-topic", "s", "--endpoint", "http://b:1"],
            "--endpoint cannot be used together with --output-topic",
        ),
        (["--file", "x", "--probes", "0"], "--probes cannot be used together with --file"),
    ],
)
def test_wrong_options_are_refused(
    arguments: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The message names the option."""
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert main(["serve", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_a_wrong_address_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """An address has a port."""
    with pytest.raises(SystemExit):
        main(["serve", "--grpc", "localhost"])
    assert "HOST:PORT" in capsys.readouterr().err


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "OTEL", "RAG_EVAL"))}
    return {**kept, "RAG_EVAL_SHUTDOWN_SECONDS": "100", "RAG_EVAL_HOLD_SECONDS": "600"}


def test_all_receivers_refuse_requests_from_the_beginning_of_the_end() -> None:
    """While one receiver waits for its requests, the others take none; requests are measured."""
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader])
    parser = argparse.ArgumentParser()
    add_options(parser)
    options = parser.parse_args(["--grpc", "0", "--http", "0"])
    entered, gate = threading.Event(), threading.Event()

    class Engine:
        state = "ready"

        def accept(self, _: object) -> None:
            entered.set()
            gate.wait(60)

    receivers = _Receivers(options, meters)
    receivers.start(cast("Any", Engine()))
    over_grpc, over_http = receivers._receivers  # noqa: SLF001  # they have the ports
    with (
        ThreadPoolExecutor(2) as pool,
        grpc.insecure_channel(f"127.0.0.1:{over_grpc.grpc_port}") as channel,
    ):
        first = pool.submit(TraceServiceStub(channel).Export, requests()[0], timeout=60)
        assert entered.wait(60)
        ending = pool.submit(receivers.drain, 60)
        url = f"http://127.0.0.1:{over_http.http_port}/v1/traces"
        headers = {"content-type": "application/x-protobuf"}
        while (refused := post(url, b"\xff", headers=headers, timeout=60)).status_code == 400:
            pass  # it does not refuse requests yet, so it reads this one
        assert refused.status_code == 503
        gate.set()
        assert first.result(60) is not None
        ending.result(60)
    receivers.close()
    assert list(points_of(reader)) == ["rag.evaluation.worker.requests"]
    meters.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_drains(name: str) -> None:
    """The spans that were accepted are scored and sent before the process ends."""
    command = [sys.executable, "-m", "rag_eval_otel", "serve", "--grpc", "127.0.0.1:0"]
    with OtlpReceiver() as receiver:
        process = subprocess.Popen(
            [*command, "--http", "off", "--endpoint", receiver.grpc_endpoint],
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            # What starts the tests may ignore SIGHUP, as nohup does, and a child inherits that.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # noqa: PLW1509
        )
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert "listening for grpc at port" in line, line + process.stderr.read()
            with grpc.insecure_channel(f"127.0.0.1:{line.split()[-1]}") as channel:
                for one in requests():
                    TraceServiceStub(channel).Export(one, timeout=60)
            process.send_signal(getattr(signal, name))
            _, errors = process.communicate(timeout=120)
        finally:
            process.kill()
        spans = receiver.wait_for_spans(3 * TURNS)
    assert process.returncode == 0, errors
    assert [one.attributes.get(STATUS) for one in spans if one.name == "chain"] == ["scored"] * 3
