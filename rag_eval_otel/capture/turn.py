"""Group the steps of a trace into RAG turns.

The *anchor* of an LLM call is its deepest ancestor that also holds a retrieval begun before the
call. LLM calls with one anchor are one turn.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from rag_eval_otel.capture.retrieval import find_retrievals, is_verdict, retrieval_in
from rag_eval_otel.capture.step import RETRIEVALS, Part, Step
from rag_eval_otel.capture.text import is_in, is_same, normalised, place
from rag_eval_otel.capture.tree import (
    ACTIVE,
    Groups,
    Nesting,
    Owners,
    StepTree,
    in_order,
    lacks_retrieval,
)
from rag_eval_otel.types import ContextsFromPrompt, ContextsSource, SkipReason

Loss: TypeAlias = Literal["none", "possible"]
_Users: TypeAlias = "Mapping[Hashable, set[Hashable | None]]"
"""The turns that each step at or above an anchor belongs to."""

_OVERHEAD = 4096  # bytes of a held span and its records, without their texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One RAG turn: its anchor, and the steps from which its sample is read.

    ``path`` holds the anchor and its ancestors that belong to no other turn, nearest first.
    ``calls`` are the LLM calls by start. ``other_calls`` are the LLM calls below the anchor that
    are not among ``calls``; most precede every retrieval and write queries. ``retrievers`` are the
    retrievals by start.
    """

    anchor: Step
    path: tuple[Step, ...]
    calls: tuple[Step, ...]
    other_calls: tuple[Step, ...]
    retrievers: tuple[Step, ...]
    size: int = 0
    """About how many bytes it keeps alive while it waits, by the length of its texts."""
    doubt: SkipReason | None = None
    """Why its parts may not belong together, or not be all there are."""
    is_complete: bool = True
    """Whether all that belongs to it is known to be there; else it is compared in more ways."""
    steps: tuple[Step, ...] = ()
    """The chains below the anchor, where it may not be whole."""
    tools: tuple[Step, ...] = ()
    """The outermost tools and retrievals below the anchor, where it may not be whole."""
    ranking_calls: frozenset[Hashable] = frozenset()
    """The ids of the calls within steps that handed on documents and no text: they rank them."""
    tool_calls: frozenset[Hashable] = frozenset()
    """The ids of the calls made by tools, where it may not be whole."""
    lacks_retrieval: bool = False
    """Whether a retrieval that one of its tools should have made is not there."""

    @property
    def lacks_texts(self) -> bool:
        """Whether the texts of what was retrieved are not recorded, nor in a tool's result."""
        blind = sum(one.documents is None for one in self.retrievers)
        return blind > sum(bool(one.documents) for one in self._of_source("tool"))

    @property
    def contexts_source(self) -> ContextsSource:
        """Where its contexts are read: of several places the one that tells least for sure."""
        if "documents" in self.recorded:
            return "retrieval"
        if self.lacks_texts or any(self._of_source("prompt")):
            return "prompt"
        return "tool" if any(one.documents for one in self._of_source("tool")) else "retrieval"

    def _of_source(self, source: ContextsSource) -> Iterator[Step]:
        return (one for one in self.retrievers if one.contexts_source == source)

    @property
    def recorded(self) -> frozenset[Part]:
        """The parts that the application itself has set."""
        contexts = [one.recorded & {"documents"} for one in self.retrievers]
        answers = [one.recorded & {"output"} for one in self.calls]
        return frozenset().union(*(step.recorded for step in self.path), *contexts, *answers)


