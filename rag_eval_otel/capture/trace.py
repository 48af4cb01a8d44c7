"""Keep the ended spans of a trace with their log records, and say which spans may get scores."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, takewhile
from sys import getsizeof
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar
from weakref import ref

from rag_eval_otel import semconv
from rag_eval_otel.capture.conventions import (
    LOG_EVENTS,
    holds_documents,
    is_exported_late,
    is_flat,
    is_instrumentation,
    kind_of,
    recorded_on,
    shows_documents,
)
from rag_eval_otel.capture.runs import RunTree
from rag_eval_otel.capture.span import LogView, Span
from rag_eval_otel.capture.step import RETRIEVALS, Kind
from rag_eval_otel.runtime.guard import Edge, judging
from rag_eval_otel.types import Ending

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan

Key: TypeAlias = "tuple[int, int]"  # trace id and span id; run trees have trace id 0

T = TypeVar("T")
State: TypeAlias = Literal["collecting", "scoring", "leaving", "left"]

OVERHEAD = 2600  # the estimated size in bytes of a span without its attributes and events

_ENTRY = 100  # estimated bytes of an attribute without its value
_NESTING = 8  # levels of a value that are measured
_FLAT: Final = frozenset({str, bool, int, float})
_OPEN = 4096  # the most open spans that are kept; some spans never end
_NEWEST = 64  # the most spans that are searched on the application's thread
_DEPTH = 100  # the most ancestors that are searched


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLimits:
    """The waiting times before a trace is read, in seconds, and the limits of stored traces."""

    quiet: float = 0.5  # after the last span of a turn below an open span
    root_quiet: float = 0.05  # after the last span, if the root has ended
    slow_quiet: float = 5.0  # after the last span otherwise, or if spans are exported late
    max_age: float = 300.0
    max_traces: int = 1024
    max_spans: int = 10_000
    max_bytes: int = 64 * 1024 * 1024


@dataclass(slots=True, eq=False)
class Subtree:
    """The start times of the first retrieval and the last LLM call below a span."""

    searched: int | None = None
    called: int | None = None
    shown: bool = False  # whether a chain took or returned documents, perhaps of a lost retrieval

    def add(self, other: Subtree) -> None:
        self.shown |= other.shown
        searched, called = other.searched, other.called
        if searched is not None and (self.searched is None or searched < self.searched):
            self.searched = searched
        if called is not None and (self.called is None or called > self.called):
            self.called = called

    @property
    def is_turn(self) -> bool:
        searched, called = self.searched, self.called
        return searched is not None and called is not None and called >= searched

    @property
    def above(self) -> Subtree:
        """The times that count for the parent: without the LLM call if this subtree is a turn."""
        return Subtree(self.searched, None, self.shown) if self.is_turn else self

    @property
    def may_be_turn(self) -> bool:
        return self.searched is not None or (self.shown and self.called is not None)


@dataclass(slots=True, eq=False)  # not frozen: that costs the application a microsecond
class Held:
    """A span or a LangChain run tree that waits for its scores before it is exported."""

    key: Key
    item: Any
    context: Context
    size: int
    is_likely: bool
    deadline: float = 0.0
    number: int = -1
    takes_place: bool = False  # whether it counts for the most spans that may wait for scores
    is_claimed: bool = False  # whether a thread writes the spans of this run tree
    is_late: bool = False  # whether it left at its deadline, or found no room
    state: State = "collecting"  # scoring: a turn was found; leaving: its ``ending`` was decided
    ending: Ending | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Trace:
    """The ended spans of one trace until it is read. Times are seconds of the store's clock."""

    trace_id: int
    first: float
    last: float
    spans: dict[int, Span] = field(default_factory=dict)  # in the order in which they ended
    arrivals: dict[int, tuple[float, int]] = field(default_factory=dict)  # time, size in bytes
    held: dict[int, Held] = field(default_factory=dict)
    trees: list[tuple[int, RunTree]] = field(default_factory=list)  # with ids of spans around them
    subtrees: dict[int, Subtree] = field(default_factory=dict)
    turns: set[int] = field(default_factory=set)  # spans with an LLM call after a retrieval below
    size: int = 0
    unheld: int = 0  # number of bytes added since a span was last kept back from the exporter
    is_slow: bool = False
    root_ended: bool = False
    is_lost: bool = False  # whether it was removed to limit memory; later spans are ignored
    is_doubled: bool = False  # whether two different spans have the same span id
    is_claimed: bool = False  # whether its turns were counted

    def add(self, view: Span, *, size: int, now: float) -> None:
        self.last = now
        self.spans[view.span_id] = view
        self.arrivals[view.span_id] = (now, size)
        self.size += size
        self.unheld += size
        self.root_ended |= view.parent_id is None or view.parent_is_remote
        self.is_slow |= is_exported_late(view)

    def note_turn(self, span_id: int) -> None:
        self.turns.add(span_id)
        if span_id in self.held:
            self.held[span_id].is_likely = True

    def join(self, tree: RunTree, span_id: int, *, size: int, now: float) -> None:
        self.last = now
        self.trees.append((span_id, tree))
        self.size += size
        self.unheld += size
        note_above(self, span_id, Subtree(tree.searched, tree.called))

    def add_bystander(self, view: Span) -> int:
        if view.span_id in self.spans or view.scope == semconv.SCOPE or kind_of(view) != "other":
            return 0
        self.spans[view.span_id] = view.bystander()
        self.arrivals[view.span_id] = (self.last, OVERHEAD)
        self.size += OVERHEAD
        return OVERHEAD

    def part(self, ids: Iterable[int]) -> Trace:
        chosen = dict.fromkeys(ids)
        _moved(self.subtrees, chosen)
        part = Trace(
            trace_id=self.trace_id,
            first=self.first,
            last=self.last,
            spans=_moved(self.spans, chosen),
            arrivals=_moved(self.arrivals, chosen),
            held=_moved(self.held, chosen),
            trees=[pair for pair in self.trees if pair[0] in chosen],
            turns=self.turns & chosen.keys(),
            is_slow=self.is_slow,
            is_doubled=self.is_doubled,
        )
        self.trees = [pair for pair in self.trees if pair[0] not in chosen]
        self.turns -= part.turns
        part.size = sum(size for _, size in part.arrivals.values())
        part.size += sum(tree.size for _, tree in part.trees)
        self.size -= part.size
        self.first = min((came for came, _ in self.arrivals.values()), default=self.last)
        return part

    def count_turns(self) -> int:
        """Return how many turns this trace seems to have, at least one; no texts are read."""
        likely = sum(held.is_likely for held in self.held.values())
        return max(1, likely, len(self.turns))


