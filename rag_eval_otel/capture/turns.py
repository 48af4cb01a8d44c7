"""Find the RAG turns in the steps of a trace, with the retrievals and model calls of each.

A *turn* is one question of a user, the contexts retrieved for it and the answer. The *anchor* of an
LLM call is the deepest step above the call that also contains a retrieval which started before the
call. LLM calls with the same anchor belong to one turn, and the span of the anchor gets the scores.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias, get_args

from rag_eval_otel.capture.documents import block_in, is_prose, parts_around, parts_of
from rag_eval_otel.capture.step import CONTEXT_TOOLS, RETRIEVALS, Part, Step
from rag_eval_otel.capture.values import Messages, bare, is_in, is_same, json_in, normalised, place
from rag_eval_otel.types import ContextsSource, Passage, SkipReason

Loss: TypeAlias = Literal["none", "possible"]

_ACTIVE = RETRIEVALS | {"tool"}  # steps that do something outside of the LLM
_LEAVES = frozenset({"embedding", "llm", "reranker", "retriever", "tool"})
_DEPTH = 100  # the most ancestors of a step that are considered
_SAME_CALL_NS = 30_000_000  # two records of one call differ by less than this in start and end


def in_order(step: Step) -> tuple[int, str]:
    """Return the key by which the steps of a trace are sorted: the start time, then the id."""
    return step.start, str(step.id)


class StepTree:
    """The steps of a trace without asides, and those ``above`` each, nearest first."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self.by_id: dict[Hashable, Step] = {}
        for step in steps:
            self.by_id.setdefault(step.id, step)
        self.above = {key: self._ancestors(one) for key, one in self.by_id.items()}
        kept = (f for f in self.by_id.values() if f.kind != "aside")
        self.by_id = {f.id: f for f in kept if not self.is_inside(f, {"aside"})}
        self.steps = tuple(sorted(self.by_id.values(), key=in_order))

    def _ancestors(self, step: Step) -> Sequence[Step]:
        found: list[Step] = []
        seen = {step.id}
        parent = step.parent
        while parent in self.by_id and parent not in seen and len(seen) < _DEPTH:
            seen.add(parent)
            above = self.by_id[parent]
            # Its OpenTelemetry context was not detached when it ended.
            leaked = above.end is not None and above.end < step.start
            if not (leaked and above.kind in _LEAVES):
                found.append(above)
            parent = above.parent
        return found

    def is_orphan(self, step: Step) -> bool:
        """Return True if ``step`` has a parent in this process that is missing from the trace."""
        parent = step.parent
        return parent is not None and parent not in self.by_id and not step.is_remote

    @cached_property
    def orphans(self) -> tuple[int, ...]:
        """The sorted start times of the steps whose parent is missing from the trace."""
        return tuple([f.start for f in self.steps if self.is_orphan(f)])

    def is_inside(self, step: Step, kinds: Iterable[str]) -> bool:
        return not {above.kind for above in self.above[step.id]}.isdisjoint(kinds)

    def lacks_parent(self, step: Step) -> bool:
        """Return True if a span above ``step``, or above a step during it, is missing."""
        within = self.orphans[bisect_left(self.orphans, step.start) :]
        lacks_inner = bool(within) and (step.end is None or within[0] <= step.end)
        return lacks_inner or self.is_orphan([step, *self.above[step.id]][-1])

    @cached_property
    def generators(self) -> tuple[Step, ...]:
        """The successful LLM calls outside of retrievals, innermost ones only, each once."""
        calls = [f for f in self.steps if f.kind == "llm" and not self.is_inside(f, RETRIEVALS)]
        around = {c.id: [a for a in self.above[c.id] if a.kind == "llm"] for c in calls}
        outer = {above.id for several in around.values() for above in several}
        inner = [*_distinct_calls(c for c in calls if c.id not in outer and c.error is None)]
        wraps = Counter(above.id for call in inner for above in around[call.id])
        return tuple([_with_texts_of(one, around[one.id], wraps) for one in inner])

    def holders_of(self, retrieval: Step) -> Iterable[Step]:
        """Return the steps that contain ``retrieval``: those above, and one that recorded it."""
        above = self.above.get(retrieval.id) or self._ancestors(retrieval)  # from a text
        return above if retrieval.kind in RETRIEVALS else (retrieval, *above)


