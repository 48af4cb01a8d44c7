"""Score the turns in spans that other processes send over OTLP or through Kafka."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rag_eval_otel.environment import first_set, otlp_variables
from rag_eval_otel.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider

    from rag_eval_otel.config import Config
    from rag_eval_otel.runtime.sdk import Providers
    from rag_eval_otel.worker.engine import Engine
    from rag_eval_otel.worker.kafka import KafkaSource
    from rag_eval_otel.worker.otlp import OtlpSource

DESCRIPTION: Final = """\
Receives spans over OTLP (gRPC and HTTP), scores the RAG turns in them, and sends all spans on, with
the scores, to --endpoint or OTEL_EXPORTER_OTLP_ENDPOINT. With --kafka, reads whole traces from a
topic instead. It needs the extra worker of this package, and with Kafka the extra kafka.

It listens at 127.0.0.1 without TLS and without a password. Put an OpenTelemetry Collector before it
that has both, and that groups the spans of a trace: docs/worker.md.

All options of the library are RAG_EVAL_* variables. RAG_EVAL_HOLD_SECONDS counts from the reading
of a trace. SIGTERM, SIGINT and SIGHUP end the command after the scores of the turns under way,
after RAG_EVAL_SHUTDOWN_SECONDS at most.

At the end, it prints how many spans came in and went out, and how many turns were scored, refused
and failed.

Exit status: 0 ended, 1 spans were lost or Kafka cannot be read any more, 2 misuse.
"""

_MIB: Final = 1024 * 1024


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--listen", default="127.0.0.1", metavar="HOST", help="address (default: 127.0.0.1)")
    for name, port in (("grpc", 4317), ("http", 4318)):
        text = f"port for OTLP over {name} (default: {port}); 0 takes a free one"
        add(f"--{name}-port", type=int, default=port, metavar="PORT", help=text)
    add("--endpoint", metavar="URL", help="where to send spans (default: OTEL_EXPORTER_OTLP_*)")
    text = "refuse requests while the spans in memory take more (default: 256)"
    add("--memory", type=int, default=256, metavar="MIB", help=text)
    text = "length to which applications cut texts (OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT)"
    add("--value-limit", type=int, metavar="N", help=text)
    text = "a service with its name in metrics, also after 100 others; may be repeated"
    add("--service", action="append", default=[], metavar="NAME", help=text)
    kafka = parser.add_argument_group("Kafka")
    kafka.add_argument("--kafka", metavar="HOST:PORT", help="brokers, separated by commas")
    kafka.add_argument("--topic", default="otlp_spans", help="(default: otlp_spans)")
    kafka.add_argument("--group", default="rag-eval-otel", help="(default: rag-eval-otel)")
    text = "an option of librdkafka, as in security.protocol=SSL or, with the value in a file,"
    text += " sasl.password=@FILE; may be repeated"
    kafka.add_argument("--kafka-option", action="append", default=[], metavar="K=V", help=text)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal comes, and return the exit status."""
    from rag_eval_otel.config import Config  # noqa: PLC0415  # as below: `--help` needs none of it
    from rag_eval_otel.runtime.guard import require  # noqa: PLC0415

    for module in ("grpc", "aiohttp"):
        require(module, "worker")
    for name in ("grpc_port", "http_port"):
        if not 0 <= getattr(options, name) < 2**16:
            raise ConfigError(f"--{name.replace('_', '-')} must be a port, 0 to 65535")
    if options.memory < 1:
        raise ConfigError(f"--memory must be at least 1 MiB, not {options.memory}")
    config = Config.from_env()
    return asyncio.run(_serve(options, config))


async def _serve(options: argparse.Namespace, config: Config) -> int:
    from rag_eval_otel.export.metrics import Meters  # noqa: PLC0415  # slow to import
    from rag_eval_otel.worker.engine import Engine  # noqa: PLC0415
    from rag_eval_otel.worker.exporter import Exporter, build_sender  # noqa: PLC0415

    sender = build_sender(otlp_variables(), options.endpoint)
    providers = _providers()
    meters = None if providers is None else providers.meter_provider
    engine = Engine(
        config,
        Exporter(sender, Meters(meters)),
        max_bytes=options.memory * _MIB,
        value_limit=options.value_limit,
        services=options.service,
        meter_provider=meters,
        logger_provider=None if providers is None else providers.logger_provider,
    )
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as of nohup
            loop.add_signal_handler(number, stopping.set)
    seconds = config.shutdown_seconds
    source = None
    try:
        source = await _started(options, engine, meters)
        while not (stopping.is_set() or source.has_failed):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(stopping.wait(), 1.0)
    finally:
        if source is not None:
            await source.stop()
        await engine.close(seconds)
        if source is not None:
            await source.close()
        if providers is not None:
            await loop.run_in_executor(None, providers.shutdown)
    return _report(engine, has_failed=source.has_failed, is_kafka=options.kafka is not None)


