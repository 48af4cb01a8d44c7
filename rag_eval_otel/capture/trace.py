"""`Trace`: the spans of one trace until it is complete; `OpenSpans`: the spans that are open."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from sys import getsizeof
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import ref

from opentelemetry.sdk.trace import Span
from opentelemetry.trace import get_current_span

from rag_eval_otel import semconv
from rag_eval_otel.capture.dialects import (
    holds_documents,
    is_exported_late,
    is_instrumentation,
    is_recorded,
    kind_of,
    recorded_on,
    returns_documents,
    returns_list,
    tool_name,
)
from rag_eval_otel.capture.retrieval import CONTEXT_TOOLS
from rag_eval_otel.capture.runs import RunTree
from rag_eval_otel.capture.span import Bystander, LogView, SdkSpan, SpanView
from rag_eval_otel.capture.step import RETRIEVALS, Kind, Part
from rag_eval_otel.types import ContextsFromPrompt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.sdk.trace import ReadableSpan


_OPEN = 4096  # open spans that are kept; some never end
_ENDED = 256  # ended spans that are kept, of traces without a step of RAG so far
_STARTED = 4096  # started spans that are kept until the next refresh
_NEWEST = 64  # spans that are searched on the application's thread
_DEPTH = 100  # ancestors that are searched


class OpenSpans:
    """The open spans of all traces; only the newest are kept.

    Started spans are referenced weakly. Keeping ended spans alive would cost the application's
    thread as much as creating them.
    """

    def __init__(self) -> None:
        self.starts: deque[ref[ReadableSpan]] = deque(maxlen=_STARTED)
        """The spans started since the last refresh, of the whole application."""
        self.ended: deque[ReadableSpan] = deque(maxlen=_ENDED)
        """Recently ended spans without marks; their trace may get a step of RAG later."""
        self._open: dict[int, list[ReadableSpan]] = {}
        self._ending: frozenset[int] = frozenset()  # those that had ended at the last refresh
        self._refreshing = threading.Lock()

    def __iter__(self) -> Iterator[ReadableSpan]:
        """Yield the spans that were open, or had just ended, at the last refresh."""
        return chain.from_iterable(self._open.values())

    def note_start(self, span: ReadableSpan) -> None:
        self.starts.append(ref(span))

    def note_current(self, trace_id: int) -> None:
        """Note the current span if it belongs to this trace: its start may have been dropped."""
        span: Any = get_current_span()
        while hasattr(span, "__wrapped__"):  # OpenInference's proxy
            span = span.__wrapped__
        if isinstance(span, Span) and trace_of(span) == trace_id:
            self.note_start(span)

    def refresh(self) -> None:
        """Add the spans started since the last refresh, and drop those that had ended before it.

        Spans that ended since are kept until the next refresh: a span gets its end time shortly
        before the processor is called, and would be missing in between.
        """
        with self._refreshing:  # not the buffer's lock, for which the application's threads wait
            seen = self.starts.copy()
            alive = [span for span in (start() for start in seen) if span is not None]
            known = {id(span): span for span in (*self, *alive)}
            ended = {key: span for key, span in known.items() if span.end_time is not None}
            ending = {key: span for key, span in ended.items() if key not in self._ending}
            opened = [span for key, span in known.items() if key not in ended][-_OPEN:]
            found: dict[int, list[ReadableSpan]] = {}
            for span in (*ending.values(), *opened):
                found.setdefault(trace_of(span), []).append(span)
            self._open, self._ending = found, frozenset(ending)
            self._drop(seen)

    def _drop(self, seen: deque[ref[ReadableSpan]]) -> None:
        """Remove the ``seen`` starts from the queue."""
        known = set(map(id, seen))
        while self.starts and id(self.starts[0]) in known:
            self.starts.popleft()

    def recently_ended(self, trace_id: int) -> list[ReadableSpan]:
        """Return the recently ended spans of a trace that had no step of RAG."""
        lately = islice(reversed(self.ended.copy()), _NEWEST)
        return [span for span in lately if (c := span.context) and c.trace_id == trace_id]

    def recently_open(self, trace_id: int) -> list[ReadableSpan]:
        """Return the spans of a trace that were open, or had just ended, at the last refresh."""
        return self._open.get(trace_id, [])

    def of(self, trace_id: int) -> list[ReadableSpan]:
        """Return the spans of a trace that were open at the last refresh, and still are."""
        return [span for span in self._open.get(trace_id, ()) if span.end_time is None]

    def newest(self, trace_id: int) -> list[ReadableSpan]:
        """Return the newest open spans of a trace, without a refresh; there may be more."""
        found = [span for span in self._newest() if trace_of(span) == trace_id]
        newest = [span for span in found if span.end_time is None]
        return [*newest, *self._open.get(trace_id, ())[-_NEWEST:]][:_NEWEST]

    def _newest(self) -> Iterator[ReadableSpan]:
        with suppress(IndexError):  # another thread refreshes meanwhile
            for i in range(1, min(len(self.starts), _NEWEST) + 1):
                span = self.starts[-i]()
                if span is not None:
                    yield span


def is_bystander(view: SdkSpan) -> bool:
    """Return True if an open span is no step of RAG, and its instrumentation writes none."""
    return kind_of(view) == "other" and not is_instrumentation(view.scope)


def ids_above(
    start: int | None, ended: Mapping[int, SpanView], opened: Mapping[int, int | None]
) -> Iterator[int]:
    """Yield ``start`` and its ancestors, by id; ``opened`` holds the parents of open spans."""
    seen: set[int] = set()
    while start is not None and start not in seen and len(seen) < _DEPTH:
        seen.add(start)
        yield start
        above = ended.get(start)
        start = opened.get(start) if above is None else above.parent_id


def trace_of(span: ReadableSpan) -> int:
    """Return the trace of ``span``; 0 if it has none."""
    context = span.context
    return context.trace_id if context is not None else 0


OVERHEAD = 2600
"""The size of a span in bytes, without its attributes and events, estimated."""

_ENTRY = 100  # bytes of an attribute without its value, estimated
_NESTING = 8  # levels of a value that are measured
_FLAT: Final = frozenset({str, bool, int, float})

AnyView: TypeAlias = "SdkSpan | Bystander"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLimits:
    """The time, in seconds, after which a trace is complete, and the limits of memory.

    A trace is complete ``root_quiet`` after its last span if the root has ended, ``slow_quiet``
    after it if spans are exported late or the root is unknown, and ``max_age`` after its first
    span. A turn below an open span is complete after ``quiet``. Over ``max_traces`` or
    ``max_bytes`` the oldest traces are evicted, as is a trace with more than ``max_spans`` or a
    quarter of ``max_bytes``.
    """

    quiet: float = 0.5
    root_quiet: float = 0.05
    slow_quiet: float = 5.0
    max_age: float = 300.0
    max_traces: int = 1024
    max_spans: int = 10_000
    max_bytes: int = 64 * 1024 * 1024


@dataclass(slots=True, eq=False)
class Subtree:
    """The first retrieval (``searched``) and the last LLM call (``called``) below a span.

    Calls that have an anchor are not counted. ``shown``: the retrieval is known only from documents
    in a prompt, and its own span may be further up.
    """

    searched: int | None = None
    called: int | None = None
    shown: bool = False

    def add(self, other: Subtree) -> None:
        """Add the subtree of a span below this one."""
        searched, called = other.searched, other.called
        if searched is not None:
            self.shown = other.shown and (self.shown or self.searched is None)
        if searched is not None and (self.searched is None or searched < self.searched):
            self.searched = searched
        if called is not None and (self.called is None or called > self.called):
            self.called = called

    @property
    def is_turn(self) -> bool:
        """Whether an LLM call follows a retrieval."""
        both = self.searched is not None and self.called is not None
        return both and self.called >= self.searched  # type: ignore[operator]  # just checked

    @property
    def above(self) -> Subtree:
        """The part of a turn's subtree that counts for the span above it."""
        return self if self.shown else Subtree(self.searched)


