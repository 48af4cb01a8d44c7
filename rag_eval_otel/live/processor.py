"""`RagEvalSpanProcessor`: holds turn spans back until they are scored, passes all others on.

It wraps the processors that export. Added beside them it would export every scored span twice;
a `Seat` puts it in front of those that a provider already has.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import INVALID_SPAN_CONTEXT

from rag_eval_otel import semconv
from rag_eval_otel.capture.buffer import Fate
from rag_eval_otel.live.pipeline import Pipeline
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.sinks.attributes import ContentFilter, enrich, score_attributes
from rag_eval_otel.types import UNTOUCHED, Ending, HoldStatus

if TYPE_CHECKING:
    from opentelemetry.context import Context


class Downstream(Protocol):
    """What comes after: a span processor."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """See a span start."""

    def on_end(self, span: ReadableSpan) -> None:
        """Take an ended span."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Export what was taken."""

    def shutdown(self) -> None:
        """Take no more."""


class RagEvalSpanProcessor(SpanProcessor):
    """Every span that enters leaves exactly once, scored or not.

    A span that stands for a turn waits in the pipeline's hold, at most until its deadline, while it
    is scored; then a copy with the scores goes on to ``downstream``, in the context the span ended
    in.
    """

    def __init__(
        self, downstream: Downstream, pipeline: Pipeline, *, content: ContentFilter | None = None
    ) -> None:
        """Stand in front of ``downstream``; ``content`` says which texts are exported."""
        self._downstream = downstream
        self._content = content or ContentFilter()
        self._pass_on = downstream.on_end if self._content.foreign == "keep" else self.export
        self._start_next = downstream.on_start
        self.pipeline = pipeline
        self._own_threads = pipeline.evaluator.threads
        self._edge = pipeline.edge("on_end")
        self.release_edge = pipeline.edge("release")
        self._bind()
        pipeline.attach(self)
        call_in_child(self._bind)

    def _bind(self) -> None:
        """Keep the methods that every span of the application calls."""
        buffer = self.pipeline.buffer
        self._starts = buffer.open_spans.starts
        self._concerns = buffer.concerns

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Note that it has started, and pass on."""
        self._starts.append(ref(span))
        self._start_next(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """Hold ``span`` if it stands for a turn, else pass it on at once.

        Spans that end on the evaluator's threads are those we write, or the judge's own, made by an
        instrumentation that does not respect suppression: the judge's go nowhere.
        """
        if get_ident() in self._own_threads:
            if _is_own(span):
                self._pass_on(span)
            return
        try:
            concerns = self._concerns(span)
        except (AttributeError, RuntimeError, TypeError):  # not as the SDK makes spans
            concerns = True  # looked at again, at an edge: one for every span is too dear
        if not concerns:
            self._pass_on(span)
            return
        fate = self._hold(span)
        if fate == "no room":
            why: HoldStatus = "overload" if self.pipeline.hold.is_open else "shutdown"
            HeldSpan(span, self).release(Ending(why))
        elif fate == "passes":
            self.export(span)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Give scores under way half of the time (5 s at most), release the rest, then export."""
        return self.pipeline.force_flush(timeout_millis)

    def shutdown(self) -> None:
        """Give scores under way their grace, release the rest, and shut the next one down."""
        try:
            self.pipeline.drain()
        finally:
            self._downstream.shutdown()

    def held(self, span: ReadableSpan) -> HeldSpan:
        """Return ``span`` as an item to hold."""
        return HeldSpan(span, self)

    def flush_next(self, timeout_millis: int) -> bool:
        """Export what has left already."""
        return self._downstream.force_flush(timeout_millis)

    def _hold(self, span: ReadableSpan) -> Fate:
        """Show ``span`` to the buffer of traces, which may hold it."""
        with self._edge:
            return self.pipeline.buffer.take(span)
        context = span.context or INVALID_SPAN_CONTEXT  # something failed, maybe after it was held
        key = (context.trace_id, context.span_id)
        return "held" if self.pipeline.hold.release(key, UNTOUCHED) else "passes"

    def export(self, span: ReadableSpan) -> None:
        """Hand ``span`` on with what of its texts may be exported; in doubt none."""
        shown = None
        with self.release_edge:
            shown = self._content.shown(span)
        self._downstream.on_end(self._content.bare(span) if shown is None else shown)


