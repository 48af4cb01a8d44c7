"""The contexts of a turn: of all that was retrieved, what reached the generator."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from operator import itemgetter
from typing import TypeAlias

from rag_eval_otel.capture.retrieval import paragraphs
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.text import normalised, place
from rag_eval_otel.capture.turn import Turn
from rag_eval_otel.types import Passage, SkipReason

_Place: TypeAlias = "tuple[int, int]"
_Placed: TypeAlias = "tuple[_Place, Passage]"
_Behind: TypeAlias = "tuple[_Place | None, str]"

_BEGINNING = 40  # characters by which a document is known that was cut
_END = re.compile(r"\s*(\.\.\.|…|[\n\[<\"'`]|$)")  # what may follow a passage that was cut
_LINK = 20  # characters from which an LLM's output found in a later prompt is no coincidence
_VARIABLES = ("context", "contexts", "documents", "docs", "context_str")


def contexts_of(turn: Turn, generator: Step | None) -> tuple[Passage, ...] | SkipReason:
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


def _lost(retrievers: Sequence[Step]) -> SkipReason | None:
    if any("documents" in one.hidden for one in retrievers):
        return "redacted"
    return "truncated" if any("documents" in one.cut for one in retrievers) else None


def _of_variables(turn: Turn, generator: Step | None) -> tuple[Passage, ...] | SkipReason:
    """Return the paragraphs of the prompt's context, if they are as many as were found."""
    variables = generator.variables if generator is not None else {}
    text = next((variables[name] for name in _VARIABLES if name in variables), None)
    counts = [one.found for one in turn.retrievers]
    if text is None or None in counts:
        return "no_contexts"
    found = paragraphs(text)
    return found if len(found) == sum(count or 0 for count in counts) else "no_contexts"


def _shown(
    turn: Turn, generator: Step, retrieved: tuple[Passage, ...]
) -> tuple[Passage, ...] | SkipReason:
    """Return those of ``retrieved`` that were shown, cut as they were; where none is known, all."""
    behind = [(at, text) for at, text in _behind(turn, generator) if text not in generator.said]
    prompts = [text for _, text in behind]
    own = [text for at, text in behind if at is None]
    used = [(at, p) for p in retrieved if (at := place(p.text, prompts))]
    direct = [(at, p) for at, p in used if at[0] < len(own)]
    if len(used) > len(direct):
        if direct:
            return tuple(p for _, p in used)
        return "partial" if _lacks_passages(turn, generator) else _by_link(used, behind)
    direct = _widened(turn, direct, own)
    direct += _cut_ones(retrieved, own, known=direct)
    reranked = tuple(_distinct([one for one in turn.retrievers if one.kind == "reranker"]))
    retrieved = reranked or retrieved  # where the prompt does not tell
    if direct or turn.is_whole or not retrieved or is_unseen(generator):
        return tuple(p for _, p in sorted(direct, key=itemgetter(0))) or retrieved
    return retrieved if any(_begins(p, prompts) for p in retrieved) else "partial"


def _lacks_passages(turn: Turn, generator: Step) -> bool:
    """Tell whether the generator builds upon a call of which no passage is known, nor a query."""
    found = [p.text for one in turn.retrievers for p in one.documents or ()]
    queries = [one.input or "" for one in turn.retrievers]
    return not turn.is_whole and any(
        len(call.output or "") >= _LINK
        and place(call.output or "", generator.prompt) is not None
        and place(call.output or "", queries) is None
        and not any(place(text, prompts_behind(turn, call)) for text in found)
        for call in (*turn.calls, *turn.rewrites)
        if call is not generator
    )


def _by_link(used: Sequence[_Placed], behind: Sequence[_Behind]) -> tuple[Passage, ...]:
    """Return passages in the order of what was made of them, as the generator was shown it."""
    return tuple(p for _, p in sorted(used, key=lambda one: behind[one[0][0]][0] or ()))


def _widened(turn: Turn, shown: Sequence[_Placed], messages: Sequence[str]) -> list[_Placed]:
    """Return what was ``shown``, where a text around it was, that in its place.

    That is known from the document's metadata, or from what came after the retrieval.
    """
    around = {text: wide for one in turn.retrievers for text, wide in one.wider.items()}
    reranked = [
        p.text for one in turn.retrievers if one.kind == "reranker" for p in one.documents or ()
    ]
    found: dict[str, _Placed] = {}
    for at, passage in shown:
        held = [around.get(passage.text, ""), *reranked]
        wide = [t for t in held if len(t) > len(passage.text) and passage.text.strip() in t]
        text = next((t for t in wide if place(t, messages)), passage.text)
        place_of = place(text, messages) or at
        found.setdefault(normalised(text), (place_of, replace(passage, text=text)))
    return list(found.values())


def _cut_ones(
    passages: Sequence[Passage], messages: Sequence[str], *, known: Sequence[_Placed]
) -> list[_Placed]:
    """Return those of ``passages`` of which only the beginning was shown, cut by its length.

    What ends with a sentence may be a quotation.
    """
    taken = {at for at, _ in known}
    found = []
    for passage in passages:
        at = place(passage.text[:_BEGINNING], messages)
        if at is None or at in taken or place(passage.text[-_BEGINNING:], messages) is not None:
            continue
        message = messages[at[0]][at[1] :]
        pairs = zip(passage.text, message, strict=False)
        seen = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        is_sentence = seen.rstrip().endswith((".", "!", "?"))
        if len(seen) >= _BEGINNING and not is_sentence and _END.match(message[len(seen) :]):
            found.append((at, replace(passage, text=seen.rstrip())))
    return found


def is_unseen(generator: Step) -> bool:
    """Tell whether the prompt, or what tools said in it, is not recorded."""
    return not any(generator.prompt) or "" in generator.results


def _begins(passage: Passage, prompts: Sequence[str]) -> bool:
    """Tell whether at least the beginning of ``passage`` was shown: the rest may be cut."""
    start = normalised(passage.text)[:_BEGINNING]
    return place(start, [normalised(prompt) for prompt in prompts]) is not None


def _distinct(retrievers: Sequence[Step]) -> Iterator[Passage]:
    seen: set[str] = set()
    for retriever in retrievers:
        for passage in retriever.documents or ():
            text = normalised(passage.text)
            if text not in seen:
                seen.add(text)
                yield passage


def prompts_behind(turn: Turn, generator: Step) -> tuple[str, ...]:
    """Return the generator's prompt and those of the earlier calls whose output it was shown."""
    return tuple(text for _, text in _behind(turn, generator))


def _behind(turn: Turn, generator: Step) -> list[_Behind]:
    """Return prompts that the generator has seen or builds upon, each with where it shows there."""
    seen: list[_Behind] = [(None, text) for text in generator.prompt]
    open_calls = [
        call for call in turn.calls if call is not generator and len(call.output or "") >= _LINK
    ]
    grown = True
    while grown:
        texts = [text for _, text in seen]
        linked = [(at, c) for c in open_calls if (at := place(c.output or "", texts))]
        open_calls = [call for call in open_calls if all(call is not c for _, c in linked)]
        seen += [(seen[at[0]][0] or at, text) for at, call in linked for text in call.prompt]
        grown = bool(linked)
    return seen
