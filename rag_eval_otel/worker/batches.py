"""Batches: the spans and log records of one request, taken from a queue.

`Queue` says when its next batch is due. A `Batch` that is too large for the receiver is divided.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from rag_eval_otel.worker.senders import Signal
from rag_eval_otel.worker.wire import Origin, Receipt, log_records_in, serialized_request


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """When a batch is sent, and how many batches are sent at the same time.

    A batch is sent at ``spans`` spans or log records, at ``size`` bytes, or ``delay`` seconds after
    its first one, whichever is first. ``in_flight`` is the number of requests at the same time.
    """

    spans: int = 512
    size: int = 3 * 2**20
    delay: float = 0.2
    in_flight: int = 4


_ITEM_SIZE = 200  # bytes of an item without its content, measured


class Item(NamedTuple):
    """A serialized span, group of spans, or request of log records; ``number`` counts these."""

    kind: Literal["span", "group", "logs"]
    content: bytes
    number: int
    origin: Origin | None = None
    receipt: Receipt | None = None

    @property
    def size(self) -> int:
        """About how many bytes it takes in memory."""
        return len(self.content) + _ITEM_SIZE


class Queue:
    """Spans or log records that wait; a lock of the owner protects it."""

    def __init__(self, limits: BatchLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self.items: deque[Item] = deque()
        self._size = self._count = 0  # bytes, and spans or log records
        self.due = math.inf
        """When the oldest item must be sent."""
        self.added = self.taken = 0
        """Numbers of items since the start."""
        self.flushed = 0
        """Items with a lower number do not wait until their batch is full."""

    def add(self, item: Item) -> bool:
        """Append ``item``; return True if a waiting thread has to look at the queue."""
        items = self.items
        items.append(item)
        self.added += 1
        self._size += len(item.content)
        self._count += item.number
        if len(items) == 1:
            self.due = self._clock() + self._limits.delay
            return True
        return self._is_full()

    def is_due(self) -> bool:
        """Return True if the next batch is to be sent now."""
        return bool(self.items) and (
            self._is_full() or self.taken < self.flushed or self._clock() >= self.due
        )

    def _is_full(self) -> bool:
        return self._count >= self._limits.spans or self._size >= self._limits.size

    def take(self) -> list[Item]:
        """Remove and return the oldest items: as many as a batch may have, but at least one."""
        items, size, count = list[Item](), 0, 0
        while self.items:
            size += len(self.items[0].content)
            count += self.items[0].number
            if items and (size > self._limits.size or count > self._limits.spans):
                break
            items.append(self.items.popleft())
        self.taken += len(items)
        self._size -= sum(len(item.content) for item in items)
        self._count -= sum(item.number for item in items)
        self.due = self._clock() + self._limits.delay if self.items else math.inf
        return items


@dataclass(slots=True, kw_only=True, eq=False)
class Batch:
    """The items of one request, and the number of the first one."""

    signal: Signal
    items: list[Item]
    start: int = 0
    is_counted: bool = False  # as exported or dropped

    @property
    def count(self) -> int:
        """Number of spans or log records."""
        return sum(item.number for item in self.items)

    @property
    def size(self) -> int:
        return sum(item.size for item in self.items)

    def message(self) -> bytes:
        """Return the serialized request."""
        if self.signal == "logs":
            return b"".join(item.content for item in self.items)  # joined requests are one request
        return serialized_request(self._of("span"), self._of("group"))

    def _of(self, kind: Literal["span", "group"]) -> Iterator[tuple[Origin, bytes]]:
        return (
            (item.origin, item.content)
            for item in self.items
            if item.kind == kind and item.origin is not None
        )

    def halves(self) -> list[Batch]:
        """Return two batches with the records of this one; none if it cannot be divided."""
        items = self.items if len(self.items) > 1 else _divided(self.items[0])
        middle = len(items) // 2
        parts = (items[:middle], items[middle:]) if middle else ()
        return [replace(self, items=part) for part in parts]

    def keep_wanted(self) -> bool:
        """Leave out the spans that another worker exports; return False if nothing is left."""
        self.items = [
            item for item in self.items if item.receipt is None or not item.receipt.is_revoked
        ]
        return bool(self.items)

    def acknowledge(self) -> None:
        """Tell the receipts that the spans have arrived, or never will."""
        for item in self.items:
            if item.receipt is not None:
                item.receipt.left(item.number)


def _divided(item: Item) -> list[Item]:
    """Return the spans or the log records of ``item`` as single items."""
    if item.kind == "span":
        return [item]
    if item.kind == "logs":
        found = log_records_in(ExportLogsServiceRequest.FromString(item.content))
        return [item._replace(content=one.SerializeToString(), number=1) for one in found]
    spans = ScopeSpans.FromString(item.content).spans
    return [item._replace(kind="span", content=one.SerializeToString(), number=1) for one in spans]
