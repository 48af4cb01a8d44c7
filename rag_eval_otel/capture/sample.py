"""Read the question, the contexts and the answer of a turn from its steps, as a sample to score.

A *turn* is one question of a user and its answer. A *step* is one call in a trace: a retrieval, or
a call of a model, a tool or a chain. A *sample* is what the metrics score: question, contexts and
answer. If parts of the turn contradict each other, or if a part was redacted, the result is not a
sample but the reason why the turn is not scored. This module reads texts, so it runs on the
background thread.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

from rag_eval_otel.capture.contexts import contexts_of, prompts_behind
from rag_eval_otel.capture.retrieval import find_retrievals, is_verdict
from rag_eval_otel.capture.step import RETRIEVALS, Part, Step
from rag_eval_otel.capture.tree import StepTree
from rag_eval_otel.capture.turns import ANSWER_LENGTH, Turn, find_turns, is_short, may_grade
from rag_eval_otel.capture.values import (
    USUAL,
    answer_in,
    is_in,
    is_same,
    json_in,
    normalised,
    place,
)
from rag_eval_otel.types import Passage, Sample, SkipReason

_MIN_LLM_NS = 5_000_000  # no LLM can answer within this time
_SAMPLE: frozenset[Part] = frozenset({"documents", "input", "output"})
_LLM_NAME = re.compile(r"llm|chat|model", re.IGNORECASE)  # names of steps that may call an LLM
_MAX_STEPS = 300  # model calls and retrievals of a turn; the time to compare them is quadratic
_MAX_DOCUMENTS = 1000  # of a turn; each is searched for in the prompts
_PUNCTUATION = 3  # characters by which a query may differ from the question it repeats


class Refused(Exception):  # noqa: N818  # not an error: the outcome of reading a turn
    """Raised if a question and its answer cannot be scored. ``reason`` says why."""

    def __init__(self, *, reason: SkipReason) -> None:
        super().__init__(reason)
        self.reason: SkipReason = reason


def extract(turn: Turn) -> Sample | SkipReason:
    """Return the question, contexts and answer of ``turn``, or why it cannot be scored."""
    try:
        return _sample(turn)
    except Refused as refused:
        return refused.reason


def _sample(turn: Turn) -> Sample:
    if any(step.error is not None for step in turn.path):
        raise Refused(reason="error")
    _text_on(turn.path, "input")  # raises if the question is redacted
    said = turn.recorded
    if turn.doubt is not None and not said >= _SAMPLE:
        raise Refused(reason=turn.doubt)
    steps = (*turn.path, *turn.steps, *turn.calls, *turn.other_calls, *turn.retrievers)
    if not said >= _SAMPLE and any(step.is_cut for step in steps):
        raise Refused(reason="truncated")  # texts are compared, and half of one proves nothing
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
    """Return the LLM call that wrote ``answer``, or None if no LLM call is needed.

    No LLM call is needed if ``turn`` has none, or if the application itself recorded the contexts
    and the answer. Raise `Refused` if the LLM call seems to be missing, or if it may only grade
    another answer.
    """
    generator = generator_of(turn, answer)
    if generator is None:
        if turn.calls and not turn.recorded >= {"documents", "output"}:
            raise Refused(reason="ambiguous" if turn.is_complete else "partial")
        return None
    if (not has_answer(turn) and may_grade(generator, turn)) or is_demanded_verdict(
        generator, turn
    ):
        raise Refused(reason="ambiguous")
    return with_prompts_of_coauthors(generator, turn, answer)


def _answer(turn: Turn) -> str:
    told = [call for call in turn.calls if "output" in call.recorded]
    if told and not any("output" in step.recorded for step in turn.path):
        return _text_on(told, "output") or ""
    answer = _text_on(turn.path, "output")
    if "output" not in turn.recorded and _was_abandoned(turn, answer):
        raise Refused(reason="abandoned")
    if answer is not None and "output" not in turn.recorded and _is_status(turn, answer):
        answer = unnamed_answer(turn) or answer
    answer = answer or unnamed_answer(turn) or _text_on(turn.calls, "output")
    if answer is None or (is_verdict(answer) and not _may_be_verdict(turn, answer)):
        raise Refused(reason="no_answer")
    returned = [step.output for step in turn.path if step.kind != "llm"]
    return answer if answer in returned or "output" in turn.recorded else _unwrapped(answer)


def _is_status(turn: Turn, answer: str) -> bool:
    """Return True if ``answer`` is one word that no model call has said, such as "success"."""
    said = [call.output for call in turn.calls if call.output]
    return bool(said) and len(answer.split()) == 1 and not any(is_in(answer, one) for one in said)


def _unwrapped(reply: str) -> str:
    """Return the answer in the ``reply`` of a model, of which the application reads only a field.

    The field has a usual name of an answer, or is the only one and has such a word in its name. If
    ``reply`` is another JSON object or list, it does not say which part of it is the answer, so
    raise `Refused`. A reply that is no JSON is the answer itself.
    """
    text = reply.strip().removeprefix("```json").removeprefix("```").removesuffix("```")
    data = json_in(text, opening="{[")
    if data is None:
        return reply
    answer = answer_in(data) if isinstance(data, Mapping) else None
    if answer is None and isinstance(data, Mapping) and len(data) == 1:
        ((name, only),) = data.items()
        is_named = not set(USUAL.answer).isdisjoint(name.lower().split("_"))
        answer = only if is_named and isinstance(only, str) else None
    if answer is None or not answer.strip():
        raise Refused(reason="ambiguous")
    return answer


def _may_be_verdict(turn: Turn, answer: str) -> bool:
    """Return True if ``answer``, a yes or no, may be the true answer, not the output of a grader.

    If spans may be missing from the trace, a chain or an agent must have returned ``answer``. The
    output of an LLM call alone is not enough.
    """
    return answer.lstrip()[:1] != "{" and (turn.is_complete or has_answer(turn))


def _text_on(steps: Iterable[Step], part: Part) -> str | None:
    """Return the question or the answer that is on the last of ``steps`` with such a text, or None.

    ``part`` is "input" for the question and "output" for the answer. A text that the application
    itself recorded takes precedence. An output that repeats the input of its step does not count.
    If the text was redacted or cut, raise `Refused`, even if another step has a copy of the text.
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
    """Return True if the application stopped reading a streamed answer before its end.

    Then the span around the LLM call ended before the LLM call, and the application received
    nothing or only the beginning of the LLM's output. A span around the LLM call that never ended
    counts, too.
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
    """Return the question of ``turn``, or None if the question is not recorded.

    The question may be in the input of the application, in the query of a retrieval, or in the user
    message of the LLM call ``generator``. These texts may differ, because the application or an LLM
    may rewrite the question. If it cannot be decided which text is the question, raise `Refused`.
    """
    line = [step for step in turn.path if step.kind != "llm"]
    explicit = next((step.input for step in line if "input" in step.recorded), None)
    if explicit is not None:
        return explicit
    asked = _text_on([step for step in line if not _is_prompt(step.input, contexts)], "input")
    asked = asked or _unnamed_question(turn)
    searched = _first(retriever.input for retriever in turn.retrievers)
    message = _message(turn, generator)
    clean = message.strip() and not any(p.text in message for p in contexts if p.text)
    if asked is None:
        return _message_or_query(turn, message if clean else "", shown=message, searched=searched)
    if is_in(asked, message) or is_same(asked, searched) or _asked_behind(turn, generator, asked):
        return asked
    if _query_writers(turn, searched) or not message.strip():
        return asked
    if turn.is_complete and turn.path[-1].parent is None:
        return _unnamed_question(turn) or asked
    if turn.is_complete or _is_replaced(turn, message, searched):
        return message if clean else searched
    raise Refused(reason="ambiguous")  # the span of the step that rewrote the question is missing


def _message(turn: Turn, generator: Step | None) -> str:
    """Return the last user message in the prompt of the LLM call ``generator``.

    If two instrumentations recorded the same call, the shorter of the two messages is returned.
    """
    if generator is None:
        return ""
    same = [call.input for call in turn.calls if is_same(call.output, generator.output)]
    return min((text for text in (generator.input, *same) if text), key=len, default="")


def _unnamed_question(turn: Turn) -> str | None:
    """Return the question that ``turn`` received under an unusual dict key, or None.

    The question is a text in the input of a chain that is also in the prompt of an LLM call or in a
    retrieval query. If the input has several texts, a single word does not count, because it may be
    a name or a language.
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
    """Return True if ``text`` contains one of the ``contexts``, and so is a filled prompt.

    Only long contexts are compared.
    """
    long = (p.text for p in contexts if len(p.text) >= ANSWER_LENGTH)
    return text is not None and any(one in text for one in long)


