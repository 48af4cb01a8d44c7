"""Read the sample of a turn by comparing texts, or find the reason why it is not scored."""

from __future__ import annotations

import re
import time
from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from operator import attrgetter, itemgetter
from typing import TypeAlias

from rag_eval_otel import semconv
from rag_eval_otel.capture.conventions import read
from rag_eval_otel.capture.documents import (
    Block,
    block_in,
    consists_of,
    distinct,
    is_prose,
    is_title,
    parts_around,
)
from rag_eval_otel.capture.span import Span
from rag_eval_otel.capture.step import RETRIEVALS, Part, Step
from rag_eval_otel.capture.turns import (
    ANSWER_LENGTH,
    StepTree,
    Turn,
    find_retrievals,
    find_turns,
    is_long,
    is_short,
    is_verdict,
    may_grade,
)
from rag_eval_otel.capture.values import (
    ANSWERS,
    Messages,
    Place,
    answer_in,
    bare,
    is_in,
    is_same,
    json_in,
    normalised,
    place,
)
from rag_eval_otel.types import Message, Passage, Sample, SkipReason

_SAMPLE: frozenset[Part] = frozenset({"documents", "input", "output"})
_MAX_STEPS = 300  # model calls and retrievals of a turn; the time to compare them is quadratic
_MAX_DOCUMENTS = 1000  # of a turn; each is searched for in the prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The sample of a turn, or why it is not scored."""

    result: Sample | SkipReason
    turn: Turn | None = None  # None if a trace has no turn
    is_span_missed: bool = False  # whether the span was exported before its turn was found


@dataclass
class Refused(Exception):  # noqa: N818  # not an error: the outcome of reading a turn
    """Raised with the reason if a turn cannot be scored."""

    reason: SkipReason


def steps_in(spans: Iterable[Span], *, most: int) -> list[Step] | None:
    """Read spans of one trace, texts to ``most`` characters; None if different ones share an id."""
    kept = {(span.span_id, span.name, span.start, span.end): span for span in spans}
    ours = [span for span in kept.values() if span.scope == semconv.SCOPE]
    # Our spans for LangChain runs are read if one of them stands for a turn.
    is_ours = any(semconv.EVALUATION_STATUS in span.attributes for span in ours)
    chosen = [span for span in kept.values() if is_ours or span.scope != semconv.SCOPE]
    if len({span.span_id for span in chosen}) < len(chosen):
        return None
    return [read(span, most=most) for span in sorted(chosen, key=lambda span: span.end or 0)]


def turns_in(steps: Sequence[Step], *, contexts_from_prompt: bool) -> list[Turn]:
    """Return the RAG turns in ``steps``, the steps of one trace, of which some may be missing."""
    turns = find_turns(steps, loss="possible", contexts_from_prompt=contexts_from_prompt)
    for number, turn in enumerate(turns):
        documents = sum(len(one.documents or ()) for one in turn.retrievers)
        if turn.anchor.end is None:  # the span has not ended, so a step below it may be missing
            turns[number] = replace(turn, doubt="partial")
        elif len(turn.calls) + len(turn.retrievers) > _MAX_STEPS or documents > _MAX_DOCUMENTS:
            turns[number] = replace(turn, doubt="ambiguous")
    return turns


def why_none(steps: Sequence[Step]) -> SkipReason | None:
    """Return why a trace with these ``steps`` has nothing to score, or None if it has no RAG."""
    tree = StepTree(steps)
    steps = tree.steps
    kinds = {step.kind for step in steps}
    if not any(step.recorded or step.error for step in steps) and _only_prepares(tree):
        return None
    may_be_turn = kinds & {"llm", *RETRIEVALS}
    if may_be_turn and any(f.error is not None and f.parent is None for f in steps):
        return "error"
    if "llm" not in kinds:
        said = frozenset().union(*(step.recorded for step in steps))
        if kinds & RETRIEVALS or "documents" in said:
            return "no_answer"
        return "no_retrieval" if said else None
    if not find_retrievals(tree):
        failed = any(f.kind in RETRIEVALS and f.error is not None for f in steps)
        return "error" if failed else "no_retrieval"
    return "partial" if tree.orphans else "no_answer"


def _only_prepares(tree: StepTree) -> bool:
    """Return True if the trace only searches or only grades: no answer to a user is expected."""
    parts = RETRIEVALS | {"embedding"}
    is_search = all(f.kind in parts or tree.is_inside(f, RETRIEVALS) for f in tree.steps)
    if is_search or _returns_documents(tree):
        return True
    calls = tree.generators
    is_other = not calls or any(step.kind in {"tool", *RETRIEVALS} for step in tree.steps)
    is_other |= any(len(text.split()) > 1 for _, text in _parsed(calls, tree.steps))
    return not is_other and all(is_verdict(c.output) if c.output else c.calls_tools for c in calls)