def _with_texts_of(call: Step, around: Sequence[Step], wraps: Mapping[Hashable, int]) -> Step:
    """Fill in texts that ``call`` lacks from LLM spans ``around`` it that wrap no other call."""
    output, shown = call.output, call
    around = [above for above in around if wraps[above.id] == 1]
    if output is None and not call.calls_tools and "output" not in call.hidden:
        output = next((one.output for one in around if one.output is not None), None)
    if not call.prompt and "prompt" not in call.hidden:
        shown = next((one for one in around if one.prompt), call)
    return replace(
        call,
        output=output,
        input=shown.input,
        prompt=shown.prompt,
        own_messages=shown.own_messages,
        history=shown.history,
        tool_results=shown.tool_results,
    )


def _distinct_calls(calls: Iterable[Step]) -> Iterator[Step]:
    """Yield the LLM ``calls`` without those that a second instrumentation recorded, too."""
    running: dict[Hashable, list[Step]] = {}  # LLM calls that have not ended, by parent
    responses: dict[str | None, Step] = {}
    for call in calls:
        beside = [c for c in running.get(call.parent, ()) if c.end is None or c.end >= call.start]
        running[call.parent] = beside
        known = responses.get(call.response_id)
        if not any(_is_same_call(call, other) for other in (*beside, *([known] if known else []))):
            beside.append(call)
            if call.response_id:
                responses[call.response_id] = call
            yield call


def _is_same_call(one: Step, other: Step) -> bool:
    """Return True if two instrumentations recorded one call, by its id, or output and times."""
    if one.source == other.source:
        return False
    if one.response_id and other.response_id:
        return one.response_id == other.response_id
    if one.end is None or other.end is None:
        return False
    apart = max(abs(one.start - other.start), abs(one.end - other.end))
    same = one.output == other.output or None in {one.output, other.output}
    return same and (apart < _SAME_CALL_NS or other.start <= one.start <= one.end <= other.end)


# --- retrievals -----------------------------------------------------------------------------------

_COMPOSED = RETRIEVALS | {"agent", "chain", "llm"}  # a tool that only searches has none of them
_MIN_OUTPUT = 12  # an LLM output of this length is not in a tool result by chance
_FAILED = re.compile(r"\s*(Error|Exception|Traceback)\b")  # the beginning of a failed result
_VERDICT = re.compile(
    r"\W*(yes|no|true|false|pass(ed)?|fail(ed)?|(ir|not )?relevant|(un)?safe|(un)?grounded)\W*",
    re.IGNORECASE,
)
_GRADES = re.compile(r"score|grade|verdict|binary|relevan|decision|rating|route|source|^is_|next")
_RETRIEVES: Final = re.compile(  # the description of a tool that retrieves, and does not calculate
    r"\b(search|retriev|look)\w*\b(?!.*\b(calculat|comput)\w*\b)", re.IGNORECASE | re.DOTALL
)


def find_retrievals(tree: StepTree) -> tuple[Step, ...]:
    """Return the retrievals of a trace by start: outermost spans, recorded ones, and tools."""
    nested: dict[Hashable, list[Step]] = defaultdict(list)
    embedded: dict[Hashable, list[Step]] = defaultdict(list)
    outermost: list[Step] = []
    for one in tree.steps:
        if one.kind == "embedding":
            embedded[one.parent].append(one)
        elif (
            one.kind in RETRIEVALS
            and one.error is None
            and (one.kind == "retriever" or one.documents is not None or one.hidden or one.cut)
        ):
            around = [above for above in tree.above[one.id] if above.kind in RETRIEVALS]
            (nested[around[-1].id] if around else outermost).append(one)
    found = [_complete(tree, one, nested[one.id], embedded[one.parent]) for one in outermost]
    found += _tool_retrievals(tree)
    found += [
        replace(one, input=one.query or one.input, output=None)
        for one in tree.steps
        if "documents" in one.recorded and one.kind not in RETRIEVALS
    ]
    found += _message_retrievals(tree, found)
    if not any(one.hidden or one.cut or one.documents for one in found):
        handed_on = _input_retrievals(tree) or _output_retrievals(tree)
        found = [*(one for one in found if one.documents is not None or not handed_on), *handed_on]
    return tuple(sorted(found, key=in_order))


