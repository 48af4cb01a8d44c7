"""Read environment variables that are not options, and name the variables of options.

This module and `rag_eval_otel.config` are the only ones that read the environment. Standard
``OTEL_*`` variables have their standard meaning.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal

from rag_eval_otel.providers import parts_of

Signal = Literal["traces", "metrics", "logs"]
KeySource = Literal["variable", "code", "none"]

PREFIX = "RAG_EVAL_"
DOCTOR = "RAG_EVAL_DOCTOR"
"""The variable that switches on reports for ``rag-eval-otel doctor``; it is not an option."""

SDK_METRICS = "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED"
"""The variable with which the OpenTelemetry SDK reports metrics on itself."""


def variable(name: str) -> str:
    """Return the name of the variable that sets the option ``name``."""
    return PREFIX + name.upper()


def names_in(value: str, separator: str = ",") -> tuple[str, ...]:
    """Return the names in ``value``, without blanks around them and without empty names."""
    return tuple(name.strip() for name in value.split(separator) if name.strip())


def first_set(names: Sequence[str], environ: Mapping[str, str] | None = None) -> str | None:
    """Return the value of the first variable in ``names`` that is set and not empty, or None."""
    environ = os.environ if environ is None else environ
    return next((environ[name] for name in names if environ.get(name)), None)


def exporter_names(signal: Signal, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the exporters that the ``OTEL_*`` variables name for ``signal``, as entry point names.

    ``otlp`` becomes the entry point for a protocol. The protocol is gRPC by default, but HTTP if
    the endpoint has the port 4318, or if the variables name HTTP.
    """
    environ = os.environ if environ is None else environ
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
    return ":4318" in _otlp(signal, "ENDPOINT", environ)


def guessed_grpc_endpoint(signal: Signal, environ: Mapping[str, str] | None = None) -> str | None:
    """Return the endpoint of ``signal`` if gRPC is used there only because nothing says otherwise.

    That is: an endpoint is named, no variable names a protocol, and the port is neither 4317, the
    port of gRPC, nor 4318. Otherwise return None.
    """
    environ = os.environ if environ is None else environ
    url = _otlp(signal, "ENDPOINT", environ)
    is_told = _otlp(signal, "PROTOCOL", environ) or ":4317" in url or ":4318" in url
    return None if is_told or not url else url


def otlp_variables() -> dict[str, str]:
    """Return the environment variables ``OTEL_*``."""
    return {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}


def otlp_endpoint(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the OTLP endpoint for traces that the environment names, or None."""
    environ = os.environ if environ is None else environ
    special = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return special or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or None


def doctor_notes(environ: Mapping[str, str] | None = None) -> str:
    """Return the folder for the reports that `rag-eval-otel doctor` reads.

    Return ``1`` if the report is to be printed to stderr, and ``""`` if no report is wanted.
    """
    environ = os.environ if environ is None else environ
    return environ.get(DOCTOR, "").strip()


def sdk_metrics_enabled(environ: Mapping[str, str] | None = None) -> bool:
    """Return True if the OpenTelemetry SDK reports metrics on itself."""
    environ = os.environ if environ is None else environ
    return environ.get(SDK_METRICS, "").strip().lower() == "true"


def key_source(
    key: str | None,
    judge: object = "openai/",
    *,
    environ: Mapping[str, str] | None = None,
) -> KeySource:
    """Return where the API key of ``judge`` comes from: ``code``, ``variable`` or ``none``.

    ``key`` is the key that the configuration has.
    """
    environ = os.environ if environ is None else environ
    found = parts_of(judge) if isinstance(judge, str) else None
    names = found[0].keys if found else ("OPENAI_API_KEY",)
    known = [environ.get(name) for name in (variable("judge_api_key"), *names)]
    if key and key not in known:
        return "code"
    return "variable" if any(known) else "none"
