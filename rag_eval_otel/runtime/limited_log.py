"""`LimitedLog`: limit how often warnings of one kind are logged."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from rag_eval_otel.log import cause_of, log

_MAX_KINDS = 256  # kinds of warnings whose last time is remembered


class LimitedLog:
    """Writes at most one warning of each kind within ``seconds``, and counts the warnings left out.

    The next warning of the same kind says how many were left out, so that a second outage is seen
    in the log. ``clock`` returns the time in seconds. With ``raise_errors=True``, for tests, errors
    are logged with their messages. Any number of threads may use one instance.
    """

    def __init__(
        self,
        *,
        seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        raise_errors: bool = False,
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._raises = raise_errors
        # kind to time of the last warning and number of warnings left out since then
        self._kinds: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def write(
        self, kind: str, message: str, *args: object, error: BaseException | None = None
    ) -> None:
        """Log ``message % args`` with the traceback of ``error``, unless ``kind`` was just logged.

        A message that is left out is logged at debug level.
        """
        now = self._clock()
        last, left_out = self._kinds.get(kind, (float("-inf"), 0))
        if now - last < self._seconds:
            self._kinds[kind] = (last, left_out + 1)
            log.debug(message, *args, exc_info=error)
            return
        self._kinds.pop(kind, None)  # the kinds are in the order of their last warnings
        self._kinds[kind] = (now, 0)
        while len(self._kinds) > _MAX_KINDS:
            self._kinds.popitem(last=False)
        text = f"{message} ({left_out} more such messages were left out)" if left_out else message
        log.warning(text, *args, exc_info=error)

    def write_error(self, part: str, error: BaseException, *, kind: str = "") -> None:
        """Log that ``part`` has raised ``error``: its class, and the calls that raised it.

        The message of ``error`` may quote texts of users; only ``raise_errors=True`` shows it. The
        default of ``kind`` is ``part`` together with class and calls.
        """
        with suppress(Exception):  # the application's log filters may raise an exception
            told = cause_of(error)
            shown = error if self._raises else None
            message = "failed in %s; the application is unaffected: %s"
            self.write(kind or f"{part} {told}", message, part, told, error=shown)
