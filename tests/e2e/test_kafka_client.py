"""The consumer loop of a worker with the real client, librdkafka, and a real broker."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from e2e.kafka_broker import PASSWORD, USER, Broker, fresh, serving
from e2e.programs import PATIENCE, eventually
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.worker.kafka import KafkaSource
from rag_eval_otel.worker.kafka_client import Client, KafkaOutput
from rag_eval_otel.worker.kafka_options import KafkaOptions
from rag_eval_otel.worker.wire import Receipt, spans_in

PARTITIONS = 6


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with serving(tmp_path_factory.mktemp("kafka")) as found:
        yield found


@pytest.fixture
def broker(started: Broker) -> Broker:
    started.ensure()
    return started


def message_of(trace: int) -> bytes:
    """Return a message with a span."""
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    scope.spans.add(trace_id=trace.to_bytes(16, "big"), span_id=trace.to_bytes(8, "big"))
    return request.SerializeToString()


def produce(broker: Broker, topic: str, traces: Iterable[int]) -> None:
    """Write a message for each trace, as the collector does."""
    producer = Producer(broker.client())
    for trace in traces:
        producer.produce(topic, message_of(trace), f"{trace:032x}")
    assert producer.flush(PATIENCE) == 0


class Echo:
    """An engine that exports spans at once, or when it is told to."""

    def __init__(self) -> None:
        self.is_held = False
        self.held: list[Receipt] = []
        self.exported: Counter[int] = Counter()
        self.lock = threading.Lock()

    def accept(self, request: ExportTraceServiceRequest, receipt: Receipt) -> None:
        with self.lock:
            self.held += [receipt]
            for resource in request.resource_spans:
                for span in resource.scope_spans[0].spans:
                    self.exported[int.from_bytes(span.trace_id, "big")] += 1
        if not self.is_held:
            self.release()

    def release(self) -> None:
        """Let all spans leave."""
        with self.lock:
            held, self.held = self.held, []
        for receipt in held:
            receipt.left()

    def drop(self, receipts: Iterable[Receipt]) -> None:
        for receipt in receipts:
            receipt.revoke()

    def is_collecting(self, trace_id: int) -> bool:
        return False

    def share(self, workers: float) -> None:
        """Do nothing: there is no judge."""


@contextmanager
def reading(broker: Broker, engine: Echo, topic: str, **options: Any) -> Iterator[KafkaSource]:
    options = {"brokers": broker.address, "topic": topic, "group": topic, **options}
    client = Client(KafkaOptions(**options))
    source = KafkaSource(engine, client)
    source.start()
    try:
        yield source
    finally:
        source.close(PATIENCE)


def are_committed(broker: Broker, topic: str) -> None:
    """Wait until all messages of the topic are committed; AssertionError if they are not."""
    eventually(lambda: broker.is_consumed(topic, topic), f"{topic} is read")


def test_partitions_are_shared_and_move_without_loss(broker: Broker) -> None:
    """Workers join and leave: each message is exported, and at the end all are committed.

    What is written once a worker has partitions reaches it. What was written before may all be read
    by the others.
    """
    topic = broker.create(fresh("shared"), PARTITIONS)
    first, *others = engines = [Echo(), Echo(), Echo()]
    produce(broker, topic, range(1, 1001))
    with reading(broker, first, topic):
        with ExitStack() as joined:
            for number, engine in enumerate(others, 1):
                joined.enter_context(reading(broker, engine, topic))
                broker.wait_for_members(topic, number + 1)
                produce(broker, topic, range(1000 * number + 1, 1000 * number + 1001))
                eventually(lambda one=engine: one.exported, f"worker {number} exports")
        produce(broker, topic, range(3001, 4001))
        are_committed(broker, topic)
    exported = sum((engine.exported for engine in engines), Counter[int]())
    assert exported.keys() == set(range(1, 4001))


def test_what_is_in_flight_is_bounded(broker: Broker) -> None:
    """Partitions that are paused at the bound are read on later, without a gap."""
    topic = broker.create(fresh("bounded"), 2)
    produce(broker, topic, range(1, 1001))
    engine = Echo()
    engine.is_held = True
    with reading(broker, engine, topic, max_messages=50) as source:
        eventually(lambda: len(engine.held) == 100, "both partitions are at their bound")
        eventually(lambda: all(o.value == 50 for o in source.in_flight()), "the gauge has it")
        assert sum(engine.exported.values()) == 100
        engine.is_held = False
        engine.release()
        are_committed(broker, topic)
    assert engine.exported == Counter(range(1, 1001))


def test_a_killed_worker_exports_at_most_the_bound_again(broker: Broker) -> None:
    """What a worker had in flight without committing it is read by the next one."""
    topic = broker.create(fresh("again"), 1)
    produce(broker, topic, range(1, 201))
    first, second = Echo(), Echo()
    first.is_held = True
    with reading(broker, first, topic, max_messages=16) as source:
        eventually(lambda: len(first.held) == 16, "the partition is at its bound")
        source.close(0)
        assert all(receipt.is_revoked for receipt in first.held)
    with reading(broker, second, topic):
        are_committed(broker, topic)
    assert second.exported == Counter(range(1, 201))


def test_poison_messages_go_to_the_dead_letters(broker: Broker) -> None:
    """Text, a cut message, an empty one and one without ids: each with its reason and place."""
    topic, dead = broker.create(fresh("poisoned")), broker.create(fresh("dead"))
    producer = Producer(broker.client())
    whole = message_of(1)
    for value in (b"{}", whole, whole[:-3], None, message_of(0), message_of(2)):
        producer.produce(topic, value, "key", headers=[("mine", "kept")])
    producer.flush(PATIENCE)
    engine = Echo()
    with reading(broker, engine, topic, dead_letter=dead):
        are_committed(broker, topic)
    assert engine.exported == {1: 1, 2: 1}
    letters = broker.messages(dead)
    told = [{name: value.decode() for name, value in one.headers()} for one in letters]
    assert [(one["rag_eval.reason"], one["rag_eval.offset"]) for one in told] == [
        ("malformed", "0"),
        ("malformed", "2"),
        ("empty", "3"),
        ("ids", "4"),
    ]
    assert [one.value() for one in letters] == [b"{}", whole[:-3], None, message_of(0)]
    assert {(one["mine"], one["rag_eval.topic"]) for one in told} == {("kept", topic)}


def test_a_compacted_topic_is_refused(broker: Broker) -> None:
    """A real broker tells the policy of the topic; nothing more is read."""
    topic = broker.create(fresh("compacted"), config={"cleanup.policy": "compact"})
    with reading(broker, Echo(), topic) as source:
        eventually(lambda: not source.is_live, "reading has ended")


def test_a_topic_that_is_made_later_is_read(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then the worker is not ready, and the log says what is missing."""
    engine, topic = Echo(), fresh("later")
    quick = {"topic.metadata.refresh.interval.ms": "1000"}
    with reading(broker, engine, topic, client=quick) as source:
        eventually(lambda: "UNKNOWN_TOPIC_OR_PART" in caplog.text, "the log names the error")
        assert not source.is_ready
        broker.create(topic)
        produce(broker, topic, [1])
        are_committed(broker, topic)
        eventually(lambda: source.is_ready, "the worker is ready")
    assert "Create the topic" in caplog.text


