"""`View`: a span as somebody's exporter shows it, for tests of what conventions read."""

from functools import partial

from rag_eval_otel.capture.span import Span

View = partial(Span, name="span", scope="somebody", trace_id=1, span_id=2, start=1, end=2)
