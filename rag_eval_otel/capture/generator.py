"""Which LLM call wrote the answer of a turn, and whether what is known of the turn fits together.

What contradicts itself, and what may be something else than it seems, is refused in any case.
Whether a part is missing is asked only where parts can be missing: spans are dropped and lost,
while all runs below a LangChain root are known.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from itertools import chain

from rag_eval_otel.capture.contexts import prompts_behind
from rag_eval_otel.capture.retrieval import is_verdict
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.text import is_in, is_same, normalised, place
from rag_eval_otel.capture.turn import ANSWER_LENGTH, Turn, may_grade, says_little
from rag_eval_otel.types import Passage, SkipReason

_DEMANDS_VERDICT = re.compile(
    r"\byes\b\W{1,3}(or|and|/)\W{0,3}no\b|\byes\W{1,3}no\b|\bbinary\b", re.IGNORECASE
)


def unnamed_answer(turn: Turn) -> str | None:
    """Return what the turn returned under a name of its own: the text that a call has said.

    Of several that no verdict on another one is.
    """
    asked = [step.input for step in (*turn.path, *turn.retrievers)]
    for step in reversed(turn.path):
        said = {
            call.output or "": call
            for call in turn.calls
            for t in step.output_texts
            if is_same(t, call.output)
        }
        texts = [text for text in said if not any(is_same(text, one) for one in asked)]
        final = [t for t in texts if not _judges(said[t], [one for one in texts if one != t])]
        if len(final) == 1:
            return final[0]
    return None


def _judges(call: Step, texts: Sequence[str]) -> bool:
    """Tell whether ``call`` was shown one of ``texts``, and had little to say."""
    return says_little(call) and any(place(text, call.prompt) is not None for text in texts)


def is_told(turn: Turn) -> bool:
    """Tell whether the answer is what the turn returned, not just what its last call said."""
    told = "output" in turn.recorded or any((step.output or "").strip() for step in turn.path)
    return told or unnamed_answer(turn) is not None


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


def with_others(generator: Step, turn: Turn, answer: str) -> Step:
    """Return ``generator`` with what others were shown whose words are in the answer, too."""
    if is_in(answer, generator.output or ""):
        return generator
    others = [
        call
        for call in turn.calls
        if not is_in(call.output or "", generator.output or "")
        and len((call.output or "").split()) > 1
        and is_in(call.output or "", answer)
    ]
    shown = (text for call in (*others, generator) for text in call.prompt)
    return replace(generator, prompt=tuple(dict.fromkeys(shown)))


def is_judged(generator: Step, turn: Turn) -> bool:
    """Tell whether the reply is a verdict that the prompt, and not the user, demanded.

    What looks like a turn then only checks the answer of another one.
    """
    if not is_verdict(generator.output or ""):
        return False
    asked = [step.input or "" for step in turn.path if step.kind != "llm"]
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
    least = 1 if turn.is_complete else ANSWER_LENGTH
    if turn.calls and not (turn.calls[-1].output or "").strip():
        return [] if _was_obeyed(turn.calls[-1], turn) else [turn.calls[-1]]
    found = [call for call in turn.calls if _length(call) >= least and not is_used(call, turn)]
    found = [call for call in found if not is_verdict(call.output or "")]
    doubtful = may_grade if turn.is_complete else _is_joined
    return [call for call in found if not doubtful(call, turn)]


def _is_joined(call: Step, turn: Turn) -> bool:
    """Tell whether a step put what ``call`` said beside what another call said, as notes."""
    told = [text for step in turn.steps[1:] for text in (step.output, *step.output_texts) if text]
    texts = [text for text in told if is_in(call.output or "", text)]
    others = [one.output or "" for one in turn.calls if one.id != call.id]
    return any(is_in(other, text) for text in texts for other in others)


def _was_obeyed(call: Step, turn: Turn) -> bool:
    """Tell whether there was a retrieval after ``call`` asked for tools: another call answered."""
    return call.calls_tools and any(one.start > call.start for one in turn.retrievers)


def is_used(call: Step, turn: Turn) -> bool:
    """Tell whether something later was made of what ``call`` said, other than a verdict on it."""
    later = [one for one in (*turn.calls, *turn.retrievers) if one.start > call.start]
    made = [one for one in later if one.kind != "llm" or not one.output or not says_little(one)]
    return place(call.output or "", list(_asked(made))) is not None


def _asked(steps: Iterable[Step]) -> Iterable[str]:
    for step in steps:
        yield from step.prompt
        yield step.input or ""


def doubt_of(
    turn: Turn, generator: Step, answer: str, *, contexts: Sequence[Passage]
) -> SkipReason | None:
    """Return why ``turn`` should not be trusted, or None."""
    said = turn.recorded
    if said >= {"documents", "output"}:
        return None
    if _asks_with_an_answer(turn) or _has_stray_answer(turn, generator, answer):
        return "ambiguous"
    if "documents" not in said and _hands_on_others(turn):
        return "no_contexts"
    if turn.is_complete or not _is_lossy(turn, generator, contexts):
        return None
    return "partial"


def _is_lossy(turn: Turn, generator: Step, contexts: Sequence[Passage]) -> bool:
    """Tell whether a part of ``turn`` that should be there is not."""
    around = any(step.kind == "tool" for step in turn.path[:-1])
    if around or generator.id in turn.tool_calls:  # who used the tool said something, too
        return True
    prompts = prompts_behind(turn, generator)
    if "documents" in turn.recorded:
        return False
    if turn.lacks_retrieval or _lacks_retrieval(turn, prompts) or _lacks_tool(turn, generator):
        return True
    return not _kept_on_purpose(turn, contexts, prompts)


def _lacks_tool(turn: Turn, generator: Step) -> bool:
    """Tell whether the LLM was shown results of more tools than there are, where tools are seen."""
    return bool(turn.tools) and len(generator.tool_results) > len(turn.tools)


def _hands_on_others(turn: Turn) -> bool:
    """Tell whether a step handed on documents, by their ids, of which no text is known.

    Some may be what calls have said: those of a sub-question's answer.
    """
    known = {p.id for one in turn.retrievers for p in one.documents or ()}
    made = len(turn.calls) - 1
    return any(
        known.intersection(step.kept_ids) and len(set(step.kept_ids) - known) > made
        for step in turn.steps
    )


def _asks_with_an_answer(turn: Turn) -> bool:
    """Tell whether one answer is part of a later query: two turns in a row, or one of two steps.

    A query that was written by a call is all the call said.
    """
    return any(
        one.start > call.start
        and not says_little(call)
        and is_in(call.output or "", one.input or "")
        and not is_same(call.output, one.input)
        for call in turn.calls
        for one in turn.retrievers
    )


def _lacks_retrieval(turn: Turn, prompts: Sequence[str]) -> bool:
    """Tell whether documents reached the generator that nobody is seen to have retrieved."""
    known = {normalised(p.text) for one in turn.retrievers for p in one.documents or ()}
    shown = chain.from_iterable(step.documents_seen for step in turn.steps)
    unknown = {p.text for p in shown if normalised(p.text) not in known}
    return any(place(text, prompts) for text in unknown)


def _has_stray_answer(turn: Turn, generator: Step, answer: str) -> bool:
    """Tell whether another call said something at length that nobody made use of.

    That does not matter where the turn is known to return just what the generator said.
    """
    if is_told(turn) and is_same(generator.output, answer):
        return False
    return any(
        call.id != generator.id
        and not call.calls_tools
        and not says_little(call)
        and call.id not in turn.ranking_calls
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
    if any(step.kept_ids and set(step.kept_ids) == names for step in turn.steps):
        return True
    if any(_drops(step, left, contexts) for step in turn.steps):
        return True
    graders = [call for call in turn.calls if says_little(call)]
    if any({normalised(p.text) for p in one.documents or ()} == kept for one in turn.retrievers):
        if any(one.kind == "reranker" for one in turn.retrievers):
            return True
        graders = [call for call in graders if is_verdict(call.output or "")]
    return all(any(place(p.text, call.prompt) for call in graders) for p in left)


def _handed_together(steps: Sequence[Step]) -> list[set[str]]:
    """Return what each step handed on; of several of one name with a document each, all."""
    several, single = [], defaultdict[tuple[str, Hashable | None], set[str]](set)
    for step in steps:
        shown = {normalised(passage.text) for passage in step.documents_seen}
        if len(shown) > 1:
            several.append(shown)
        else:
            single[step.name, step.parent] |= shown
    return [*several, *single.values()]


def _drops(step: Step, left: Sequence[Passage], kept: Sequence[Passage]) -> bool:
    """Tell whether ``step`` was handed what was ``left`` out, and wrote down just what was kept."""
    handed = {normalised(passage.text) for passage in step.documents_seen}
    written = (step.output or "",)
    return all(
        normalised(p.text) in handed and place(p.text, written) is None for p in left
    ) and all(place(p.text, written) is not None for p in kept)
