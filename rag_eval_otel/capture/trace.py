"""`Trace`: the spans of one trace until it is complete, and those that are open around them."""

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


_OPEN = 4096  # spans under way that are known; some never end
_ENDED = 256  # spans remembered that ended while nothing was known of their trace
_STARTED = 4096  # starts remembered until the background has looked at them
_NEWEST = 64  # spans that are looked at on the application's thread
_DEPTH = 100  # of parents that are looked at


class OpenSpans:
    """The spans that have started and not ended; bounded, the newest count.

    What has started is referred to weakly: keeping ended spans alive would cost the application's
    thread as much as making them, in memory that is no longer in its cache.
    """

    def __init__(self) -> None:
        """Know of none."""
        self.starts: deque[ref[ReadableSpan]] = deque(maxlen=_STARTED)
        """What has started since the last look; every span of the application is appended."""
        self.ended: deque[ReadableSpan] = deque(maxlen=_ENDED)
        """Spans without a mark of any dialect; their trace may become one of RAG yet."""
        self._open: dict[int, list[ReadableSpan]] = {}
        self._ending: frozenset[int] = frozenset()  # which of them had ended at the last look
        self._looking = threading.Lock()

    def __iter__(self) -> Iterator[ReadableSpan]:
        """Yield the spans that were open at the last look, or had only just ended."""
        return chain.from_iterable(self._open.values())

    def note_start(self, span: ReadableSpan) -> None:
        """Note that ``span`` has started."""
        self.starts.append(ref(span))

    def note_current(self, trace_id: int) -> None:
        """Note the current span, if it is of this trace: its start may be long forgotten."""
        span: Any = get_current_span()
        while hasattr(span, "__wrapped__"):  # a proxy, as OpenInference's, is another span later on
            span = span.__wrapped__
        if isinstance(span, Span) and trace_of(span) == trace_id:
            self.note_start(span)

    def look(self) -> None:
        """Sort what has started since the last look, and forget what had ended by then.

        What has ended since is kept until the next look: a span has its end time a moment before
        its end is told, and if its thread is held up in between, it would be in neither place.
        """
        with self._looking:  # not the buffer's lock, for which the application's threads wait
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
        """Forget the starts that were ``seen``, now that they are among the open ones."""
        known = set(map(id, seen))
        while self.starts and id(self.starts[0]) in known:
            self.starts.popleft()

    def just_ended(self, trace_id: int) -> list[ReadableSpan]:
        """Return those of a trace that have ended lately, while nothing was known of it."""
        lately = islice(reversed(self.ended.copy()), _NEWEST)
        return [span for span in lately if (c := span.context) and c.trace_id == trace_id]

    def lately(self, trace_id: int) -> list[ReadableSpan]:
        """Return those of a trace that were open at the last look, or had only just ended."""
        return self._open.get(trace_id, [])

    def of(self, trace_id: int) -> list[ReadableSpan]:
        """Return those of a trace that were open at the last look, and still are."""
        return [span for span in self._open.get(trace_id, ()) if span.end_time is None]

    def newest(self, trace_id: int) -> list[ReadableSpan]:
        """Return the newest of a trace that are open, without a look; there may be more."""
        found = [span for span in self._newest() if trace_of(span) == trace_id]
        newest = [span for span in found if span.end_time is None]
        return [*newest, *self._open.get(trace_id, ())[-_NEWEST:]][:_NEWEST]

    def _newest(self) -> Iterator[ReadableSpan]:
        with suppress(IndexError):  # another thread looks meanwhile
            for i in range(1, min(len(self.starts), _NEWEST) + 1):
                span = self.starts[-i]()
                if span is not None:
                    yield span


def is_bystander(view: SdkSpan) -> bool:
    """Tell whether an open span is no step of RAG and, by who records it, won't become one."""
    return kind_of(view) == "other" and not is_instrumentation(view.scope)


def line_of(
    start: int | None, ended: Mapping[int, SpanView], opened: Mapping[int, int | None]
) -> Iterator[int]:
    """Yield ``start`` and the ids above it, among ``ended`` spans and the parents of ``opened``."""
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
"""Bytes of a span, about, without what is written on it."""

