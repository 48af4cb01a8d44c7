"""Grouping: which fragments of a trace make up one RAG turn, and which span stands for it.

The *anchor* of an LLM call is its deepest ancestor that also holds a retrieval begun before the
call. LLM calls with one anchor are one turn. This looks at structure, and at texts only where one
turn is within another, so it is cheap enough for the application's thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from rag_eval_otel.capture.flat import parted
from rag_eval_otel.capture.fragment import RETRIEVALS, Fragment, Part
from rag_eval_otel.capture.neighbours import doubted
from rag_eval_otel.capture.nesting import Groups, Nesting, Owners
from rag_eval_otel.capture.retrievals import find_retrievals
from rag_eval_otel.capture.tree import ACTIVE, FragmentTree, in_order
from rag_eval_otel.capture.view import SpanView
from rag_eval_otel.types import SkipReason

Loss: TypeAlias = Literal["none", "possible"]

_OVERHEAD = 4096  # bytes of a held span and its records, without their texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One RAG turn: the anchor, and the fragments its sample is drawn from.

    ``line`` holds the anchor and those of its ancestors that belong to this turn alone, nearest
    first. ``calls`` are the LLM calls by start, ``rewrites`` the others below the anchor (most made
    before any retrieval: they write queries, not answers), ``retrievers`` the retrievals by start.
    """

    anchor: Fragment
    line: tuple[Fragment, ...]
    calls: tuple[Fragment, ...]
    rewrites: tuple[Fragment, ...]
    retrievers: tuple[Fragment, ...]
    size: int = 0
    """About how many bytes it keeps alive while it waits, by the length of its texts."""
    doubt: SkipReason | None = None
    """Why its parts may not belong together, or not be all there are."""
    is_whole: bool = True
    """Whether all that belongs to it is known to be there; else it is compared in more ways."""
    steps: tuple[Fragment, ...] = ()
    """The chains below the anchor, where it may not be whole."""
    tools: tuple[Fragment, ...] = ()
    """The outermost tools and retrievals below the anchor, where it may not be whole."""
    within_tools: frozenset[Hashable] = frozenset()
    """The ids of the calls made by tools, where it may not be whole."""
    span: SpanView | None = None
    """The span that stands for it, where the application has said something on it."""

    @property
    def explicit(self) -> frozenset[Part]:
        """The parts that the application itself has set."""
        contexts = [one.explicit & {"documents"} for one in self.retrievers]
        answers = [one.explicit & {"output"} for one in self.calls]
        return frozenset().union(*(step.explicit for step in self.line), *contexts, *answers)


def find_turns(fragments: Sequence[Fragment], *, loss: Loss = "none") -> list[Turn]:
    """Return the RAG turns in ``fragments``, by the start of their first LLM call; often none.

    ``loss``: whether some of what happened may be missing from ``fragments``.
    """
    tree = FragmentTree(fragments)
    retrievals = find_retrievals(tree)
    groups = _group(tree, retrievals)
    nesting = Nesting(tree, groups)
    owners = nesting.owners()
    retrievers = _retrievers(tree, owners, retrievals)
    calls: dict[Hashable, list[Fragment]] = {}
    for anchor, found in groups.items():
        calls.setdefault(owners[anchor], []).extend(found)
    users = _users(tree, owners)
    rewrites = _rewrites(tree, calls, users)
    found_turns = [
        _turn(
            tree.by_id[anchor],
            _line(tree, anchor, users),
            calls=sorted(found, key=in_order),
            rewrites=rewrites[anchor],
            retrievers=retrievers[anchor],
            doubt=_doubt(tree, anchor, nesting),
        )
        for anchor, found in calls.items()
        if anchor is not None and anchor in retrievers
    ]
    if loss == "possible":
        used = {one.id for turn in found_turns for one in turn.retrievers}
        found_turns += _without_llm(tree, [one for one in retrievals if one.id not in used])
        below = _below(tree, owners)
        found_turns = [_surrounded(tree, turn, below[turn.anchor.id]) for turn in found_turns]
        found_turns = doubted(tree, found_turns, users)
    return [part for turn in found_turns for part in parted(turn)]


