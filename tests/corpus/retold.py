"""Record the events of an application once, and replay them: in part, or in another order.

Events are `Note`s: a run or a span starts, or ends. `runs_of` runs an application under our
callback, `spans_of` under an instrumentation. `tell_runs` and `tell_spans` replay notes and return
the samples.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, cast

from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.trace import INVALID_SPAN_CONTEXT

from corpus.kit import App, call
from corpus.sources import Source
from rag_eval_otel import Handle
from rag_eval_otel.capture.langchain import LangChainCapture
from rag_eval_otel.capture.runs import Run, RunRecorder, RunTree
from rag_eval_otel.capture.sample import extract
from rag_eval_otel.capture.span import Span as SpanRecord
from rag_eval_otel.capture.turns import find_turns
from rag_eval_otel.capture.vectorstores import record_searches
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.types import Sample
from replay import Call, replay

Told: TypeAlias = tuple[str, tuple[str, ...], str]
"""Question, contexts and answer of a sample."""

_NOTED = ("id", "parent", "tree", "kind", "name", "metadata", "start", "end")
"""What a run is made with, or is given by the recorder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A run or a span starts or ends."""

    operation: Literal["start", "end"]
    key: int
    what: Run | SpanRecord


@dataclass(frozen=True, kw_only=True)
class Retold:
    """The recorded events of an application."""

    app: App
    notes: tuple[Note, ...] = field(repr=False)
    tell: Callable[[Iterable[Note]], list[Told]] = field(repr=False)

    @cached_property
    def whole(self) -> Counter[Told]:
        return Counter(self.tell(self.notes))

    @property
    def keys(self) -> list[int]:
        return [note.key for note in self.notes if note.operation == "start"]

    def name_of(self, key: int) -> str:
        return next(note.what.name for note in self.notes if note.key == key)

    def without(self, keys: Collection[int]) -> list[Note]:
        return [note for note in self.notes if note.key not in keys]

    def unended(self, keys: Collection[int]) -> list[Note]:
        return [n for n in self.notes if n.operation == "start" or n.key not in keys]

    def wrong(self, notes: Iterable[Note]) -> list[Told]:
        stated = (*self.app.truths, *self.app.optional)
        extra = Counter(self.tell(notes)) - self.whole
        return [one for one in extra.elements() if not any(t.holds_for(*one) for t in stated)]


def told(sample: Sample) -> Told:
    return sample.question, tuple(passage.text for passage in sample.contexts), sample.answer


def _refuse(place: str) -> None:
    raise AssertionError(place)


def runs_of(app: App) -> Retold:
    trees: list[RunTree] = []
    recorder = RunRecorder(trees.append, lambda: None, grace=0.0)  # flushed below
    capture = LangChainCapture(
        lambda: recorder, edge=Edge("test", on_error=_refuse, raise_errors=True)
    )
    record_searches(capture.edge)
    call(app, {"callbacks": [capture]})
    recorder.flush()
    return Retold(app=app, notes=tuple(_notes(trees)), tell=tell_runs)


def _notes(trees: Iterable[RunTree]) -> Iterator[Note]:
    runs = [run for tree in trees for run in tree.runs]
    starts = [(run.start, 0, n, run) for n, run in enumerate(runs)]
    ends = [(run.end, 1, -n, run) for n, run in enumerate(runs) if run.end is not None]
    for _, is_end, _, run in sorted([*starts, *ends], key=lambda one: one[:3]):
        yield Note(operation="end" if is_end else "start", key=run.id, what=run)


def tell_runs(notes: Iterable[Note]) -> list[Told]:
    trees: list[RunTree] = []
    recorder = RunRecorder(trees.append, lambda: None, grace=0.0)  # flushed below
    for note in notes:
        run = cast("Run", note.what)
        if note.operation == "start":
            started = recorder.start(run.kind, run.id, run.parent, run.name, run.metadata)
            noted = {name: value for name, value in vars(run).items() if name not in _NOTED}
            vars(started).update(noted)
        elif run.id in recorder.runs:
            recorder.end(recorder.runs[run.id])
    recorder.flush()
    turns = [turn for tree in trees for turn in find_turns(tree.steps())]
    return [told(found) for turn in turns if isinstance(found := extract(turn), Sample)]


class Calls(SpanProcessor):
    """Records the calls of a processor."""

    def __init__(self) -> None:
        self.notes: list[Note] = []

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        del parent_context
        self._note("start", span)

    def on_end(self, span: ReadableSpan) -> None:
        self._note("end", span)

    def _note(self, operation: Literal["start", "end"], span: ReadableSpan) -> None:
        what = as_recorded(SpanRecord.from_sdk(span))
        self.notes.append(Note(operation=operation, key=what.span_id, what=what))


def as_recorded(view: SpanRecord) -> SpanRecord:
    return replace(
        view,
        context=INVALID_SPAN_CONTEXT,
        attributes=dict(view.attributes),
        events=[(name, dict(attributes)) for name, attributes in view.events],
        service="",
    )


def spans_of(app: App, source: Source) -> Retold:
    calls, provider = Calls(), TracerProvider()
    provider.add_span_processor(calls)
    with source.watching(provider, cast("Handle", None)) as config:
        call(app, config)
    provider.shutdown()
    return Retold(app=app, notes=tuple(calls.notes), tell=tell_spans)


def tell_spans(notes: Iterable[Note]) -> list[Told]:
    calls = (
        Call(operation=note.operation, span=cast("SpanRecord", note.what), at=0) for note in notes
    )
    results = (one.result for one in replay(calls, timed=False))
    return [told(found) for found in results if isinstance(found, Sample)]
