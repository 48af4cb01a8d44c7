"""Score the turns in spans that other processes send over OTLP."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from rag_eval_otel.arguments import add_scoring_options, scoring_config
from rag_eval_otel.capture.otlp_files import read_requests
from rag_eval_otel.config import Config
from rag_eval_otel.environment import first_set, otlp_endpoint, otlp_variables
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.runtime.providers import Providers, exporters
from rag_eval_otel.worker.kafka_command import KafkaReader, add_kafka_options, check_without_kafka

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider

    from rag_eval_otel.worker.engine import Engine
    from rag_eval_otel.worker.kafka_client import KafkaOutput
    from rag_eval_otel.worker.output import OtlpOutput
    from rag_eval_otel.worker.wire import Output

DESCRIPTION = """\
Receives spans over OTLP, scores the RAG turns in them, and sends all spans on, with the scores, to
OTEL_EXPORTER_OTLP_ENDPOINT or --endpoint. With --file, spans are read from files that the file
exporter of an OpenTelemetry Collector wrote, and the command ends after the last one. With --kafka,
spans are read from a topic of Kafka.

All options of the library are RAG_EVAL_* variables. SIGTERM, SIGINT and SIGHUP end the command
after the scores of the turns under way are there, after about RAG_EVAL_SHUTDOWN_SECONDS at most.
When all files are read, the last scores and exports have ten minutes, also after a signal.

