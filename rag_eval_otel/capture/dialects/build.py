"""Build a `Step` from the values that a dialect has found on a span."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from rag_eval_otel.capture.dialects.documents import count_in, ids_in, passages_in, shown_in
from rag_eval_otel.capture.dialects.values import (
    CUT,
    HIDDEN,
    Lost,
    is_marker,
    is_stream,
    messages_in,
    plain,
    read,
    usable,
)
from rag_eval_otel.capture.identities import metadata_in
from rag_eval_otel.capture.span import SpanView
from rag_eval_otel.capture.step import Kind, Part, Step
from rag_eval_otel.capture.text import answer_of, question_of
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


def fragment(view: SpanView, kind: Kind, *, losses: Losses, **parts: Any) -> Step:
    """Build a fragment of ``parts`` and of what every span has."""
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
        metadata=metadata_in(view.attributes),
        hidden=frozenset(losses.hidden),
        cut=frozenset(losses.cut),
        **parts,
    )


def bare(view: SpanView, kind: Kind, **parts: Any) -> Step:
    """Build a fragment of which nothing but its place is known."""
    return fragment(view, kind, losses=Losses(), **parts)


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


def question_in(data: Found) -> str | None:
    """Return the question in plain ``data``, which may be JSON within JSON."""
    found = None if isinstance(data, Lost) else question_of(data)
    return _unnested(found, question_in)


def answer_in(data: Found) -> str | None:
    """Return the answer in plain ``data``, which may be JSON within JSON."""
    found = None if isinstance(data, Lost) else answer_of(data)
    return _unnested(found, answer_in)


def _unnested(text: str | None, inner: Callable[[Found], str | None]) -> str | None:
    if text is None or text.lstrip()[:1] != "{":
        return text
    data = read(text)
    if not isinstance(data, Mapping):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            data = ast.literal_eval(text.strip())
    return inner(plain(data)) if isinstance(data, Mapping) else text


def step(view: SpanView, kind: Kind, *, asked: Found, told: Found, **more: Any) -> Step:
    """Build the fragment of a chain, agent or tool."""
    losses = Losses()
    output = losses.text("output", told, answer_in(told))
    streams = isinstance(told, str) and is_stream(told)
    return fragment(
        view,
        kind,
        input=losses.text("input", asked, question_in(asked)),
        output=output,
        deferred=streams or (output is None and _ANSWERS_LATER.search(view.scope) is not None),
        shown=tuple(shown_in([asked, told])) if kind != "tool" else (),
        kept=tuple(ids_in(told)),
        results=_results(_shown(told)) if isinstance(told, Mapping) and "messages" in told else (),
        losses=losses,
        **more,
    )


def tool(view: SpanView, *, asked: Found, told: Found, **more: Any) -> Step:
    """Build the fragment of a tool; where it returned a list of documents, they are its own."""
    losses = Losses()
    documents = None if isinstance(told, Lost) else passages_in(_unpacked(told))
    return fragment(
        view,
        "tool",
        input=losses.text("input", asked, question_in(asked)),
        output=losses.text("output", told, _tool_text(told)),
        documents=documents,
        losses=losses,
        **more,
    )


def retrieval(
    view: SpanView,
    *,
    asked: Found,
    documents: Found,
    kind: Kind = "retriever",
    **more: Any,
) -> Step:
    """Build the fragment of a retrieval; ``documents`` may be passages, or data listing them."""
    losses = Losses()
    found = documents if isinstance(documents, tuple) else None
    count = None
    if found is None and not losses.lost("documents", documents):
        found, count = passages_in(documents), count_in(documents)
    if found and any(is_marker(passage.text) for passage in found):
        losses.hidden.add("documents")
        found = None
    return fragment(
        view,
        kind,
        input=losses.text("input", asked, question_in(asked)),
        documents=found,
        found=count if found is None else len(found),
        losses=losses,
        **more,
    )


def llm(
    view: SpanView,
    *,
    messages: Found,
    said: Found,
    response_id: object = None,
    finish: object = None,
    **more: Any,
) -> Step:
    """Build the fragment of an LLM call: ``messages`` it was shown, what it ``said`` and why not.

    ``finish`` is the reason why it ended.
    """
    losses = Losses()
    shown = [] if losses.lost("prompt", messages) else _shown(messages)
    if any(is_marker(text) for _, text in shown):
        losses.hidden.add("prompt")
        shown = [(role, text) for role, text in shown if not is_marker(text)]
    text, calls_tools = (None, False) if losses.lost("output", said) else said_in(said)
    calls_tools = calls_tools or "tool" in str(finish)
    return fragment(
        view,
        "llm",
        input=next((text for role, text in reversed(shown) if role == "user"), None),
        prompt=tuple(text for _, text in shown),
        said=tuple(text for role, text in shown if role == "assistant"),
        results=_results(shown),
        output=losses.text("output", said, text),
        calls_tools=calls_tools,
        response_id=response_id if isinstance(response_id, str) else None,
        losses=losses,
        **more,
    )


def _results(shown: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return what tools have answered since the user's last message."""
    last = max((n for n, (role, _) in enumerate(shown) if role == "user"), default=-1)
    return tuple(text for role, text in shown[last + 1 :] if role == "tool")


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


def _unpacked(told: Found) -> Found:
    """Return what a tool returned without its wrapping, parsed where it is JSON."""
    if isinstance(told, Mapping) and len(told) == 1:
        return _unpacked(next(iter(told.values())))
    if isinstance(told, Mapping) and told.get("role") == "tool":
        return _unpacked(told.get("content"))
    return read(told) if isinstance(told, str) and told.lstrip()[:1] in {"[", "{"} else told


def _tool_text(told: Found) -> str | None:
    if isinstance(told, list):
        return _tool_text(told[-1]) if len(told) == 1 else None
    if not isinstance(told, Mapping):
        return told if isinstance(told, str) else None
    if isinstance(told.get("content"), str):
        return str(told["content"])
    if isinstance(told.get("blocks"), list):
        return _blocks(told["blocks"])
    inner = told.get("tool_output", next(iter(told.values())) if len(told) == 1 else None)
    return answer_in(told) if inner is None else _tool_text(inner)


def _blocks(blocks: Sequence[Any]) -> str:
    return "".join(str(b.get("text") or "") for b in blocks if isinstance(b, Mapping))


def listed(told: Found) -> tuple[Passage, ...] | None:
    """Return the documents, where what a step returned is a list of nothing else."""
    return passages_in(told) if isinstance(told, list) and told else None


def arguments(asked: Found) -> Found:
    """Return what a decorated function was called with: its only text, or what it has by name."""
    if not (isinstance(asked, Mapping) and set(asked) == {"args", "kwargs"}):
        return asked
    args = asked["args"] if isinstance(asked["args"], list) else []
    texts = [arg for arg in args if question_in(arg)]
    if args:
        return texts[0] if len(texts) == 1 else None
    return asked["kwargs"]
