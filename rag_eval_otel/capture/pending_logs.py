"""`PendingLogs`: log records whose span has not ended yet."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeAlias

from rag_eval_otel.capture.segment import size_of_log
from rag_eval_otel.capture.view import LogView

_SPANS = 1024  # whose records are kept; some spans never end, or are not sampled

_LOST = (LogView(event=""),)  # in the place of records that had to go: it tells nothing

_Key: TypeAlias = "tuple[int, int]"


class PendingLogs:
    """Log records by trace and span; over ``max_bytes`` those of the oldest spans go."""

    def __init__(self, *, max_bytes: int) -> None:
        """Keep nothing yet."""
        self._max_bytes = max_bytes
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self._records: OrderedDict[_Key, Sequence[LogView]] = OrderedDict()
        self.size = 0

    def add(self, key: _Key, record: LogView) -> None:
        """Keep ``record`` until its span is taken."""
        known = self._records.get(key, ())
        if known is _LOST:
            return
        self._records[key] = (*known, record)
        self.size += size_of_log(record)
        for oldest in list(self._records) if self.size > self._max_bytes else ():
            self.take(oldest)
            self._records[oldest] = _LOST
            if self.size <= self._max_bytes:
                break
        while len(self._records) > _SPANS:
            self.take(next(iter(self._records)))

    def take(self, key: _Key) -> Sequence[LogView]:
        """Return what was written within a span, and forget it."""
        found = self._records.pop(key, ())
        if found is not _LOST:
            self.size -= sum(map(size_of_log, found))
        return found
