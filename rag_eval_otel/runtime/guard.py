"""Protect the application from this library.

`Edge` catches the exceptions of this library. `silence` suppresses instrumentation, so that the
library's own requests make no spans.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from opentelemetry import context as otel_context

from rag_eval_otel.runtime.limited_log import LimitedLog

# The OpenTelemetry API creates these keys in each process and gives them no public name. Older
# instrumentations look for the plain words instead.
_SILENT = (otel_context._SUPPRESS_INSTRUMENTATION_KEY, "suppress_instrumentation")  # noqa: SLF001
_SILENT_HTTP = (
    otel_context._SUPPRESS_HTTP_INSTRUMENTATION_KEY,  # noqa: SLF001
    "suppress_http_instrumentation",
)


def silence() -> None:
    """Suppress instrumentation in the current context from now on."""
    context = otel_context.get_current()
    for key in (*_SILENT, *_SILENT_HTTP):
        context = otel_context.set_value(key, value=True, context=context)
    otel_context.attach(context)


def is_silent() -> bool:
    """Return True if instrumentation is suppressed in the current context."""
    context = otel_context.get_current()
    return bool(context) and any(context.get(key) for key in _SILENT)


class Edge:
    """A context manager that keeps exceptions of this library from the application.

    For each exception, ``on_error(place)`` is called, where ``place`` names a part of this library.
    ``part`` is its name in the log, by default ``place``. An exception is logged once in a minute
    as a warning, otherwise at debug level: its class, and the calls that raised it. Its message may
    quote texts of users, and is logged only with ``raise_errors``, for tests, or if ``log`` does.
    Then exceptions are raised, too. Exceptions that are not subclasses of `Exception`
    (KeyboardInterrupt, cancellation) are always raised, and not logged. Any number of threads may
    enter one instance at once.
    """

    __slots__ = ("_log", "_on_error", "_part", "_place", "_raises")

    def __init__(
        self,
        place: str,
        *,
        on_error: Callable[[str], None],
        raise_errors: bool = False,
        part: str = "",
        log: LimitedLog | None = None,
    ) -> None:
        self._place = place
        self._part = part or place
        self._on_error = on_error
        self._raises = raise_errors
        self._log = log or LimitedLog(raise_errors=raise_errors)

    def __enter__(self) -> None:
        """Do nothing, because all work is done when the ``with`` block ends."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> bool:
        """Count and log an `Exception`, and do not raise it, unless ``raise_errors``."""
        if not isinstance(error, Exception):
            return False
        with suppress(Exception):  # the application's meter may raise an exception
            self._on_error(self._place)
        self._log.write_error(self._part, error, kind=self._place)
        return not self._raises
