"""From a turn to its sample: question, contexts and answer, or the reason why there is none.

This reads texts and runs on the evaluator's thread. Where the parts of a turn contradict each
other, or somebody has hidden one of them, a refusal is better than a guess.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rag_eval_otel.capture.contexts import contexts_of, is_unseen, prompts_behind
from rag_eval_otel.capture.dialects import read
from rag_eval_otel.capture.doubts import doubt_of
from rag_eval_otel.capture.flat import may_grade
from rag_eval_otel.capture.fragment import Fragment, Part
from rag_eval_otel.capture.generator import generator_of
from rag_eval_otel.capture.matching import is_in, is_same
from rag_eval_otel.capture.turns import Turn
from rag_eval_otel.types import Passage, Sample, SkipReason

_NO_TIME = 5_000_000  # ns in which no LLM can have answered
_SAMPLE: frozenset[Part] = frozenset({"documents", "input", "output"})
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
        return _sample(_with_said(turn))
    except Refused as refused:
        return refused.reason


def _with_said(turn: Turn) -> Turn:
    """Return ``turn`` with what the application has said on its span until that ended."""
    if turn.span is None:
        return turn
    around = (step for step in turn.line if step.id != turn.span.span_id)
    return replace(turn, line=(*around, read(turn.span)))


def _sample(turn: Turn) -> Sample:
    if any(step.error is not None for step in turn.line):
        raise Refused(reason="error")
    _spoken(turn.line, "input")  # where the question is hidden, nothing else matters
    said = turn.explicit
    if turn.doubt is not None and not said >= _SAMPLE:
        raise Refused(reason=turn.doubt)
    answer = _answer(turn)
    generator = generator_of(turn, answer)
    if generator is None and turn.calls and not said >= {"documents", "output"}:
        raise Refused(reason="partial")
    if generator is not None and not _is_told(turn) and may_grade(generator, turn):
        raise Refused(reason="ambiguous")
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


def _answer(turn: Turn) -> str:
    told = [call for call in turn.calls if "output" in call.explicit]
    if told and not any("output" in step.explicit for step in turn.line):
        return _spoken(told, "output") or ""
    answer = _spoken(turn.line, "output")
    if "output" not in turn.explicit and _was_abandoned(turn, answer):
        raise Refused(reason="abandoned")
    answer = answer or _spoken(turn.calls, "output")
    if answer is None:
        raise Refused(reason="no_answer")
    return answer


def _is_told(turn: Turn) -> bool:
    """Tell whether the answer is what the turn returned, not just what its last call said."""
    return "output" in turn.explicit or any((step.output or "").strip() for step in turn.line)


def _spoken(steps: Iterable[Fragment], part: Part) -> str | None:
    """Return the text of the last of ``steps`` that has one, or what the application has set.

    Redaction is consent: what is hidden there is not looked for elsewhere.
    """
    steps = tuple(steps)
    explicit = [step for step in steps if part in step.explicit]
    for step in explicit[:1] or reversed(steps):
        text = step.input if part == "input" else step.output
        if part in step.hidden:
            raise Refused(reason="redacted")
        if part in step.cut:
            raise Refused(reason="truncated")
        if text is not None and text.strip():
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


def _is_reworded(turn: Turn, message: str) -> bool:
    """Tell whether an LLM wrote the query: one that called a tool, or one whose words are hidden.

    An LLM that calls tools is asked what the application was asked.
    """
    if any(call.calls_tools for call in (*turn.rewrites, *turn.calls)):
        return not message.strip()
    silent = [call for call in (*turn.rewrites, *turn.calls) if call.output is None]
    first = turn.retrievers[0].start
    return not message.strip() and any(call.start < first for call in silent)


def _led_there(turn: Turn, generator: Fragment | None, asked: str) -> bool:
    """Tell whether the generator, or a call that it builds upon, was asked just that."""
    if turn.is_whole or generator is None:
        return False
    return any(is_in(asked, message) for message in prompts_behind(turn, generator))


def _is_unknown(turn: Turn, generator: Fragment | None) -> bool:
    """Tell whether there is nothing to compare with what the application was asked."""
    return turn.is_whole or generator is None or is_unseen(generator)


def _is_replaced(turn: Turn, message: str, searched: str | None) -> bool:
    """Tell whether the application itself put another question in the place of the first.

    The step that did took no time: no LLM was asked to reword it.
    """
    return any(
        step.input is not None
        and step.end is not None
        and step.end - step.start < _NO_TIME
        and is_same(step.output, searched)
        and is_same(searched, message)
        for step in turn.steps
    )


def _question(turn: Turn, generator: Fragment | None, contexts: tuple[Passage, ...]) -> str | None:
    """Weigh what the application was asked, what was searched, and what the LLM was asked."""
    line = [step for step in turn.line if step.kind != "llm"]
    explicit = next((step.input for step in line if "input" in step.explicit), None)
    if explicit is not None:
        return explicit
    asked = _spoken(line, "input")
    searched = _first(retriever.input for retriever in turn.retrievers)
    message = (generator.input if generator is not None else None) or ""
    clean = message.strip() and not any(p.text in message for p in contexts if p.text)
    if asked is not None and (
        is_same(asked, message)
        or is_in(asked, message)
        or (is_same(asked, searched) and _is_unknown(turn, generator))
        or _led_there(turn, generator, asked)
    ):
        return asked
    seen = searched if turn.is_whole or is_in(searched or "", message) else None
    if any(is_same(call.output, searched) for call in (*turn.rewrites, *turn.calls)):
        return _first((asked, message if clean else None, seen))
    if asked is not None and not turn.is_whole and not _is_replaced(turn, message, searched):
        if _is_reworded(turn, message):
            return asked
        raise Refused(reason="ambiguous")  # something rewrote the question, and it is not there
    if searched is not None and is_in(searched, message):
        return message if clean and len(message) <= len(searched) + _PUNCTUATION else searched
    found = _first((message if clean else None, asked, seen))
    if found is None and any("input" in one.hidden for one in turn.retrievers):
        raise Refused(reason="redacted")
    return found
