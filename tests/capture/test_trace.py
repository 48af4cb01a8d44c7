"""Traces of the real SDK as applications leave them: what waits, what leaves, and log records.

Sessions, streams, threads and disorder; whatever happens, each span leaves once.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from sys import getsizeof
from typing import Any
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    TraceFlags,
    set_span_in_context,
)

from live import App, answered, asked, attached, collecting_size, generated, retrieved, said, told
from plain_views import View
from properties import examples
from rag_eval_otel import instrument, semconv
from rag_eval_otel.capture.runs import RunTree
from rag_eval_otel.capture.span import LogView
from rag_eval_otel.capture.span import Span as SpanRecord
from rag_eval_otel.capture.step import Kind
from rag_eval_otel.capture.trace import (
    OVERHEAD,
    Held,
    OpenSpans,
    PendingLogs,
    Subtree,
    Trace,
    TraceLimits,
    completed_parts,
    may_be_anchor,
    may_be_read,
    size_of,
    size_of_log,
)
from rag_eval_otel.live.instrument import pipeline_of
from rag_eval_otel.runtime.guard import JUDGING
from recordings import PATHS, is_as_stated
from replay import load, replay

SCORED = ("scored", None)


@pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])
def test_a_recorded_trace(path: Path) -> None:
    """Every turn is found as it was, or refused for a known reason; what is none is not scored."""
    recording = load(path)
    assert recording.spans
    assert is_as_stated(recording, replay(recording.calls))


@pytest.mark.parametrize("kind", [SpanKind.SERVER, SpanKind.CONSUMER])
def test_a_server_s_request_that_never_ends(kind: SpanKind) -> None:
    """Below a request from another process that stays open, like a socket's, turns are scored."""
    caller = NonRecordingSpan(SpanContext(7, 8, is_remote=True, trace_flags=TraceFlags(1)))
    with attached() as app:
        request = app.provider.get_tracer("web").start_span(
            "GET /socket", context=set_span_in_context(caller), kind=kind
        )
        chain = app.turn(1, request)
        assert app.handle.flush()
        assert app.status_of(chain) == "scored"


def test_a_turn_that_two_instrumentations_record() -> None:
    """Side by side below a request, each with spans of its own: the turn is scored once."""
    with attached() as app:
        request, other = app.plain("request"), "openinference.instrumentation.other"
        both = (app, replace(app, tracer=app.provider.get_tracer(other)))
        chains = [each.chain(1, request) for each in both]
        for each, chain in zip(both, chains, strict=True):
            each.retrieve(1, chain)
            each.generate(1, chain)
        for span in (*chains, request):
            span.end()
        assert app.handle.flush()
        assert app.counted() == {SCORED: 1, ("skipped", "duplicate"): 1}
        assert app.statuses() == {"scored": 1, "skipped": 1, None: 5}


@pytest.mark.parametrize("parent", ["retriever", "chain"])
def test_a_span_below_itself(parent: str) -> None:
    """A turn whose spans are each other's parents, or their own, is exported once, and counted."""
    with attached() as app:
        chain = app.chain()
        retriever = app.step("RETRIEVER", chain, **retrieved(1))
        call = app.step("LLM", chain, **generated(1))
        set_parent(chain, retriever if parent == "retriever" else chain)
        for span in (retriever, call, chain):
            span.end()
        assert app.handle.flush()
        assert sorted(app.names()) == ["chain", "llm", "retriever"]
        assert sum(app.counted().values()) <= 1


def set_parent(span: Any, parent: Any) -> None:
    assert isinstance(span, SdkSpan)
    span._parent = parent.get_span_context()  # noqa: SLF001


def test_a_span_that_ends_twice() -> None:
    """The SDK ends a span once; a processor that is told twice exports the second, unscored."""
    with attached() as app:
        chain = app.turn()
        app.processor.on_end(chain)  # type: ignore[arg-type]  # what the SDK hands over
        assert app.handle.flush()
        assert app.statuses() == {"scored": 1, None: 3}
        assert app.counted() == {SCORED: 1}