def _complete(tree: StepTree, one: Step, nested: Sequence[Step], embedded: Sequence[Step]) -> Step:
    if one.input is None and "input" not in one.hidden:
        before = [e.input for e in embedded if e.end is not None and e.end <= one.start]
        told = (r.input for r in nested if r.input is not None)
        one = replace(one, input=next(told, before[-1] if before else None))
    if not one.lacks_texts or one.hidden or one.cut:
        return one
    tool = next((above for above in tree.above[one.id] if above.kind == "tool"), None)
    if tool is not None and "output" in tool.hidden:
        return replace(one, hidden=one.hidden | {"documents"})
    documents = None if tool is None else _passages_of_tool(tool)
    is_all = documents is not None and one.document_count in {None, len(documents)}
    return replace(one, documents=documents) if is_all else one


def _passages_of_tool(tool: Step) -> tuple[Passage, ...] | None:
    if tool.documents is not None or tool.output is None:
        return tool.documents
    return parts_of(tool.output)


def _tool_retrievals(tree: StepTree) -> Iterator[Step]:
    """Yield a retrieval for each call of a search tool without a recorded retrieval below it."""
    above = {a.id for one in tree.steps if one.kind in _COMPOSED for a in tree.above[one.id]}
    for tool in tree.steps:
        returns = tool.kind == "tool" or (tool.kind == "chain" and tool.documents is not None)
        if not returns or tool.error is not None or tool.recorded or tool.id in above:
            continue
        named = CONTEXT_TOOLS.search(tool.name) or _RETRIEVES.search(tool.description)
        retrieves = bool(named or (tool.kind == "tool" and tool.documents_seen))
        grades = _GRADES.search(tool.name) and is_verdict(tool.output or "")
        if retrieves and not grades and not tree.is_inside(tool, _ACTIVE):
            documents = _passages_of_tool(tool)
            yield replace(tool, kind="retriever", documents=documents, contexts_source="tool")


def _message_retrievals(tree: StepTree, retrievals: Iterable[Step]) -> Iterator[Step]:
    """Yield a retrieval for each tool result in a prompt whose tool call has no step of its own."""
    outputs = [step.output or "" for step in tree.steps if step.kind == "tool"]
    said = [call.output for call in tree.generators if len(call.output or "") >= _MIN_OUTPUT]
    known = [p.text for one in retrievals if not one.lacks_texts for p in one.documents or ()]
    seen: set[tuple[Hashable, str]] = set()
    loops = _loops(tree)
    for call in tree.generators:
        parent = loops[call.id]
        for number, result in enumerate(call.tool_results):
            key = parent, normalised(result.text)  # agents repeat a result in later prompts
            is_text = result.text.strip() and not _FAILED.match(result.text)
            retrieves = bool(result.documents) or CONTEXT_TOOLS.search(result.tool)
            if key in seen or not (is_text or result.documents is None) or not retrieves:
                continue
            seen.add(key)
            shown = (result.text,)
            # If an LLM wrote the result, the tool is an agent. If a tool did, the tool has a step.
            if place(result.text, outputs) or any(place(t or "", shown) for t in (*said, *known)):
                continue
            documents = result.documents or (parts_of(result.text) if is_text else None)
            parts = {"name": result.tool, "documents": documents, "contexts_source": "tool"}
            above = None if parent == call.id else parent
            yield _retrieval((call.id, number), call, above, **parts)


def _loops(tree: StepTree) -> dict[Hashable, Hashable]:
    """Map each LLM call to its agent's loop: the nearest step with an earlier LLM or tool call."""
    active = [step for step in reversed(tree.steps) if step.kind in {"llm", "tool"}]
    first = {above.id: step.start for step in active for above in tree.above[step.id]}
    return {
        call.id: next(
            (above.id for above in tree.above[call.id] if first[above.id] < call.start),
            call.parent if call.parent in tree.by_id else call.id,
        )
        for call in tree.generators
    }


