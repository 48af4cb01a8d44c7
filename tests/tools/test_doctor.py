"""Checks of judge, embedder and OTLP endpoints against real servers that answer or fail."""

import logging
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from openai_server import HttpReply, LoopbackServer, ScriptedOpenAI
from otlp_receiver import OtlpReceiver
from rag_eval_otel.tools import doctor
from rag_eval_otel.tools.cli import main
from rag_eval_otel.tools.doctor import Answer, Diagnosis, diagnose, endpoint_of, from_variables

pytestmark = pytest.mark.slow  # each runs a command against a server

STATEMENTS = {"statements": {"statements": ["Paris is the capital of France."]}}
QUIET = {
    "OTEL_TRACES_EXPORTER": "console",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_LOGS_EXPORTER": "none",
}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    prefixes = ("OTEL_", "RAG_EVAL_", "OPENAI_", "OPENINFERENCE_", "TRACELOOP_")
    for name in [name for name in os.environ if name.startswith(prefixes)]:
        monkeypatch.delenv(name)


@pytest.fixture
def dead() -> str:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def mute() -> Iterator[str]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def named(diagnosis: Diagnosis) -> dict[str, str]:
    return {one.cause: one.level for one in diagnosis.findings}


def error(status: int) -> Callable[..., HttpReply]:
    return lambda *_: HttpReply(status=status, body={"error": {"message": "refused: sk-secret"}})


def ask(server: ScriptedOpenAI, key: str = "a-key") -> Diagnosis:
    asking = {
        "RAG_EVAL_JUDGE": "openai/judge",
        "RAG_EVAL_EMBEDDER": "openai/text-embedding-3-small",
        "OPENAI_BASE_URL": server.base_url,
        **({"OPENAI_API_KEY": key} if key else {}),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in asking.items():
            patch.setenv(name, value)
        return diagnose({**QUIET, **asking}, timeout=120)


def test_all_answer() -> None:
    """Judge and embedder get one small request each; the key is not in the report."""
    with ScriptedOpenAI(lambda _: STATEMENTS, lambda _: [1.0, 0.0]) as server:
        diagnosis = ask(server)
        assert sorted(request.path for request in server.requests) == [
            "/v1/chat/completions",
            "/v1/embeddings",
        ]
    assert (diagnosis.status, named(diagnosis)) == (0, {"judge-unchecked": "info"})
    judge, embedder = diagnosis.replies
    assert judge.text == "judge-2026-01-01 answers"
    assert embedder.text == "vectors of 2"
    assert "a-key" not in str(diagnosis)


@pytest.mark.parametrize(
    ("reply", "embed", "cause"),
    [
        (error(401), error(401), "key-refused"),
        (error(404), lambda _: [1.0], "model-refused"),
        (error(429), lambda _: [1.0], "rate-limited"),
        (error(500), lambda _: [1.0], "server-unreachable"),
        (lambda _: "I would rather not.", lambda _: [1.0], "reply-unusable"),
        (lambda _: STATEMENTS, None, "embedder-missing"),
    ],
)
def test_a_server_that_refuses(reply: Any, embed: Any, cause: str) -> None:
    """Each refusal gives one finding for judge and embedder, after one request each."""
    with ScriptedOpenAI(reply, embed) as server:
        diagnosis = ask(server)
        assert len(server.requests) == 2
    unchecked = {"judge-unchecked": "info"} if cause == "embedder-missing" else {}
    assert (diagnosis.status, named(diagnosis)) == (1, {cause: "problem", **unchecked})


def test_no_key() -> None:
    """Without a key no request is sent."""
    with ScriptedOpenAI(lambda _: STATEMENTS) as server:
        diagnosis = ask(server, key="")
        assert not server.requests
    assert (diagnosis.status, named(diagnosis)) == (1, {"key-missing": "problem"})


def exported(signal: Any, protocol: str, **environ: str) -> Answer:
    for name in [*logging.root.manager.loggerDict]:  # they log no message twice within 20 s
        if name.startswith("opentelemetry.exporter.otlp"):
            logging.getLogger(name).filters.clear()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(f"OTEL_EXPORTER_OTLP_{name}", value)
        return doctor.export_nothing(endpoint_of(signal, f"otlp_proto_{protocol}", os.environ), 3.0)


@pytest.mark.parametrize("signal", ["traces", "metrics", "logs"])
def test_both_protocols_answer(signal: str, backend: OtlpReceiver) -> None:
    """An export without content is accepted over HTTP and gRPC, and stores nothing."""
    for protocol, url in (("http", backend.http_endpoint), ("grpc", backend.grpc_endpoint)):
        answer = exported(signal, protocol, ENDPOINT=url)
        assert answer.is_ok, answer
    assert backend.spans() == []


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_endpoints_that_fail(protocol: str, dead: str, mute: str, backend: OtlpReceiver) -> None:
    """No server, no reply, an unknown host, no TLS: each with what the exporter says."""
    secure = {"ENDPOINT": backend.http_endpoint.replace("http:", "https:")}
    for environ, words in (
        ({"ENDPOINT": dead}, "refused"),
        ({"ENDPOINT": mute}, "timed out|timeout|DEADLINE"),
        ({"ENDPOINT": "http://nowhere.invalid:4317"}, "nowhere.invalid"),
        (secure, "SSL|UNAVAILABLE"),
        ({"COMPRESSION": "lzma"}, "lzma"),
    ):
        answer = exported("traces", protocol, **environ)
        assert not answer.is_ok
        assert re.search(words, answer.text), answer


@pytest.mark.parametrize(("status", "text"), [(400, ""), (401, "code: 401"), (404, "code: 404")])
def test_http_statuses(status: int, text: str) -> None:
    """The status is in the text; 400 is ok, because some backends refuse an empty export."""
    with LoopbackServer(lambda *_: HttpReply(status=status)) as server:
        answer = exported("traces", "http", ENDPOINT=server.url)
    assert answer.is_ok == (status == 400)
    assert text in answer.text


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "grpc http://localhost:4317, grpc http://localhost:4317"),
        (
            {"ENDPOINT": "http://a:4318/"},
            "http http://a:4318/v1/traces, http http://a:4318/v1/metrics",
        ),
        ({"PROTOCOL": "http/json", "TRACES_ENDPOINT": "https://a/"}, "http https://a/, "),
    ],
)
def test_endpoints_are_those_of_the_sdk(variables: dict[str, str], expected: str) -> None:
    """A signal's own endpoint is used as it is; to the common one the path is added."""
    environ = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in variables.items()}
    endpoints = doctor.otlp_endpoints({**environ, "OTEL_LOGS_EXPORTER": "none"})
    found = ", ".join(f"{one.exporter.removeprefix('otlp_proto_')} {one.url}" for one in endpoints)
    assert found.startswith(expected)


