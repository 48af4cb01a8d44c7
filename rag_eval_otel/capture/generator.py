"""Find the LLM call that wrote the answer of a turn, and reasons not to score the turn.

A *turn* is one question of a user and its answer. The LLM call that wrote the answer is the
*generator* of the turn. A turn is not scored if its parts contradict each other or can be read in
several ways. Spans may be lost. So if the turn was read from spans, this module also checks whether
a part of the turn is missing. LangChain runs are recorded completely, so this check is not made for
them.
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
from rag_eval_otel.capture.turn import ANSWER_LENGTH, Turn, is_short, may_grade
from rag_eval_otel.types import Passage, SkipReason

_DEMANDS_VERDICT = re.compile(
    r"\byes\b\W{1,3}(or|and|/)\W{0,3}no\b|\byes\W{1,3}no\b|\bbinary\b", re.IGNORECASE
)


def unnamed_answer(turn: Turn) -> str | None:
    """Return the answer that a chain of ``turn`` returned under an unusual dict key, or None.

    Such an answer is a text in the output of the chain that is also the output of an LLM call. The
    text of the question does not count, and neither does a verdict on another text. If several
    texts remain, return None.
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
        final = [t for t in texts if not _grades(said[t], [one for one in texts if one != t])]
        if len(final) == 1:
            return final[0]
    return None


def _grades(call: Step, texts: Sequence[str]) -> bool:
    return is_short(call) and any(place(text, call.prompt) is not None for text in texts)


def has_answer(turn: Turn) -> bool:
    """Return True if a chain or an agent returned the answer, or the application recorded it.

    Return False if the answer of ``turn`` is known only as the output of an LLM call.
    """
    told = "output" in turn.recorded or any((step.output or "").strip() for step in turn.path)
    return told or unnamed_answer(turn) is not None


def generator_of(turn: Turn, answer: str) -> Step | None:
    """Return the LLM call that wrote ``answer``, or None if the span of that call may be missing.

    The candidates are, in this order:

    - the last call whose output is the answer,
    - the call with the longest output that is a part of the answer,
    - the last call whose output contains the answer, such as a structured output,
    - the last call whose output the application may have transformed into the answer.
    """
    speaking = [call for call in turn.calls if call.output and call.output.strip()]
    wrote = [call for call in speaking if is_same(call.output, answer)]
    enough = min(ANSWER_LENGTH, len(answer) / 2)
    parts = [call for call in speaking if is_in(call.output or "", answer)]
    parts = sorted((call for call in parts if len(call.output or "") >= enough), key=_length)
    wider = [call for call in speaking if len(answer) >= ANSWER_LENGTH <= _length(call)]
    wider = [call for call in wider if is_in(answer, call.output or "")]
    found = wrote or parts or wider or _possible_generators(turn)
    return found[-1] if found else None


def with_prompts_of_coauthors(generator: Step, turn: Turn, answer: str) -> Step:
    """Return ``generator`` with the prompts of other LLM calls that wrote a part of ``answer``.

    ``generator`` is the LLM call that `generator_of` found. If its output contains the whole
    answer, it is returned unchanged.
    """
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


def is_demanded_verdict(generator: Step, turn: Turn) -> bool:
    """Return True if the LLM call ``generator`` answered yes or no because its prompt demanded it.

    If the user did not ask for a yes or no, such an LLM call only grades an answer of another LLM
    call.
    """
    if not is_verdict(generator.output or ""):
        return False
    asked = [step.input or "" for step in turn.path if step.kind != "llm"]
    return any(_DEMANDS_VERDICT.search(text) for text in generator.prompt) and not any(
        map(_DEMANDS_VERDICT.search, asked)
    )


def _length(call: Step) -> int:
    return len(call.output or "")


