"""Traces of the real SDK as applications leave them: sessions, streams, threads, and disorder."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import Span, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    TraceFlags,
    set_span_in_context,
)

from live import answered, attached, generated, retrieved
from rag_eval_otel.capture.trace import TraceLimits

SCORED = ("scored", None)


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
        request = app.plain("request")
        chains = [app.chain(1, request)]
        second = app.provider.get_tracer("openinference.instrumentation.other")
        other = replace(app, tracer=second)
        chains.append(other.chain(1, request))
        for one, chain in zip((app, other), chains, strict=True):
            one.retrieve(1, chain)
            one.generate(1, chain)
        for chain in chains:
            chain.end()
        request.end()
        assert app.handle.flush()
        assert app.counted() == {SCORED: 1, ("skipped", "duplicate"): 1}
        assert app.statuses() == {"scored": 1, "skipped": 1, None: 5}


def test_retrieval_and_call_side_by_side_below_a_root_that_never_ends() -> None:
    """What an open span may still hold is not guessed at: refused when the pipeline ends."""
    with attached() as app:
        session = app.plain("session")
        app.retrieve(1, session)
        app.generate(1, session)
        assert app.handle.flush(0.4)
        assert app.counted() == {}
        app.handle.shutdown()
        assert app.counted() == {("skipped", "partial"): 1}
        assert app.statuses() == {None: 2}


def test_a_generator_after_its_segment_was_read() -> None:
    """What comes after its trace was complete is refused: half of a turn is no turn."""
    with attached() as app:
        chain = app.chain()
        app.retrieve(1, chain)
        chain.end()
        assert app.handle.flush()
        app.generate(1, chain)
        assert app.handle.flush()
        assert app.counted() == {("skipped", "no_answer"): 1, ("skipped", "no_retrieval"): 1}
        assert app.statuses() == {None: 3}


class Ids(IdGenerator):
    """Gives every span of a trace the ids it was told, in a circle."""

    def __init__(self, *spans: int) -> None:
        self._spans, self._next, self._trace = spans, 0, 0

    def generate_trace_id(self) -> int:
        self._trace += 1
        return self._trace

    def generate_span_id(self) -> int:
        self._next += 1
        return self._spans[(self._next - 1) % len(self._spans)]


def test_two_spans_of_one_id() -> None:
    """Where an id was given twice it is not known what belongs to what: refused, all exported."""
    with attached(provider=TracerProvider(id_generator=Ids(1, 2, 2))) as app:
        app.turn()
        assert app.handle.flush()
        assert app.counted() == {("skipped", "ambiguous"): 1}
        assert sorted(app.names()) == ["chain", "llm", "retriever"]


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
    assert isinstance(span, Span)
    span._parent = parent.get_span_context()  # noqa: SLF001


def test_parents_that_are_nowhere() -> None:
    """A turn whose root is not there may be part of another: refused."""
    missing = NonRecordingSpan(SpanContext(7, 8, is_remote=False, trace_flags=TraceFlags(1)))
    with attached() as app:
        app.turn(1, missing)
        assert app.handle.flush()
        assert app.counted() == {("skipped", "partial"): 1}
        assert app.statuses() == {"skipped": 1, None: 2}


def test_a_leaked_parent() -> None:
    """A chain below a call that had ended before it began is a turn of its own."""
    with attached() as app:
        leaked = app.generate(1, None)
        chain = app.turn(2, leaked)
        assert app.handle.flush()
        assert app.status_of(chain) == "scored"


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
            span = app.tracer.start_span(
                kind,
                context=set_span_in_context(chain),
                attributes={"openinference.span.kind": kind, **attributes},
                start_time=start,
            )
            span.end(start - 1)
        chain.end(start - 2)
        assert app.handle.flush()
        assert len(app.exported()) == 3
        assert sum(app.counted().values()) == 1


BROKEN: dict[str, Any] = {
    "numbers": {"input.value": 1, "output.value": 2.5},
    "lists": {"input.value": ["a", "b"], "output.value": [True, False]},
    "json": {"input.value": '{"question": "who', "output.value": '{"answer": ['},
    "repr": {"input.value": "{'question': <object at 0x7f>}", "output.value": "Message(content="},
    "deep": {"input.value": "[" * 50_000, "output.value": "]" * 50_000},
    "kind": {"openinference.span.kind": 7},
    "surrogates": {"input.value": "\ud800", "output.value": "\udfff"},
}


@pytest.mark.parametrize("where", ["CHAIN", "RETRIEVER", "LLM"])
@pytest.mark.parametrize("values", list(BROKEN.values()), ids=list(BROKEN))
def test_attributes_of_any_kind(values: dict[str, Any], where: str) -> None:
    """Whatever is written on a span, it is exported once, and its turn is counted once."""
    with attached() as app:
        chain = app.step("CHAIN", **answered(1))
        steps = [
            app.step("RETRIEVER", chain, **retrieved(1)),
            app.step("LLM", chain, **generated(1)),
            chain,
        ]
        for span in steps:
            if span.name == where.lower():  # type: ignore[attr-defined]
                span.set_attributes(values)
            span.end()
        assert app.handle.flush()
        assert len(app.exported()) == 3
        assert sum(app.counted().values()) == 1


def test_nothing_that_raises_gets_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A convention that fails costs a turn, never a span, and the application hears nothing."""

    def fail(*_: Any) -> None:
        raise RuntimeError

    with attached(raise_errors=False) as app:
        monkeypatch.setattr("rag_eval_otel.live.store.kind_of", fail)
        app.turn(1)
        monkeypatch.undo()
        monkeypatch.setattr("rag_eval_otel.live.pipeline.read", fail)
        app.turn(2)
        assert app.handle.flush()
        monkeypatch.undo()
        app.turn(3)
        assert app.handle.flush()
        assert app.statuses() == {"scored": 1, "error": 1, None: 7}
        assert app.counted() == {SCORED: 1, ("error", "internal"): 1}


def test_a_span_of_another_make() -> None:
    """A span that lacks what the SDK's spans have goes on, and the failure is counted."""

    class Odd:
        context = instrumentation_scope = None

    with attached(raise_errors=False) as app:
        passed: list[object] = []
        app.pipeline.export = passed.append  # type: ignore[assignment,method-assign]
        odd = Odd()
        app.processor.on_end(odd)  # type: ignore[arg-type]
        assert passed == [odd]


def test_a_failure_after_a_span_was_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where something of ours fails after a span was held, it leaves at once, and once."""

    def fail(*_: Any) -> None:
        raise RuntimeError

    with attached(raise_errors=False) as app:
        app.store.limits = TraceLimits(max_bytes=100_000)
        monkeypatch.setattr(app.pipeline, "_follow_up", fail)
        chains = []
        for number in range(20):
            chains.append(app.chain(number))
            app.retrieve(number, chains[-1])
            app.generate(number, chains[-1])
        for number in range(10):  # each pushes an older trace out as it is held
            chains[-1 - number].set_attribute("more", "x" * 10_000)
            chains[-1 - number].end()
        left = Counter(span.context.span_id for span in app.exported())
        assert app.handle.flush()
        ended = Counter(span.context.span_id for span in app.exported())
        assert set(ended.values()) == {1}
        assert len(ended) == 50
        assert len(left) > 40
