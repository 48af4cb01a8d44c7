"""`Store` keeps the traces and the held spans of one pipeline; `Clock` completes and exports them.

A span is *held* (kept back from the exporter) until its turn is scored. The first thread that
decides with which `Ending` it is exported counts. Only `Clock` exports held spans.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from opentelemetry import context as otel_context

from rag_eval_otel import semconv
from rag_eval_otel.capture.conventions import MARKS, UNMARKED_SCOPES, kind_of
from rag_eval_otel.capture.runs import RunTree
from rag_eval_otel.capture.span import LogView, Span, has_none
from rag_eval_otel.capture.step import Kind
from rag_eval_otel.capture.trace import (
    OVERHEAD,
    Anchoring,
    Held,
    Key,
    OpenSpans,
    PendingLogs,
    State,
    Trace,
    TraceLimits,
    completed_parts,
    is_bystander,
    may_be_anchor,
    size_of,
    trace_of,
)
from rag_eval_otel.config import Config
from rag_eval_otel.runtime.guard import silence
from rag_eval_otel.types import UNTOUCHED, Ending

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

Fate: TypeAlias = Literal["held", "no room", "late", "passes"]
"""``late``: the span of a turn ended after `Store.close`. ``passes``: it cannot get scores."""

CHUNK: Final = 256  # spans that leave between two flushes, so that the next queue does not overflow
_LOST: Final = 4096  # the most evicted traces whose later spans are ignored
_RECENT: Final = 64  # spans that ended last, in which a new trace looks for its parents
_ANSWERING: Final = frozenset({"agent", "chain"})
_SHARE: Final = 4  # one trace may take a quarter of all bytes
_NEVER: Final = float("inf")


@dataclass(slots=True)  # not frozen: see `Span`
class Taken:
    """The result of adding a span or a tree of LangChain runs to a trace."""

    fate: Fate = "passes"
    is_added: bool = False
    is_new: bool = False  # whether the trace was not known
    evicted: Sequence[int] = ()  # the number of turns in each trace removed to limit memory


@dataclass(eq=False, repr=False)
class Store:
    """Collects the spans of traces that contain RAG, and holds the spans that may get scores.

    No lock is taken for a span that has nothing to do with RAG, and no code of the application or
    of an exporter is called under the lock.
    """

    config: Config
    limits: TraceLimits = TraceLimits()  # noqa: RUF009  # frozen
    clock: Callable[[], float] = time.monotonic
    is_open: bool = True
    retrieving: Collection[str] = ()  # names of steps that answered after a retrieval
    is_fed: bool = False  # whether a span processor passes ended spans to this store

    def __post_init__(self) -> None:
        self.capacity = self.config.max_held  # most spans and run trees that may wait for scores
        self.max_bytes = self.config.max_held_bytes
        self.reset()

    def reset(self) -> None:
        # Reentrant: a garbage collection may end spans while this thread has the lock.
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self.traces: OrderedDict[int, Trace] = OrderedDict()  # those not complete, oldest first
        self._lost: OrderedDict[int, Trace] = OrderedDict()
        self._logs = PendingLogs(max_bytes=self.limits.max_bytes // _SHARE)
        self._bytes = 0
        self.held: dict[Key, Held] = {}  # what is kept back and has not left yet
        self.exit: deque[Held] = deque()  # what was decided to leave, oldest first
        self.size = 0  # about how many bytes the held spans and run trees take in memory
        self.waiting = 0  # number of held spans and run trees that will probably get scores
        self._leaving = 0
        self.awaited = 0  # calls of `wait_left` under way
        self._next = 0
        self._due = _NEVER  # no deadline is earlier
        self.stopped = 0.0  # seconds in which the process was stopped: no waiting time
        self.open_spans = OpenSpans()

    def __len__(self) -> int:
        return len(self.held) - self._leaving

    @property
    def is_empty(self) -> bool:
        return not (self.traces or self.held or self.exit)

    def count(self, state: State) -> int:
        with self.lock:
            return sum(held.state == state for held in self.held.values())

    def add_log(self, trace_id: int, span_id: int, record: LogView) -> None:
        if self.is_open:
            with self.lock:
                self._logs.add((trace_id, span_id), record)

    def concerns(self, span: ReadableSpan) -> bool:
        """Return True if the ended ``span`` may belong to a RAG trace, so that `take` is needed."""
        scope = span.instrumentation_scope
        name = scope.name if scope is not None else ""
        if (
            not has_none(MARKS, span)
            or name in UNMARKED_SCOPES
            or (self.traces and trace_of(span) in self.traces)
        ):
            return name not in semconv.OWN_SCOPES  # ours repeat LangChain runs, which were read
        self.open_spans.ended.append(span)
        return False

    def take(self, span: ReadableSpan, *, may_hold: bool = True) -> Taken:
        """Add the ended ``span`` to its trace; with ``may_hold``, hold it if it may get scores."""
        view = Span.from_sdk(span)
        kind, trace_id, key = kind_of(view), view.trace_id, (view.trace_id, view.span_id)
        if not trace_id:
            return Taken()
        with self.lock:
            if not self.is_open:
                return Taken("late" if self.is_fed and self._may_anchor(view, kind) else "passes")
            view.logs = self._logs.take(key)
            is_new = trace_id not in self.traces and trace_id not in self._lost
            if is_new and kind == "other":
                self.open_spans.ended.append(span)
                return Taken()
            trace = self._trace_of(trace_id)
            if is_new and view.parent_id:
                early = islice(reversed(self.open_spans.ended.copy()), _RECENT)
                if any(each.context.span_id == view.parent_id for each in early):
                    self._add_early()
            anchoring = self._add(trace, view, kind)
            evicted = self._evict(trace)
            fate: Fate = "passes"
            if anchoring != "no" and self.is_fed and not trace.is_lost:
                is_likely = anchoring == "likely"
                held = Held(key, span, otel_context.get_current(), trace.unheld, is_likely)
                if may_hold and self.hold(held):
                    trace.held[view.span_id], trace.unheld, fate = held, 0, "held"
                elif is_likely:
                    held.state, held.ending, fate = "left", Ending("overload"), "no room"
                    held.is_likely, held.is_late, held.item = False, True, None
                    trace.held.setdefault(view.span_id, held)  # says why scores miss the span
        return Taken(fate, is_added=True, is_new=is_new, evicted=evicted)

    def join(self, tree: RunTree, around: Span) -> Taken:
        """Add LangChain runs to the trace of the open span ``around`` in which they ran."""
        with self.lock:  # `close` may come before it
            if not (self.is_open and self.is_fed):
                return Taken()
            is_new = around.trace_id not in self.traces
            trace = self._trace_of(around.trace_id)
            if trace.is_lost:
                return Taken()
            size = OVERHEAD + tree.size
            trace.join(tree, around.span_id, size=size, now=self.clock())
            self._bytes += size
            return Taken(is_added=True, is_new=is_new, evicted=self._evict(trace))

    def hold(self, held: Held) -> bool:
        """Hold ``held``; return False after `close`, without room, or if the key is taken."""
        with self.lock:
            has_room = (
                (self.waiting < self.capacity or not held.is_likely)
                and len(self.held) < 8 * self.capacity  # unlikely ones are bounded, too
                and self.size + held.size <= self.max_bytes
            )
            if not (self.is_open and has_room) or held.key in self.held:
                return False
            held.deadline = self._now() + self.config.hold_seconds
            held.takes_place = held.is_likely
            held.number, self._next = self._next, self._next + 1
            self._store(held)
        return True

    def _store(self, held: Held) -> None:
        self.held[held.key] = held
        self.waiting += held.takes_place
        self.size += held.size
        self._due = min(self._due, held.deadline)

    def claim(self, claimed: Held | Trace) -> bool:
        """Return True at the first call only, so that one thread reads the run tree or trace."""
        with self.lock:
            is_first, claimed.is_claimed = not claimed.is_claimed, True
            return is_first

    def replace(self, tree: Held, spans: Sequence[Held], others: Sequence[Held]) -> None:
        """Hold the open ``spans`` of turns instead of their run tree, and export the ``others``."""
        with self.lock:
            for held in (*others, *spans):
                held.number, held.deadline = tree.number, tree.deadline
                held.takes_place = held.is_likely and tree.takes_place
                self._store(held)
            for held in others:
                self.decide(held, UNTOUCHED)
            for held in spans:
                held.state = "scoring"
                if tree.ending is not None:
                    self.decide(held, tree.ending)
            tree.state = "leaving"
            self.left(tree)

    def start_scoring(self, held: Held) -> None:
        with self.lock:
            if held.state == "collecting":
                held.state = "scoring"
            held.is_likely = True

    def decide(self, held: Held, ending: Ending) -> bool:
        """Have ``held`` exported, with ``ending`` if it may be a turn; False if decided before."""
        with self.lock:
            if held.state in {"leaving", "left"}:
                return False
            held.state, held.is_late = "leaving", ending.status == "timeout"
            held.ending = ending if held.is_likely else UNTOUCHED
            self.exit.append(held)
            self._leaving += 1
            return True

    def decide_due(self) -> None:
        now = self._now()
        if now < self._due:
            return
        with self.lock:
            waiting = [held for held in self.held.values() if held.state != "leaving"]
            for held in waiting:
                if held.deadline <= now:
                    self.decide(held, Ending("timeout"))
            self._due = min((h.deadline for h in waiting if h.deadline > now), default=_NEVER)

    def left(self, held: Held) -> None:
        with self._changed:
            if self.held.get(held.key) is held:
                del self.held[held.key]
                self.waiting -= held.takes_place
                self.size -= held.size
                self._leaving -= held.ending is not None
            held.state, held.item = "left", None
            self._changed.notify_all()

    def wait_left(self, timeout: float, *, number: int | None = None) -> bool:
        """Wait until spans held now (or below ``number``) are exported; return False on timeout."""
        with self._changed:
            last = self._next if number is None else number
            self.awaited += 1
            try:
                return self._changed.wait_for(
                    lambda: not any(held.number < last for held in self.held.values()), timeout
                )
            finally:
                self.awaited -= 1

    def _now(self) -> float:
        return self.clock() - self.stopped

    def _trace_of(self, trace_id: int) -> Trace:
        trace = self.traces.get(trace_id) or self._lost.get(trace_id)
        if trace is None:
            now = self.clock()
            trace = self.traces[trace_id] = Trace(trace_id=trace_id, first=now, last=now)
        return trace

    def _add(self, trace: Trace, view: Span, kind: Kind) -> Anchoring:
        known = trace.spans.get(view.span_id)  # the SDK makes copies of a span
        same = (view.name, view.start, view.end)
        if trace.is_lost or (known is not None and (known.name, known.start, known.end) == same):
            trace.last = self.clock()
            return "no"
        trace.is_doubled |= known is not None
        size = size_of(view) if kind != "other" else OVERHEAD
        kept = view if kind != "other" else view.bystander()
        trace.add(kept, size=size, now=self.clock())
        self._bytes += size
        return self._anchoring(trace, view, kind)

    def _anchoring(self, trace: Trace, view: Span, kind: Kind) -> Anchoring:
        chosen = self.config.contexts_from_prompt
        found = may_be_anchor(trace, view, kind, spans=self.open_spans, contexts_from_prompt=chosen)
        below = trace.subtrees[view.span_id]
        is_silent = kind in _ANSWERING and below.called is not None and below.searched is None
        return "likely" if is_silent and view.name in self.retrieving else found

    def _may_anchor(self, view: Span, kind: Kind) -> bool:
        """Return True if ``view``, which ended after `close`, may be the span of a turn."""
        now, number = self.clock(), view.trace_id
        trace = self._lost.get(number) or Trace(trace_id=number, first=now, last=now)
        self._ignore(trace)
        return self._anchoring(trace, view, kind) == "likely"

    def sweep(self) -> list[Trace]:
        """Remove and return the complete traces, and complete subtrees below open spans."""
        now = self.clock()
        self.open_spans.refresh()
        with self.lock:
            self._add_early()
            ready = self._finish(each for each in self.traces.values() if self._is_complete(each))
            ready += self._parts(now - self.limits.quiet, self.open_spans.recently_open)
            for trace in [each for each in self._lost.values() if self._is_complete(each)]:
                del self._lost[trace.trace_id]
        return ready

    def flush(self) -> list[Trace]:
        """Remove and return all traces without open spans, and complete subtrees of the others."""
        until = self.clock()
        self.open_spans.refresh()
        with self.lock:
            self._add_early()
            opened, traces = self.open_spans.of, self.traces.values()
            ready = self._finish(t for t in traces if t.last <= until and not opened(t.trace_id))
            return ready + self._parts(until, opened)

    def close(self) -> list[Trace]:
        """Remove and return all traces, even incomplete ones, and accept no more spans."""
        self.open_spans.refresh()
        with self.lock:
            self.is_open = False
            self._add_early()
            self._logs.clear()
            return self._finish(self.traces.values())

    def _add_early(self) -> None:
        """Add to each trace those of its spans that ended before its first span of RAG."""
        for span in reversed(self.open_spans.ended.copy()) if self.traces else ():
            trace = self.traces.get(trace_of(span))
            if trace is not None and span.context.span_id not in trace.spans:
                self._bytes += trace.add_bystander(Span.from_sdk(span))

    def _parts(self, until: float, opened: Callable[[int], Sequence[ReadableSpan]]) -> list[Trace]:
        parts = []
        for trace in list(self.traces.values()):
            spans = opened(trace.trace_id)
            parts += [trace.part(ids) for ids in list(completed_parts(trace, spans, until=until))]
            if not trace.spans and not trace.trees:
                self._remove(trace)
        return self._finish(parts)

    def _is_complete(self, trace: Trace) -> bool:
        limits, now = self.limits, self.clock()
        is_soon = trace.root_ended and not trace.is_slow
        quiet = limits.root_quiet if is_soon else limits.slow_quiet
        is_quiet = now - trace.last >= quiet and not self.open_spans.recently_open(trace.trace_id)
        return is_quiet or now - trace.first >= limits.max_age

    def _evict(self, newest: Trace) -> list[int]:
        """Remove ``newest`` if it is too large, and the oldest traces; return their turn counts."""
        limits, evicted = self.limits, list[int]()
        if len(newest.spans) > limits.max_spans or newest.size > limits.max_bytes // _SHARE:
            evicted.append(self._give_up(newest))
        while self.traces and (
            len(self.traces) > limits.max_traces or self._bytes > limits.max_bytes
        ):
            evicted.append(self._give_up(next(iter(self.traces.values()))))
        return evicted

    def _give_up(self, trace: Trace) -> int:
        self._remove(trace)
        turns = trace.count_turns()
        for held in trace.held.values():
            self.decide(held, Ending("skipped", "evicted"))
        trace.is_lost = True  # later spans are ignored
        now, number = self.clock(), trace.trace_id
        self._ignore(Trace(trace_id=number, first=now, last=trace.last, is_lost=True))
        return turns

    def _ignore(self, trace: Trace) -> None:
        self._lost[trace.trace_id] = trace
        if len(self._lost) > _LOST:
            self._lost.popitem(last=False)

    def _finish(self, traces: Iterable[Trace]) -> list[Trace]:
        """Remove ``traces`` from the store, and add to each its open spans outside of RAG."""
        finished = list(traces)
        for trace in finished:
            self._remove(trace)
            for span in self.open_spans.of(trace.trace_id):
                view = Span.from_sdk(span)
                if is_bystander(view):
                    trace.add_bystander(view)
        return finished

    def _remove(self, trace: Trace) -> None:
        if self.traces.get(trace.trace_id) is trace:
            del self.traces[trace.trace_id]
        self._bytes -= trace.size


@dataclass(eq=False, repr=False)
class Clock:
    """A thread that calls ``sweep()`` every 50 ms, and ``leave(held)`` for each span to export."""

    store: Store
    sweep: Callable[[], None]
    leave: Callable[[Held], bool]  # returns False if another thread has taken over the item
    is_idle: Callable[[], bool] = lambda: True
    is_inline: bool = False  # start no thread: spans leave on the thread that decides it
    is_stopped: bool = False

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._sweep_at = 0.0
        self._is_idle = True

    def start(self) -> bool:
        """Start the thread unless it runs; False if none can start, or if it was stopped."""
        if self._thread is not None or self.is_inline:
            return True
        if self.is_stopped and self.store.is_empty:
            return False
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="rag-eval-otel-clock", daemon=True)
                self._thread = thread  # a garbage collection may end spans during the start
                try:
                    thread.start()
                except RuntimeError:  # the interpreter is shutting down
                    self._thread = None
                    return False
        return True

    @property
    def is_awake(self) -> bool:
        return self._thread is not None

    def is_current(self) -> bool:
        return self._thread is threading.current_thread()

    def wake(self) -> None:
        """Wake the thread if it is idle or a flush waits; else it looks within 50 ms anyway."""
        # A wake takes the application's time: threads compete for the lock of the interpreter.
        is_asleep = self._is_idle or self.store.awaited
        if self.start() and is_asleep and self._wakes.empty():
            self._wakes.put(None)

    def wait_left(self, timeout: float, *, number: int | None = None) -> bool:
        if self._wakes.empty():
            self._wakes.put(None)
        return self.store.wait_left(timeout, number=number)

    def release(self, held: Held, ending: Ending) -> bool:
        """Export ``held`` with ``ending``; return False if its ending was decided before."""
        is_first = self.store.decide(held, ending)
        self.export()
        return is_first

    def export(self) -> None:
        if not self.store.exit:
            return
        if self.is_inline or not self.start():
            while self._export_next():
                pass
        else:
            self.wake()

    def stop(self) -> None:
        """Let the thread end when the store is empty."""
        self.is_stopped = True
        self._wakes.put(None)

    def _run(self) -> None:
        silence()
        try:
            while not (self.is_stopped and self.store.is_empty):
                self._sweep_if_due()
                while self._export_next():
                    self._sweep_if_due()
                self._wait()
        finally:  # if an exporter raises SystemExit, a new thread must export the other spans
            with self._lock:
                self._thread = None
            if not self.store.is_empty:
                self.start()

    def _sweep_if_due(self) -> None:
        if time.monotonic() >= self._sweep_at:
            try:
                self.sweep()
            finally:  # a sweep that takes long leaves time for others, too
                self._sweep_at = time.monotonic() + 0.05

    def _export_next(self) -> bool:
        """Decide spans at their deadline, and export the next; return False if there is none."""
        store = self.store
        if not self.is_inline:
            store.decide_due()
        try:
            held = store.exit.popleft()
        except IndexError:
            return False
        has_left = held.state != "left"
        try:
            has_left = has_left and self.leave(held)
        finally:
            if has_left:
                store.left(held)
        return True

    def _wait(self) -> None:
        """Wait until the next sweep, or until another thread wakes this one."""
        began = time.monotonic()
        # When idle, only open spans are refreshed. Set first: `wake` may come between.
        self._is_idle = True
        self._is_idle = self.store.is_empty and self.is_idle()
        seconds = 1.0 if self._is_idle else max(0.0, self._sweep_at - began)
        with suppress(queue.Empty):
            self._wakes.get(timeout=seconds)
        late = time.monotonic() - began
        if late > seconds + 2:  # the process was stopped
            self.store.stopped += late
