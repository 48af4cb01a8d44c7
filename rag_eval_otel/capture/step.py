"""Define `Step`, one call in a trace, and build steps from the data on spans and LangChain runs."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from rag_eval_otel.capture.documents import (
    documents_in,
    documents_within,
    ids_in,
    items_in,
    passage_of,
    passages_in,
    results_of,
    texts_within,
)
from rag_eval_otel.capture.values import (
    CUT,
    HIDDEN,
    Lost,
    answer_in,
    at,
    is_marker,
    messages_in,
    question_in,
    read,
    texts_of,
    usable,
)
from rag_eval_otel.types import ContextsSource, Message, Passage

if TYPE_CHECKING:
    from rag_eval_otel.capture.span import Span

# Calls below a plan do not answer. An aside, such as an evaluator, and all below are of no turn.
Kind = Literal[
    "agent", "aside", "chain", "embedding", "llm", "other", "plan", "reranker", "retriever", "tool"
]
Part = Literal["documents", "history", "input", "output", "prompt"]

RETRIEVALS = frozenset({"retriever", "reranker"})

CONTEXT_TOOLS: Final = re.compile(  # the name of a tool that retrieves
    r"search|retriev|look_?up|knowledge|(^|[^a-z])(kb|rag|docs?)([^a-z]|$)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A tool result that was a message in the prompt of an LLM call."""

    text: str
    tool: str = ""
    documents: tuple[Passage, ...] | None = ()  # beside or in place of the text; None if unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call in a trace: a retrieval, a call of a model or a tool, or a chain.

    ``input`` is the question of a chain or agent, the query of a retriever, the last user message
    of an LLM, or the arguments of a tool. ``output`` is the answer of a chain or agent, or the text
    that an LLM or a tool returned. An attribute is None if the trace does not contain its value.
    Times are nanoseconds since the epoch.
    """

    id: Hashable
    parent: Hashable | None
    kind: Kind
    name: str
    start: int
    end: int | None = None  # None while the call runs
    input: str | None = None
    output: str | None = None
    prompt: tuple[str, ...] = ()  # the messages that an LLM was shown, oldest first
    documents: tuple[Passage, ...] | None = None  # None if not captured, () if nothing was found
    error: str | None = None
    hidden: frozenset[Part] = frozenset()  # redacted; never restored from other steps
    cut: frozenset[Part] = frozenset()  # shortened or dropped by a limit of the SDK
    recorded: frozenset[Part] = frozenset()  # by the application itself; these take precedence
    document_count: int | None = None  # also if not all texts of the documents are captured
    query: str | None = None  # of a retrieval that was recorded on a step of another kind
    variables: Mapping[str, str] = field(default_factory=dict)  # of the prompt's template, by name
    description: str = ""  # of a tool
    tool_results: tuple[Result, ...] = ()  # in the prompt, after the last message of the user
    windows: Mapping[str, str] = field(default_factory=dict)  # longer texts, by those of documents
    own_messages: tuple[str, ...] = ()  # in the prompt, by the LLM itself
    history: tuple[Message, ...] = ()  # of user and assistant, before the last message of the user
    keeps_history: bool = False  # whether the application has the history beside the question
    input_texts: tuple[str, ...] = ()  # all in the input of a chain; ``input`` may be none of them
    output_texts: tuple[str, ...] = ()
    documents_seen: tuple[Passage, ...] = ()  # in the input and the output of a chain
    documents_given: tuple[Passage, ...] = ()  # in the input of a chain
    texts_given: tuple[Passage, ...] = ()  # in the input of a chain, under a name such as "facts"
    texts_returned: tuple[Passage, ...] = ()
    kept_ids: tuple[str, ...] = ()  # of documents that a chain returned without their texts
    calls_tools: bool = False
    is_remote: bool = False  # whether no span of this process is above the call
    flat: bool = False  # whether the span, as of a web request, may contain unrelated questions
    deferred: bool = False  # whether the output is read as a stream, after the end of the span
    metadata: Mapping[str, Any] = field(default_factory=dict)  # session, user and the like
    contexts_source: ContextsSource = "retrieval"  # where the documents of a retrieval were found
    source: str = ""  # the instrumentation; two may record the same call
    is_cut: bool = False  # whether a text is longer than the limit of texts, and not whole
    response_id: str | None = None  # from the provider of the model

    @property
    def lacks_texts(self) -> bool:
        """Of a retrieval: whether a document's text is missing; also if ``documents`` is None."""
        return self.documents is None or len(self.documents) < (self.document_count or 0)