def _retrieval(key: Hashable, of: Step, parent: Hashable | None, **parts: Any) -> Step:
    return Step(id=key, parent=parent, kind="retriever", start=of.start, end=of.start, **parts)


def _input_retrievals(tree: StepTree) -> list[Step]:
    """Return a retrieval of the documents in the input of the first inner chain that has some."""
    having = [one for one in tree.steps if one.documents_given]
    if not having or not all(tree.above[one.id] for one in having):
        return []  # the outermost chain received documents: the application was given them
    step = having[0]
    around = next((a for a in tree.above[step.id] if a.input), step)
    key = ("documents", around.id, step.start)
    parts = {"name": around.name, "input": around.input, "documents": step.documents_given}
    return [_retrieval(key, step, step.parent, **parts)]


def _output_retrievals(tree: StepTree) -> list[Step]:
    """Return a retrieval for each inner chain that returned texts which models were shown."""
    chains = [step for step in tree.steps if step.kind in {"agent", "chain"}]
    ids = {c.id for c in chains if any(a.input or a.input_texts for a in tree.above[c.id])}
    inner, outer = ([c for c in chains if (c.id in ids) is is_inner] for is_inner in (True, False))
    known = [text for step in outer for text in (step.input or "", *step.input_texts)]
    known += [call.output or "" for call in tree.generators]
    others = Messages(filter(is_long, known))
    shown = Messages([text for call in tree.generators for text in call.prompt])
    given = {passage.text: passage for step in chains for passage in step.texts_given}
    had = {passage.text for step in outer for passage in step.texts_given}
    found, seen = list[Step](), set[str]()
    for step in inner:
        alone = given.get(step.output or "")  # OpenInference leaves out a name that is the only one
        texts = step.texts_returned or ((alone,) if alone else ())
        new = set(filter(is_long, [passage.text for passage in texts])) - had
        if new and all(map(shown.find, new)) and not _share_texts(Messages(new), others):
            had |= new
            parts = {"name": step.name, "input": step.input, "documents": texts}
            found.append(_retrieval(("texts", step.id), step, step.parent, **parts))
        seen |= set(filter(shown.find, {*new, *filter(is_long, step.output_texts)}))
    return [] if _has_others(seen, had, known) else found


def is_long(text: str) -> bool:
    return len(text) >= ANSWER_LENGTH


def _share_texts(some: Messages, others: Messages) -> bool:
    """Return True if a text in ``some`` contains a text in ``others``, or the other way round."""
    return any(map(others.find, some.texts)) or any(map(some.find, others.texts))


def _has_others(seen: Iterable[str], had: Iterable[str], known: Sequence[str]) -> bool:
    """Return True if a ``seen`` text without any of ``had`` has prose that ``known`` texts lack."""
    apart = [text for text in seen if not any(map(text.__contains__, had))]
    return any(map(is_prose, [part for text in apart for part in parts_around(text, known)]))


def _in_prompt(call: Step) -> Step | None:
    """Return the text below a heading in the prompt as a retrieval; no documents if unclear."""
    said = call.output or ""
    graded = len(said.split()) < 2 or is_verdict(said)  # noqa: PLR2004
    block = None if call.calls_tools or graded else block_in(call.prompt)
    if block is None:
        return None
    parts = {"name": "prompt", "input": block.question, "documents": block.passages()}
    return _retrieval((call.id, "prompt"), call, call.parent, contexts_source="prompt", **parts)


def is_verdict(text: str) -> bool:
    """Return True if ``text`` is only a yes or no, a grade, or a JSON object of grades."""
    data = json_in(text, opening="{")
    if not isinstance(data, dict):
        return _VERDICT.fullmatch(text) is not None
    return all(
        len(value.split()) == 1 and bool(_VERDICT.fullmatch(value) or _GRADES.search(key))
        if isinstance(value, str)
        else value is None or isinstance(value, int | float)
        for key, value in data.items()
    )


# --- anchors --------------------------------------------------------------------------------------

_MAX_NESTED = 200  # the most anchors in one step that are compared, in quadratic time

