"""Environment variables that are not options, and the names of the variables of options."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal

Signal = Literal["traces", "metrics", "logs"]

PREFIX = "RAG_EVAL_"
DOCTOR = "RAG_EVAL_DOCTOR"  # not an option: the process reports on itself when it ends

_ON = frozenset({"on", "true", "yes", "1"})
_OFF = frozenset({"off", "false", "no", "0"})


def variable(name: str) -> str:
    return PREFIX + name.upper()


def names_in(value: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in value.split(",") if name.strip())


def switch(text: str) -> bool:
    """Return True for on, true, yes, 1; False for off, false, no, 0; else raise `ValueError`."""
    word = text.strip().lower()
    if word not in _ON | _OFF:
        raise ValueError(f"must be on or off, not {text!r}")
    return word in _ON


def first_set(names: Sequence[str], environ: Mapping[str, str] = os.environ) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)


def sdk_disabled() -> bool:
    """Return True if ``OTEL_SDK_DISABLED`` is ``true``: then this library does nothing."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def doctor_is_on() -> bool:
    return os.environ.get(DOCTOR, "").strip() not in {"", "0"}


def otlp_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}


def otlp_endpoint(environ: Mapping[str, str] = os.environ) -> str | None:
    return _otlp("traces", "ENDPOINT", environ) or None


def exporter_names(signal: Signal, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the entry points of exporters that ``OTEL_*`` sets for ``signal``: ``console``, ..."""
    protocol = _otlp(signal, "PROTOCOL", environ)
    has_http_port = ":4318/" in _otlp(signal, "ENDPOINT", environ) + "/"
    is_http = protocol.startswith("http") if protocol else has_http_port
    names = names_in(environ.get(f"OTEL_{signal.upper()}_EXPORTER") or "otlp")
    otlp = "otlp_proto_http" if is_http else "otlp_proto_grpc"
    return tuple(otlp if name == "otlp" else name for name in names if name != "none")


def _otlp(signal: Signal, suffix: str, environ: Mapping[str, str]) -> str:
    special = environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_{suffix}")
    return special or environ.get(f"OTEL_EXPORTER_OTLP_{suffix}", "")
