"""A span processor that records all started spans, to find lost and duplicate ones."""

import threading
from dataclasses import dataclass, field

from opentelemetry.context import Context
from opentelemetry.sdk.trace import Span, SpanProcessor


@dataclass
class StartedSpans(SpanProcessor):
    """Records the started spans by scope."""

    by_app: list[tuple[int, int]] = field(default_factory=list)
    by_judge: list[str] = field(default_factory=list)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        context = span.get_span_context()
        scope = span.instrumentation_scope
        is_own = (
            scope is not None and scope.name == "rag_eval_otel"
        )  # our spans start on the background thread
        if threading.current_thread().name.startswith("rag-eval-otel") and not is_own:
            self.by_judge.append(span.name)
        else:
            self.by_app.append((context.trace_id, context.span_id))
