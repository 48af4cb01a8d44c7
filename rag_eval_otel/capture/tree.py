"""The steps of a trace as a tree, and which of its turns are parts of others."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

from rag_eval_otel.capture.step import RETRIEVALS, Step
from rag_eval_otel.capture.text import Messages, is_same, normalised

ACTIVE = RETRIEVALS | {"tool"}
"""What does something outside of the LLM."""

_LEAKING = frozenset({"embedding", "llm", "reranker", "retriever", "tool"})
_DEPTH = 100  # of parents that are looked at; recursion beyond that is not anybody's turn
_TOGETHER = 30_000_000  # ns by which two records of one call begin and end apart, at most


def in_order(step: Step) -> tuple[int, str]:
    """Sort by start; by id where two started at once."""
    return step.start, str(step.id)


class StepTree:
    """Steps by id. Cycles in the parents are cut.

    A retriever, LLM or tool that had ended before something below it began is no parent: somebody
    forgot to detach its context.
    """

    def __init__(self, steps: Iterable[Step]) -> None:
        """Index ``steps``; of two with one id the first counts."""
        self.by_id: dict[Hashable, Step] = {}
        for step in steps:
            self.by_id.setdefault(step.id, step)
        self.steps = tuple(sorted(self.by_id.values(), key=in_order))
        self._active: dict[Hashable, tuple[Hashable, ...]] = {}

    def ancestors(self, step: Step) -> Iterator[Step]:
        """Yield the parents of ``step``, nearest first."""
        seen = {step.id}
        parent = step.parent
        while parent in self.by_id and parent not in seen and len(seen) < _DEPTH:
            seen.add(parent)
            above = self.by_id[parent]
            leaked = above.end is not None and above.end < step.start
            if not (leaked and above.kind in _LEAKING):
                yield above
            parent = above.parent

    def path(self, step: Step) -> tuple[Step, ...]:
        """Return ``step`` and its ancestors, nearest first."""
        return (step, *self.ancestors(step))

    def is_orphan(self, step: Step) -> bool:
        """Tell whether the parent of ``step`` should be there and is not."""
        parent = step.parent
        return parent is not None and parent not in self.by_id and not step.is_remote

    @cached_property
    def orphans(self) -> tuple[int, ...]:
        """When those steps began whose parent is missing, sorted."""
        return tuple(f.start for f in self.steps if self.is_orphan(f))

    def active_above(self, step: Step) -> tuple[Hashable, ...]:
        """Return the ids of the tools and retrievals above ``step``: few, so worth keeping."""
        if step.id not in self._active:
            above = tuple(a.id for a in self.ancestors(step) if a.kind in ACTIVE)
            self._active[step.id] = above
        return self._active[step.id]

    @cached_property
    def searching(self) -> frozenset[Hashable]:
        """The ids of what has a retrieval below it."""
        found = (one for one in self.steps if one.kind in RETRIEVALS)
        return frozenset(above.id for one in found for above in self.ancestors(one))

    @cached_property
    def children(self) -> Mapping[Hashable, set[str]]:
        """The kinds of what is right below each step."""
        found = defaultdict[Hashable, set[str]](set)
        for one in self.steps:
            found[one.parent].add(one.kind)
        return found

    def is_inside(self, step: Step, kinds: frozenset[str]) -> bool:
        """Tell whether ``step`` is below one of ``kinds``."""
        return any(above.kind in kinds for above in self.ancestors(step))

    @cached_property
    def generators(self) -> tuple[Step, ...]:
        """The LLM calls that succeeded outside of any retriever, by start, each once.

        Of nested calls the innermost that tells anything counts, and of two records of one call,
        by two instrumentations, the first.
        """
        calls = [f for f in self.steps if f.kind == "llm" and not self.is_inside(f, RETRIEVALS)]
        wraps: dict[Hashable, int] = {}
        for call in calls:
            for above in self.ancestors(call):
                if above.kind == "llm":
                    wraps[above.id] = wraps.get(above.id, 0) + 1
        inner = (self._telling(call, wraps) for call in calls if call.id not in wraps)
        return tuple(_each_once(sorted((c for c in inner if c.error is None), key=in_order)))

    def _telling(self, call: Step, wraps: dict[Hashable, int]) -> Step:
        """Return the innermost call that tells anything, with what only those around it tell."""
        around = [a for a in self.ancestors(call) if a.kind == "llm"]
        chosen = next((one for one in (call, *around) if _tells(one)), call)
        outer = [one for one in around if wraps[one.id] <= len(around)]
        if chosen.output is None and not chosen.calls_tools and "output" not in chosen.hidden:
            said = next((one.output for one in outer if one.output is not None), None)
            chosen = replace(chosen, output=said)
        if chosen.prompt or "prompt" in chosen.hidden:
            return chosen
        shown = next((one for one in outer if one.prompt), chosen)
        return replace(
            chosen,
            input=shown.input,
            prompt=shown.prompt,
            own_messages=shown.own_messages,
            tool_results=shown.tool_results,
        )


def _each_once(calls: Iterable[Step]) -> Iterator[Step]:
    """Yield ``calls``, by start, without those that another instrumentation recorded, too."""
    running: dict[Hashable, list[Step]] = {}  # by parent
    responses: dict[str, Step] = {}
    for call in calls:
        beside = [c for c in running.get(call.parent, ()) if c.end is None or c.end >= call.start]
        running[call.parent] = beside
        known = responses.get(call.response_id or "")
        if any(_is_same_call(call, other) for other in (*beside, *([known] if known else []))):
            continue
        beside.append(call)
        if call.response_id:
            responses[call.response_id] = call
        yield call


def _tells(call: Step) -> bool:
    return bool(
        call.prompt or call.output or call.calls_tools or call.hidden or call.cut or call.error
    )


def _is_same_call(one: Step, other: Step) -> bool:
    """Tell whether two instrumentations recorded one call: by its id, or by text and time."""
    if one.source == other.source:
        return False
    if one.response_id and other.response_id:
        return one.response_id == other.response_id
    if one.parent != other.parent or one.end is None or other.end is None:
        return False
    close = abs(one.start - other.start) < _TOGETHER and abs(one.end - other.end) < _TOGETHER
    same = one.output == other.output or None in {one.output, other.output}
    return same and (close or other.start <= one.start <= one.end <= other.end)


def lacks_retrieval(tree: StepTree, retrievers: Sequence[Step], below: Sequence[Step]) -> bool:
    """Tell whether a tool, or a chain of one name, retrieved in one call and not in another.

    ``retrievers`` are the retrievals of a turn, ``below`` what is below its anchor.
    """
    below = [one for one in below if one.error is None]
    above = tree.searching | {a.id for one in retrievers for a in tree.path(one)}
    tools = [one for one in below if one.kind == "tool"]
    retrieving = {tool.name for tool in tools if tool.id in above}
    if any(tool.name in retrieving and tool.id not in above for tool in tools):
        return True
    chains = [one for one in below if one.kind == "chain"]
    searching = {(one.name, one.parent) for one in chains if tree.children[one.id] & RETRIEVALS}
    empty = ((one.name, one.parent) for one in chains if not tree.children[one.id])
    return any(role in searching for role in empty)


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
            for above in tree.path(one):
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
