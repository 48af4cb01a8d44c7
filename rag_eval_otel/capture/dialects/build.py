"""Build a `Step` from the values that a dialect has found on a span."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from rag_eval_otel.capture.dialects.documents import (
    count_in,
    documents_in,
    ids_in,
    passages_in,
    shown_in,
)
from rag_eval_otel.capture.dialects.values import (
    CUT,
    HIDDEN,
    Lost,
    data_in,
    is_marker,
    is_stream,
    messages_in,
    plain,
    read,
    usable,
)
from rag_eval_otel.capture.span import PlainSpan
from rag_eval_otel.capture.step import Kind, Part, Result, Step
from rag_eval_otel.capture.text import USUAL, Keys, answer_of, question_of
from rag_eval_otel.types import Passage


class Losses:
    """Which parts of a span were hidden or cut."""

    def __init__(self) -> None:
        """Note none yet."""
        self.hidden: set[Part] = set()
        self.cut: set[Part] = set()

    def lost(self, part: Part, found: Any) -> bool:
        """Note ``part`` if ``found`` can't be read; tell whether that is so."""
        if found is HIDDEN:
            self.hidden.add(part)
        if found is CUT:
            self.cut.add(part)
        return isinstance(found, Lost)

    def text(self, part: Part, found: Any, text: str | None) -> str | None:
        """Return the text of ``part``, if it is one that can be used."""
        if self.lost(part, found):
            return None
        if text is not None and is_marker(text):
            self.hidden.add(part)
            return None
        return usable(text)


def new_step(view: PlainSpan, kind: Kind, *, losses: Losses, **parts: Any) -> Step:
    """Build a step of ``parts`` and of what every span has."""
    return Step(
        id=view.span_id,
        parent=view.parent_id,
        is_remote=bool(parts.pop("is_remote", False)) or view.parent_is_remote,
        kind=kind,
        name=str(parts.pop("name", None) or view.name),
        start=view.start,
        end=view.end,
        error=view.error,
        source=view.scope,
        hidden=frozenset(losses.hidden),
        cut=frozenset(losses.cut),
        **parts,
    )


def bare(view: PlainSpan, kind: Kind, **parts: Any) -> Step:
    """Build a step of which nothing but its place is known."""
    return new_step(view, kind, losses=Losses(), **parts)


Found: TypeAlias = "Any"
"""Plain data, a `Lost`, or None."""

_ANSWERS_LATER = re.compile("llama_?index")  # its engines end before their answer is written

_SAID_KEYS = (
    "message",
    "generations",
    "choices",
    "replies",
    "messages",
    "output",
    "answer",
    "text",
)


def question_in(data: Found, keys: Keys = USUAL) -> str | None:
    """Return the question in plain ``data``, which may be JSON within JSON."""
    found = None if isinstance(data, Lost) else question_of(data, keys)
    return _unnested(found, lambda inner: question_in(inner, keys))


def answer_in(data: Found, keys: Keys = USUAL) -> str | None:
    """Return the answer in plain ``data``, which may be JSON within JSON."""
    found = None if isinstance(data, Lost) else answer_of(data, keys)
    return _unnested(found, lambda inner: answer_in(inner, keys))


def _unnested(text: str | None, inner: Callable[[Found], str | None]) -> str | None:
    if text is None or text.lstrip()[:1] != "{":
        return text
    data = read(text)
    if not isinstance(data, Mapping):
        data = data_in(text)
    return inner(plain(data)) if isinstance(data, Mapping) else text


def chain(view: PlainSpan, kind: Kind, *, asked: Found, told: Found, **more: Any) -> Step:
    """Build the step of a chain, agent or tool."""
    losses = Losses()
    output = losses.text("output", told, answer_in(told, view.keys))
    question = losses.text("input", asked, question_in(asked, view.keys))
    streams = isinstance(told, str) and is_stream(told)
    return new_step(
        view,
        kind,
        input=question,
        output=output,
        input_texts=() if question else texts_in(asked),
        output_texts=() if output else texts_in(told),
        deferred=streams or (output is None and _ANSWERS_LATER.search(view.scope) is not None),
        documents_seen=tuple(shown_in([asked, told])) if kind != "tool" else (),
        documents_given=tuple(shown_in([asked])) if kind != "tool" else (),
        kept_ids=tuple(ids_in(told)),
        losses=losses,
        **more,
    )


def texts_in(data: Found) -> tuple[str, ...]:
    """Return the texts in a record whose keys say nothing of what they are."""
    found = data.values() if isinstance(data, Mapping) else ()
    texts = (usable(text) for text in found if isinstance(text, str))
    return tuple(text for text in texts if text is not None)


def tool(view: PlainSpan, *, asked: Found, told: Found, **more: Any) -> Step:
    """Build the step of a tool; where it returned a list of documents, they are its own.

    Those of an artifact count for more than the text that was made of them. ``shown`` are those
    that a framework has made: nothing but a retrieval returns these.
    """
    losses = Losses()
    if isinstance(told, Mapping) and len(told) == 1:
        (inner,) = told.values()
        told = inner if isinstance(inner, Mapping) and "role" in inner else told
    artifact = passages_in(_of(told, "artifact")) or ()
    documents = None if losses.lost("documents", told) else artifact or documents_in(told)
    return new_step(
        view,
        "tool",
        input=losses.text("input", asked, question_in(asked, view.keys)),
        output=losses.text("output", told, _tool_text(told, view.keys)),
        documents=documents,
        documents_seen=artifact or tuple(shown_in(told)),
        losses=losses,
        **more,
    )