def _returns_documents(tree: StepTree) -> bool:
    """Return True if documents are all that was returned, and the model calls wrote queries."""
    found = find_retrievals(tree)
    known = [passage.text for one in found for passage in one.documents or ()]
    tops = [step for step in tree.steps if step.parent not in tree.by_id]
    asked = [text for top in tops for text in (top.input or "", *top.input_texts)]
    told = [t for top in tops for t in (*top.output_texts, *(p.text for p in top.documents_seen))]
    is_more = any(is_prose(p) for text in told for p in parts_around(text, [*known, *asked]))
    if is_more or any(top.output for top in tops):
        return False
    wrote = all(any(is_in(one.input, call.output) for one in found) for call in tree.generators)
    return wrote and any(len(parts_around(text, known)) > 1 for text in told)


def extract(turn: Turn) -> Sample | SkipReason:
    """Return the question, contexts and answer of ``turn``, or why it cannot be scored."""
    try:
        return read_sample(turn)
    except Refused as refused:
        return refused.reason


def read_sample(turn: Turn) -> Sample:
    """Return the question, contexts and answer of ``turn``, or raise `Refused` with the reason."""
    if any(step.error is not None for step in turn.path):
        raise Refused(reason="error")
    _text_on(turn.path, "input")  # raises if the question is redacted
    said = turn.recorded
    if turn.doubt is not None and not said >= _SAMPLE:
        raise Refused(reason=turn.doubt)
    steps = (*turn.path, *turn.steps, *turn.calls, *turn.other_calls, *turn.retrievers)
    if not said >= _SAMPLE and any(map(attrgetter("is_cut"), steps)):
        raise Refused(reason="truncated")  # texts are compared, and half of one proves nothing
    answer = _answer(turn)
    generator = _generator(turn, answer)
    contexts = _contexts(turn, generator)
    if generator is not None and not said >= {"documents", "output"}:
        _check(turn, generator, answer, contexts)
    question = _question(turn, generator, contexts)
    if question is None:
        raise Refused(reason="no_question")
    ids = tuple(passage.id for passage in contexts if passage.id is not None)
    return Sample(
        question=question,
        contexts=contexts,
        answer=answer,
        history=_history(turn, generator, question),
        query=_query(turn, question),
        retrieved_ids=ids if len(ids) == len(contexts) else (),
    )


def _text_on(steps: Iterable[Step], part: Part) -> str | None:
    """Return a recorded or else the last ``part`` on ``steps``; `Refused` if redacted or cut."""
    steps = tuple(steps)
    explicit = [step for step in steps if part in step.recorded]
    for step in explicit[:1] or reversed(steps):
        text: str | None = getattr(step, part)
        if part in step.hidden:
            raise Refused(reason="redacted")
        if part in step.cut:
            raise Refused(reason="truncated")
        # An output that repeats the input of its step does not count.
        is_echo = part == "output" and step.kind != "llm" and is_same(text, step.input)
        if text is not None and text.strip() and (explicit or not is_echo):
            return text
    return None


def _first(texts: Iterable[str | None]) -> str | None:
    return next((text for text in texts if text is not None and text.strip()), None)


# --- the answer, and the LLM call that wrote it ---------------------------------------------------

_DEMANDS_VERDICT = re.compile(
    r"\byes\b\W{1,3}(or|and|/)\W{0,3}no\b|\byes\W{1,3}no\b|\bbinary\b", re.IGNORECASE
)


def _answer(turn: Turn) -> str:
    told = [call for call in turn.calls if "output" in call.recorded]
    if told and not any("output" in step.recorded for step in turn.path):
        return _text_on(told, "output") or ""
    answer = _text_on(turn.path, "output")
    is_recorded = "output" in turn.recorded
    if not is_recorded and _was_abandoned(turn, answer):
        raise Refused(reason="abandoned")
    unnamed = _unnamed_answer(turn)
    said = [call.output for call in turn.calls]
    if answer and unnamed and not is_recorded and len(answer.split()) == 1:
        # One word that no model call has said, such as "success", is no answer.
        answer = answer if any(is_in(answer, one) for one in said) else unnamed
    answer = answer or unnamed or _text_on(turn.calls, "output")
    # If spans may be missing, an LLM call that says yes or no may grade another one's answer.
    may_be_verdict = turn.is_complete or _has_answer(turn)
    may_be_verdict &= is_recorded or any(is_in(answer, one) for one in said)
    if answer is None or (
        is_verdict(answer) and (answer.lstrip().startswith("{") or not may_be_verdict)
    ):
        raise Refused(reason="no_answer")
    returned = [step.output for step in turn.path if step.kind != "llm"]
    return answer if answer in returned or is_recorded else _unwrapped(answer)


