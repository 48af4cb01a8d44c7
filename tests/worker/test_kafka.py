"""Offsets are committed in order once their spans have left, and a full worker reads no more."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from rag_eval_otel.config import Config
from rag_eval_otel.export.metrics import Meters
from wires import FakeSender, content, never, span, turn, until

pytest.importorskip("aiohttp")

from rag_eval_otel.worker.engine import Engine
from rag_eval_otel.worker.exporter import Exporter
from rag_eval_otel.worker.kafka import KafkaSource, Partition


class Place(NamedTuple):
    """A partition, as the client names it, perhaps with an offset."""

    topic: str
    partition: int
    offset: int = -1001
    error: object = None


def message(offset: int, body: bytes, *, partition: int = 0, error: Any = None) -> Any:
    values = {"offset": offset, "value": body, "partition": partition, "error": error}
    return SimpleNamespace(**{name: lambda found=found: found for name, found in values.items()})


def error_of(name: str, *, is_fatal: bool = False) -> Any:
    return SimpleNamespace(name=lambda: name, str=lambda: "an error", fatal=lambda: is_fatal)


class FakeKafkaError(Exception):
    """Stands for `KafkaException`."""


@dataclass
class FakeConsumer:
    """Gives out what a test puts into ``waiting``, and notes what it is asked for.

    Assignments and revocations in ``changes`` are made within `consume`, as the client does.
    """

    options: Mapping[str, Any]
    waiting: deque[Any] = field(default_factory=deque)
    changes: deque[Callable[[], None]] = field(default_factory=deque)
    committed: dict[int, int] = field(default_factory=dict)
    refusals: int = 0
    paused: set[int] = field(default_factory=set)
    is_closed: bool = False

    def subscribe(self, topics: Sequence[str], **callbacks: Any) -> None:
        self.topic, self.callbacks = topics[0], callbacks

    def change(self, kind: str, *numbers: int) -> None:
        places = [Place(self.topic, number) for number in numbers]
        self.changes.append(lambda: self.callbacks[f"on_{kind}"](self, places))

    def consume(self, count: int, timeout: float) -> list[Any]:
        while self.changes:
            self.changes.popleft()()
        ready = [each for each in self.waiting if each.partition() not in self.paused][:count]
        for each in ready:
            self.waiting.remove(each)
        if not ready:
            threading.Event().wait(0.01)
        return ready

    def incremental_assign(self, places: Sequence[Place]) -> None: ...

    def pause(self, places: Sequence[Place]) -> None:
        self.paused |= {place.partition for place in places}

    def resume(self, places: Sequence[Place]) -> None:
        self.paused -= {place.partition for place in places}

    def commit(self, *, offsets: Sequence[Place], asynchronous: bool) -> None:
        error = error_of("REBALANCE_IN_PROGRESS") if self.refusals else None
        if error is None:
            self.committed.update((place.partition, place.offset) for place in offsets)
        else:
            self.refusals -= 1
        if asynchronous:
            self.options["on_commit"](error, offsets)
        elif error is not None:
            raise FakeKafkaError(error)

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=range(4))})

    def get_watermark_offsets(self, place: Place, timeout: float) -> tuple[int, int]:
        return 0, 100

    def close(self) -> None:
        self.is_closed = True
        self.callbacks["on_revoke"](self, [Place(self.topic, n) for n in range(4)])


@dataclass
class Reading:
    """A source with its fake client."""

    source: KafkaSource
    sender: FakeSender
    consumer: FakeConsumer

    def may_send(self) -> None:
        assert self.sender.may_send
        self.sender.may_send.set()

    @property
    def turns(self) -> Mapping[str, int]:
        return self.source.engine.instruments.tally.stats().turns

    def put(self, *bodies: bytes, partition: int = 0, first: int = 0) -> None:
        for offset, body in enumerate(bodies, start=first):
            self.consumer.waiting.append(message(offset, body, partition=partition))


@asynccontextmanager
async def reading_with(**options: Any) -> AsyncIterator[Reading]:
    """Read the partitions 0 and 1 during the block, and then end the worker."""
    config = Config(**{"judge": "lexical", "drift": False, **options})
    sender = FakeSender(may_send=asyncio.Event())
    package = SimpleNamespace(
        Consumer=FakeConsumer, TopicPartition=Place, KafkaException=FakeKafkaError
    )
    source = KafkaSource(
        Engine(config, Exporter(sender, Meters()), max_bytes=2**26),
        None,
        brokers="b:1",
        topic="spans",
        group="g",
        options={"partition.assignment.strategy": "range", "group.id": "other"},
        package=package,
    )
    reading = Reading(source, sender, source._consumer)  # noqa: SLF001
    reading.consumer.subscribe(["spans"])
    source.start()
    await until(lambda: "on_assign" in reading.consumer.callbacks)
    reading.consumer.change("assign", 0, 1)
    try:
        yield reading
    finally:
        await source.stop()
        await source.engine.close(0.5)
        await source.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rag_eval_otel.worker.kafka._BATCH", 10)
    monkeypatch.setattr("rag_eval_otel.worker.kafka._COMMIT", 0.02)
    monkeypatch.setattr("rag_eval_otel.worker.kafka._HANDOVER", 0.1)


async def test_the_lowest_offset_that_is_not_finished_is_committed() -> None:
    """What cannot be read is finished at once, but not committed before what came earlier."""
    async with reading_with() as reading:
        reading.put(content(span(1, 1)), b"\x0a\x05\x12", content(*turn(2)))
        reading.put(content(span(3, 1)), partition=1, first=7)
        await until(lambda: not reading.consumer.waiting)
        await asyncio.sleep(0.1)  # several times the interval of commits
        assert set(reading.consumer.committed.values()) <= {0, 7}
        assert reading.source.is_ready
        reading.may_send()
        await until(lambda: reading.consumer.committed == {0: 3, 1: 8})
    assert len(reading.sender.sent) == 3
    assert reading.consumer.is_closed


async def test_a_commit_that_was_refused_is_made_again() -> None:
    """The broker refuses commits while the group changes."""
    async with reading_with() as reading:
        reading.consumer.refusals = 3
        reading.may_send()
        reading.put(content(span(1, 1)))
        await until(lambda: reading.consumer.committed == {0: 1})
    assert reading.consumer.refusals == 0


async def test_what_is_under_way_at_a_revocation_is_left_to_the_next_owner() -> None:
    """A partition that was paused is read again if it comes back."""
    async with reading_with(metrics=[never], concurrency=1) as reading:
        engine = reading.source.engine
        reading.put(*(content(*turn(number)) for number in range(1, 10)))
        await until(lambda: reading.consumer.paused == {0, 1})
        reading.consumer.change("revoke", 0)
        await until(lambda: engine.waiting == 0)
        assert reading.consumer.committed.get(0, 0) == 0
        reading.consumer.change("assign", 0)
        await until(lambda: not reading.consumer.paused)
        reading.put(content(span(1, 1)), first=20)
        reading.may_send()
        await until(lambda: reading.consumer.committed == {0: 21})
        reading.consumer.change("lost", 0, 1)
        await until(lambda: not reading.source._partitions)  # noqa: SLF001
    assert len(reading.sender.sent) == 1


async def test_at_the_end_no_turn_is_sent_without_scores() -> None:
    """What is not scored in half of the time is left to another worker."""
    async with reading_with(metrics=[never], shutdown_seconds=0.2) as reading:
        reading.may_send()
        reading.put(content(span(1, 1)), content(*turn(2)), content(span(3, 1)))
        await until(lambda: reading.consumer.committed == {0: 1})
    assert reading.consumer.committed == {0: 1}
    assert len(reading.sender.sent) == 2


async def test_what_is_read_while_the_worker_stops_is_left_to_another() -> None:
    """Its scores would not be waited for, and without the exporter it would be lost."""
    async with reading_with() as reading:
        reading.may_send()
        reading.put(content(span(1, 1)))
        await until(lambda: reading.consumer.committed == {0: 1})
        await reading.source.stop()
        reading.source._begin(message(1, content(span(2, 1))))  # noqa: SLF001
        await asyncio.sleep(0)
    assert reading.consumer.committed == {0: 1}
    assert len(reading.sender.sent) == 1


def test_the_order_of_reading_does_not_matter() -> None:
    """After a change of the group, a message may be read again after later ones."""
    assert Partition(0, last=4, tasks={5: None, 3: None, 4: None}).position == 3


async def test_options_that_the_source_relies_on_stay() -> None:
    """A user cannot set the protocol of assignments, or the group by another name."""
    async with reading_with() as reading:
        options = reading.consumer.options
    assert options["partition.assignment.strategy"] == "cooperative-sticky"
    assert options["group.id"] == "g"


async def test_a_full_worker_reads_no_more_until_half_is_done() -> None:
    """So every turn is scored, however many wait."""
    async with reading_with(concurrency=2, metrics=["faithfulness"]) as reading:
        reading.put(*(content(*turn(number)) for number in range(1, 41)))
        await until(lambda: reading.consumer.paused == {0, 1})
        assert reading.consumer.waiting
        reading.may_send()
        await until(lambda: reading.consumer.committed == {0: 40})
        assert not reading.consumer.paused
    assert reading.turns == {"scored": 40}


@pytest.mark.parametrize("is_fatal", [False, True])
async def test_an_error_of_the_client_is_logged_and_ends_only_if_fatal(
    caplog: pytest.LogCaptureFixture, *, is_fatal: bool
) -> None:
    """The client repeats by itself; the probe says that it is not ready."""
    async with reading_with() as reading:
        error = error_of("UNKNOWN_TOPIC_OR_PART", is_fatal=is_fatal)
        reading.consumer.waiting.append(message(-1001, b"", error=error))
        await until(lambda: not reading.source.is_ready)
        await until(lambda: "create the topic" in caplog.text)
        assert reading.source.has_failed is is_fatal
