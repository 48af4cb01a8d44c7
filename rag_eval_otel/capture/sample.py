"""Read the sample of a turn: question, contexts and answer, or the reason why there is none.

This reads texts and runs on the evaluator's thread. Where the parts of a turn contradict each
other, or a part was redacted, the turn is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rag_eval_otel.capture.contexts import contexts_of, prompts_behind
from rag_eval_otel.capture.dialects import read
from rag_eval_otel.capture.generator import (
    doubt_of,
    generator_of,
    is_judged,
    is_told,
    unnamed_answer,
    with_others,
)
from rag_eval_otel.capture.retrieval import find_retrievals, is_verdict
from rag_eval_otel.capture.span import SpanView
from rag_eval_otel.capture.step import RETRIEVALS, Part, Step
from rag_eval_otel.capture.text import is_in, is_same
from rag_eval_otel.capture.tree import StepTree
from rag_eval_otel.capture.turn import ANSWER_LENGTH, Turn, find_turns, may_grade
from rag_eval_otel.types import Passage, Sample, SkipReason

_NO_TIME = 5_000_000  # ns in which no LLM can have answered
_SAMPLE: frozenset[Part] = frozenset({"documents", "input", "output"})
_OF_LLM = re.compile(r"llm|chat|model", re.IGNORECASE)  # what is called so may have asked one
_PUNCTUATION = 3  # characters by which a query and the question it repeats may differ


class Refused(Exception):  # noqa: N818  # not an error: the outcome of reading a turn
    """A turn can't be scored."""

    def __init__(self, *, reason: SkipReason) -> None:
        """Say why."""
        super().__init__(reason)
        self.reason: SkipReason = reason


def extract(turn: Turn) -> Sample | SkipReason:
    """Return the sample of ``turn``, or why it can't be scored."""
    try:
        return _sample(turn)
    except Refused as refused:
        return refused.reason


def _sample(turn: Turn) -> Sample:
    if any(step.error is not None for step in turn.path):
        raise Refused(reason="error")
    _spoken(turn.path, "input")  # where the question is hidden, nothing else matters
    said = turn.recorded
    if turn.doubt is not None and not said >= _SAMPLE:
        raise Refused(reason=turn.doubt)
    answer = _answer(turn)
    generator = _generator(turn, answer)
    contexts = contexts_of(turn, generator)
    if isinstance(contexts, str):
        raise Refused(reason=contexts)
    if generator is not None:
        doubt = doubt_of(turn, generator, answer, contexts=contexts)
        if doubt is not None:
            raise Refused(reason=doubt)
    question = _question(turn, generator, contexts)
    if question is None:
        raise Refused(reason="no_question")
    ids = tuple(passage.id for passage in contexts if passage.id is not None)
    return Sample(
        question=question,
        contexts=contexts,
        answer=answer,
        retrieved_ids=ids if len(ids) == len(contexts) else (),
    )


def _generator(turn: Turn, answer: str) -> Step | None:
    """Return the LLM call that wrote ``answer``; None where the application said what it showed."""
    generator = generator_of(turn, answer)
    if generator is None:
        if turn.calls and not turn.recorded >= {"documents", "output"}:
            raise Refused(reason="ambiguous" if turn.is_complete else "partial")
        return None
    if (not is_told(turn) and may_grade(generator, turn)) or is_judged(generator, turn):
        raise Refused(reason="ambiguous")
    return with_others(generator, turn, answer)


def _answer(turn: Turn) -> str:
    told = [call for call in turn.calls if "output" in call.recorded]
    if told and not any("output" in step.recorded for step in turn.path):
        return _spoken(told, "output") or ""
    answer = _spoken(turn.path, "output")
    if "output" not in turn.recorded and _was_abandoned(turn, answer):
        raise Refused(reason="abandoned")
    answer = answer or unnamed_answer(turn) or _spoken(turn.calls, "output")
    if answer is None or (is_verdict(answer) and not _may_be_verdict(turn, answer)):
        raise Refused(reason="no_answer")
    return answer