def _moved(items: dict[int, T], ids: Iterable[int]) -> dict[int, T]:
    return {span_id: items.pop(span_id) for span_id in ids if span_id in items}


def size_of(view: Span) -> int:
    values = view.attributes.values()
    size = OVERHEAD + _ENTRY * len(values) + sum(map(getsizeof, values))
    size += sum([_weight(value) for value in values if type(value) not in _FLAT])
    size += sum([_weight(attributes) for _, attributes in view.events])
    return size + sum(map(size_of_log, view.logs))


def size_of_log(record: LogView) -> int:
    return OVERHEAD // 2 + _weight(record.attributes) + _weight(record.body)


def _weight(value: Any, level: int = 0) -> int:
    if isinstance(value, (str, bytes)):
        return getsizeof(value)
    if level == _NESTING:
        return 0
    if isinstance(value, (tuple, list)):  # first, as an abstract class takes time
        return sum([8 + _weight(part, level + 1) for part in value])
    if isinstance(value, Mapping):
        return sum([_ENTRY + _weight(part, level + 1) for part in value.values()])
    return 0


Anchoring: TypeAlias = Literal["no", "possibly", "likely"]  # to get the scores of a turn


def may_be_anchor(
    trace: Trace, view: Span, kind: Kind, *, spans: OpenSpans, contexts_from_prompt: bool = False
) -> Anchoring:
    """Return whether ``view`` may get scores; add its retrieval or LLM call to subtrees above."""
    own = trace.subtrees.setdefault(view.span_id, Subtree())
    said = recorded_on(view)
    if "documents" in said or holds_documents(view):
        own.add(Subtree(view.start))
    if "output" in said:
        own.add(Subtree(called=view.start if own.searched is None else own.searched))
    is_likely = is_possible = False
    if kind == "aside":
        up = Subtree()
    elif kind in RETRIEVALS:
        up = Subtree(searched=view.start)
    elif kind == "llm" and contexts_from_prompt:
        up, is_likely = Subtree(view.start, view.start), True
    elif kind == "llm":
        up = Subtree(own.searched, max(view.start, own.searched or 0))
        is_possible = _answers_alone(trace, view, own, spans=spans)
    elif own.searched is None and kind == "tool":
        up = Subtree(view.start, own.called)
        is_possible = is_exported_late(view)
    else:
        up = own
        own.shown |= kind == "chain" and own.searched is None and shows_documents(view)
        is_possible = own.may_be_turn or (kind != "other" and is_exported_late(view))
        is_likely = bool(said) or own.is_turn  # recorded: it gets the reason for no scores, too
        may_go_on = own.searched is not None or kind != "other"
        is_likely = is_likely or (may_go_on and _is_open_below(trace, view, own, spans=spans))
        if own.is_turn:
            trace.note_turn(view.span_id)
            up = own.above
    around = trace.subtrees.get(view.parent_id or 0)
    if up.called is not None and around is not None and around.searched is not None:
        is_possible |= view.parent_id in trace.spans  # an agent whose span ended before its steps
    note_above(trace, view.parent_id, up)
    return "likely" if is_likely else "possibly" if is_possible else "no"


