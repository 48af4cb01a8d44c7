"""The logger of this library, and the form of exceptions and addresses in log lines.

Log lines never have texts of users, keys, or replies of servers; messages of exceptions may.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, MutableMapping
from types import TracebackType
from typing import Any, Final
from urllib.parse import urlsplit

_CALLS: Final = 6  # innermost calls that are named: a library's own, and who called the library
_MAX_NAME: Final = 200  # characters of a file name or a class name: an `exec` may invent long ones


class _Named(logging.LoggerAdapter):  # type: ignore[type-arg]  # none in Python 3.10
    """Begins each message with the name of this library."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[str, MutableMapping[str, Any]]:
        return f"rag_eval_otel: {msg}", kwargs


log: Final = _Named(logging.getLogger("rag_eval_otel"), {})  # no module has another one


def cause_of(error: BaseException) -> str:
    """Return the class of ``error`` and its last 6 calls, innermost first, without its message."""
    calls = list(deque(_calls(error.__traceback__), maxlen=_CALLS))
    return " < ".join([f"{_short(type(error).__name__)} at {calls.pop()}", *reversed(calls)])


def _calls(traceback: TracebackType | None) -> Iterator[str]:
    if traceback is None:
        yield "an unknown place"
    while traceback is not None:
        code = traceback.tb_frame.f_code
        yield f"{_short(code.co_filename)}:{traceback.tb_lineno} ({_short(code.co_name)})"
        traceback = traceback.tb_next


def _short(name: str) -> str:
    """Return the last 200 characters of ``name``, with ``?`` for those that cannot be printed."""
    return "".join(one if one.isprintable() else "?" for one in name[-_MAX_NAME:])


def address_of(url: str) -> str:
    """Return scheme, host, port and path of ``url``: the rest may have a key or a password."""
    try:
        parts = urlsplit(url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "an address that is no URL"
    return _short(f"{parts.scheme}://{host}{port}{parts.path}") if host else "an unknown address"