_ENTRY = 100  # bytes of an attribute, about, without its value
_NESTING = 8  # levels of a value that are measured
_FLAT: Final = frozenset({str, bool, int, float})

AnyView: TypeAlias = "SdkSpan | Bystander"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLimits:
    """When a trace is complete, in seconds, and how much is kept until then.

    After the last span has ended, ``root_quiet`` passes where a root has, ``slow_quiet`` where
    spans come late or the root is not known; ``quiet`` for a turn below something that goes on; or
    ``max_age`` since the first. Over ``max_traces`` or ``max_bytes`` the oldest go, and one that
    alone has more than ``max_spans`` or a quarter of ``max_bytes``.
    """

    quiet: float = 0.5
    root_quiet: float = 0.05
    slow_quiet: float = 5.0
    max_age: float = 300.0
    max_traces: int = 1024
    max_spans: int = 10_000
    max_bytes: int = 64 * 1024 * 1024


@dataclass(slots=True, eq=False)
class Below:
    """What is below a span: when it was searched first, and called last.

    Calls that have an anchor already are not counted. ``shown`` says that no search is known but by
    what a call was shown: the search itself may be found further up.
    """

    searched: int | None = None
    called: int | None = None
    shown: bool = False

    def add(self, other: Below) -> None:
        """Take in what is below another span that this one is above of."""
        searched, called = other.searched, other.called
        if searched is not None:
            self.shown = other.shown and (self.shown or self.searched is None)
        if searched is not None and (self.searched is None or searched < self.searched):
            self.searched = searched
        if called is not None and (self.called is None or called > self.called):
            self.called = called

    @property
    def is_turn(self) -> bool:
        """Whether a call follows a retrieval."""
        both = self.searched is not None and self.called is not None
        return both and self.called >= self.searched  # type: ignore[operator]  # just checked

    @property
    def above(self) -> Below:
        """What the span above a turn sees of it: the search, and a call that may be its own."""
        return self if self.shown else Below(self.searched)