def _without_llm(tree: FragmentTree, retrievals: Sequence[Fragment]) -> Iterator[Turn]:
    """Yield the turns in which no LLM is seen: nothing was found, or the answer was recorded."""
    called = {above.id for call in tree.generators for above in tree.ancestors(call)}
    filled = {h.id for one in retrievals if one.documents != () for h in _holders(tree, one)}
    busy = called | filled
    found: dict[Hashable, list[Fragment]] = defaultdict(list)
    for one in retrievals:
        for holder in _holders(tree, one):
            found_nothing = holder.id not in busy and holder.output is not None
            if found_nothing or "output" in holder.explicit:
                found[holder.id].append(one)
                break
    for anchor, retrievers in found.items():
        doubt: SkipReason | None = "partial" if _is_torn(tree, anchor) else None
        step = tree.by_id[anchor]
        line = tree.line(step)
        yield _turn(step, line, calls=(), rewrites=(), retrievers=retrievers, doubt=doubt)


def _below(tree: FragmentTree, owners: Owners) -> dict[Hashable, list[Fragment]]:
    """Return what is below each anchor, and below none that is deeper."""
    found: dict[Hashable, list[Fragment]] = defaultdict(list)
    for one in tree.fragments:
        anchor = next((owners[a.id] for a in tree.ancestors(one) if a.id in owners), None)
        if anchor is not None:
            found[anchor].append(one)
    return found


def _surrounded(tree: FragmentTree, turn: Turn, below: Sequence[Fragment]) -> Turn:
    """Return ``turn`` with the steps ``below`` its anchor, by which to tell what is missing."""
    tools = [one for one in below if one.kind in ACTIVE and not tree.active_above(one)]
    steps = (one for one in below if one.kind in {"chain", "agent"})
    return replace(
        turn,
        is_whole=False,
        steps=(turn.anchor, *steps),
        tools=tuple(tools),
        within_tools=_within(tree, (*turn.calls, *turn.rewrites), tools),
        doubt=turn.doubt or ("partial" if _lacks_user(tree, turn, below) else None),
    )


def _within(
    tree: FragmentTree, calls: Sequence[Fragment], tools: Sequence[Fragment]
) -> frozenset[Hashable]:
    inner = {tool.id for tool in tools}
    return frozenset(call.id for call in calls if not inner.isdisjoint(tree.active_above(call)))


def _lacks_user(tree: FragmentTree, turn: Turn, below: Sequence[Fragment]) -> bool:
    """Tell whether a tool retrieved in one call and not in another, or nobody used what it said."""
    around = tree.line(turn.anchor)
    if any(step.kind == "tool" for step in around[:-1]):
        return True
    above = tree.searching | {a.id for one in turn.retrievers for a in tree.ancestors(one)}
    called = [one for one in below if one.kind == "tool" and one.error is None]
    retrieving = {tool.name for tool in called if tool.id in above}
    return any(tool.name in retrieving and tool.id not in above for tool in called)


def _turn(
    anchor: Fragment,
    line: tuple[Fragment, ...],
    *,
    calls: Sequence[Fragment],
    rewrites: Sequence[Fragment],
    retrievers: Sequence[Fragment],
    doubt: SkipReason | None,
) -> Turn:
    return Turn(
        anchor=anchor,
        line=line,
        calls=tuple(calls),
        rewrites=tuple(rewrites),
        retrievers=tuple(retrievers),
        size=_size((*line, *calls, *rewrites, *retrievers)),
        doubt=doubt,
    )


def _doubt(tree: FragmentTree, anchor: Hashable, nesting: Nesting) -> SkipReason | None:
    if _is_torn(tree, anchor):
        return "partial"
    return "ambiguous" if nesting.may_be_step(anchor) else None


def _is_torn(tree: FragmentTree, anchor: Hashable) -> bool:
    """Tell whether a span around the turn is missing, or one within it that held others."""
    start, end = tree.by_id[anchor].start, tree.by_id[anchor].end
    within = tree.orphans[bisect_left(tree.orphans, start) :]
    lacks_inner = bool(within) and (end is None or within[0] <= end)
    return lacks_inner or tree.is_orphan(tree.line(tree.by_id[anchor])[-1])