def find_turns(
    steps: Sequence[Step],
    *,
    loss: Loss = "none",
    contexts_from_prompt: ContextsFromPrompt = "off",
) -> list[Turn]:
    """Return the RAG turns in ``steps``, by the start of their first LLM call; often none.

    ``loss``: whether some of what happened may be missing from ``steps``.
    """
    tree = StepTree(steps)
    retrievals = find_retrievals(tree)
    groups = _group(tree, retrievals)
    if contexts_from_prompt == "on":
        grouped = {call.id for calls in groups.values() for call in calls}
        others = (call for call in tree.generators if call.id not in grouped)
        guessed = [one for one in map(retrieval_in, others) if one is not None]
        retrievals = tuple(sorted((*retrievals, *guessed), key=in_order))
        groups = _group(tree, retrievals)
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
    found_turns += _by_themselves(tree, retrievals)
    used = {one.id for turn in found_turns for one in (*turn.retrievers, *turn.path)}
    found_turns += _without_llm(tree, [one for one in retrievals if one.id not in used], users)
    below, around = _below(tree, owners), _around(tree, found_turns, owners)
    found_turns = [
        _surrounded(tree, turn, below[turn.anchor.id], around[turn.anchor.id])
        for turn in found_turns
    ]
    is_whole = loss == "none"
    found_turns = doubted(tree, found_turns, users=users, is_whole=is_whole)
    return [replace(p, is_complete=is_whole) for turn in found_turns for p in parted(turn)]


def _by_themselves(tree: StepTree, retrievals: Sequence[Step]) -> Iterator[Turn]:
    """Yield the calls around which there is nothing, and that were shown what tools had found."""
    shown: dict[Hashable, list[Step]] = defaultdict(list)
    for one in retrievals:
        if one.parent is None and one.kind == "retriever" and isinstance(one.id, tuple):
            shown[one.id[0]].append(one)
    for call in tree.generators:
        if call.id in shown and not call.calls_tools and (call.output or "").strip():
            doubt: SkipReason | None = "partial" if tree.is_orphan(call) else None
            parts = {"calls": (call,), "other_calls": (), "retrievers": shown[call.id]}
            yield _turn(call, (call,), **parts, doubt=doubt)


def _without_llm(tree: StepTree, retrievals: Sequence[Step], users: _Users) -> Iterator[Turn]:
    """Yield the turns in which no LLM is seen: nothing was found, or the answer was recorded."""
    called = {above.id for call in tree.generators for above in tree.ancestors(call)}
    filled = {h.id for one in retrievals if one.documents != () for h in _holders(tree, one)}
    busy = called | filled
    found: dict[Hashable, list[Step]] = defaultdict(list)
    for one in retrievals:
        for holder in _holders(tree, one):
            found_nothing = holder.id not in busy and holder.output is not None
            if found_nothing or "output" in holder.recorded:
                found[holder.id].append(one)
                break
    around = _users(tree, {**dict.fromkeys(users), **{anchor: anchor for anchor in found}})
    for anchor, retrievers in found.items():
        doubt: SkipReason | None = "partial" if _is_torn(tree, anchor) else None
        line = _path(tree, anchor, around)
        step = tree.by_id[anchor]
        yield _turn(step, line, calls=(), other_calls=(), retrievers=retrievers, doubt=doubt)


def _below(tree: StepTree, owners: Owners) -> dict[Hashable, list[Step]]:
    """Return what is below each anchor, and below none that is deeper."""
    found: dict[Hashable, list[Step]] = defaultdict(list)
    for one in tree.steps:
        anchor = next((owners[a.id] for a in tree.ancestors(one) if a.id in owners), None)
        if anchor is not None:
            found[anchor].append(one)
    return found


def _around(tree: StepTree, turns: Sequence[Turn], owners: Owners) -> dict[Hashable, list[Step]]:
    """Return what is below the path of each turn, and below no anchor."""
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


def _surrounded(tree: StepTree, turn: Turn, below: Sequence[Step], around: Sequence[Step]) -> Turn:
    """Return ``turn`` with the steps ``below`` its anchor, by which to tell what is missing.

    And with those ``around`` it, that are below no other.
    """
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
    if _is_torn(tree, anchor):
        return "partial"
    return "ambiguous" if nesting.may_be_step(anchor) else None


def _is_torn(tree: StepTree, anchor: Hashable) -> bool:
    """Tell whether a span around the turn is missing, or one within it that held others."""
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


