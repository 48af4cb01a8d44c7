"""Where a worker reads and writes Kafka messages, and how its clients are configured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rag_eval_otel.errors import ConfigError

_LOG_LEVEL: Final = 2  # critical: librdkafka's own lines repeat the errors that `Client` limits

OWN_OPTIONS: Final = frozenset(
    {"bootstrap.servers", "group.id", "enable.auto.commit", "enable.auto.offset.store"}
)
"""Options of the client that are set here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions:
    """Where to read and write messages, and how many may be in flight.

    - ``brokers``: addresses of brokers, ``host:port``, separated by commas.
    - ``topic``, ``group``: the topic to read, and the consumer group.
    - ``dead_letter``: the topic for messages that cannot be processed. If it is None, they are
      logged, counted and passed over.
    - ``output_topic``: the topic for enriched spans, or None if they are not written to Kafka.
    - ``output_logs_topic``: the topic for events of scores; without it, they are dropped, counted.
    - ``client``: more options of librdkafka by their names there, such as ``security.protocol``.
    - ``max_messages``, ``max_bytes``: for each partition, the largest distance between its
      committed offset and the last message received, and the bytes of the messages that are not
      exported. A partition is paused at these limits. After a crash, another worker exports at
      most ``max_messages`` messages of a partition once more.
    """

    brokers: str
    topic: str = "otlp_spans"
    group: str = "rag-eval"
    dead_letter: str | None = None
    output_topic: str | None = None
    output_logs_topic: str | None = None
    client: Mapping[str, str] = field(default_factory=dict, repr=False)  # it has passwords
    max_messages: int = 10_000
    max_bytes: int = 32 * 1024 * 1024

    def __post_init__(self) -> None:
        """Raise `ConfigError` for values that cannot be used."""
        if own := OWN_OPTIONS.intersection(self.client):
            msg = f"the Kafka option {min(own)} is set by rag-eval-otel; brokers, topic and group "
            msg += "have options of their own (--kafka, --topic, --group)"
            raise ConfigError(msg)
        if not self.brokers.strip(", ") or self.topic[:1] in {"", "^"} or not self.group:
            msg = "--kafka needs the addresses of brokers, such as kafka-1:9092,kafka-2:9092, and "
            msg += "--topic and --group need a name; a topic that begins with ^ is a pattern"
            raise ConfigError(msg)
        for option in ("dead_letter", "output_topic", "output_logs_topic"):
            if getattr(self, option) == self.topic:
                msg = f"--{option.replace('_', '-')} names the topic that is read, {self.topic!r}; "
                msg += "the worker would read its own messages; name another one"
                raise ConfigError(msg)
        if min(self.max_messages, self.max_bytes) < 1:
            msg = "at least one message and one byte must be allowed in flight for each partition"
            raise ConfigError(msg)

    @property
    def topics(self) -> Sequence[str]:
        """The topics that must exist."""
        more = (self.dead_letter, self.output_topic, self.output_logs_topic)
        return tuple(filter(None, (self.topic, *more)))

    def of_consumer(self) -> dict[str, Any]:
        """Return the configuration of the consumer."""
        chosen = {
            "auto.offset.reset": "earliest",
            "client.id": "rag-eval-otel",
            "log_level": _LOG_LEVEL,
            "queued.max.messages.kbytes": 16 * 1024,
            "queued.min.messages": 1000,
            **self.client,
            "bootstrap.servers": self.brokers,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "group.id": self.group,
        }
        if chosen.get("group.protocol") != "consumer":  # there, the broker assigns partitions
            chosen.setdefault("partition.assignment.strategy", "cooperative-sticky")
        return chosen

    def of_producer(self) -> dict[str, Any]:
        """Return the configuration of a producer.

        Keys are hashed as in the collector's exporter, so that a trace keeps its partition.
        """
        return {
            "acks": "all",
            "client.id": "rag-eval-otel",
            "compression.type": "zstd",
            "log_level": _LOG_LEVEL,
            "partitioner": "fnv1a_random",
            **self.client,
            "bootstrap.servers": self.brokers,
        }
