"""Which turns of a trace are over while the trace goes on, as below a session or a batch job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rag_eval_otel.capture.open_spans import is_bystander, line_of
from rag_eval_otel.capture.segment import Segment
from rag_eval_otel.capture.view import SdkSpan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.sdk.trace import ReadableSpan


def units_over(
    segment: Segment, opened: Iterable[ReadableSpan], *, until: float
) -> Iterator[list[int]]:
    """Yield the spans, by id, of each part of ``segment`` that holds turns and is over.

    It hangs below nothing, or below a span that is no step of a turn; nothing in it is open, and
    nothing has come since ``until``.
    """
    if segment.is_slow or not any(turn in segment.spans for turn in segment.turns):
        return
    views = [SdkSpan(span) for span in opened]
    parents = {one.span_id: one.parent_id for one in views}
    around = {one.span_id for one in views if is_bystander(one)}
    units: dict[int, list[int]] = defaultdict(list)
    for one in segment.spans:
        units[_top(one, segment)].append(one)
    busy = {above for one in views for above in line_of(one.parent_id, segment.spans, parents)}
    for top, unit in units.items():
        view = segment.spans[top]
        hangs = view.parent_id is not None and not view.parent_is_remote
        if (hangs and view.parent_id not in around) or segment.turns.isdisjoint(unit):
            continue
        if busy.isdisjoint(unit) and max(segment.noted[one][0] for one in unit) <= until:
            yield unit


def _top(start: int, segment: Segment) -> int:
    """Return the outermost of the spans that have ended at or above ``start``."""
    top = start
    for above in line_of(start, segment.spans, {}):
        if above in segment.spans:
            top = above
    return top
