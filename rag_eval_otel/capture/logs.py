"""Read the log records that an application writes within its spans: some have texts of turns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rag_eval_otel import semconv
from rag_eval_otel.capture.conventions import LOG_EVENTS
from rag_eval_otel.capture.span import LogView
from rag_eval_otel.capture.trace import Key, size_of_log
from rag_eval_otel.runtime.guard import JUDGING, Edge

_MARK = "_rag_eval_otel_tap"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Listener:
    """Passes the log records that the application writes within spans to ``add_log``.

    Log records of a judge are left out. ``edge`` keeps our exceptions from the application.
    """

    add_log: Callable[[int, int, LogView], None]
    edge: Edge

    def tell(self, name: str, record: Any) -> None:
        """Pass the log ``record`` on if the record was written within a span.

        ``name`` is the event name of the record.
        """
        if not record.span_id or JUDGING.get() is not None:
            return
        with self.edge:
            view = LogView(event=name, body=record.body, attributes=record.attributes or {})
            self.add_log(record.trace_id, record.span_id, view)


class LogTap:
    """A log record processor for the OpenTelemetry SDK that passes log records to listeners.

    The processor exports nothing.
    """

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()

    def open(self, listener: Listener) -> None:
        self._listeners = (*self._listeners, listener)

    def close(self, listener: Listener) -> None:
        self._listeners = tuple(one for one in self._listeners if one is not listener)

    def on_emit(self, log_record: Any) -> None:
        if self._listeners:
            record = log_record.log_record
            name = record.event_name
            if name is None and record.attributes:
                name = record.attributes.get("event.name")
            if may_be_read(name):
                for listener in self._listeners:
                    listener.tell(name, record)

    def enabled(self, *, event_name: str | None = None, **_: Any) -> bool:
        """Return True if there is a listener and log records of this event are read.

        ``event_name`` is the name of the event.
        """
        return bool(self._listeners) and may_be_read(event_name)

    def shutdown(self) -> None:
        """Remove all listeners of this processor, so that no more log records are passed on."""
        self._listeners = ()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002  # the SDK's name
        """Return True, because this processor exports nothing."""
        return True


def may_be_read(event: object) -> bool:
    """Return True if log records with the event name ``event`` may contain parts of a RAG trace.

    The event in which this library reports a score is not read.
    """
    if not isinstance(event, str):
        return False
    return event.startswith(LOG_EVENTS) and event != semconv.EVALUATION_EVENT


def log_tap(provider: Any) -> LogTap | None:
    """Return the `LogTap` of the logger ``provider``, and add a `LogTap` if there is none yet.

    Return None if ``provider`` is not the logger provider of the OpenTelemetry SDK. Other providers
    take no log record processors.
    """
    add = getattr(provider, "add_log_record_processor", None)
    known = getattr(provider, _MARK, None)
    if add is None or isinstance(known, LogTap):
        return known
    tap = LogTap()
    add(tap)
    with suppress(AttributeError):  # has slots: it gets another tap at the next call
        setattr(provider, _MARK, tap)
    return tap


_SPANS = 1024  # the most spans whose log records are kept; some spans never end, or are not sampled

_LOST_RECORDS = (LogView(event=""),)  # stands for log records that were dropped


class PendingLogs:
    """Stores log records by the trace id and span id of their span until that span has ended.

    If the records take more than ``max_bytes``, the records of the oldest spans are dropped.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.clear()

    def clear(self) -> None:
        self._records: OrderedDict[Key, Sequence[LogView]] = OrderedDict()
        self.size = 0

    def add(self, key: Key, record: LogView) -> None:
        known = self._records.get(key, ())
        if known is _LOST_RECORDS:
            return
        self._records[key] = (*known, record)
        self.size += size_of_log(record)
        for oldest in list(self._records) if self.size > self._max_bytes else ():
            self.take(oldest)
            self._records[oldest] = _LOST_RECORDS
            if self.size <= self._max_bytes:
                break
        while len(self._records) > _SPANS:
            self.take(next(iter(self._records)))

    def take(self, key: Key) -> Sequence[LogView]:
        """Remove and return the log records of one span. ``key`` is its trace id and span id."""
        found = self._records.pop(key, ())
        if found is not _LOST_RECORDS:
            self.size -= sum(map(size_of_log, found))
        return found
