"""Grouping: which fragments of a trace make up one RAG turn, and which span stands for it.

The *anchor* of an LLM call is its deepest ancestor that also holds a retrieval begun before the
call. LLM calls with one anchor are one turn. This looks at structure only, never at texts, so it
is cheap enough for the application's thread.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from rag_eval_otel.capture.fragment import Fragment, FragmentTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One RAG turn: the anchor, and the fragments its sample is drawn from.

    ``line`` holds the anchor and those of its ancestors that belong to this turn alone, nearest
    first. ``calls`` are the LLM calls by start, ``rewrites`` those made before any retrieval (they
    write queries, not answers), ``retrievers`` the retrievals by start.
    """

    anchor: Fragment
    line: tuple[Fragment, ...]
    calls: tuple[Fragment, ...]
    rewrites: tuple[Fragment, ...]
    retrievers: tuple[Fragment, ...]


def find_turns(fragments: Sequence[Fragment]) -> list[Turn]:
    """Return the RAG turns in ``fragments``, by the start of their first LLM call; often none."""
    tree = FragmentTree(fragments)
    if not tree.retrievers or not tree.generators:
        return []
    groups = _group(tree)
    outer = {anchor: _enclosing(tree, anchor, groups) for anchor in groups}
    roots = [anchor for anchor in groups if outer[anchor] is None]
    turns = [_turn(tree, anchor, groups=groups, outer=outer) for anchor in roots]
    return [turn for turn in turns if turn.retrievers]


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


def _enclosing(
    tree: FragmentTree, anchor: Hashable, groups: dict[Hashable, list[Fragment]]
) -> Hashable | None:
    """Return the anchor that uses this one as a tool: the whole is then the outer one's turn."""
    below_tool = False
    for ancestor in tree.ancestors(tree.by_id[anchor]):
        below_tool = below_tool or ancestor.kind == "tool"
        if below_tool and ancestor.id in groups:
            return ancestor.id
    return None


def _turn(
    tree: FragmentTree,
    anchor: Hashable,
    *,
    groups: dict[Hashable, list[Fragment]],
    outer: dict[Hashable, Hashable | None],
) -> Turn:
    mine = {anchor, *(inner for inner in groups if _belongs(inner, anchor, outer))}
    calls = [call for member in mine for call in groups[member]]
    return Turn(
        anchor=tree.by_id[anchor],
        line=_own_line(tree, anchor, others=groups.keys() - mine),
        calls=tuple(sorted(calls, key=lambda c: c.start)),
        rewrites=tuple(c for c in tree.generators if _is_below(tree, c, anchor) and c not in calls),
        retrievers=tuple(r for r in tree.retrievers if _nearest(tree, r, groups) in mine),
    )


def _belongs(inner: Hashable, anchor: Hashable, outer: dict[Hashable, Hashable | None]) -> bool:
    up = outer[inner]
    while up is not None and up != anchor:
        up = outer[up]
    return up == anchor


def _nearest(
    tree: FragmentTree, retriever: Fragment, groups: dict[Hashable, list[Fragment]]
) -> Hashable | None:
    """Return the deepest anchor above a retrieval: the one whose turn it belongs to."""
    return next((a.id for a in tree.ancestors(retriever) if a.id in groups), None)


def _is_below(tree: FragmentTree, fragment: Fragment, anchor: Hashable) -> bool:
    return any(a.id == anchor for a in tree.ancestors(fragment))


def _own_line(
    tree: FragmentTree, anchor: Hashable, *, others: set[Hashable]
) -> tuple[Fragment, ...]:
    shared = {a.id for other in others for a in tree.line(tree.by_id[other])}
    return tuple(f for f in tree.line(tree.by_id[anchor]) if f.id not in shared)