def _was_abandoned(turn: Turn, answer: str | None) -> bool:
    """Return True if the application ended the turn before the LLM had written the whole answer."""
    end = turn.anchor.end
    last = turn.calls[-1] if turn.calls else None
    if end is None or last is None or turn.anchor.flat or turn.anchor.deferred:
        return end is None
    if last.end is None or last.end <= end:
        return last.end is None
    told = last.output or ""
    return answer is None or (answer != told and told.startswith(answer))


def _unnamed_answer(turn: Turn) -> str | None:
    """Return the text in a chain's output that an LLM call wrote, if it is the only such text."""
    told = [*((call, call.output or "") for call in turn.calls), *_parsed(turn.calls, turn.steps)]
    for step in reversed(turn.path):
        said = {
            said: call
            for call, said in told
            for text in step.output_texts
            if is_same(text, said) and not any(is_same(text, one) for one in turn.asked)
        }
        final = [
            text
            for text, call in said.items()
            if not (is_short(call) and any(place(t, call.prompt) for t in said if t != text))
        ]
        if len(final) == 1:
            return final[0]
    return None


def _parsed(calls: Iterable[Step], steps: Sequence[Step]) -> Iterator[tuple[Step, str]]:
    """Yield each call that only called a tool, with texts that an output parser made of that."""
    for call in calls:
        if call.calls_tools and not call.output and call.end is not None:
            later = (s for s in steps if s.parent == call.parent and s.start >= call.end)
            texts = next((step.output_texts for step in later), ())
            yield from ((call, text) for text in texts if not is_verdict(text))


def _has_answer(turn: Turn) -> bool:
    told = "output" in turn.recorded or any((step.output or "").strip() for step in turn.path)
    return told or _unnamed_answer(turn) is not None


def _unwrapped(reply: str) -> str:
    """Return ``reply``, or the answer field if it is a JSON object; raise `Refused` without one."""
    text = reply.strip().removeprefix("```json").removeprefix("```").removesuffix("```")
    data = json_in(text, opening="{[")
    if data is None:
        return reply
    answer = answer_in(data) if isinstance(data, dict) else None
    if answer is None and isinstance(data, dict) and len(data) == 1:
        ((name, only),) = data.items()
        is_named = not set(ANSWERS).isdisjoint(name.lower().split("_"))
        answer = only if is_named and isinstance(only, str) else None
    if answer is None or not answer.strip():
        raise Refused(reason="ambiguous")
    return answer


def _generator(turn: Turn, answer: str) -> Step | None:
    """Return the LLM call that wrote ``answer``, with the prompts of calls that wrote parts."""
    generator = _generator_of(turn, answer)
    if generator is None:
        if turn.calls and not turn.recorded >= {"documents", "output"}:
            raise Refused(reason="ambiguous" if turn.is_complete else "partial")
        return None
    asked = [step.input or "" for step in turn.path if step.kind != "llm"]
    demanded = any(map(_DEMANDS_VERDICT.search, generator.prompt))
    demanded = demanded and not any(map(_DEMANDS_VERDICT.search, asked))
    if (is_verdict(generator.output or "") and demanded) or (
        not _has_answer(turn) and may_grade(generator, turn)
    ):
        raise Refused(reason="ambiguous")
    if is_in(answer, generator.output):
        return generator
    others = [
        call
        for call in turn.calls
        if not is_in(call.output, generator.output)
        and len((call.output or "").split()) > 1
        and is_in(call.output, answer)
    ]
    shown = (text for call in (*others, generator) for text in call.prompt)
    return replace(generator, prompt=tuple(dict.fromkeys(shown)))


def _generator_of(turn: Turn, answer: str) -> Step | None:
    """Return the last call whose output is ``answer`` or a part, contains it, or may lead to it."""
    speaking = [call for call in turn.calls if call.output and call.output.strip()]
    wrote = [call for call in speaking if is_same(call.output, answer)]
    enough = min(ANSWER_LENGTH, len(answer) / 2)
    parts = [call for call in speaking if _length(call) >= enough and is_in(call.output, answer)]
    wider = [call for call in speaking if is_long(answer) and is_in(answer, call.output)]
    found = wrote or sorted(parts, key=_length) or wider or _possible_generators(turn)
    return found[-1] if found else None


def _length(call: Step) -> int:
    return len(call.output or "")


