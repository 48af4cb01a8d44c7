"""Read the sample of a turn: question, contexts and answer, or the reason why there is none.

This reads texts and runs on the evaluator's thread. Where the parts of a turn contradict each
other, or a part was redacted, the turn is refused.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from rag_eval_otel.capture.contexts import contexts_of, prompts_behind
from rag_eval_otel.capture.dialects import read
from rag_eval_otel.capture.retrieval import find_retrievals, is_verdict
from rag_eval_otel.capture.span import SpanView
from rag_eval_otel.capture.step import RETRIEVALS, Part, Step
from rag_eval_otel.capture.text import is_in, is_same, normalised, place
from rag_eval_otel.capture.tree import StepTree
from rag_eval_otel.capture.turn import ANSWER_LENGTH, Turn, find_turns, may_grade
from rag_eval_otel.types import Passage, Sample, SkipReason

_NO_TIME = 5_000_000  # ns in which no LLM can have answered
_SAMPLE: frozenset[Part] = frozenset({"documents", "input", "output"})
_DEMANDS_VERDICT = re.compile(
    r"\byes\b\W{1,3}(or|and|/)\W{0,3}no\b|\byes\W{1,3}no\b|\bbinary\b", re.IGNORECASE
)
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
    if any(step.error is not None for step in turn.line):
        raise Refused(reason="error")
    _spoken(turn.line, "input")  # where the question is hidden, nothing else matters
    said = turn.explicit
    if turn.doubt is not None and not said >= _SAMPLE:
        raise Refused(reason=turn.doubt)
    answer = _answer(turn)
    generator = generator_of(turn, answer)
    if generator is None and turn.calls and not said >= {"documents", "output"}:
        raise Refused(reason="ambiguous" if turn.is_whole else "partial")
    if generator is not None and not _is_told(turn) and may_grade(generator, turn):
        raise Refused(reason="ambiguous")
    if generator is not None and _judged(generator, turn):
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
    answer = answer or _unnamed_answer(turn) or _spoken(turn.calls, "output")
    if answer is None or (is_verdict(answer) and answer.lstrip()[:1] == "{"):
        raise Refused(reason="no_answer")
    return answer


def _unnamed_answer(turn: Turn) -> str | None:
    """Return what the turn returned under a name of its own: the text that a call has said.

    Of several that no verdict on another one is.
    """
    asked = [step.input for step in (*turn.line, *turn.retrievers)]
    for step in reversed(turn.line):
        said = {
            call.output or "": call
            for call in turn.calls
            for t in step.tells
            if is_same(t, call.output)
        }
        texts = [text for text in said if not any(is_same(text, one) for one in asked)]
        final = [t for t in texts if not _judges(said[t], [one for one in texts if one != t])]
        if len(final) == 1:
            return final[0]
    return None


def _judges(call: Step, texts: Sequence[str]) -> bool:
    """Tell whether ``call`` was shown one of ``texts``, and had little to say."""
    short = len(call.output or "") < ANSWER_LENGTH
    return short and any(place(text, call.prompt) is not None for text in texts)


def _is_told(turn: Turn) -> bool:
    """Tell whether the answer is what the turn returned, not just what its last call said."""
    told = "output" in turn.explicit or any((step.output or "").strip() for step in turn.line)
    return told or _unnamed_answer(turn) is not None


def _spoken(steps: Iterable[Step], part: Part) -> str | None:
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
    line = [step for step in turn.line if step.kind != "llm"]
    explicit = next((step.input for step in line if "input" in step.explicit), None)
    if explicit is not None:
        return explicit
    asked = _spoken([step for step in line if not _is_prompt(step.input, contexts)], "input")
    asked = asked or _unnamed_question(turn)
    searched = _first(retriever.input for retriever in turn.retrievers)
    message = (generator.input if generator is not None else None) or ""
    clean = message.strip() and not any(p.text in message for p in contexts if p.text)
    if asked is None:
        return _unasked(turn, message if clean else "", shown=message, searched=searched)
    if is_in(asked, message) or is_same(asked, searched) or _led_there(turn, generator, asked):
        return asked
    if _writers(turn, searched) or not message.strip():
        return asked
    if turn.is_whole and turn.line[-1].parent is None:
        return asked
    if turn.is_whole or _is_replaced(turn, message, searched):
        return message if clean else searched
    raise Refused(reason="ambiguous")  # something rewrote the question, and it is not there


def _unnamed_question(turn: Turn) -> str | None:
    """Return what the turn was handed under a name of its own: the text that the LLMs were shown.

    Or that was searched for. A single word is a name, a language, or something else beside it.
    """
    shown = [text for call in (*turn.rewrites, *turn.calls) for text in call.prompt]
    shown += [one.input or "" for one in turn.retrievers]
    for step in reversed(turn.line):
        several = [text for text in step.asks if len(text.split()) > 1 or len(step.asks) == 1]
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
        for call in (*turn.rewrites, *turn.calls)
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
        and is_same(searched, message)
        for step in turn.steps
    )


def generator_of(turn: Turn, answer: str) -> Step | None:
    """Return the LLM call that wrote ``answer``: the last that said just that, else most of it.

    A grader's "no" is in many an answer: what is longer counts for more. Then one of whose words
    the answer is a part, as of a structured output; else the last of whose words the application
    may have made something else. None where the one that wrote it may be missing.
    """
    spoken = [call for call in turn.calls if call.output and call.output.strip()]
    wrote = [call for call in spoken if is_same(call.output, answer)]
    enough = min(ANSWER_LENGTH, len(answer) / 2)
    parts = [call for call in spoken if is_in(call.output or "", answer)]
    parts = sorted((call for call in parts if len(call.output or "") >= enough), key=_length)
    around = [call for call in spoken if len(answer) >= ANSWER_LENGTH <= _length(call)]
    around = [call for call in around if is_in(answer, call.output or "")]
    found = wrote or parts or around or _other_writers(turn)
    return found[-1] if found else None


def _judged(generator: Step, turn: Turn) -> bool:
    """Tell whether the reply is a verdict that the prompt, and not the user, demanded.

    What looks like a turn then only checks the answer of another one.
    """
    if not is_verdict(generator.output or ""):
        return False
    asked = [step.input or "" for step in turn.line if step.kind != "llm"]
    return any(_DEMANDS_VERDICT.search(text) for text in generator.prompt) and not any(
        map(_DEMANDS_VERDICT.search, asked)
    )


def _length(call: Step) -> int:
    return len(call.output or "")


def _other_writers(turn: Turn) -> list[Step]:
    """Return the calls that may have written what was made an answer later on.

    Not one that grades, nor one that only wrote a query or notes for another call. Where nothing
    can be missing, a short text will do.
    """
    least = 1 if turn.is_whole else ANSWER_LENGTH
    if turn.calls and not (turn.calls[-1].output or "").strip():
        return [turn.calls[-1]]
    found = [call for call in turn.calls if _length(call) >= least and not is_used(call, turn)]
    return [call for call in found if not may_grade(call, turn)] if turn.is_whole else found


def is_used(call: Step, turn: Turn) -> bool:
    """Tell whether something later was made of what ``call`` said, other than a verdict on it."""
    later = [one for one in (*turn.calls, *turn.retrievers) if one.start > call.start]
    made = [one for one in later if one.kind != "llm" or not 0 < _length(one) < ANSWER_LENGTH]
    return place(call.output or "", list(_asked(made))) is not None


def _asked(steps: Iterable[Step]) -> Iterable[str]:
    for step in steps:
        yield from step.prompt
        yield step.input or ""


def doubt_of(
    turn: Turn, generator: Step, answer: str, *, contexts: Sequence[Passage]
) -> SkipReason | None:
    """Return why ``turn`` should not be trusted, or None."""
    said = turn.explicit
    if said >= {"documents", "output"}:
        return None
    if _asks_with_an_answer(turn) or _has_stray_answer(turn, generator, answer):
        return "ambiguous"
    if "documents" not in said and _hands_on_others(turn):
        return "no_contexts"
    if turn.is_whole or not _is_lossy(turn, generator, contexts):
        return None
    return "partial"


def _is_lossy(turn: Turn, generator: Step, contexts: Sequence[Passage]) -> bool:
    """Tell whether a part of ``turn`` that should be there is not."""
    around = any(step.kind == "tool" for step in turn.line[:-1])
    if around or generator.id in turn.within_tools:  # who used the tool said something, too
        return True
    prompts = prompts_behind(turn, generator)
    if "documents" in turn.explicit:
        return False
    if turn.lacks_retrieval or _lacks_retrieval(turn, prompts) or _lacks_tool(turn, generator):
        return True
    return not _kept_on_purpose(turn, contexts, prompts)


def _lacks_tool(turn: Turn, generator: Step) -> bool:
    """Tell whether the LLM was shown results of more tools than there are, where tools are seen."""
    return bool(turn.tools) and len(generator.results) > len(turn.tools)


def _hands_on_others(turn: Turn) -> bool:
    """Tell whether a step handed on documents, by their ids, of which no text is known.

    Some may be what calls have said: those of a sub-question's answer.
    """
    known = {p.id for one in turn.retrievers for p in one.documents or ()}
    made = len(turn.calls) - 1
    return any(
        known.intersection(step.kept) and len(set(step.kept) - known) > made for step in turn.steps
    )


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


def _lacks_retrieval(turn: Turn, prompts: Sequence[str]) -> bool:
    """Tell whether documents reached the generator that nobody is seen to have retrieved."""
    known = {normalised(p.text) for one in turn.retrievers for p in one.documents or ()}
    shown = chain.from_iterable(step.shown for step in turn.steps)
    unknown = {p.text for p in shown if normalised(p.text) not in known}
    return any(place(text, prompts) for text in unknown)


def _has_stray_answer(turn: Turn, generator: Step, answer: str) -> bool:
    """Tell whether another call said something at length that nobody made use of.

    That does not matter where the turn is known to return just what the generator said.
    """
    if is_same(turn.anchor.output, answer) and is_same(generator.output, answer):
        return False
    return any(
        call is not generator
        and not call.calls_tools
        and len(call.output or "") >= ANSWER_LENGTH
        and call.id not in turn.selecting
        and not is_in(call.output or "", answer)
        and not is_used(call, turn)
        and place(generator.output or "", call.prompt) is None
        for call in turn.calls
    )


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
    if kept in _handed_together(turn.steps):
        return True
    names = {passage.id for passage in contexts}
    if any(step.kept and set(step.kept) == names for step in turn.steps):
        return True
    if any(_drops(step, left, contexts) for step in turn.steps):
        return True
    if any({normalised(p.text) for p in one.documents or ()} == kept for one in turn.retrievers):
        return any(one.kind == "reranker" for one in turn.retrievers)
    graders = [call for call in turn.calls if len(call.output or "") < ANSWER_LENGTH]
    return all(any(place(p.text, call.prompt) for call in graders) for p in left)


def _handed_together(steps: Sequence[Step]) -> list[set[str]]:
    """Return what each step handed on; of several of one name, as one for each document, all."""
    found: dict[tuple[str, Hashable | None], set[str]] = defaultdict(set)
    for step in steps:
        found[step.name, step.parent].update(normalised(p.text) for p in step.shown)
    return list(found.values())


def _drops(step: Step, left: Sequence[Passage], kept: Sequence[Passage]) -> bool:
    """Tell whether ``step`` was handed what was ``left`` out, and wrote down just what was kept."""
    handed = {normalised(passage.text) for passage in step.shown}
    written = (step.output or "",)
    return all(
        normalised(p.text) in handed and place(p.text, written) is None for p in left
    ) and all(place(p.text, written) is not None for p in kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a turn; ``turn`` is None where nothing could be recognised as one."""

    result: Sample | SkipReason
    turn: Turn | None = None


