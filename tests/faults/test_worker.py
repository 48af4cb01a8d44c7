"""Faults around a worker outside the application: senders, backend, Kafka and Redis."""

from __future__ import annotations

import gzip
import logging
import threading
import tracemalloc
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from live import Measured
from otlp_receiver import OtlpReceiver, _Verdict
from rag_eval_otel.config import Config
from rag_eval_otel.worker.engine import Engine
from rag_eval_otel.worker.listening import ReceiverOptions
from rag_eval_otel.worker.output import OtlpOutput, Retries
from rag_eval_otel.worker.receiver import Receiver
from rag_eval_otel.worker.senders import open_senders
from rag_eval_otel.worker.wire import OverloadedError
from wires import attributes_of, request_with, span, turn_spans
from worker.fake_kafka import KafkaError
from worker.test_engine import STATUS, worker
from worker.test_kafka import DEAD, message_of, running
from worker.test_receiver import BOMB, MEGABYTE, ONE, Intake, post

WAIT = 60.0  # seconds; never waited for unless something is broken


@pytest.mark.slow
@pytest.mark.fault(
    "requests", expected="400 or 413 with a message, counted, nothing passed on, memory bounded"
)
def test_fault_bad_requests_to_a_worker(measured: Measured) -> None:
    """Broken protobuf, a gzip bomb, an oversized request and another content type are refused."""
    pytest.importorskip("aiohttp")
    intake = Intake()
    options = ReceiverOptions(grpc_port=None, http_port=0, max_request=MEGABYTE)
    receiver = Receiver(intake, options).start()
    bomb = gzip.compress(BOMB)
    try:
        tracemalloc.start()
        found = [
            post(receiver, b"\xff\xff"),
            post(receiver, ONE[:-3]),
            post(receiver, bomb, content_encoding="gzip"),
            post(receiver, BOMB[: MEGABYTE + 1]),
            post(receiver, ONE, content_type="text/plain"),
        ]
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert post(receiver, ONE).status_code == 200
    finally:
        receiver.stop()
    statuses = [one.status_code for one in found]
    assert statuses == [400, 400, 413, 413, 415]
    assert len(intake.traces) == 1
    assert sum(receiver.requests.values()) == 6
    assert peak < 16 * MEGABYTE
    measured("status of broken, cut off, bomb of 64 MB, oversized, other type", statuses)


class Backend(OtlpReceiver):
    """A tracing backend that may be down."""

    def __init__(self) -> None:
        super().__init__()
        self.is_down = True
        self.was_asked = threading.Event()

    def _admit(self, records: Iterable[Any]) -> _Verdict:
        self.was_asked.set()
        return _Verdict(status=503) if self.is_down else super()._admit(records)


@pytest.mark.fault(
    "backend", expected="requests are refused at the bound of memory; what was accepted arrives"
)
def test_fault_the_backend_of_a_worker_is_down(measured: Measured) -> None:
    """Spans wait in memory up to its bound; all that were accepted arrive once after the outage."""
    bound, accepted, refused = 100_000, 0, 0
    with Backend() as backend:
        senders = open_senders({"OTEL_EXPORTER_OTLP_ENDPOINT": backend.grpc_endpoint})
        output = OtlpOutput(senders, retries=Retries(first=0.01, longest=0.02))
        engine = Engine(Config(), output, max_bytes=bound)
        try:
            for number in range(1, 2001):
                try:
                    engine.accept(request_with(span(number)))
                    accepted += 1
                except OverloadedError:  # noqa: PERF203  # each request may be refused
                    refused += 1
            most = engine.size
            assert backend.was_asked.wait(WAIT)
            backend.is_down = False
            assert engine.flush(WAIT)
        finally:
            engine.shutdown(WAIT)
        ids = Counter(one.span_id for one in backend.spans())
    assert accepted
    assert refused
    assert ids == Counter(range(1, accepted + 1))
    assert most < 2 * bound
    measured("accepted spans that arrived", f"{len(ids)} of {accepted}")
    measured("requests refused", refused)


@pytest.mark.slow
@pytest.mark.fault(
    "broker", expected="not ready, one log line; nothing is committed that was not exported"
)
def test_fault_the_broker_of_a_worker_is_away(
    measured: Measured, caplog: pytest.LogCaptureFixture
) -> None:
    """What is in flight is exported and committed when the broker is back."""
    down = KafkaError("_ALL_BROKERS_DOWN")
    with running() as found:
        for trace in (1, 2, 3):
            found.cluster.add(message_of(trace))
        found.until(lambda: len(found.engine.accepted) == 3 and found.source.is_ready)
        found.cluster.is_away = True
        found.cluster.commit_errors = [KafkaError("_TRANSPORT")] * 3
        for _ in range(3):
            found.cluster.events.append(lambda one: one.config["error_cb"](down))
        found.until(lambda: found.client.errors["_ALL_BROKERS_DOWN"] == 3)
        assert not found.source.is_ready
        assert found.source.is_live
        found.engine.export(1, 2)
        found.until(lambda: not found.cluster.commit_errors)
        found.cluster.is_away = False
        found.until(lambda: found.source.is_ready)
        found.until(lambda: found.cluster.committed == {0: 2})
        found.engine.export(3)
        found.until(lambda: found.cluster.committed == {0: 3})
    told = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    lines = sum("_ALL_BROKERS_DOWN" in one for one in told)
    assert lines == 1
    measured("messages committed after the outage", "3 of 3")
    measured("log lines about 3 errors", lines)


@pytest.mark.slow
@pytest.mark.fault(
    "poison", expected="to the dead letters with the reason, counted; the others go on"
)
def test_fault_messages_that_cannot_be_processed(measured: Measured) -> None:
    """Broken, empty and cut-off messages, and spans without ids, do not stop a partition."""
    bad = [b"not protobuf", b"", message_of(1)[:-3], message_of(0)]
    with running() as found:
        for trace, value in enumerate(bad, start=1):
            found.cluster.add(message_of(trace))
            found.cluster.add(value)
        found.until(lambda: len(found.engine.accepted) == len(bad))
        found.engine.export(*range(1, len(bad) + 1))
        found.until(lambda: found.cluster.committed == {0: 2 * len(bad)})
        letters = found.cluster.topics[DEAD][0]
    reasons = [dict(one.headers_ or ())["rag_eval.reason"] for one in letters]
    assert reasons == ["malformed", "empty", "malformed", "ids"]
    assert found.client.messages == {"exported": len(bad), "dead_letter": len(bad)}
    measured("dead letters", ", ".join(reasons))


@pytest.mark.fault("redis", expected="turns are scored, the outage is counted and logged")
def test_fault_the_redis_of_a_worker_is_away(measured: Measured) -> None:
    """Without the shared count, each worker keeps to the budget by itself."""
    pytest.importorskip("redis")
    turns = 5
    shared = {"redis": "redis://127.0.0.1:9/0", "budget": "1000 requests/minute"}
    with worker(**shared, raise_errors=False) as app:
        for number in range(1, turns + 1):
            app.accept(*turn_spans(number))
        app.wait(1)
        sent = app.output.wait_for(3 * turns)
        points = app.points("rag.evaluation.internal_errors")
    scored = sum(attributes_of(one).get(STATUS) == "scored" for one in sent)
    places = {(point.attributes or {}).get("place") for point in points}
    assert scored == turns
    assert places == {"redis"}
    measured("turns scored", f"{scored} of {turns}")
