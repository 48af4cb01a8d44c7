"""Tests of `rag_eval_otel.worker.kafka` with a client in memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from live import points_of
from rag_eval_otel.environment import kafka_options
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.worker.kafka import KafkaSource
from rag_eval_otel.worker.kafka_client import Client, KafkaOutput
from rag_eval_otel.worker.kafka_options import KafkaOptions
from rag_eval_otel.worker.watermark import Finished
from rag_eval_otel.worker.wire import OverloadedError, Receipt, spans_in
from worker.fake_kafka import PATIENCE, Cluster, KafkaError, KafkaException

TOPIC, DEAD = "otlp_spans", "dead"


def request_with(*traces: int, spans: int = 1, text: str = "") -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for trace in traces:
        for number in range(1, spans + 1):
            scope.spans.add(
                trace_id=trace.to_bytes(16, "big"), span_id=number.to_bytes(8, "big"), name=text
            )
    return request


def message_of(*traces: int, spans: int = 1) -> bytes:
    return request_with(*traces, spans=spans).SerializeToString()


class FakeEngine:
    """An engine that keeps requests until the test lets their spans leave."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.accepted: dict[int, Receipt] = {}
        self.dropped: list[Receipt] = []
        self.collecting: set[int] = set()
        self.shares: list[float] = []
        self.refusals = 0
        self.error: Exception | None = None

    def accept(self, request: ExportTraceServiceRequest, receipt: Receipt) -> None:
        if self.refusals:
            self.refusals -= 1
            msg = "no memory"
            raise OverloadedError(msg, retry_after=0.001)
        if self.error is not None:
            raise self.error
        span = request.resource_spans[0].scope_spans[0].spans[0]
        self.accepted[int.from_bytes(span.trace_id, "big")] = receipt
        with self.cluster.changed:
            self.cluster.changed.notify_all()

    def drop(self, receipts: Iterable[Receipt]) -> None:
        for receipt in receipts:
            receipt.revoke()
            self.dropped.append(receipt)

    def is_collecting(self, trace_id: int) -> bool:
        return trace_id in self.collecting

    def share(self, workers: float) -> None:
        self.shares.append(workers)

    def export(self, *traces: int, spans: int = 1) -> None:
        for trace in traces:
            for _ in range(spans):
                self.accepted[trace].left()


class Running:
    """A source that reads a cluster in memory."""

    def __init__(self, **options: Any) -> None:
        self.cluster = Cluster()
        self.cluster.create(TOPIC, 2)
        self.cluster.create(DEAD)
        self.engine = FakeEngine(self.cluster)
        self.reader = InMemoryMetricReader()
        meters = MeterProvider([self.reader])
        chosen = KafkaOptions(**{"brokers": "broker:9092", "dead_letter": DEAD, **options})
        self.client = Client(chosen, meter_provider=meters, package=self.cluster)
        self.source = KafkaSource(self.engine, self.client, meter_provider=meters)

    def until(self, condition: Callable[[], object]) -> None:
        self.cluster.until(condition)

    def read(self, *traces: int) -> None:
        """Add messages of ``traces``, and wait until the engine has them."""
        for trace in traces:
            self.cluster.add(message_of(trace))
        self.until(lambda: self.engine.accepted.keys() >= set(traces))

    def take(self, *numbers: int, how: str = "on_revoke") -> None:
        done = threading.Event()

        def taking(consumer: Any) -> None:
            consumer.take(*numbers, how=how)
            done.set()

        self.cluster.events.append(taking)
        assert done.wait(PATIENCE)

    def give(self, *numbers: int) -> None:
        self.cluster.events.append(lambda consumer: consumer.assign(numbers))

    def go_back(self, offset: int) -> None:
        del self.cluster.topics[TOPIC][0][offset:]
        self.cluster.events.append(lambda consumer: consumer.positions.update({0: offset}))

    def points(self, name: str) -> list[Any]:
        return points_of(self.reader).get(name, [])