@pytest.mark.parametrize("back", [1, 10**9, 10**15])
def test_clocks_that_run_backwards(back: int) -> None:
    """Spans that end before they start, or start before what is above them, break nothing."""
    with attached() as app:
        chain = app.chain()
        start = chain.start_time - back  # type: ignore[attr-defined]
        for kind, attributes in (("RETRIEVER", retrieved(1)), ("LLM", generated(1))):
            span: Any = app.step(kind, chain, **attributes)
            span._start_time = start  # noqa: SLF001
            span.end(start - 1)
        chain.end(start - 2)
        assert app.handle.flush()
        assert len(app.exported()) == 3
        assert sum(app.counted().values()) == 1


# --- whatever the order in which spans end --------------------------------------------------------

KINDS = ("CHAIN", "AGENT", "LLM", "RETRIEVER", "TOOL", "plain")


@st.composite
def shapes(draw: st.DrawFn) -> tuple[list[tuple[str, int | None]], list[int]]:
    """Draw kinds and numbers of parents, in the order of the starts, and the order of the ends."""
    count = draw(st.integers(1, 9))
    parents = [draw(st.none() | st.integers(0, n - 1)) if n else None for n in range(count)]
    kinds = [draw(st.sampled_from(KINDS)) for _ in parents]
    return list(zip(kinds, parents, strict=True)), draw(st.permutations(range(count)))


def start(app: App, starts: list[tuple[str, int | None]]) -> list[Span]:
    spans: list[Span] = []
    texts = {"RETRIEVER": retrieved(1), "LLM": generated(1), "TOOL": {}}
    for kind, parent in starts:
        above = None if parent is None else spans[parent]
        step = partial(app.step, kind, above, **texts.get(kind, answered(1)))
        spans.append(app.plain("step", above) if kind == "plain" else step())
    return spans


def left(app: App) -> Counter[int]:
    return Counter(span.context.span_id for span in app.exported())


@pytest.mark.slow
@examples(100)
@given(shapes(), st.integers(0, 9))
def test_every_span_leaves_once(shape: Any, swept: int) -> None:
    """Whatever is below what, and ends when: nothing is lost, nothing doubled."""
    with attached() as app:
        spans = start(app, shape[0])
        for count, number in enumerate(shape[1]):
            spans[number].end()
            if count == swept:
                app.pipeline.sweep()
        app.handle.flush()
        app.handle.shutdown()
        assert left(app) == {span.get_span_context().span_id: 1 for span in spans}
        assert all(count == 1 for count in app.scored_spans().values())
        assert app.statuses().keys() <= {None, "scored", "skipped"}


# --- log records ----------------------------------------------------------------------------------

OPENAI = "opentelemetry.instrumentation.openai_v2"


@pytest.fixture
def app() -> Iterator[App]:
    with attached() as running:
        yield running


def shown(number: int) -> str:
    return "\n\n".join([*told(number), asked(number)])


def call(app: App, parent: Span) -> Span:
    tracer = app.provider.get_tracer(OPENAI)
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    return tracer.start_span("chat m", context=set_span_in_context(parent), attributes=attributes)


def write(app: App, span: Span, event: str, **record: Any) -> None:
    logger = app.logger_provider.get_logger(OPENAI)
    logger.emit(event_name=event, context=set_span_in_context(span), **record)


def older(app: App, span: Span, number: int) -> None:
    write(app, span, "gen_ai.system.message", body={"content": "Answer from the pages."})
    write(app, span, "gen_ai.user.message", body={"content": shown(number)})
    message = {"role": "assistant", "content": said(number)}
    write(app, span, "gen_ai.choice", body={"index": 0, "message": message})


def newer(app: App, span: Span, number: int) -> None:
    told = {
        f"gen_ai.{name}.messages": [{"role": role, "parts": [{"type": "text", "content": text}]}]
        for name, role, text in (
            *(("input", "user", shown(number)), ("output", "assistant", said(number))),
        )
    }
    write(app, span, "gen_ai.client.inference.operation.details", attributes=told)


def turn(app: App, number: int, written: Any) -> Span:
    """Record a turn whose LLM tells what it was asked and said in log records alone."""
    chain = app.step("CHAIN", **{"input.value": asked(number)})
    app.step("RETRIEVER", chain, **retrieved(number)).end()
    span = call(app, chain)
    written(app, span, number)
    span.end()
    chain.end()
    return chain


