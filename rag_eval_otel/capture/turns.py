"""Group the steps of a trace into RAG turns.

A *step* is one call in a trace: a retrieval, a call of a model or a tool, or a chain. A *turn* is
one question of a user, the contexts retrieved for it and the answer. The *anchor* of an LLM call is
the deepest step above the call that also contains a retrieval which started before the call. LLM
calls with the same anchor belong to one turn, and the span of the anchor gets the scores.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from rag_eval_otel.capture.retrieval import (
    answers_repeat,
    find_retrievals,
    is_verdict,
    may_be_draft,
    retrieval_in,
)
from rag_eval_otel.capture.step import Part, Step
from rag_eval_otel.capture.tree import (
    ACTIVE,
    Groups,
    Nesting,
    Owners,
    StepTree,
    group_calls,
    holders_of,
    in_order,
    is_passed_on,
    lacks_retrieval,
)
from rag_eval_otel.capture.values import is_in, is_same, normalised, place
from rag_eval_otel.types import ContextsSource, SkipReason

Loss: TypeAlias = Literal["none", "possible"]
_Users: TypeAlias = "Mapping[Hashable, set[Hashable | None]]"
"""The id of each step, and the ids of the steps at or below it that get scores of a question."""

_OVERHEAD = 4096  # bytes of a span that is kept back and its records, without texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One question of a user and its answer, and the steps from which its sample is read.

    ``anchor`` is the step whose span gets the scores. ``path`` contains the anchor and the steps
    above it that belong to no other turn, nearest first. ``calls`` are the LLM calls that may have
    written the answer, ordered by start. ``other_calls`` are the other LLM calls below the anchor.
    Most of these calls wrote a query before the first retrieval. ``retrievers`` are the retrievals,
    ordered by start.
    """

    anchor: Step
    path: tuple[Step, ...]
    calls: tuple[Step, ...]
    other_calls: tuple[Step, ...]
    retrievers: tuple[Step, ...]
    size: int = 0
    """The estimated memory in bytes that question, contexts and answer need until scored."""
    doubt: SkipReason | None = None
    """The reason why this question and answer may be incomplete or ambiguous, or None."""
    is_complete: bool = True
    """Whether no span of this turn can be missing. Otherwise more checks are made."""
    steps: tuple[Step, ...] = ()
    """The step that gets the scores, and the chains, agents and rerankers below or beside it."""
    tools: tuple[Step, ...] = ()
    """The tools and retrievals below the scored span, without tools within other tools."""
    ranking_calls: frozenset[Hashable] = frozenset()
    """The ids of LLM calls within a step that returned only documents: they rank documents."""
    tool_calls: frozenset[Hashable] = frozenset()
    """The ids of the LLM calls that were made within tools or retrievals."""
    lacks_retrieval: bool = False
    """Whether the span of a retrieval seems to be missing from the trace."""

    @property
    def lacks_texts(self) -> bool:
        """Whether texts of retrieved documents are missing in retrievals and tool results."""
        blind = sum(one.lacks_texts for one in self.retrievers)
        return blind > sum(bool(one.documents) for one in self._of_source("tool"))

    @property
    def contexts_source(self) -> ContextsSource:
        """Where the contexts were read: retrievals, tool results or, least reliable, the prompt."""
        if "documents" in self.recorded:
            return "retrieval"
        if self.lacks_texts or any(self._of_source("prompt")):
            return "prompt"
        return "tool" if any(one.documents for one in self._of_source("tool")) else "retrieval"

    def _of_source(self, source: ContextsSource) -> Iterator[Step]:
        return (one for one in self.retrievers if one.contexts_source == source)

    @property
    def recorded(self) -> frozenset[Part]:
        """The parts (question, documents, answer) that the application itself recorded."""
        contexts = [one.recorded & {"documents"} for one in self.retrievers]
        answers = [one.recorded & {"output"} for one in self.calls]
        return frozenset().union(*(step.recorded for step in self.path), *contexts, *answers)


