"""Suppression: how code asks instrumentation to stay silent, and how we ask it for our judge."""

from __future__ import annotations

from opentelemetry import context as otel_context

# The API makes its keys anew in every process and gives them no public name; older
# instrumentations look for the plain words.
_SILENT = (otel_context._SUPPRESS_INSTRUMENTATION_KEY, "suppress_instrumentation")  # noqa: SLF001
_SILENT_HTTP = (
    otel_context._SUPPRESS_HTTP_INSTRUMENTATION_KEY,  # noqa: SLF001
    "suppress_http_instrumentation",
)


def silence() -> None:
    """Silence instrumentation in the current context, for good."""
    context = otel_context.get_current()
    for key in (*_SILENT, *_SILENT_HTTP):
        context = otel_context.set_value(key, value=True, context=context)
    otel_context.attach(context)


def is_silent() -> bool:
    """Tell whether the current context asks for silence."""
    context = otel_context.get_current()
    return bool(context) and any(context.get(key) for key in _SILENT)