def _of(data: Found, key: str) -> Found:
    return data.get(key) if isinstance(data, Mapping) else None


def retrieval(
    view: PlainSpan,
    *,
    asked: Found,
    documents: Found,
    kind: Kind = "retriever",
    **more: Any,
) -> Step:
    """Build the step of a retrieval; ``documents`` may be passages, or data listing them."""
    losses = Losses()
    found = documents if isinstance(documents, tuple) else None
    count = None
    if found is None and not losses.lost("documents", documents):
        found, count = passages_in(documents), count_in(documents)
    if found and any(is_marker(passage.text) for passage in found):
        losses.hidden.add("documents")
        found = None
    return new_step(
        view,
        kind,
        input=losses.text("input", asked, question_in(asked, view.keys)),
        documents=found,
        document_count=count if found is None else len(found),
        losses=losses,
        **more,
    )


def llm(
    view: PlainSpan,
    *,
    messages: Found,
    said: Found,
    response_id: object = None,
    finish: object = None,
    **more: Any,
) -> Step:
    """Build the step of an LLM call: ``messages`` it was shown, what it ``said`` and why not.

    ``finish`` is the reason why it ended.
    """
    losses = Losses()
    shown = [] if losses.lost("prompt", messages) else _shown(messages)
    if any(is_marker(text) for _, text in shown):
        losses.hidden.add("prompt")
        shown = [(role, text) for role, text in shown if not is_marker(text)]
    text, calls_tools = (None, False) if losses.lost("output", said) else said_in(said)
    calls_tools = calls_tools or "tool" in str(finish)
    return new_step(
        view,
        "llm",
        input=next((text for role, text in reversed(shown) if role == "user"), None),
        prompt=tuple(text for _, text in shown),
        own_messages=tuple(text for role, text in shown if role == "assistant"),
        tool_results=() if isinstance(messages, Lost) else _results(messages),
        output=losses.text("output", said, text),
        calls_tools=calls_tools,
        response_id=response_id if isinstance(response_id, str) else None,
        losses=losses,
        **more,
    )


def _results(messages: Found) -> tuple[Result, ...]:
    """Return what tools have answered since the user's last message."""
    found = messages_in(messages)
    last = max((n for n, one in enumerate(found) if one["role"] == "user"), default=-1)
    called: dict[str, str] = {}
    for message in found[last + 1 :]:
        called |= message.get("called", {})
    return tuple(
        Result(
            text=_whole(str(one.get("text") or "")),
            tool=str(one.get("name") or called.get(str(one.get("id")), "")),
            documents=passages_in(one.get("artifact")) or (),
        )
        for message in found[last + 1 :]
        if message["role"] == "tool"
        for one in message.get("results") or [{"text": message.get("content")}]
    )


def _whole(text: str) -> str:
    """Return ``text``, unless it says at its end that it was cut."""
    return "" if read(text, opening="") is CUT else text


def said_in(data: Found) -> tuple[str | None, bool]:
    """Return what an LLM said, and whether it called tools, in any of the usual wrappings."""
    if isinstance(data, str):
        return data, False
    if isinstance(data, list):
        spoken = [item for item in data if isinstance(item, list | Mapping | str)]
        return said_in(spoken[-1]) if spoken else (None, False)
    if not isinstance(data, Mapping):
        return None, False
    if "role" in data and "content" in data:
        return str(data["content"] or ""), bool(data.get("tool_calls"))
    found = (data[key] for key in _SAID_KEYS if isinstance(data.get(key), list | Mapping | str))
    inner = next(found, None)
    return said_in(inner) if inner else (answer_in(data), False)


def _shown(messages: Found) -> list[tuple[str, str]]:
    if isinstance(messages, str):
        return [("user", messages)]
    if isinstance(messages, Mapping) and isinstance(messages.get("prompts"), list):
        messages = messages["prompts"]
    if isinstance(messages, list) and messages and isinstance(messages[0], str):
        return [("user", str(messages[0]))]
    found = [(str(m["role"]), str(m.get("content") or "")) for m in messages_in(messages)]
    if not found and isinstance(messages, Mapping) and (asked := question_in(messages)):
        return [("user", asked)]
    return found


def _tool_text(told: Found, keys: Keys) -> str | None:
    if isinstance(told, list):
        if told and all(
            isinstance(block, Mapping) and block.get("type") == "text" for block in told
        ):
            return _blocks(told)
        return _tool_text(told[-1], keys) if len(told) == 1 else None
    if not isinstance(told, Mapping):
        return told if isinstance(told, str) else None
    if isinstance(told.get("content"), str):
        return str(told["content"])
    if isinstance(told.get("blocks"), list):
        return _blocks(told["blocks"])
    inner = told.get("tool_output", next(iter(told.values())) if len(told) == 1 else None)
    return answer_in(told, keys) if inner is None else _tool_text(inner, keys)


def _blocks(blocks: Sequence[Any]) -> str:
    return "".join(str(b.get("text") or "") for b in blocks if isinstance(b, Mapping))


def listed(told: Found) -> tuple[Passage, ...] | None:
    """Return the documents, where what a step returned is a list of nothing else."""
    return passages_in(told) if isinstance(told, list) and told else None


def arguments(asked: Found, keys: Keys = USUAL) -> Found:
    """Return what a decorated function was called with: its only text, or what it has by name."""
    if not (isinstance(asked, Mapping) and set(asked) == {"args", "kwargs"}):
        return asked
    args = asked["args"] if isinstance(asked["args"], list) else []
    texts = [arg for arg in args if question_in(arg, keys)]
    if args:
        return texts[0] if len(texts) == 1 else None
    return asked["kwargs"]