@contextmanager
def running(**options: Any) -> Iterator[Running]:
    found = Running(**options)
    found.source.start()
    try:
        yield found
    finally:
        found.source.close(0)


@pytest.mark.slow
def test_the_watermark_is_committed_after_the_spans_have_left() -> None:
    """A message is committed once all of its spans, and those of earlier messages, have left."""
    with running() as found:
        for trace in (1, 2, 3):
            found.cluster.add(message_of(trace, spans=2))
        found.until(lambda: len(found.engine.accepted) == 3)
        found.engine.export(2, 3, spans=2)
        found.engine.export(1)
        assert found.cluster.committed == {}
        found.engine.export(1)
        found.until(lambda: found.cluster.committed == {0: 3})
        found.until(lambda: found.client.messages["exported"] == 3)


@pytest.mark.slow
def test_messages_of_a_trace_wait_for_its_root() -> None:
    """Exported spans of a trace are not committed while more of its spans are expected."""
    with running() as found:
        found.engine.collecting = {1}
        found.read(1, 2)
        found.engine.export(1, 2)
        found.until(lambda: found.client.messages["exported"] == 2)
        assert found.cluster.committed == {}
        found.engine.collecting = set()
        found.until(lambda: found.cluster.committed == {0: 2})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"not protobuf", "malformed"),
        (message_of(1)[:-3], "malformed"),
        (None, "empty"),
        (b"", "empty"),
        (message_of(0), "ids"),
        (
            message_of(1).replace(b"\x12\x08" + (1).to_bytes(8, "big"), b"\x12\x08" + bytes(8)),
            "ids",
        ),
    ],
)
def test_a_poison_message_goes_to_the_dead_letters(value: bytes | None, reason: str) -> None:
    """The dead letter has the value, the key, the reason and the place; then it is committed."""
    with running() as found:
        found.cluster.add(message_of(7))
        found.cluster.add(value, key_=b"key", headers_=[("mine", b"kept")])
        found.cluster.add(message_of(8))
        found.until(lambda: found.engine.accepted.keys() == {7, 8})
        found.engine.export(7, 8)
        found.until(lambda: found.cluster.committed == {0: 3})
        (letter,) = found.cluster.topics[DEAD][0]
        told = dict(letter.headers_ or ())
        assert (letter.value_, letter.key_) == (value, b"key")
        assert told.pop("rag_eval.reason") == reason
        assert told == {
            "mine": b"kept",
            "rag_eval.topic": TOPIC,
            "rag_eval.partition": "0",
            "rag_eval.offset": "1",
        }
        assert found.client.messages == {"exported": 2, "dead_letter": 1}


