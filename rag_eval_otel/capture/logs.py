"""`LogTap`: log records that hold what an LLM was asked and said, for the span they belong to.

Some instrumentations (openai-v2, OpenTelemetry's own for GenAI) put content there, not on the span.
The SDK takes no processor of log records off again: a tap that nobody listens to does nothing, and
is found again when the provider is instrumented anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Any

from rag_eval_otel import semconv
from rag_eval_otel.capture.span import LogView
from rag_eval_otel.runtime.guard import Edge

_MARK = "_rag_eval_otel_tap"
_PREFIX = "gen_ai."


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Listener:
    """Who hears of log records: ``heard(trace_id, span_id, record)``, kept in by ``edge``.

    What is written on ``own_threads`` is the judge's.
    """

    heard: Callable[[int, int, LogView], None]
    edge: Edge
    own_threads: Collection[int] = ()

    def tell(self, name: str, record: Any) -> None:
        """Hand a record on, if it was written within a span."""
        if not record.span_id or get_ident() in self.own_threads:
            return
        with self.edge:
            view = LogView(event=name, body=record.body, attributes=record.attributes or {})
            self.heard(record.trace_id, record.span_id, view)


class LogTap:
    """A processor of log records for the SDK's logger provider; exports nothing."""

    def __init__(self) -> None:
        """Tell nobody yet."""
        self._listeners: tuple[Listener, ...] = ()

    def open(self, listener: Listener) -> None:
        """Tell ``listener`` from now on."""
        self._listeners = (*self._listeners, listener)

    def close(self, listener: Listener) -> None:
        """Tell ``listener`` no more."""
        self._listeners = tuple(one for one in self._listeners if one is not listener)

    def on_emit(self, log_record: Any) -> None:
        """Look at a log record that was written."""
        if self._listeners:
            record = log_record.log_record
            name = record.event_name
            if name is None and record.attributes:
                name = record.attributes.get("event.name")
            if may_be_read(name):
                for listener in self._listeners:
                    listener.tell(name, record)

    def enabled(self, *, event_name: str | None = None, **_: Any) -> bool:
        """Tell whether a record of this name would be looked at."""
        return bool(self._listeners) and may_be_read(event_name)

    def shutdown(self) -> None:
        """Tell nobody any more."""
        self._listeners = ()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002  # the SDK's name
        """There is nothing to export."""
        return True


def may_be_read(event: object) -> bool:
    """Tell whether a dialect reads log records of this name; those of our own it does not."""
    if not isinstance(event, str):
        return False
    return event.startswith(_PREFIX) and event != semconv.EVALUATION_EVENT


def listen(provider: object, listener: Listener) -> Callable[[], None]:
    """Let ``listener`` hear of a logger provider's records, if it is the SDK's; return the end."""
    tap = _tap_of(provider)
    if tap is None:
        return _nothing
    tap.open(listener)
    return partial(tap.close, listener)


def _nothing() -> None:
    """There is nothing to end."""


def _tap_of(provider: Any) -> LogTap | None:
    add = getattr(provider, "add_log_record_processor", None)
    known = getattr(provider, _MARK, None)
    if add is None or isinstance(known, LogTap):
        return known
    tap = LogTap()
    add(tap)
    with suppress(AttributeError):  # slots: then it gets another tap next time
        setattr(provider, _MARK, tap)
    return tap