def _possible_generators(turn: Turn) -> list[Step]:
    """Return the LLM calls whose output is no grade, and in no later query or prompt."""
    last = turn.calls[-1] if turn.calls else None
    if last is not None and not (last.output or "").strip():
        searched = last.calls_tools and any(one.start > last.start for one in turn.retrievers)
        return [] if searched else [last]  # after a search, another call wrote the answer
    least = 1 if turn.is_complete else ANSWER_LENGTH
    found = [call for call in turn.calls if _length(call) >= least and not _is_used(call, turn)]
    return [c for c in found if not is_verdict(c.output or "") and not may_grade(c, turn)]


def _is_used(call: Step, turn: Turn) -> bool:
    """Return True if a later query or prompt, except a grader's, contains the call's output."""
    later = [one for one in (*turn.calls, *turn.retrievers) if one.start > call.start]
    made = [one for one in later if one.kind != "llm" or not one.output or not is_short(one)]
    asked = [text for one in made for text in (*one.prompt, one.input or "")]
    return place(call.output or "", asked) is not None


# --- the contexts ---------------------------------------------------------------------------------

_Shown: TypeAlias = "dict[Passage, tuple[Place | None, Passage]]"  # position and text in prompts
_Behind: TypeAlias = "tuple[Place | None, str]"

_BEGINNING = 40  # a document that was cut is recognised by so many characters at its beginning
_END = re.compile(r"\s*(\.\.\.|…|[\n\[<\"'`]|$)")  # text that may follow a passage that was cut
_ROOM = 200  # rewritten long documents have at least so many letters and digits
_LINK = 20  # an LLM output of this length is not in a later prompt by chance
_SHORT = 8  # the same length for an output that is a whole message, a line or in quotes
_VARIABLES = ("context", "contexts", "documents", "docs", "context_str")


def _contexts(turn: Turn, generator: Step | None) -> tuple[Passage, ...]:
    """Return the passages that the ``generator`` was shown, or all if none is shown verbatim.

    Passages in prompts of earlier calls count, too, if ``generator`` was shown their output.
    """
    explicit = next((step for step in turn.path if "documents" in step.recorded), None)
    retrievers = turn.retrievers if explicit is None else (explicit,)
    if any("documents" in one.hidden for one in retrievers):
        raise Refused(reason="redacted")
    if any("documents" in one.cut for one in retrievers):
        raise Refused(reason="truncated")
    recorded = [one for one in retrievers if "documents" in one.recorded]
    if any(one.documents is None for one in recorded):
        raise Refused(reason="no_contexts")
    hosted = any(one.contexts_source == "tool" for one in recorded)
    if hosted and len(recorded) < len(turn.retrievers):
        raise Refused(reason="ambiguous")  # the provider of the model searched, and so did others
    if recorded:
        return _distinct(recorded)
    if turn.lacks_texts:
        return _of_prompt(turn, generator)
    retrieved = _distinct(turn.retrievers)
    return retrieved if generator is None else _shown(turn, generator, retrieved)


def _distinct(retrievers: Iterable[Step]) -> tuple[Passage, ...]:
    whole = (one.documents or () for one in retrievers if not one.lacks_texts)
    return distinct(passage for documents in whole for passage in documents)


def _of_prompt(turn: Turn, generator: Step | None) -> tuple[Passage, ...]:
    counts = [one.document_count for one in turn.retrievers if one.lacks_texts]
    count = None if None in counts else sum(one or 0 for one in counts)
    block = None
    if generator is not None:
        texts = (generator.variables.get(name) for name in _VARIABLES)
        text = next((text for text in texts if text is not None), None)
        block = block_in(generator.prompt) if text is None else Block(text=text)
    found = block.passages(count) if block is not None else None
    known = (p.text for one in turn.retrievers if one.lacks_texts for p in one.documents or ())
    # Either the end of each document is not known, or other texts were retrieved.
    if not found or not {bare(passage.text) for passage in found}.issuperset(map(bare, known)):
        said = block is not None or any(one.output for one in turn.retrievers)
        raise Refused(reason="ambiguous" if said else "no_contexts")
    return found


