"""The contexts of a turn: of all that was retrieved, what reached the generator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rag_eval_otel.capture.fragment import Fragment
from rag_eval_otel.capture.matching import normalised, place
from rag_eval_otel.capture.retrievals import paragraphs
from rag_eval_otel.capture.turns import Turn
from rag_eval_otel.types import Passage, SkipReason

_BEGINNING = 40  # characters by which a document is known that was cut
_LINK = 20  # characters from which an LLM's output found in a later prompt is no coincidence
_VARIABLES = ("context", "contexts", "documents", "docs", "context_str")


def contexts_of(turn: Turn, generator: Fragment | None) -> tuple[Passage, ...] | SkipReason:
    """Return the passages that reached the generator, as it saw them; all where none can be told.

    A passage reaches it in its own prompt, or through an earlier call whose output it was shown
    (refine, map-reduce, a chain used as a tool).
    """
    explicit = next((step for step in turn.line if "documents" in step.explicit), None)
    lost = _lost(turn.retrievers if explicit is None else (explicit,))
    if lost is not None:
        return lost
    if explicit is not None:
        return explicit.documents or ()
    recorded = [one for one in turn.retrievers if "documents" in one.explicit]
    if recorded:
        return tuple(_distinct(recorded))
    retrieved = tuple(_distinct(turn.retrievers))
    if not turn.is_whole and any(one.documents is None for one in turn.retrievers):
        return _of_variables(turn, generator)
    if generator is None:
        return retrieved
    return _shown(turn, generator, retrieved)


def _lost(retrievers: Sequence[Fragment]) -> SkipReason | None:
    if any("documents" in one.hidden for one in retrievers):
        return "redacted"
    return "truncated" if any("documents" in one.cut for one in retrievers) else None


def _of_variables(turn: Turn, generator: Fragment | None) -> tuple[Passage, ...] | SkipReason:
    """Return the paragraphs of the prompt's context, if they are as many as were found."""
    variables = generator.variables if generator is not None else {}
    text = next((variables[name] for name in _VARIABLES if name in variables), None)
    counts = [one.found for one in turn.retrievers]
    if text is None or None in counts:
        return "no_contexts"
    found = paragraphs(text)
    return found if len(found) == sum(count or 0 for count in counts) else "no_contexts"


def _shown(
    turn: Turn, generator: Fragment, retrieved: tuple[Passage, ...]
) -> tuple[Passage, ...] | SkipReason:
    """Return those of ``retrieved`` that were shown; of documents that were cut, all."""
    direct = [(at, p) for p in retrieved if (at := place(p.text, generator.prompt))]
    behind = prompts_behind(turn, generator)
    used = tuple(p for p in retrieved if place(p.text, behind)) if behind else ()
    if len(used) > len(direct):
        return used
    reranked = tuple(_distinct([one for one in turn.retrievers if one.kind == "reranker"]))
    retrieved = reranked or retrieved  # where the prompt does not tell
    if direct or turn.is_whole or not retrieved or is_unseen(generator):
        return tuple(p for _, p in sorted(direct, key=lambda pair: pair[0])) or retrieved
    return retrieved if any(_begins(p, behind) for p in retrieved) else "partial"


def is_unseen(generator: Fragment) -> bool:
    """Tell whether the prompt, or what tools said in it, is not recorded."""
    return not any(generator.prompt) or "" in generator.results


def _begins(passage: Passage, prompts: Sequence[str]) -> bool:
    """Tell whether at least the beginning of ``passage`` was shown: the rest may be cut."""
    start = normalised(passage.text)[:_BEGINNING]
    return place(start, [normalised(prompt) for prompt in prompts]) is not None


def _distinct(retrievers: Sequence[Fragment]) -> Iterator[Passage]:
    seen: set[str] = set()
    for retriever in retrievers:
        for passage in retriever.documents or ():
            text = normalised(passage.text)
            if text not in seen:
                seen.add(text)
                yield passage


def prompts_behind(turn: Turn, generator: Fragment) -> tuple[str, ...]:
    """Return the generator's prompt and those of the earlier calls whose output it was shown."""
    seen = list(generator.prompt)
    open_calls = [
        call for call in turn.calls if call is not generator and len(call.output or "") >= _LINK
    ]
    grown = True
    while grown:
        linked = [call for call in open_calls if place(call.output or "", seen)]
        open_calls = [call for call in open_calls if call not in linked]
        seen += [message for call in linked for message in call.prompt]
        grown = bool(linked)
    return tuple(seen)
