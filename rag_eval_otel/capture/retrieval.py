"""Which fragments of a trace are retrievals, and where their documents are written."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import Final

from rag_eval_otel.capture.step import RETRIEVALS, Step
from rag_eval_otel.capture.tree import StepTree, in_order
from rag_eval_otel.types import Passage

_COMPOSED = RETRIEVALS | {"agent", "chain", "llm"}  # a tool that holds these is more than a search
_METADATA = re.compile(r"(\w[\w -]*: *\S+\n?)+")  # written beside documents, no passage itself
CONTEXT_TOOLS: Final = re.compile(
    r"search|retriev|look_?up|knowledge|(^|[^a-z])(kb|rag|docs?)([^a-z]|$)", re.IGNORECASE
)
"""What tools are called that return contexts, where no retriever is seen below them."""


def find_retrievals(
    tree: StepTree, context_tools: re.Pattern[str] = CONTEXT_TOOLS
) -> tuple[Step, ...]:
    """Return the outermost retrievals that succeeded, by start, each with its documents."""
    found = [f for f in tree.fragments if f.kind in RETRIEVALS and _tells(f)]
    nested: dict[Hashable, list[Step]] = defaultdict(list)
    for one in found:
        around = [above for above in tree.ancestors(one) if above.kind in RETRIEVALS]
        if around:
            nested[around[-1].id].append(one)
    inner = {one.id for several in nested.values() for one in several}
    outermost = [one for one in found if one.id not in inner]
    embedded = _embedded(tree)
    complete = [_complete(tree, one, nested[one.id], embedded[one.parent]) for one in outermost]
    complete += _told_by_tools(tree, context_tools, outermost)
    complete += [_searched(f) for f in tree.fragments if _is_explicit(f)]
    return tuple(sorted(complete, key=in_order))


def _tells(one: Step) -> bool:
    """Tell whether a retrieval succeeded; a reranker matters only for what it returned."""
    tells = one.documents is not None or one.hidden or one.cut
    return one.error is None and (one.kind == "retriever" or bool(tells))


def _is_explicit(fragment: Step) -> bool:
    return "documents" in fragment.explicit and fragment.kind not in RETRIEVALS


def _searched(step: Step) -> Step:
    """Return the retrieval in a step on which the application itself has put contexts."""
    return replace(step, input=step.query or step.input, output=None)


def _embedded(tree: StepTree) -> dict[Hashable, list[Step]]:
    """Return what was embedded, by parent."""
    found: dict[Hashable, list[Step]] = defaultdict(list)
    for fragment in tree.fragments:
        if fragment.kind == "embedding":
            found[fragment.parent].append(fragment)
    return found


def _complete(tree: StepTree, one: Step, nested: list[Step], embedded: list[Step]) -> Step:
    """Return a retrieval with the documents or the query that only what is around it tells."""
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
    """Return the retrieval with what the tool made of it, if that is as many documents."""
    if "output" in tool.hidden:
        return replace(one, hidden=one.hidden | {"documents"})
    documents = passages_told(tool)
    if documents is None or (one.found is not None and len(documents) != one.found):
        return one
    return replace(one, documents=documents)


def _told_by_tools(
    tree: StepTree, names: re.Pattern[str], retrievals: list[Step]
) -> Iterator[Step]:
    """Yield the tools that return contexts, in place of retrievers that are not recorded."""
    steps = (f for f in tree.fragments if f.kind in _COMPOSED)
    above = {a.id for one in (*retrievals, *steps) for a in tree.ancestors(one)}
    for tool in tree.fragments:
        returns = tool.kind == "tool" or (tool.kind == "chain" and tool.documents is not None)
        if not returns or tool.error is not None or tool.explicit or tool.id in above:
            continue
        if names.search(tool.name) and not tree.is_inside(tool, RETRIEVALS | {"tool"}):
            yield replace(tool, kind="retriever", documents=passages_told(tool))


def passages_told(tool: Step) -> tuple[Passage, ...] | None:
    """Return the documents a tool returned, or the paragraphs of its text."""
    if tool.documents is not None:
        return tool.documents
    found = None if tool.output is None else paragraphs(tool.output)
    return None if found and any(_METADATA.fullmatch(p.text) for p in found) else found


def paragraphs(text: str) -> tuple[Passage, ...]:
    """Return the paragraphs of ``text``: what stands between blank lines."""
    parts = re.split(r"\n[ \t]*\n", text)
    return tuple(Passage(text=part.strip("\n")) for part in parts if part.strip())