@pytest.mark.slow
def test_a_poison_message_is_committed_after_its_dead_letter_was_acknowledged() -> None:
    """While dead letters are refused, or the producer has no room, nothing is committed."""
    found = Running()
    found.cluster.room = 0
    found.cluster.refused = [KafkaError("_MSG_TIMED_OUT")] * 3
    found.cluster.add(b"bad")
    found.source.start()
    found.until(lambda: found.cluster.committed == {0: 1})
    found.source.close(0)
    assert found.client.errors["_MSG_TIMED_OUT"] == 3
    assert len(found.cluster.topics[DEAD][0]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("refused", [True, False])
def test_a_poison_message_without_a_dead_letter_is_passed_over(
    refused: bool,  # noqa: FBT001
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without a topic, or if the letter is too large for it, the message is logged and counted."""
    found = Running(dead_letter=DEAD if refused else None)
    found.cluster.refused = [KafkaError("MSG_SIZE_TOO_LARGE")]
    found.cluster.add(b"bad")
    found.source.start()
    found.until(lambda: found.cluster.committed == {0: 1})
    found.source.close(0)
    assert found.client.messages == {"discarded": 1}
    assert "the message at offset 0 of partition 0 of otlp_spans cannot be processed" in caplog.text


@pytest.mark.slow
def test_a_dead_letter_that_the_client_finds_too_large_is_passed_over() -> None:
    """The client refuses a large message before it is sent; that does not block the partition."""
    with running() as found:
        found.cluster.raised = [KafkaException(KafkaError("MSG_SIZE_TOO_LARGE"))]
        found.cluster.add(b"bad")
        found.cluster.add(b"also bad")
        found.until(lambda: found.cluster.committed == {0: 2})
        assert found.client.messages == {"discarded": 1, "dead_letter": 1}


@pytest.mark.slow
def test_a_log_that_begins_anew_is_read(caplog: pytest.LogCaptureFixture) -> None:
    """If a topic is created again, its messages are taken, although their offsets were seen."""
    with running() as found:
        found.read(1, 2)
        found.go_back(0)
        found.read(3)
        found.engine.export(1, 2, 3)
        found.until(lambda: found.cluster.committed == {0: 1})
        assert found.client.errors["offset_reset"] == 1
    assert "goes on below offset 2" in caplog.text


@pytest.mark.slow
def test_a_log_that_goes_back_is_not_committed_above_what_is_in_flight() -> None:
    """A broker that failed may have lost the end of a log, and still have what is in flight."""
    with running() as found:
        found.read(1, 2, 3, 4)
        found.go_back(2)
        found.read(5)
        found.engine.export(2, 3, 4, 5)
        found.until(lambda: found.client.messages["exported"] == 4)
        assert found.cluster.committed == {}
        found.take(0)
        assert found.cluster.committed == {}


@pytest.mark.slow
def test_a_log_that_goes_back_lowers_the_committed_offset() -> None:
    """Otherwise a new owner might pass over messages once the log is long enough again."""
    with running() as found:
        found.read(1, 2)
        found.engine.export(1, 2)
        found.until(lambda: found.cluster.committed == {0: 2})
        found.go_back(0)
        found.cluster.add(message_of(3))
        found.until(lambda: found.cluster.committed == {0: 0})
        found.engine.export(3)
        found.until(lambda: found.cluster.committed == {0: 1})
        assert [one.value for one in found.source.in_flight()] == [0, 0]


def test_a_worker_that_ends_waits_for_what_came_before_the_log_went_back() -> None:
    """Another worker might not find these messages."""
    found = Running()
    found.source.start()
    found.read(1)
    found.go_back(0)
    found.read(2)
    found.engine.export(2)
    found.until(lambda: found.client.messages["exported"] == 1)
    assert not found.source.close(0)


@pytest.mark.slow
def test_an_internal_error_makes_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message on which the engine fails does not stop the partition."""
    with running() as found:
        found.engine.error = RuntimeError("a bug")
        found.cluster.add(message_of(1))
        found.until(lambda: found.cluster.committed == {0: 1})
        (letter,) = found.cluster.topics[DEAD][0]
        assert ("rag_eval.reason", "error") in (letter.headers_ or ())
        assert len(found.engine.dropped) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "bound", [{"max_messages": 10}, {"max_bytes": 10 * len(message_of(1))}], ids=min
)
def test_what_is_in_flight_is_bounded_for_each_partition(bound: dict[str, int]) -> None:
    """A partition is paused at the limit, and read on when half of it is committed."""
    with running(**bound) as found:
        for trace in range(1, 31):
            found.cluster.add(message_of(trace))
        found.until(lambda: found.cluster.paused == {0})
        found.cluster.add(message_of(99), 1)
        found.until(lambda: 99 in found.engine.accepted)
        assert found.engine.accepted.keys() == {*range(1, 11), 99}
        found.engine.export(*range(1, 11))
        found.until(lambda: len(found.engine.accepted) == 21)
        found.until(lambda: found.cluster.committed == {0: 10})


def test_messages_wait_while_the_engine_has_no_memory() -> None:
    """The feeding thread tries again; the poll thread goes on."""
    with running() as found:
        found.engine.refusals = 5
        found.read(1)
        assert found.engine.refusals == 0


@pytest.mark.slow
def test_revoked_partitions_are_committed_and_dropped() -> None:
    """What is done is committed, the rest is dropped here, and read again by the new owner."""
    with running() as found:
        for trace in (1, 2, 3):
            found.cluster.add(message_of(trace))
        found.cluster.add(message_of(4), 1)
        found.until(lambda: len(found.engine.accepted) == 4)
        found.engine.export(1)
        old = found.engine.accepted[2]
        found.take(0)
        assert found.cluster.committed == {0: 1}
        assert {id(one) for one in found.engine.dropped} == {
            id(found.engine.accepted[trace]) for trace in (2, 3)
        }
        assert found.client.messages["revoked"] == 2
        found.engine.export(2, 3)  # nothing follows
        found.give(0)
        found.until(lambda: found.engine.accepted[2] is not old and 3 in found.engine.accepted)
        found.until(lambda: len(found.engine.dropped) == 2)
        found.until(lambda: not found.source._jobs.qsize())  # noqa: SLF001
        found.engine.export(2, 3, 4)
        found.until(lambda: found.cluster.committed == {0: 3, 1: 1})


@pytest.mark.slow
def test_a_paused_partition_that_comes_back_is_read() -> None:
    """A client keeps a partition paused while others have it, so it is resumed before."""
    with running(max_messages=2) as found:
        for trace in range(1, 5):
            found.cluster.add(message_of(trace))
        found.until(lambda: found.cluster.paused == {0})
        found.take(0)
        found.engine.accepted.clear()
        found.give(0)
        found.until(lambda: found.engine.accepted.keys() == {1, 2})
        found.engine.export(1, 2)
        found.until(lambda: found.engine.accepted.keys() == {1, 2, 3, 4})
        assert found.client.errors == {}


def export_the_second(found: Running) -> None:
    found.read(1, 2)
    found.engine.export(2)
    found.until(lambda: found.cluster.notes.get(0))
    assert found.cluster.committed == {0: 0}


@pytest.mark.slow
def test_the_next_worker_does_not_export_what_is_finished() -> None:
    """Messages above the committed offset that are complete are known to the next owner."""
    with running() as found:
        export_the_second(found)
        found.take(0, how="on_lost")
        found.engine.accepted.clear()
        found.give(0)
        found.until(lambda: 1 in found.engine.accepted)
        found.engine.export(1)
        found.until(lambda: found.cluster.committed == {0: 2})
        assert found.engine.accepted.keys() == {1}
        assert found.client.messages["finished_before"] == 1


@pytest.mark.slow
def test_a_worker_that_reads_little_forgets_nothing_of_what_is_finished() -> None:
    """Its commit keeps the marks of messages that it has not received."""
    with running(max_messages=2) as found:
        export_the_second(found)
        found.take(0, how="on_lost")
        note = Finished(0, 0b1010, 0).note(0)
        found.cluster.notes[0] = note
        found.engine.accepted.clear()
        found.give(0)
        found.until(lambda: 1 in found.engine.accepted)
        found.engine.export(1)
        found.until(lambda: found.cluster.committed[0] == 2)
        assert Finished.of_note(2, found.cluster.notes[0]).has(3, 0)


@pytest.mark.slow
def test_a_message_that_replaced_a_finished_one_is_read() -> None:
    """A broker that lost messages writes others at their offsets, in a later epoch."""
    with running() as found:
        export_the_second(found)
        found.take(0, how="on_lost")
        del found.cluster.topics[TOPIC][0][1:]
        found.cluster.add(message_of(3), leader_epoch_=1)
        found.give(0)
        found.until(lambda: 3 in found.engine.accepted)
        assert found.client.messages["finished_before"] == 0


@pytest.mark.slow
def test_all_is_read_again_if_the_brokers_do_not_say_what_is_finished() -> None:
    """A repetition is better than a loss."""
    with running() as found:
        export_the_second(found)
        found.take(0, how="on_lost")
        found.engine.accepted.clear()
        found.cluster.is_away = True
        found.give(0)
        found.until(lambda: found.engine.accepted.keys() == {1, 2})
        assert found.client.errors["_TRANSPORT"]


@pytest.mark.slow
def test_brokers_that_refuse_texts_get_offsets_alone() -> None:
    """The size of such texts is an option of the brokers."""
    with running() as found:
        found.cluster.max_note = 0
        found.read(1, 2, 3)
        found.engine.export(2)
        found.until(lambda: found.client.errors["OFFSET_METADATA_TOO_LARGE"])
        found.engine.export(1)
        found.until(lambda: found.cluster.committed == {0: 2})
        assert not found.cluster.notes[0]


@pytest.mark.slow
def test_a_revoked_partition_is_committed_without_a_text_that_brokers_refuse() -> None:
    """The new owner need not read again what is below the offset."""
    with running() as found:
        found.cluster.max_note = 0
        found.cluster.commit_errors = [KafkaError("_WAIT_COORD")] * 1000
        found.read(1, 2, 3)
        found.engine.export(1, 3)
        found.until(lambda: found.client.messages["exported"] == 2)

        def take(consumer: Any) -> None:
            found.cluster.commit_errors.clear()
            consumer.take(0)

        found.cluster.events.append(take)
        found.until(lambda: found.cluster.committed == {0: 1})
        assert found.cluster.commits["synchronous"]


@pytest.mark.slow
def test_a_committed_offset_that_is_not_in_the_log_any_more_is_replaced() -> None:
    """Otherwise a new owner might pass over messages once the log is long enough again."""
    found = Running()
    found.cluster.committed = {0: 5}
    found.source.start()
    found.until(lambda: found.source._partitions)  # noqa: SLF001
    found.go_back(0)
    found.cluster.add(message_of(1))
    found.until(lambda: found.cluster.committed == {0: 0})
    found.source.close(0)
    assert found.client.messages["exported"] == 0


@pytest.mark.slow
def test_bytes_that_another_program_has_committed_lose_no_message() -> None:
    """The client raises an exception if what was committed is no text."""

    class Bytes:
        partition, offset, error = 0, 0, None

        @property
        def metadata(self) -> str:
            return bytes([255]).decode()

    found = Running()
    found.cluster.add(message_of(1))
    found.source._consumer.committed = lambda *_, **__: [Bytes()]  # noqa: SLF001
    found.source.start()
    found.until(lambda: 1 in found.engine.accepted)
    found.source.close(0)
    assert found.client.errors["kafka"] == 1


@pytest.mark.slow
def test_lost_partitions_are_not_committed() -> None:
    """Another worker may have committed more, for partitions that were lost."""
    with running() as found:
        found.cluster.commit_errors = [KafkaError("ILLEGAL_GENERATION")] * 1000
        found.read(1)
        found.engine.export(1)
        found.until(lambda: found.client.errors["ILLEGAL_GENERATION"])
        found.take(0, how="on_lost")
        assert found.cluster.commits["synchronous"] == 0
        assert found.cluster.committed == {}
        assert found.client.errors["assignment_lost"] == 1


@pytest.mark.slow
def test_a_failed_commit_is_repeated() -> None:
    """The next commit has the offset again."""
    with running() as found:
        found.cluster.commit_errors = [KafkaError("_WAIT_COORD")] * 2
        found.read(1)
        found.engine.export(1)
        found.until(lambda: found.cluster.committed == {0: 1})
        assert found.client.errors["_WAIT_COORD"] == 2


def test_a_worker_that_ends_waits_for_what_is_in_flight() -> None:
    """It reads no more, commits what is exported in time, and drops the rest."""
    found = Running()
    found.source.start()
    found.read(1)
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(found.source.close(PATIENCE)))
    thread.start()
    found.until(lambda: found.cluster.paused == {0, 1})
    found.cluster.add(message_of(2))
    found.engine.export(1)
    thread.join(PATIENCE)
    assert ended == [True]
    assert found.cluster.committed == {0: 1}
    assert found.engine.accepted.keys() == {1}


