"""Build steps from the values that a convention found on a span.

A *convention* is a module that reads the spans of one tracing convention. A *step* is one call in a
trace: a retrieval, a chat model, a tool or a chain. A value is plain data, or None if the value is
missing, or a `Lost` if the value was redacted or shortened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from rag_eval_otel.capture.documents import (
    count_in,
    documents_in,
    documents_within,
    ids_in,
    passages_in,
    passages_with_text,
)
from rag_eval_otel.capture.span import Span
from rag_eval_otel.capture.step import Kind, Part, Result, Step
from rag_eval_otel.capture.text import USUAL, Keys, answer_of, question_of
from rag_eval_otel.capture.values import (
    CUT,
    HIDDEN,
    Lost,
    data_in,
    is_marker,
    is_stream,
    messages_in,
    plain,
    read,
    texts_of,
    usable,
)
from rag_eval_otel.types import Passage


class Losses:
    """Collects which parts of a span were redacted (``hidden``) or shortened (``cut``).

    The parts are documents, input, output and prompt.
    """

    def __init__(self) -> None:
        self.hidden: set[Part] = set()
        self.cut: set[Part] = set()

    def lost(self, part: Part, found: Any) -> bool:
        """Return True if the value ``found`` was redacted or shortened, and note this for ``part``.

        ``part`` is a part of the step, such as ``input`` or ``output``.
        """
        if found is HIDDEN:
            self.hidden.add(part)
        if found is CUT:
            self.cut.add(part)
        return isinstance(found, Lost)

    def text(self, part: Part, found: Any, text: str | None) -> str | None:
        """Return ``text``, or None if ``text`` cannot be used.

        A text cannot be used if it was redacted or shortened, or if it is the Python repr of an
        object. ``text`` was read from the value ``found`` on the span. ``part`` is the part of the
        step to which the text belongs, such as ``input``.
        """
        if self.lost(part, found):
            return None
        if text is not None and is_marker(text):
            self.hidden.add(part)
            return None
        return usable(text)


def new_step(view: Span, kind: Kind, *, losses: Losses, **parts: Any) -> Step:
    """Build a `Step` from ``parts`` and the name, times, parent and scope of the span ``view``.

    ``losses`` says which parts were redacted or shortened.
    """
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


def bare(view: Span, kind: Kind, **parts: Any) -> Step:
    """Build a `Step` without texts, from the name and the times of the span ``view``."""
    return new_step(view, kind, losses=Losses(), **parts)


Found: TypeAlias = "Any"
"""Plain data, or a `Lost` for a redacted or shortened value, or None for a missing value."""

_ANSWERS_LATER = re.compile("llama_?index")  # spans of LlamaIndex may end before the answer

_CHOICES = frozenset({"choices", "generations", "replies"})
"""The reply keys whose value lists alternatives. An application reads the first."""

_REPLY_KEYS = (
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
    """Return the question in the plain ``data``, or None. JSON in a text is parsed, too.

    ``keys`` are the dict keys under which the application keeps questions and answers.
    """
    found = None if isinstance(data, Lost) else question_of(data, keys)
    return _unnested(found, lambda inner: question_in(inner, keys))


def answer_in(data: Found, keys: Keys = USUAL) -> str | None:
    """Return the answer in the plain ``data``, or None. JSON in a text is parsed, too.

    ``keys`` are the dict keys under which the application keeps questions and answers.
    """
    found = None if isinstance(data, Lost) else answer_of(data, keys)
    return _unnested(found, lambda inner: answer_in(inner, keys))


def _unnested(text: str | None, inner: Callable[[Found], str | None]) -> str | None:
    if text is None or text.lstrip()[:1] != "{":
        return text
    data = read(text)
    if not isinstance(data, Mapping):
        data = data_in(text)
    return inner(plain(data)) if isinstance(data, Mapping) else text


def chain(view: Span, kind: Kind, *, inputs: Found, outputs: Found, **more: Any) -> Step:
    """Build the `Step` of a chain or agent from the ``inputs`` and ``outputs`` on its span."""
    losses = Losses()
    output = losses.text("output", outputs, answer_in(outputs))
    question = losses.text("input", inputs, question_in(inputs))
    streams = isinstance(outputs, str) and is_stream(outputs)
    return new_step(
        view,
        kind,
        input=question,
        output=output,
        input_texts=texts_in(inputs),
        output_texts=texts_in(outputs),
        deferred=streams or (output is None and _ANSWERS_LATER.search(view.scope) is not None),
        documents_seen=tuple(documents_within([inputs, outputs])) if kind != "tool" else (),
        documents_given=tuple(documents_within([inputs])) if kind != "tool" else (),
        kept_ids=tuple(ids_in(outputs)),
        losses=losses,
        **more,
    )


def texts_in(data: Found) -> tuple[str, ...]:
    """Return all usable texts among the values of the dict ``data``.

    This is called for an input without a usual key of a question, or an output without a usual key
    of an answer.
    """
    found = data.values() if isinstance(data, Mapping) else ()
    texts = (usable(text) for text in found if isinstance(text, str))
    return tuple(text for text in texts if text is not None)


def tool(view: Span, *, inputs: Found, outputs: Found, **more: Any) -> Step:
    """Build the `Step` of a tool call from the ``inputs`` and ``outputs`` on its span.

    The documents of the step are the documents in the artifact of the tool message, or else the
    list of documents that the tool returned. ``documents_seen`` of the step are documents that were
    written as objects of a framework's document class. Only retrievals return such documents.
    """
    losses = Losses()
    if isinstance(outputs, Mapping) and len(outputs) == 1:
        (inner,) = outputs.values()
        outputs = inner if isinstance(inner, Mapping) and "role" in inner else outputs
    artifact = passages_in(_of(outputs, "artifact")) or ()
    documents = None if losses.lost("documents", outputs) else artifact or documents_in(outputs)
    return new_step(
        view,
        "tool",
        input=losses.text("input", inputs, question_in(inputs)),
        output=losses.text("output", outputs, _tool_text(outputs)),
        documents=documents,
        documents_seen=artifact or tuple(documents_within(outputs)),
        losses=losses,
        **more,
    )


def _of(data: Found, key: str) -> Found:
    return data.get(key) if isinstance(data, Mapping) else None


def retrieval(
    view: Span,
    *,
    inputs: Found,
    documents: Found,
    kind: Kind = "retriever",
    count: int | None = None,
    **more: Any,
) -> Step:
    """Build the `Step` of a retrieval from its ``inputs`` and the ``documents`` that it returned.

    ``documents`` is a tuple of passages, or data from which the documents are read. If some of them
    have no text, the step has the others, and ``count`` is the number of all.
    """
    losses = Losses()
    found = documents if isinstance(documents, tuple) else None
    if found is None and not losses.lost("documents", documents):
        found, count = passages_in(documents), count_in(documents)
        found = passages_with_text(documents) if found is None else found
    if found and any(is_marker(passage.text) for passage in found):
        losses.hidden.add("documents")
        found = None
    if found is not None and count is None:
        count = len(found)
    return new_step(
        view,
        kind,
        input=losses.text("input", inputs, question_in(inputs)),
        documents=found,
        document_count=count,
        losses=losses,
        **more,
    )


def llm(
    view: Span,
    *,
    messages: Found,
    reply: Found,
    response_id: object = None,
    finish: object = None,
    **more: Any,
) -> Step:
    """Build the `Step` of a model call from its prompt ``messages`` and its ``reply``.

    ``finish`` is the finish reason that the model reported. It may say that the model calls a tool.
    """
    losses = Losses()
    shown = [] if losses.lost("prompt", messages) else _shown(messages)
    if any(is_marker(text) for _, text in shown):
        losses.hidden.add("prompt")
        shown = [(role, text) for role, text in shown if not is_marker(text)]
    spoken = _first_choice(reply) if isinstance(reply, list) else reply
    text, calls_tools = (None, False) if losses.lost("output", reply) else reply_in(spoken)
    calls_tools = calls_tools or "tool" in str(finish)
    return new_step(
        view,
        "llm",
        input=next((text for role, text in reversed(shown) if role == "user"), None),
        prompt=tuple(text for _, text in shown),
        own_messages=tuple(text for role, text in shown if role == "assistant"),
        tool_results=() if isinstance(messages, Lost) else _results(messages),
        output=losses.text("output", reply, text),
        calls_tools=calls_tools,
        response_id=response_id if isinstance(response_id, str) else None,
        losses=losses,
        **more,
    )


def _results(messages: Found) -> tuple[Result, ...]:
    """Return the tool results in the prompt that come after the last message of the user."""
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
    """Return ``text``, or an empty text if the end of ``text`` says that it was shortened."""
    return "" if read(text, opening="") is CUT else text


def reply_in(data: Found) -> tuple[str | None, bool]:
    """Return the text of a model's reply in any usual form, and whether the reply calls tools."""
    if isinstance(data, str):
        return data, False
    if isinstance(data, list):
        if _is_parts(data):
            return "".join(texts_of(data)) or None, False
        spoken = [item for item in data if isinstance(item, list | Mapping | str)]
        return reply_in(spoken[-1]) if spoken else (None, False)
    if not isinstance(data, Mapping):
        return None, False
    if "role" in data and "content" in data:
        return str(data["content"] or ""), bool(data.get("tool_calls"))
    key = next((k for k in _REPLY_KEYS if isinstance(data.get(k), list | Mapping | str)), "")
    inner = data.get(key)
    while key in _CHOICES and isinstance(inner, list) and inner:
        inner = min(inner, key=index_of)
    return reply_in(inner) if inner else (answer_in(data), False)