@pytest.mark.parametrize("written", [older, newer])
def test_a_turn_whose_content_is_in_logs(app: App, written: Any) -> None:
    """Question, contexts and answer are there, though no span of the LLM has them."""
    chain = turn(app, 1, written)
    assert app.handle.flush()
    assert app.counted() == {SCORED: 1}
    assert app.status_of(chain) == "scored"


@pytest.mark.parametrize(
    ("event", "reads"),
    [
        ("gen_ai.choice", True),
        ("gen_ai.user.message", True),
        ("gen_ai.client.inference.operation.details", True),
        ("gen_ai.evaluation.result", False),
        ("", False),
        (7, False),
    ],
)
def test_other_logs_are_none_of_its_business(app: App, event: Any, *, reads: bool) -> None:
    """By their name alone: what an application logs otherwise is not kept."""
    span = app.plain("request")
    write(app, span, event, body="text")
    assert (collecting_size(app.store) > 0) is reads
    assert may_be_read(event) is reads


def test_the_name_may_be_an_attribute(app: App) -> None:
    """The older events had their name among the attributes."""
    span = app.plain("request")
    write(app, span, None, attributes={"event.name": "gen_ai.choice"})  # type: ignore[arg-type]
    assert collecting_size(app.store) > 0


def test_what_the_judge_s_calls_write_is_not_kept(app: App) -> None:
    """Log records written while we judge are not the application's."""
    span = app.plain("request")

    def write_as_judge() -> None:
        JUDGING.set(app)
        write(app, span, "gen_ai.choice", body={})

    thread = threading.Thread(target=write_as_judge, name="rag-eval-otel")
    thread.start()
    thread.join()
    assert collecting_size(app.store) == 0


def test_after_shutdown_nothing_is_heard_and_again_once_after_a_new_start() -> None:
    """The SDK keeps a processor for ever: ours is inert, and is used again, not added again."""
    loggers, provider = LoggerProvider(), TracerProvider()
    processors = []
    for _ in range(3):
        handle = instrument(
            tracer_provider=provider, logger_provider=loggers, judge="lexical", raise_errors=True
        )
        assert handle.processor is not None
        logger, span = loggers.get_logger("app"), provider.get_tracer("app").start_span("s")
        context = set_span_in_context(span)
        logger.emit(event_name="gen_ai.choice", context=context)
        assert collecting_size(pipeline_of(handle).store) > 0
        handle.shutdown()
        logger.emit(event_name="gen_ai.choice", context=context)
        assert collecting_size(pipeline_of(handle).store) == 0
        processors.append(len(loggers._multi_log_record_processor._log_record_processors))  # noqa: SLF001
    assert processors == [1, 1, 1]
    loggers.shutdown()


def test_records_of_spans_that_never_end_are_bounded() -> None:
    """Over the limit those of the oldest span go; the count of bytes stays true."""
    logs = PendingLogs(max_bytes=10**9)
    for number in range(3000):
        logs.add((1, number), LogView(event="gen_ai.choice", body="x" * 100))
    assert [len(logs.take((1, number))) for number in (0, 1975, 1976, 2999)] == [0, 0, 1, 1]
    for number in range(3000):
        logs.take((1, number))
    assert logs.size == 0


def test_of_a_span_all_records_count_or_none() -> None:
    """Half of a conversation would be another one: what had to go takes the rest with it."""
    record = LogView(event="gen_ai.user.message", body="x" * 30_000)
    logs = PendingLogs(max_bytes=size_of_log(record))
    logs.add((1, 1), record)
    logs.add((1, 2), record)
    logs.add((1, 1), LogView(event="gen_ai.choice", body="y"))
    assert logs.size == logs.max_bytes
    assert [one.event for one in logs.take((1, 1))] == [""]
    assert [one.event for one in logs.take((1, 2))] == ["gen_ai.user.message"]
    assert logs.size == 0


