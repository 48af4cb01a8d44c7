"""Keep the ended spans of one trace (`Trace`), and say which of them may get scores.

A *turn* is one question of a user and its answer. Its *anchor* is the span that gets the scores.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice, takewhile
from sys import getsizeof
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from weakref import ref

from opentelemetry.sdk.trace import Span
from opentelemetry.trace import get_current_span

from rag_eval_otel import semconv
from rag_eval_otel.capture.conventions import (
    holds_documents,
    is_exported_late,
    is_flat,
    is_instrumentation,
    is_recorded,
    kind_of,
    recorded_on,
    returns_documents,
    returns_list,
    shows_documents,
    tool_name,
)
from rag_eval_otel.capture.runs import RunTree
from rag_eval_otel.capture.span import Bystander, LogView, SdkSpan, SpanView
from rag_eval_otel.capture.step import CONTEXT_TOOLS, RETRIEVALS, Kind, Part
from rag_eval_otel.types import Ending

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan

AnyView: TypeAlias = "SdkSpan | Bystander"

Key: TypeAlias = "tuple[int, int]"
"""Trace id and span id. LangChain run trees have trace id 0, as their spans do not exist yet."""

State: TypeAlias = Literal["collecting", "scoring", "leaving", "left"]

OVERHEAD = 2600
"""The estimated size in bytes of a span without its attributes and events."""

_ENTRY = 100  # estimated bytes of an attribute without its value
_NESTING = 8  # levels of a value that are measured
_FLAT: Final = frozenset({str, bool, int, float})
_OPEN = 4096  # the most open spans that are kept; some spans never end
_ENDED = 256  # the most ended spans that are kept of traces in which no RAG was found
_STARTED = 4096  # the most started spans that are kept until the next refresh
_NEWEST = 64  # the most spans that are searched on the application's thread
DEPTH = 100
"""The most ancestors that are searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLimits:
    """The waiting times, in seconds, before a trace is read, and the limits of stored traces.

    A trace is read ``root_quiet`` after the end of its last span. If its root has not ended, or if
    its spans are exported late, ``slow_quiet`` counts instead. A trace is read at the latest
    ``max_age`` after its first span. If the spans of a turn (a question with its answer) have ended
    below an open span, they are read ``quiet`` after the last of them. Over ``max_traces`` or
    ``max_bytes`` the oldest traces are removed. A single trace is removed if it has more than
    ``max_spans`` spans or takes more than a quarter of ``max_bytes``.
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
    """When the first retrieval and the last LLM call at or below a span started.

    ``searched`` and ``called`` are these start times. An LLM call that follows a retrieval further
    down is not counted. ``shown`` is true if a chain at or below the span received or returned
    documents, which may be of an unknown retrieval.
    """

    searched: int | None = None
    called: int | None = None
    shown: bool = False

    def add(self, other: Subtree) -> None:
        """Add the retrieval and the LLM call that were found below a child of this span."""
        searched, called = other.searched, other.called
        self.shown = self.shown or other.shown
        if searched is not None and (self.searched is None or searched < self.searched):
            self.searched = searched
        if called is not None and (self.called is None or called > self.called):
            self.called = called

    @property
    def is_turn(self) -> bool:
        """Whether an LLM call follows a retrieval, and no span below may stand for that turn."""
        both = self.searched is not None and self.called is not None
        return both and self.called >= self.searched  # type: ignore[operator]  # just checked

    @property
    def above(self) -> Subtree:
        """The part of this subtree that counts for the parent, without calls that answered."""
        return Subtree(self.searched, None, self.shown) if self.is_turn else self

    @property
    def may_be_turn(self) -> bool:
        """Whether a turn may be at or below this span, although a span below may stand for it."""
        return self.searched is not None or (self.shown and self.called is not None)


@dataclass(slots=True, eq=False)  # not frozen: that costs the application a microsecond
class Held:
    """A span or a LangChain run tree that is kept back from the exporter, because of its scores.

    ::

        collecting ──► scoring ──► leaving ──► left
            └─────────────────────────►┘

    - ``collecting``: the span has ended, but its trace is not complete, or has not been read yet.
    - ``scoring``: a turn was found for it, and is being evaluated.
    - ``leaving``: it was decided how it leaves (``ending``). The first decision counts.
    - ``left``: it was passed on, with its scores or with the reason why it has none.

    It leaves in ``context``, the one in which the span ended. If ``is_likely`` is false, another
    span will probably get the scores, and this one leaves as it is unless a turn is found for it.
    """

    key: Key
    item: Any
    context: Context
    size: int
    is_likely: bool
    deadline: float = 0.0
    number: int = -1
    takes_place: bool = False
    """Whether it counts for the most spans that may wait for scores."""
    is_claimed: bool = False
    """Whether a thread writes the spans of this run tree, or has written them."""
    is_late: bool = False
    """Whether it left at its deadline, or found no room: scores come too late for it."""
    state: State = "collecting"
    ending: Ending | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Trace:
    """The ended spans of one trace until it is scored. Times are seconds of the store's clock."""

    trace_id: int
    first: float
    last: float
    spans: dict[int, AnyView] = field(default_factory=dict)
    """The ended spans by span id, in the order in which they ended."""
    arrivals: dict[int, tuple[float, int]] = field(default_factory=dict)
    """By span id, the time at which a span ended, and its size in bytes."""
    early: dict[int, ReadableSpan] = field(default_factory=dict)
    """Spans that ended before any RAG was found in the trace, and were not read yet."""
    held: dict[int, Held] = field(default_factory=dict)
    """The spans that are kept back from the exporter until they are scored, by span id."""
    trees: list[tuple[int, RunTree]] = field(default_factory=list)
    """LangChain runs within open spans of the trace, each with the id of the span around it."""
    subtrees: dict[int, Subtree] = field(default_factory=dict)
    turns: set[int] = field(default_factory=set)
    """The ids of the spans below which an LLM call follows a retrieval."""
    size: int = 0
    unheld: int = 0
    """The number of bytes added since a span was last kept back from the exporter."""
    is_slow: bool = False
    root_ended: bool = False
    is_lost: bool = False
    """Whether the trace was removed to limit memory. Its later spans are ignored."""
    is_doubled: bool = False
    """Whether two different spans have the same span id."""
    is_claimed: bool = False
    """Whether its turns were counted: by the thread that has found them, or that gave it up."""

    def add(self, view: AnyView, *, size: int, now: float) -> None:
        """Add the ended span ``view`` of ``size`` bytes to the trace."""
        self.last = now
        self.spans[view.span_id] = view
        self.arrivals[view.span_id] = (now, size)
        self.size += size
        self.unheld += size
        self.root_ended = self.root_ended or view.parent_id is None or view.parent_is_remote
        self.is_slow = self.is_slow or is_exported_late(view)

    def note_turn(self, span_id: int) -> None:
        """Record that an LLM call follows a retrieval below the span ``span_id``."""
        self.turns.add(span_id)
        if span_id in self.held:
            self.held[span_id].is_likely = True

    def join(self, tree: RunTree, span_id: int, *, size: int, now: float) -> None:
        """Add the LangChain runs ``tree``, which were made within the open span ``span_id``."""
        self.last = now
        self.trees.append((span_id, tree))
        self.size += size
        self.unheld += size
        note_above(self, span_id, Subtree(tree.searched, tree.called))

    def add_bystander(self, view: Bystander) -> int:
        """Add a span that is no part of RAG, unless the span is known. Return the bytes added."""
        if view.span_id in self.spans:
            return 0
        self.spans[view.span_id] = view
        self.arrivals[view.span_id] = (self.last, OVERHEAD)
        self.size += OVERHEAD
        return OVERHEAD

    def add_early(self, span: ReadableSpan) -> int:
        """Add a span that ended before RAG was found in the trace. Return the bytes added."""
        span_id = span.context.span_id if span.context is not None else 0
        if span_id in self.spans or span_id in self.early:
            return 0
        self.early[span_id] = span
        self.size += OVERHEAD
        return OVERHEAD

    def add_bystanders(self) -> None:
        """Read the spans in ``early``, and keep the spans that are no part of RAG."""
        while self.early:
            view = SdkSpan(self.early.popitem()[1])
            if view.scope != semconv.SCOPE and kind_of(view) == "other":
                self.spans[view.span_id] = Bystander.of(view)
                self.arrivals[view.span_id] = (self.last, OVERHEAD)

    def part(self, ids: Iterable[int]) -> Trace:
        """Move the spans with these ``ids`` from this trace to a new trace, and return it."""
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

    def count_turns(self) -> int:
        """Return the number of turns in this trace, which is not read: at least one."""
        likely = sum(held.is_likely for held in self.held.values())
        return max(1, likely, len(self.turns))

    def empty(self) -> None:
        """Delete all spans of the trace, and ignore its later spans."""
        self.is_lost = True
        self.spans, self.arrivals, self.early, self.subtrees, self.held = {}, {}, {}, {}, {}
        self.trees, self.turns, self.size = [], set(), 0