def find_turns(
    steps: Sequence[Step],
    *,
    loss: Loss = "none",
    contexts_from_prompt: bool = False,
) -> list[Turn]:
    """Return the RAG turns (question, contexts and answer) in the ``steps`` of one trace.

    Most traces of an application contain no turn. ``loss`` says whether steps may be missing from
    the trace: "none" or "possible".
    """
    tree = StepTree(steps)
    retrievals = find_retrievals(tree)
    groups = group_calls(tree, retrievals)
    if contexts_from_prompt:
        grouped = {call.id for calls in groups.values() for call in calls}
        others = (call for call in tree.generators if call.id not in grouped)
        guessed = [one for one in map(retrieval_in, others) if one is not None]
        retrievals = tuple(sorted((*retrievals, *guessed), key=in_order))
        groups = group_calls(tree, retrievals)
    nesting = Nesting(tree, groups, retrievals)
    owners = nesting.owners()
    retrievers = _retrievers(tree, owners, retrievals)
    calls: dict[Hashable, list[Step]] = {}
    for anchor, found in groups.items():
        calls.setdefault(owners[anchor], []).extend(found)
    users = _users(tree, owners)
    other_calls = _other_calls(tree, calls, users)
    found_turns = [
        _turn(
            tree.by_id[anchor],
            _path(tree, anchor, users),
            calls=sorted(found, key=in_order),
            other_calls=other_calls[anchor],
            retrievers=retrievers[anchor],
            doubt=_doubt(tree, anchor, nesting),
        )
        for anchor, found in calls.items()
        if anchor is not None and anchor in retrievers
    ]
    found_turns += _rootless_turns(tree, retrievals)
    used = {one.id for turn in found_turns for one in (*turn.retrievers, *turn.path)}
    found_turns += _turns_without_llm(
        tree, [one for one in retrievals if one.id not in used], users
    )
    below, around = _below(tree, owners), _around(tree, found_turns, owners)
    found_turns = [
        _with_surroundings(tree, turn, below[turn.anchor.id], around[turn.anchor.id])
        for turn in found_turns
    ]
    is_complete = loss == "none"
    found_turns = with_doubts(tree, found_turns, users=users, is_complete=is_complete)
    return [replace(p, is_complete=is_complete) for turn in found_turns for p in split_flat(turn)]


def _rootless_turns(tree: StepTree, retrievals: Sequence[Step]) -> Iterator[Turn]:
    """Yield a turn (question and answer) for each LLM call without parent that saw tool results."""
    shown: dict[Hashable, list[Step]] = defaultdict(list)
    for one in retrievals:
        if one.parent is None and one.kind == "retriever" and isinstance(one.id, tuple):
            shown[one.id[0]].append(one)
    for call in tree.generators:
        if call.id in shown and not call.calls_tools and (call.output or "").strip():
            doubt: SkipReason | None = "partial" if tree.is_orphan(call) else None
            doubt = "ambiguous" if doubt is None and may_be_draft(shown[call.id]) else doubt
            parts = {"calls": (call,), "other_calls": (), "retrievers": shown[call.id]}
            yield _turn(call, (call,), **parts, doubt=doubt)


def _turns_without_llm(tree: StepTree, retrievals: Sequence[Step], users: _Users) -> Iterator[Turn]:
    """Yield the turns (question and answer) that have retrievals but no LLM call.

    There are two cases. The retrievals found nothing, and a chain returned an answer nevertheless.
    Or the application itself recorded the answer.
    """
    called = {above.id for call in tree.generators for above in tree.ancestors(call)}
    filled = {h.id for one in retrievals if one.documents != () for h in holders_of(tree, one)}
    busy = called | filled
    found: dict[Hashable, list[Step]] = defaultdict(list)
    for one in retrievals:
        for holder in holders_of(tree, one):
            found_nothing = holder.id not in busy and holder.output is not None
            if found_nothing or "output" in holder.recorded:
                found[holder.id].append(one)
                break
    around = _users(tree, {**dict.fromkeys(users), **{anchor: anchor for anchor in found}})
    for anchor, retrievers in found.items():
        doubt: SkipReason | None = "partial" if _lacks_parent(tree, anchor) else None
        line = _path(tree, anchor, around)
        step = tree.by_id[anchor]
        yield _turn(step, line, calls=(), other_calls=(), retrievers=retrievers, doubt=doubt)