Exit status: 0 ended, 1 spans could not be sent, or Kafka cannot be read any more, 2 misuse.
"""

_MIB: Final = 1024 * 1024
_PORTS: Final = range(65_536)
_HEX_DIGITS: Final = 32  # of a trace id
_FILE_SECONDS: Final = 600.0  # for the last scores and exports of files


@dataclass(frozen=True, slots=True)
class Address:
    """Where a receiver listens; port 0 takes a free one."""

    host: str
    port: int


_LISTENS: Final[Mapping[str, tuple[Address | None, str]]] = {
    "--grpc": (Address("127.0.0.1", 4317), "listen for OTLP over gRPC"),
    "--http": (Address("127.0.0.1", 4318), "listen for OTLP over HTTP, and for /livez and /readyz"),
    "--probes": (None, "listen for /livez and /readyz alone, without TLS"),
}
"""The options for addresses, each with its default."""

_OF_RECEIVERS: Final[Mapping[str, str]] = {
    "--certificate": "PEM file of this server for TLS",
    "--key": "PEM file of its key",
    "--client-ca": "PEM file of authorities; senders must have a certificate of them",
    "--token-file": "file with the bearer token that senders must send",
}
"""The options that concern the servers for OTLP."""


def _address(text: str) -> Address | None:
    """Return the address in ``text``, ``HOST:PORT`` or ``PORT``; None for ``off``."""
    if text == "off":
        return None
    host, _, port = text.rpartition(":")
    if not (port.isdecimal() and int(port) in _PORTS):
        msg = f"must be HOST:PORT, a port or off, not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return Address(host.strip("[]") or "127.0.0.1", int(port))


def add_options(parser: argparse.ArgumentParser) -> None:
    for name, (default, told) in _LISTENS.items():
        usual = "off" if default is None else f"{default.host}:{default.port}"
        parser.add_argument(
            name,
            type=_address,
            default=default,
            metavar="HOST:PORT",
            help=f"{told}; off: not at all (default: {usual})",
        )
    parser.add_argument(
        "--file",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="read spans from a file, and listen for none; may be given several times",
    )
    parser.add_argument(
        "--endpoint",
        metavar="URL",
        help="where to send the spans (default: the OTEL_EXPORTER_OTLP_* variables)",
    )
    for name, told in _OF_RECEIVERS.items():
        parser.add_argument(name, default="", metavar="FILE", help=told)
    parser.add_argument(
        "--memory",
        type=int,
        default=256,
        metavar="MIB",
        help="refuse requests while the spans in memory take more (default: 256)",
    )
    parser.add_argument(
        "--value-limit",
        type=int,
        metavar="N",
        help="length to which applications cut texts (OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT)",
    )
    parser.add_argument(
        "--service",
        action="append",
        default=[],
        metavar="NAME",
        help="a service that has its name in metrics, also among more than 100 services; may be "
        "given several times",
    )
    add_kafka_options(parser)
    add_scoring_options(parser, unit="turn")


def run(options: argparse.Namespace) -> int:
    """Serve until a signal comes or all files are read, and return the exit status."""
    config = scoring_config(options)
    if options.memory < 1:
        msg = f"--memory must be at least 1 MiB, not {options.memory}"
        raise ConfigError(msg)
    if options.file:  # no receiver waits for the spans
        config = replace(config, hold_seconds=max(config.hold_seconds, _FILE_SECONDS))
    stopping, providers = threading.Event(), _providers()
    meters = None if providers is None else providers.meter_provider
    source = _source(options, meters)
    output = _output(options, source, meters)
    engine = _engine(options, config, output, meters)
    _allow_connections()
    with _stopped_by_signals(stopping):
        seconds = None
        try:
            source.start(engine)
            seconds = source.wait(stopping)
        finally:
            seconds = config.shutdown_seconds if seconds is None else seconds
            deadline = time.monotonic() + seconds
            source.drain(seconds / 2)
            engine.shutdown(max(seconds / 4, deadline - time.monotonic()))
            source.close()
            if providers is not None:
                providers.shutdown()
    lost = output.dropped
    if lost:
        sys.stderr.write(f"rag-eval-otel: {lost} spans and log records could not be sent\n")
    return 1 if lost or source.has_failed else 0


def _allow_connections() -> None:
    """Allow as many open connections as the system does, as servers in Go and Java do."""
    with suppress(ImportError, OSError, ValueError):  # Windows has no such limit
        import resource  # noqa: PLC0415  # not on Windows

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextmanager
def _stopped_by_signals(stopping: threading.Event) -> Iterator[None]:
    """Set ``stopping`` at SIGTERM, SIGINT and SIGHUP, in place of the usual handlers.

    A signal that is ignored, as `nohup` does with SIGHUP, is still ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = ("SIGTERM", "SIGINT", "SIGHUP")  # Windows has no SIGHUP
    signals = [getattr(signal, name) for name in names if hasattr(signal, name)]
    handlers = {number: signal.getsignal(number) for number in signals}
    for number, handler in handlers.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, lambda *_: stopping.set())
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _output(
    options: argparse.Namespace, source: Source, meters: MeterProvider | None
) -> OtlpOutput | KafkaOutput:
    from rag_eval_otel.worker.output import (  # noqa: PLC0415  # gRPC is slow to import
        OtlpOutput,
        Retries,
    )
    from rag_eval_otel.worker.senders import open_senders  # noqa: PLC0415

    is_kept = isinstance(source, KafkaReader)  # until the spans are acknowledged
    topic = source.output() if isinstance(source, KafkaReader) else None
    if topic is not None:
        return topic
    variables = otlp_variables()
    if options.endpoint is None and otlp_endpoint() is None:
        msg = "where are the spans to be sent? Name --endpoint or OTEL_EXPORTER_OTLP_ENDPOINT"
        raise ConfigError(msg)
    if options.endpoint is not None:
        for name in ("TRACES_", "LOGS_"):
            variables.pop(f"OTEL_EXPORTER_OTLP_{name}ENDPOINT", None)
        variables["OTEL_EXPORTER_OTLP_ENDPOINT"] = options.endpoint
    retries = Retries(limit=None) if is_kept else None
    return OtlpOutput(open_senders(variables), retries=retries, meter_provider=meters)