def _shown(turn: Turn, generator: Step, retrieved: tuple[Passage, ...]) -> tuple[Passage, ...]:
    rerankers = {one.input: one for one in turn.retrievers if one.kind == "reranker"}
    reranked = _distinct(rerankers.values())  # the last for each query
    if not any(generator.prompt) or not all(one.text for one in generator.tool_results):
        if any(one.windows for one in turn.retrievers):
            raise Refused(reason="ambiguous")  # a longer text may have been shown
        return reranked or retrieved
    behind = [(at, t) for at, t in _behind(turn, generator) if t not in generator.own_messages]
    prompt = [text for at, text in behind if at is None]
    # An agent's earlier turns may have shown the same documents, in another order.
    asked = max((n for n, text in enumerate(prompt) if text == generator.input), default=0)
    messages, own = Messages([text for _, text in behind]), Messages(prompt, first=asked)
    used = [(at, p) for p in retrieved if (at := own.place(p.text) or messages.place(p.text))]
    direct = [(at, p) for at, p in used if behind[at[0]][0] is None]
    if len(used) == len(direct):
        found = _widened(turn, direct, own)
    else:
        found = {p: (None if direct else behind[at[0]][0], p) for at, p in used}
    found |= _truncated([p for p in retrieved if p not in found], own, known=found)
    left = [p for p in retrieved if p not in found]
    known = [*turn.asked, *(p.text for p in found)]
    parts = messages.places_of_parts([p.text for p in left], known)
    found |= {p: (parts[p.text], p) for p in left if p.text in parts}
    if not found:
        return _rewritten(turn, generator, reranked or retrieved, shown=messages)
    shown = _ordered(retrieved, found)
    texts = sorted((passage.text for passage in shown), key=len)
    if not any(one in other for n, one in enumerate(texts) for other in texts[n + 1 :]):
        return shown
    places = own.places_apart(texts) if len(used) == len(direct) else {}
    if len(places) < len(texts):
        raise Refused(reason="ambiguous")
    return _ordered(shown, {p: (places[p.text], p) for p in shown})


def _rewritten(
    turn: Turn, generator: Step, retrieved: tuple[Passage, ...], *, shown: Messages
) -> tuple[Passage, ...]:
    """Return ``retrieved`` if only this prompt may show them, reworded; else raise `Refused`."""
    queries = [one.input for one in turn.retrievers if one.input]
    is_other = turn.anchor.flat and not any(is_in(q, text) for q in queries for text in shown.texts)
    asked = max((len(bare(text)) for text in turn.asked), default=0)
    length = sum(len(bare(passage.text)) for passage in retrieved)
    has_room = shown.size - asked >= min(length / 3, _ROOM)
    others = Messages(t for c in turn.calls if c is not generator for t in c.prompt)
    if is_other or not has_room or any(others.place(passage.text) for passage in retrieved):
        raise Refused(reason="ambiguous")
    return retrieved


def _ordered(retrieved: Sequence[Passage], found: _Shown) -> tuple[Passage, ...]:
    """Return the passages in ``found`` in the order of the prompt, or else of retrieval."""
    shown = [found[passage] for passage in retrieved if passage in found]
    placed = [(at, passage) for at, passage in shown if at is not None]
    if len(placed) == len(shown):
        shown = [*sorted(placed, key=itemgetter(0))]
    return distinct(passage for _, passage in shown)


def _widened(turn: Turn, shown: Sequence[tuple[Place, Passage]], messages: Messages) -> _Shown:
    """Replace passages by longer texts around them, from metadata or a reranker, if shown."""
    around = {text: wide for one in turn.retrievers for text, wide in one.windows.items()}
    rerankers = [one for one in turn.retrievers if one.kind == "reranker"]
    reranked = [p.text for one in rerankers for p in one.documents or ()]
    found: _Shown = {}
    for at, passage in shown:
        held = [around.get(passage.text, ""), *(() if passage.text in reranked else reranked)]
        wide = [t for t in held if len(t) > len(passage.text) and passage.text.strip() in t]
        places = ((place, t) for t in wide if (place := messages.place(t)))
        place, text = next(places, (at, passage.text))
        found[passage] = place, replace(passage, text=text)
    return found


def _truncated(passages: Sequence[Passage], messages: Messages, *, known: _Shown) -> _Shown:
    """Return the ``passages`` of which ``messages`` show only the beginning, cut to that."""
    taken = {at for at, _ in known.values()}
    found: _Shown = {}
    for passage in passages:
        at = messages.find(passage.text[:_BEGINNING])
        if at is None or messages.find(passage.text[-_BEGINNING:]) is not None:
            continue
        message = messages.texts[at[0]][at[1] :]
        pairs = zip(passage.text, message, strict=False)
        seen = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        is_sentence = seen.rstrip().endswith((".", "!", "?"))  # perhaps a quotation
        stands = messages.place(seen)
        if len(seen) < _BEGINNING or is_sentence or stands in taken:
            continue
        if _END.match(message[len(seen) :]):
            found[passage] = stands, replace(passage, text=seen.rstrip())
    return found


