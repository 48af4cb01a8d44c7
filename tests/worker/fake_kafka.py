"""A Kafka client in memory, with the names that the worker uses of ``confluent_kafka``."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

PATIENCE = 60.0


@dataclass(frozen=True)
class KafkaError:
    """An error of the client."""

    kind: str
    is_fatal: bool = False

    def name(self) -> str:
        return self.kind

    def str(self) -> str:
        return f"what the client says of {self.kind}"

    def fatal(self) -> bool:
        return self.is_fatal


class KafkaException(Exception):  # noqa: N818  # the client's name
    """What the client raises, with a `KafkaError`."""


@dataclass
class TopicPartition:
    """A partition, and an offset in it."""

    topic: str
    partition: int
    offset: int = -1001
    metadata: str | None = None
    error: Any = None


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message, or an error of the consumer."""

    topic_: str = "otlp_spans"
    partition_: int = 0
    offset_: int = 0
    value_: bytes | None = None
    key_: Any = None
    headers_: list[tuple[str, Any]] | None = None
    leader_epoch_: int | None = 0
    error_: KafkaError | None = None

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_"):
            raise AttributeError(name)
        return lambda: getattr(self, f"{name}_")


@dataclass
class Cluster:
    """Topics in memory. It stands for the package ``confluent_kafka``."""

    topics: dict[str, list[list[Message]]] = field(default_factory=dict)
    policies: dict[str, str] = field(default_factory=dict)
    """The ``cleanup.policy`` of topics, if it is not ``delete``."""
    may_describe: bool = True
    committed: dict[int, int] = field(default_factory=dict)
    notes: dict[int, str | None] = field(default_factory=dict)
    """What was committed with the offsets."""
    max_note: int = 4096
    events: deque[Callable[[Any], None]] = field(default_factory=deque)
    """What happens in the next calls of ``poll`` of the consumer."""
    refused: list[KafkaError] = field(default_factory=list)
    """Errors of the next deliveries."""
    raised: list[Exception] = field(default_factory=list)
    """What the next calls of ``produce`` raise."""
    commit_errors: list[KafkaError] = field(default_factory=list)
    is_away: bool = False
    room: int = 1000
    """The number of messages for which producers have room."""
    paused: set[int] = field(default_factory=set)
    commits: Counter[str] = field(default_factory=Counter)
    configs: list[Mapping[str, Any]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    KafkaException: type = KafkaException
    TopicPartition: type = TopicPartition

    def Consumer(self, config: Mapping[str, Any], logger: Any = None) -> Consumer:  # noqa: N802
        return Consumer(self, self._checked(config))

    def Producer(self, config: Mapping[str, Any], logger: Any = None) -> Producer:  # noqa: N802
        return Producer(self, self._checked(config))

    @property
    def admin(self) -> Any:
        return SimpleNamespace(AdminClient=self.AdminClient, ConfigResource=ConfigResource)

    def AdminClient(self, config: Mapping[str, Any], logger: Any = None) -> Admin:  # noqa: N802
        return Admin(self, self._checked(config))

    def _checked(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        if "no.such.option" in config:
            raise KafkaException(KafkaError("_INVALID_ARG"))
        self.configs.append(config)
        return config

    def create(self, topic: str, partitions: int = 1) -> None:
        self.topics[topic] = [[] for _ in range(partitions)]

    def add(self, value: bytes | None, partition: int = 0, **more: Any) -> None:
        log = self.topics["otlp_spans"][partition]
        place = {"partition_": partition, "offset_": len(log)}
        log.append(Message(value_=value, **place, **more))

    def until(self, condition: Callable[[], object]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE)


@dataclass(frozen=True)
class ConfigResource:
    """Something that has a configuration: a topic."""

    restype: str
    name: str


@dataclass
class Admin:
    """A client that reads the configuration of topics."""

    cluster: Cluster
    config: Mapping[str, Any]

    def describe_configs(
        self, resources: list[ConfigResource], request_timeout: float
    ) -> dict[ConfigResource, Future[Any]]:
        found: dict[ConfigResource, Future[Any]] = {one: Future() for one in resources}
        for one, answer in found.items():
            policy = self.cluster.policies.get(one.name, "delete")
            if self.cluster.may_describe:
                answer.set_result({"cleanup.policy": SimpleNamespace(value=policy)})
            else:
                error = KafkaError("TOPIC_AUTHORIZATION_FAILED")
                answer.set_exception(KafkaException(error))
        return found


class Consumer:
    """A consumer that gets all partitions, but for those that a test takes away."""

    def __init__(self, cluster: Cluster, config: Mapping[str, Any]) -> None:
        self.cluster = cluster
        self.config = config
        self.positions: dict[int, int] = {}
        self.callbacks: Mapping[str, Callable[..., None]] = {}
        self.replies: deque[Callable[[], None]] = deque()

    def subscribe(self, topics: list[str], **callbacks: Callable[..., None]) -> None:
        self.callbacks = callbacks
        log = self.cluster.topics.get(topics[0], [])
        self.cluster.events.append(lambda one: one.assign(range(len(log))))

    def assign(self, numbers: Iterable[int]) -> None:
        given = [TopicPartition("otlp_spans", number) for number in numbers]
        self.callbacks["on_assign"](self, given)
        self.positions |= {n: self.cluster.committed.get(n, 0) for n in numbers}

    def take(self, *numbers: int, how: str = "on_revoke") -> None:
        self.callbacks[how](self, [TopicPartition("otlp_spans", number) for number in numbers])
        self.positions = {n: at for n, at in self.positions.items() if n not in numbers}

    def poll(self, timeout: float) -> Message | None:
        cluster = self.cluster
        with cluster.changed:
            cluster.changed.notify_all()
        while self.replies:
            self.replies.popleft()()
        if cluster.events:
            cluster.events.popleft()(self)
        for number, at in self.positions.items():
            log = cluster.topics["otlp_spans"][number]
            if number not in cluster.paused and at < len(log):
                self.positions[number] += 1
                return log[at]
        if timeout:
            with cluster.changed:
                cluster.changed.wait(0.001)
        return None

    def pause(self, parts: Iterable[TopicPartition]) -> None:
        self.cluster.paused |= {one.partition for one in parts}

    def resume(self, parts: Iterable[TopicPartition]) -> None:
        self.cluster.paused -= {one.partition for one in parts}

    def commit(
        self, offsets: list[TopicPartition], *, asynchronous: bool
    ) -> list[TopicPartition] | None:
        self.cluster.commits["asynchronous" if asynchronous else "synchronous"] += 1
        error = self.cluster.commit_errors.pop() if self.cluster.commit_errors else None
        if error is None and any(
            len(one.metadata or "") > self.cluster.max_note for one in offsets
        ):
            error = KafkaError("OFFSET_METADATA_TOO_LARGE")
        if error is not None and not asynchronous:
            raise KafkaException(error)
        if error is None:
            assert all(one.partition in self.positions for one in offsets)
            self.cluster.committed |= {one.partition: one.offset for one in offsets}
            self.cluster.notes |= {one.partition: one.metadata for one in offsets}
        if asynchronous:
            self.replies.append(lambda: self.config["on_commit"](error, offsets))
        return None if asynchronous else offsets

    def committed(self, parts: Iterable[TopicPartition], timeout: float) -> list[TopicPartition]:
        if self.cluster.is_away:
            raise KafkaException(KafkaError("_TRANSPORT"))
        return [
            TopicPartition(
                one.topic,
                one.partition,
                self.cluster.committed.get(one.partition, -1001),
                self.cluster.notes.get(one.partition),
            )
            for one in parts
        ]

    def list_topics(self, topic: str, timeout: float) -> Any:
        if self.cluster.is_away:
            raise KafkaException(KafkaError("_TRANSPORT"))
        known = topic in self.cluster.topics
        error = None if known else KafkaError("UNKNOWN_TOPIC_OR_PART")
        partitions = dict(enumerate(self.cluster.topics.get(topic, ())))
        return SimpleNamespace(topics={topic: SimpleNamespace(error=error, partitions=partitions)})

    def get_watermark_offsets(self, part: TopicPartition, **_: object) -> tuple[int, int]:
        return 0, len(self.cluster.topics["otlp_spans"][part.partition])

    def close(self) -> None:
        self.take(*self.positions)


class Producer:
    """A producer whose messages are delivered when it is polled."""

    def __init__(self, cluster: Cluster, config: Mapping[str, Any]) -> None:
        self.cluster = cluster
        self.sent: deque[tuple[Message, Callable[..., None]]] = deque()

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: Any,
        *,
        on_delivery: Callable[..., None],
        headers: list[tuple[str, Any]] | None = None,
    ) -> None:
        if not self.cluster.room:
            self.cluster.room = 1
            raise BufferError
        if self.cluster.raised:
            raise self.cluster.raised.pop()
        message = Message(topic_=topic, value_=value, key_=key, headers_=headers)
        self.sent.append((message, on_delivery))

    def poll(self, timeout: float) -> None:
        while self.sent:
            message, told = self.sent.popleft()
            error = self.cluster.refused.pop() if self.cluster.refused else None
            if error is None:
                self.cluster.topics[message.topic_][0].append(message)
            told(error, message)
        with self.cluster.changed:
            self.cluster.changed.notify_all()
            if timeout:
                self.cluster.changed.wait(0.001)

    def flush(self, timeout: float) -> int:
        self.poll(0)
        return 0
