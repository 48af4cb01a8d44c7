"""`SpanCounter`: counts the spans of one provider, by who wrote them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from rag_eval_otel.capture.dialects import dialect_of
from rag_eval_otel.capture.span import SdkSpan
from rag_eval_otel.runtime.guard import Edge

if TYPE_CHECKING:
    from opentelemetry.context import Context


class SpanCounter(SpanProcessor):
    """Stands beside the exporters; ``told`` gets each span that starts."""

    def __init__(self, told: Callable[[Span], None], *, edge: Edge) -> None:
        """Count from zero."""
        self._told = told
        self._edge = edge
        self.reset()

    def reset(self) -> None:
        """Count from zero."""
        self.ended = 0
        self.scopes: Counter[str] = Counter()
        self.dialects: Counter[str] = Counter()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002
        """Tell."""
        with self._edge:
            self._told(span)

    def on_end(self, span: ReadableSpan) -> None:
        """Count."""
        with self._edge:
            view = SdkSpan(span)
            self.ended += 1
            self.scopes[view.scope] += 1
            self.dialects[dialect_of(view) or "none"] += 1
