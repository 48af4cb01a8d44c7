"""Find the offset up to which the messages of a Kafka partition are complete.

Messages above this offset may be complete, too. `Finished` is committed with the offset, so that
the next worker does not export their spans again.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from rag_eval_otel.worker.wire import Receipt

_MARKED: Final = 8192  # offsets after the watermark: 1,366 of the 4,096 bytes that brokers allow
_NOTE: Final = re.compile(r"finished:(\d+):(\d+):([A-Za-z0-9+/]+={0,2})")


@dataclass(frozen=True, slots=True)
class Finished:
    """The messages above a committed offset that are complete.

    Bit ``i`` of ``bits`` stands for the offset ``start + i``. ``epoch`` is the largest leader epoch
    of these messages. A message of a later epoch was written after a broker had lost messages.
    """

    start: int = 0
    bits: int = 0
    epoch: int = -1

    def has(self, offset: int, epoch: int | None) -> bool:
        """Return True if the message of this leader epoch at ``offset`` is complete."""
        is_marked = offset >= self.start and bool(self.bits >> (offset - self.start) & 1)
        return is_marked and epoch is not None and epoch <= self.epoch

    def with_rest(self, other: Finished, offset: int) -> Finished:
        """Return these messages and those of ``other`` at ``offset`` and above."""
        rest = other.bits >> max(0, offset - other.start)
        if not rest:
            return self
        bits = self.bits | rest << max(offset, other.start) - self.start
        return Finished(self.start, bits, max(self.epoch, other.epoch))

    def note(self, offset: int) -> str:
        """Return a text to commit with ``offset``; it is empty if no message above is complete."""
        bits = self.bits >> max(0, offset - self.start)
        if not bits:
            return ""
        content = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        return f"finished:{offset}:{self.epoch}:{b64encode(content).decode()}"

    @classmethod
    def of_note(cls, offset: int, note: str | None) -> Finished:
        """Return what was committed with ``offset``; no messages if the text is of another form.

        The text names its offset: tools that copy committed offsets to another cluster translate
        them, and copy the text as it is.
        """
        found = _NOTE.fullmatch(note or "")
        if found is None or int(found[1]) != offset:
            return cls()
        try:
            content = b64decode(found[3], validate=True)
        except ValueError:
            return cls()
        return cls(offset, int.from_bytes(content, "little"), int(found[2]))


@dataclass(slots=True)
class _Message:
    size: int
    traces: frozenset[int]
    epoch: int | None = None
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

    def begin(
        self,
        offset: int,
        traces: Iterable[int] = (),
        *,
        size: int = 0,
        epoch: int | None = None,
    ) -> None:
        """Add a message with spans of ``traces``; ValueError if the offset is not above others."""
        if offset < self.end:
            msg = f"offset {offset} is below {self.end}"
            raise ValueError(msg)
        message = self._messages[offset] = _Message(size, frozenset(traces), epoch)
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
            if not self._is_complete(message, is_collecting):
                self.offset = offset
                return offset
            del self._messages[offset]
            for trace in message.traces:
                if not self._open_of[trace]:
                    del self._open_of[trace]
        if self.offset is not None:
            self.offset = self.end
        return self.offset

    def _is_complete(self, message: _Message, is_collecting: Callable[[int], bool]) -> bool:
        return not message.is_open and not any(
            self._open_of[trace] or is_collecting(trace) for trace in message.traces
        )

    def finished(self, is_collecting: Callable[[int], bool] = lambda _: False) -> Finished:
        """Return the complete messages above the watermark, so that they are not read again.

        A trace is read again as a whole or not at all: a message is left out if it has spans of a
        trace of which another message has to be read again.
        """
        start = self.offset or 0
        complete, again = dict[int, _Message](), set[int]()
        for offset, message in self._messages.items():
            is_near = offset - start < _MARKED and message.epoch is not None
            if is_near and self._is_complete(message, is_collecting):
                complete[offset] = message
            else:
                again |= message.traces
        _leave_out(complete, again)
        marks = bytearray(_MARKED // 8)
        for offset in complete:
            marks[(offset - start) // 8] |= 1 << (offset - start) % 8
        epoch = max((one.epoch or 0 for one in complete.values()), default=-1)
        return Finished(start, int.from_bytes(marks, "little"), epoch)


def _leave_out(messages: dict[int, _Message], traces: Iterable[int]) -> None:
    """Remove the messages of ``traces``, those of the other traces of these messages, and so on."""
    offsets_of: dict[int, list[int]] = {}
    for offset, message in messages.items():
        for trace in message.traces:
            offsets_of.setdefault(trace, []).append(offset)
    waiting = list(traces)
    while waiting:
        for offset in offsets_of.pop(waiting.pop(), ()):
            removed = messages.pop(offset, None)
            if removed is not None:
                waiting += removed.traces


@dataclass(slots=True, eq=False)
class Partition:
    """A partition that this worker reads.

    ``receipts`` has those of the messages above the watermark. ``unread`` counts messages that the
    engine was not given, because the worker ends. Once another worker has the partition,
    ``is_revoked`` is True. ``before`` is set if the log has gone back to an earlier offset: it has
    the messages that were received before that, until they are complete. ``known`` are the messages
    that a worker before this one has finished, or None as long as it was not asked for them;
    ``finished`` are those to commit. ``committed_note`` is None if it is not known. The poll thread
    alone changes a partition, but for ``acknowledged`` and ``unread``.
    """

    number: int
    watermark: Watermark = field(default_factory=Watermark)
    acknowledged: deque[int] = field(default_factory=deque)
    receipts: OrderedDict[int, Receipt] = field(default_factory=OrderedDict)
    committed: int = -1
    unread: int = 0
    is_paused: bool = False
    is_revoked: bool = False
    before: Partition | None = None
    known: Finished | None = None
    finished: Finished = Finished()
    committed_note: str | None = ""

    def begin(
        self,
        offset: int,
        traces: Iterable[int] = (),
        *,
        size: int = 0,
        epoch: int | None = None,
    ) -> None:
        """Add a message that was received."""
        if self.watermark.offset is None and self.before is None:
            if 0 <= self.committed != offset:
                self.committed_note = None  # the log does not have the committed offset any more
            self.committed = offset
        self.watermark.begin(offset, traces, size=size, epoch=epoch)
        known = self.known
        if known and (offset < known.start or (epoch is not None and epoch > known.epoch)):
            self.known = Finished()  # the log begins anew, or further messages have later epochs

    def learn(self, offset: int, note: str) -> None:
        """Record what is committed for the partition; ``offset`` is negative if nothing is."""
        self.committed, self.committed_note = offset, note
        self.known = Finished.of_note(offset, note)

    def is_known(self, offset: int, epoch: int | None) -> bool:
        """Return True if a worker before this one has finished the message at ``offset``."""
        return self.known is not None and self.known.has(offset, epoch)

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

    def mark(self, is_collecting: Callable[[int], bool]) -> None:
        """Set ``finished``, with the known messages that this worker has not received yet."""
        self.finished = self.watermark.finished(is_collecting)
        if self.known is not None:
            self.finished = self.finished.with_rest(self.known, self.watermark.end)

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
    def to_commit(self) -> tuple[int, str] | None:
        """The offset to commit and its note; None if there is nothing to commit.

        That is so if both are committed, or if the offset is above the committed one and ``before``
        is not complete. The offset is below the committed one if the log has gone back.
        """
        offset = self.watermark.offset
        if offset is None or (self.before is not None and offset > self.committed):
            return None
        note = "" if self.before is not None else self.finished.note(offset)
        is_committed = (offset, note) == (self.committed, self.committed_note)
        return None if is_committed else (offset, note)