def test_a_worker_that_ends_drops_what_is_not_exported_in_time() -> None:
    """Another worker exports it."""
    found = Running()
    found.source.start()
    found.read(1)
    assert not found.source.close(0)
    assert found.cluster.committed == {}
    assert found.engine.accepted[1].is_revoked


def test_a_message_that_the_engine_refuses_does_not_hold_up_the_end() -> None:
    """It was not exported, and is not committed."""
    found = Running()
    found.engine.refusals = 10**9
    found.source.start()
    found.cluster.add(message_of(1))
    found.until(lambda: found.engine.refusals < 10**9)
    assert found.source.close(PATIENCE)
    assert found.cluster.committed == {}


@pytest.mark.slow
def test_a_topic_that_is_not_there_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """The worker is not ready, says what to do, and is ready once the topic is there."""
    found = Running()
    del found.cluster.topics[DEAD]
    found.source.start()
    found.until(lambda: found.client.errors["UNKNOWN_TOPIC_OR_PART"])
    assert not found.source.is_ready
    assert found.source.is_live
    assert "Create the topic, or allow this user to use it" in caplog.text
    found.cluster.create(DEAD)
    found.until(lambda: found.source.is_ready)
    found.source.close(0)


@pytest.mark.slow
def test_a_broker_that_is_away_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """The worker is not ready while no broker answers; each error is counted."""
    with running() as found:
        found.until(lambda: found.source.is_ready)
        found.cluster.is_away = True
        down = KafkaError("_ALL_BROKERS_DOWN")
        found.cluster.events.append(lambda one: one.config["error_cb"](down))
        found.cluster.events.append(lambda one: one.config["error_cb"](down))
        found.until(lambda: found.client.errors["_ALL_BROKERS_DOWN"] == 2)
        assert not found.source.is_ready
        found.until(lambda: found.client.errors["_TRANSPORT"])
        assert not found.source.is_ready
        found.cluster.is_away = False
        found.until(lambda: found.source.is_ready)
    told = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert len([one for one in told if "_ALL_BROKERS_DOWN" in one]) == 1
    assert "Kafka at broker:9092: what the client says of _ALL_BROKERS_DOWN" in caplog.text