def _may_be_verdict(turn: Turn, answer: str) -> bool:
    """Tell whether the turn may answer yes or no: in words, and the call that says so is no grader.

    Where a part of the turn may be missing and only a call says it, nobody can tell.
    """
    return answer.lstrip()[:1] != "{" and (turn.is_complete or is_told(turn))


def _spoken(steps: Iterable[Step], part: Part) -> str | None:
    """Return the text of the last of ``steps`` that has one, or what the application has set.

    Redaction is consent: what is hidden there is not looked for elsewhere.
    """
    steps = tuple(steps)
    explicit = [step for step in steps if part in step.recorded]
    for step in explicit[:1] or reversed(steps):
        text = step.input if part == "input" else step.output
        if part in step.hidden:
            raise Refused(reason="redacted")
        if part in step.cut:
            raise Refused(reason="truncated")
        is_echo = part == "output" and step.kind != "llm" and is_same(text, step.input)
        if text is not None and text.strip() and (explicit or not is_echo):
            return text
    return None


def _first(texts: Iterable[str | None]) -> str | None:
    return next((text for text in texts if text is not None and text.strip()), None)


def _was_abandoned(turn: Turn, answer: str | None) -> bool:
    """Tell whether the consumer of a stream left early: the anchor ended before its LLM.

    What the application then saw is nothing, or the beginning of what the LLM went on to say.
    """
    end = turn.anchor.end
    if turn.anchor.flat or turn.anchor.deferred or not turn.calls:
        return end is None
    last = turn.calls[-1]
    if end is None or (last.end is not None and last.end <= end):
        return end is None
    told = last.output or ""
    return answer is None or last.end is None or (answer != told and told.startswith(answer))


def _question(turn: Turn, generator: Step | None, contexts: tuple[Passage, ...]) -> str | None:
    """Weigh what the application was asked, what was searched, and what the LLM was asked."""
    line = [step for step in turn.path if step.kind != "llm"]
    explicit = next((step.input for step in line if "input" in step.recorded), None)
    if explicit is not None:
        return explicit
    asked = _spoken([step for step in line if not _is_prompt(step.input, contexts)], "input")
    asked = asked or _unnamed_question(turn)
    searched = _first(retriever.input for retriever in turn.retrievers)
    message = _message(turn, generator)
    clean = message.strip() and not any(p.text in message for p in contexts if p.text)
    if asked is None:
        return _unasked(turn, message if clean else "", shown=message, searched=searched)
    if is_in(asked, message) or is_same(asked, searched) or _led_there(turn, generator, asked):
        return asked
    if _writers(turn, searched) or not message.strip():
        return asked
    if turn.is_complete and turn.path[-1].parent is None:
        return asked
    if turn.is_complete or _is_replaced(turn, message, searched):
        return message if clean else searched
    raise Refused(reason="ambiguous")  # something rewrote the question, and it is not there


def _message(turn: Turn, generator: Step | None) -> str:
    """Return what the generator was asked; of two records of one call, the shorter one."""
    if generator is None:
        return ""
    same = [call.input for call in turn.calls if is_same(call.output, generator.output)]
    return min((text for text in (generator.input, *same) if text), key=len, default="")


def _unnamed_question(turn: Turn) -> str | None:
    """Return what the turn was handed under a name of its own: the text that the LLMs were shown.

    Or that was searched for. A single word is a name, a language, or something else beside it.
    """
    shown = [text for call in (*turn.other_calls, *turn.calls) for text in call.prompt]
    shown += [one.input or "" for one in turn.retrievers]
    for step in reversed(turn.path):
        several = [
            text for text in step.input_texts if len(text.split()) > 1 or len(step.input_texts) == 1
        ]
        used = [text for text in several if any(is_in(text, one) for one in shown)]
        if used:
            return used[0] if len(used) == 1 else None
    return None