def size_of(view: SdkSpan) -> int:
    """Return the estimated size of a span in bytes, with its attributes, events and log records."""
    written = view.attributes.values()
    size = OVERHEAD + _ENTRY * len(written) + sum(map(getsizeof, written))
    size += sum(_weight(value) for value in written if type(value) not in _FLAT)
    for _, values in view.events:
        size += _weight(values)
    return size + sum(map(size_of_log, view.logs))


def size_of_log(record: LogView) -> int:
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


Anchoring: TypeAlias = Literal["no", "possibly", "likely"]
"""Whether a span may get the scores of a turn, as far as is known when the span has ended."""


def may_be_anchor(
    trace: Trace,
    view: SdkSpan,
    kind: Kind,
    *,
    spans: OpenSpans,
    contexts_from_prompt: bool = False,
) -> Anchoring:
    """Return whether the span ``view`` may get scores.

    Which span gets them is known only when the trace has been read. So a span may get scores if a
    retrieval is below it. It is likely to get them if a later LLM call is below it, too, and below
    none of its children. A streamed answer may still be written when the span has ended. So a span
    is also likely to get scores if a retrieval, or a span that started after a retrieval, is open
    below it. With ``contexts_from_prompt``, every LLM call may get scores.
    """
    own = trace.subtrees.setdefault(view.span_id, Subtree())
    said = recorded_on(view)
    if said:
        own.add(_recorded_subtree(said, view.start, own))
    if holds_documents(view):
        own.add(Subtree(view.start))
    is_likely = is_possible = False
    if kind in RETRIEVALS:
        up = Subtree(searched=view.start)
    elif kind == "llm" and contexts_from_prompt:
        up, is_likely = Subtree(view.start, view.start), True
    elif kind == "llm":
        up = Subtree(own.searched, max(view.start, own.searched or 0))
        is_possible = _answers_alone(trace, view, own, spans=spans)
    elif own.searched is None and _may_have_searched(view, kind, own):
        up = Subtree(view.start, own.called)
        is_possible = is_exported_late(view)
    else:
        up = own
        own.shown = own.shown or (kind == "chain" and shows_documents(view))
        is_possible = own.may_be_turn or (kind != "other" and is_exported_late(view))
        may_go_on = own.searched is not None or kind != "other"
        is_likely = own.is_turn or (may_go_on and _is_open_below(trace, view, own, spans=spans))
        is_likely = is_likely or is_recorded(view)  # it gets the reason if it cannot be scored
        if own.is_turn:
            trace.note_turn(view.span_id)
            up = own.above
    is_possible = is_possible or _outlives_its_agent(trace, view, up)
    note_above(trace, view.parent_id, up)
    return "likely" if is_likely else "possibly" if is_possible else "no"