@pytest.mark.parametrize("password", ["wrong", PASSWORD])
def test_credentials(broker: Broker, password: str, caplog: pytest.LogCaptureFixture) -> None:
    """With a wrong password the worker is not ready and says so; no secret is in the log."""
    topic = broker.create(fresh("sasl"))
    produce(broker, topic, [1])
    sasl = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": password,
    }
    engine, address = Echo(), f"127.0.0.1:{broker.sasl}"
    with reading(broker, engine, topic, brokers=address, client=sasl) as source:
        if password == PASSWORD:
            are_committed(broker, topic)
            eventually(lambda: source.is_ready, "the worker is ready")
        else:
            eventually(lambda: "_AUTHENTICATION" in caplog.text, "the log names the error")
            assert not source.is_ready
            assert not engine.exported
    assert password not in caplog.text


def test_an_unknown_option_is_refused() -> None:
    """The message names it."""
    with pytest.raises(ConfigError, match=r"no\.such\.option"):
        Client(KafkaOptions(brokers="x:1", client={"no.such.option": "1"})).producer()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_broker_that_comes_back(
    broker: Broker, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker is not ready in the meantime; what it had read is committed afterwards."""
    topic = broker.create(fresh(f"restarted-{number}"), 2)
    produce(broker, topic, range(1, 101))
    engine = Echo()
    engine.is_held = True
    with reading(broker, engine, topic) as source:
        eventually(lambda: len(engine.held) == 100, "all is read")
        eventually(lambda: source.is_ready, "the worker is ready")
        broker.end(number)
        eventually(lambda: not source.is_ready, "the worker is not ready")
        engine.is_held = False
        engine.release()
        broker.start()
        produce(broker, topic, range(101, 201))
        are_committed(broker, topic)
        eventually(lambda: source.is_ready, "the worker is ready")
    assert engine.exported.keys() == set(range(1, 201))
    assert "messages stay in the topic" in caplog.text


def test_an_output_writes_what_a_source_reads(broker: Broker) -> None:
    """Spans that a worker writes to a topic can be read by another one."""
    topic = broker.create(fresh("written"), PARTITIONS)
    options = KafkaOptions(brokers=broker.address, topic="unused", output_topic=topic)
    output = KafkaOutput(Client(options))
    left = threading.Semaphore(0)
    for trace in range(1, 101):
        request = ExportTraceServiceRequest.FromString(message_of(trace))
        for span in spans_in(request, Receipt(1, left.release)):
            output.put(span)
    assert output.flush(PATIENCE)
    output.close(1)
    assert all(left.acquire(blocking=False) for _ in range(100))
    engine = Echo()
    with reading(broker, engine, topic):
        are_committed(broker, topic)
    assert engine.exported == Counter(range(1, 101))
    keys = {one.key().decode() for one in broker.messages(topic)}
    assert keys == {f"{trace:032x}" for trace in range(1, 101)}