def note_above(trace: Trace, above: int | None, up: Subtree) -> None:
    """Add the times in ``up`` to the subtree of the span ``above``, and of the spans above that."""
    for _ in range(_DEPTH):
        if above is None or not (up.shown or up.called is not None or up.searched is not None):
            return
        below = trace.subtrees.setdefault(above, Subtree())
        below.add(up)
        view = trace.spans.get(above)
        if view is None or kind_of(view) in {"aside", "llm", *RETRIEVALS}:
            return
        if below.is_turn:
            trace.note_turn(above)
            up = below.above
        above = view.parent_id


def _answers_alone(trace: Trace, view: Span, own: Subtree, *, spans: OpenSpans) -> bool:
    opened = {one.span_id: one for one in map(Span.from_sdk, spans.newest(view.trace_id))}
    parents = {span_id: one.parent_id for span_id, one in opened.items()}
    for above in ids_above(view.parent_id, trace.spans, parents):
        below = trace.subtrees.get(above)
        if own.searched is not None or (below is not None and below.searched is not None):
            around = trace.spans.get(above) or opened.get(above)
            return around is not None and is_flat(around)
    return own.searched is not None


def _is_open_below(trace: Trace, view: Span, own: Subtree, *, spans: OpenSpans) -> bool:
    newest = spans.newest(view.trace_id)
    views = [Span.from_sdk(span) for span in newest if span.end_time is None]
    parents = {one.span_id: one.parent_id for one in views}
    inner = [one for one in views if view.span_id in ids_above(one.parent_id, trace.spans, parents)]
    known = Subtree(own.searched, own.called)
    for one in inner:
        known.add(trace.subtrees.get(one.span_id) or Subtree())
    searched = known.searched
    return known.is_turn or any(
        kind_of(one) in RETRIEVALS or (searched is not None and one.start > searched)
        for one in inner
    )


def completed_parts(
    trace: Trace, opened: Iterable[ReadableSpan], *, until: float
) -> Iterator[list[int]]:
    if trace.is_slow or trace.turns.isdisjoint(trace.spans):
        return
    views = list(map(Span.from_sdk, opened))
    parents = {one.span_id: one.parent_id for one in views}
    around = {one.span_id for one in views if is_bystander(one)}
    units: dict[int, list[int]] = defaultdict(list)
    for span_id, top in _tops(trace).items():
        units[top].append(span_id)
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
    """Map each span of ``trace`` to the outermost ended span at or above it."""
    tops: dict[int, int] = {}
    for span_id in trace.spans:
        path, above = dict[int, None](), span_id
        while above in trace.spans and above not in tops and above not in path:
            path[above] = None
            above = trace.spans[above].parent_id or 0
        tops |= dict.fromkeys(path, tops.get(above) or next(reversed(path), span_id))
    return tops