def _outlives_its_agent(trace: Trace, view: SdkSpan, up: Subtree) -> bool:
    """Return True if the span above ``view``, with the retrieval for its LLM call, has ended."""
    above = trace.subtrees.get(view.parent_id or 0)
    is_turn = up.called is not None and above is not None and above.searched is not None
    return is_turn and view.parent_id in trace.spans


def _may_have_searched(view: SdkSpan, kind: Kind, own: Subtree) -> bool:
    if kind == "tool":
        return True
    if kind != "chain" or own.called is not None:
        return False
    return returns_documents(view) or (
        returns_list(view) and CONTEXT_TOOLS.search(tool_name(view)) is not None
    )


def note_above(trace: Trace, above: int | None, up: Subtree) -> None:
    """Tell the span ``above`` and the spans above it about a retrieval and an LLM call below them.

    ``up`` contains the start times of the first retrieval and of the last LLM call below.
    """
    for _ in range(DEPTH):
        if above is None or not (up.shown or up.called is not None or up.searched is not None):
            return
        below = trace.subtrees.setdefault(above, Subtree())
        below.add(up)
        if above in trace.early:
            trace.add_bystanders()
        view = trace.spans.get(above)
        if view is None or kind_of(view) in _LEAVES:
            return
        if below.is_turn:
            trace.note_turn(above)
            up = below.above
        above = view.parent_id