_Groups: TypeAlias = "Mapping[Hashable, Sequence[Step]]"  # the LLM calls of each anchor, by its id
_Owners: TypeAlias = "Mapping[Hashable, Hashable | None]"  # the anchor of the turn of each anchor
_Users: TypeAlias = "Mapping[Hashable, set[Hashable | None]]"  # the owners at or below each step


def _group_calls(tree: StepTree, retrievals: Sequence[Step]) -> dict[Hashable, list[Step]]:
    latest = reversed(retrievals)
    first = {above.id: one.start for one in latest for above in tree.holders_of(one)}  # below each
    groups: dict[Hashable, list[Step]] = {}
    for call in _answering_steps(tree, first.keys()):
        path = (*tree.above[call.id], call)
        anchor = next((a.id for a in path if a.id in first and first[a.id] <= call.start), None)
        if anchor is not None and not tree.is_inside(call, {"plan"}):
            groups.setdefault(anchor, []).append(call)
    return groups


def _answering_steps(tree: StepTree, holders: Container[Hashable]) -> Iterator[Step]:
    """Yield the LLM calls; a step whose answer was recorded stands for the calls below it."""
    said = {f.id: f for f in tree.steps if "output" in f.recorded and f.id not in holders}
    for call in tree.generators:
        step = next((a.id for a in (call, *tree.above[call.id]) if a.id in said), None)
        if step is None:
            yield call
        else:
            said[step] = replace(said[step], prompt=call.prompt, input=call.input)
    yield from (replace(step, kind="llm") for step in said.values())


def _owners_of(tree: StepTree, groups: _Groups) -> _Owners:
    """Map each anchor to the outermost anchor of its turn, one for all iterations of a loop."""
    held = Counter([above.id for anchor in groups for above in tree.above[anchor]])
    anchors = {anchor: tree.by_id[anchor] for anchor in groups}
    leaders = {key: _enclosing(tree, groups, one, held) for key, one in anchors.items()}
    roles = {key: (one.name, one.parent) for key, one in anchors.items()}
    by_role = {roles[key]: above for key, above in leaders.items() if above is not None}
    for anchor, above in leaders.items():
        leader = by_role.get(roles[anchor])
        if above is None and leader != anchor:
            leaders[anchor] = leader
    return {anchor: _outermost(anchor, leaders) for anchor in groups}


def _enclosing(
    tree: StepTree, groups: _Groups, inner: Step, held: Mapping[Hashable, int]
) -> Hashable | None:
    below_tool = inner.kind == "tool"
    for above in tree.above[inner.id]:
        below_tool = below_tool or above.kind == "tool"
        if above.id in groups and (
            below_tool or (held[above.id] <= _MAX_NESTED and _is_preparation(groups, inner, above))
        ):
            return above.id
    return None


def _is_preparation(groups: _Groups, inner: Step, above: Step) -> bool:
    """Return True if the anchor ``inner`` only prepares the answer of the anchor ``above``."""
    if above.flat or above.output is None:
        return False
    outputs = [one.output for one in (inner, *groups[inner.id]) if one.output]
    if any(is_same(text, above.output) for text in outputs):
        return False
    calls = groups[above.id]
    wrote = any(is_in(call.output, above.output) for call in calls)  # else it may be missing
    if not wrote or is_same(inner.input, above.input) or not all(any(c.prompt) for c in calls):
        return True
    prompts = [text for call in calls for text in call.prompt]
    return any(place(text, prompts) for text in outputs)  # the output of ``inner`` was used


def _outermost(anchor: Hashable, leaders: _Owners) -> Hashable | None:
    for _ in leaders:
        above = leaders[anchor]
        if above is None:
            return anchor
        anchor = above
    return None


# --- turns ----------------------------------------------------------------------------------------