def _below(tree: StepTree, owners: Owners) -> dict[Hashable, list[Step]]:
    """Return the steps of the trace below each anchor, by anchor id.

    An anchor is a step that gets the scores of one question. If a step is below several anchors, it
    is returned for the deepest anchor only.
    """
    found: dict[Hashable, list[Step]] = defaultdict(list)
    for one in tree.steps:
        anchor = next((owners[a.id] for a in tree.ancestors(one) if a.id in owners), None)
        if anchor is not None:
            found[anchor].append(one)
    return found


def _around(tree: StepTree, turns: Sequence[Turn], owners: Owners) -> dict[Hashable, list[Step]]:
    """Return the steps beside the anchor of each turn (question and answer), by anchor id.

    The anchor is the step that gets the scores. A step is beside the anchor if a step above both of
    them belongs only to this turn, and if it is below no anchor.
    """
    lines = {step.id: turn.anchor.id for turn in turns for step in turn.path[1:]}
    found: dict[Hashable, list[Step]] = defaultdict(list)
    for one in tree.steps if lines else ():
        for above in tree.path(one):
            if above.id in owners:
                break
            if above.id in lines:
                found[lines[above.id]].append(one)
                break
    return found


def _with_surroundings(
    tree: StepTree, turn: Turn, below: Sequence[Step], around: Sequence[Step]
) -> Turn:
    tools = [one for one in below if one.kind in ACTIVE and not tree.active_above(one)]
    steps = [one for one in below if one.kind in {"agent", "chain", "reranker"}]
    ranking = {
        one.id for one in steps if (one.kept_ids or one.documents_seen) and one.output is None
    }
    ranking.discard(turn.anchor.id)
    beside = [one for one in around if one.kind == "chain"]
    return replace(
        turn,
        steps=(turn.anchor, *steps, *beside),
        ranking_calls=frozenset(
            c.id for c in turn.calls if ranking & {a.id for a in tree.ancestors(c)}
        ),
        tools=tuple(tools),
        tool_calls=_within(tree, (*turn.calls, *turn.other_calls), tools),
        lacks_retrieval=lacks_retrieval(tree, turn.retrievers, below),
    )


def _within(tree: StepTree, calls: Sequence[Step], tools: Sequence[Step]) -> frozenset[Hashable]:
    inner = {tool.id for tool in tools}
    return frozenset(call.id for call in calls if not inner.isdisjoint(tree.active_above(call)))


def _turn(
    anchor: Step,
    line: tuple[Step, ...],
    *,
    calls: Sequence[Step],
    other_calls: Sequence[Step],
    retrievers: Sequence[Step],
    doubt: SkipReason | None,
) -> Turn:
    return Turn(
        anchor=anchor,
        path=line,
        calls=tuple(calls),
        other_calls=tuple(other_calls),
        retrievers=tuple(retrievers),
        size=_size((*line, *calls, *other_calls, *retrievers)),
        doubt=doubt,
    )


def _doubt(tree: StepTree, anchor: Hashable, nesting: Nesting) -> SkipReason | None:
    if _lacks_parent(tree, anchor):
        return "partial"
    return "ambiguous" if nesting.may_be_step(anchor) else None


def _lacks_parent(tree: StepTree, anchor: Hashable) -> bool:
    """Return True if a span above a scored question, or during it, is missing from the trace."""
    start, end = tree.by_id[anchor].start, tree.by_id[anchor].end
    within = tree.orphans[bisect_left(tree.orphans, start) :]
    lacks_inner = bool(within) and (end is None or within[0] <= end)
    return lacks_inner or tree.is_orphan(tree.path(tree.by_id[anchor])[-1])


def _size(steps: Sequence[Step]) -> int:
    size = _OVERHEAD
    for one in steps:
        size += len(one.input or "") + len(one.output or "") + sum(map(len, one.prompt))
        size += sum(len(passage.text) for passage in one.documents or ())
    return size


def _retrievers(
    tree: StepTree, owners: Owners, retrievals: Sequence[Step]
) -> dict[Hashable, list[Step]]:
    """Return the retrievals of each question, by the id of the step that gets the scores."""
    found: dict[Hashable, list[Step]] = defaultdict(list)
    for retriever in retrievals:
        anchor = next((a.id for a in holders_of(tree, retriever) if a.id in owners), None)
        if anchor is not None:
            found[owners[anchor]].append(retriever)
    return found