def _recorded_subtree(said: Collection[Part], start: int, own: Subtree) -> Subtree:
    searched = start if "documents" in said else None
    known = searched if own.searched is None else own.searched
    return Subtree(searched, (start if known is None else known) if "output" in said else None)


def _answers_alone(trace: Trace, view: SdkSpan, own: Subtree, *, spans: OpenSpans) -> bool:
    """Return True if no step of RAG contains both the LLM call ``view`` and its retrieval.

    Examples are a call without a parent whose prompt has tool results, and one of several answers
    below the span of a web request.
    """
    opened = {one.span_id: one for one in map(SdkSpan, spans.newest(view.trace_id))}
    parents = {one.span_id: one.parent_id for one in opened.values()}
    for above in ids_above(view.parent_id, trace.spans, parents):
        below = trace.subtrees.get(above)
        if own.searched is not None or (below is not None and below.searched is not None):
            around = trace.spans.get(above) or opened.get(above)
            return around is not None and is_flat(around)
    return own.searched is not None


def _is_open_below(trace: Trace, view: SdkSpan, own: Subtree, *, spans: OpenSpans) -> bool:
    """Return True if a retrieval, or a span that follows a retrieval, is open below ``view``."""
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
    """Yield the span ids of each part of ``trace`` that is complete and can be scored.

    A part is an ended span without an ended parent, and all spans below it. None is open, and none
    has ended after ``until``. A parent in this process must be an open span that is no part of RAG.
    ``opened`` are the open spans of the trace.
    """
    if trace.is_slow or not any(turn in trace.spans for turn in trace.turns):
        return
    views = [SdkSpan(span) for span in opened]
    parents = {one.span_id: one.parent_id for one in views}
    around = {one.span_id for one in views if is_bystander(one)}
    units: dict[int, list[int]] = defaultdict(list)
    for one, top in _tops(trace).items():
        units[top].append(one)
    busy = set[int]()
    for above in (ids_above(one.parent_id, trace.spans, parents) for one in views):
        busy.update(takewhile(lambda span_id: span_id not in busy, above))
    for top, unit in units.items():
        view = trace.spans[top]
        hangs = view.parent_id is not None and not view.parent_is_remote
        if (hangs and view.parent_id not in around) or trace.turns.isdisjoint(unit):
            continue
        if busy.isdisjoint(unit) and max(trace.arrivals[one][0] for one in unit) <= until:
            yield unit


def _tops(trace: Trace) -> dict[int, int]:
    """Map the id of each span of ``trace`` to that of the outermost ended span at or above it."""
    tops: dict[int, int] = {}
    for one in trace.spans:
        path, above = dict[int, None](), one
        while above in trace.spans and above not in tops and above not in path:
            path[above] = None
            above = trace.spans[above].parent_id or 0
        tops |= dict.fromkeys(path, tops.get(above) or next(reversed(path), one))
    return tops


# --- spans that are open --------------------------------------------------------------------------


