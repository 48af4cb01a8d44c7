"""Where the standard ``OTEL_*`` variables send each signal, and how."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Final, Literal
from urllib.parse import urlsplit

from opentelemetry.util.re import parse_env_headers

from rag_eval_otel.config import Signal, exporter_names

Protocol = Literal["grpc", "http"]

SIGNALS: Final[tuple[Signal, ...]] = ("traces", "metrics", "logs")
PORTS: Final[Mapping[Protocol, int]] = {"grpc": 4317, "http": 4318}
_OTLP: Final[Mapping[str, Protocol]] = {"otlp_proto_grpc": "grpc", "otlp_proto_http": "http"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where one signal goes; ``endpoint`` is a URL, over gRPC of a host and port alone.

    ``source`` is the variable that names it, empty where none does. Headers may hold keys.
    """

    signal: Signal
    protocol: Protocol
    endpoint: str
    source: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    certificate: str | None = None
    client_key: str | None = None
    client_certificate: str | None = None
    is_plain: bool = True
    """Whether it is not encrypted, over gRPC."""
    named_protocol: bool = True
    """Whether a variable names the protocol, or it follows from the port."""

    @property
    def host(self) -> str:
        """The host's name."""
        return _parts(self.endpoint)[0]

    @property
    def port(self) -> int:
        """The port, the protocol's own where none is named."""
        return _parts(self.endpoint)[1] or PORTS[self.protocol]

    def tls(self) -> ssl.SSLContext:
        """Return how the server is to prove itself; raises `OSError` for an unreadable file."""
        context = ssl.create_default_context(cafile=self.certificate)
        if self.client_certificate:
            context.load_cert_chain(self.client_certificate, self.client_key)
        return context


def _parts(endpoint: str) -> tuple[str, int | None]:
    parts = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
    try:
        return parts.hostname or "localhost", parts.port
    except ValueError:  # not a number
        return parts.hostname or "localhost", None


def otlp_targets(environ: Mapping[str, str]) -> list[Target]:
    """Return where the signals go that are exported over OTLP."""
    return [
        target_of(signal, _OTLP[name], environ)
        for signal in SIGNALS
        for name in exporter_names(signal, environ)
        if name in _OTLP
    ]


def target_of(signal: Signal, protocol: Protocol, environ: Mapping[str, str]) -> Target:
    """Return where ``signal`` goes over ``protocol``."""
    source, endpoint = _endpoint(signal, protocol, environ)
    return Target(
        signal=signal,
        protocol=protocol,
        endpoint=endpoint,
        source=source,
        headers=parse_env_headers(_read(signal, "HEADERS", environ) or "", liberal=True),
        certificate=_read(signal, "CERTIFICATE", environ),
        client_key=_read(signal, "CLIENT_KEY", environ),
        client_certificate=_read(signal, "CLIENT_CERTIFICATE", environ),
        is_plain=_is_plain(signal, endpoint, environ),
        named_protocol=_read(signal, "PROTOCOL", environ) is not None,
    )


def _endpoint(signal: Signal, protocol: Protocol, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the variable that names the endpoint, and the endpoint.

    Over HTTP the signal's own variable is used as it is; to the common one a path is added.
    """
    own, common = f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
    path = f"/v1/{signal}" if protocol == "http" else ""
    if environ.get(own):
        return own, environ[own]
    if environ.get(common):
        return common, environ[common].rstrip("/") + path
    return "", f"http://localhost:{PORTS[protocol]}{path}"


def _read(signal: Signal, suffix: str, environ: Mapping[str, str]) -> str | None:
    own = environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_{suffix}")
    return own or environ.get(f"OTEL_EXPORTER_OTLP_{suffix}") or None


def _is_plain(signal: Signal, endpoint: str, environ: Mapping[str, str]) -> bool:
    scheme, _, rest = endpoint.partition("://")
    if scheme == "https":
        return False
    told = _read(signal, "INSECURE", environ)
    return told.lower() == "true" if told else bool(rest) and scheme == "http"


def missing_exporters(environ: Mapping[str, str]) -> list[tuple[Signal, str]]:
    """Return the exporters that the variables name and that are not installed."""
    return [
        (signal, name)
        for signal in SIGNALS
        for name in exporter_names(signal, environ)
        if not entry_points(group=f"opentelemetry_{signal}_exporter", name=name)
    ]