def test_the_size_of_values_within_values() -> None:
    """Each is counted with a constant for its place, down to eight levels."""
    bare, nested = View(attributes={}), "x" * 1000
    logs = [LogView(event="e", body={"a": "x" * 1000})]
    assert OVERHEAD + 1000 < size_of(replace(bare, logs=logs)) < OVERHEAD + 3000
    assert size_of(replace(bare, attributes={"a": True, "b": 1.5})) == 2600 + 200 + 28 + 24
    for _ in range(8):
        nested = [nested]  # type: ignore[assignment]
    sizes = [size_of(replace(bare, events=[("e", {"a": each})])) for each in (nested, [nested])]
    assert sizes == [OVERHEAD + 100 + 7 * 8] * 2
    assert size_of(replace(bare, events=[("e", {"a": {"b": ["", b"", None]}})])) == (
        OVERHEAD + 100 + 100 + 8 + getsizeof("") + 8 + getsizeof(b"") + 8
    )


# --- spans that may get scores --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "below", "anchoring", "above"),
    [
        ("chain late", Subtree(), "possibly", None),
        ("tool late", Subtree(), "possibly", Subtree(5, None)),
        ("other late", Subtree(), "no", None),
        ({"rag.question": "q"}, Subtree(), "likely", None),
        ({"rag.answer": "a"}, Subtree(), "likely", Subtree(None, 5)),
        ({"rag.contexts": ["c"], "rag.answer": "a"}, Subtree(), "likely", Subtree(5, None)),
        ("aside", Subtree(4, 3), "no", None),
        ("retriever", Subtree(), "no", Subtree(5, None)),
        ("llm", Subtree(), "no", Subtree(None, 5)),
        ("llm", Subtree(7, None), "no", Subtree(7, 7)),
        ("tool", Subtree(None, 4), "no", Subtree(5, 4)),
        ("tool", Subtree(3, 4), "likely", Subtree(3, None)),
        ("chain", Subtree(None, 4), "no", Subtree(None, 4)),
        ("chain", Subtree(None, 4, shown=True), "possibly", Subtree(None, 4, shown=True)),
        ("chain", Subtree(3, None), "possibly", Subtree(3, None)),
        ("chain", Subtree(4, 3), "possibly", Subtree(4, 3)),
        ("chain", Subtree(4, 4), "likely", Subtree(4, None)),
        ("other", Subtree(3, 4), "likely", Subtree(3, None)),
        ("other", Subtree(None, 4), "no", Subtree(None, 4)),
    ],
)
def test_which_span_may_get_scores(
    kind: Any, below: Subtree, anchoring: str, above: Subtree | None
) -> None:
    """One with a call at or after a retrieval below, or with what the application has recorded.

    Above the span of a turn, only the retrieval counts.
    """
    trace = Trace(trace_id=1, first=0.0, last=0.0, subtrees={2: below})
    is_recorded = isinstance(kind, dict)
    late = {"langsmith.span.kind": "x"} if "late" in kind else {}
    view = View(parent_id=1, start=5, attributes=kind if is_recorded else late)
    kind = "other" if is_recorded else kind.removesuffix(" late")
    assert may_be_anchor(trace, view, kind, spans=OpenSpans()) == anchoring
    assert trace.turns == ({2} if below.is_turn else set())
    found = trace.subtrees.get(1)
    assert (found and astuple(found)) == (above and astuple(above))


def test_the_first_retrieval_and_the_last_call_below_a_span_count() -> None:
    """In any order, also after its end; the span is then that of a turn."""
    held = Held((1, 2), None, Context(), 1, is_likely=False)
    trace = Trace(trace_id=1, first=0.0, last=0.0, spans={2: View(parent_id=1)}, held={2: held})
    below: list[tuple[Kind, int]] = [
        *(("retriever", 4), ("llm", 5), ("retriever", 3), ("llm", 7)),
        *(("llm", 6), ("retriever", 8)),
    ]
    for number, (kind, start) in enumerate(below, start=3):
        view = View(span_id=number, parent_id=2, start=start)
        found = may_be_anchor(trace, view, kind, spans=OpenSpans())
        assert found == ("possibly" if kind == "llm" else "no")
    assert (astuple(trace.subtrees[2]), trace.turns) == ((3, 7, False), {2})
    assert held.is_likely
    assert astuple(trace.subtrees[1]) == (3, None, False)


