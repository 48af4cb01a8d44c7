"""Arrange the steps of one trace as a tree, and find the steps that stand for a turn.

A *step* is one call in a trace: a retrieval, a call of a model or a tool, or a chain. A *turn* is
one question of a user and its answer. The *anchor* of a turn is the deepest step that contains both
a retrieval and a later LLM call. LLM calls are grouped by their anchor. An anchor within another
anchor may be a part of the same turn.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

from rag_eval_otel.capture.step import RETRIEVALS, Step
from rag_eval_otel.capture.values import Messages, is_same, normalised

ACTIVE = RETRIEVALS | {"tool"}
"""The kinds of steps that do something outside of the LLM: retrievals and calls of tools."""

_LEAVES = frozenset({"embedding", "llm", "reranker", "retriever", "tool"})
_DEPTH = 100  # the most ancestors of a step that are considered
_SAME_CALL_NS = 30_000_000  # two records of one call differ by less than this in start and end


def in_order(step: Step) -> tuple[int, str]:
    """Return the key by which the steps of a trace are sorted: the start time, then the id."""
    return step.start, str(step.id)


class StepTree:
    """The steps (retrievals and calls of models, tools or chains) of a trace as a tree.

    If steps are parents of each other in a circle, the circle is cut. An instrumentation that does
    not detach its context gives later spans a wrong parent. So if a retrieval, LLM call or tool
    call ended before a step below it started, it does not count as an ancestor of that step.
    """

    def __init__(self, steps: Iterable[Step]) -> None:
        """Index the ``steps`` of a trace by id. If two steps have the same id, the first counts."""
        self.by_id: dict[Hashable, Step] = {}
        for step in steps:
            self.by_id.setdefault(step.id, step)
        self.steps = tuple(sorted(self.by_id.values(), key=in_order))
        self._active: dict[Hashable, tuple[Hashable, ...]] = {}

    def ancestors(self, step: Step) -> Iterator[Step]:
        """Yield the steps above ``step`` in the trace, beginning with its parent."""
        seen = {step.id}
        parent = step.parent
        while parent in self.by_id and parent not in seen and len(seen) < _DEPTH:
            seen.add(parent)
            above = self.by_id[parent]
            leaked = above.end is not None and above.end < step.start
            if not (leaked and above.kind in _LEAVES):
                yield above
            parent = above.parent

    def path(self, step: Step) -> tuple[Step, ...]:
        """Return ``step`` and the steps above it in the trace, nearest first."""
        return (step, *self.ancestors(step))

    def is_orphan(self, step: Step) -> bool:
        """Return True if ``step`` has a parent in this process that is missing from the trace."""
        parent = step.parent
        return parent is not None and parent not in self.by_id and not step.is_remote

    @cached_property
    def orphans(self) -> tuple[int, ...]:
        """The sorted start times of the steps whose parent is missing from the trace."""
        return tuple(f.start for f in self.steps if self.is_orphan(f))

    def active_above(self, step: Step) -> tuple[Hashable, ...]:
        """Return the ids of the tools and retrievals above ``step``, nearest first."""
        if step.id not in self._active:
            above = tuple(a.id for a in self.ancestors(step) if a.kind in ACTIVE)
            self._active[step.id] = above
        return self._active[step.id]

    @cached_property
    def above_retrievals(self) -> frozenset[Hashable]:
        """The ids of the steps that have a retrieval below them."""
        found = (one for one in self.steps if one.kind in RETRIEVALS)
        return frozenset(above.id for one in found for above in self.ancestors(one))

    @cached_property
    def child_kinds(self) -> Mapping[Hashable, set[str]]:
        """The kinds (such as retriever or LLM) of the children of each step, by step id."""
        found = defaultdict[Hashable, set[str]](set)
        for one in self.steps:
            found[one.parent].add(one.kind)
        return found

    def is_inside(self, step: Step, kinds: frozenset[str]) -> bool:
        """Return True if a step above ``step`` has one of the ``kinds``, such as retriever."""
        return any(above.kind in kinds for above in self.ancestors(step))

    @cached_property
    def generators(self) -> tuple[Step, ...]:
        """The successful LLM calls outside of retrievals, ordered by start, without duplicates.

        If an LLM call contains another LLM call, only the innermost call with content is included.
        If two instrumentations recorded the same call, the first record is included.
        """
        calls = [f for f in self.steps if f.kind == "llm" and not self.is_inside(f, RETRIEVALS)]
        wraps: dict[Hashable, int] = {}
        for call in calls:
            for above in self.ancestors(call):
                if above.kind == "llm":
                    wraps[above.id] = wraps.get(above.id, 0) + 1
        inner = (self._with_content(call, wraps) for call in calls if call.id not in wraps)
        return tuple(_distinct_calls(sorted((c for c in inner if c.error is None), key=in_order)))

    def _with_content(self, call: Step, wraps: dict[Hashable, int]) -> Step:
        around = [a for a in self.ancestors(call) if a.kind == "llm"]
        chosen = next((one for one in (call, *around) if _has_content(one)), call)
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


def _distinct_calls(calls: Iterable[Step]) -> Iterator[Step]:
    """Yield the LLM ``calls`` without duplicates. The ``calls`` must be ordered by start.

    A duplicate is a record of the same call by another instrumentation.
    """
    running: dict[Hashable, list[Step]] = {}  # LLM calls that have not ended, by parent
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


def _has_content(call: Step) -> bool:
    return bool(
        call.prompt or call.output or call.calls_tools or call.hidden or call.cut or call.error
    )


def _is_same_call(one: Step, other: Step) -> bool:
    """Return True if two instrumentations recorded the same LLM call.

    The response ids are compared. If a response id is missing, the parents, outputs and times of
    the two records are compared.
    """
    if one.source == other.source:
        return False
    if one.response_id and other.response_id:
        return one.response_id == other.response_id
    if one.parent != other.parent or one.end is None or other.end is None:
        return False
    apart = max(abs(one.start - other.start), abs(one.end - other.end))
    same = one.output == other.output or None in {one.output, other.output}
    return same and (apart < _SAME_CALL_NS or other.start <= one.start <= one.end <= other.end)


def lacks_retrieval(tree: StepTree, retrievers: Sequence[Step], below: Sequence[Step]) -> bool:
    """Return True if the span of a retrieval seems to be missing from the trace.

    This is so if a tool or chain was called several times, and only some of these calls contain a
    retrieval. ``retrievers`` are the retrievals of one question. ``below`` are the steps below the
    span that gets the scores of this question.
    """
    below = [one for one in below if one.error is None]
    above = tree.above_retrievals | {a.id for one in retrievers for a in tree.path(one)}
    tools = [one for one in below if one.kind == "tool"]
    retrieving = {tool.name for tool in tools if tool.id in above}
    if any(tool.name in retrieving and tool.id not in above for tool in tools):
        return True
    chains = [one for one in below if one.kind == "chain"]
    searching = {(one.name, one.parent) for one in chains if tree.child_kinds[one.id] & RETRIEVALS}
    empty = ((one.name, one.parent) for one in chains if not tree.child_kinds[one.id])
    return any(role in searching for role in empty)


def is_passed_on(tree: StepTree, anchor: Step, calls: Sequence[Step]) -> bool:
    """Return True if the answer of a question is in the prompt of a later LLM call around it.

    Then the question may be a part of another question. ``anchor`` is the step that gets the scores
    of the question, and ``calls`` are its own LLM calls. A later call that wrote only a word or two
    graded the answer, and an earlier message of the model itself is the history of a chat.
    """
    said = [text for one in calls[-1:] if len(text := (one.output or "").strip()) >= _FEW]
    above = (a for a in tree.ancestors(anchor) if a.kind in {"agent", "chain"} and not a.flat)
    around = {step.id for step in above} if said else set()
    own = {call.id for call in calls}
    later = (call for call in tree.generators if around and call.start >= calls[-1].start)
    return any(
        text in shown
        for call in later
        if call.id not in own
        and (call.output is None or len(call.output) >= _FEW)
        and any(one.id in around for one in tree.ancestors(call))
        for shown in call.prompt
        if shown not in call.own_messages
        for text in said
    )


_FEW = 20  # characters; a shorter text is no answer, but a verdict or a name
_MAX_NESTED = 200  # the most anchors in one step that are compared, in quadratic time

Groups: TypeAlias = "Mapping[Hashable, Sequence[Step]]"
"""LLM calls by the id of the deepest step that also contains a retrieval before these calls."""

Owners: TypeAlias = "Mapping[Hashable, Hashable | None]"
"""The id of an anchor, and the id of the anchor to whose turn it belongs.

