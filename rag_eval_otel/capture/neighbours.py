"""What the turns of one trace tell of each other: that one is a step, or a grade, of another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from rag_eval_otel.capture.fragment import Fragment
from rag_eval_otel.capture.matching import is_in, normalised, place
from rag_eval_otel.capture.tree import FragmentTree

if TYPE_CHECKING:
    from rag_eval_otel.capture.turns import Turn

_Users: TypeAlias = "Mapping[Hashable, set[Hashable | None]]"
_Told: TypeAlias = "Mapping[str, Sequence[Fragment]]"


def doubted(tree: FragmentTree, turns: Sequence[Turn], users: _Users) -> list[Turn]:
    """Return ``turns``, in doubt where they may be mere steps of one that is not seen, or grade.

    ``users``: the turns that each fragment at or above an anchor belongs to.
    """
    odd = _unwritten(tree, users)
    told: dict[str, list[Fragment]] = defaultdict(list)
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


def _unwritten(tree: FragmentTree, users: _Users) -> set[Hashable]:
    """Return the steps around several turns whose output none of the calls below them wrote."""
    shared = (one for one in tree.fragments if len(users.get(one.id, ())) > 1)
    left = {one.id: one.output for one in shared if one.output and not one.flat}
    for call in tree.generators if left else ():
        said = call.output or ""
        for above in tree.ancestors(call):
            told = left.get(above.id, "")
            if is_in(said, told) or is_in(told, said):
                del left[above.id]
    return set(left)


def _asked_for(turn: Turn, told: _Told) -> list[Fragment]:
    """Return the calls of others that said just what ``turn`` asks."""
    own = {call.id for call in turn.calls}
    asked = {normalised(step.input) for step in turn.line if step.input}
    return [call for text in asked for call in told.get(text, ()) if call.id not in own]


def _was_shown(call: Fragment, turn: Turn) -> bool:
    """Tell whether ``call`` was shown what ``turn`` retrieved: then it answered, and asked not."""
    found = (p.text for one in turn.retrievers for p in one.documents or ())
    return any(place(text, call.prompt) for text in found)