def _engine(
    options: argparse.Namespace, config: Config, output: Output, meters: MeterProvider | None
) -> Engine:
    from rag_eval_otel.worker.engine import Engine  # noqa: PLC0415
    from rag_eval_otel.worker.traces import LOGS_QUIET  # noqa: PLC0415

    return Engine(
        config,
        output,
        max_bytes=options.memory * _MIB,
        value_limit=options.value_limit,
        services=options.service,
        logs_quiet=LOGS_QUIET if options.kafka is None else 0.0,  # log records are not read there
        meter_provider=meters,
    )


def _providers() -> Providers | None:
    """Return providers that export the metrics of this process, if a variable names a target.

    Otherwise the exporters would send to localhost, where this command may listen itself.
    """
    names = ("OTEL_METRICS_EXPORTER", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
    if first_set((*names, "OTEL_EXPORTER_OTLP_ENDPOINT")) is None:
        return None
    return Providers.exporting(
        traces=(), metrics=exporters("metrics"), logs=(), service="rag-eval-otel"
    )


# --- sources --------------------------------------------------------------------------------------


class Source(Protocol):
    """Where spans come from."""

    @property
    def has_failed(self) -> bool:
        """Whether `wait` has ended because no more spans can be read."""

    def start(self, engine: Engine) -> None:
        """Pass requests to ``engine`` from now on."""

    def wait(self, stopping: threading.Event) -> float | None:
        """Return when the source has ended, or ``stopping`` is set.

        The result is the time in seconds for the last scores and exports, or None for the default.
        """

    def drain(self, timeout: float) -> None:
        """Take no more spans, and let the requests under way end."""

    def close(self) -> None:
        """Close the source after the engine was shut down."""


def _source(options: argparse.Namespace, meters: MeterProvider | None) -> Source:
    if options.kafka is not None:
        _check_unused(options, "--kafka", ("--grpc", "--http", "--file", *_OF_RECEIVERS))
        if options.output_topic is not None and options.endpoint is not None:
            msg = "--endpoint cannot be used together with --output-topic, to which alone spans "
            msg += "are written; leave one of them out"
            raise ConfigError(msg)
        return KafkaReader(options, meters)
    check_without_kafka(options)
    if options.file:
        _check_unused(options, "--file", (*_LISTENS, *_OF_RECEIVERS))
        return _Files(options.file)
    if not any((options.grpc, options.http)):
        msg = "there is nothing to read: name an address (--grpc, --http) or a --file"
        raise ConfigError(msg)
    return _Receivers(options, meters)


def _check_unused(options: argparse.Namespace, source: str, others: Iterable[str]) -> None:
    """Raise `ConfigError` if one of the options ``others`` is given, which ``source`` excludes."""
    for name in others:
        given = getattr(options, name.removeprefix("--").replace("-", "_"))
        default, _ = _LISTENS.get(name, (None, ""))
        if given and given is not default:  # an equal address on the command line is another object
            msg = f"{name} cannot be used together with {source}, from which alone spans are read; "
            msg += "leave it out, or run another process"
            raise ConfigError(msg)


class _Receivers:
    """Servers for OTLP over gRPC and over HTTP."""

    has_failed = False

    def __init__(self, options: argparse.Namespace, meters: MeterProvider | None) -> None:
        from rag_eval_otel.worker.listening import ReceiverOptions  # noqa: PLC0415

        tls = {name: getattr(options, name) for name in ("certificate", "key", "client_ca")}
        make = partial(ReceiverOptions, **tls, token=_token(options.token_file))
        chosen = {
            "grpc_port": options.grpc,
            "http_port": options.http,
            "probe_port": options.probes,
        }
        none: dict[str, Any] = dict.fromkeys(chosen)
        self._options = [
            make(host=address.host, **{**none, name: address.port})
            for name, address in chosen.items()
            if address is not None
        ]
        self._meters = meters
        self._receivers: list[Any] = []

    def start(self, engine: Engine) -> None:
        from rag_eval_otel.worker.receiver import Probes, Receiver  # noqa: PLC0415

        probes = Probes(is_ready=lambda: engine.state == "ready")
        try:
            for one in self._options:
                made = Receiver(engine, one, probes=probes, meter_provider=self._meters)
                self._receivers.append(made.start())
        except ConfigError:
            self.close()
            raise
        for one in self._receivers:
            for kind in ("grpc", "http", "probe"):
                port = getattr(one, f"{kind}_port")
                if port is not None:
                    sys.stderr.write(f"rag-eval-otel: listening for {kind} at port {port}\n")
        sys.stderr.flush()

    def wait(self, stopping: threading.Event) -> float | None:
        stopping.wait()
        return None

    def drain(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        for one in self._receivers:  # all of them, before the first is waited for
            one.refuse()
        for one in self._receivers:
            one.drain(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        for one in self._receivers:
            one.stop()


def _token(path: str) -> str | None:
    if not path:
        return None
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        msg = f"--token-file {path} cannot be read: {error}"
        raise ConfigError(msg) from error


class _Files:
    """Files of the collector's file exporter."""

    has_failed = False

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        for path in paths:
            next(iter(read_requests(path)), None)  # raises an error before anything is sent

    def start(self, engine: Engine) -> None:
        self._engine = engine

    def wait(self, stopping: threading.Event) -> float | None:
        """Pass on all spans, as fast as their turns are scored."""
        from rag_eval_otel.worker.wire import OverloadedError, Receipt, count_spans  # noqa: PLC0415

        for signal_name, request in (one for path in self._paths for one in _requests_in(path)):
            while not stopping.is_set():
                try:
                    if signal_name == "logs":
                        self._engine.accept_logs(request)
                    else:
                        receipt = Receipt(count_spans(request), lambda: None)
                        self._engine.accept(request, receipt)
                    break
                except OverloadedError as error:
                    stopping.wait(error.retry_after / 10)
            if stopping.is_set():
                return None
        return _FILE_SECONDS

    def drain(self, timeout: float) -> None:
        """Do nothing: there are no requests under way."""

    def close(self) -> None:
        """Do nothing: the files are closed."""


def _requests_in(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the requests of spans and of log records in the file ``path``, each with its signal."""
    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs  # noqa: PLC0415
    from opentelemetry.proto.collector.trace.v1 import (  # noqa: PLC0415
        trace_service_pb2 as traces,
    )

    from rag_eval_otel.worker.intake import message_of, otlp_of  # noqa: PLC0415

    kinds: dict[str, tuple[str, Any]] = {
        "resourceSpans": ("traces", traces.ExportTraceServiceRequest),
        "resourceLogs": ("logs", logs.ExportLogsServiceRequest),
    }
    for message in read_requests(path):
        if isinstance(message, logs.ExportLogsServiceRequest):
            yield "logs", message
            continue
        if isinstance(message, traces.ExportTraceServiceRequest):
            yield "traces", message
            continue
        for name, (kind, request) in kinds.items():
            resources = message.get(name)
            if not resources:
                continue
            part = {name: resources}
            try:
                if _has_hex_ids(resources):
                    yield kind, otlp_of(request, part)
                else:
                    yield kind, message_of(request, part)
            except (AttributeError, RecursionError, TypeError, ValueError) as error:
                msg = f"{path}: is not valid OTLP: {error}"
                raise ConfigError(msg) from error


def _has_hex_ids(resources: Iterable[Any]) -> bool:
    """Return True if ids are hexadecimal, as in OTLP JSON, and not base64, as of protobuf."""
    scopes = (s for one in resources for s in one.get("scopeSpans") or one.get("scopeLogs") or ())
    parts = (p for one in scopes for p in one.get("spans") or one.get("logRecords") or ())
    found = next((p["traceId"] for p in parts if p.get("traceId")), "")
    return not found or len(found) == _HEX_DIGITS