class OpenSpans:
    """The newest open spans, without our own; those begun since `refresh` as weak references."""

    def __init__(self) -> None:
        self.starts: deque[ref[ReadableSpan]] = deque(maxlen=4096)  # since the last refresh
        self.ended: deque[ReadableSpan] = deque(maxlen=256)  # recent spans, not part of RAG
        self._open: dict[int, list[ReadableSpan]] = {}
        self._ending: frozenset[int] = frozenset()  # spans that had ended at the last refresh
        self._refreshing = threading.RLock()  # a signal handler may flush

    def refresh(self) -> None:
        """Add the spans that have started since the last refresh, and drop ended spans."""
        with self._refreshing:  # not the store's lock, for which the application's threads wait
            seen = self.starts.copy()
            alive = (span for start in seen if (span := start()) is not None and not is_own(span))
            known = {id(span): span for span in chain(*self._open.values(), alive)}
            ended = {key: span for key, span in known.items() if span.end_time is not None}
            # The SDK sets the end before it calls the processor: ended spans stay for one refresh.
            ending = {key: span for key, span in ended.items() if key not in self._ending}
            opened = [span for key, span in known.items() if key not in ended][-_OPEN:]
            by_trace: dict[int, list[ReadableSpan]] = {}
            for span in (*ending.values(), *opened):
                by_trace.setdefault(trace_of(span), []).append(span)
            self._open, self._ending = by_trace, frozenset(ending)
            seen_ids = set(map(id, seen))
            while self.starts and id(self.starts[0]) in seen_ids:
                self.starts.popleft()

    def recently_open(self, trace_id: int) -> list[ReadableSpan]:
        """Return the spans of a trace that were open, or had just ended, at the last refresh."""
        return self._open.get(trace_id, [])

    def of(self, trace_id: int) -> list[ReadableSpan]:
        """Return the spans of a trace that were open at the last refresh, and still are open."""
        return [span for span in self._open.get(trace_id, ()) if span.end_time is None]

    def newest(self, trace_id: int) -> list[ReadableSpan]:
        """Return up to 64 spans of a trace: of the 64 last begun in all, then `recently_open`."""
        newest: list[ReadableSpan] = []
        with suppress(IndexError):  # another thread refreshes meanwhile
            for i in range(1, min(len(self.starts), _NEWEST) + 1):
                span = self.starts[-i]()
                if span is not None and span.end_time is None and trace_of(span) == trace_id:
                    newest.append(span)
        return [*newest, *self._open.get(trace_id, ())[-_NEWEST:]][:_NEWEST]


def is_own(span: ReadableSpan) -> bool:
    """Return True if this library has started ``span``, for a LangChain run or a judge."""
    scope = getattr(span, "instrumentation_scope", None)
    return scope is not None and scope.name in semconv.OWN_SCOPES


def is_bystander(view: Span) -> bool:
    """Return True if ``view`` is not part of RAG, nor of a library that traces RAG calls."""
    return kind_of(view) == "other" and not is_instrumentation(view.scope)


def ids_above(
    start: int | None, ended: Mapping[int, Span], opened: Mapping[int, int | None]
) -> Iterator[int]:
    """Yield ``start`` and the ids of the spans above it, nearest first."""
    seen: set[int] = set()
    while start is not None and start not in seen and len(seen) < _DEPTH:
        seen.add(start)
        yield start
        above = ended.get(start)
        start = opened.get(start) if above is None else above.parent_id


def trace_of(span: ReadableSpan) -> int:
    context = span.context
    return context.trace_id if context is not None else 0


# --- log records ----------------------------------------------------------------------------------

_TAP = "_rag_eval_otel_tap"
_LOGGING = 1024  # the most spans whose records are kept; some never end, or are not sampled
_LOST_RECORDS = (LogView(event=""),)  # stands for log records that were dropped


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
    """Return the `LogTap` of ``provider``, made at first use; None if it takes no processors."""
    add = getattr(provider, "add_log_record_processor", None)
    known = getattr(provider, _TAP, None)
    if add is None or isinstance(known, LogTap):
        return known
    tap = LogTap()
    add(tap)
    with suppress(AttributeError):  # has slots: it gets another tap at the next call
        setattr(provider, _TAP, tap)
    return tap


@dataclass(kw_only=True, eq=False, repr=False)
class PendingLogs:
    """Stores log records until their span has ended; drops the oldest above ``max_bytes``."""

    max_bytes: int
    size: int = 0
    _records: OrderedDict[Key, Sequence[LogView]] = field(default_factory=OrderedDict)

    def clear(self) -> None:
        self._records, self.size = OrderedDict(), 0

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
        while len(self._records) > _LOGGING:
            self.take(next(iter(self._records)))

    def take(self, key: Key) -> Sequence[LogView]:
        records = self._records.pop(key, ())
        if records is not _LOST_RECORDS:
            self.size -= sum(map(size_of_log, records))
        return records
