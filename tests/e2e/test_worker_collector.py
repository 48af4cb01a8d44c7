"""The collector before the worker: whole traces as messages of Kafka, retries, TLS and a token."""

import ssl
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("confluent_kafka")
from confluent_kafka import Consumer, TopicPartition

from e2e.kafka_broker import fresh
from e2e.kafka_broker import serving as broker_in
from e2e.programs import checked, eventually, free_ports, get, program
from e2e.serve import serving
from e2e.stack import Collector, collector, validate
from otlp_receiver import OtlpReceiver, read_spans
from rag_eval_otel.worker.wire import parsed
from wires import content, span, turn

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "worker.md").read_text("utf-8")
TYPE = {"content-type": "application/x-protobuf"}


def send(to: Collector, *requests: bytes) -> None:
    for body in requests:
        with urlopen(Request(f"{to.http}/v1/traces", body, TYPE), timeout=10) as answer:  # noqa: S310
            assert answer.status == 200


def in_parts(trace: int) -> list[bytes]:
    """Return a turn of three scopes and two services, in three requests."""
    retriever, llm, chain = turn(trace)
    return [
        content(retriever, service="search", scope="acme.search"),
        content(llm, scope="acme.llm"),
        content(chain, scope="acme.chain"),
    ]


@pytest.mark.parametrize("exporter", ["otlp_grpc/worker", "kafka"])
def test_configurations_are_valid(exporter: str, tmp_path: Path) -> None:
    """The collector accepts both ways to the worker, and the documented way to several."""
    environment = {"RAG_QUEUE": str(tmp_path), "RAG_WORKER_EXPORTER": exporter}
    validate("worker.yaml", environment=environment)
    (tmp_path / "shown.yaml").write_text(PAGE.partition("```yaml\n")[2].partition("```")[0])
    validate("agent.yaml", str(tmp_path / "shown.yaml"), environment=environment)


def test_a_trace_is_one_message(backend: OtlpReceiver, tmp_path: Path) -> None:
    """Spans of several requests, scopes and services are scored; a larger trace is counted."""
    (own,) = free_ports(1)
    with broker_in(tmp_path / "broker") as broker:
        topic = broker.create(fresh("whole"), 3, {"max.message.bytes": "100000"})
        settings = {"RAG_WAIT": "3s", "RAG_SELF_PORT": str(own), "RAG_KAFKA_MAX_BYTES": "50000"}
        kafka = {"RAG_KAFKA": broker.address, "RAG_KAFKA_TOPIC": topic}
        with collector(
            tmp_path / "own", "worker.yaml", RAG_WORKER_EXPORTER="kafka", **settings, **kafka
        ) as before:
            send(before, *in_parts(1), content(span(2, 1, text="x" * 60_000)), *in_parts(3))
            eventually(
                lambda: sum(broker.ends(topic).values()) >= 2, "both traces are in the topic"
            )
            failed = 'otelcol_exporter_send_failed_spans{exporter="kafka"} 1'
            eventually(lambda: failed in get(f"http://127.0.0.1:{own}/metrics"), "it is counted")
        assert "kafka record exceeds max message size" in before.told()
        messages = read(broker.client(**{"group.id": "reader"}), topic, broker.ends(topic))
        spans = [[*read_spans(parsed(message))] for message in messages]
        assert sorted({s.trace_id for s in group} for group in spans) == [{1}, {3}]
        for group in spans:
            assert {s.scope for s in group} == {"acme.search", "acme.llm", "acme.chain"}
            assert {s.resource["service.name"] for s in group} == {"search", "shop"}
        options = (f"--kafka={broker.address}", f"--topic={topic}", f"--group={topic}")
        with serving(backend.grpc_endpoint, *options) as worker:
            backend.wait_for_spans(6, 60)
            assert worker.end() == 0
            assert worker.counts == {"sent": 6, "scored": 2}


def read(client: dict[str, object], topic: str, ends: dict[int, int]) -> list[bytes]:
    consumer = Consumer(client)
    try:
        consumer.assign([TopicPartition(topic, part, 0) for part in ends])
        messages = consumer.consume(sum(ends.values()), 30)
    finally:
        consumer.close()
    return [message.value() for message in messages]


def test_nothing_is_lost_while_the_worker_refuses(backend: OtlpReceiver, tmp_path: Path) -> None:
    """A worker with room for four traces gets twenty, and those that it refuses again."""
    with (
        serving(backend.grpc_endpoint, RAG_EVAL_MAX_HELD="4") as worker,
        collector(
            tmp_path / "own",
            "worker.yaml",
            RAG_WAIT="1s",
            RAG_WORKER=f"127.0.0.1:{worker.ports['gRPC']}",
        ) as before,
    ):
        for trace in range(1, 21):
            send(before, *in_parts(trace))
        backend.wait_for_spans(60, 90)
        assert worker.end() == 0
        assert "a request is refused" in "".join(worker.log)
        assert worker.counts == {"sent": 60, "scored": 20}
    assert "Dropping data" not in before.told()


def test_a_token_is_asked_for_over_tls(tmp_path: Path) -> None:
    """With worker-tls.yaml, a request without the token is refused."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    options = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost")
    names = ("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key))
    checked([program("openssl"), "req", *options, *names, "-out", str(certificate)])
    settings = {"RAG_TLS_CERT": str(certificate), "RAG_TLS_KEY": str(key), "RAG_TOKEN": "opens"}
    context = ssl.create_default_context(cafile=str(certificate))
    with collector(tmp_path / "own", "worker.yaml", "worker-tls.yaml", **settings) as before:
        url = before.http.replace("http:", "https:") + "/v1/traces"

        def status(**more: str) -> int:
            request = Request(url, content(*turn(1)), {**TYPE, **more})  # noqa: S310
            try:
                with urlopen(request, timeout=10, context=context) as answer:  # noqa: S310
                    return int(answer.status)
            except HTTPError as error:
                return error.code

        assert [status(), status(authorization="Bearer opens")] == [401, 200]