@dataclass(slots=True, kw_only=True, eq=False)
class Trace:
    """The spans of a trace so far, and which of them are held. Times are those of the clock."""

    trace_id: int
    first: float
    last: float
    spans: dict[int, AnyView] = field(default_factory=dict)
    """By id, in the order of their ends."""
    noted: dict[int, tuple[float, int]] = field(default_factory=dict)
    """When each span came, and its bytes."""
    early: dict[int, ReadableSpan] = field(default_factory=dict)
    """What had ended before anything was known of the trace, and nobody has looked at yet."""
    held: dict[int, SdkSpan] = field(default_factory=dict)
    trees: list[tuple[int, RunTree]] = field(default_factory=list)
    """LangChain runs that are no turn by themselves, by the span of the application around them."""
    below: dict[int, Below] = field(default_factory=dict)
    turns: set[int] = field(default_factory=set)
    """The spans below which a call follows a retrieval."""
    size: int = 0
    unheld: int = 0
    """Bytes that came since a span was held last."""
    is_slow: bool = False
    root_ended: bool = False
    is_lost: bool = False
    """Whether it had to go, with whatever of its trace is still to come."""
    is_doubled: bool = False
    """Whether two spans have one id."""

    def add(self, view: AnyView, *, size: int, now: float) -> None:
        """Take in a span that has ended."""
        self.last = now
        self.spans[view.span_id] = view
        self.noted[view.span_id] = (now, size)
        self.size += size
        self.unheld += size
        self.root_ended = self.root_ended or view.parent_id is None or view.parent_is_remote
        self.is_slow = self.is_slow or is_exported_late(view)

    def hold(self, anchor: SdkSpan) -> None:
        """Note that ``anchor`` is held back until the trace has been read."""
        self.held[anchor.span_id] = anchor
        self.unheld = 0

    def join(self, tree: RunTree, span_id: int, *, size: int, now: float) -> None:
        """Take in LangChain runs that ran below the open span ``span_id``."""
        self.last = now
        self.trees.append((span_id, tree))
        self.size += size
        self.unheld += size
        rise(self, span_id, Below(tree.searched, tree.called))

    def stand_by(self, view: Bystander) -> int:
        """Take in a span around the others, if it is not known; return its bytes."""
        if view.span_id in self.spans:
            return 0
        self.spans[view.span_id] = view
        self.noted[view.span_id] = (self.last, OVERHEAD)
        self.size += OVERHEAD
        return OVERHEAD

    def add_early(self, span: ReadableSpan) -> int:
        """Take in a span that had ended early, if it is not known; return its bytes."""
        span_id = span.context.span_id if span.context is not None else 0
        if span_id in self.spans or span_id in self.early:
            return 0
        self.early[span_id] = span
        self.size += OVERHEAD
        return OVERHEAD

    def settle(self) -> None:
        """Look at what had ended early."""
        while self.early:
            view = SdkSpan(self.early.popitem()[1])
            if view.scope != semconv.SCOPE and kind_of(view) == "other":
                self.spans[view.span_id] = Bystander.of(view)
                self.noted[view.span_id] = (self.last, OVERHEAD)

    def part(self, ids: Iterable[int]) -> Trace:
        """Take the spans with these ``ids`` out, and return them as a trace."""
        taken = Trace(
            trace_id=self.trace_id,
            first=self.first,
            last=self.last,
            is_slow=self.is_slow,
            is_doubled=self.is_doubled,
        )
        for one in ids:
            taken.spans[one] = self.spans.pop(one)
            taken.noted[one] = self.noted.pop(one)
            self.below.pop(one, None)
            if one in self.held:
                taken.held[one] = self.held.pop(one)
            if one in self.turns:
                self.turns.discard(one)
                taken.turns.add(one)
        taken.trees = [one for one in self.trees if one[0] in taken.spans]
        self.trees = [one for one in self.trees if one[0] not in taken.spans]
        taken.size = sum(size for _, size in taken.noted.values())
        taken.size += sum(tree.size for _, tree in taken.trees)
        self.size -= taken.size
        self.first = min((came for came, _ in self.noted.values()), default=self.last)
        return taken

    def empty(self) -> None:
        """Forget the spans; what comes later is lost, too."""
        self.is_lost = True
        self.spans, self.noted, self.early, self.below = {}, {}, {}, {}
        self.trees, self.size = [], 0


def size_of(view: SdkSpan) -> int:
    """Return about how many bytes ``view``, with what is written on it, keeps alive."""
    written = view.attributes.values()
    size = OVERHEAD + _ENTRY * len(written) + sum(map(getsizeof, written))
    size += sum(_weight(value) for value in written if type(value) not in _FLAT)
    for _, values in view.events:
        size += _weight(values)
    return size + sum(map(size_of_log, view.logs))


def size_of_log(record: LogView) -> int:
    """Return about how many bytes ``record`` keeps alive."""
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


_MAX_DEPTH = 100  # of parents that are told
_LEAVES = RETRIEVALS | {"llm"}


def stands_for_turn(
    trace: Trace,
    view: SdkSpan,
    kind: Kind,
    *,
    spans: OpenSpans,
    contexts_from_prompt: ContextsFromPrompt = "off",
) -> bool:
    """Tell whether ``view`` may be the deepest span above a retrieval and a call after it.

    Where it has ended before what is below it, as it does when its answer is a stream, a retrieval
    that is open counts, and a call that came after the retrieval and is open. With
    ``contexts_from_prompt`` each call may have its contexts in its prompt, and be a turn itself.
    """
    own = trace.below.setdefault(view.span_id, Below())
    said = recorded_on(view)
    if said:
        own.add(_said(said, view.start, own))
    if holds_documents(view):
        own.add(Below(view.start, shown=True))
    is_turn = False
    if kind in RETRIEVALS:
        up = Below(searched=view.start)
    elif kind == "llm" and contexts_from_prompt == "on":
        up, is_turn = Below(view.start, view.start), True
    elif kind == "llm":
        up = Below(own.searched, max(view.start, own.searched or 0), own.shown)
    elif own.searched is None and _may_have_searched(view, kind, own):
        up = Below(view.start, own.called)
    else:
        up = own
        may_go_on = own.searched is not None or kind != "other"
        is_turn = own.is_turn or (may_go_on and _goes_on(trace, view, own, spans=spans))
        is_turn = is_turn or is_recorded(view)  # if it is refused, its span says why
        if own.is_turn:
            trace.turns.add(view.span_id)
            up = own.above
    rise(trace, view.parent_id, up)
    return is_turn