def test_an_endpoint_that_refuses_is_named_once(
    dead: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three signals to one endpoint are one problem; the text says what to do."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", dead)
    assert main(["doctor"]) == 1
    told = capsys.readouterr().out
    assert told.count("PROBLEM") == told.count("PROBLEM otlp-fails") == 1
    assert f"traces to {dead}" in " ".join(told.split())
    assert "port 4317 is for gRPC" in " ".join(told.split())
    assert told.endswith("problems: 1, warnings: 0\n")


@pytest.mark.parametrize("url", ["http://[::1", "nonsense"])
def test_a_malformed_endpoint_is_a_problem(url: str, monkeypatch: Any, capsys: Any) -> None:
    """With its text, for all three signals once."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.count(f"PROBLEM otlp-fails: traces to {url}") == 1


RATIO = {"OTEL_TRACES_SAMPLER": "traceidratio"}


@pytest.mark.parametrize(
    ("variables", "cause"),
    [
        ({"OTEL_SDK_DISABLED": "True"}, "sdk-disabled"),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, "sampler-off"),
        ({"TRACELOOP_TRACE_CONTENT": "false"}, "content-hidden"),
        ({"OTEL_TRACES_EXPORTER": "none"}, "traces-not-exported"),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "exporter-missing"),
        (RATIO | {"OTEL_TRACES_SAMPLER_ARG": "0"}, "sampler-off"),
        *((RATIO | {"OTEL_TRACES_SAMPLER_ARG": argument}, None) for argument in ("0.5", "much")),
    ],
)
def test_findings_on_a_variable(variables: dict[str, str], cause: str | None) -> None:
    """A variable that prevents scoring is named; a ratio of 0 drops all, another is no finding."""
    found = from_variables({**QUIET, **variables})
    assert [one.cause for one in found] == ([cause] if cause else [])
    assert all(next(iter(variables)) in one.seen for one in found)


def test_a_failure_of_another_signal_is_a_warning() -> None:
    """If traces arrive, failing metrics are a warning; so is a dead default endpoint."""
    over = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://here"}
    traces, metrics = (endpoint_of(s, "otlp_proto_http", over) for s in ("traces", "metrics"))  # type: ignore[arg-type]
    found = doctor.from_answers(
        [Answer(endpoint=traces, is_ok=True), Answer(endpoint=metrics, is_ok=False)]
    )
    assert [(one.cause, one.level) for one in found] == [("otlp-signal", "warning")]
    nowhere = Answer(endpoint=endpoint_of("traces", "otlp_proto_grpc", {}), is_ok=False)
    assert [(one.cause, one.level) for one in doctor.from_answers([nowhere])] == [
        ("otlp-unset", "warning")
    ]


@pytest.mark.parametrize(
    ("name", "value", "cause"),
    [
        ("RAG_EVAL_SAMPLE_RATE", "0", "turns-sample-rate"),
        ("RAG_EVAL_SAMPLE_RATE", "many", "config-invalid"),
    ],
)
def test_options_that_leave_nothing_to_score(name: str, value: str, cause: str) -> None:
    """They are problems, and the worst finding comes first."""
    diagnosis = diagnose({**QUIET, name: value}, timeout=5)
    assert diagnosis.status == 1
    assert (diagnosis.findings[0].cause, diagnosis.findings[0].level) == (cause, "problem")