def _group(tree: StepTree, retrievals: Sequence[Step]) -> dict[Hashable, list[Step]]:
    """Return the LLM calls by the id of their anchor; calls without an anchor are left out."""
    first: dict[Hashable, int] = {}  # the earliest retrieval below each step
    for retriever in retrievals:
        for above in _holders(tree, retriever):
            first[above.id] = min(retriever.start, first.get(above.id, retriever.start))
    groups: dict[Hashable, list[Step]] = {}
    for call in _writers(tree, first.keys()):
        holders = (a.id for a in tree.ancestors(call) if a.id in first)
        anchor = next((a for a in holders if first[a] <= call.start), None)
        if anchor is not None:
            groups.setdefault(anchor, []).append(call)
    return groups


def _writers(tree: StepTree, holders: Container[Hashable]) -> Iterator[Step]:
    """Yield what may have written an answer: LLM calls, and steps that say what they answered.

    Such a step is none of ``holders``, which hold retrievals, too, and stands for the calls in it.
    """
    said = {f.id: f for f in tree.steps if "output" in f.recorded and f.id not in holders}
    for call in tree.generators:
        step = next((above.id for above in tree.path(call) if above.id in said), None)
        if step is None:
            yield call
        else:
            said[step] = replace(said[step], prompt=call.prompt, input=call.input)
    yield from (replace(step, kind="llm") for step in said.values())


def _holders(tree: StepTree, retrieval: Step) -> Iterable[Step]:
    """Return what a retrieval is below; documents the application set are on the holder itself."""
    explicit = retrieval.kind not in RETRIEVALS
    return tree.path(retrieval) if explicit else tree.ancestors(retrieval)


def _retrievers(
    tree: StepTree, owners: Owners, retrievals: Sequence[Step]
) -> dict[Hashable, list[Step]]:
    """Return the retrievals by turn: that of the deepest anchor above them."""
    found: dict[Hashable, list[Step]] = defaultdict(list)
    for retriever in retrievals:
        anchor = next((a.id for a in _holders(tree, retriever) if a.id in owners), None)
        if anchor is not None:
            found[owners[anchor]].append(retriever)
    return found


