"""`LooseRuns`: LangChain runs without a chain around them, joined by the span that is current.

A plain function that calls a retriever and then a model makes two root runs. Where both started
under one span of the application, that span may stand for the turn they make.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import get_current_span

from rag_eval_otel.capture.dialects import dialect_of, read
from rag_eval_otel.capture.runs import RunTree
from rag_eval_otel.capture.span import SdkSpan
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.turn import Turn, find_turns

if TYPE_CHECKING:
    from opentelemetry.trace import Span

Joined: TypeAlias = "tuple[Span, Sequence[Turn], Turn | None]"
"""A span, the turns of the runs below it, and the turn that it stood for before."""

_MAX_STEPS = 200  # below one span: more than that is a batch, not a turn


@dataclass(slots=True, eq=False)
class _Below:
    """What has ended below ``span``, and the turn it stands for by now."""

    span: Span
    steps: list[Step] = field(default_factory=list)
    turn: Turn | None = None


class LooseRuns:
    """The runs below spans that have not ended, of at most ``max_spans``; the oldest go first."""

    def __init__(self, max_spans: int = 256) -> None:
        """Start empty."""
        self._max = max_spans
        self.clear()

    def clear(self) -> None:
        """Forget everything (in a forked child: it is the parent's)."""
        self._lock = threading.RLock()
        self._below: OrderedDict[tuple[int, int], _Below] = OrderedDict()

    def __len__(self) -> int:
        """Return how many spans are known."""
        return len(self._below)

    def join(self, tree: RunTree, steps: Sequence[Step]) -> Joined | None:
        """Take in ``steps`` of a tree that is no turn by itself; None where that makes none."""
        span = get_current_span(tree.context)
        if not isinstance(span, ReadableSpan) or not span.is_recording():
            return None
        view = SdkSpan(span)
        if dialect_of(view) not in {None, "native"}:
            return None  # its own instrumentation knows better what belongs to it
        with self._lock:
            below = self._of((view.trace_id, view.span_id), span)
            room = len(below.steps) + len(steps) <= _MAX_STEPS
            below.steps += [_under(view, one) for one in steps] if room else []
            if not room or all(one.kind != "llm" for one in steps):
                return None
            turns = find_turns([_anchor(view, below.steps), *below.steps], loss="possible")
            before, below.turn = below.turn, turns[0] if len(turns) == 1 else None
        return (span, turns, before) if turns else None

    def _of(self, key: tuple[int, int], span: Span) -> _Below:
        below = self._below.setdefault(key, _Below(span))
        self._below.move_to_end(key)
        while len(self._below) > self._max or not self._oldest.span.is_recording():
            self._below.popitem(last=False)
        return below

    @property
    def _oldest(self) -> _Below:
        return next(iter(self._below.values()))


def _under(view: SdkSpan, step: Step) -> Step:
    return step if step.parent is not None else replace(step, parent=view.span_id)


def _anchor(view: SdkSpan, steps: Sequence[Step]) -> Step:
    """Return the span as if it ended now, with what the application has said on it."""
    ends = [step.end for step in steps if step.end is not None]
    return replace(read(view), parent=None, end=max(ends, default=view.start) + 1)