@dataclass(slots=True, kw_only=True, eq=False)
class Trace:
    """The spans of a trace so far, and which of them are held back. Times are of the clock."""

    trace_id: int
    first: float
    last: float
    spans: dict[int, AnyView] = field(default_factory=dict)
    """By id, in the order in which they ended."""
    arrivals: dict[int, tuple[float, int]] = field(default_factory=dict)
    """The time at which each span ended, and its size in bytes."""
    early: dict[int, ReadableSpan] = field(default_factory=dict)
    """Spans that ended before the trace had a step of RAG, and were not read yet."""
    held: dict[int, SdkSpan] = field(default_factory=dict)
    trees: list[tuple[int, RunTree]] = field(default_factory=list)
    """LangChain run trees without a turn of their own, with the id of the span around each."""
    subtrees: dict[int, Subtree] = field(default_factory=dict)
    turns: set[int] = field(default_factory=set)
    """The ids of the spans below which an LLM call follows a retrieval."""
    size: int = 0
    unheld: int = 0
    """The bytes added since a span was held back last."""
    is_slow: bool = False
    root_ended: bool = False
    is_lost: bool = False
    """Whether it was evicted; later spans of it are ignored."""
    is_doubled: bool = False
    """Whether two spans have the same id."""

    def add(self, view: AnyView, *, size: int, now: float) -> None:
        """Add an ended span."""
        self.last = now
        self.spans[view.span_id] = view
        self.arrivals[view.span_id] = (now, size)
        self.size += size
        self.unheld += size
        self.root_ended = self.root_ended or view.parent_id is None or view.parent_is_remote
        self.is_slow = self.is_slow or is_exported_late(view)

    def hold(self, anchor: SdkSpan) -> None:
        """Note that ``anchor`` is held back until the trace has been read."""
        self.held[anchor.span_id] = anchor
        self.unheld = 0

    def join(self, tree: RunTree, span_id: int, *, size: int, now: float) -> None:
        """Add LangChain runs that ran below the open span ``span_id``."""
        self.last = now
        self.trees.append((span_id, tree))
        self.size += size
        self.unheld += size
        note_above(self, span_id, Subtree(tree.searched, tree.called))

    def add_bystander(self, view: Bystander) -> int:
        """Add a span around the others, unless it is known; return the bytes added."""
        if view.span_id in self.spans:
            return 0
        self.spans[view.span_id] = view
        self.arrivals[view.span_id] = (self.last, OVERHEAD)
        self.size += OVERHEAD
        return OVERHEAD

    def add_early(self, span: ReadableSpan) -> int:
        """Add a span that ended early, unless it is known; return the bytes added."""
        span_id = span.context.span_id if span.context is not None else 0
        if span_id in self.spans or span_id in self.early:
            return 0
        self.early[span_id] = span
        self.size += OVERHEAD
        return OVERHEAD

    def add_bystanders(self) -> None:
        """Read the spans that ended early, and add those that are no steps."""
        while self.early:
            view = SdkSpan(self.early.popitem()[1])
            if view.scope != semconv.SCOPE and kind_of(view) == "other":
                self.spans[view.span_id] = Bystander.of(view)
                self.arrivals[view.span_id] = (self.last, OVERHEAD)

    def part(self, ids: Iterable[int]) -> Trace:
        """Remove the spans with these ``ids``, and return them as a trace."""
        taken = Trace(
            trace_id=self.trace_id,
            first=self.first,
            last=self.last,
            is_slow=self.is_slow,
            is_doubled=self.is_doubled,
        )
        for one in ids:
            taken.spans[one] = self.spans.pop(one)
            taken.arrivals[one] = self.arrivals.pop(one)
            self.subtrees.pop(one, None)
            if one in self.held:
                taken.held[one] = self.held.pop(one)
            if one in self.turns:
                self.turns.discard(one)
                taken.turns.add(one)
        taken.trees = [one for one in self.trees if one[0] in taken.spans]
        self.trees = [one for one in self.trees if one[0] not in taken.spans]
        taken.size = sum(size for _, size in taken.arrivals.values())
        taken.size += sum(tree.size for _, tree in taken.trees)
        self.size -= taken.size
        self.first = min((came for came, _ in self.arrivals.values()), default=self.last)
        return taken

    def empty(self) -> None:
        """Delete the spans; later ones are ignored."""
        self.is_lost = True
        self.spans, self.arrivals, self.early, self.subtrees = {}, {}, {}, {}
        self.trees, self.size = [], 0