def _behind(turn: Turn, generator: Step) -> list[_Behind]:
    """Return the prompts behind an answer: of ``generator``, and of calls whose output it saw.

    The place of such an output in the prompt of ``generator`` stands beside it; None for its own.
    """
    seen: list[_Behind] = [(None, text) for text in generator.prompt]
    open_calls = [call for call in turn.calls if call.id != generator.id]
    first = 0
    while first < len(seen):  # what is not in the earlier texts may be in the texts since ``first``
        messages = Messages(text for _, text in seen[first:])
        linked = [(at, c) for c in open_calls if (at := _link(c.output or "", messages))]
        found = {call.id for _, call in linked}
        open_calls = [call for call in open_calls if call.id not in found]
        above = [seen[first + at[0]][0] or at for at, _ in linked]
        first = len(seen)
        for at, (_, call) in zip(above, linked, strict=True):
            seen += [(at, text) for text in call.prompt]  # with the place of the call's output
    return seen


def _link(said: str, messages: Messages) -> Place | None:
    """Return the position of the LLM output ``said`` in the prompts ``messages``, or None."""
    if len(said) >= _LINK:
        return messages.place(said)
    if len(said) < _SHORT or len(said.split()) == 1:
        return None  # a short output must be a message, a line or a quotation of its own
    alone = re.compile(rf"(?:^|[\n\"'`>]|[:*-] ){re.escape(said.strip())}(?:$|[\n\"'`<])")
    return messages.place(said) if any(map(alone.search, messages.texts)) else None


# --- the question ---------------------------------------------------------------------------------

_MIN_LLM_NS = 5_000_000  # no LLM can answer within this time
_LLM_NAME = re.compile(r"llm|chat|model", re.IGNORECASE)  # names of steps that may call an LLM
_PUNCTUATION = 3  # characters by which a query may differ from the question it repeats
_LABEL = re.compile(r"\w+[:>]\s*")


def _question(turn: Turn, generator: Step | None, contexts: tuple[Passage, ...]) -> str | None:
    """Return the question of ``turn``: the application's input, a query, or the user message."""
    line = [step for step in turn.path if step.kind != "llm"]
    explicit = next((step.input for step in line if "input" in step.recorded), None)
    if explicit is not None:
        return explicit
    long = [passage.text for passage in contexts if is_long(passage.text)]
    is_prompt = [any(text in (step.input or "") for text in long) for step in line]
    asked = _text_on([s for s, prompt in zip(line, is_prompt, strict=True) if not prompt], "input")
    asked = asked or _unnamed_question(turn)
    searched = _first(retriever.input for retriever in turn.retrievers)
    same = [call for call in turn.calls if generator and is_same(call.output, generator.output)]
    shown = (call.input for call in (generator, *same) if call is not None)
    message = min((text for text in shown if text), key=len, default="")  # two may record one call
    drafts = [c.output for c in turn.calls if c is not generator and is_long(c.output or "")]
    known = [*(passage.text for passage in contexts), *drafts]
    clean = "" if any(text in message for text in known if text) else message
    earlier = [one.text for one in generator.history] if generator is not None else []
    if earlier and is_same(asked, "\n".join([*earlier, message])):  # all messages in one text
        asked = message
    if asked is None:
        return _message_or_query(turn, clean, shown=message, searched=searched)
    if prompts := _reworded(turn, asked):
        return _first(map(_follow_up, prompts))
    is_plain = is_in(asked, message) or is_same(asked, searched) or not message.strip()
    if is_plain or _query_writers(turn, searched):
        return asked
    if turn.is_complete and turn.path[-1].parent is None:
        return _unnamed_question(turn) or asked
    if turn.is_complete or _is_replaced(turn, message, searched):
        return clean if clean.strip() else searched
    raise Refused(reason="ambiguous")  # the span of the step that rewrote the question is missing


def _reworded(turn: Turn, asked: str) -> list[str]:
    """Return the prompts of LLM calls that wrote the question ``asked``, but were not shown it."""
    prompts = [call.prompt for call in turn.other_calls if is_same(call.output, asked)]
    return [text for shown in prompts if not any(is_in(asked, t) for t in shown) for text in shown]


def _follow_up(prompt: str) -> str | None:
    """Return the question that a rewriting ``prompt`` of LangChain or LlamaIndex has, or None."""
    asked = prompt.rpartition("Standalone question")[0].rpartition("Follow Up ")[2]
    label = _LABEL.match(asked)
    return asked[label.end() :].removesuffix("<").strip() if label else None


def _unnamed_question(turn: Turn) -> str | None:
    """Return the text in a chain's input that a prompt or query has, if it is the only one."""
    shown = [text for call in (*turn.other_calls, *turn.calls) for text in call.prompt]
    shown += [one.input or "" for one in turn.retrievers]
    for step in reversed(turn.path):
        texts = step.input_texts
        several = [text for text in texts if len(text.split()) > 1 or len(texts) == 1]
        used = [text for text in several if any(is_in(text, one) for one in shown)]
        if used:
            return used[0] if len(used) == 1 else None
    return None