def _other_calls(tree: StepTree, calls: Groups, users: _Users) -> dict[Hashable, list[Step]]:
    """Return the LLM calls below or beside each anchor that are not in ``calls``, by anchor id.

    An anchor is the step that gets the scores of one question. ``calls`` are the LLM calls that may
    have answered it. An LLM call beside the anchor that called tools is left out, because it may
    belong to something else.
    """
    known = {(anchor, call.id) for anchor, several in calls.items() for call in several}
    found: dict[Hashable, list[Step]] = defaultdict(list)
    for call in tree.generators:
        for above in tree.ancestors(call):
            around = users.get(above.id, set()) if not call.calls_tools else set()
            anchor = above.id if above.id in calls or len(around) != 1 else next(iter(around))
            if anchor in calls and (anchor, call.id) not in known:
                known.add((anchor, call.id))
                found[anchor].append(call)
    return found


def _users(tree: StepTree, owners: Owners) -> dict[Hashable, set[Hashable | None]]:
    """Return for each step the ids of the anchors at or below it, by step id.

    An anchor is the step that gets the scores of one question. If an anchor is an intermediate step
    of another question, the id of the other question's anchor is returned.
    """
    users: dict[Hashable, set[Hashable | None]] = defaultdict(set)
    for anchor, owner in owners.items():
        for step in tree.path(tree.by_id[anchor]):
            users[step.id].add(owner)
    return users


def _path(tree: StepTree, anchor: Hashable, users: _Users) -> tuple[Step, ...]:
    start = tree.by_id[anchor]
    return (start, *(a for a in tree.ancestors(start) if users[a.id] == {anchor}))


def with_doubts(
    tree: StepTree, turns: Sequence[Turn], *, users: _Users, is_complete: bool
) -> list[Turn]:
    """Return ``turns`` (questions with answers), with reasons not to score some of them.

    A turn gets a reason if it may be an intermediate step of another turn, or if it may grade the
    answer of another turn. ``users`` contains for each step id the ids of the scored steps at or
    below it.
    """
    unexplained = set() if is_complete else _unexplained_outputs(tree, users)
    told: dict[str, list[Step]] = defaultdict(list)
    for call in tree.generators:
        told[normalised(call.output or "")].append(call)
    answering = {call.id for turn in turns for call in turn.calls}
    found = []
    for turn in turns:
        asked = _calls_that_asked(turn, told)
        is_part = is_passed_on(tree, turn.anchor, (*turn.other_calls, *turn.calls))
        if any(above.id in unexplained for above in tree.ancestors(turn.anchor)):
            found.append(replace(turn, doubt=turn.doubt or "partial"))
        elif is_part or any(c.id in answering or _was_shown(c, turn) for c in asked):
            found.append(replace(turn, doubt=turn.doubt or "ambiguous"))
        else:
            found.append(turn)
    return found


def _unexplained_outputs(tree: StepTree, users: _Users) -> set[Hashable]:
    """Return the ids of steps that contain several questions and whose output no LLM call wrote."""
    shared = (one for one in tree.steps if len(users.get(one.id, ())) > 1)
    left = {one.id: one.output for one in shared if one.output and not one.flat}
    for call in tree.generators if left else ():
        said = call.output or ""
        for above in tree.ancestors(call):
            told = left.get(above.id, "")
            if is_in(said, told) or is_in(told, said):
                del left[above.id]
    return set(left)


def _calls_that_asked(turn: Turn, told: Mapping[str, Sequence[Step]]) -> list[Step]:
    """Return the LLM calls outside of ``turn`` whose output is the question of ``turn``."""
    own = {call.id for call in turn.calls}
    asked = {normalised(step.input) for step in turn.path if step.input}
    return [call for text in asked for call in told.get(text, ()) if call.id not in own]


def _was_shown(call: Step, turn: Turn) -> bool:
    """Return True if the LLM ``call`` was shown documents that were retrieved for ``turn``."""
    found = (p.text for one in turn.retrievers for p in one.documents or ())
    return any(place(text, call.prompt) for text in found)