def has_longer_text(step: Step, most: int) -> bool:
    """Return True if ``step`` has a text of more than ``most`` characters."""
    listed = (*(step.documents or ()), *step.documents_seen, *step.texts_returned)
    texts = (
        *(step.input or "", step.output or "", step.query or "", step.description),
        *step.prompt,
        *(() if step.input else step.input_texts),
        *(() if step.output else step.output_texts),
        *(*step.variables.values(), *step.windows.values()),
        *(passage.text for passage in listed),
        *(result.text for result in step.tool_results),
        *(passage.text for result in step.tool_results for passage in result.documents or ()),
    )
    return any(len(text) > most for text in texts)


# --- steps out of spans ---------------------------------------------------------------------------

Found: TypeAlias = "Any"  # plain data, or a `Lost`, or None for a missing value

_ANSWERS_LATER = re.compile("llama_?index")  # spans of LlamaIndex may end before the answer
_CHOICES = frozenset({"choices", "generations", "replies"})  # alternatives: the first is read
_SPEAKERS = ("user", "assistant")
HOSTED: Final[Mapping[str, Any]] = {"recorded": frozenset({"documents"}), "contexts_source": "tool"}
_REPLY_KEYS = "message generations choices replies messages output answer text".split()


class Losses:
    """Collects which parts of a span were redacted (``hidden``) or shortened (``cut``)."""

    def __init__(self) -> None:
        self.hidden: set[Part] = set()
        self.cut: set[Part] = set()

    def lost(self, part: Part, found: Found) -> bool:
        """Return True if the value of ``part`` was redacted or shortened, and note it."""
        if found is HIDDEN:
            self.hidden.add(part)
        if found is CUT:
            self.cut.add(part)
        return isinstance(found, Lost)

    def text(self, part: Part, found: Found, text: str | None) -> str | None:
        if text is None:
            self.lost(part, found)
        elif is_marker(text):
            self.hidden.add(part)
        else:
            return usable(text)
        return None


