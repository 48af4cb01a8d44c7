"""Turns within turns: which of them are parts of the one around them.

A tool works for whoever calls it, so what retrieves below one is part of the caller's turn. An
inner turn is a mere step of the one around it, if that one answers something else in the end, and
either was asked the same, or has a later call that was shown what the inner one said or found: then
the calls within only graded it, or made a draft. Where one of several steps of one name is such a
step, all are: a loop may reject what it found. Where what the inner one said comes out in the end,
a later call only graded it, or named it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeAlias

from rag_eval_otel.capture.placing import Messages
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.text import is_same, normalised
from rag_eval_otel.capture.tree import StepTree

_MANY = 200  # turns in one step from which it is a loop over them: comparing takes the square

Groups: TypeAlias = "Mapping[Hashable, Sequence[Step]]"
"""LLM calls by the id of their anchor."""

Owners: TypeAlias = "Mapping[Hashable, Hashable | None]"
"""For each anchor the one whose turn it is part of: itself, unless another leads it."""


class Nesting:
    """Which anchors are within others, and what these made of them."""

    def __init__(self, tree: StepTree, groups: Groups, retrievals: Sequence[Step]) -> None:
        """Look at the anchors of ``groups`` in ``tree``, and at what ``retrievals`` found."""
        self._tree = tree
        self._groups = groups
        self._found: dict[Hashable, list[str]] = defaultdict(list)
        for one in retrievals:
            texts = [passage.text for passage in one.documents or ()]
            for above in tree.line(one):
                if above.id in groups:
                    self._found[above.id] += texts
        self._shown: dict[Hashable, str] = {}
        anchors = (tree.by_id[anchor] for anchor in groups)
        self._held = Counter(above.id for one in anchors for above in tree.ancestors(one))

    def owners(self) -> Owners:
        """Return for each anchor the outermost that leads it, or itself; None in a circle."""
        leaders = {anchor: self._leader(anchor) for anchor in self._groups}
        alike = {self._role(one): above for one, above in leaders.items() if above is not None}
        for anchor, above in leaders.items():
            leader = alike.get(self._role(anchor))
            if above is None and leader != anchor:
                leaders[anchor] = leader
        return {anchor: _outermost(anchor, leaders) for anchor in self._groups}

    def _leader(self, anchor: Hashable) -> Hashable | None:
        """Return the next anchor above that uses this one as a tool, or as a step of its own."""
        inner = self._tree.by_id[anchor]
        below_tool = inner.kind == "tool"
        for above in self._tree.ancestors(inner):
            below_tool = below_tool or above.kind == "tool"
            if above.id in self._groups and (below_tool or self._is_step(inner, above)):
                return above.id
        return None

    def _role(self, anchor: Hashable) -> tuple[str, Hashable | None]:
        """Return what tells the steps of a loop from others: name and parent."""
        step = self._tree.by_id[anchor]
        return step.name, step.parent

    def _is_step(self, inner: Step, above: Step) -> bool:
        """Tell whether ``above`` goes on from ``inner``, and returns another text."""
        if above.flat or above.output is None:
            return False
        told = self._told(inner)
        if any(is_same(text, above.output) for text in told):
            return False
        return (
            is_same(inner.input, above.input)
            or self._was_shown(above, told)
            or self._was_shown_what_was_found(above, inner)
        )

    def _was_shown_what_was_found(self, above: Step, inner: Step) -> bool:
        """Tell whether a call of ``above`` that came later was shown what ``inner`` had found."""
        if self._held[above.id] > _MANY:
            return False
        since = inner.start if inner.end is None else inner.end
        later = (call for call in self._groups[above.id] if call.start >= since)
        shown = Messages(text for call in later for text in call.prompt)
        return any(shown.place(text) for text in self._found[inner.id])

    def may_be_step(self, anchor: Hashable) -> bool:
        """Tell whether a turn may be a mere step of the one around, which does not tell its answer.

        Not one of several: they are a loop over questions.
        """
        inner, within = self._tree.by_id[anchor], 1
        for above in self._tree.ancestors(inner):
            is_alone = self._held[above.id] == within
            within += above.id in self._groups
            if above.id not in self._groups or above.flat or above.output is not None:
                continue
            if is_alone and self._was_shown(above, self._told(inner)):
                return True
        return False

    def _told(self, anchor: Step) -> list[str]:
        return [one.output for one in (anchor, *self._groups[anchor.id]) if one.output]

    def _was_shown(self, above: Step, texts: Sequence[str]) -> bool:
        """Tell whether the calls of ``above`` were shown one of ``texts``, as it is or escaped.

        They may have been where what they were shown is not recorded.
        """
        if self._held[above.id] > _MANY:
            return False
        if not all(any(call.prompt) for call in self._groups[above.id]):
            return True
        if above.id not in self._shown:
            prompts = (text for call in self._groups[above.id] for text in call.prompt)
            self._shown[above.id] = normalised("\n".join(prompts))
        shown = self._shown[above.id]
        return any(
            normalised(form) in shown
            for text in texts
            if text.strip()
            for form in (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
        )


def _outermost(anchor: Hashable, leaders: Owners) -> Hashable | None:
    seen: set[Hashable] = set()
    above: Hashable | None = anchor
    while above is not None and above not in seen:
        seen.add(above)
        anchor, above = above, leaders[above]
    return anchor if above is None else None
