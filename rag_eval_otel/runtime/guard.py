"""Keep this library's exceptions, repeated log lines and own requests from the application."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

from opentelemetry import context as otel_context

from rag_eval_otel.errors import MissingDependencyError
from rag_eval_otel.log import cause_of, log

# The OpenTelemetry API creates these keys in each process and gives them no public name. Older
# instrumentations look for the plain words instead.
_SILENT = (otel_context._SUPPRESS_INSTRUMENTATION_KEY, "suppress_instrumentation")  # noqa: SLF001
_HTTP = (otel_context._SUPPRESS_HTTP_INSTRUMENTATION_KEY, "suppress_http_instrumentation")  # noqa: SLF001
EXTRA: Final = "tools"
# The evaluator for which the current code runs. Its spans and logs are not the application's.
JUDGING: Final[ContextVar[object]] = ContextVar("rag_eval_otel_judging", default=None)


def judging() -> object:
    """Return the evaluator whose thread this is, or None on the application's threads."""
    # `JUDGING` alone is not enough: a coroutine that a sink runs in the application's loop gets it.
    by = JUDGING.get()
    return by if by and threading.current_thread().name.startswith("rag-eval-otel") else None


def silence() -> None:
    """Suppress OpenTelemetry instrumentation in the current context from now on."""
    context = otel_context.get_current()
    for key in (*_SILENT, *_HTTP):
        context = otel_context.set_value(key, value=True, context=context)
    otel_context.attach(context)


def is_silent() -> bool:
    context = otel_context.get_current()
    return bool(context) and any(context.get(key) for key in _SILENT)


def is_stand_in(provider: object) -> bool:
    """Return True if ``provider`` is the API's placeholder, because the application set none."""
    return any(word in type(provider).__name__ for word in ("Proxy", "NoOp"))


def require(module: str, extra: str = EXTRA) -> Any:
    """Import ``module``; raise `MissingDependencyError` with ``extra`` if it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingDependencyError(error.name or module, extra) from error


@dataclass(kw_only=True, eq=False, repr=False)
class LimitedLog:
    """Logs one warning of each kind within ``seconds``; counts the others, at debug level."""

    seconds: float = 60.0
    clock: Callable[[], float] = time.monotonic
    raise_errors: bool = False  # log errors with their messages, for tests
    # Kind to time of the last warning, and number of warnings left out since then.
    _kinds: dict[str, tuple[float, int]] = field(default_factory=dict, init=False)

    def write(
        self, kind: str, message: str, *args: object, error: BaseException | None = None
    ) -> None:
        """Log ``message % args`` as a warning, or at debug level if ``kind`` was just logged."""
        now = self.clock()
        last, left_out = self._kinds.get(kind, (float("-inf"), 0))
        if now - last < self.seconds:
            self._kinds[kind] = (last, left_out + 1)
            log.debug(message, *args, exc_info=error)
            return
        if len(self._kinds) == 256:  # noqa: PLR2004  # they may be made of the names of exceptions
            self._kinds.clear()
        self._kinds[kind] = (now, 0)
        text = f"{message} ({left_out} more such messages were left out)" if left_out else message
        log.warning(text, *args, exc_info=error)

    def write_error(self, part: str, error: BaseException, *, kind: str = "") -> None:
        """Log that ``part`` raised ``error``: its class and its place in the code."""
        with suppress(Exception):  # the application's log filters may raise an exception
            cause = cause_of(error)
            shown = error if self.raise_errors else None
            message = "failed in %s; the application is unaffected: %s"
            self.write(kind or f"{part} {cause}", message, part, cause, error=shown)


@dataclass(slots=True, eq=False, repr=False)
class Edge:
    """Catches exceptions in a ``with`` block, calls ``on_error(place)``, and logs them.

    ``part`` is the name in the log, or else ``place``; ``raise_errors``: raise them again, too.
    """

    place: str
    on_error: Callable[[str], None]
    raise_errors: bool = False
    part: str = ""
    log: LimitedLog = field(default_factory=LimitedLog)

    def __post_init__(self) -> None:
        self.log.raise_errors |= self.raise_errors

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> bool:
        if not isinstance(error, Exception):
            return False
        with suppress(Exception):  # the application's meter may raise an exception
            self.on_error(self.place)
        self.log.write_error(self.part or self.place, error, kind=self.place)
        return not self.raise_errors