def _may_have_searched(view: SdkSpan, kind: Kind, own: Below) -> bool:
    """Tell whether ``view`` may have found contexts: a tool, or a step that returns documents.

    Whether it has is read later: what is held for nothing leaves a moment later.
    """
    if kind == "tool":
        return True
    if kind != "chain" or own.called is not None:
        return False
    return returns_documents(view) or (
        returns_list(view) and CONTEXT_TOOLS.search(tool_name(view)) is not None
    )


def rise(trace: Trace, above: int | None, up: Below) -> None:
    """Tell the span ``above`` what is below it; where it has ended, also those above that."""
    for _ in range(_MAX_DEPTH):
        if above is None or (up.searched is None and up.called is None):
            return
        below = trace.below.setdefault(above, Below())
        below.add(up)
        if above in trace.early:
            trace.settle()
        view = trace.spans.get(above)
        if view is None or kind_of(view) in _LEAVES:
            return
        if below.is_turn:
            trace.turns.add(above)
            up = below.above
        above = view.parent_id


def _said(said: Collection[Part], start: int, own: Below) -> Below:
    """Return what the application itself has told of, on a span that started at ``start``."""
    searched = start if "documents" in said else None
    known = searched if own.searched is None else own.searched
    return Below(searched, (start if known is None else known) if "output" in said else None)


def _goes_on(trace: Trace, view: SdkSpan, own: Below, *, spans: OpenSpans) -> bool:
    """Tell whether a retrieval, or what follows one, is still open below ``view``."""
    trace.settle()
    views = [SdkSpan(span) for span in spans.newest(view.trace_id) if span.end_time is None]
    parents = {one.span_id: one.parent_id for one in views}
    inner = [one for one in views if view.span_id in line_of(one.parent_id, trace.spans, parents)]
    if any(kind_of(one) in RETRIEVALS for one in inner):
        return True
    known = Below(own.searched, own.called)
    for one in inner:
        known.add(trace.below.get(one.span_id) or Below())
    later = (one.start > known.searched for one in inner if known.searched is not None)
    return known.is_turn or any(later)


def units_over(
    trace: Trace, opened: Iterable[ReadableSpan], *, until: float
) -> Iterator[list[int]]:
    """Yield the spans, by id, of each part of ``trace`` that holds turns and is over.

    It hangs below nothing, or below a span that is no step of a turn; nothing in it is open, and
    nothing has come since ``until``.
    """
    if trace.is_slow or not any(turn in trace.spans for turn in trace.turns):
        return
    views = [SdkSpan(span) for span in opened]
    parents = {one.span_id: one.parent_id for one in views}
    around = {one.span_id for one in views if is_bystander(one)}
    units: dict[int, list[int]] = defaultdict(list)
    for one in trace.spans:
        units[_top(one, trace)].append(one)
    busy = {above for one in views for above in line_of(one.parent_id, trace.spans, parents)}
    for top, unit in units.items():
        view = trace.spans[top]
        hangs = view.parent_id is not None and not view.parent_is_remote
        if (hangs and view.parent_id not in around) or trace.turns.isdisjoint(unit):
            continue
        if busy.isdisjoint(unit) and max(trace.noted[one][0] for one in unit) <= until:
            yield unit


def _top(start: int, trace: Trace) -> int:
    """Return the outermost of the spans that have ended at or above ``start``."""
    top = start
    for above in line_of(start, trace.spans, {}):
        if above in trace.spans:
            top = above
    return top