def test_a_fatal_error_ends_readiness_and_liveness() -> None:
    """The client cannot recover, so the process has to be restarted."""
    with running() as found:
        found.until(lambda: found.source.is_ready)
        error = KafkaError("FENCED_INSTANCE_ID", is_fatal=True)
        found.cluster.add(b"", error_=error)
        found.until(lambda: found.client.errors["FENCED_INSTANCE_ID"])
        assert not found.source.is_ready
        assert not found.source.is_live


@pytest.mark.slow
def test_an_error_of_the_loop_does_not_end_it() -> None:
    """It is counted, and the loop goes on."""
    with running() as found:

        def fail(_: Any) -> None:
            msg = "a bug"
            raise RuntimeError(msg)

        found.cluster.events.append(fail)
        found.read(1)
        assert found.client.errors["kafka"] == 1


def test_lag_and_messages_in_flight_are_measured() -> None:
    """The gauges have the messages that are not committed, and those of them that were read."""
    found = Running(max_messages=2)
    for trace in range(1, 6):
        found.cluster.add(message_of(trace))
    found.source.start()
    found.until(lambda: 2 in found.engine.accepted)
    found.until(lambda: found.source._lags == {0: 5, 1: 0})  # noqa: SLF001
    lag = {
        dict(p.attributes)["partition"]: p.value for p in found.points("rag.evaluation.kafka.lag")
    }
    in_flight = found.points("rag.evaluation.kafka.in_flight")
    assert lag == {0: 5, 1: 0}
    assert sorted(point.value for point in in_flight) == [0, 2]
    found.source.close(0)
    assert not found.points("rag.evaluation.kafka.lag")


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"brokers": " "}, "--kafka needs the addresses of brokers"),
        ({"topic": ""}, "need a name"),
        ({"dead_letter": TOPIC}, "--dead-letter names the topic that is read"),
        ({"output_topic": TOPIC}, "--output-topic names the topic that is read"),
        (
            {"output_topic": "scored", "output_logs_topic": TOPIC},
            "--output-logs-topic names the topic that is read",
        ),
        ({"topic": "^otlp"}, "is a pattern"),
        ({"max_messages": 0}, "at least one message"),
        ({"client": {"group.id": "x"}}, "group.id is set by rag-eval-otel"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options: dict[str, Any], told: str) -> None:
    """The message names the option, and the way out."""
    with pytest.raises(ConfigError, match=told):
        KafkaOptions(**{"brokers": "broker:9092", **options})


