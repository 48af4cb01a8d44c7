"""Grouping: which fragments of a trace make up one RAG turn, and which span stands for it.

The *anchor* of an LLM call is its deepest ancestor that also holds a retrieval begun before the
call. LLM calls with one anchor are one turn. This looks at structure only, never at texts, so it
is cheap enough for the application's thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rag_eval_otel.capture.fragment import Fragment, FragmentTree

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


Groups: TypeAlias = "Mapping[Hashable, Sequence[Fragment]]"
"""LLM calls by the id of their anchor."""

Owners: TypeAlias = "Mapping[Hashable, Hashable | None]"
"""For each anchor the one whose turn it is part of: itself, unless it is used as a tool."""


def find_turns(fragments: Sequence[Fragment]) -> list[Turn]:
    """Return the RAG turns in ``fragments``, by the start of their first LLM call; often none."""
    tree = FragmentTree(fragments)
    groups = _group(tree)
    owners = {anchor: _owner(tree, anchor, groups) for anchor in groups}
    retrievers = _retrievers(tree, owners)
    calls: dict[Hashable, list[Fragment]] = {}
    for anchor, found in groups.items():
        calls.setdefault(owners[anchor], []).extend(found)
    rewrites = _rewrites(tree, calls)
    users = _users(tree, owners)
    return [
        _turn(
            tree.by_id[anchor],
            _line(tree, anchor, users),
            calls=sorted(found, key=lambda call: call.start),
            rewrites=rewrites[anchor],
            retrievers=retrievers[anchor],
        )
        for anchor, found in calls.items()
        if anchor is not None and anchor in retrievers
    ]


def _turn(
    anchor: Fragment,
    line: tuple[Fragment, ...],
    *,
    calls: Sequence[Fragment],
    rewrites: Sequence[Fragment],
    retrievers: Sequence[Fragment],
) -> Turn:
    return Turn(
        anchor=anchor,
        line=line,
        calls=tuple(calls),
        rewrites=tuple(rewrites),
        retrievers=tuple(retrievers),
        size=_size((*line, *calls, *rewrites, *retrievers)),
    )


def _size(fragments: Sequence[Fragment]) -> int:
    size = _OVERHEAD
    for one in fragments:
        size += len(one.input or "") + len(one.output or "") + sum(map(len, one.prompt))
        size += sum(len(passage.text) for passage in one.documents or ())
    return size


def _group(tree: FragmentTree) -> dict[Hashable, list[Fragment]]:
    """Return the LLM calls by the id of their anchor; calls without an anchor are left out."""
    first: dict[Hashable, int] = {}  # the earliest retrieval below each fragment
    for retriever in tree.retrievers:
        for above in tree.ancestors(retriever):
            first[above.id] = min(retriever.start, first.get(above.id, retriever.start))
    groups: dict[Hashable, list[Fragment]] = {}
    for call in tree.generators:
        holders = (a.id for a in tree.ancestors(call) if a.id in first)
        anchor = next((a for a in holders if first[a] <= call.start), None)
        if anchor is not None:
            groups.setdefault(anchor, []).append(call)
    return groups


def _owner(tree: FragmentTree, anchor: Hashable, groups: Groups) -> Hashable | None:
    """Return the outermost anchor that uses this one as a tool, or itself; None in a circle."""
    seen: set[Hashable] = set()
    above: Hashable | None = anchor
    while above is not None and above not in seen:
        seen.add(above)
        anchor, above = above, _enclosing(tree, above, groups)
    return anchor if above is None else None


def _enclosing(tree: FragmentTree, anchor: Hashable, groups: Groups) -> Hashable | None:
    """Return the next anchor above a tool that this one is or is below."""
    below_tool = tree.by_id[anchor].kind == "tool"
    for ancestor in tree.ancestors(tree.by_id[anchor]):
        below_tool = below_tool or ancestor.kind == "tool"
        if below_tool and ancestor.id in groups:
            return ancestor.id
    return None


def _retrievers(tree: FragmentTree, owners: Owners) -> dict[Hashable, list[Fragment]]:
    """Return the retrievals by turn: that of the deepest anchor above them."""
    found: dict[Hashable, list[Fragment]] = defaultdict(list)
    for retriever in tree.retrievers:
        anchor = next((a.id for a in tree.ancestors(retriever) if a.id in owners), None)
        if anchor is not None:
            found[owners[anchor]].append(retriever)
    return found


def _rewrites(tree: FragmentTree, calls: Groups) -> dict[Hashable, list[Fragment]]:
    """Return the LLM calls below the anchor of a turn that are not the turn's own."""
    turn_of = {call.id: anchor for anchor, found in calls.items() for call in found}
    found: dict[Hashable, list[Fragment]] = defaultdict(list)
    for call in tree.generators:
        for above in tree.ancestors(call):
            if above.id in calls and turn_of.get(call.id) != above.id:
                found[above.id].append(call)
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