_PARTS: frozenset[Part] = frozenset(get_args(Part))
_OVERHEAD = 4096  # bytes of a span that is kept back and its records, without texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One question of a user and its answer, and the steps from which its sample is read."""

    anchor: Step  # its span gets the scores
    path: tuple[Step, ...]  # the anchor and the steps above that belong to no other turn
    retrievers: tuple[Step, ...]  # ordered by start, as the calls
    calls: tuple[Step, ...] = ()  # those that may have written the answer
    other_calls: tuple[Step, ...] = ()  # below the anchor; most wrote a query before a retrieval
    doubt: SkipReason | None = None  # why question and answer may be incomplete or ambiguous
    is_complete: bool = True  # whether no span can be missing; otherwise more checks are made
    steps: tuple[Step, ...] = ()  # the anchor; chains, agents and rerankers below it
    tools: tuple[Step, ...] = ()  # tools and retrievals below the anchor, outermost only
    tool_calls: frozenset[Hashable] = frozenset()  # LLM calls within tools or retrievals

    @property
    def asked(self) -> tuple[str, ...]:
        return tuple(step.input for step in (*self.path, *self.retrievers) if step.input)

    @property
    def searches(self) -> tuple[int, int, int] | None:
        """How many searches were made, how many repeat a query, and how many found nothing."""
        made = [
            r for r in self.retrievers if r.kind == "retriever" and r.contexts_source != "prompt"
        ]
        queries = [bare(one.input) for one in made if one.input]
        empty = sum(one.documents == () for one in made)
        return (len(made), len(queries) - len(set(queries)), empty) if made else None

    @property
    def size(self) -> int:
        """The estimated memory in bytes until the turn is scored."""
        steps = (*self.path, *self.calls, *self.other_calls, *self.retrievers)
        texts = [t for one in steps for t in (one.input or "", one.output or "", *one.prompt)]
        texts += [passage.text for one in steps for passage in one.documents or ()]
        return _OVERHEAD + sum(map(len, texts))

    @property
    def lacks_texts(self) -> bool:
        """Whether texts of retrieved documents are missing in retrievals and tool results."""
        by_tools = [one for one in self.retrievers if one.contexts_source == "tool"]
        blind = sum(one.lacks_texts for one in self.retrievers)
        return blind > sum(bool(one.documents) for one in by_tools)

    @property
    def contexts_source(self) -> ContextsSource:
        if "documents" in self.recorded:
            return "retrieval"
        if self.lacks_texts or any(one.contexts_source == "prompt" for one in self.retrievers):
            return "prompt"
        found = {one.contexts_source for one in self.retrievers if one.documents}
        return "tool" if "tool" in found else "memory" if "memory" in found else "retrieval"

    @property
    def recorded(self) -> frozenset[Part]:
        """The parts that the application itself recorded."""
        kept = ((self.path, _PARTS), (self.retrievers, {"documents"}), (self.calls, {"output"}))
        return frozenset([p for steps, own in kept for one in steps for p in one.recorded & own])


def find_turns(
    steps: Sequence[Step], *, loss: Loss = "none", contexts_from_prompt: bool = False
) -> list[Turn]:
    """Return the RAG turns in the ``steps`` of a trace; ``loss``: whether steps may be missing."""
    tree = StepTree(steps)
    retrievals = find_retrievals(tree)
    groups = _group_calls(tree, retrievals)
    if contexts_from_prompt:
        grouped = {call.id for calls in groups.values() for call in calls}
        others = (call for call in tree.generators if call.id not in grouped)
        guessed = [g for g in map(_in_prompt, others) if g and (g.documents or not retrievals)]
        retrievals = tuple(sorted((*retrievals, *guessed), key=in_order))
        groups = _group_calls(tree, retrievals)
    owners = _owners_of(tree, groups)
    users = _users(tree, owners)
    found = [
        *_anchored_turns(tree, retrievals, groups, owners, users),
        *_rootless_turns(tree, retrievals),
    ]
    used = {one.id for turn in found for one in (*turn.retrievers, *turn.path)}
    found += _turns_without_llm(tree, [one for one in retrievals if one.id not in used], users)
    found = [*_with_surroundings(tree, found, owners)]
    found = [part for turn in _with_doubts(found) for part in _split_flat(turn)]
    return [replace(turn, is_complete=loss == "none") for turn in found]