def _is_own(span: ReadableSpan) -> bool:
    scope = span.instrumentation_scope
    return scope is not None and scope.name == semconv.SCOPE


class HeldSpan:
    """An ended span of the application that waits; ``context`` is the one in which it ended."""

    __slots__ = ("_context", "_processor", "_span")

    def __init__(self, span: ReadableSpan, processor: RagEvalSpanProcessor) -> None:
        self._span = span
        self._processor = processor
        self._context = otel_context.get_current()

    def release(self, ending: Ending) -> None:
        """Hand the span on, in the context it ended in: the releasing thread's is suppressed."""
        span, processor = self._span, self._processor
        with processor.release_edge:
            if ending.status is not None:
                pipeline = processor.pipeline
                pipeline.instruments.tally.add("released", ending.status)
                explanations = pipeline.config.explanations
                span = enrich(span, score_attributes(ending, explanations=explanations))
        token = otel_context.attach(self._context)
        try:
            with processor.release_edge:
                processor.export(span)
        finally:
            otel_context.detach(token)


_MARK = "_rag_eval_otel"
_BEFORE = "_rag_eval_otel_before"
_OVERRIDDEN = ("shutdown", "force_flush", "on_start", "on_end")


class Saved:
    """A provider's processor as it was before ours stood in front: its methods, bound."""

    def __init__(self, multi: SpanProcessor) -> None:
        """Remember the methods of ``multi`` before they are overridden."""
        self.on_start: Callable[..., None] = multi.on_start
        self.on_end: Callable[[ReadableSpan], None] = multi.on_end
        self._force_flush = multi.force_flush
        self._shutdown = multi.shutdown

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Export what was taken."""
        return self._force_flush(timeout_millis)

    def shutdown(self) -> None:
        """Take no more."""
        self._shutdown()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """The place in front of a provider's processors. ``owner`` marks it as taken.

    Tracers and live spans all hold the provider's multi-processor, so overriding its methods on the
    instance reaches spans in flight and processors that are added later, too. A provider of another
    make has no such place; its own seat, ``multi``, can only be marked.
    """

    multi: Any

    @property
    def sees_spans(self) -> bool:
        """Tell whether spans come past here, or the provider is of another make."""
        return all(hasattr(self.multi, name) for name in _OVERRIDDEN)

    @property
    def owner(self) -> object | None:
        """Whoever has taken the seat."""
        return getattr(self.multi, _MARK, None)

    @property
    def processors(self) -> tuple[str, ...] | None:
        """The types of the provider's own processors; None where that cannot be told."""
        found = getattr(self.multi, "_span_processors", None)
        return None if found is None else tuple(type(one).__name__ for one in found)

    def take(self, processor: Callable[[Downstream], RagEvalSpanProcessor]) -> RagEvalSpanProcessor:
        """Put ``processor(downstream)`` in front; it gets every span from now on."""
        ours = processor(Saved(self.multi))
        methods = vars(self.multi)
        methods[_BEFORE] = {name: methods[name] for name in _OVERRIDDEN if name in methods}
        methods.update((name, getattr(ours, name)) for name in _OVERRIDDEN)
        return ours

    def sign(self, owner: object) -> None:
        """Mark the seat as taken by ``owner``."""
        with suppress(AttributeError):  # slots: then nobody will know
            setattr(self.multi, _MARK, owner)

    def leave(self, ours: SpanProcessor | None) -> None:
        """Let spans go to the provider's processors again, as if we had never been there.

        Where another library stands in front of us by now it stays, and we, closed, behind it.
        """
        with suppress(AttributeError):
            delattr(self.multi, _MARK)
        if ours is None:
            return
        methods = vars(self.multi)
        before = methods.pop(_BEFORE)
        for name in reversed(_OVERRIDDEN):
            if methods.get(name) == getattr(ours, name):
                methods.pop(name)
                if name in before:
                    methods[name] = before[name]


def find_seat(provider: object) -> Seat:
    """Return the seat of an SDK ``provider``, a proxy unwrapped, or the one of another make."""
    inner = getattr(provider, "provider", provider)
    seat = Seat(multi=getattr(inner, "_active_span_processor", None))
    return seat if seat.sees_spans else Seat(multi=provider)
