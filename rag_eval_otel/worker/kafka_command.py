"""The options of ``rag-eval-otel serve --kafka``, and the source of spans that it reads."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rag_eval_otel.environment import kafka_options
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.worker.kafka import KafkaSource
from rag_eval_otel.worker.kafka_client import Client, KafkaOutput
from rag_eval_otel.worker.kafka_options import KafkaOptions

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider

    from rag_eval_otel.worker.engine import Engine

_LOOK: float = 1.0  # seconds between looks whether reading can go on


def add_kafka_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``serve --kafka`` to ``parser``."""
    usual = KafkaOptions(brokers="-")
    group = parser.add_argument_group("reading from Kafka")
    group.add_argument(
        "--kafka",
        metavar="BROKERS",
        help="read spans from Kafka: addresses of brokers, host:port, separated by commas",
    )
    texts = {
        "--topic": ("topic", "TOPIC", "the topic with spans in OTLP (encoding otlp_proto)"),
        "--group": ("group", "GROUP", "the consumer group that the workers share"),
        "--dead-letter": ("dead_letter", "TOPIC", "a topic for messages that cannot be processed"),
        "--output-topic": ("output_topic", "TOPIC", "write spans to a topic, not over OTLP"),
        "--output-logs-topic": (
            "output_logs_topic",
            "TOPIC",
            "with --output-topic: the topic for events of scores",
        ),
    }
    for option, (name, kind, told) in texts.items():
        default = getattr(usual, name)
        more = f" (default: {default})" if default else ""
        group.add_argument(option, default=default, metavar=kind, help=told + more)
    for option, name, told in (
        ("--max-messages", "max_messages", "messages of a partition that may be uncommitted"),
        ("--max-bytes", "max_bytes", "bytes of a partition's messages that are not exported"),
    ):
        default = getattr(usual, name)
        more = f"{told} (default: {default})"
        group.add_argument(option, type=int, default=default, metavar="NUMBER", help=more)
    group.add_argument(
        "--kafka-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of librdkafka; may be given several times; also RAG_EVAL_KAFKA_<NAME>",
    )


_OWN = (
    *("topic", "group", "dead_letter", "output_topic", "output_logs_topic"),
    *("max_messages", "max_bytes", "kafka_option"),
)


def check_without_kafka(options: argparse.Namespace) -> None:
    """Raise `ConfigError` if an option is given that only concerns ``--kafka``."""
    usual = KafkaOptions(brokers="-")
    for name in _OWN:
        if getattr(options, name) != getattr(usual, name, []):
            option = f"--{name.replace('_', '-')}"
            msg = f"{option} concerns reading from Kafka: name the brokers with --kafka, or leave "
            msg += f"{option} out"
            raise ConfigError(msg)


def chosen_kafka_options(options: argparse.Namespace) -> KafkaOptions:
    """Return the options of ``--kafka`` and the variables ``RAG_EVAL_KAFKA_*``.

    Options on the command line have precedence. Raise `ConfigError` for those that cannot be used.
    """
    if options.output_logs_topic and not options.output_topic:
        msg = "--output-logs-topic needs --output-topic; without it, events go out over OTLP"
        raise ConfigError(msg)
    return KafkaOptions(
        brokers=options.kafka,
        topic=options.topic,
        group=options.group,
        dead_letter=options.dead_letter,
        output_topic=options.output_topic,
        output_logs_topic=options.output_logs_topic,
        max_messages=options.max_messages,
        max_bytes=options.max_bytes,
        client={**kafka_options(), **_pairs(options.kafka_option)},
    )


def _pairs(texts: Iterable[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name.strip() and equals):
            msg = f"--kafka-option needs a name and a value, such as acks=all, not {name!r}"
            raise ConfigError(msg)
        found[name.strip()] = value
    return found


class KafkaReader:
    """A topic as the source of spans for ``serve``, with the probes of the process.

    ``package`` has the names of the package ``confluent_kafka``, which is the default.
    """

    def __init__(
        self, options: argparse.Namespace, meters: MeterProvider | None, *, package: Any = None
    ) -> None:
        self.has_failed = False
        self._meters = meters
        self._probes = options.probes
        self._client = Client(chosen_kafka_options(options), meter_provider=meters, package=package)
        self._source: KafkaSource | None = None
        self._receiver: Any = None

    def output(self) -> KafkaOutput | None:
        """Return the output to the topic of ``--output-topic``, or None without this option."""
        return KafkaOutput(self._client) if self._client.options.output_topic else None

    def start(self, engine: Engine) -> None:
        """Read the topic, and answer probes."""
        self._source = source = KafkaSource(engine, self._client, meter_provider=self._meters)
        if self._probes is not None:
            from rag_eval_otel.worker.listening import ReceiverOptions  # noqa: PLC0415  # like it
            from rag_eval_otel.worker.receiver import (  # noqa: PLC0415  # slow to import
                Probes,
                Receiver,
            )

            options = ReceiverOptions(
                host=self._probes.host,
                grpc_port=None,
                http_port=None,
                probe_port=self._probes.port,
            )
            probes = Probes(is_live=lambda: source.is_live, is_ready=lambda: source.is_ready)
            self._receiver = Receiver(engine, options, probes=probes).start()
        source.start()

    def wait(self, stopping: threading.Event) -> float | None:
        """Return when ``stopping`` is set, or when the client cannot go on."""
        while not stopping.wait(_LOOK):
            if self._source is not None and not self._source.is_live:
                told = "; ".join(self._client.troubles.values())
                self.has_failed = True
                sys.stderr.write(f"rag-eval-otel: reading from Kafka has ended: {told}\n")
                break
        return None

    def drain(self, timeout: float) -> None:
        """Export what is in flight, commit it, and leave the consumer group."""
        if self._source is not None:
            self._source.close(timeout)

    def close(self) -> None:
        """Answer no more probes."""
        if self._receiver is not None:
            self._receiver.stop()