def _providers() -> Providers | None:
    """Return providers that export metrics and drift events, if a variable names a target.

    Otherwise the exporters would send to localhost, where this command listens itself.
    """
    from rag_eval_otel.runtime.sdk import Providers, exporters  # noqa: PLC0415

    names = ("OTEL_METRICS_EXPORTER", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
    if first_set((*names, "OTEL_EXPORTER_OTLP_ENDPOINT")) is None:
        return None
    has_logs = first_set(("OTEL_LOGS_EXPORTER", "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"))
    return Providers.exporting(
        traces=(),
        metrics=exporters("metrics"),
        logs=exporters("logs") if has_logs else (),
        service="rag-eval-otel",
    )


async def _started(
    options: argparse.Namespace, engine: Engine, meters: MeterProvider | None
) -> OtlpSource | KafkaSource:
    """Start the source that ``options`` name, OTLP or Kafka, and return it."""
    from rag_eval_otel.export.metrics import Meters  # noqa: PLC0415  # slow to import
    from rag_eval_otel.worker.otlp import OtlpSource, serve_http  # noqa: PLC0415

    if options.kafka is None:
        otlp = OtlpSource(engine, Meters(meters))
        ports = await otlp.start(options.listen, options.grpc_port, options.http_port)
        _say(f"listening for gRPC at port {ports[0]}, for HTTP at port {ports[1]}")
        return otlp
    from rag_eval_otel.worker.kafka import KafkaSource  # noqa: PLC0415

    pairs = [text.partition("=") for text in options.kafka_option]
    if not all(name and value for name, _, value in pairs):
        raise ConfigError("--kafka-option must be NAME=VALUE, as in security.protocol=SSL")
    kafka = KafkaSource(
        engine,
        meters,
        brokers=options.kafka,
        topic=options.topic,
        group=options.group,
        options={name: _value(value) for name, _, value in pairs},
    )
    await asyncio.get_running_loop().run_in_executor(None, kafka.check_topic)
    kafka.server, port = await serve_http(options.listen, options.http_port, lambda: kafka.is_ready)
    kafka.start()
    _say(f"reading {options.topic} at {options.kafka}; probes at port {port}")
    return kafka


def _value(text: str) -> str:
    """Return ``text``, or the content of the file after ``@``, as others see command lines."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--kafka-option: the file {text[1:]} cannot be read") from error


def _report(engine: Engine, *, has_failed: bool, is_kafka: bool) -> int:
    """Write what became of spans and turns, and return the exit status."""
    spans, turns = engine.exporter.spans, engine.instruments.tally.stats().turns
    sent = "".join(f", {number:,} {name}" for name, number in sorted(spans.items()))
    _say(f"spans: {engine.received:,} in{sent}")
    parts = [_counted(turns, name, outcomes) for name, outcomes in _OUTCOMES.items()]
    _say(f"turns: {', '.join(parts)}")
    lost = spans["refused"] + (0 if is_kafka else spans["given_up"])  # Kafka still has them
    return 1 if lost or has_failed else 0


_OUTCOMES: Final = {
    "scored": ("scored",),
    "refused": ("skipped",),
    "failed": ("error", "unscored", "dropped"),
}


def _counted(turns: Mapping[str, int], name: str, outcomes: tuple[str, ...]) -> str:
    """Return as text how many ``turns`` have one of the ``outcomes``, with their reasons."""
    counts = {key: number for key, number in turns.items() if key.split()[0] in outcomes}
    reasons = ", ".join(f"{n:,} {key.partition(' ')[2]}" for key, n in counts.items() if " " in key)
    return f"{sum(counts.values()):,} {name}" + (f" ({reasons})" if reasons else "")


def _say(text: str) -> None:
    sys.stderr.write(f"rag-eval-otel: {text}\n")
    sys.stderr.flush()