An anchor is a step that contains a retrieval and a later LLM call. A turn is a question and its
answer. An anchor may have a turn of its own, or belong to the turn of another anchor. If anchors
belong to each other in a circle, the value is None.
"""


def group_calls(tree: StepTree, retrievals: Sequence[Step]) -> dict[Hashable, list[Step]]:
    """Return the LLM calls of a trace by the id of their anchor.

    The anchor of an LLM call is the deepest step above the call that contains a retrieval which
    started before the call. LLM calls without an anchor are left out.
    """
    first: dict[Hashable, int] = {}  # the earliest retrieval below each step
    for retriever in retrievals:
        for above in holders_of(tree, retriever):
            first[above.id] = min(retriever.start, first.get(above.id, retriever.start))
    groups: dict[Hashable, list[Step]] = {}
    for call in _answering_steps(tree, first.keys()):
        holders = (a.id for a in tree.ancestors(call) if a.id in first)
        anchor = next((a for a in holders if first[a] <= call.start), None)
        if anchor is not None:
            groups.setdefault(anchor, []).append(call)
    return groups


def _answering_steps(tree: StepTree, holders: Container[Hashable]) -> Iterator[Step]:
    """Yield the LLM calls, and the steps on which the application itself recorded an answer.

    If a step has a recorded answer, the step is yielded instead of the LLM calls below it.
    ``holders`` are the ids of steps that contain a retrieval. A step in ``holders`` is not yielded,
    even if it has a recorded answer.
    """
    said = {f.id: f for f in tree.steps if "output" in f.recorded and f.id not in holders}
    for call in tree.generators:
        step = next((above.id for above in tree.path(call) if above.id in said), None)
        if step is None:
            yield call
        else:
            said[step] = replace(said[step], prompt=call.prompt, input=call.input)
    yield from (replace(step, kind="llm") for step in said.values())


def holders_of(tree: StepTree, retrieval: Step) -> Iterable[Step]:
    """Return the steps of the trace that contain ``retrieval``, nearest first.

    These are the parent step, its parent, and so on. If ``retrieval`` is no retrieval call, but a
    step (such as a chain) on which the application recorded documents, ``retrieval`` comes first.
    """
    explicit = retrieval.kind not in RETRIEVALS
    return tree.path(retrieval) if explicit else tree.ancestors(retrieval)


class Nesting:
    """Decides which anchors belong to the turn of another anchor.

    A turn is one question of a user and its answer. An anchor is a step that contains a retrieval
    and a later LLM call. It may have a turn of its own, or be an intermediate step of another turn.
    ``groups`` contains the LLM calls of each anchor, by anchor id.
    """

    def __init__(self, tree: StepTree, groups: Groups, retrievals: Sequence[Step]) -> None:
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
        """Return for each anchor the id of the outermost anchor to whose turn it belongs.

        A turn is one question of a user and its answer. An anchor is a step that contains a
        retrieval and a later LLM call. Anchors of the same name and parent, such as the iterations
        of a loop, are treated alike. If anchors belong to each other in a circle, the value is
        None.
        """
        leaders = {anchor: self._enclosing_turn(anchor) for anchor in self._groups}
        by_role = {self._role(one): above for one, above in leaders.items() if above is not None}
        for anchor, above in leaders.items():
            leader = by_role.get(self._role(anchor))
            if above is None and leader != anchor:
                leaders[anchor] = leader
        return {anchor: _outermost(anchor, leaders) for anchor in self._groups}

    def _enclosing_turn(self, anchor: Hashable) -> Hashable | None:
        inner = self._tree.by_id[anchor]
        below_tool = inner.kind == "tool"
        for above in self._tree.ancestors(inner):
            below_tool = below_tool or above.kind == "tool"
            if above.id in self._groups and (below_tool or self._is_step(inner, above)):
                return above.id
        return None

    def _role(self, anchor: Hashable) -> tuple[str, Hashable | None]:
        """Return the name and the parent id of a step. All iterations of a loop have the same."""
        step = self._tree.by_id[anchor]
        return step.name, step.parent

    def _is_step(self, inner: Step, above: Step) -> bool:
        """Return True if ``inner`` is an intermediate step on the way to the answer of ``above``.

        Both are steps that contain a retrieval and a later LLM call. ``inner`` is an intermediate
        step if ``above`` returned another text than ``inner``, and one of these conditions holds:
        both steps got the same question, or an LLM call of ``above`` was shown the output or the
        documents of ``inner``.
        """
        if above.flat or above.output is None:
            return False
        outputs = self._outputs(inner)
        if any(is_same(text, above.output) for text in outputs):
            return False
        return (
            is_same(inner.input, above.input)
            or self._was_shown(above, outputs)
            or self._was_shown_documents(above, inner)
        )

    def _was_shown_documents(self, above: Step, inner: Step) -> bool:
        """Return True if an LLM call of ``above`` was shown documents retrieved in ``inner``.

        Only LLM calls after the end of ``inner`` count.
        """
        if self._held[above.id] > _MAX_NESTED:
            return False
        since = inner.start if inner.end is None else inner.end
        later = (call for call in self._groups[above.id] if call.start >= since)
        shown = Messages(text for call in later for text in call.prompt)
        return any(shown.place(text) for text in self._found[inner.id])

    def may_be_step(self, anchor: Hashable) -> bool:
        """Return True if a step may be an intermediate step on the way to another answer.

        ``anchor`` is the id of the step, which contains a retrieval and a later LLM call. The step
        may be an intermediate step if the output of a step around it is not recorded, and an LLM
        call of the step around it was shown its output. If the step around it contains several such
        steps, that step is a loop over questions, and each question is scored by itself.
        """
        inner, within = self._tree.by_id[anchor], 1
        for above in self._tree.ancestors(inner):
            is_alone = self._held[above.id] == within
            within += above.id in self._groups
            if above.id not in self._groups or above.flat or above.output is not None:
                continue
            if is_alone and self._was_shown(above, self._outputs(inner)):
                return True
        return False

    def _outputs(self, anchor: Step) -> list[str]:
        return [one.output for one in (anchor, *self._groups[anchor.id]) if one.output]

    def _was_shown(self, above: Step, texts: Sequence[str]) -> bool:
        """Return True if an LLM call of ``above`` was shown one of ``texts``, verbatim or escaped.

        If the prompt of one of these LLM calls is not recorded, return True, too.
        """
        if self._held[above.id] > _MAX_NESTED:
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
