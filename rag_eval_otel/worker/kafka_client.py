"""Make clients of Kafka, report their errors, and write messages to topics.

`Client` makes the consumers and producers of the package ``confluent_kafka`` (librdkafka), which
retry by themselves while brokers are away. `KafkaOutput` writes enriched spans to a topic in the
form of the collector's Kafka exporter (encoding ``otlp_proto``, key = trace id). `DeadLetters`
writes messages that cannot be processed.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from rag_eval_otel import semconv
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.export.metrics import meter_of
from rag_eval_otel.log import log
from rag_eval_otel.runtime.guard import Edge, LimitedLog, require
from rag_eval_otel.worker.kafka_options import KafkaOptions
from rag_eval_otel.worker.watermark import Partition
from rag_eval_otel.worker.wire import WireGroup, WireSpan, request_of

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest


Poison: TypeAlias = Literal["malformed", "too_large", "empty", "ids", "error"]
"""Why a message cannot be processed. ``malformed``: it is no OTLP request in protobuf.
``too_large``: it has too many parts. ``empty``: it has no spans. ``ids``: a span has no valid trace
id or span id. ``error``: an internal error."""

Outcome: TypeAlias = Literal["exported", "finished_before", "dead_letter", "discarded", "revoked"]
"""What became of a message. ``finished_before``: another worker has exported it. ``discarded``: it
cannot be processed, and there is no dead letter. ``revoked``: another worker has its partition."""

_LINGER: Final = 0.05  # seconds that spans of a trace wait for one another
_TOO_LARGE: Final = "MSG_SIZE_TOO_LARGE"


# --- errors ---------------------------------------------------------------------------------------

Trouble: TypeAlias = Literal["start", "broker", "topic", "group", "fatal"]

_TROUBLES: Final[Mapping[str, Trouble]] = {
    "_ALL_BROKERS_DOWN": "broker",
    "_TRANSPORT": "broker",
    "_RESOLVE": "broker",
    "_TIMED_OUT": "broker",
    "_AUTHENTICATION": "broker",
    "_SSL": "broker",
    "SASL_AUTHENTICATION_FAILED": "broker",
    "UNKNOWN_TOPIC_OR_PART": "topic",
    "_UNKNOWN_TOPIC": "topic",
    "TOPIC_AUTHORIZATION_FAILED": "topic",
    "GROUP_AUTHORIZATION_FAILED": "group",
}
"""What cannot be used after an error, by the name of the error."""

_ADVICE: Final[Mapping[str | None, str]] = {
    "broker": "The client tries again, and messages stay in the topic. If this does not end, check "
    "the addresses (--kafka) and the client's options for TLS and SASL (--kafka-option)",
    "topic": "Create the topic, or allow this user to use it; --topic, --dead-letter and "
    "--output-topic name other ones",
    "group": "Allow this user to use the consumer group, or name another one with --group",
    "fatal": "The client cannot go on; restart this process",
    None: "The client tries again",
}


_COMPACTED: Final = (
    "the topic %s is compacted, so it keeps only the last message of each trace, and spans are "
    "lost; set its cleanup.policy to delete, or name another topic"
)


class Client:
    """Makes consumers and producers, and counts and logs their errors.

    ``package`` has the names of the package ``confluent_kafka``, which is the default. ``troubles``
    are the reasons why the topics cannot be used at the moment, by what cannot be used.
    """

    def __init__(
        self,
        options: KafkaOptions,
        *,
        meter_provider: MeterProvider | None = None,
        package: Any = None,
    ) -> None:
        self.options = options
        self.package = package or require("confluent_kafka", "kafka")
        self.admin = package.admin if package else require("confluent_kafka.admin", "kafka")
        self.log = LimitedLog()
        self.troubles: dict[Trouble, str] = {"start": "no broker was reached yet"}
        self.errors: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()
        meter = meter_of(meter_provider)
        self._counter = meter.create_counter(
            semconv.KAFKA_MESSAGES, unit="{message}", description="Kafka messages by outcome."
        )
        self._errors = meter.create_counter(
            semconv.KAFKA_ERRORS, unit="{error}", description="Errors of Kafka clients, by type."
        )

    def consumer(self, on_commit: Callable[[Any, Any], None]) -> Any:
        """Return a consumer; `ConfigError` if it refuses an option."""
        return self._made("Consumer", {**self.options.of_consumer(), "on_commit": on_commit})

    def producer(self) -> Any:
        """Return a producer; `ConfigError` if it refuses an option."""
        return self._made("Producer", self.options.of_producer())

    def _made(self, kind: str, config: dict[str, Any]) -> Any:
        try:
            package = self.admin if kind == "AdminClient" else self.package
            return getattr(package, kind)({**config, "error_cb": self.failed}, logger=log)
        except self.package.KafkaException as error:
            msg = f"the Kafka client refuses its options: {error.args[0].str()}"
            raise ConfigError(msg) from None

    def partition(self, number: int, *offset: Any) -> Any:
        """Return the client's object for a partition, perhaps with an offset and a text for it."""
        return self.package.TopicPartition(self.options.topic, number, *offset)

    def attempt(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Return the result of ``call``, or None if it fails, which is counted and logged."""
        try:
            return call(*args, **options)
        except self.package.KafkaException as error:
            self.failed(error.args[0])
        return None

    def produce(self, producer: Any, *message: Any, told: Callable[..., None], **more: Any) -> bool:
        """Hand topic, value and key of a message to ``producer``; False if it has no room.

        ``told`` gets the result, also for a message that the client itself finds too large.
        """
        try:
            producer.produce(*message, on_delivery=told, **more)
        except BufferError:
            return False
        except self.package.KafkaException as error:
            if error.args[0].name() != _TOO_LARGE:
                raise
            told(error.args[0], None)
        return True

    def failed(self, error: Any) -> None:
        """Count and log an error; the client retries by itself, unless the error is fatal."""
        name = error.name()
        trouble: Trouble | None = "fatal" if error.fatal() else _TROUBLES.get(name)
        told = f"{error.str()} [{name}]"
        if trouble is not None:
            self.troubles[trouble] = told
        self.log.write(name, "Kafka at %s: %s. %s", self.options.brokers, told, _ADVICE[trouble])
        self.count_error(name)

    def probe(self, consumer: Any, timeout: float) -> None:
        """Find out whether the topics can be used, in at most ``timeout`` seconds for each."""
        for topic in self.options.topics:
            found = self.attempt(consumer.list_topics, topic, timeout=timeout)
            if found is None:
                return
            error = found.topics[topic].error
            if error is not None:
                self.failed(error)
                return
        for kind in ("broker", "topic"):
            self.troubles.pop(kind, None)
        if "start" in self.troubles:
            self._refuse_compacted(timeout)
            if "broker" not in self.troubles:  # or ask again
                self.troubles.pop("start")

    def _refuse_compacted(self, timeout: float) -> None:
        """Report a fatal trouble if a topic is compacted: it keeps one message of each trace.

        A topic whose configuration cannot be read, because this user may not, is used.
        """
        admin, kind = self._made("AdminClient", self.options.of_producer()), self.admin
        asked = [kind.ConfigResource("topic", one) for one in self.options.topics]
        found = self.attempt(admin.describe_configs, asked, request_timeout=timeout) or {}
        for resource, answer in found.items():
            entries = self.attempt(answer.result, timeout) or {}
            policy = entries["cleanup.policy"].value if "cleanup.policy" in entries else ""
            if "compact" in policy:
                self.troubles["fatal"] = told = _COMPACTED % resource.name
                log.error("%s", told)

    def count_error(self, kind: str) -> None:
        self._errors.add(1, {semconv.ERROR_TYPE: kind})
        self.errors[kind] += 1

    def count(self, outcome: Outcome, reason: str | None = None, *, messages: int = 1) -> None:
        """Count messages that were read, by what became of them."""
        if messages:
            told: dict[str, str] = {semconv.OUTCOME: outcome}
            if reason is not None:
                told[semconv.REASON] = reason
            self._counter.add(messages, told)
            self.messages[outcome] += messages


# --- messages that cannot be processed ------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Letter:
    partition: Partition
    message: Any
    reason: Poison

    @property
    def headers(self) -> list[tuple[str, Any]]:
        """The headers of the message, with the reason, and the place of the message."""
        message = self.message
        told = {
            semconv.KAFKA_DEAD_REASON: self.reason,
            semconv.KAFKA_DEAD_TOPIC: message.topic(),
            semconv.KAFKA_DEAD_PARTITION: str(message.partition()),
            semconv.KAFKA_DEAD_OFFSET: str(message.offset()),
        }
        return [*(message.headers() or ()), *told.items()]


class DeadLetters:
    """Writes messages that cannot be processed to a topic, and then acknowledges them.

    Without such a topic, the messages are acknowledged, logged and counted. `send` and the
    callbacks run on one thread; `add` may be called on any.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._topic = client.options.dead_letter
        self._producer = None if self._topic is None else client.producer()
        self._waiting: deque[_Letter] = deque()

    def add(self, partition: Partition, message: Any, reason: Poison) -> None:
        """Have ``message`` written."""
        self._client.log.write(
            reason,
            "the message at offset %s of partition %s of %s cannot be processed: %s",
            *(message.offset(), message.partition(), message.topic(), reason),
        )
        self._waiting.append(_Letter(partition, message, reason))

    def send(self) -> None:
        """Hand waiting messages to the producer, as far as it takes them; call its callbacks."""
        if self._producer is not None:
            self._producer.poll(0)
        for _ in range(len(self._waiting)):
            letter = self._waiting.popleft()
            if letter.partition.is_revoked:
                continue
            if self._producer is None:
                self._end(letter, "discarded", letter.reason)
            elif not self._client.attempt(self._produce, self._producer, letter):
                self._waiting.appendleft(letter)
                return

    def _produce(self, producer: Any, letter: _Letter) -> bool:
        message, told = letter.message, partial(self._delivered, letter)
        content = self._topic, message.value(), message.key()
        return self._client.produce(producer, *content, told=told, headers=letter.headers)

    def _delivered(self, letter: _Letter, error: Any, _: Any) -> None:
        if error is None:
            self._end(letter, "dead_letter", letter.reason)
        elif error.name() == _TOO_LARGE:
            self._client.failed(error)
            self._end(letter, "discarded", "too_large")
        else:
            self._client.failed(error)
            self._waiting.append(letter)

    def _end(self, letter: _Letter, outcome: Outcome, reason: str) -> None:
        self._client.count(outcome, reason)
        letter.partition.receipts.pop(letter.message.offset(), None)  # or it counts as exported
        letter.partition.acknowledged.append(letter.message.offset())

    def close(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for the messages that are under way."""
        if self._producer is not None:
            self._producer.flush(timeout)


# --- spans and log records ------------------------------------------------------------------------


class KafkaOutput:
    """Writes spans to a topic, one message for the spans of a trace that wait at the same time.

    The key of a message is the trace id in hexadecimal digits. Failed writes are repeated until
    they succeed. A span or log record that is too large for a message is dropped and counted.
    """

    def __init__(self, client: Client) -> None:
        if client.options.output_topic is None:
            msg = "--output-topic must name the topic for the spans"
            raise ConfigError(msg)
        self._client = client
        self._producer = client.producer()
        self._new: list[WireSpan] = []
        self._letters: deque[_Outgoing] = deque()
        self._changed = threading.Condition()
        self._size = 0
        self._stopping = threading.Event()
        self._edge = Edge("kafka_output", on_error=client.count_error)
        self._thread = threading.Thread(
            target=self._run, name="rag-eval-otel-kafka-output", daemon=True
        )
        self._thread.start()

    @property
    def size(self) -> int:
        """About how many bytes wait or are under way."""
        return self._size

    @property
    def dropped(self) -> int:
        """How many spans and requests of log records were dropped."""
        return self._client.errors["too_large_dropped"] + self._client.errors["logs_dropped"]

    def put(self, span: WireSpan) -> None:
        """Have ``span`` written; its receipt is told when the brokers have acknowledged it."""
        with self._changed:
            self._new.append(span)
            self._size += span.message.ByteSize()

    def put_group(self, group: WireGroup) -> None:
        """Have the spans of ``group`` written, by trace."""
        for span in group.spans():
            self.put(span)

    def put_logs(self, request: ExportLogsServiceRequest) -> None:
        """Have log records written; without a topic for them, drop and count them."""
        if self._client.options.output_logs_topic is None:
            self._client.count_error("logs_dropped")
            return
        letter = _Outgoing((), request.SerializeToString())
        with self._changed:
            self._size += letter.size
        self._letters.append(letter)

    def flush(self, timeout: float) -> bool:
        """Wait until all is written; return False if it is not after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._size, timeout)

    def close(self, timeout: float) -> None:
        """Write what waits for at most ``timeout`` seconds, and stop."""
        self.flush(timeout)
        self._stopping.set()
        self._thread.join(timeout + _LINGER)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._producer.poll(_LINGER)
            with self._changed:
                new, self._new = self._new, []
            traces: dict[bytes, list[WireSpan]] = {}
            for span in new:
                traces.setdefault(span.message.trace_id, []).append(span)
            self._letters += map(_Outgoing, traces.values())
            for _ in range(len(self._letters)):
                letter, is_taken = self._letters.popleft(), None
                with self._edge:
                    is_taken = bool(self._client.attempt(self._produce, letter))
                if is_taken is None:  # a defect: other letters must not wait for this one
                    self._letters.append(letter)
                elif not is_taken:
                    self._letters.appendleft(letter)
                    break

    def _produce(self, letter: _Outgoing) -> bool:
        options = self._client.options
        value, key, topic = letter.logs, None, options.output_logs_topic
        if letter.spans:
            spans = [span for span in letter.spans if not span.receipt.is_revoked]
            if not spans:
                self._end(letter)
                return True
            value, topic = request_of(spans).SerializeToString(), options.output_topic
            key = spans[0].message.trace_id.hex()
        told = partial(self._delivered, letter)
        return self._client.produce(self._producer, topic, value, key, told=told)

    def _delivered(self, letter: _Outgoing, error: Any, _: Any) -> None:
        if error is None:
            self._end(letter)
        elif error.name() == _TOO_LARGE:
            self._split(letter, error)
        else:
            self._client.failed(error)
            self._letters.append(letter)

    def _split(self, letter: _Outgoing, error: Any) -> None:
        """Write the spans of a message that is too large in two messages."""
        middle = len(letter.spans) // 2
        if middle:
            halves = letter.spans[:middle], letter.spans[middle:]
            self._letters += map(_Outgoing, halves)
        else:
            self._client.failed(error)
            self._client.count_error("too_large_dropped")
            self._end(letter)

    def _end(self, letter: _Outgoing) -> None:
        for span in letter.spans:
            span.receipt.left()
        with self._changed:
            self._size -= letter.size
            self._changed.notify_all()


class _Outgoing:
    """A message to write: spans of one trace, or a request with log records."""

    __slots__ = ("logs", "size", "spans")

    def __init__(self, spans: Sequence[WireSpan], logs: bytes = b"") -> None:
        self.spans = spans
        self.logs = logs
        self.size = len(logs) + sum(span.message.ByteSize() for span in spans)