def test_the_client_gets_the_users_options() -> None:
    """The client's options reach consumer and producer, and their passwords no message."""
    secret = {"sasl.password": "hush", "acks": "1"}
    options = KafkaOptions(brokers="a:1,b:2", client=secret)
    consumer, producer = options.of_consumer(), options.of_producer()
    assert consumer["sasl.password"] == producer["sasl.password"] == "hush"
    assert consumer["bootstrap.servers"] == "a:1,b:2"
    assert consumer["partition.assignment.strategy"] == "cooperative-sticky"
    assert producer["acks"] == "1"
    assert "hush" not in repr(options)
    other = KafkaOptions(brokers="a:1", client={"group.protocol": "consumer"})
    assert "partition.assignment.strategy" not in other.of_consumer()


def test_variables_name_options_of_the_client() -> None:
    """A dot in an option's name is an underscore in the variable; empty variables say nothing."""
    variables = {"RAG_EVAL_KAFKA_SASL_PASSWORD": "hush", "RAG_EVAL_KAFKA_ACKS": "", "KAFKA_X": "1"}
    assert kafka_options(variables) == {"sasl.password": "hush"}


def test_an_unknown_option_of_the_client_is_refused() -> None:
    """The client says which one."""
    options = KafkaOptions(brokers="a:1", client={"no.such.option": "1"})
    client = Client(options, package=Cluster())
    with pytest.raises(ConfigError, match="refuses its options"):
        client.producer()