class OpenSpans:
    """Knows the newest open spans of all traces, except those of this library.

    The span of a LangChain turn is open until it has scores. No other span is below it.

    Started spans are referenced weakly. To keep them alive after their end would cost the
    application's thread as much time as to create them.
    """

    def __init__(self) -> None:
        self.starts: deque[ref[ReadableSpan]] = deque(maxlen=_STARTED)
        """All spans of the application that have started since the last refresh."""
        self.ended: deque[ReadableSpan] = deque(maxlen=_ENDED)
        """Recently ended spans that are no part of RAG. RAG may follow in their traces."""
        self._open: dict[int, list[ReadableSpan]] = {}
        self._ending: frozenset[int] = frozenset()  # spans that had ended at the last refresh
        self._refreshing = threading.Lock()

    def __iter__(self) -> Iterator[ReadableSpan]:
        """Yield the spans that were open, or had just ended, at the last refresh."""
        return chain.from_iterable(self._open.values())

    def note_start(self, span: ReadableSpan) -> None:
        self.starts.append(ref(span))

    def note_current(self, trace_id: int) -> None:
        """Add the current span if it is in this trace, because its start may have been dropped."""
        span: Any = get_current_span()
        while hasattr(span, "__wrapped__"):  # OpenInference's proxy
            span = span.__wrapped__
        if isinstance(span, Span) and trace_of(span) == trace_id:
            self.note_start(span)

    def refresh(self) -> None:
        """Add the spans that have started since the last refresh, and drop ended spans.

        A span that has ended since the last refresh is kept until the next refresh. The SDK sets
        the end time of a span shortly before it calls the span processor. In between, the span
        would be neither open nor ended.
        """
        with self._refreshing:  # not the store's lock, for which the application's threads wait
            seen = self.starts.copy()
            started = (start() for start in seen)
            alive = [span for span in started if span is not None and not is_own(span)]
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
        known = set(map(id, seen))
        while self.starts and id(self.starts[0]) in known:
            self.starts.popleft()

    def recently_ended(self, trace_id: int) -> list[ReadableSpan]:
        """Return the recently ended spans of a trace in which no RAG was found until now."""
        lately = islice(reversed(self.ended.copy()), _NEWEST)
        return [span for span in lately if (c := span.context) and c.trace_id == trace_id]

    def recently_open(self, trace_id: int) -> list[ReadableSpan]:
        """Return the spans of a trace that were open, or had just ended, at the last refresh."""
        return self._open.get(trace_id, [])

    def of(self, trace_id: int) -> list[ReadableSpan]:
        """Return the spans of a trace that were open at the last refresh, and still are open."""
        return [span for span in self._open.get(trace_id, ()) if span.end_time is None]

    def newest(self, trace_id: int) -> list[ReadableSpan]:
        """Return the newest open spans of a trace. Without a refresh, some may be missing."""
        found = [span for span in self._newest() if trace_of(span) == trace_id]
        newest = [span for span in found if span.end_time is None]
        return [*newest, *self._open.get(trace_id, ())[-_NEWEST:]][:_NEWEST]

    def _newest(self) -> Iterator[ReadableSpan]:
        with suppress(IndexError):  # another thread refreshes meanwhile
            for i in range(1, min(len(self.starts), _NEWEST) + 1):
                span = self.starts[-i]()
                if span is not None:
                    yield span


def is_own(span: ReadableSpan) -> bool:
    """Return True if this library has started ``span``, for a LangChain run."""
    scope = getattr(span, "instrumentation_scope", None)
    return scope is not None and scope.name == semconv.SCOPE


def is_bystander(view: AnyView) -> bool:
    """Return True if the span ``view`` is no part of RAG and no instrumentation of RAG made it."""
    return kind_of(view) == "other" and not is_instrumentation(view.scope)


def ids_above(
    start: int | None, ended: Mapping[int, SpanView], opened: Mapping[int, int | None]
) -> Iterator[int]:
    """Yield the span id ``start`` and the ids of the spans above this span, nearest first.

    ``ended`` maps span ids to ended spans. ``opened`` maps ids of open spans to those of parents.
    """
    seen: set[int] = set()
    while start is not None and start not in seen and len(seen) < DEPTH:
        seen.add(start)
        yield start
        above = ended.get(start)
        start = opened.get(start) if above is None else above.parent_id


def trace_of(span: ReadableSpan) -> int:
    """Return the trace id of ``span``, or 0 if it has none."""
    context = span.context
    return context.trace_id if context is not None else 0