def _message_or_query(turn: Turn, clean: str, *, shown: str, searched: str | None) -> str | None:
    """Return the user message ``clean`` (empty if ``shown`` has contexts), the query, or None."""
    writers = _query_writers(turn, searched)
    if writers:
        prompts = [text for call in writers for text in call.prompt]
        return clean if any(is_in(clean, text) for text in prompts) else None
    if is_in(searched, shown):
        is_whole = clean.strip() and len(clean) <= len(searched or "") + _PUNCTUATION
        return clean if is_whole else searched
    found = _first((clean, searched if not shown.strip() else None))
    if found is None and any("input" in one.hidden for one in turn.retrievers):
        raise Refused(reason="redacted")
    return found


def _query_writers(turn: Turn, searched: str | None) -> list[Step]:
    first = min(one.start for one in turn.retrievers)
    return [
        call
        for call in (*turn.other_calls, *turn.calls)
        if is_in(searched, call.output) or (call.start < first and not (call.output or "").strip())
    ]


def _is_replaced(turn: Turn, message: str, searched: str | None) -> bool:
    """Return True if a step too fast for an LLM wrote ``searched``, which is in ``message``."""
    parents = {step.parent for step in turn.steps}
    return any(
        step.input is not None
        and step.end is not None
        and step.end - step.start < _MIN_LLM_NS
        and step.id not in parents
        and not _LLM_NAME.search(step.name)
        and is_same(step.output, searched)
        and is_in(searched, message)
        for step in turn.steps
    )


def _query(turn: Turn, question: str) -> str | None:
    """Return the query of the retrievers if all had the same, and not ``question``, else None."""
    queries = {bare(one.input): one.input for one in turn.retrievers if one.input}
    only = next(iter(queries.values()), None)
    return only if len(queries) == 1 and bare(question) not in queries else None


def _history(turn: Turn, generator: Step | None, question: str) -> tuple[Message, ...]:
    """Return the messages before ``question``; none, if it is not clear which they are."""
    stated = [step for step in turn.path if "history" in step.recorded]
    # Else examples in a prompt would count, which look like earlier messages.
    stated = stated or [step for step in turn.path if step.keeps_history]
    if stated:
        return _before(question, stated[0].history)
    queries = [one.input for one in turn.retrievers]
    drafts = [call.output for call in turn.calls]
    for step in filter(None, (generator, *reversed(turn.path))):
        asks = any(is_in(text, step.input) for text in (question, *queries))
        own = [text for role, text in step.history if role == "assistant"]
        has_drafts = any(is_same(text, draft) for text in own for draft in drafts)
        history = _before(question, step.history) if asks and not has_drafts else ()
        if history:
            return history
    return ()