def _possible_generators(turn: Turn) -> list[Step]:
    """Return the LLM calls whose output the application may have transformed into the answer.

    LLM calls that grade the output of another call do not count. LLM calls whose output was a
    query, or an intermediate result for another call, do not count either. A short output counts
    only if no span can be missing from the trace.
    """
    least = 1 if turn.is_complete else ANSWER_LENGTH
    if turn.calls and not (turn.calls[-1].output or "").strip():
        return [] if _led_to_retrieval(turn.calls[-1], turn) else [turn.calls[-1]]
    found = [call for call in turn.calls if _length(call) >= least and not is_used(call, turn)]
    found = [call for call in found if not is_verdict(call.output or "")]
    doubtful = may_grade if turn.is_complete else _is_part_of_notes
    return [call for call in found if not doubtful(call, turn)]


def _is_part_of_notes(call: Step, turn: Turn) -> bool:
    """Return True if a chain returned a text with the outputs of ``call`` and another LLM call."""
    told = [text for step in turn.steps[1:] for text in (step.output, *step.output_texts) if text]
    texts = [text for text in told if is_in(call.output or "", text)]
    others = [one.output or "" for one in turn.calls if one.id != call.id]
    return any(is_in(other, text) for text in texts for other in others)


def _led_to_retrieval(call: Step, turn: Turn) -> bool:
    """Return True if the LLM ``call`` called tools and a retrieval started later.

    Then another LLM call wrote the answer.
    """
    return call.calls_tools and any(one.start > call.start for one in turn.retrievers)


def is_used(call: Step, turn: Turn) -> bool:
    """Return True if the output of ``call`` is in a later prompt or in a later retrieval query.

    The prompt of an LLM call that only graded the output does not count.
    """
    later = [one for one in (*turn.calls, *turn.retrievers) if one.start > call.start]
    made = [one for one in later if one.kind != "llm" or not one.output or not is_short(one)]
    return place(call.output or "", list(_asked(made))) is not None


def _asked(steps: Iterable[Step]) -> Iterable[str]:
    for step in steps:
        yield from step.prompt
        yield step.input or ""


def doubt_of(
    turn: Turn, generator: Step, answer: str, *, contexts: Sequence[Passage]
) -> SkipReason | None:
    """Return the reason why ``turn`` cannot be scored, or None if there is no such reason.

    ``turn`` is a question with the steps of the trace that led to its answer. ``generator`` is the
    LLM call that wrote ``answer``. ``contexts`` are the passages that this LLM call was shown.
    """
    said = turn.recorded
    if said >= {"documents", "output"}:
        return None
    if _queries_with_an_answer(turn) or _has_unused_output(turn, generator, answer):
        return "ambiguous"
    if "documents" not in said and _kept_unknown_documents(turn):
        return "no_contexts"
    if turn.is_complete or not _lacks_part(turn, generator, contexts):
        return None
    return "partial"


def _lacks_part(turn: Turn, generator: Step, contexts: Sequence[Passage]) -> bool:
    """Return True if a span between the question and the answer of ``turn`` seems to be missing."""
    around = any(step.kind == "tool" for step in turn.path[:-1])
    if around or generator.id in turn.tool_calls:  # the LLM that called the tool answered, too
        return True
    prompts = prompts_behind(turn, generator)
    if "documents" in turn.recorded:
        return False
    if turn.lacks_retrieval or _lacks_retrieval(turn, prompts) or _lacks_tool(turn, generator):
        return True
    return not _left_out_on_purpose(turn, contexts, prompts)


def _lacks_tool(turn: Turn, generator: Step) -> bool:
    """Return True if the LLM was shown more tool results than the trace has spans of tools."""
    return bool(turn.tools) and len(generator.tool_results) > len(turn.tools)


def _kept_unknown_documents(turn: Turn) -> bool:
    """Return True if a step returned ids of documents whose texts are not known.

    In some chains an unknown id stands for the answer to a sub-question. There is at most one such
    id for each LLM call besides the call that wrote the answer. So the step must have returned more
    unknown ids than there are such calls.
    """
    known = {p.id for one in turn.retrievers for p in one.documents or ()}
    made = len(turn.calls) - 1
    return any(
        known.intersection(step.kept_ids) and len(set(step.kept_ids) - known) > made
        for step in turn.steps
    )


