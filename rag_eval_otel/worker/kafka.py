"""`KafkaSource`: read whole traces from a topic, and commit the messages that were sent on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError  # another one before Python 3.11
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.metrics import MeterProvider, Observation

from rag_eval_otel import semconv
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.export.metrics import Meters, add_gauges
from rag_eval_otel.log import log
from rag_eval_otel.runtime.guard import Edge, LimitedLog, require
from rag_eval_otel.worker.wire import UnreadableError, count_spans, parsed

if TYPE_CHECKING:
    from rag_eval_otel.worker.engine import Engine

_POLL: Final = 0.1  # seconds that the client waits for messages
_BATCH: Final = 100  # messages
_HANDOVER: Final = 5.0  # seconds that a change of the group may wait for scores
_COMMIT: Final = 1.0  # seconds between two commits
_TRACES: Final = 4  # times the concurrency: RAG traces that are read ahead
_LAG: Final = 10.0  # seconds between two measurements of the lag
_MISSING: Final = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"}


@dataclass(eq=False, slots=True)
class Partition:
    """The messages of a partition that were read and are not finished."""

    number: int
    last: int | None = None  # the offset of the last message that was read
    committed: int | None = None
    # By offset; None until the event loop has taken the message.
    tasks: dict[int, asyncio.Task[None] | None] = field(default_factory=dict)
    is_revoked: bool = False

    @property
    def position(self) -> int | None:
        """The lowest offset that is not finished, which is the one to commit."""
        if self.last is None:
            return None
        return min(self.tasks, default=self.last + 1)


class KafkaSource:
    """Reads messages of whole traces, each a serialized request, as a member of a consumer group.

    A message is finished when its spans have been sent on, or if it cannot be read, or fails by a
    defect of this library, both of which are logged and counted. The lowest offset that is not
    finished is committed every second, so a crash loses nothing, and repeats what was under way.
    Reading pauses while four times ``concurrency`` traces wait, or the engine is full. ``options``
    are those of librdkafka; ``package`` is for tests.
    """

    def __init__(
        self,
        engine: Engine,
        meters: MeterProvider | None,
        *,
        brokers: str,
        topic: str,
        group: str,
        options: Mapping[str, str],
        package: Any = None,
    ) -> None:
        self.engine, self.topic = engine, topic
        self._package = package or require("confluent_kafka", "kafka")
        self._brokers = brokers
        self._options = {"log_level": 2, **options, "bootstrap.servers": brokers}  # see `_failed`
        self._record = Meters(meters).record
        self._log = LimitedLog()
        self._edge = Edge("kafka", engine.instruments.internal_error, engine.config.raise_errors)
        self._partitions: dict[int, Partition] = {}
        self._lags: dict[int, int] = {}
        self._lock = threading.Lock()  # the loop finishes messages, the thread reads and commits
        self._is_paused = self._is_stopping = False
        self._trouble = "no partition was assigned yet"
        self.has_failed = False  # the client cannot go on, so the process must be restarted
        self._ending = threading.Event()
        self._loop = asyncio.get_running_loop()
        self.server: Any = None  # of the probes
        defaults = {
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": 16_384,  # that the client reads ahead
        }
        fixed = {  # this class relies on them
            "group.id": group,
            "partition.assignment.strategy": "cooperative-sticky",
            "enable.auto.commit": False,
            "error_cb": self._failed,
            "on_commit": self._committed,
        }
        try:
            self._consumer = self._package.Consumer({**defaults, **self._options, **fixed})
        except (self._package.KafkaException, ValueError) as error:
            raise ConfigError(f"the Kafka client refuses its options: {error}") from None
        self._thread = threading.Thread(target=self._run, name="rag-eval-otel-kafka", daemon=True)
        add_gauges(meters, self, {semconv.KAFKA_LAG: KafkaSource._observations})

    def check_topic(self, timeout: float = 10.0) -> None:
        """Raise `ConfigError` if the brokers say within ``timeout`` that the topic is compacted."""
        admin = require("confluent_kafka.admin", "kafka")
        resource = admin.ConfigResource("topic", self.topic)
        client = admin.AdminClient(self._options)
        try:
            answer = client.describe_configs([resource], request_timeout=timeout)[resource]
            policy = answer.result(timeout)["cleanup.policy"].value
        except (self._package.KafkaException, KeyError, TimeoutError, FutureTimeoutError):
            return  # the brokers are away, or this user may not know
        if "compact" in policy:
            raise ConfigError(
                f"the topic {self.topic} is compacted, so spans are lost in it; set its"
                " cleanup.policy to delete, or name another topic"
            )

    def start(self) -> None:
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        return not self._trouble and not self._is_stopping and not self.has_failed

    async def stop(self) -> None:
        """Read no more messages; wait for the scores of those read, and give up the rest.

        Another worker reads the rest again, so no turn is sent without scores because of the end.
        """
        self._is_stopping = True
        parts = self._partitions.copy().values()
        tasks = [task for part in parts for task in part.tasks.copy().values() if task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=self.engine.config.shutdown_seconds / 2)
        for task in tasks:
            task.cancel()

    async def close(self) -> None:
        """Commit what is finished, and leave the group; other workers read the rest again."""
        self._ending.set()
        await self._loop.run_in_executor(None, self._thread.join, 10.0)
        if self.server is not None:
            await self.server.cleanup()

    # --- the thread that talks to the client ------------------------------------------------------

    def _run(self) -> None:
        commit_at = lag_at = 0.0
        with self._edge:
            self._consumer.subscribe(
                [self.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
        while not (self._ending.is_set() or self.has_failed):
            with self._edge:
                self._pause_or_resume()
                for message in self._consumer.consume(_BATCH, _POLL):
                    self._begin(message)
                now = self._loop.time()
                if now >= commit_at:
                    commit_at = now + _COMMIT
                    self._commit(self._partitions.values())
                if now >= lag_at:
                    lag_at = now + _LAG
                    self._measure_lags()
        with self._edge:
            self._consumer.close()  # calls `_revoked`, which commits

    def _pause_or_resume(self) -> None:
        engine = self.engine
        limit = _TRACES * engine.config.concurrency
        parts = self._partitions.values()
        waiting = engine.waiting + sum(
            task is None for p in parts for task in p.tasks.copy().values()
        )
        is_full = waiting >= limit or engine.is_full or self._is_stopping
        is_free = waiting <= limit // 2 and engine.size <= engine.max_bytes // 2
        if is_full if not self._is_paused else (is_free and not self._is_stopping):
            self._is_paused = not self._is_paused
            act = self._consumer.pause if self._is_paused else self._consumer.resume
            act([self._place(number) for number in self._partitions])

    def _begin(self, message: Any) -> None:
        if message.error() is not None:
            self._failed(message.error())
            return
        partition = self._partitions.get(message.partition())
        if partition is None:
            return
        self._trouble = ""
        offset, content = message.offset(), message.value() or b""
        with self._lock:
            partition.last, partition.tasks[offset] = offset, None
        self._loop.call_soon_threadsafe(self._take, partition, offset, content)

    def _commit(self, partitions: Iterable[Partition], *, waits: bool = False) -> None:
        with self._lock:
            due = {p: p.position for p in partitions if p.position not in {None, p.committed}}
        places = [self._place(p.number, position) for p, position in due.items()]
        if not places:
            return
        for partition, position in due.items():
            partition.committed = position  # until `_committed` says otherwise
        try:
            self._consumer.commit(offsets=places, asynchronous=not waits)
        except self._package.KafkaException as error:
            self._failed(error.args[0])
            self._committed(error, places)

    def _committed(self, error: Any, places: Iterable[Any] | None) -> None:
        """Mark offsets that the broker did not take for the next commit, as after a rebalance."""
        for place in places or ():
            partition = self._partitions.get(place.partition)
            if partition is not None and (error or place.error) is not None:
                partition.committed = None

    def _measure_lags(self) -> None:
        for partition in tuple(self._partitions.values()):
            try:
                place = self._place(partition.number)
                _, end = self._consumer.get_watermark_offsets(place, timeout=1.0)
            except self._package.KafkaException as error:
                self._failed(error.args[0])
                return
            self._trouble = ""
            with self._lock:
                position = partition.position
            if position is not None:
                self._lags[partition.number] = max(0, end - position)

    def _observations(self) -> list[Observation]:
        topic: dict[str, Any] = {"messaging.destination.name": self.topic}
        name = "messaging.destination.partition.id"
        return [Observation(lag, {**topic, name: str(n)}) for n, lag in dict(self._lags).items()]

    def _place(self, number: int, *offset: Any) -> Any:
        return self._package.TopicPartition(self.topic, number, *offset)

    def _failed(self, error: Any) -> None:
        """Log an error of the client, which tries again by itself, unless the error is fatal."""
        name = error.name()
        self.has_failed |= error.fatal()
        self._trouble = name
        advice = "create the topic" if name in _MISSING else "the client tries again"
        text = "Kafka at %s: %s [%s]; %s"
        self._log.write(name, text, self._brokers, error.str(), name, advice)

    # --- changes of the group ---------------------------------------------------------------------

    def _assigned(self, consumer: Any, places: Sequence[Any]) -> None:
        numbers = [place.partition for place in places]
        self._partitions.update((number, Partition(number)) for number in numbers)
        self._trouble = ""
        consumer.incremental_assign(list(places))
        if self._is_paused:
            consumer.pause([self._place(number) for number in numbers])
        log.info("reads the partitions %s of %s", sorted(self._partitions), self.topic)

    def _revoked(self, _: Any, places: Sequence[Any]) -> None:
        """Wait up to 5 seconds for traces under way, which nobody then need repeat, and commit."""
        numbers = [place.partition for place in places]
        mine = [p for number in numbers if (p := self._partitions.get(number))]
        until = self._loop.time() + _HANDOVER
        while any(partition.tasks for partition in mine) and self._loop.time() < until:
            time.sleep(_POLL / 2)
        self._commit(self._taken_away(places), waits=True)

    def _lost(self, _: Any, places: Iterable[Any]) -> None:
        self._taken_away(places)

    def _taken_away(self, places: Iterable[Any]) -> list[Partition]:
        """Forget partitions and cancel their unfinished traces, which the new owner reads again."""
        numbers = [place.partition for place in places]
        if self._is_paused:  # else the client keeps them paused if they are assigned again
            self._consumer.resume([self._place(number) for number in numbers])
        gone = [p for number in numbers if (p := self._partitions.pop(number, None))]
        for partition in gone:
            partition.is_revoked = True
            self._lags.pop(partition.number, None)
            with self._lock:
                tasks = [task for task in partition.tasks.values() if task is not None]
            for task in tasks:
                self._loop.call_soon_threadsafe(task.cancel)
        return gone

    # --- the event loop ---------------------------------------------------------------------------

    def _take(self, partition: Partition, offset: int, content: bytes) -> None:
        if partition.is_revoked or self._is_stopping:  # then it is read again
            return
        try:
            spans = count_spans(content)
            parsed(content)
        except UnreadableError as error:
            text = "the message at offset %d of partition %d of %s is skipped: %s"
            self._log.write("skipped", text, offset, partition.number, self.topic, error)
            self._finish(partition, offset, "skipped")
            return
        task = self.engine.score(content, spans)
        partition.tasks[offset] = task
        task.add_done_callback(partial(self._ended, partition, offset))

    def _ended(self, partition: Partition, offset: int, task: asyncio.Task[None]) -> None:
        if not task.cancelled():  # else it is read again
            self._finish(partition, offset, "sent" if task.exception() is None else "error")

    def _finish(self, partition: Partition, offset: int, outcome: str) -> None:
        with self._lock:
            partition.tasks.pop(offset, None)
        self._record(semconv.KAFKA_MESSAGES, 1, {semconv.OUTCOME: outcome})