def _message_or_query(turn: Turn, clean: str, *, shown: str, searched: str | None) -> str | None:
    """Return the question if the input of the application is not recorded, or None.

    ``shown`` is the last user message of the LLM. ``clean`` is the same message, or empty if the
    message contains contexts. ``searched`` is the query of the first retrieval. If ``shown``
    contains the query and more text, the question is the query. Otherwise the question is
    ``clean``. If an LLM call wrote the query, ``clean`` counts only if that LLM call was shown it.
    """
    writers = _query_writers(turn, searched)
    if writers:
        prompts = [text for call in writers for text in call.prompt]
        return clean if any(is_in(clean, text) for text in prompts) else None
    if searched is not None and is_in(searched, shown):
        return clean if clean and len(clean) <= len(searched) + _PUNCTUATION else searched
    found = _first((clean, searched if not shown.strip() else None))
    if found is None and any("input" in one.hidden for one in turn.retrievers):
        raise Refused(reason="redacted")
    return found


def _query_writers(turn: Turn, searched: str | None) -> list[Step]:
    """Return the LLM calls that may have written the query ``searched``.

    Such a call wrote a text that contains the query, or it started before the first retrieval and
    wrote no text, because it called a tool.
    """
    first = min(one.start for one in turn.retrievers)
    return [
        call
        for call in (*turn.other_calls, *turn.calls)
        if is_in(searched or "", call.output or "")
        or (call.start < first and not (call.output or "").strip())
    ]


