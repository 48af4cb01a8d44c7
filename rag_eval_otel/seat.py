"""`Seat`: the place in front of the processors that a provider has already."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rag_eval_otel.processor import Downstream, RagEvalSpanProcessor

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor


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

    def leave(self, ours: RagEvalSpanProcessor | None) -> None:
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