def index_of(choice: Any) -> int:
    """Return the number that a provider gave to one of several choices, or 0."""
    number = _of(choice, "index")
    return number if isinstance(number, int) else 0


def _is_parts(items: Sequence[Any]) -> bool:
    """Return True if ``items`` are the parts of one message, such as its thoughts and its text."""
    return bool(items) and all(
        isinstance(item, Mapping) and "type" in item and "role" not in item for item in items
    )


def _first_choice(messages: Sequence[Any]) -> Any:
    """Return the first of the ``messages`` of a model that are alternatives to each other.

    A message with a tool call or a tool result is no alternative, but a step on the way to the last
    message, which is returned then. A message without text is left out: it has only thoughts.
    """
    if _is_parts(messages):
        return messages
    told = [(one, *reply_in(one)) for one in messages]
    said = [one for one, text, calls in told if text or calls]
    is_sequence = any(calls or _of(one, "role") == "tool" for one, _, calls in told)
    return (said[-1] if is_sequence else said[0]) if said else None


def _shown(messages: Found) -> list[tuple[str, str]]:
    if isinstance(messages, str):
        return [("user", messages)]
    if isinstance(messages, Mapping) and isinstance(messages.get("prompts"), list):
        messages = messages["prompts"]
    if isinstance(messages, list) and messages and isinstance(messages[0], str):
        return [("user", str(messages[0]))]
    found = [(str(m["role"]), str(m.get("content") or "")) for m in messages_in(messages)]
    if not found and isinstance(messages, Mapping) and (inputs := question_in(messages)):
        return [("user", inputs)]
    return found