ANSWER_LENGTH = 20
"""The least number of characters of an LLM output that may be an answer."""
_MAX_PARALLEL = 200  # the most calls of a flat turn that are compared, in quadratic time


def split_flat(turn: Turn) -> list[Turn]:
    """Split ``turn`` into one turn (question and answer) for each answer, if it has several.

    Only a *flat* span, such as that of a web request, may contain several answers. Other turns are
    returned unchanged.
    """
    if not turn.anchor.flat or len(turn.calls) == 1:
        return [turn]
    if len(turn.calls) > _MAX_PARALLEL:
        return [replace(turn, doubt="ambiguous")]
    last = [call for call in turn.calls if _is_answer(call, turn)]
    grounded = [(call, used) for call in last if (used := _retrievers_used(call, turn.retrievers))]
    if not grounded or answers_repeat(grounded):
        return [replace(turn, doubt="ambiguous") if len(last) > 1 else turn]
    if len(grounded) == 1 and is_same(turn.anchor.output, grounded[0][0].output):
        return [turn]  # the anchor has the same answer, and there is no other
    callers = [one for one in (*turn.other_calls, *turn.calls) if one.calls_tools]
    parts = [
        replace(
            turn,
            calls=(call,),
            other_calls=tuple(one for one in callers if one.start < call.start),  # wrote the query
            retrievers=used,
            doubt=turn.doubt or _doubt_of_part(call, used, turn),
        )
        for call, used in grounded
    ]
    if len(parts) == 1:
        return parts
    return [replace(part, anchor=part.calls[0], path=part.calls) for part in parts]


def _doubt_of_part(call: Step, used: Sequence[Step], turn: Turn) -> SkipReason | None:
    if may_grade(call, turn):
        return "ambiguous"
    ids = {one.id for one in used}
    unknown = [one for one in turn.retrievers if one.lacks_texts and one.id not in ids]
    known = any(one.documents for one in used)
    is_mixed = known and any(one.start < call.start for one in unknown)
    return "no_contexts" if is_mixed else None


def is_short(call: Step) -> bool:
    """Return True if the output of the LLM ``call`` is a verdict, or is too short for an answer."""
    return len(call.output or "") < ANSWER_LENGTH or is_verdict(call.output or "")


def may_grade(call: Step, turn: Turn) -> bool:
    """Return True if the LLM ``call`` may grade an answer of an earlier LLM call.

    This is so if ``call`` was shown the output of the earlier call, and no documents that the
    earlier call was not shown. In fact ``call`` may translate or improve that output, but the trace
    does not show the difference. The outputs of LLM calls within tools do not count.
    """
    found = [p.text for one in turn.retrievers for p in one.documents or ()]
    shown = {text for text in found if place(text, call.prompt)}
    for one in turn.calls:
        if one.start >= call.start or not one.output or one.id in turn.tool_calls:
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


def _is_answer(call: Step, turn: Turn) -> bool:
    """Return True if the output of ``call`` is long, and no later call or retrieval used it."""
    text = call.output or ""
    if is_short(call):
        return False
    later = [one for one in (*turn.calls, *turn.retrievers) if one.start > call.start]
    asked = [message for one in later for message in (*one.prompt, one.input or "")]
    return place(text, asked) is None


def _retrievers_used(call: Step, retrievers: Sequence[Step]) -> tuple[Step, ...]:
    """Return the retrievals whose documents the LLM ``call`` was shown for its own question.

    If the prompt contains the query of a retrieval, all such retrievals are returned. Otherwise the
    last retrieval is returned.
    """
    used = [one for one in retrievers if one.start < call.start and _is_used(one, call)]
    own = [one for one in used if one.input and place(one.input, call.prompt)]
    return tuple(own or used[-1:])


def _is_used(one: Step, call: Step) -> bool:
    if one.documents is None:
        asked = (call.input, *call.variables.values())
        return any(is_same(one.input, text) for text in asked)
    shown = any(place(passage.text, call.prompt) for passage in one.documents)
    return shown or (one.documents == () and is_in(one.input or "", call.input or ""))
