"""Signs that a turn is not what it seems: a span is missing, or two requests are mixed up.

Spans get lost: they are dropped by a queue or a sampler, come late, or belong to another provider.
What is left may look like a turn that never was. Each check here compares two things that agree
when everything is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from rag_eval_otel.capture.contexts import prompts_behind
from rag_eval_otel.capture.flat import ANSWER_LENGTH
from rag_eval_otel.capture.fragment import Fragment
from rag_eval_otel.capture.generator import is_used
from rag_eval_otel.capture.matching import is_in, is_same, normalised, place
from rag_eval_otel.capture.turns import Turn
from rag_eval_otel.types import Passage, SkipReason


def doubt_of(
    turn: Turn, generator: Fragment, answer: str, *, contexts: Sequence[Passage]
) -> SkipReason | None:
    """Return why ``turn`` should not be trusted, or None."""
    said = turn.explicit
    if turn.is_whole or said >= {"documents", "output"}:
        return None
    if _asks_with_an_answer(turn):
        return "ambiguous"
    if generator.id in turn.within_tools:  # the agent that used the tool said something, too
        return "partial"
    prompts = prompts_behind(turn, generator)
    told = "documents" in said
    if _lacks_tools(turn, generator) or (not told and _lacks_retrieval(turn, prompts)):
        return "partial"
    if _has_stray_answer(turn, generator, answer) or _is_answered_by_tool(turn, answer):
        return "ambiguous"
    return None if told or _kept_on_purpose(turn, contexts, prompts) else "partial"


def _asks_with_an_answer(turn: Turn) -> bool:
    """Tell whether one answer is part of a later query: two turns in a row, or one of two steps.

    A query that was written by a call is all the call said.
    """
    return any(
        one.start > call.start
        and len(call.output or "") >= ANSWER_LENGTH
        and is_in(call.output or "", one.input or "")
        and not is_same(call.output, one.input)
        for call in turn.calls
        for one in turn.retrievers
    )


def _lacks_tools(turn: Turn, generator: Fragment) -> bool:
    """Tell whether the LLM called more tools than are there."""
    asking = [
        call
        for call in (*turn.calls, *turn.rewrites)
        if call.calls_tools and call.start < generator.start and call.id not in turn.within_tools
    ]
    needed = max(len(asking), *(len(step.results) for step in (generator, *turn.line)))
    if not needed:
        return False
    since = min((call.start for call in asking), default=0)
    return sum(step.start >= since for step in turn.tools) < needed


def _lacks_retrieval(turn: Turn, prompts: Sequence[str]) -> bool:
    """Tell whether documents reached the generator that nobody is seen to have retrieved."""
    known = {normalised(p.text) for one in turn.retrievers for p in one.documents or ()}
    shown = chain.from_iterable(step.shown for step in turn.steps)
    unknown = {p.text for p in shown if normalised(p.text) not in known}
    return any(place(text, prompts) for text in unknown)


def _has_stray_answer(turn: Turn, generator: Fragment, answer: str) -> bool:
    """Tell whether another call said something at length that nobody made use of.

    That matters little where it was shown no passage, and the turn is known to return ``answer``.
    """
    returned = is_same(turn.anchor.output, answer) and is_same(generator.output, answer)
    found = [p.text for one in turn.retrievers for p in one.documents or ()]
    return any(
        call is not generator
        and not (returned and call.prompt and not any(place(t, call.prompt) for t in found))
        and not call.calls_tools
        and len(call.output or "") >= ANSWER_LENGTH
        and not is_used(call, turn)
        and place(generator.output or "", call.prompt) is None
        for call in turn.calls
    )


def _is_answered_by_tool(turn: Turn, answer: str) -> bool:
    """Tell whether what a tool returned was no context, but the answer."""
    told = (one.output for one in turn.retrievers if one.output is not None)
    return any(is_same(text, answer) for text in told)


def _kept_on_purpose(turn: Turn, contexts: Sequence[Passage], prompts: Sequence[str]) -> bool:
    """Tell whether what was retrieved but not shown to the generator was left out on purpose.

    Then some step handed on just what was kept, or an LLM has seen the rest and rejected it.
    """
    kept = {normalised(passage.text) for passage in contexts}
    found = {normalised(p.text): p for one in turn.retrievers for p in one.documents or ()}
    seen = "\n".join(kept)  # where a text around a passage was shown, it was, too
    left = [p for t, p in found.items() if not t.startswith(tuple(kept)) and t not in seen]
    if not left or not prompts:
        return True
    if any({normalised(p.text) for p in step.shown} == kept for step in turn.steps):
        return True
    names = {passage.id for passage in contexts}
    if any(step.kept and set(step.kept) == names for step in turn.steps):
        return True
    if any(_drops(step, left, contexts) for step in turn.steps):
        return True
    if any({normalised(p.text) for p in one.documents or ()} == kept for one in turn.retrievers):
        return any(one.kind == "reranker" for one in turn.retrievers)
    graders = [call for call in turn.calls if 0 < len(call.output or "") < ANSWER_LENGTH]
    return all(any(place(p.text, call.prompt) for call in graders) for p in left)


def _drops(step: Fragment, left: Sequence[Passage], kept: Sequence[Passage]) -> bool:
    """Tell whether ``step`` was handed what was ``left`` out, and wrote down just what was kept."""
    handed = {normalised(passage.text) for passage in step.shown}
    written = (step.output or "",)
    return all(
        normalised(p.text) in handed and place(p.text, written) is None for p in left
    ) and all(place(p.text, written) is not None for p in kept)