def new_step(view: Span, kind: Kind, *, losses: Losses | None = None, **parts: Any) -> Step:
    """Build a `Step` from ``parts`` and the name, times, parent and scope of the span ``view``."""
    losses = losses or Losses()
    return Step(
        id=view.span_id,
        parent=view.parent_id,
        is_remote=parts.pop("is_remote", False) or view.parent_is_remote,
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


def chain(view: Span, kind: Kind, *, inputs: Found, outputs: Found, **more: Any) -> Step:
    """Build the `Step` of a chain or agent from the ``inputs`` and ``outputs`` on its span."""
    losses = Losses()
    outputs = None if kind == "plan" else outputs
    output = losses.text("output", outputs, answer_in(outputs))
    question = losses.text("input", inputs, question_in(inputs))
    given = tuple(documents_within(inputs))
    return new_step(
        view,
        kind,
        input=question,
        output=output,
        input_texts=_texts_in(inputs),
        output_texts=_texts_in(outputs),
        history=history_in(inputs),
        keeps_history=isinstance(at(inputs, "chat_history"), list),
        deferred=output is None and bool(_ANSWERS_LATER.search(view.scope)),
        documents_seen=(*given, *documents_within(outputs)),
        documents_given=given,
        texts_given=tuple(texts_within(inputs)),
        texts_returned=tuple(texts_within(outputs)),
        kept_ids=tuple(ids_in(outputs)),
        losses=losses,
        **more,
    )


def _texts_in(data: Found) -> tuple[str, ...]:
    if not isinstance(data, dict):
        return ()
    return tuple([text for text in data.values() if isinstance(text, str) and usable(text)])


def tool(view: Span, *, inputs: Found, outputs: Found, **more: Any) -> Step:
    """Build the `Step` of a tool call from the ``inputs`` and ``outputs`` on its span."""
    losses = Losses()
    if isinstance(outputs, dict) and len(outputs) == 1:
        (inner,) = outputs.values()
        outputs = inner if isinstance(inner, dict) and "role" in inner else outputs
    artifact = passages_in(at(outputs, "artifact")) or ()
    documents = None if losses.lost("documents", outputs) else artifact or documents_in(outputs)
    scored = [passage for passage in documents or () if passage.score is not None]
    return new_step(
        view,
        "tool",
        input=losses.text("input", inputs, question_in(inputs)),
        output=losses.text("output", outputs, _tool_text(outputs)),
        documents=documents,
        # Only retrievals return objects of a framework's document class, or several scored texts.
        documents_seen=artifact or tuple(documents_within(outputs)) or tuple(scored[1:] and scored),
        losses=losses,
        **more,
    )


def _tool_text(outputs: Found) -> str | None:
    if isinstance(outputs, list):
        if all(at(block, "type") == "text" for block in outputs):
            return "".join(texts_of(outputs))
        return _tool_text(outputs[0]) if len(outputs) == 1 else None
    if not isinstance(outputs, dict):
        return outputs if isinstance(outputs, str) else None
    if isinstance(outputs.get("content"), str):
        return str(outputs["content"])
    if isinstance(outputs.get("blocks"), list):
        return "".join(texts_of(outputs["blocks"]))
    inner = outputs.get("tool_output", next(iter(outputs.values())) if len(outputs) == 1 else None)
    return answer_in(outputs) if inner is None else _tool_text(inner)


def retrieval(
    view: Span,
    *,
    inputs: Found,
    documents: Found,
    kind: Kind = "retriever",
    count: int | None = None,
    **more: Any,
) -> Step:
    """Build the `Step` of a retrieval; ``count`` is the number of documents if some lack a text."""
    losses = Losses()
    found = documents if isinstance(documents, tuple) else None
    if found is None and not losses.lost("documents", documents):
        items = items_in(documents)
        found = tuple([one for one in map(passage_of, items or ()) if one is not None])
        found = found if found or items == [] else None
        count = items if items is None else len(items)
    if found and any(is_marker(passage.text) for passage in found):
        losses.hidden.add("documents")
        found = None
    return new_step(
        view,
        kind,
        input=losses.text("input", inputs, question_in(inputs)),
        documents=found,
        document_count=len(found) if found is not None and count is None else count,
        losses=losses,
        **more,
    )


def listed(outputs: Found) -> tuple[Passage, ...] | None:
    """Return the documents in ``outputs`` if it is a non-empty list of documents, else None."""
    return passages_in(outputs) if isinstance(outputs, list) and outputs else None


def arguments(inputs: Found) -> Found:
    """Return a function call's only positional question, or its keywords; other data unchanged."""
    if not (isinstance(inputs, dict) and set(inputs) == {"args", "kwargs"}):
        return inputs
    if not isinstance(inputs["args"], list) or not inputs["args"]:
        return inputs["kwargs"]
    texts = [arg for arg in inputs["args"] if question_in(arg)]
    return texts[0] if len(texts) == 1 else None


# --- model calls ----------------------------------------------------------------------------------


def llm(
    view: Span,
    *,
    messages: Found,
    reply: Found,
    response_id: object = None,
    finish: object = None,
    **more: Any,
) -> Step:
    """Build the `Step` of a model call; a ``finish`` reason with "tool" means a tool call."""
    losses = Losses()
    shown = [] if losses.lost("prompt", messages) else _shown(messages)
    if any(is_marker(text) for _, text in shown):
        losses.hidden.add("prompt")
        shown = [(role, text) for role, text in shown if not is_marker(text)]
    spoken = _first_choice(reply) if isinstance(reply, list) else reply
    text, calls_tools = reply_in(spoken)
    for hosted in _hosted(spoken):
        more |= {"documents": hosted.documents, **HOSTED}
    return new_step(
        view,
        "llm",
        input=next((text for role, text in reversed(shown) if role == "user"), None),
        prompt=tuple([text for _, text in shown]),
        own_messages=tuple([text for role, text in shown if role == "assistant"]),
        history=history_in(messages),
        tool_results=_results(messages),
        output=losses.text("output", reply, text),
        calls_tools=calls_tools or "tool" in str(finish),
        response_id=response_id if isinstance(response_id, str) else None,
        losses=losses,
        **more,
    )


def _shown(messages: Found) -> list[tuple[str, str]]:
    if isinstance(messages, dict) and isinstance(messages.get("prompts"), list):
        messages = messages["prompts"]
    if isinstance(messages, list) and messages and isinstance(messages[0], str):
        messages = messages[0]
    if isinstance(messages, str):
        return [("user", messages)]
    found: list[tuple[str, str]] = []
    for message in messages_in(messages):
        found += [("tool", one.text) for one in _hosted(message)]
        found.append((str(message["role"]), str(message.get("content") or "")))
    asked = question_in(messages) if not found and isinstance(messages, dict) else None
    return [("user", asked)] if asked else found


def history_in(data: Found) -> tuple[Message, ...]:
    """Return the ``chat_history`` in ``data``, or the messages before the last one of the user.

    Calls of tools are left out. Pairs of texts in a ``chat_history`` are questions and answers.
    """
    kept = at(data, "chat_history")
    if isinstance(kept, list):
        pairs = [zip(_SPEAKERS, pair, strict=False) for pair in kept if isinstance(pair, list)]
        texts = [{"role": role, "content": text} for pair in pairs for role, text in pair]
        found = texts or messages_in(kept)
    else:
        found = messages_in(data)
        asked = [number for number, one in enumerate(found) if one["role"] == "user"]
        found = found[: asked[-1]] if asked else []
    said = [
        Message(one["role"], text)
        for one in found
        if one["role"] in _SPEAKERS and not one.get("tool_calls")
        if isinstance(text := one.get("content"), str) and text.strip()
    ]
    return tuple(said)


def _results(messages: Found) -> tuple[Result, ...]:
    """Return the tool results after the last user message; the text is empty if it was cut."""
    found = messages_in(messages)
    last = max((n for n, one in enumerate(found) if one["role"] == "user"), default=-1)
    called: dict[str, str] = {}
    for message in found[last + 1 :]:
        called |= message.get("called", {})
    return tuple(
        Result(
            text="" if read(text := str(one.get("text") or ""), opening="") is CUT else text,
            tool=str(one.get("name") or called.get(str(one.get("id")), "")),
            documents=passages_in(one.get("artifact")) or (),
        )
        for message in found[last + 1 :]
        if message["role"] == "tool"
        for one in message.get("results") or [{"text": message.get("content")}]
    ) + tuple(one for message in found[max(last, 0) :] for one in _hosted(message))


def _hosted(message: Any) -> Sequence[Result]:
    """Return all searches of the model's provider in ``message`` as one `Result`, or nothing."""
    pairs = at(message, "hosted")
    if not pairs:
        return ()
    found = [results_of(data) for _, data in pairs]
    passages = tuple(passage for documents in found for passage in documents or ())
    text = "\n\n".join(passage.text for passage in passages)
    documents = None if None in found else passages
    return [Result(text=text, tool=pairs[0][0], documents=documents)]


def reply_in(data: Found) -> tuple[str | None, bool]:
    """Return the text of a model's reply in any usual form, and whether the reply calls tools."""
    if isinstance(data, str):
        return data, False
    if isinstance(data, list):
        if _is_parts(data):
            return "".join(texts_of(data)) or None, False
        spoken = [item for item in data if isinstance(item, list | dict | str)]
        return reply_in(spoken[-1]) if spoken else (None, False)
    if not isinstance(data, dict):
        return None, False
    if "role" in data and "content" in data:
        return str(data["content"] or ""), bool(data.get("tool_calls"))
    key = next((k for k in _REPLY_KEYS if isinstance(data.get(k), list | dict | str)), "")
    inner = data.get(key)
    while key in _CHOICES and isinstance(inner, list) and inner:
        inner = min(inner, key=index_of)
    return reply_in(inner) if inner else (answer_in(data), False)


def index_of(choice: Any) -> int:
    """Return the ``index`` of one of a completion's choices, or 0 if it has none."""
    number = at(choice, "index")
    return number if isinstance(number, int) else 0


def _is_parts(items: Sequence[Any]) -> bool:
    """Return True if ``items`` are the parts of one message, such as its thoughts and its text."""
    return bool(items) and all(
        isinstance(item, dict) and "type" in item and "role" not in item for item in items
    )


def _first_choice(messages: Sequence[Any]) -> Any:
    """Return a model's reply: the first of ``messages`` if they are alternatives, else the last."""
    if _is_parts(messages):
        return messages
    told = [(one, *reply_in(one)) for one in messages]
    said = [one for one, text, calls in told if text or calls]
    # If one calls a tool or is a tool result, they are successive, and the last is the reply.
    is_sequence = any(calls or at(one, "role") == "tool" for one, _, calls in told)
    return (said[-1] if is_sequence else said[0]) if said else None
