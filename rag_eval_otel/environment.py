"""Read environment variables that are not options, and name the variables of options.

This module and `rag_eval_otel.config` are the only ones that read the environment. Standard
``OTEL_*`` variables have their standard meaning.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from opentelemetry.util.re import parse_env_headers

from rag_eval_otel.errors import ConfigError

Signal = Literal["traces", "metrics", "logs"]

PREFIX = "RAG_EVAL_"
DOCTOR = "RAG_EVAL_DOCTOR"
"""The variable with which a process reports on itself when it ends; it is not an option."""

SDK_METRICS = "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED"
"""The variable with which the OpenTelemetry SDK reports metrics on itself."""

_ON = frozenset({"on", "true", "yes", "1"})
_OFF = frozenset({"off", "false", "no", "0"})


def variable(name: str) -> str:
    """Return the name of the variable that sets the option ``name``."""
    return PREFIX + name.upper()


def names_in(value: str) -> tuple[str, ...]:
    """Return the names in ``value``, without blanks around them and without empty names."""
    return tuple(name.strip() for name in value.split(",") if name.strip())


def switch(text: str) -> bool:
    """Return True for ``on``, ``true``, ``yes`` and ``1``, and False for their opposites.

    Raises `ValueError` for other texts. Capitals do not matter.
    """
    word = text.strip().lower()
    if word not in _ON | _OFF:
        msg = f"must be on or off, not {text!r}"
        raise ValueError(msg)
    return word in _ON


def sdk_disabled() -> bool:
    """Return True if ``OTEL_SDK_DISABLED`` is ``true``: then this library does nothing."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def first_set(names: Sequence[str], environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the value of the first variable in ``names`` that is set and not empty, or None."""
    return next((environ[name] for name in names if environ.get(name)), None)


def exporter_names(signal: Signal, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the exporters that the ``OTEL_*`` variables name for ``signal``, as entry point names.

    ``otlp`` becomes the entry point for a protocol. The protocol is gRPC by default, but HTTP if
    the endpoint has the port 4318, or if the variables name HTTP.
    """
    wanted = names_in(environ.get(f"OTEL_{signal.upper()}_EXPORTER") or "otlp")
    otlp = "otlp_proto_http" if _speaks_http(signal, environ) else "otlp_proto_grpc"
    return tuple(otlp if name == "otlp" else name for name in wanted if name != "none")


def _otlp(signal: Signal, suffix: str, environ: Mapping[str, str]) -> str:
    special = environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_{suffix}")
    return special or environ.get(f"OTEL_EXPORTER_OTLP_{suffix}", "")


def _speaks_http(signal: Signal, environ: Mapping[str, str]) -> bool:
    protocol = _otlp(signal, "PROTOCOL", environ)
    if protocol:
        return protocol.startswith("http")
    return _has_port(4318, _otlp(signal, "ENDPOINT", environ))


def _has_port(port: int, url: str) -> bool:
    return f":{port}/" in f"{url}/"


def guessed_grpc_endpoint(signal: Signal, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the endpoint of ``signal`` if gRPC is used there only because nothing says otherwise.

    That is: an endpoint is named, no variable names a protocol, and the port is neither 4317, the
    port of gRPC, nor 4318. Otherwise return None.
    """
    url = _otlp(signal, "ENDPOINT", environ)
    is_told = _otlp(signal, "PROTOCOL", environ) or _has_port(4317, url) or _has_port(4318, url)
    return None if is_told or not url else url


OtlpProtocol = Literal["grpc", "http/protobuf"]
OtlpCompression = Literal["none", "gzip", "deflate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpTarget:
    """Where and how one signal is exported, as the variables ``OTEL_EXPORTER_OTLP_*`` say.

    ``endpoint`` is a URL, over HTTP with the path of the signal. ``timeout`` is in seconds, for one
    request. ``certificate``, ``client_key`` and ``client_certificate`` are paths of PEM files.
    ``insecure`` means no TLS. Endpoint and headers may have secrets, so they are not in the repr.
    """

    protocol: OtlpProtocol
    endpoint: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 10.0
    compression: OtlpCompression = "none"
    certificate: str = ""
    client_key: str = ""
    client_certificate: str = ""
    insecure: bool = True


def otlp_target(signal: Signal, environ: Mapping[str, str] | None = None) -> OtlpTarget:
    """Return the target of ``signal``, by the rules of the SDK's OTLP exporters.

    A variable of the signal, such as ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT``, has precedence. Raises
    `ConfigError` for a protocol, compression or timeout that cannot be used.
    """
    environ = os.environ if environ is None else environ
    protocol = _otlp(signal, "PROTOCOL", environ)
    if protocol not in {"", "grpc", "http/protobuf"}:
        raise _unusable(protocol, variable="PROTOCOL", allowed="grpc or http/protobuf")
    is_http = _speaks_http(signal, environ)
    endpoint = _http_endpoint(signal, environ) if is_http else _otlp(signal, "ENDPOINT", environ)
    return OtlpTarget(
        protocol="http/protobuf" if is_http else "grpc",
        endpoint=endpoint or "http://localhost:4317",
        headers=parse_env_headers(_otlp(signal, "HEADERS", environ), liberal=True),
        timeout=_timeout(_otlp(signal, "TIMEOUT", environ)),
        compression=_compression(_otlp(signal, "COMPRESSION", environ), is_http=is_http),
        certificate=_otlp(signal, "CERTIFICATE", environ),
        client_key=_otlp(signal, "CLIENT_KEY", environ),
        client_certificate=_otlp(signal, "CLIENT_CERTIFICATE", environ),
        insecure=_is_insecure(endpoint or "http:", _otlp(signal, "INSECURE", environ)),
    )


def _http_endpoint(signal: Signal, environ: Mapping[str, str]) -> str:
    special = environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    base = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or "http://localhost:4318"
    return special or f"{base.removesuffix('/')}/v1/{signal}"


def _timeout(value: str) -> float:
    try:
        seconds = float(value or 10)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        allowed = "a number of seconds above 0, such as 10"
        raise _unusable(value, variable="TIMEOUT", allowed=allowed)
    return seconds


def _compression(value: str, *, is_http: bool) -> OtlpCompression:
    name = value.strip().lower() or "none"
    if name in {"none", "gzip"} or (name == "deflate" and is_http):
        return cast("OtlpCompression", name)
    allowed = "none or gzip, or deflate with http/protobuf"
    raise _unusable(value, variable="COMPRESSION", allowed=allowed)


def _is_insecure(endpoint: str, value: str) -> bool:
    scheme = endpoint.partition(":")[0].lower()
    if scheme == "https":
        return False
    return value.strip().lower() == "true" if value else scheme == "http"


def _unusable(value: str, *, variable: str, allowed: str) -> ConfigError:
    return ConfigError(f"OTEL_EXPORTER_OTLP_{variable} is {value!r}; use {allowed}")


def otlp_variables() -> dict[str, str]:
    """Return the environment variables ``OTEL_*``."""
    return {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}


def otlp_endpoint(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the OTLP endpoint for traces that the environment names, or None."""
    special = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return special or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or None


def doctor_is_on() -> bool:
    """Return True if the process is to print a report when it ends."""
    return os.environ.get(DOCTOR, "").strip() not in {"", "0"}


def sdk_metrics_enabled(environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if the OpenTelemetry SDK reports metrics on itself."""
    return environ.get(SDK_METRICS, "").strip().lower() == "true"
