"""Which span stands for a turn, told as spans end, from what is below each."""

from __future__ import annotations

from rag_eval_otel.capture.dialects import kind_of, lists, native, tool_name
from rag_eval_otel.capture.fragment import RETRIEVALS, Kind
from rag_eval_otel.capture.open_spans import OpenSpans, line_of
from rag_eval_otel.capture.retrievals import CONTEXT_TOOLS
from rag_eval_otel.capture.segment import Below, Segment
from rag_eval_otel.capture.view import SdkSpan

_DEPTH = 100  # of parents that are told
_LEAVES = RETRIEVALS | {"llm"}


def stands_for_turn(segment: Segment, view: SdkSpan, kind: Kind, *, spans: OpenSpans) -> bool:
    """Tell whether ``view`` is the deepest span above a retrieval and a call after it.

    Where it has ended before what is below it, as it does when its answer is a stream, a retrieval
    that is open counts, and a call that came after the retrieval and is open.
    """
    own = segment.below.setdefault(view.span_id, Below())
    own.add(_said(view, own))
    is_turn = False
    if kind in RETRIEVALS:
        up = Below(searched=view.start)
    elif kind == "llm":
        up = Below(own.searched, view.start)
    elif own.searched is None and _may_have_searched(view, kind, own):
        up = Below(view.start, own.called)
    else:
        up = own
        may_go_on = own.searched is not None or kind != "other"
        is_turn = own.is_turn or (may_go_on and _goes_on(segment, view, own, spans=spans))
        if own.is_turn:
            segment.turns.add(view.span_id)
            up = Below(own.searched)
    _rise(segment, view.parent_id, up)
    return is_turn


def _may_have_searched(view: SdkSpan, kind: Kind, own: Below) -> bool:
    """Tell whether ``view`` is a tool, or a function without a step below, that finds contexts."""
    returns = kind == "tool" or (kind == "chain" and own.called is None and lists(view))
    return returns and CONTEXT_TOOLS.search(tool_name(view)) is not None


def _rise(segment: Segment, above: int | None, up: Below) -> None:
    """Tell the span ``above`` what is below it; where it has ended, also those above that."""
    for _ in range(_DEPTH):
        if above is None or (up.searched is None and up.called is None):
            return
        below = segment.below.setdefault(above, Below())
        below.add(up)
        view = segment.spans.get(above)
        if view is None or kind_of(view) in _LEAVES:
            return
        if below.is_turn:
            segment.turns.add(above)
            up = Below(below.searched)
        above = view.parent_id


def _said(view: SdkSpan, own: Below) -> Below:
    """Return what the application itself has told of on ``view``."""
    said = native.parts_of(view)
    searched = view.start if "documents" in said else None
    known = searched if own.searched is None else own.searched
    return Below(searched, (view.start if known is None else known) if "output" in said else None)


def _goes_on(segment: Segment, view: SdkSpan, own: Below, *, spans: OpenSpans) -> bool:
    """Tell whether a retrieval, or what follows one, is still open below ``view``."""
    views = [SdkSpan(span) for span in spans.newest(view.trace_id) if span.end_time is None]
    parents = {one.span_id: one.parent_id for one in views}
    inner = [one for one in views if view.span_id in line_of(one.parent_id, segment.spans, parents)]
    if any(kind_of(one) in RETRIEVALS for one in inner):
        return True
    known = Below(own.searched, own.called)
    for one in inner:
        known.add(segment.below.get(one.span_id) or Below())
    later = (one.start > known.searched for one in inner if known.searched is not None)
    return known.is_turn or any(later)