def size_of(view: SdkSpan) -> int:
    """Return the size of ``view`` in bytes, estimated."""
    written = view.attributes.values()
    size = OVERHEAD + _ENTRY * len(written) + sum(map(getsizeof, written))
    size += sum(_weight(value) for value in written if type(value) not in _FLAT)
    for _, values in view.events:
        size += _weight(values)
    return size + sum(map(size_of_log, view.logs))


def size_of_log(record: LogView) -> int:
    """Return the size of ``record`` in bytes, estimated."""
    return OVERHEAD // 2 + _weight(record.attributes) + _weight(record.body)


def _weight(value: Any, level: int = 0) -> int:
    if isinstance(value, (str, bytes)):
        return getsizeof(value)
    if level == _NESTING:
        return 0
    if isinstance(value, Mapping):
        return sum(_ENTRY + _weight(part, level + 1) for part in value.values())
    if isinstance(value, Sequence):
        return sum(8 + _weight(part, level + 1) for part in value)
    return 0


_LEAVES = RETRIEVALS | {"llm"}


def stands_for_turn(
    trace: Trace,
    view: SdkSpan,
    kind: Kind,
    *,
    spans: OpenSpans,
    contexts_from_prompt: ContextsFromPrompt = "off",
) -> bool:
    """Return True if ``view`` may be an anchor: a retrieval and a later LLM call are below it.

    If it ended before the spans below it, as with a streamed answer, an open retrieval or an open
    call after a retrieval counts, too. With ``contexts_from_prompt`` each LLM call may be a turn.
    """
    own = trace.subtrees.setdefault(view.span_id, Subtree())
    said = recorded_on(view)
    if said:
        own.add(_recorded_subtree(said, view.start, own))
    if holds_documents(view):
        own.add(Subtree(view.start, shown=True))
    is_turn = False
    if kind in RETRIEVALS:
        up = Subtree(searched=view.start)
    elif kind == "llm" and contexts_from_prompt == "on":
        up, is_turn = Subtree(view.start, view.start), True
    elif kind == "llm":
        up = Subtree(own.searched, max(view.start, own.searched or 0), own.shown)
    elif own.searched is None and _may_have_searched(view, kind, own):
        up = Subtree(view.start, own.called)
    else:
        up = own
        may_go_on = own.searched is not None or kind != "other"
        is_turn = own.is_turn or (may_go_on and _is_open_below(trace, view, own, spans=spans))
        is_turn = is_turn or is_recorded(view)  # its span gets the reason if the turn is refused
        if own.is_turn:
            trace.turns.add(view.span_id)
            up = own.above
    note_above(trace, view.parent_id, up)
    return is_turn


