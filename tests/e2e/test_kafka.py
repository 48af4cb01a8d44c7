"""A real broker, workers and a backend, while each of them fails and comes back.

The length of outages in seconds is ``KAFKA_TEST_OUTAGE``, by default 10; the number of changes of
the group is ``KAFKA_TEST_REBALANCES``, by default 6; of turns ``KAFKA_TEST_TURNS``, by default 500.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")
from confluent_kafka import Producer

from e2e.kafka_broker import PASSWORD, USER, Broker, fresh
from e2e.kafka_broker import serving as broker_in
from e2e.programs import eventually
from e2e.serve import serving
from otlp_receiver import OtlpReceiver
from wires import content, span, turn

OUTAGE = float(os.environ.get("KAFKA_TEST_OUTAGE", "10"))
REBALANCES = int(os.environ.get("KAFKA_TEST_REBALANCES", "6"))
TURNS = int(os.environ.get("KAFKA_TEST_TURNS", "500"))
LONG = 150.0
PAUSE = threading.Event()  # never set
STATUS = "rag.evaluation.status"
QUICK = ("--kafka-option=session.timeout.ms=6000", "--kafka-option=heartbeat.interval.ms=500")

pytestmark = pytest.mark.timeout(900 + 6 * OUTAGE + 20 * REBALANCES)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker_in(tmp_path_factory.mktemp("broker")) as found:
        yield found


def produce(broker: Broker, topic: str, messages: Iterable[bytes], *, pause: float = 0.0) -> None:
    producer = Producer(broker.client())
    for number, message in enumerate(messages):
        producer.produce(topic, message, key=str(number))
        producer.poll(pause)
    assert producer.flush(60) == 0


def turns(count: int, first: int = 1) -> Iterator[bytes]:
    return (content(*turn(number)) for number in range(first, first + count))


def worker(broker: Broker, backend: OtlpReceiver, topic: str, *more: str, **variables: str):  # noqa: ANN201
    options = (f"--kafka={broker.address}", f"--topic={topic}", f"--group={topic}", *QUICK, *more)
    return serving(backend.grpc_endpoint, *options, **variables)


def statuses(backend: OtlpReceiver) -> Counter[str]:
    """Count the turns by the status in their last copy."""
    last = {
        s.trace_id: s.attributes.get(STATUS, "none") for s in backend.spans() if s.name == "chain"
    }
    return Counter(last.values())


def wait_for_all(broker: Broker, topic: str) -> None:
    eventually(lambda: broker.is_consumed(topic, topic), "all is committed", LONG)


def test_turns_that_wait_in_the_topic_are_all_scored(broker: Broker, backend: OtlpReceiver) -> None:
    """Each span leaves once; a message of no use is skipped, and the others go on."""
    topic = broker.create(fresh("backlog"), 6)
    poison = [b"\x0a\x05\x12", b"", content(span(9999, 1, parent=2))]
    produce(broker, topic, [*turns(TURNS), *poison])
    with worker(broker, backend, topic) as running:
        wait_for_all(broker, topic)
        assert running.end() == 0
        assert running.counts == {"sent": 3 * TURNS + 1, "scored": TURNS}
        assert "is skipped" in "".join(running.log)
    assert statuses(backend) == {"scored": TURNS}
    copies = Counter((s.trace_id, s.span_id) for s in backend.spans())
    assert set(copies.values()) == {1}
    assert len(copies) == 3 * TURNS + 1


def test_a_killed_worker_loses_nothing(broker: Broker, backend: OtlpReceiver) -> None:
    """Another worker does again what was under way."""
    topic = broker.create(fresh("killed"), 6)
    with ExitStack() as stack:
        running = [stack.enter_context(worker(broker, backend, topic)) for _ in "ab"]
        broker.wait_for_members(topic, 2)
        chance = random.Random(1)
        for part in range(3):
            produce(broker, topic, turns(TURNS // 3, 1 + part * TURNS), pause=1 / 40)
            chance.choice(running[-2:]).end(signal.SIGKILL)
            running = [each for each in running if each.process.poll() is None]
            running.append(stack.enter_context(worker(broker, backend, topic)))
        wait_for_all(broker, topic)
    found = statuses(backend)
    assert found.total() == 3 * (TURNS // 3)
    assert found["scored"] >= 0.98 * found.total()


@pytest.mark.parametrize("part", ["broker", "backend"])
def test_an_outage_loses_nothing(broker: Broker, backend: OtlpReceiver, part: str) -> None:
    """The broker is stopped and started again, or the backend refuses for a while."""
    topic = broker.create(fresh("outage"), 6)
    with worker(broker, backend, topic) as running:
        if part == "backend":
            backend.fail_next(10**6)
        produce(broker, topic, turns(TURNS // 2))
        if part == "broker":
            broker.end()
        PAUSE.wait(OUTAGE)  # the outage itself
        if part == "broker":
            broker.start()
        backend.recover()
        produce(broker, topic, turns(TURNS // 2, 1 + TURNS // 2))
        wait_for_all(broker, topic)
        assert running.end() == 0
    assert statuses(backend) == {"scored": 2 * (TURNS // 2)}


def test_changes_of_the_group_lose_nothing(broker: Broker, backend: OtlpReceiver) -> None:
    """A second worker joins and leaves again and again."""
    topic = broker.create(fresh("changes"), 6)
    with ExitStack() as stack:
        stack.enter_context(worker(broker, backend, topic))
        produce(broker, topic, turns(TURNS))
        for _ in range(REBALANCES):
            with worker(broker, backend, topic) as other:
                PAUSE.wait(5)
                assert other.end() == 0
        wait_for_all(broker, topic)
    assert statuses(backend) == {"scored": TURNS}
    copies = Counter((s.trace_id, s.span_id) for s in backend.spans())
    assert sum(copies.values()) - len(copies) <= 0.05 * len(copies)  # what was under way


def test_a_compacted_topic_is_refused(broker: Broker, backend: OtlpReceiver) -> None:
    """It would keep one message of each key."""
    topic = broker.create(fresh("compacted"), 1, {"cleanup.policy": "compact"})
    with pytest.raises(AssertionError, match="is compacted"), worker(broker, backend, topic):
        pass


@pytest.mark.parametrize("password", [PASSWORD, "wrong"])
def test_credentials_are_options_of_the_client(
    broker: Broker, backend: OtlpReceiver, password: str, tmp_path: Path
) -> None:
    """Wrong ones are logged, without the password."""
    topic = broker.create(fresh("secret"))
    produce(broker, topic, turns(1))
    (tmp_path / "password").write_text(f"{password}\n")
    sasl = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": f"@{tmp_path / 'password'}",
    }
    options = [f"--kafka-option={name}={value}" for name, value in sasl.items()]
    address = f"--kafka=127.0.0.1:{broker.sasl}"
    with serving(
        backend.grpc_endpoint, address, f"--topic={topic}", f"--group={topic}", *options
    ) as running:
        if password == PASSWORD:
            wait_for_all(broker, topic)
            assert running.end() == 0
        else:
            eventually(lambda: "uthenticat" in "".join(running.log), "the log says it")
        assert PASSWORD not in "".join(running.log)