def _tool_text(outputs: Found, keys: Keys = USUAL) -> str | None:
    if isinstance(outputs, list):
        if outputs and all(
            isinstance(block, Mapping) and block.get("type") == "text" for block in outputs
        ):
            return _blocks(outputs)
        return _tool_text(outputs[-1], keys) if len(outputs) == 1 else None
    if not isinstance(outputs, Mapping):
        return outputs if isinstance(outputs, str) else None
    if isinstance(outputs.get("content"), str):
        return str(outputs["content"])
    if isinstance(outputs.get("blocks"), list):
        return _blocks(outputs["blocks"])
    inner = outputs.get("tool_output", next(iter(outputs.values())) if len(outputs) == 1 else None)
    return answer_in(outputs, keys) if inner is None else _tool_text(inner, keys)


def _blocks(blocks: Sequence[Any]) -> str:
    return "".join(str(b.get("text") or "") for b in blocks if isinstance(b, Mapping))


def listed(outputs: Found) -> tuple[Passage, ...] | None:
    """Return the documents in ``outputs`` if it is a non-empty list of documents, else None."""
    return passages_in(outputs) if isinstance(outputs, list) and outputs else None


def arguments(inputs: Found, keys: Keys = USUAL) -> Found:
    """Return the question among the arguments of a decorated function, or the keyword arguments.

    If ``inputs`` is not a dict of ``args`` and ``kwargs``, return ``inputs``. If there are
    positional arguments, return the only one with a text, or None if several have texts. Otherwise
    return the keyword arguments.
    """
    if not (isinstance(inputs, Mapping) and set(inputs) == {"args", "kwargs"}):
        return inputs
    args = inputs["args"] if isinstance(inputs["args"], list) else []
    texts = [arg for arg in args if question_in(arg, keys)]
    if args:
        return texts[0] if len(texts) == 1 else None
    return inputs["kwargs"]