# --- spans to a topic -----------------------------------------------------------------------------


@contextmanager
def output(cluster: Cluster, **options: Any) -> Iterator[tuple[KafkaOutput, Client]]:
    cluster.create("scored")
    cluster.create("events")
    given = {"output_topic": "scored", "output_logs_topic": "events", **options}
    client = Client(KafkaOptions(brokers="broker:9092", **given), package=cluster)
    made = KafkaOutput(client)
    try:
        yield made, client
    finally:
        made.close(PATIENCE)


def test_spans_of_a_trace_are_written_with_its_id_as_key() -> None:
    """The messages have the form of the collector's exporter."""
    cluster, left = Cluster(), list[int]()
    with output(cluster) as (made, _):
        for trace in (1, 2):
            request = request_with(trace, spans=2)
            for span in spans_in(request, Receipt(2, partial(left.append, trace))):
                made.put(span)
        assert made.flush(PATIENCE)
        assert made.size == 0
    assert sorted(left) == [1, 2]
    found = cluster.topics["scored"][0]
    assert {one.key_ for one in found} == {f"{1:032x}", f"{2:032x}"}
    texts = [ExportTraceServiceRequest.FromString(one.value_ or b"") for one in found]
    spans = [s for text in texts for s in text.resource_spans[0].scope_spans[0].spans]
    assert len(spans) == 4