def _before(question: str, messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return ``messages`` without messages of the user at the end that contain ``question``."""
    kept = [*messages]
    while kept and kept[-1].role == "user" and is_in(question, kept[-1].text):
        kept.pop()
    return tuple(kept)


# --- whether all parts fit together ---------------------------------------------------------------


_HANDS_OVER = re.compile(r"transfer|hand_?(off|over)|delegat", re.IGNORECASE)  # to another agent


def _check(turn: Turn, generator: Step, answer: str, contexts: Sequence[Passage]) -> None:
    if _has_unused_output(turn, generator, answer) or _asks_with_an_answer(turn):
        raise Refused(reason="ambiguous")
    has_documents = "documents" in turn.recorded
    if not has_documents and _kept_unknown_documents(turn):
        raise Refused(reason="no_contexts")
    if not has_documents and _shows_more(turn, generator, contexts):
        raise Refused(reason="partial")
    if turn.is_complete:
        return
    # If the LLM that called a tool answered, its own call is missing.
    if any(step.kind == "tool" for step in turn.path[:-1]) or generator.id in turn.tool_calls:
        raise Refused(reason="partial")
    if has_documents:
        return
    prompts = [text for _, text in _behind(turn, generator)]
    known = {normalised(p.text) for one in turn.retrievers for p in one.documents or ()}
    texts = [p.text for one in turn.retrievers for p in one.documents or ()]
    seen = {p.text for step in turn.steps for p in step.documents_seen}
    more = (text for text in seen if any(map(is_prose, parts_around(text, texts))))
    results = [one for one in generator.tool_results if not _HANDS_OVER.match(one.tool)]
    lacks_tool = bool(turn.tools) and len(results) > len(turn.tools)
    if (
        lacks_tool
        or any(normalised(text) not in known and place(text, prompts) for text in more)
        or not _left_out_on_purpose(turn, contexts, prompts)
    ):
        raise Refused(reason="partial")


def _has_unused_output(turn: Turn, generator: Step, answer: str) -> bool:
    if _has_answer(turn) and is_same(generator.output, answer):
        return False
    return any(
        call.id != generator.id
        and not call.calls_tools
        and not is_short(call)
        and not is_in(call.output, answer)
        and not _is_used(call, turn)
        and place(generator.output or "", call.prompt) is None
        for call in turn.calls
    )


def _asks_with_an_answer(turn: Turn) -> bool:
    """Return True if an LLM output is a part of a later query: there may be two turns."""
    return any(
        one.start > call.start
        and not is_short(call)
        and is_in(call.output, one.input)
        and not is_same(call.output, one.input)
        for call in turn.calls
        for one in turn.retrievers
    )


def _shows_more(turn: Turn, generator: Step, contexts: Sequence[Passage]) -> bool:
    """Return True if the prompt has other sentences in the same line as a passage."""
    passages = [*contexts, *(p for one in turn.retrievers for p in one.documents or ())]
    known = [text for text in dict.fromkeys([p.text for p in passages]) if not is_title(text)]
    texts = (text for step in turn.steps for text in step.input_texts)
    for text in texts:
        parts = parts_around(text, known)
        beside = [part.split("\n")[0] for part in parts[1:]]
        beside += [part.split("\n")[-1] for part in parts[:-1]]
        if any(map(is_prose, beside)) and place(text, generator.prompt):
            return True
    return False


def _kept_unknown_documents(turn: Turn) -> bool:
    """Return True if a step returned more unknown documents than LLM calls can have written."""
    known = {p.id for one in turn.retrievers for p in one.documents or ()}
    return any(
        known.intersection(step.kept_ids) and len(set(step.kept_ids) - known) >= len(turn.calls)
        for step in turn.steps
    )


def _left_out_on_purpose(turn: Turn, contexts: Sequence[Passage], prompts: Sequence[str]) -> bool:
    """Return True if a step returned exactly ``contexts``, or LLM calls have graded the others."""
    kept = {normalised(passage.text) for passage in contexts}
    found = {normalised(p.text): p for one in turn.retrievers for p in one.documents or ()}
    seen = "\n".join(kept)  # contains also passages within a longer text that was shown
    left = [p for t, p in found.items() if not t.startswith(tuple(kept)) and t not in seen]
    if not prompts or any(consists_of(text, kept) for text in _documents_by_step(turn.steps)):
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


def _documents_by_step(steps: Sequence[Step]) -> list[str]:
    """Return the document texts of each chain; the iterations of a loop count as one chain."""
    several, single = [], defaultdict[tuple[str, Hashable | None], set[str]](set)
    for step in steps:
        shown = {normalised(passage.text) for passage in step.documents_seen}
        if len(shown) > 1:
            several.append(shown)
        else:
            single[step.name, step.parent] |= shown
    return ["\n".join(texts) for texts in (*several, *single.values())]


def _rejected(step: Step, left: Sequence[Passage], kept: Sequence[Passage]) -> bool:
    handed = {normalised(passage.text) for passage in step.documents_seen}
    written = (step.output or "",)
    return all(normalised(p.text) in handed and not place(p.text, written) for p in left) and all(
        place(p.text, written) for p in kept
    )


# --- turns that two instrumentations recorded -----------------------------------------------------

_MAX_EQUAL = 64  # remembered turns with the same question and answer

_Record: TypeAlias = "tuple[str, int, int]"  # instrumentation, start and end of a turn in ns


class RecentTurns:
    """The last ``max_turns`` turns, to find turns that two instrumentations have recorded."""

    def __init__(self, max_turns: int = 1024) -> None:
        self._max = max_turns
        self._seen: OrderedDict[int, tuple[_Record, ...]] = OrderedDict()

    def is_repeated(self, sample: Sample, turn: Turn) -> bool:
        """Return True if another instrumentation recorded the turn: same texts at the same time."""
        key = hash((sample.question, sample.answer))
        steps = (step for step in reversed(turn.path) if step.kind != "other")
        outermost = next(steps, turn.anchor)  # steps of kind "other" around it may be a session
        source, start, end = outermost.source, outermost.start, outermost.end or time.time_ns()
        others = self._seen.pop(key, ())
        for number, (other, begin, until) in enumerate(others):
            if other != source and start <= until and begin <= end:
                self._seen[key] = others[:number] + others[number + 1 :]
                return True
        self._seen[key] = (*others, (source, start, end))[-_MAX_EQUAL:]
        while len(self._seen) > self._max:
            self._seen.popitem(last=False)
        return False
