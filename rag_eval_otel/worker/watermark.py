"""Find the offset up to which the messages of a Kafka partition are complete."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rag_eval_otel.worker.wire import Receipt


@dataclass(slots=True)
class _Message:
    size: int
    traces: frozenset[int]
    is_open: bool = True


class Watermark:
    """The offset up to which all messages of a partition are complete.

    A message is complete when it and all other messages of its traces were acknowledged, and no
    more spans of its traces are expected. So a worker that reads on from the watermark gets all
    spans of each trace that has to be scored. Not thread-safe.
    """

    def __init__(self) -> None:
        self._messages: OrderedDict[int, _Message] = OrderedDict()  # in the order of the offsets
        self._open_of: Counter[int] = Counter()  # messages of a trace without acknowledgement
        self.offset: int | None = None
        """The offset to commit; None if no message has begun."""
        self.end: int = -1
        """The offset after the last message."""
        self.bytes = 0
        """The size of the messages without acknowledgement."""
        self.open = 0
        """The number of these messages."""

    def begin(self, offset: int, traces: Iterable[int] = (), *, size: int = 0) -> None:
        """Add a message with spans of ``traces``; ValueError if the offset is not above others."""
        if offset < self.end:
            msg = f"offset {offset} is below {self.end}"
            raise ValueError(msg)
        message = self._messages[offset] = _Message(size, frozenset(traces))
        self._open_of.update(message.traces)
        self.bytes += size
        self.open += 1
        self.end = offset + 1
        if self.offset is None:
            self.offset = offset

    def acknowledge(self, offset: int) -> bool:
        """Record that the message was exported; return False if it was not open."""
        message = self._messages.get(offset)
        if message is None or not message.is_open:
            return False
        message.is_open = False
        self.bytes -= message.size
        self.open -= 1
        self._open_of.subtract(message.traces)
        return True

    def advance(self, is_collecting: Callable[[int], bool] = lambda _: False) -> int | None:
        """Pass over the complete messages, and return the offset to commit.

        ``is_collecting(trace)`` returns True if more spans of the trace are expected.
        """
        while self._messages:
            offset, message = next(iter(self._messages.items()))
            traces = message.traces
            if message.is_open or any(self._open_of[t] or is_collecting(t) for t in traces):
                self.offset = offset
                return offset
            del self._messages[offset]
            for trace in traces:
                if not self._open_of[trace]:
                    del self._open_of[trace]
        if self.offset is not None:
            self.offset = self.end
        return self.offset


@dataclass(slots=True, eq=False)
class Partition:
    """A partition that this worker reads.

    ``receipts`` has those of the messages above the watermark. ``unread`` counts messages that the
    engine was not given, because the worker ends. Once another worker has the partition,
    ``is_revoked`` is True. ``before`` is set if the log has gone back to an earlier offset: it has
    the messages that were received before that, until they are complete. The poll thread alone
    changes a partition, but for ``acknowledged`` and ``unread``.
    """

    number: int
    watermark: Watermark = field(default_factory=Watermark)
    acknowledged: deque[int] = field(default_factory=deque)
    receipts: OrderedDict[int, Receipt] = field(default_factory=OrderedDict)
    committed: int = 0
    unread: int = 0
    is_paused: bool = False
    is_revoked: bool = False
    before: Partition | None = None

    def begin(self, offset: int, traces: Iterable[int] = (), *, size: int = 0) -> None:
        """Add a message that was received."""
        if self.watermark.offset is None and self.before is None:
            self.committed = offset
        self.watermark.begin(offset, traces, size=size)

    def settle(self, is_collecting: Callable[[int], bool]) -> int:
        """Advance the watermark; return the number of messages exported since the last call."""
        number = 0
        if self.before is not None:
            number = self.before.settle(is_collecting)
            if self.before.is_complete:
                self.before = None
        while self.acknowledged:
            offset = self.acknowledged.popleft()
            number += self.watermark.acknowledge(offset) and offset in self.receipts
        below = self.watermark.advance(is_collecting)
        while self.receipts and next(iter(self.receipts)) < (below or 0):
            self.receipts.popitem(last=False)
        return number

    @property
    def is_complete(self) -> bool:
        """Whether all messages are complete."""
        return self.before is None and self.watermark.offset == self.watermark.end

    @property
    def is_busy(self) -> bool:
        """Whether there are messages that the engine was given, and that were not exported."""
        is_busy_before = self.before is not None and self.before.is_busy
        return is_busy_before or self.watermark.open > self.unread

    @property
    def uncommitted(self) -> int:
        """The distance between the committed offset and the end of the messages received."""
        return 0 if self.watermark.offset is None else max(0, self.watermark.end - self.committed)

    @property
    def to_commit(self) -> int | None:
        """The offset to commit; None if it is committed, or if messages of ``before`` are open.

        It is below the committed offset if the log has gone back.
        """
        offset = self.watermark.offset
        if offset is None or offset == self.committed:
            return None
        return None if self.before is not None and offset > self.committed else offset
