"""Telling apart the requests of an anchor below which everything stands side by side.

Below a plain span of the application, or a workflow of the official conventions, a retrieval and
an LLM call may belong to each other or to two requests. Only their texts can tell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rag_eval_otel.capture.fragment import Fragment
from rag_eval_otel.capture.matching import is_in, is_same, place

if TYPE_CHECKING:
    from rag_eval_otel.capture.turns import Turn

ANSWER_LENGTH = 20  # characters from which the output of an LLM may be an answer
_BESIDE = 200  # calls beside each other that are told apart: it takes the square of their number


def parted(turn: Turn) -> list[Turn]:
    """Return a turn for each answer in ``turn``, if its anchor does not hold it together."""
    if not turn.anchor.flat or len(turn.calls) == 1:
        return [turn]
    if len(turn.calls) > _BESIDE:
        return [replace(turn, doubt="ambiguous")]
    last = [call for call in turn.calls if _is_answer(call, turn)]
    grounded = [(call, used) for call in last if (used := _used(call, turn.retrievers))]
    if not grounded:
        return [replace(turn, doubt="ambiguous") if len(last) > 1 else turn]
    parts = [
        replace(turn, anchor=call, line=(call,), calls=(call,), rewrites=(), retrievers=used)
        for call, used in grounded
    ]
    return [
        replace(part, doubt="ambiguous") if may_grade(part.anchor, turn) else part for part in parts
    ]


def may_grade(call: Fragment, turn: Turn) -> bool:
    """Tell whether ``call`` was shown what an earlier one made of the same passages.

    Then it may grade, name or translate that, or put it better: nobody can tell. What a tool has
    said is there to be used.
    """
    found = [p.text for one in turn.retrievers for p in one.documents or ()]
    shown = {text for text in found if place(text, call.prompt)}
    for one in turn.calls:
        if one.start >= call.start or not one.output or one.id in turn.within_tools:
            continue
        seen = {text for text in found if place(text, one.prompt)}
        if seen and shown <= seen and _is_quoted(one.output or "", call.prompt):
            return True
    return False


def _is_quoted(text: str, prompts: Sequence[str]) -> bool:
    if len(text) >= ANSWER_LENGTH:
        return place(text, prompts) is not None
    word = re.compile(rf"(?<!\w){re.escape(text.strip())}(?!\w)")
    return any(word.search(prompt) for prompt in prompts)


def _is_answer(call: Fragment, turn: Turn) -> bool:
    """Tell whether nothing later was made of what ``call`` said."""
    text = call.output or ""
    if len(text) < ANSWER_LENGTH:
        return False
    later = [one for one in (*turn.calls, *turn.retrievers) if one.start > call.start]
    asked = [message for one in later for message in (*one.prompt, one.input or "")]
    return place(text, asked) is None


def _used(call: Fragment, retrievers: Sequence[Fragment]) -> tuple[Fragment, ...]:
    """Return the retrievals whose documents ``call`` was shown: those of its own question."""
    used = [one for one in retrievers if one.start < call.start and _is_used(one, call)]
    own = [one for one in used if one.input and place(one.input, call.prompt)]
    return tuple(own or used[-1:])


def _is_used(one: Fragment, call: Fragment) -> bool:
    if one.documents is None:
        asked = (call.input, *call.variables.values())
        return any(is_same(one.input, text) for text in asked)
    shown = any(place(passage.text, call.prompt) for passage in one.documents)
    return shown or (one.documents == () and is_in(one.input or "", call.input or ""))