def _size(fragments: Sequence[Fragment]) -> int:
    size = _OVERHEAD
    for one in fragments:
        size += len(one.input or "") + len(one.output or "") + sum(map(len, one.prompt))
        size += sum(len(passage.text) for passage in one.documents or ())
    return size


def _group(tree: FragmentTree, retrievals: Sequence[Fragment]) -> dict[Hashable, list[Fragment]]:
    """Return the LLM calls by the id of their anchor; calls without an anchor are left out."""
    first: dict[Hashable, int] = {}  # the earliest retrieval below each fragment
    for retriever in retrievals:
        for above in _holders(tree, retriever):
            first[above.id] = min(retriever.start, first.get(above.id, retriever.start))
    groups: dict[Hashable, list[Fragment]] = {}
    for call in _writers(tree, first.keys()):
        holders = (a.id for a in tree.ancestors(call) if a.id in first)
        anchor = next((a for a in holders if first[a] <= call.start), None)
        if anchor is not None:
            groups.setdefault(anchor, []).append(call)
    return groups


def _writers(tree: FragmentTree, holders: Container[Hashable]) -> Iterator[Fragment]:
    """Yield what may have written an answer: LLM calls, and steps that say what they answered.

    Such a step is none of ``holders``, which hold retrievals, too, and stands for the calls in it.
    """
    said = {f.id: f for f in tree.fragments if "output" in f.explicit and f.id not in holders}
    for call in tree.generators:
        step = next((above.id for above in tree.line(call) if above.id in said), None)
        if step is None:
            yield call
        else:
            said[step] = replace(said[step], prompt=call.prompt, input=call.input)
    yield from (replace(step, kind="llm") for step in said.values())


def _holders(tree: FragmentTree, retrieval: Fragment) -> Iterable[Fragment]:
    """Return what a retrieval is below; documents the application set are on the holder itself."""
    explicit = retrieval.kind not in RETRIEVALS
    return tree.line(retrieval) if explicit else tree.ancestors(retrieval)


def _retrievers(
    tree: FragmentTree, owners: Owners, retrievals: Sequence[Fragment]
) -> dict[Hashable, list[Fragment]]:
    """Return the retrievals by turn: that of the deepest anchor above them."""
    found: dict[Hashable, list[Fragment]] = defaultdict(list)
    for retriever in retrievals:
        anchor = next((a.id for a in _holders(tree, retriever) if a.id in owners), None)
        if anchor is not None:
            found[owners[anchor]].append(retriever)
    return found


def _rewrites(
    tree: FragmentTree, calls: Groups, users: Mapping[Hashable, set[Hashable | None]]
) -> dict[Hashable, list[Fragment]]:
    """Return the LLM calls below the anchor of a turn, or around it, that are not the turn's own.

    Around it only what called no tools: these may be of something else.
    """
    known = {(anchor, call.id) for anchor, several in calls.items() for call in several}
    found: dict[Hashable, list[Fragment]] = defaultdict(list)
    for call in tree.generators:
        for above in tree.ancestors(call):
            around = users.get(above.id, set()) if not call.calls_tools else set()
            anchor = above.id if above.id in calls or len(around) != 1 else next(iter(around))
            if anchor in calls and (anchor, call.id) not in known:
                known.add((anchor, call.id))
                found[anchor].append(call)
    return found


def _users(tree: FragmentTree, owners: Owners) -> dict[Hashable, set[Hashable | None]]:
    """Return the turns that each fragment at or above an anchor belongs to."""
    users: dict[Hashable, set[Hashable | None]] = defaultdict(set)
    for anchor, owner in owners.items():
        for step in tree.line(tree.by_id[anchor]):
            users[step.id].add(owner)
    return users


def _line(
    tree: FragmentTree, anchor: Hashable, users: Mapping[Hashable, set[Hashable | None]]
) -> tuple[Fragment, ...]:
    """Return the anchor, and what is above it and of no other turn."""
    start = tree.by_id[anchor]
    return (start, *(a for a in tree.ancestors(start) if users[a.id] == {anchor}))