def test_failed_writes_are_repeated() -> None:
    """A span has left when the brokers have acknowledged it."""
    cluster, left = Cluster(room=0, refused=[KafkaError("_MSG_TIMED_OUT")] * 2), list[int]()
    with output(cluster) as (made, client):
        (span,) = spans_in(request_with(1), Receipt(1, lambda: left.append(1)))
        made.put(span)
        assert made.flush(PATIENCE)
        assert client.errors["_MSG_TIMED_OUT"] == 2
    assert left == [1]
    assert len(cluster.topics["scored"][0]) == 1


def test_a_message_that_is_too_large_is_written_in_parts() -> None:
    """A span that is too large alone is dropped and counted; its message can be committed."""
    cluster, left = Cluster(refused=[KafkaError("MSG_SIZE_TOO_LARGE")] * 2), list[int]()
    with output(cluster) as (made, client):
        for span in spans_in(request_with(1, spans=2), Receipt(2, lambda: left.append(1))):
            made.put(span)
        assert made.flush(PATIENCE)
        assert client.errors["too_large_dropped"] == 1
    assert left == [1]
    assert len(cluster.topics["scored"][0]) == 1


def test_a_defect_does_not_end_the_thread_that_writes() -> None:
    """A message on which an unexpected exception is raised is written later."""
    cluster, left = Cluster(raised=[RuntimeError("a bug")]), list[int]()
    with output(cluster) as (made, client):
        (span,) = spans_in(request_with(1), Receipt(1, lambda: left.append(1)))
        made.put(span)
        assert made.flush(PATIENCE)
        assert client.errors["kafka_output"] == 1
    assert left == [1]


def test_revoked_spans_are_not_written() -> None:
    """The new owner of the partition writes them."""
    cluster = Cluster(room=0)
    receipt = Receipt(1, lambda: None)
    receipt.revoke()
    with output(cluster) as (made, _):
        (span,) = spans_in(request_with(1), receipt)
        made.put(span)
        assert made.flush(PATIENCE)
    assert cluster.topics["scored"][0] == []


def test_events_of_scores_are_written_to_a_topic_of_their_own() -> None:
    """Without such a topic they are dropped, and counted."""
    request = ExportLogsServiceRequest()
    request.resource_logs.add().scope_logs.add().log_records.add(event_name="x")
    cluster = Cluster()
    with output(cluster) as (made, _):
        made.put_logs(request)
        assert made.flush(PATIENCE)
    (message,) = cluster.topics["events"][0]
    assert message.value_ == request.SerializeToString()
    with output(Cluster(), output_logs_topic=None) as (made, client):
        made.put_logs(request)
        assert client.errors["logs_dropped"] == 1


def test_an_output_needs_a_topic() -> None:
    """The message names the option."""
    with pytest.raises(ConfigError, match="--output-topic"):
        KafkaOutput(Client(KafkaOptions(brokers="broker:9092"), package=Cluster()))


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
@pytest.mark.parametrize("topic", [TOPIC, DEAD])
def test_a_compacted_topic_is_refused(policy: str, topic: str) -> None:
    """It keeps one message of each trace, so reading ends with a message that names the topic."""
    found = Running()
    found.cluster.policies[topic] = policy
    found.source.start()
    found.until(lambda: "fatal" in found.client.troubles)
    found.source.close(0)
    assert not found.source.is_live
    assert f"the topic {topic} is compacted" in found.client.troubles["fatal"]


def test_a_topic_whose_policy_may_not_be_read_is_used(caplog: pytest.LogCaptureFixture) -> None:
    """The user of the worker may lack this permission, which the log says."""
    found = Running()
    found.cluster.may_describe = False
    found.source.start()
    found.until(lambda: "start" not in found.client.troubles)
    found.until(lambda: found.source.is_ready)
    found.source.close(0)
    assert "TOPIC_AUTHORIZATION_FAILED" in caplog.text