def _asked_behind(turn: Turn, generator: Step | None, asked: str) -> bool:
    """Return True if the LLM call that wrote the answer was shown the text ``asked``.

    The text also counts if an earlier LLM call was shown the text, and the output of that call is
    in the prompt of the LLM call ``generator``, which wrote the answer.
    """
    return generator is not None and any(
        is_in(asked, message) for message in prompts_behind(turn, generator)
    )


def _is_replaced(turn: Turn, message: str, searched: str | None) -> bool:
    """Return True if the application itself replaced the question by the query ``searched``.

    If so, a step without an LLM call returned the query. The duration of this step is too short for
    an LLM call.
    """
    parents = {step.parent for step in turn.steps}
    return any(
        step.input is not None
        and step.end is not None
        and step.end - step.start < _MIN_LLM_NS
        and step.id not in parents
        and not _LLM_NAME.search(step.name)
        and is_same(step.output, searched)
        and is_in(searched or "", message)
        for step in turn.steps
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The sample of a turn (a question and its answer), or the reason why it is not scored.

    ``turn`` is None if no turn was found in the trace. If ``is_span_missed`` is true, the span of
    the turn was exported before the turn was found.
    """

    result: Sample | SkipReason
    turn: Turn | None = None
    is_span_missed: bool = False


def why_none(steps: Sequence[Step]) -> SkipReason | None:
    """Return why a trace with these ``steps`` has nothing to score, or None if it has no RAG.

    The result is the name of a reason, such as ``"no_retrieval"``.
    """
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


def turns_in(steps: Sequence[Step], *, contexts_from_prompt: bool) -> list[Turn]:
    """Return the RAG turns in ``steps``, the steps of one trace, of which some may be missing.

    A turn has a doubt, so that it is not scored, if its span has not ended or if it has more than
    300 model calls and retrievals, or more than 1,000 documents.
    """
    found = find_turns(steps, loss="possible", contexts_from_prompt=contexts_from_prompt)
    return [_with_doubt(turn) for turn in found]


def _with_doubt(turn: Turn) -> Turn:
    if turn.anchor.end is None:  # the span has not ended, so a step below it may be missing
        return replace(turn, doubt="partial")
    documents = sum(len(one.documents or ()) for one in turn.retrievers)
    if len(turn.calls) + len(turn.retrievers) > _MAX_STEPS or documents > _MAX_DOCUMENTS:
        return replace(turn, doubt="ambiguous")
    return turn


_MAX_EQUAL = 64  # remembered turns with the same question and answer

_Record: TypeAlias = "tuple[str, int, int]"
"""The name of the instrumentation that recorded a turn, and start and end of the turn in ns."""


class RecentTurns:
    """The last ``max_turns`` RAG turns, to find turns that two instrumentations have recorded.

    A turn is one question of a user and its answer. The callback handler and an instrumentation may
    both record the same turn, and so may two instrumentations. Then the record that comes first
    counts. If one instrumentation records two equal requests at the same time, these are two turns.
    """

    def __init__(self, max_turns: int = 1024) -> None:
        self._max = max_turns
        self._seen: OrderedDict[int, tuple[_Record, ...]] = OrderedDict()

    def is_repeated(self, sample: Sample, turn: Turn) -> bool:
        """Return True if another instrumentation has recorded ``turn`` before."""
        key = hash((sample.question, sample.answer))
        steps = (step for step in reversed(turn.path) if step.kind != "other")
        outermost = next(steps, turn.anchor)  # steps of kind "other" around it may be a session
        record = (outermost.source, outermost.start, outermost.end or time.time_ns())
        others = self._seen.pop(key, ())
        repeated = next((n for n, other in enumerate(others) if _is_duplicate(record, other)), None)
        if repeated is not None:
            self._seen[key] = others[:repeated] + others[repeated + 1 :]
            return True
        self._seen[key] = (*others, record)[-_MAX_EQUAL:]
        while len(self._seen) > self._max:
            self._seen.popitem(last=False)
        return False


def _is_duplicate(record: _Record, other: _Record) -> bool:
    """Return True if the records are from two instrumentations and overlap in time."""
    return record[0] != other[0] and record[1] <= other[2] and other[1] <= record[2]


# --- the LLM call that wrote the answer -----------------------------------------------------------

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
    found = [call for call in found if not may_grade(call, turn)]
    return found if turn.is_complete else [c for c in found if not _is_part_of_notes(c, turn)]


def _is_part_of_notes(call: Step, turn: Turn) -> bool:
    """Return True if a chain returned a text with the outputs of ``call`` and another LLM call.

    The LLM call that read these notes, and wrote the answer, is then missing from the trace.
    """
    outputs = [
        text for step in turn.steps[1:] for text in (step.output, *step.output_texts) if text
    ]
    texts = [text for text in outputs if is_in(call.output or "", text)]
    others = [other.output or "" for other in turn.calls if other.id != call.id]
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
