"""Export spans and log records over OTLP: in batches, with retries, within bounds of memory.

`OtlpOutput` queues spans and log records. Its threads send them through a `Sender`.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from opentelemetry.metrics import Observation

from rag_eval_otel import semconv
from rag_eval_otel.export.metrics import add_gauge_source, meter_of
from rag_eval_otel.runtime.guard import Edge, LimitedLog, silence
from rag_eval_otel.worker.batches import Batch, BatchLimits, Item, Queue
from rag_eval_otel.worker.senders import Reply, Sender, SendError, Signal
from rag_eval_otel.worker.wire import WireGroup, WireSpan

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

DropReason: TypeAlias = Literal[
    "invalid", "too_large", "denied", "deadline", "rejected", "shutdown", "error"
]

_MAX_WAIT: Final = 300.0  # seconds that a receiver may ask an exporter to wait
_CLOSING: Final = 1.0  # seconds for requests under way to fail when the connections are closed


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often a failed request is sent again.

    The first wait is ``first`` seconds, and each further one is twice as long, up to ``longest``.
    Each wait is multiplied by a random factor from 0.5 to 1. A time that the receiver names counts
    instead, but at least ``first`` and at most five minutes. After ``limit`` seconds a batch is
    dropped. With ``limit=None``, for sources that keep their data until it is acknowledged, a
    request is repeated until it succeeds, or its content turns out to be invalid.
    """

    first: float = 0.5
    longest: float = 30.0
    limit: float | None = 600.0

    def wait(self, attempt: int, error: SendError) -> float:
        """Return the seconds to wait after the failed ``attempt``, which counts from 0."""
        if error.retry_after is not None:
            return min(max(error.retry_after, self.first), _MAX_WAIT)
        longest = min(self.longest, self.first * 2.0 ** min(attempt, 32))
        return longest * random.uniform(0.5, 1.0)  # noqa: S311  # jitter, not a secret

    def may_repeat(self, error: SendError, *, seconds: float) -> bool:
        """Return True if a request that fails with ``error`` since ``seconds`` is sent again."""
        if self.limit is None:
            return error.kind in {"transient", "denied"}
        return error.kind == "transient" and seconds < self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputStats:
    """Numbers of spans and log records since the start, by signal.

    ``dropped`` is by signal and reason. ``failed`` counts requests that failed, also those that
    were sent again. ``waiting`` is the number of bytes that are not exported yet.
    """

    exported: Mapping[str, int]
    dropped: Mapping[tuple[str, str], int]
    failed: Mapping[str, int]
    waiting: int


