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
from rag_eval_otel.runtime.guard import Edge, judging

_MARK = "_rag_eval_otel_tap"


class LogTap:
    """A log record processor of the SDK that passes log records to listeners, and exports none."""

    def __init__(self) -> None:
        # By what listens, a function that takes its log records, and what handles its errors.
        self.listeners: dict[object, tuple[Callable[[int, int, LogView], None], Edge]] = {}

    def on_emit(self, log_record: Any) -> None:
        if not self.listeners or judging() is not None:
            return
        record = log_record.log_record
        values = record.attributes or {}
        name: Any = values.get("event.name") if record.event_name is None else record.event_name
        if record.span_id and may_be_read(name):
            for add_log, edge in tuple(self.listeners.values()):
                with edge:
                    view = LogView(event=name, body=record.body, attributes=values)
                    add_log(record.trace_id, record.span_id, view)

    def enabled(self, *, event_name: str | None = None, **_: Any) -> bool:
        return bool(self.listeners) and may_be_read(event_name)

    def shutdown(self) -> None:
        self.listeners.clear()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002  # the SDK's name
        return True


def may_be_read(event: object) -> bool:
    """Return True if log records of ``event`` may have texts of a turn. Scores have none."""
    is_read = isinstance(event, str) and event.startswith(LOG_EVENTS)
    return is_read and event != semconv.EVALUATION_EVENT


def log_tap(provider: Any) -> LogTap | None:
    """Return the `LogTap` of ``provider``, a new one at first; None if it takes no processors."""
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


@dataclass(kw_only=True, eq=False, repr=False)
class PendingLogs:
    """Stores log records until their span has ended; drops the oldest above ``max_bytes``."""

    max_bytes: int

    def __post_init__(self) -> None:
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
        for oldest in list(self._records) if self.size > self.max_bytes else ():
            self.take(oldest)
            self._records[oldest] = _LOST_RECORDS
            if self.size <= self.max_bytes:
                break
        while len(self._records) > _SPANS:
            self.take(next(iter(self._records)))

    def take(self, key: Key) -> Sequence[LogView]:
        records = self._records.pop(key, ())
        if records is not _LOST_RECORDS:
            self.size -= sum(map(size_of_log, records))
        return records