def _queries_with_an_answer(turn: Turn) -> bool:
    """Return True if the output of an LLM call is a part of a later retrieval query.

    The trace may then contain two questions in a row, or one question that is answered in two
    steps. If the output is the whole query, the LLM call only wrote the query, and does not count.
    """
    return any(
        one.start > call.start
        and not is_short(call)
        and is_in(call.output or "", one.input or "")
        and not is_same(call.output, one.input)
        for call in turn.calls
        for one in turn.retrievers
    )


def _lacks_retrieval(turn: Turn, prompts: Sequence[str]) -> bool:
    """Return True if the ``prompts`` show documents that no recorded retrieval returned.

    Such documents are found in the inputs and outputs of chains.
    """
    known = {normalised(p.text) for one in turn.retrievers for p in one.documents or ()}
    shown = chain.from_iterable(step.documents_seen for step in turn.steps)
    unknown = {p.text for p in shown if normalised(p.text) not in known}
    return any(place(text, prompts) for text in unknown)


def _has_unused_output(turn: Turn, generator: Step, answer: str) -> bool:
    """Return True if another LLM call wrote a long text that no other step used.

    Another LLM call is a call other than ``generator``, which wrote the answer. If the application
    returned exactly the output of ``generator``, return False.
    """
    if has_answer(turn) and is_same(generator.output, answer):
        return False
    return any(
        call.id != generator.id
        and not call.calls_tools
        and not is_short(call)
        and call.id not in turn.ranking_calls
        and not is_in(call.output or "", answer)
        and not is_used(call, turn)
        and place(generator.output or "", call.prompt) is None
        for call in turn.calls
    )


def _left_out_on_purpose(turn: Turn, contexts: Sequence[Passage], prompts: Sequence[str]) -> bool:
    """Return True if the application itself left out the retrieved documents that were not shown.

    ``contexts`` are the documents that the LLM was shown. The application left out the other
    documents if a step returned exactly ``contexts``, or if an LLM call was shown the other
    documents to grade them. Otherwise a span may be missing from the trace.
    """
    kept = {normalised(passage.text) for passage in contexts}
    found = {normalised(p.text): p for one in turn.retrievers for p in one.documents or ()}
    seen = "\n".join(kept)  # contains also passages within a longer text that was shown
    left = [p for t, p in found.items() if not t.startswith(tuple(kept)) and t not in seen]
    if not left or not prompts:
        return True
    if kept in _documents_by_step(turn.steps):
        return True
    names = {passage.id for passage in contexts}
    if any(step.kept_ids and set(step.kept_ids) == names for step in turn.steps):
        return True
    if any(_rejected(step, left, contexts) for step in turn.steps):
        return True
    graders = [call for call in turn.calls if is_short(call)]
    if any({normalised(p.text) for p in one.documents or ()} == kept for one in turn.retrievers):
        if any(one.kind == "reranker" for one in turn.retrievers):
            return True
        graders = [call for call in graders if is_verdict(call.output or "")]
    return all(any(place(p.text, call.prompt) for call in graders) for p in left)


def _documents_by_step(steps: Sequence[Step]) -> list[set[str]]:
    """Return for each chain the set of document texts in the input and output of the chain.

    Chains with at most one document each, and with the same name and the same parent, form one set
    together. Such chains are the iterations of a loop.
    """
    several, single = [], defaultdict[tuple[str, Hashable | None], set[str]](set)
    for step in steps:
        shown = {normalised(passage.text) for passage in step.documents_seen}
        if len(shown) > 1:
            several.append(shown)
        else:
            single[step.name, step.parent] |= shown
    return [*several, *single.values()]


def _rejected(step: Step, left: Sequence[Passage], kept: Sequence[Passage]) -> bool:
    """Return True if ``step`` was given the documents ``left`` but returned only ``kept``."""
    handed = {normalised(passage.text) for passage in step.documents_seen}
    written = (step.output or "",)
    return all(
        normalised(p.text) in handed and place(p.text, written) is None for p in left
    ) and all(place(p.text, written) is not None for p in kept)