class OtlpOutput:
    """Export spans and log records over OTLP, in batches, from background threads.

    ``senders`` has a `Sender` for each signal. `put` never blocks and drops nothing: the caller
    stops when `size` is above its limit. After the receiver has acknowledged a span, its receipt is
    told. Spans that the receiver will never accept are dropped and counted, and their receipts are
    told as well, because a repetition would not help. The receipts of spans that are dropped for
    lack of time (reasons ``deadline``, ``denied`` and ``shutdown``) are not told.
    """

    def __init__(
        self,
        senders: Mapping[Signal, Sender],
        *,
        batches: BatchLimits | None = None,
        retries: Retries | None = None,
        meter_provider: MeterProvider | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._senders = senders
        self._limits = batches or BatchLimits()
        self._retries = retries or Retries()
        self._clock = clock
        lock = threading.Lock()
        self._changed = threading.Condition(lock)  # something is queued
        self._done = threading.Condition(lock)  # a batch was exported or dropped
        signals: tuple[Signal, ...] = ("traces", "logs")
        self._queues = {signal: Queue(self._limits, clock) for signal in signals}
        self._size = 0
        self._under_way: set[Batch] = set()
        self._closed = threading.Event()
        self._count = _Counts(meter_provider)
        self._stop_gauge = add_gauge_source(
            meter_provider, semconv.WORKER_WAITING, source=self._observe
        )
        self._log = LimitedLog()
        self._edge = Edge("output", on_error=lambda _: None)  # it is counted as dropped
        self._threads = [
            threading.Thread(target=self._run, name=f"rag-eval-otel-output-{i}", daemon=True)
            for i in range(self._limits.in_flight)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def size(self) -> int:
        """Bytes of spans and log records in the queue and under way."""
        return self._size

    @property
    def stats(self) -> OutputStats:
        return self._count.stats(waiting=self._size)

    @property
    def dropped(self) -> int:
        """How many spans and log records were dropped."""
        return sum(self.stats.dropped.values())

    def put(self, span: WireSpan) -> None:
        """Queue ``span``; return at once."""
        content = span.message.SerializeToString()
        self._add("traces", Item("span", content, 1, span.origin, span.receipt))

    def put_group(self, group: WireGroup) -> None:
        """Queue the spans of ``group``; return at once."""
        count, limits = len(group.messages), self._limits
        parts = math.ceil(max(count / limits.spans, len(group.content) / limits.size))
        if count == 1:
            self.put(group.spans()[0])
        elif parts > 1:
            size = math.ceil(count / parts)
            for start in range(0, count, size):
                self.put_group(group.of(group.messages[start : start + size]))
        else:
            self._add("traces", Item("group", group.content, count, group.origin, group.receipt))

    def put_logs(self, request: ExportLogsServiceRequest) -> None:
        """Queue the log records in ``request``."""
        content = bytes(request.SerializeToString())
        count = sum(
            len(scope.log_records) for one in request.resource_logs for scope in one.scope_logs
        )
        self._add("logs", Item("logs", content, count))

    def _add(self, signal: Signal, item: Item) -> None:
        with self._changed:
            is_open = not self._closed.is_set()
            if is_open:
                self._size += item.size
                if self._queues[signal].add(item):
                    self._changed.notify()
        if not is_open:
            self._drop(Batch(signal=signal, items=[item]), "shutdown")

    def flush(self, timeout: float) -> bool:
        """Export what was queued before the call; return False if that takes over ``timeout`` s."""
        with self._changed:
            target = {signal: queue.added for signal, queue in self._queues.items()}
            for queue in self._queues.values():
                queue.flushed = queue.added
            self._changed.notify_all()
            return self._done.wait_for(lambda: self._is_flushed(target), timeout)

    def _is_flushed(self, target: Mapping[Signal, int]) -> bool:
        """Return True if none of the first ``target`` items is queued or under way."""
        is_taken = all(self._queues[signal].taken >= number for signal, number in target.items())
        return is_taken and all(batch.start >= target[batch.signal] for batch in self._under_way)

    def close(self, timeout: float) -> None:
        """Export what is queued for at most ``timeout`` seconds, and drop the rest."""
        if self._closed.is_set():
            return
        self.flush(timeout)
        with self._changed:
            self._closed.set()
            self._changed.notify_all()
        for sender in self._senders.values():
            sender.close()
        end = time.monotonic() + _CLOSING
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        with self._changed:
            left = list(self._under_way)
            left += [Batch(signal=name, items=list(q.items)) for name, q in self._queues.items()]
        for batch in left:
            self._drop(batch, "shutdown")
        self._stop_gauge()

    def _observe(self) -> list[Observation]:
        return [Observation(self._size)]

    # --- the threads ------------------------------------------------------------------------------

    def _run(self) -> None:
        silence()
        while (batch := self._next()) is not None:
            batches = [batch]
            while batches:
                batches += reversed(self._deliver(batches.pop()))

    def _deliver(self, batch: Batch) -> list[Batch]:
        """Send or drop ``batch``; if it is too large, return its parts, now under way instead."""
        size, parts, is_done = batch.size, list[Batch](), False
        with self._edge:
            parts = self._export(batch)
            is_done = True
        if not is_done:  # a defect of this library: a repetition would fail, too
            self._drop(batch, "error")
            batch.acknowledge()
        with self._changed:
            for part in parts:
                part.is_counted = batch.is_counted
            self._size += sum(part.size for part in parts) - size
            self._under_way.discard(batch)
            self._under_way.update(parts)
            self._done.notify_all()
        return parts

    def _next(self) -> Batch | None:
        """Wait for the next batch; return None after `close`."""
        with self._changed:
            while not self._closed.is_set():
                for signal, queue in self._queues.items():
                    if queue.is_due():
                        return self._take(signal, queue)
                due = min(queue.due for queue in self._queues.values())
                self._changed.wait(None if due == math.inf else max(0.0, due - self._clock()))
        return None

    def _take(self, signal: Signal, queue: Queue) -> Batch:
        batch = Batch(signal=signal, start=queue.taken, items=queue.take())
        self._under_way.add(batch)
        if any(queue.items for queue in self._queues.values()):
            self._changed.notify()
        return batch

    def _export(self, batch: Batch) -> list[Batch]:
        """Send ``batch`` until it is accepted or dropped; if it is too large, return its parts."""
        began, attempt = self._clock(), 0
        while batch.keep_wanted():
            message = batch.message()
            try:
                reply = self._senders[batch.signal].send(message)
            except SendError as error:
                self._count.failed(batch.signal, error)
                if self._closed.is_set():
                    self._drop(batch, "shutdown")
                    break
                if not self._retries.may_repeat(error, seconds=self._clock() - began):
                    return self._give_up(batch, error)
                wait = self._retries.wait(attempt, error)
                self._warn(batch, error, then=f"it is sent again in {wait:.1f} s")
                attempt += 1
                self._closed.wait(wait)
            else:
                self._finish(batch, reply)
                break
        return []

    def _give_up(self, batch: Batch, error: SendError) -> list[Batch]:
        """Drop ``batch``, or return its parts if it is too large and can be divided."""
        halves = batch.halves() if error.kind == "too_large" else []
        if not halves:
            self._warn(batch, error, then="its records are dropped")
            self._drop(batch, "deadline" if error.kind == "transient" else error.kind)
            if error.kind in {"invalid", "too_large"}:
                batch.acknowledge()
        return halves

    def _finish(self, batch: Batch, reply: Reply) -> None:
        rejected = min(max(0, reply.rejected), batch.count)
        if rejected:
            self._log.write(
                "rejected",
                "the receiver has rejected %d of %d records of an OTLP request (%s)",
                *(rejected, batch.count, batch.signal),
            )
        if self._may_count(batch):
            if rejected:
                self._count.dropped(batch.signal, "rejected", number=rejected)
            self._count.exported(batch.signal, batch.count - rejected)
        batch.acknowledge()

    def _drop(self, batch: Batch, reason: DropReason) -> None:
        if batch.items and self._may_count(batch):
            self._count.dropped(batch.signal, reason, number=batch.count)

    def _may_count(self, batch: Batch) -> bool:
        """Return True at the first call: `close` counts what is under way, too."""
        with self._changed:
            was_counted, batch.is_counted = batch.is_counted, True
        return not was_counted

    def _warn(self, batch: Batch, error: SendError, *, then: str) -> None:
        self._log.write(
            f"{error.kind} {then[:8]}",
            "an OTLP request (%s, %d records) has failed: %s; %s",
            *(batch.signal, batch.count, error, then),
        )


class _Counts:
    """The counts of an output, for `OutputStats` and for instruments."""

    def __init__(self, meter_provider: MeterProvider | None) -> None:
        meter = meter_of(meter_provider)
        self._lock = threading.Lock()
        self._exported, self._failed = Counter[str](), Counter[str]()
        self._dropped = Counter[tuple[str, str]]()
        self._exports = meter.create_counter(
            semconv.WORKER_EXPORTED,
            unit="{record}",
            description="Spans and log records that the next receiver has acknowledged.",
        )
        self._drops = meter.create_counter(
            semconv.WORKER_DROPPED,
            unit="{record}",
            description="Spans and log records that were not exported, by reason.",
        )
        self._failures = meter.create_counter(
            semconv.WORKER_EXPORT_FAILURES,
            unit="{request}",
            description="Export requests that failed, by kind; they may be sent again.",
        )

    def exported(self, signal: Signal, number: int) -> None:
        with self._lock:
            self._exported[signal] += number
        self._exports.add(number, {semconv.SIGNAL: signal})

    def dropped(self, signal: Signal, reason: DropReason, *, number: int) -> None:
        with self._lock:
            self._dropped[signal, reason] += number
        self._drops.add(number, {semconv.SIGNAL: signal, semconv.REASON: reason})

    def failed(self, signal: Signal, error: SendError) -> None:
        with self._lock:
            self._failed[signal] += 1
        self._failures.add(1, {semconv.SIGNAL: signal, semconv.REASON: error.kind})

    def stats(self, *, waiting: int) -> OutputStats:
        with self._lock:
            return OutputStats(
                exported=dict(self._exported),
                dropped=dict(self._dropped),
                failed=dict(self._failed),
                waiting=waiting,
            )