def _may_have_searched(view: SdkSpan, kind: Kind, own: Subtree) -> bool:
    """Return True if ``view`` may be a retrieval: a tool, or a step that returns documents.

    Its content is read later. A span that was held back without need is released then.
    """
    if kind == "tool":
        return True
    if kind != "chain" or own.called is not None:
        return False
    return returns_documents(view) or (
        returns_list(view) and CONTEXT_TOOLS.search(tool_name(view)) is not None
    )


def note_above(trace: Trace, above: int | None, up: Subtree) -> None:
    """Add ``up`` to the subtree of the span ``above``, and to those of its ended ancestors."""
    for _ in range(_DEPTH):
        if above is None or (up.searched is None and up.called is None):
            return
        below = trace.subtrees.setdefault(above, Subtree())
        below.add(up)
        if above in trace.early:
            trace.add_bystanders()
        view = trace.spans.get(above)
        if view is None or kind_of(view) in _LEAVES:
            return
        if below.is_turn:
            trace.turns.add(above)
            up = below.above
        above = view.parent_id


def _recorded_subtree(said: Collection[Part], start: int, own: Subtree) -> Subtree:
    """Return the subtree that is recorded by hand on a span that started at ``start``."""
    searched = start if "documents" in said else None
    known = searched if own.searched is None else own.searched
    return Subtree(searched, (start if known is None else known) if "output" in said else None)


def _is_open_below(trace: Trace, view: SdkSpan, own: Subtree, *, spans: OpenSpans) -> bool:
    """Return True if a retrieval, or a span after one, is still open below ``view``."""
    trace.add_bystanders()
    views = [SdkSpan(span) for span in spans.newest(view.trace_id) if span.end_time is None]
    parents = {one.span_id: one.parent_id for one in views}
    inner = [one for one in views if view.span_id in ids_above(one.parent_id, trace.spans, parents)]
    if any(kind_of(one) in RETRIEVALS for one in inner):
        return True
    known = Subtree(own.searched, own.called)
    for one in inner:
        known.add(trace.subtrees.get(one.span_id) or Subtree())
    later = (one.start > known.searched for one in inner if known.searched is not None)
    return known.is_turn or any(later)


def completed_parts(
    trace: Trace, opened: Iterable[ReadableSpan], *, until: float
) -> Iterator[list[int]]:
    """Yield the span ids of each complete part of ``trace`` that holds a turn.

    A part is complete if its top has no parent within a turn, all its spans have ended, and none of
    them has ended since ``until``.
    """
    if trace.is_slow or not any(turn in trace.spans for turn in trace.turns):
        return
    views = [SdkSpan(span) for span in opened]
    parents = {one.span_id: one.parent_id for one in views}
    around = {one.span_id for one in views if is_bystander(one)}
    units: dict[int, list[int]] = defaultdict(list)
    for one in trace.spans:
        units[_top(one, trace)].append(one)
    busy = {above for one in views for above in ids_above(one.parent_id, trace.spans, parents)}
    for top, unit in units.items():
        view = trace.spans[top]
        hangs = view.parent_id is not None and not view.parent_is_remote
        if (hangs and view.parent_id not in around) or trace.turns.isdisjoint(unit):
            continue
        if busy.isdisjoint(unit) and max(trace.arrivals[one][0] for one in unit) <= until:
            yield unit


def _top(start: int, trace: Trace) -> int:
    """Return the outermost of the spans that have ended at or above ``start``."""
    top = start
    for above in ids_above(start, trace.spans, {}):
        if above in trace.spans:
            top = above
    return top