def _anchored_turns(
    tree: StepTree, retrievals: Sequence[Step], groups: _Groups, owners: _Owners, users: _Users
) -> Iterator[Turn]:
    """Yield a turn for each anchor that belongs to no other and has retrievals of its own."""
    retrievers: dict[Hashable, list[Step]] = defaultdict(list)
    for retriever in retrievals:
        anchor = next((a.id for a in tree.holders_of(retriever) if a.id in owners), None)
        if anchor is not None:
            retrievers[owners[anchor]].append(retriever)
    calls: dict[Hashable, list[Step]] = defaultdict(list)
    for anchor, found in groups.items():
        calls[owners[anchor]] += found
    other_calls = _other_calls(tree, calls, users)
    for anchor, found in calls.items():
        if anchor is not None and anchor in retrievers:
            yield _turn(
                tree,
                anchor,
                users,
                calls=tuple(sorted(found, key=in_order)),
                other_calls=tuple(other_calls[anchor]),
                retrievers=tuple(retrievers[anchor]),
            )


def _rootless_turns(tree: StepTree, retrievals: Sequence[Step]) -> Iterator[Turn]:
    """Yield a turn for each LLM call without parent that was shown tool results or documents."""
    shown: dict[Hashable, list[Step]] = defaultdict(list)
    for one in retrievals:
        if one.parent is None and one.kind == "retriever" and isinstance(one.id, tuple):
            shown[one.id[0]].append(one)
    for call in tree.generators:
        if call.id in shown and not call.calls_tools and (call.output or "").strip():
            found = tuple(shown[call.id])
            of_prompt = [one for one in found if one.contexts_source == "prompt"]
            # A call with a single passage may write one of several drafts, one for each passage.
            is_draft = len(of_prompt) == len(found) == len(of_prompt[0].documents or ()) == 1
            doubt: SkipReason | None = "ambiguous" if is_draft else None
            doubt = "partial" if tree.is_orphan(call) else doubt
            yield Turn(anchor=call, path=(call,), calls=(call,), retrievers=found, doubt=doubt)


def _turns_without_llm(tree: StepTree, retrievals: Sequence[Step], users: _Users) -> Iterator[Turn]:
    """Yield the turns whose answer was recorded, or that found nothing and called no LLM."""
    busy = {above.id for call in tree.generators for above in tree.above[call.id]}
    busy |= {h.id for one in retrievals if one.documents != () for h in tree.holders_of(one)}
    found: dict[Hashable, list[Step]] = defaultdict(list)
    for one in retrievals:
        for holder in tree.holders_of(one):
            if "output" in holder.recorded or (holder.id not in busy and holder.output is not None):
                found[holder.id].append(one)
                break
    around = _users(tree, {**dict.fromkeys(users), **{anchor: anchor for anchor in found}})
    for anchor, retrievers in found.items():
        yield _turn(tree, anchor, around, retrievers=tuple(retrievers))


def _other_calls(tree: StepTree, calls: _Groups, users: _Users) -> dict[Hashable, list[Step]]:
    """Return, by id of a turn's anchor, the LLM calls below or beside it that ``calls`` lacks."""
    known = {(anchor, call.id) for anchor, several in calls.items() for call in several}
    found: dict[Hashable, list[Step]] = defaultdict(list)
    for call in tree.generators:
        for above in tree.above[call.id]:
            # A call beside the anchor that called tools may belong to something else.
            around = users.get(above.id, set()) if not call.calls_tools else set()
            anchor = above.id if above.id in calls or len(around) != 1 else next(iter(around))
            if anchor in calls and (anchor, call.id) not in known:
                known.add((anchor, call.id))
                found[anchor].append(call)
    return found


def _users(tree: StepTree, owners: _Owners) -> dict[Hashable, set[Hashable | None]]:
    users: dict[Hashable, set[Hashable | None]] = defaultdict(set)
    for anchor, owner in owners.items():
        for step in (tree.by_id[anchor], *tree.above[anchor]):
            users[step.id].add(owner)
    return users


def _turn(tree: StepTree, anchor: Hashable, users: _Users, **parts: Any) -> Turn:
    step = tree.by_id[anchor]
    above = [a for a in tree.above[anchor] if users[a.id] == {anchor}]
    doubt: SkipReason | None = "partial" if tree.lacks_parent(step) else None
    return Turn(anchor=step, path=(step, *above), doubt=doubt, **parts)


