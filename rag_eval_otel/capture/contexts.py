"""Find the contexts of a turn: the retrieved documents that the model was shown for its answer.

A *turn* is one question of a user and its answer. The *generator* is the LLM call that wrote the
answer. The prompt of the generator may lack a retrieved document, or may show the documents in
another order, cut or reformatted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from operator import itemgetter
from typing import TypeAlias

from rag_eval_otel.capture.documents import Block, block_in
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.turns import Turn
from rag_eval_otel.capture.values import Messages, Place, bare, is_in, normalised, place, words
from rag_eval_otel.types import Passage, SkipReason

_Placed: TypeAlias = "tuple[Place, Passage]"
_Shown: TypeAlias = "tuple[Place | None, Passage]"
"""A pair: the position of a passage in the prompts (None if unknown), and its text shown there."""
_Behind: TypeAlias = "tuple[Place | None, str]"

_BEGINNING = 40  # a document that was cut is recognised by so many characters at its beginning
_END = re.compile(r"\s*(\.\.\.|…|[\n\[<\"'`]|$)")  # text that may follow a passage that was cut
_ROOM = 200  # rewritten long documents have at least so many letters and digits
_LINK = 20  # an LLM output of this length is not in a later prompt by chance
_SHORT = 8  # the same length for an output that is a whole message, a line or in quotes
_VARIABLES = ("context", "contexts", "documents", "docs", "context_str")


def contexts_of(turn: Turn, generator: Step | None) -> tuple[Passage, ...] | SkipReason:
    """Return the passages that the ``generator`` was shown, or the reason why they are not known.

    The ``generator`` is the LLM call that wrote the answer of ``turn`` (a question and its answer).

    A passage counts if it is in the prompt of the generator. A passage also counts if it is in the
    prompt of an earlier LLM call, and the output of that call is in the prompt of the generator.
    Refine and map-reduce chains, and chains that are used as tools, work in this way.

    If the prompt shows only a part of a passage, the application reformatted the passage, and its
    retrieved text is returned. If the prompt shows some passages but not this passage, the
    application left this passage out. If the prompt shows no passage at all, the application
    rewrote the passages, and all passages are returned.
    """
    explicit = next((step for step in turn.path if "documents" in step.recorded), None)
    lost = _loss_of(turn.retrievers if explicit is None else (explicit,))
    if lost is not None:
        return lost
    if explicit is not None:
        return explicit.documents or ()
    recorded = [one for one in turn.retrievers if "documents" in one.recorded]
    if recorded:
        return tuple(_distinct(recorded))
    if turn.lacks_texts:
        return _of_prompt(turn, generator)
    retrieved = tuple(_distinct(turn.retrievers))
    if generator is None:
        return retrieved
    return _shown(turn, generator, retrieved)


def _loss_of(retrievers: Sequence[Step]) -> SkipReason | None:
    if any("documents" in one.hidden for one in retrievers):
        return "redacted"
    return "truncated" if any("documents" in one.cut for one in retrievers) else None


def _of_prompt(turn: Turn, generator: Step | None) -> tuple[Passage, ...] | SkipReason:
    """Return the documents in the prompt of the ``generator``, the LLM call that wrote the answer.

    This is called if the retrievals were recorded without texts. The documents are read from a
    template variable such as ``context``, or below a heading such as "Context:". If the number of
    retrieved documents is known, exactly this number of documents must be found. If no documents
    are found, return the reason why the turn cannot be scored.
    """
    counts = [one.document_count for one in turn.retrievers if one.lacks_texts]
    count = None if None in counts else sum(one or 0 for one in counts)
    variables = generator.variables if generator is not None else {}
    text = next((variables[name] for name in _VARIABLES if name in variables), None)
    block = None if text is None else Block(text=text)
    if block is None and generator is not None:
        block = block_in(generator.prompt)
    found = block.passages(count) if block is not None else None
    if found:
        return found
    known = {normalised(passage.text) for passage in _distinct(turn.retrievers)}
    shown = block.passages(len(known)) if block is not None and known else None
    if shown and {normalised(passage.text) for passage in shown} == known:
        return shown  # the prompt has the documents with a text, and no other
    said = block is not None or any(one.output for one in turn.retrievers)
    return "ambiguous" if said else "no_contexts"  # the end of each document is not known


def _shown(
    turn: Turn, generator: Step, retrieved: tuple[Passage, ...]
) -> tuple[Passage, ...] | SkipReason:
    """Return the retrieved passages that a prompt shows, in their order in the prompt.

    The prompt is the prompt of the ``generator``, the LLM call that wrote the answer. If the prompt
    shows only the beginning of a passage, the returned passage is cut there. If the passages cannot
    be determined, return the reason why the turn cannot be scored.
    """
    reranked = tuple(_distinct(_last_rerankers(turn.retrievers)))
    if lacks_prompt(generator):
        if _is_subset_chosen(turn, reranked or retrieved) or any(
            one.windows for one in turn.retrievers
        ):
            return "ambiguous"  # other documents, or a longer text, may have been shown
        return reranked or retrieved
    behind = [
        (at, text) for at, text in _behind(turn, generator) if text not in generator.own_messages
    ]
    messages = Messages(text for _, text in behind)
    own = Messages(text for at, text in behind if at is None)
    found = _verbatim(turn, generator, retrieved, behind=behind)
    if isinstance(found, str):
        return found
    found |= _truncated([p for p in retrieved if p not in found], own, known=found)
    left = [p for p in retrieved if p not in found]
    found |= {p: (at, p) for p in left if (at := messages.place_changed(p.text)) is not None}
    left = [p for p in left if p not in found]
    found |= _altered(left, messages, known=[*_asked(turn), *(p.text for p in found)])
    if found:
        shown = _ordered(retrieved, found)
        if not _overlap(shown):
            return shown
        listed = {p.text: p for p in reranked}  # the place of one within another is not its own
        is_same_set = listed.keys() == {passage.text for passage in shown}
        return tuple(listed.values()) if is_same_set else "ambiguous"
    return _rewritten(turn, generator, reranked or retrieved, shown=messages)


def _last_rerankers(retrievers: Sequence[Step]) -> list[Step]:
    """Return the rerankers but for those whose documents a later one for the same query filters."""
    found = [one for one in retrievers if one.kind == "reranker"]
    texts = [{normalised(passage.text) for passage in one.documents or ()} for one in found]
    return [
        one
        for one, of in zip(found, texts, strict=True)
        if not any(
            kept < of and later.start > one.start and later.input == one.input
            for later, kept in zip(found, texts, strict=True)
        )
    ]


def _is_subset_chosen(turn: Turn, retrieved: Sequence[Passage]) -> bool:
    """Return True if the last step that returned documents returned only some ``retrieved``."""
    ids = {passage.id for passage in retrieved}
    texts = {normalised(passage.text) for passage in retrieved}
    listing = [step for step in turn.steps if step.documents and step.kind != "reranker"]
    last = max(listing, key=lambda step: step.end or step.start, default=None)
    listed = {normalised(passage.text) for passage in (last.documents if last else None) or ()}
    return any(step.kept_ids and not ids <= set(step.kept_ids) for step in turn.steps) or (
        last is not None and listed < texts
    )


def _verbatim(
    turn: Turn, generator: Step, retrieved: Sequence[Passage], *, behind: Sequence[_Behind]
) -> dict[Passage, _Shown] | SkipReason:
    messages = Messages(text for _, text in behind)
    count = sum(at is None for at, _ in behind)
    used = [(at, p) for p in retrieved if (at := messages.place(p.text))]
    direct = [(at, p) for at, p in used if at[0] < count]
    if len(used) == len(direct):
        return _widened(turn, direct, Messages(messages.texts[:count]))
    if _lacks_passages(turn, generator):
        return "partial"
    return {p: (None if direct else behind[at[0]][0], p) for at, p in used}


def _rewritten(
    turn: Turn, generator: Step, retrieved: tuple[Passage, ...], *, shown: Messages
) -> tuple[Passage, ...] | SkipReason:
    """Return all ``retrieved`` passages if the prompt may show them in other words.

    Otherwise return the reason ``"ambiguous"``, with which the turn is not scored. There are three
    cases. If the prompt is too short for the passages, it cannot show them. If another LLM call was
    shown the passages verbatim, the application rejected them after that call. If the turn was
    found below a span such as that of a web request, the prompt may be about another question, so a
    query must be in the prompt.
    """
    queries = [one.input for one in turn.retrievers if one.input]
    if turn.anchor.flat and not any(is_in(one, text) for one in queries for text in shown.texts):
        return "ambiguous"
    asked = max((len(bare(text)) for text in _asked(turn)), default=0)
    length = sum(len(bare(passage.text)) for passage in retrieved)
    has_room = shown.size - asked >= min(length / 3, _ROOM)
    others = Messages(t for c in turn.calls if c is not generator for t in c.prompt)
    seen = any(others.place(passage.text) for passage in retrieved)
    return retrieved if has_room and not seen else "ambiguous"


def _overlap(passages: Sequence[Passage]) -> bool:
    """Return True if the text of one of ``passages`` is a part of the text of another."""
    texts = sorted((passage.text for passage in passages), key=len)
    return any(one in other for n, one in enumerate(texts) for other in texts[n + 1 :])


def _ordered(retrieved: Sequence[Passage], found: Mapping[Passage, _Shown]) -> tuple[Passage, ...]:
    """Return the passages in ``found`` in the order in which the model was shown them.

    If several passages have the same text, only the first is returned. If the position of a passage
    is not known, the passages are returned in the order of retrieval.
    """
    shown = [found[passage] for passage in retrieved if passage in found]
    placed = [(at, passage) for at, passage in shown if at is not None]
    if len(placed) == len(shown):
        shown = sorted(placed, key=itemgetter(0))
    texts: dict[str, Passage] = {}
    for _, passage in shown:
        texts.setdefault(normalised(passage.text), passage)
    return tuple(texts.values())


def _altered(
    passages: Sequence[Passage], messages: Messages, *, known: Sequence[str]
) -> dict[Passage, _Shown]:
    """Return those of ``passages`` that the ``messages`` show in part or reworded.

    Words and parts that also occur in a text in ``known`` do not count.
    """
    places = messages.places_of_parts([passage.text for passage in passages], known)
    common = frozenset[str]().union(*map(words, known))
    return {
        passage: (places.get(passage.text), passage)
        for passage in passages
        if passage.text in places or messages.resembles(passage.text, common)
    }


def _asked(turn: Turn) -> Iterator[str]:
    """Yield the questions and queries of ``turn``."""
    yield from (step.input for step in (*turn.path, *turn.retrievers) if step.input)


def _lacks_passages(turn: Turn, generator: Step) -> bool:
    """Return True if the prompt shows the output of an LLM call whose own passages are not known.

    The prompt is the prompt of the ``generator``, the LLM call that wrote the answer. If no span
    can be missing from the trace, return False.
    """
    found = [p.text for one in turn.retrievers for p in one.documents or ()]
    queries = [one.input or "" for one in turn.retrievers]
    shown = Messages(generator.prompt)
    return not turn.is_complete and any(
        _link(call.output or "", shown) is not None
        and place(call.output or "", queries) is None
        and not _shows_any(Messages(prompts_behind(turn, call)), found)
        for call in (*turn.calls, *turn.other_calls)
        if call.id != generator.id
    )


def _shows_any(messages: Messages, texts: Iterable[str]) -> bool:
    texts = list(texts)
    return any(map(messages.place, texts)) or bool(messages.places_of_parts(texts, ()))


def _widened(turn: Turn, shown: Sequence[_Placed], messages: Messages) -> dict[Passage, _Shown]:
    """Replace passages in ``shown`` by longer texts that contain them.

    A passage is replaced only if ``messages``, the prompt of the LLM, contain the longer text. The
    longer texts are in the metadata of documents, or are documents that a reranker returned instead
    of the passage. Documents may overlap, so a passage that the reranker returned, too, is kept.
    """
    around = {text: wide for one in turn.retrievers for text, wide in one.windows.items()}
    reranked = [
        p.text for one in turn.retrievers if one.kind == "reranker" for p in one.documents or ()
    ]
    found: dict[Passage, _Shown] = {}
    for at, passage in shown:
        held = [around.get(passage.text, ""), *(() if passage.text in reranked else reranked)]
        wide = [t for t in held if len(t) > len(passage.text) and passage.text.strip() in t]
        text = next((t for t in wide if messages.place(t)), passage.text)
        found[passage] = messages.place(text) or at, replace(passage, text=text)
    return found


def _truncated(
    passages: Sequence[Passage], messages: Messages, *, known: Mapping[Passage, _Shown]
) -> dict[Passage, _Shown]:
    """Return the ``passages`` of which the ``messages`` show only the beginning.

    The text of each returned passage is cut to the part that the messages show. A beginning that
    ends with a sentence does not count, because the application may only quote this sentence.
    """
    taken = {at for at, _ in known.values()}
    found: dict[Passage, _Shown] = {}
    for passage in passages:
        at = messages.find(passage.text[:_BEGINNING])
        if at is None or messages.find(passage.text[-_BEGINNING:]) is not None:
            continue
        message = messages.texts[at[0]][at[1] :]
        pairs = zip(passage.text, message, strict=False)
        seen = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        is_sentence = seen.rstrip().endswith((".", "!", "?"))
        stands = messages.place(seen)
        if len(seen) < _BEGINNING or is_sentence or stands in taken:
            continue
        if _END.match(message[len(seen) :]):
            found[passage] = stands, replace(passage, text=seen.rstrip())
    return found


def lacks_prompt(generator: Step) -> bool:
    """Return True if the prompt of the LLM call ``generator`` is not recorded in full.

    Either no text of the prompt is recorded, or the text of a tool result in the prompt is missing.
    """
    return not any(generator.prompt) or not all(one.text for one in generator.tool_results)


def _distinct(retrievers: Sequence[Step]) -> Iterator[Passage]:
    seen: set[str] = set()
    for retriever in retrievers:
        for passage in retriever.documents or ():
            text = normalised(passage.text)
            if text not in seen:
                seen.add(text)
                yield passage


def prompts_behind(turn: Turn, generator: Step) -> tuple[str, ...]:
    """Return the prompts that led to the answer which the LLM call ``generator`` wrote.

    These are the prompt of ``generator``, and the prompts of earlier LLM calls whose output is in
    the prompt of ``generator``.
    """
    return tuple(text for _, text in _behind(turn, generator))


def _behind(turn: Turn, generator: Step) -> list[_Behind]:
    seen: list[_Behind] = [(None, text) for text in generator.prompt]
    open_calls = [call for call in turn.calls if call.id != generator.id]
    first = 0
    while first < len(seen):  # what is not in the earlier texts may be in the texts since ``first``
        messages = Messages(text for _, text in seen[first:])
        linked = [(at, c) for c in open_calls if (at := _link(c.output or "", messages))]
        found = {call.id for _, call in linked}
        open_calls = [call for call in open_calls if call.id not in found]
        above = [seen[first + at[0]][0] or (first + at[0], at[1]) for at, _ in linked]
        first = len(seen)
        for at, (_, call) in zip(above, linked, strict=True):
            seen += [(at, text) for text in call.prompt]
    return seen


def _link(said: str, messages: Messages) -> Place | None:
    """Return the position of the LLM output ``said`` in the prompts ``messages``, or None.

    A short output may be in a prompt by chance. So a short output counts only if it is a message, a
    line or a quotation of its own. A single short word never counts.
    """
    if len(said) >= _LINK:
        return messages.place(said)
    if len(said) < _SHORT or len(said.split()) == 1:
        return None
    alone = re.compile(rf"(?:^|[\n\"'`>]|[:*-] ){re.escape(said.strip())}(?:$|[\n\"'`<])")
    is_there = any(alone.search(text) for text in messages.texts)
    return messages.place(said) if is_there else None