def outcomes(fragments: Sequence[Step]) -> list[Outcome]:
    """Return what becomes of each turn of a trace, or why a trace that might hold one has none."""
    turns = find_turns(fragments, loss="possible")
    if turns:
        return [Outcome(result=extract(turn), turn=turn) for turn in turns]
    reason = why_none(fragments)
    return [] if reason is None else [Outcome(result=reason)]


def outcomes_of(spans: Iterable[SpanView]) -> list[Outcome]:
    """Return what becomes of each turn in the ``spans`` of one trace, all of which have ended.

    One that never ended must be left out: what is below it then shows that something is missing.
    """
    return outcomes([read(span) for span in spans])


def why_none(fragments: Sequence[Step]) -> SkipReason | None:
    """Return why a trace without turns has none, or None where nobody would expect one."""
    kinds = {fragment.kind for fragment in fragments}
    may_be_turn = kinds & {"llm", *RETRIEVALS}
    if may_be_turn and any(f.error is not None and f.parent is None for f in fragments):
        return "error"
    if "llm" not in kinds:
        said = frozenset().union(*(fragment.explicit for fragment in fragments))
        if kinds & RETRIEVALS or "documents" in said:
            return "no_answer"
        return "no_retrieval" if said else None
    tree = StepTree(fragments)
    if not find_retrievals(tree):
        failed = any(f.kind in RETRIEVALS and f.error is not None for f in fragments)
        return "error" if failed else "no_retrieval"
    return "partial" if tree.orphans else "no_answer"
