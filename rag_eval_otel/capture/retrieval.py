"""Find the retrievals in a trace, and the documents that each retrieval returned.

Most retrievals are recorded as retrievals. Other retrievals are found in the outputs of search
tools, in tool results in prompts, in documents that chains pass on, or as text in a prompt.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from rag_eval_otel.capture.documents import block_in, paragraphs, parts_of
from rag_eval_otel.capture.step import RETRIEVALS, Result, Step
from rag_eval_otel.capture.tree import StepTree, in_order
from rag_eval_otel.capture.values import bare, json_in, normalised, place
from rag_eval_otel.types import Passage

_COMPOSED = RETRIEVALS | {
    "agent",
    "chain",
    "llm",
}  # a tool that only searches has no such steps below it
_METADATA = re.compile(r"\w[\w -]*: *\S+(?: [\w -]*: *\S+)*")  # a line without a passage
_STOP = re.compile("[.!?\N{HORIZONTAL ELLIPSIS}\N{IDEOGRAPHIC FULL STOP}]\\W{0,3}\\Z")
_LETTER, _BLANK_LINE = re.compile(r"\w"), re.compile(r"\n[ \t]*\n")
_BEGINNING = 100  # characters of a line that may be a heading
_MIN_OUTPUT = 12  # an LLM output of this length is not in a tool result by chance
_VERDICT = re.compile(
    r"\W*(yes|no|true|false|pass(ed)?|fail(ed)?|(ir|not )?relevant|(un)?safe|(un)?grounded)\W*",
    re.IGNORECASE,
)
_GRADES = re.compile(r"score|grade|verdict|binary|relevan|decision|rating|route|source|^is_|next")
_FAILED = re.compile(r"\s*(Error|Exception|Traceback)\b")  # the beginning of a failed result
CONTEXT_TOOLS: Final = re.compile(
    r"search|retriev|look_?up|knowledge|(^|[^a-z])(kb|rag|docs?)([^a-z]|$)", re.IGNORECASE
)
"""Matches the name of a tool if the name says that the tool retrieves."""

_RETRIEVES: Final = re.compile(
    r"\b(search|retriev|look)\w*\b(?!.*\b(calculat|comput)\w*\b)", re.IGNORECASE | re.DOTALL
)
"""Matches the description of a tool that retrieves, unless the tool also calculates."""


def says_it_retrieves(tool: Step | Result) -> bool:
    """Return True if ``tool`` retrieves, judged by its name, its description or its documents.

    ``tool`` is the step of a tool call, or a tool result in a prompt. A tool result has no
    description.
    """
    if isinstance(tool, Result):
        return bool(tool.documents) or CONTEXT_TOOLS.search(tool.tool) is not None
    says = CONTEXT_TOOLS.search(tool.name) or _RETRIEVES.search(tool.description)
    return bool(says or (tool.kind == "tool" and tool.documents_seen))


def find_retrievals(tree: StepTree) -> tuple[Step, ...]:
    """Return the successful retrievals of a trace, ordered by start, each with its documents.

    If a retrieval was made within another retrieval, only the outermost retrieval is returned.
    """
    found = [f for f in tree.steps if f.kind in RETRIEVALS and _has_documents(f)]
    nested: dict[Hashable, list[Step]] = defaultdict(list)
    for one in found:
        around = [above for above in tree.ancestors(one) if above.kind in RETRIEVALS]
        if around:
            nested[around[-1].id].append(one)
    inner = {one.id for several in nested.values() for one in several}
    outermost = [one for one in found if one.id not in inner]
    embedded = _embedded(tree)
    complete = [_complete(tree, one, nested[one.id], embedded[one.parent]) for one in outermost]
    complete += _tool_retrievals(tree, outermost)
    complete += [_recorded_retrieval(f) for f in tree.steps if _has_recorded_documents(f)]
    complete += _message_retrievals(tree, complete)
    if not any(one.hidden or one.cut for one in complete):
        known = [p.text for one in complete for p in one.documents or ()]
        unseen = all(one.documents is None for one in complete)
        others = list(_unrecorded_retrievals(tree, known))
        complete = others if others and unseen else [*complete, *others]
    return tuple(sorted(complete, key=in_order))


def _has_documents(one: Step) -> bool:
    """Return True if the retrieval ``one`` succeeded and, if it is a reranker, returned documents.

    Redacted and shortened documents count, too.
    """
    known = one.documents is not None or one.hidden or one.cut
    return one.error is None and (one.kind == "retriever" or bool(known))


def _has_recorded_documents(step: Step) -> bool:
    return "documents" in step.recorded and step.kind not in RETRIEVALS


def _recorded_retrieval(step: Step) -> Step:
    """Return ``step`` as a retrieval. The application itself recorded contexts on this step."""
    return replace(step, input=step.query or step.input, output=None)


def _embedded(tree: StepTree) -> dict[Hashable, list[Step]]:
    found: dict[Hashable, list[Step]] = defaultdict(list)
    for step in tree.steps:
        if step.kind == "embedding":
            found[step.parent].append(step)
    return found


def _complete(tree: StepTree, one: Step, nested: list[Step], embedded: list[Step]) -> Step:
    if one.input is None and "input" not in one.hidden:
        before = [e.input for e in embedded if e.end is not None and e.end <= one.start]
        told = (r.input for r in nested if r.input is not None)
        one = replace(one, input=next(told, before[-1] if before else None))
    if one.documents is not None or one.hidden or one.cut:
        return one
    having = [r for r in nested if r.documents is not None]
    if len(having) == 1:
        return replace(one, documents=having[0].documents)
    tool = next((above for above in tree.ancestors(one) if above.kind == "tool"), None)
    return one if tool is None else _of_tool(one, tool)


def _of_tool(one: Step, tool: Step) -> Step:
    """Return the retrieval ``one`` with the documents in the output of the ``tool`` around it.

    If the number of retrieved documents is known, exactly this number of documents must be found.
    If no documents are found, the retrieval is returned unchanged.
    """
    if "output" in tool.hidden:
        return replace(one, hidden=one.hidden | {"documents"})
    split = (passages_of_tool(tool), paragraphs(tool.output) if tool.output else None)
    found = (
        parts for parts in split if parts is not None and one.document_count in {None, len(parts)}
    )
    documents = next(found, None)
    return one if documents is None else replace(one, documents=documents)


def _tool_retrievals(tree: StepTree, retrievals: list[Step]) -> Iterator[Step]:
    """Yield a retrieval for each call of a search tool without a recorded retrieval below it."""
    steps = (f for f in tree.steps if f.kind in _COMPOSED)
    above = {a.id for one in (*retrievals, *steps) for a in tree.ancestors(one)}
    for tool in tree.steps:
        returns = tool.kind == "tool" or (tool.kind == "chain" and tool.documents is not None)
        if not returns or tool.error is not None or tool.recorded or tool.id in above:
            continue
        if says_it_retrieves(tool) and not tree.is_inside(tool, RETRIEVALS | {"tool"}):
            documents = passages_of_tool(tool)
            yield replace(tool, kind="retriever", documents=documents, contexts_source="tool")


def _message_retrievals(tree: StepTree, retrievals: Iterable[Step]) -> Iterator[Step]:
    """Yield a retrieval for each tool result in a prompt whose tool call is not recorded as a step.

    An agent shows the same tool result in each later prompt. So equal tool results count once
    within one run of the agent's loop.
    """
    outputs = [step.output or "" for step in tree.steps if step.kind == "tool"]
    said = [call.output for call in tree.generators if len(call.output or "") >= _MIN_OUTPUT]
    known = [p.text for one in retrievals for p in one.documents or ()]
    seen: set[tuple[Hashable, str]] = set()
    loops = _loops(tree)
    for call in tree.generators:
        parent = loops[call.id]
        for number, result in enumerate(call.tool_results):
            key = parent, normalised(result.text)
            is_text = result.text.strip() and not _FAILED.match(result.text)
            if key in seen or not is_text or not says_it_retrieves(result):
                continue
            seen.add(key)
            if any(place(text or "", [result.text]) for text in said):
                continue  # the tool is an agent, and the result is its answer
            if place(result.text, outputs) is None and not any(
                place(t, [result.text]) for t in known
            ):
                yield _retrieval_of_result(call, number, parent=parent)


def _loops(tree: StepTree) -> dict[Hashable, Hashable]:
    """Return for each LLM call the id of the step in which the loop of its agent runs, by call id.

    This step is the nearest step above the call in which an earlier LLM call or tool call started.
    If there is no such step, the parent of the call is used.
    """
    first: dict[Hashable, int] = {}
    for one in tree.steps:
        if one.kind in {"llm", "tool"}:
            for above in tree.ancestors(one):
                first[above.id] = min(one.start, first.get(above.id, one.start))
    return {
        call.id: next(
            (above.id for above in tree.ancestors(call) if first[above.id] < call.start),
            call.parent if call.parent in tree.by_id else call.id,
        )
        for call in tree.generators
    }


def _retrieval_of_result(call: Step, number: int, *, parent: Hashable) -> Step:
    """Return a tool result in the prompt of the LLM ``call`` as a retrieval below ``parent``.

    ``number`` is the index of the tool result in the prompt. ``parent`` is a step id.
    """
    result = call.tool_results[number]
    return Step(
        id=(call.id, number),
        parent=None if parent == call.id else parent,
        kind="retriever",
        name=result.tool,
        start=call.start,
        end=call.start,
        documents=result.documents
        or parts_of(result.text, (one.text for one in call.tool_results)),
        contexts_source="tool",
    )


def _unrecorded_retrievals(tree: StepTree, known: Sequence[str]) -> Iterator[Step]:
    """Yield retrievals that are known only from documents in the inputs and outputs of chains.

    ``known`` are the texts of documents of recorded retrievals. A chain may have returned new
    documents: they are not in its input and do not overlap with ``known``. Then the innermost such
    chain retrieved these documents. If there is no such chain and no known text, the documents were
    retrieved before the first chain that received documents. If the outermost chain received
    documents, the application did not retrieve them, and nothing is yielded.
    """
    chains = (one for one in tree.steps if one.kind in {"agent", "chain"})
    having = [one for one in chains if one.documents_seen or one.documents]
    if any(one.documents_given and not any(tree.ancestors(one)) for one in having):
        return
    texts_of_known = [bare(text) for text in known]
    found = {one.id: _found_by(one, texts_of_known) for one in having}
    above = {a.id for one in having if found[one.id] for a in tree.ancestors(one)}
    finders = [one for one in having if found[one.id] and one.id not in above]
    for step in finders:
        texts = [passage.text for passage in found[step.id]]
        below = (call for call in tree.generators if step in tree.ancestors(call))
        within = any(place(text, call.prompt) for call in below for text in texts)
        start = step.start if within else step.end or step.start
        yield _retrieval_in(step, start, found[step.id], parent=step.id)
    for step in () if finders or known else [one for one in having if one.documents_given][:1]:
        around = next((a for a in tree.ancestors(step) if a.input), step)
        yield _retrieval_in(around, step.start, step.documents_given, parent=step.parent)


def _found_by(step: Step, known: Sequence[str]) -> tuple[Passage, ...]:
    """Return the documents that the chain ``step`` returned and had not received.

    Documents that overlap with a text in ``known`` are left out.
    """
    handed = {normalised(passage.text) for passage in step.documents_given}
    listed = (p for p in step.documents or () if p.id is not None or p.score is not None)
    new = {normalised(p.text): p for p in (*step.documents_seen, *listed)}
    return tuple(
        passage
        for text, passage in new.items()
        if text not in handed and not any(_overlap(bare(text), other) for other in known)
    )


def _overlap(one: str, other: str) -> bool:
    return one in other or (bool(other) and other in one)


def _retrieval_in(
    step: Step, start: int, documents: tuple[Passage, ...], *, parent: Hashable
) -> Step:
    return Step(
        id=("documents", step.id, start),
        parent=parent,
        kind="retriever",
        name=step.name,
        start=start,
        end=start,
        input=step.input,
        documents=documents,
    )


def passages_of_tool(tool: Step) -> tuple[Passage, ...] | None:
    """Return the documents that the call of ``tool`` returned, or None if they cannot be read.

    If no documents are recorded, they are read from the text of the tool's output.
    """
    if tool.documents is not None:
        return tool.documents
    return None if tool.output is None else parts_of(tool.output)


def is_verdict(text: str) -> bool:
    """Return True if ``text`` is only a yes or no, a grade, or a JSON object of grades."""
    data = json_in(text, opening="{")
    if isinstance(data, Mapping):
        return all(_is_grade(key, value) for key, value in data.items())
    return _VERDICT.fullmatch(text) is not None


def _is_grade(key: str, value: object) -> bool:
    if isinstance(value, str):
        is_word = len(value.split()) == 1
        return is_word and bool(_VERDICT.fullmatch(value) or _GRADES.search(key))
    return value is None or isinstance(value, int | float)


def retrieval_in(call: Step) -> Step | None:
    """Return the documents in the prompt of the LLM ``call`` as a retrieval, or None.

    The documents are read from the text below a heading such as "Context:". A call that only calls
    tools or only grades has no such retrieval.
    """
    graded = len((call.output or "").split()) < 2 or is_verdict(call.output or "")  # noqa: PLR2004
    block = None if call.calls_tools or graded else block_in(call.prompt)
    documents = block.passages() if block is not None else None
    if block is None or not documents:
        return None
    return Step(
        id=(call.id, "prompt"),
        parent=call.parent,
        kind="retriever",
        name="prompt",
        start=call.start,
        end=call.start,
        input=block.question,
        documents=documents,
        contexts_source="prompt",
    )


def may_be_draft(retrievals: Sequence[Step]) -> bool:
    """Return True if a model call that is alone in its trace was shown one passage.

    Some applications let the model answer from each passage by itself, and then choose. A trace
    that also has the span of the application shows whether there are other answers.
    """
    of_prompt = [one for one in retrievals if one.contexts_source == "prompt"]
    return len(of_prompt) == len(retrievals) == 1 and len(of_prompt[0].documents or ()) == 1


def answers_repeat(grounded: Sequence[tuple[Step, Sequence[Step]]]) -> bool:
    """Return True if two LLM calls answered one question, of which the application chose one.

    Then both used documents of the same retrieval, or both prompts have the same text beside the
    documents. ``grounded`` are pairs of an LLM call and the retrievals that it used.
    """
    used = [one.id for _, retrievers in grounded for one in retrievers]
    asked = [_without_documents(call, retrievers) for call, retrievers in grounded]
    return len(set(used)) < len(used) or len(set(asked)) < len(asked)


def _without_documents(call: Step, retrievers: Sequence[Step]) -> str:
    text = call.input or ""
    for passage in (p for one in retrievers for p in one.documents or ()):
        text = text.replace(passage.text, "")
    return normalised(text)