@pytest.mark.parametrize("parent", [None, 1])
def test_a_call_without_a_chain(parent: int | None) -> None:
    """It may be a turn by itself if its prompt has the contexts, or a search is below it."""
    trace, view = Trace(trace_id=1, first=0.0, last=0.0), View(parent_id=parent, start=5)
    assert (
        may_be_anchor(trace, view, "llm", spans=OpenSpans(), contexts_from_prompt=True) == "likely"
    )
    assert may_be_anchor(trace, view, "chain", spans=OpenSpans(), contexts_from_prompt=True) == "no"
    trace.subtrees[2] = Subtree(3, None)
    found = may_be_anchor(trace, view, "llm", spans=OpenSpans())
    assert found == ("possibly" if parent is None else "no")


def test_a_part_of_a_trace() -> None:
    """It takes what belongs to its spans; the rest has begun with the first span that is left."""
    trace = Trace(trace_id=1, first=1.0, last=1.0)
    for number in (1, 2, 3):
        trace.add(View(span_id=number, parent_id=9), size=10 * number, now=float(number))
        tree = RunTree(Context(), 0.0, size=number, searched=1, called=2)
        trace.join(tree, number, size=number, now=float(number))
    part = trace.part([1, 2])
    for each, ids, first, size in ((part, [1, 2], 1.0, 33), (trace, [3], 3.0, 33)):
        assert list(each.spans) == list(each.arrivals) == [above for above, _ in each.trees] == ids
        assert (each.turns, each.first, each.last, each.size) == ({*ids}, first, 3.0, size)
    assert trace.subtrees.keys() == {3, 9}


def test_turns_that_are_over_below_an_open_span() -> None:
    """Those without an open span below, if all had ended by then."""
    tracer = TracerProvider().get_tracer("app")

    def start(parent: Any = None) -> Any:
        return tracer.start_span("s", context=parent and set_span_in_context(parent))

    session, trace = start(), Trace(trace_id=1, first=0.0, last=0.0)
    turns = [start(session), start(session)]
    below = [start(turn) for turn in turns]
    call = start(below[1])
    for span in (*below, *turns):
        span.end()
        trace.add(SpanRecord.from_sdk(span), size=1, now=1.0)
    units = [[one.context.span_id for one in pair] for pair in zip(below, turns, strict=True)]
    trace.turns.update(span_id for _, span_id in units)

    def parts(*opened: Any, until: float = 1.0) -> list[list[int]]:
        return list(completed_parts(trace, opened, until=until))

    assert [parts(session), parts(session, call)] == [units, units[:1]]
    assert [parts(session, until=0.9), parts()] == [[], []]
    trace.is_slow = True
    assert parts(session) == []


def test_open_spans_of_a_trace() -> None:
    """The newest are known at once; one that has ended counts as open until the next refresh."""
    provider, spans = TracerProvider(), OpenSpans()
    root: Any = provider.get_tracer("app").start_span("root")
    below = set_span_in_context(root)
    first: Any = provider.get_tracer("app").start_span("first", context=below)
    own: Any = provider.get_tracer(semconv.SCOPE).start_span("own", context=below)
    other: Any = provider.get_tracer("app").start_span("other", context=Context())
    number = root.context.trace_id
    spans.starts.extend(map(ref, (root, first, own, other)))
    assert spans.newest(number) == [own, first, root]
    assert spans.of(number) == []
    spans.refresh()
    assert len(spans.starts) == 0
    assert spans.newest(number) == spans.of(number) == spans.recently_open(number) == [root, first]
    first.end()
    assert spans.newest(number) == [root, first]
    assert (spans.of(number), spans.recently_open(number)) == ([root], [root, first])
    spans.refresh()
    assert (spans.of(number), spans.recently_open(number)) == ([root], [first, root])
    spans.refresh()
    assert spans.recently_open(number) == [root]
    tracer = provider.get_tracer("app")
    many: list[Any] = [tracer.start_span("m", context=below) for _ in range(4097)]
    spans.starts.extend(map(ref, many))
    assert (len(spans.starts), spans.newest(number)) == (4096, many[:-65:-1])
    spans.refresh()
    assert (spans.of(number), spans.newest(number)) == (many[1:], many[-64:])


def test_traces_are_bounded_in_time_number_and_bytes() -> None:
    """By these limits, in seconds and bytes, unless a store is given others."""
    assert TraceLimits() == TraceLimits(
        quiet=0.5,
        root_quiet=0.05,
        slow_quiet=5.0,
        max_age=300.0,
        max_traces=1024,
        max_spans=10_000,
        max_bytes=67_108_864,
    )
