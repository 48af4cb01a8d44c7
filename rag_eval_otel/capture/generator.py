"""Which LLM call of a turn wrote its answer."""

from __future__ import annotations

from collections.abc import Iterable

from rag_eval_otel.capture.flat import ANSWER_LENGTH
from rag_eval_otel.capture.fragment import Fragment
from rag_eval_otel.capture.matching import is_in, is_same, place
from rag_eval_otel.capture.turns import Turn


def generator_of(turn: Turn, answer: str) -> Fragment | None:
    """Return the LLM call that wrote ``answer``: the last that said just that, else most of it.

    A grader's "no" is in many an answer: what is longer counts for more. Else the last call, of
    whose words the application made something else; None where that may be missing.
    """
    spoken = [call for call in turn.calls if call.output and call.output.strip()]
    wrote = [call for call in spoken if is_same(call.output, answer)]
    parts = [call for call in spoken if is_in(call.output or "", answer)]
    parts.sort(key=lambda call: len(call.output or ""))
    if turn.is_whole:
        found = wrote or parts or spoken or list(turn.calls)
    else:
        parts = [call for call in parts if len(call.output or "") >= ANSWER_LENGTH]
        found = wrote or parts or [call for call in turn.calls if _may_have_written(call, turn)]
    return found[-1] if found else None


def _may_have_written(call: Fragment, turn: Turn) -> bool:
    """Tell whether ``call`` may have written what was made an answer later on.

    Not one that grades, nor one that only wrote a query or notes for another call.
    """
    if not (call.output or "").strip():
        return call is turn.calls[-1]
    return len(call.output or "") >= ANSWER_LENGTH and not is_used(call, turn)


def is_used(call: Fragment, turn: Turn) -> bool:
    """Tell whether something later was made of what ``call`` said."""
    later = [one for one in (*turn.calls, *turn.retrievers) if one.start > call.start]
    return place(call.output or "", list(_asked(later))) is not None


def _asked(steps: Iterable[Fragment]) -> Iterable[str]:
    for step in steps:
        yield from step.prompt
        yield step.input or ""