def _other_calls(tree: StepTree, calls: Groups, users: _Users) -> dict[Hashable, list[Step]]:
    """Return the LLM calls below the anchor of a turn, or around it, that are not the turn's own.

    Around it only what called no tools: these may be of something else.
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
    """Return the turns that each step at or above an anchor belongs to."""
    users: dict[Hashable, set[Hashable | None]] = defaultdict(set)
    for anchor, owner in owners.items():
        for step in tree.path(tree.by_id[anchor]):
            users[step.id].add(owner)
    return users


def _path(tree: StepTree, anchor: Hashable, users: _Users) -> tuple[Step, ...]:
    """Return the anchor, and what is above it and of no other turn."""
    start = tree.by_id[anchor]
    return (start, *(a for a in tree.ancestors(start) if users[a.id] == {anchor}))


_Told: TypeAlias = "Mapping[str, Sequence[Step]]"


def doubted(tree: StepTree, turns: Sequence[Turn], *, users: _Users, is_whole: bool) -> list[Turn]:
    """Return ``turns``, in doubt where they may be mere steps of one that is not seen, or grade.

    ``users``: the turns that each step at or above an anchor belongs to.
    """
    odd = set() if is_whole else _unwritten(tree, users)
    told: dict[str, list[Step]] = defaultdict(list)
    for call in tree.generators:
        told[normalised(call.output or "")].append(call)
    answering = {call.id for turn in turns for call in turn.calls}
    found = []
    for turn in turns:
        if any(above.id in odd for above in tree.ancestors(turn.anchor)):
            found.append(replace(turn, doubt=turn.doubt or "partial"))
        elif any(c.id in answering or _was_shown(c, turn) for c in _asked_for(turn, told)):
            found.append(replace(turn, doubt=turn.doubt or "ambiguous"))
        else:
            found.append(turn)
    return found


def _unwritten(tree: StepTree, users: _Users) -> set[Hashable]:
    """Return the steps around several turns whose output none of the calls below them wrote."""
    shared = (one for one in tree.steps if len(users.get(one.id, ())) > 1)
    left = {one.id: one.output for one in shared if one.output and not one.flat}
    for call in tree.generators if left else ():
        said = call.output or ""
        for above in tree.ancestors(call):
            told = left.get(above.id, "")
            if is_in(said, told) or is_in(told, said):
                del left[above.id]
    return set(left)


def _asked_for(turn: Turn, told: _Told) -> list[Step]:
    """Return the calls of others that said just what ``turn`` asks."""
    own = {call.id for call in turn.calls}
    asked = {normalised(step.input) for step in turn.path if step.input}
    return [call for text in asked for call in told.get(text, ()) if call.id not in own]


def _was_shown(call: Step, turn: Turn) -> bool:
    """Tell whether ``call`` was shown what ``turn`` retrieved: then it answered, and asked not."""
    found = (p.text for one in turn.retrievers for p in one.documents or ())
    return any(place(text, call.prompt) for text in found)


ANSWER_LENGTH = 20
"""Characters from which the output of an LLM may be an answer."""
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
    if len(grounded) == 1 and is_same(turn.anchor.output, grounded[0][0].output):
        return [turn]  # it says itself what it was asked and answered, and nothing else was
    callers = [one for one in (*turn.other_calls, *turn.calls) if one.calls_tools]
    parts = [
        replace(
            turn,
            anchor=call,
            path=(call,),
            calls=(call,),
            other_calls=tuple(one for one in callers if one.start < call.start),  # wrote its query
            retrievers=used,
        )
        for call, used in grounded
    ]
    return [replace(part, doubt=part.doubt or _doubt_of_part(part, turn)) for part in parts]


def _doubt_of_part(part: Turn, turn: Turn) -> SkipReason | None:
    """Return why ``part`` of a flat ``turn`` may not be what it seems.

    It may grade another answer, or have been shown what a retrieval found whose texts are unknown.
    """
    if may_grade(part.anchor, turn):
        return "ambiguous"
    used = {one.id for one in part.retrievers}
    unknown = [one for one in turn.retrievers if one.documents is None and one.id not in used]
    known = any(one.documents for one in part.retrievers)
    is_mixed = known and any(one.start < part.anchor.start for one in unknown)
    return "no_contexts" if is_mixed else None


def says_little(call: Step) -> bool:
    """Tell whether what an LLM said is too little for an answer that others are made of."""
    return len(call.output or "") < ANSWER_LENGTH or is_verdict(call.output or "")


def may_grade(call: Step, turn: Turn) -> bool:
    """Tell whether ``call`` was shown what an earlier one made of the same passages.

    Then it may grade, name or translate that, or put it better: nobody can tell. What a tool has
    said is there to be used.
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
    """Tell whether nothing later was made of what ``call`` said."""
    text = call.output or ""
    if says_little(call):
        return False
    later = [one for one in (*turn.calls, *turn.retrievers) if one.start > call.start]
    asked = [message for one in later for message in (*one.prompt, one.input or "")]
    return place(text, asked) is None


def _used(call: Step, retrievers: Sequence[Step]) -> tuple[Step, ...]:
    """Return the retrievals whose documents ``call`` was shown: those of its own question."""
    used = [one for one in retrievers if one.start < call.start and _is_used(one, call)]
    own = [one for one in used if one.input and place(one.input, call.prompt)]
    return tuple(own or used[-1:])


def _is_used(one: Step, call: Step) -> bool:
    if one.documents is None:
        asked = (call.input, *call.variables.values())
        return any(is_same(one.input, text) for text in asked)
    shown = any(place(passage.text, call.prompt) for passage in one.documents)
    return shown or (one.documents == () and is_in(one.input or "", call.input or ""))
