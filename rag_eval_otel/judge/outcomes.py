"""Tell how an attempt at a request ended, from an error of this or of another library."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Literal, TypeAlias

from rag_eval_otel.errors import (
    JudgeAuthError,
    JudgeRateLimitError,
    JudgeRequestError,
    JudgeTimeoutError,
    JudgeTransportError,
    JudgeUnavailableError,
    UnparsableReplyError,
)
from rag_eval_otel.log import class_name
from rag_eval_otel.types import Replies

Outcome: TypeAlias = Literal[
    "ok",
    "bad_request",
    "cancelled",
    "internal",
    "not_found",
    "rate_limited",
    "timeout",
    "transport",
    "unauthorized",
    "unparsable",
]
"""How an attempt ended. ``bad_request`` is a refusal of the request's content (400, 413, 422)."""

_STATUS: Mapping[int, Outcome] = {
    401: "unauthorized",
    403: "unauthorized",
    404: "not_found",
    408: "timeout",
    429: "rate_limited",
}
_CLIENT_ERROR, _SERVER_ERROR = 400, 500
_KINDS: tuple[tuple[type[BaseException], Outcome], ...] = (
    (asyncio.CancelledError, "cancelled"),
    (JudgeUnavailableError, "cancelled"),  # the budget is spent: nothing was sent
    (asyncio.TimeoutError, "timeout"),
    (JudgeTimeoutError, "timeout"),
    (JudgeAuthError, "unauthorized"),
    (JudgeRateLimitError, "rate_limited"),
    (JudgeRequestError, "bad_request"),
    (UnparsableReplyError, "unparsable"),
    (JudgeTransportError, "transport"),
    (TimeoutError, "timeout"),
    (ConnectionError, "transport"),
)


def outcome_of(error: BaseException) -> Outcome:
    """Return the outcome of an attempt that raised ``error``, of this or of another library."""
    status = status_of(error)
    if status is not None and status >= _CLIENT_ERROR:
        other: Outcome = "transport" if status >= _SERVER_ERROR else "bad_request"
        return _STATUS.get(status, other)
    for kind, outcome in _KINDS:
        if isinstance(error, kind):
            return outcome
    # By name, because the errors of the client libraries have no base class in common.
    kinds = " ".join(map(class_name, type(error).__mro__))
    if "Timeout" in kinds:
        return "timeout"
    if "Credentials" in kinds:
        return "unauthorized"
    return "transport" if "Connect" in kinds else "internal"


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status in ``error``, of this library, an HTTP client or botocore, or None."""
    response = _attribute(error, "response")
    metadata = response.get("ResponseMetadata") if isinstance(response, dict) else None
    statuses = [_attribute(error, name) for name in ("status", "status_code")]
    statuses.append(metadata.get("HTTPStatusCode") if isinstance(metadata, dict) else None)
    return next((status for status in statuses if isinstance(status, int)), None)


def _attribute(error: BaseException | None, name: str) -> Any:
    """Return an attribute that was set, or None; code of ``error``, as a property, is not run."""
    return getattr(error, "__dict__", {}).get(name)


def retry_after_of(error: BaseException | None) -> float | None:
    """Return the seconds that the server, in ``error``, asks to wait; None if it does not."""
    seconds = _attribute(error, "retry_after")
    if isinstance(seconds, int | float):
        return float(seconds)
    headers = getattr(_attribute(error, "response"), "headers", None)
    return retry_after(headers) if isinstance(headers, Mapping) else None


def retry_after(
    headers: Mapping[str, str], *, now: Callable[[], float] = time.time
) -> float | None:
    """Return the seconds in the ``headers`` ``retry-after-ms`` or ``Retry-After``, at least 0.

    An HTTP date is compared with the header ``Date``, or else with ``now()`` (Unix time).
    """
    found = _seconds(headers.get("retry-after-ms"))
    if found is not None:
        return found / 1000
    told = headers.get("retry-after")
    found = _seconds(told)
    if found is not None or told is None:
        return found
    until, sent = _date(told), _date(headers.get("date"))
    return None if until is None else max(0.0, until - (now() if sent is None else sent))


def _seconds(told: str | None) -> float | None:
    try:
        found = float(told or "")
    except (ValueError, TypeError):  # an exception of a user may have any headers
        return None
    return max(0.0, found) if math.isfinite(found) else None


def _date(told: str | None) -> float | None:
    try:
        return None if told is None else parsedate_to_datetime(told).timestamp()
    except (ValueError, OverflowError, TypeError):
        return None


def is_usable(replies: Replies) -> bool:
    """Return True if at least one part of ``replies`` fits its task, or if there are no parts."""
    bad = [isinstance(part, UnparsableReplyError) for part in replies.parts]
    return not (bad and all(bad))