def _is_prompt(text: str | None, contexts: Sequence[Passage]) -> bool:
    """Tell whether ``text`` is no question, but a prompt made of one and of ``contexts``."""
    long = (p.text for p in contexts if len(p.text) >= ANSWER_LENGTH)
    return text is not None and any(one in text for one in long)


def _unasked(turn: Turn, clean: str, *, shown: str, searched: str | None) -> str | None:
    """Return the question where the application is not known to have been asked anything.

    That is the message of the LLM, if it is ``clean``, or the query in it. Where a call wrote the
    query, it is only what that call was shown: the query is not the user's.
    """
    writers = _writers(turn, searched)
    if writers:
        prompts = [text for call in writers for text in call.prompt]
        return clean if any(is_in(clean, text) for text in prompts) else None
    if searched is not None and is_in(searched, shown):
        return clean if clean and len(clean) <= len(searched) + _PUNCTUATION else searched
    found = _first((clean, searched if not shown.strip() else None))
    if found is None and any("input" in one.hidden for one in turn.retrievers):
        raise Refused(reason="redacted")
    return found


def _writers(turn: Turn, searched: str | None) -> list[Step]:
    """Return the calls that may have written the query: it is in what they said.

    Or they came before it, and what they said is not told: tools were called.
    """
    first = min(one.start for one in turn.retrievers)
    return [
        call
        for call in (*turn.other_calls, *turn.calls)
        if is_in(searched or "", call.output or "")
        or (call.start < first and not (call.output or "").strip())
    ]


def _led_there(turn: Turn, generator: Step | None, asked: str) -> bool:
    """Tell whether the generator, or a call that it builds upon, was asked just that."""
    return generator is not None and any(
        is_in(asked, message) for message in prompts_behind(turn, generator)
    )


def _is_replaced(turn: Turn, message: str, searched: str | None) -> bool:
    """Tell whether the application itself put another question in the place of the first.

    The step that did took no time: no LLM was asked to reword it.
    """
    parents = {step.parent for step in turn.steps}
    return any(
        step.input is not None
        and step.end is not None
        and step.end - step.start < _NO_TIME
        and step.id not in parents
        and not _OF_LLM.search(step.name)
        and is_same(step.output, searched)
        and is_in(searched or "", message)
        for step in turn.steps
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a turn; ``turn`` is None where nothing could be recognised as one."""

    result: Sample | SkipReason
    turn: Turn | None = None


def outcomes(steps: Sequence[Step]) -> list[Outcome]:
    """Return what becomes of each turn of a trace, or why a trace that might hold one has none."""
    turns = find_turns(steps, loss="possible")
    if turns:
        return [Outcome(result=extract(turn), turn=turn) for turn in turns]
    reason = why_none(steps)
    return [] if reason is None else [Outcome(result=reason)]


def outcomes_of(spans: Iterable[SpanView]) -> list[Outcome]:
    """Return what becomes of each turn in the ``spans`` of one trace, all of which have ended.

    One that never ended must be left out: what is below it then shows that something is missing.
    """
    return outcomes([read(span) for span in spans])


def why_none(steps: Sequence[Step]) -> SkipReason | None:
    """Return why a trace without turns has none, or None where nobody would expect one."""
    kinds = {step.kind for step in steps}
    may_be_turn = kinds & {"llm", *RETRIEVALS}
    if may_be_turn and any(f.error is not None and f.parent is None for f in steps):
        return "error"
    if "llm" not in kinds:
        said = frozenset().union(*(step.recorded for step in steps))
        if kinds & RETRIEVALS or "documents" in said:
            return "no_answer"
        return "no_retrieval" if said else None
    tree = StepTree(steps)
    if not find_retrievals(tree):
        failed = any(f.kind in RETRIEVALS and f.error is not None for f in steps)
        return "error" if failed else "no_retrieval"
    return "partial" if tree.orphans else "no_answer"
