"""Protect the application from this library.

`Edge` catches the exceptions of this library. `silence` suppresses instrumentation, so that the
library's own requests make no spans.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from traceback import format_tb
from types import TracebackType
from typing import Literal

from opentelemetry import context as otel_context

from rag_eval_otel.config import ErrorMode
from rag_eval_otel.runtime.limited_log import LimitedLog

_log = logging.getLogger("rag_eval_otel")

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
    One exception in a minute is logged as a warning with its traceback, others at debug level. With
    ``messages="debug"``, for code of the user, the warning leaves out the message of the exception,
    which may quote texts. With ``mode="raise"``, for tests, exceptions are logged and raised.
    Exceptions that are not subclasses of `Exception` (KeyboardInterrupt, cancellation) are always
    raised, and not logged. Any number of threads may enter one instance at the same time.
    """

    __slots__ = ("_log", "_messages", "_mode", "_on_error", "_place")

    def __init__(
        self,
        place: str,
        *,
        on_error: Callable[[str], None],
        mode: ErrorMode = "swallow",
        messages: Literal["warning", "debug"] = "warning",
    ) -> None:
        self._place = place
        self._messages = messages
        self._on_error = on_error
        self._mode = mode
        self._log = LimitedLog()

    def __enter__(self) -> None:
        """Do nothing, because all work is done when the ``with`` block ends."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> bool:
        """Count and log an `Exception`, and do not raise it, unless the mode is ``raise``."""
        if not isinstance(error, Exception):
            return False
        with suppress(Exception):  # the application's meter may raise an exception
            self._on_error(self._place)
        with suppress(Exception):  # the application's log filters may raise an exception
            self._write(error)
        return self._mode == "swallow"

    def _write(self, error: Exception) -> None:
        told = "rag_eval_otel failed in %s; the application is unaffected"
        if self._messages == "warning":
            self._log.write(self._place, told, self._place, error=error)
            return
        _log.debug(told, self._place, exc_info=error)
        calls = "".join(format_tb(error.__traceback__)).rstrip()
        told = f"{told} (%s, whose message is logged at debug level)\n%s"
        self._log.write(self._place, told, self._place, type(error).__name__, calls)