def _with_surroundings(tree: StepTree, turns: Sequence[Turn], owners: _Owners) -> Iterator[Turn]:
    """Yield ``turns`` with the steps below each anchor."""
    below: dict[Hashable, list[Step]] = defaultdict(list)
    for one in tree.steps:
        for above in tree.above[one.id]:
            if above.id in owners:
                below[owners[above.id]].append(one)
                break
    for turn in turns:
        inner = below[turn.anchor.id]
        tools = [one for one in inner if one.kind in _ACTIVE and not tree.is_inside(one, _ACTIVE)]
        ids, calls = {tool.id for tool in tools}, (*turn.calls, *turn.other_calls)
        steps = [one for one in inner if one.kind in {"agent", "chain", "reranker"}]
        yield replace(
            turn,
            steps=(turn.anchor, *steps),
            tools=tuple(tools),
            tool_calls=frozenset(c.id for c in calls if any(a.id in ids for a in tree.above[c.id])),
        )


def _with_doubts(turns: Sequence[Turn]) -> Iterator[Turn]:
    """Yield ``turns``, with a doubt for those that may only prepare the answer of another turn."""
    wrote: dict[str, set[Hashable]] = defaultdict(set)
    for call in (call for turn in turns for call in turn.calls):
        wrote[normalised(call.output or "")].add(call.id)
    for turn in turns:
        own = {call.id for call in turn.calls}
        asked = {normalised(step.input) for step in turn.path if step.input}
        is_part = any(wrote.get(text, own) - own for text in asked)
        yield replace(turn, doubt=turn.doubt or ("ambiguous" if is_part else None))


# --- spans with several turns ---------------------------------------------------------------------

ANSWER_LENGTH: Final = 20  # characters of an LLM output that may be an answer
_MAX_PARALLEL = 200  # the most calls of a flat turn that are compared, in quadratic time


def _split_flat(turn: Turn) -> list[Turn]:
    if not turn.anchor.flat or len(turn.calls) == 1:
        return [turn]
    if len(turn.calls) > _MAX_PARALLEL:
        return [replace(turn, doubt="ambiguous")]
    last = [call for call in turn.calls if _is_answer(call, turn)]
    grounded = [(call, used) for call in last if (used := _retrievers_used(call, turn.retrievers))]
    used_ids = [one.id for _, used in grounded for one in used]
    asked = [tuple(one.input for one in used) for _, used in grounded]
    if not grounded or len(set(used_ids)) < len(used_ids) or len(set(asked)) < len(asked):
        # Several calls answered one question, of which the application chose one.
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
    is_mixed = any(one.documents for one in used) and any(o.start < call.start for o in unknown)
    return "no_contexts" if is_mixed else None


def is_short(call: Step) -> bool:
    return not is_long(call.output or "") or is_verdict(call.output or "")


def may_grade(call: Step, turn: Turn) -> bool:
    """Return True if ``call`` saw another call's output, and no documents beyond that call's."""
    found = [p.text for one in turn.retrievers for p in one.documents or ()]
    shown = {text for text in found if place(text, call.prompt)}
    for one in turn.calls:
        if one.start >= call.start or not one.output or one.id in turn.tool_calls:
            continue
        if place(one.output, call.prompt):
            seen = {text for text in found if place(text, one.prompt)}
            if seen and shown <= seen:
                return True
    return False


def _is_answer(call: Step, turn: Turn) -> bool:
    later = [one for one in (*turn.calls, *turn.retrievers) if one.start > call.start]
    asked = [message for one in later for message in (*one.prompt, one.input or "")]
    return not is_short(call) and place(call.output or "", asked) is None


def _retrievers_used(call: Step, retrievers: Sequence[Step]) -> tuple[Step, ...]:
    """Return the retrievals whose documents ``call`` was shown for its own question."""
    used = [one for one in retrievers if one.start < call.start and _is_used(one, call)]
    own = [one for one in used if one.input and place(one.input, call.prompt)]
    return tuple(own or used[-1:])


def _is_used(one: Step, call: Step) -> bool:
    if one.documents is None:
        return any(is_same(one.input, text) for text in (call.input, *call.variables.values()))
    shown = any(place(passage.text, call.prompt) for passage in one.documents)
    return shown or (one.documents == () and is_in(one.input, call.input))
