"""Read spans of OpenTelemetry's GenAI semantic conventions into steps (calls in a trace).

The texts may be in span attributes, in span events or in log records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rag_eval_otel import semconv
from rag_eval_otel.capture import step as build
from rag_eval_otel.capture.conventions.convention import Convention
from rag_eval_otel.capture.span import LogView, PlainSpan, SpanView, word
from rag_eval_otel.capture.step import Kind, Step
from rag_eval_otel.capture.values import CUT, HIDDEN, Lost, plain, read, value

_KINDS: Mapping[str, Kind] = {
    "chat": "llm",
    "embeddings": "embedding",
    "execute_tool": "tool",
    "generate_content": "llm",
    "invoke_agent": "agent",
    "invoke_workflow": "chain",
    "rerank": "reranker",
    "retrieval": "retriever",
    "search_memory": "retriever",
    "text_completion": "llm",
}
_UNREAD = frozenset({"create_agent", "fetch_response"})
_OF_MEMORIES = ("_memory", "_memory_store")
_DETAILS = "gen_ai.client.inference.operation.details"
_TEXTS: Final = frozenset({"gen_ai.input.messages", "gen_ai.output.messages"})
_OF_TOOLS: Mapping[str, str] = {
    "gen_ai.choice": "gen_ai.tool.call.result",
    "gen_ai.tool.message": "gen_ai.tool.call.arguments",
}
"""The names of events on tool spans, and the names of attributes with the same content."""
_TOOL_MESSAGES = ('"tool_call_response"', '"role": "tool"', '"role":"tool"')
_FLAT: frozenset[Kind] = frozenset({"chain"})  # a workflow may answer several questions
_VARIABLE = "gen_ai.prompt.variable."


def kind(view: SpanView) -> Kind | None:
    """Return the kind of call on a span. An operation that is not known may hold the question."""
    found = word(view, "gen_ai.operation.name")
    if found is None or found in _UNREAD:
        return None
    return _KINDS.get(found) or (None if found.endswith(_OF_MEMORIES) else "chain")


def holds_documents(view: SpanView) -> bool:
    """Return True if the prompt of the model call ``view`` contains a tool message.

    The prompt may be in an attribute, in span events or in log records. It is not parsed as JSON,
    only searched.
    """
    shown = [view.attributes.get("gen_ai.input.messages")]
    if kind(view) == "llm":
        told = [*((log.event, log.attributes) for log in view.logs), *view.events]
        if any(event == "gen_ai.tool.message" for event, _ in told):
            return True
        shown += [texts.get("gen_ai.input.messages") for event, texts in told if event == _DETAILS]
    return any(map(_has_tool_message, shown))


def _has_tool_message(messages: object) -> bool:
    if isinstance(messages, str):
        return any(mark in messages for mark in _TOOL_MESSAGES)
    found = messages if isinstance(messages, Sequence) else ()
    return any(isinstance(one, Mapping) and one.get("role") == "tool" for one in found)


def awaits_logs(view: SpanView, of: Kind) -> bool:
    """Return True if the reply of the model call ``view`` is missing, and may be in a log record.

    The log records of the prompt may have come before, because the older convention writes them
    when the call starts. A call that failed has no reply.
    """
    names = view.attributes
    if of != "llm" or view.error is not None or not _TEXTS.isdisjoint(names):
        return False
    told = (*(log.event for log in view.logs), *(name for name, _ in view.events))
    return _DETAILS not in told and "gen_ai.choice" not in told


def to_step(view: PlainSpan, of: Kind) -> Step:
    view = with_events(view)
    if of in {"retriever", "reranker"}:
        inputs = value(view, "gen_ai.retrieval.query.text", "gen_ai.memory.query.text")
        documents = value(view, "gen_ai.retrieval.documents", "gen_ai.memory.records")
        return build.retrieval(view, inputs=inputs, documents=documents, kind=of)
    if of == "llm":
        return _llm(view)
    if of == "tool":
        inputs = value(view, "gen_ai.tool.call.arguments", "tool_arguments")
        outputs = value(view, "gen_ai.tool.call.result", "tool_response")
        name = view.attributes.get("gen_ai.tool.name")
        about = str(view.attributes.get("gen_ai.tool.description") or "")
        return build.tool(view, inputs=inputs, outputs=outputs, name=name, description=about)
    if of == "embedding":
        return build.chain(view, of, inputs=value(view, "gen_ai.input.messages"), outputs=None)
    inputs = value(view, "gen_ai.input.messages", "pydantic_ai.all_messages")
    outputs = value(view, "gen_ai.output.messages", "final_result")
    if inputs is None and outputs is None and view.logs:
        inputs, outputs = _of_events(view)
    is_known = word(view, "gen_ai.operation.name") in _KINDS
    if inputs is None and not is_known:
        inputs = HIDDEN  # it may be the question of a turn, in place of which no query counts
    return build.chain(view, of, inputs=inputs, outputs=outputs, flat=of in _FLAT and is_known)


def _llm(view: PlainSpan) -> Step:
    messages, reply = messages_of(view)
    texts = dict(_variables(view.attributes))
    for log in view.logs:
        texts.update(_variables(log.attributes))
    response = view.attributes.get("gen_ai.response.id")
    finish = view.attributes.get("gen_ai.response.finish_reasons")
    call = build.llm(
        view,
        messages=messages,
        reply=reply,
        response_id=response,
        finish=finish,
        variables=texts,
    )
    return replace(call, end=None) if _lacks_reply(view) else call


def _lacks_reply(view: PlainSpan) -> bool:
    """Return True if the instrumentation never recorded the reply of the model call ``view``."""
    names = view.attributes
    is_complete = view.error is None and not view.dropped and "gen_ai.input.messages" in names
    return is_complete and "gen_ai.output.messages" not in names


def with_events(view: PlainSpan) -> PlainSpan:
    """Return a copy of the span ``view`` with its GenAI events as attributes and log records."""
    found = [(name, texts) for name, texts in view.events if _is_read(name)]
    if not found:
        return view
    details = [texts for name, texts in found if name == _DETAILS]
    texts = {name: text for one in details for name, text in one.items()}
    logs = [LogView(event=name, body=_body(view, one)) for name, one in found if name != _DETAILS]
    if kind(view) == "tool":
        texts |= {_OF_TOOLS[log.event]: _text_of(log) for log in logs if log.event in _OF_TOOLS}
    return replace(
        view, attributes={**texts, **view.attributes}, events=(), logs=[*view.logs, *logs]
    )


def _is_read(event: str) -> bool:
    """Return True for an event with texts. Scores may be events, too, and are not read."""
    return event.startswith("gen_ai.") and event != semconv.EVALUATION_EVENT


def _body(view: PlainSpan, attributes: Mapping[str, Any]) -> Any:
    """Return the attributes of a span event as the body of a log record, with JSON parsed.

    If one of the values was shortened or dropped, return `CUT`.
    """
    body = {name: read(text, limit=view.value_limit) for name, text in attributes.items()}
    is_cut = view.dropped_events or any(isinstance(text, Lost) for text in body.values())
    return CUT if is_cut else body


def _text_of(log: LogView) -> Any:
    return log.body.get("content", log.body.get("message")) if log.body is not CUT else CUT


def messages_of(view: PlainSpan) -> tuple[Any, Any]:
    """Return the prompt and the reply of a model call.

    They are read from the attributes or the log records of its span ``view``.
    """
    for log in view.logs:
        if log.event == _DETAILS and "gen_ai.input.messages" not in view.attributes:
            return _of_attributes(log.attributes, view.value_limit)
    if view.logs and "gen_ai.input.messages" not in view.attributes:
        return _of_events(view)
    found = _of_attributes(view.attributes, view.value_limit)
    if view.dropped and found[1] is None:
        return value(view, "gen_ai.input.messages"), value(view, "gen_ai.output.messages")
    return found


def _of_attributes(attributes: Mapping[str, Any], limit: int | None) -> tuple[Any, Any]:
    messages = read(attributes.get("gen_ai.input.messages"), limit=limit)
    instructions = read(attributes.get("gen_ai.system_instructions"), limit=limit)
    reply = read(attributes.get("gen_ai.output.messages"), limit=limit)
    if isinstance(messages, list) and instructions:
        messages = [{"role": "system", "content": _joined(instructions)}, *messages]
    return messages, reply


def _joined(instructions: Any) -> str:
    if isinstance(instructions, str):
        return instructions
    parts = instructions if isinstance(instructions, list) else []
    return "".join(str(part.get("content") or "") for part in parts if isinstance(part, Mapping))


def _of_events(view: PlainSpan) -> tuple[Any, Any]:
    """Return the prompt and the reply of a model call from log records, as in the older convention.

    There is one log record for each message.
    """
    shown: list[Any] = []
    choices: list[Mapping[str, Any]] = []
    if any(log.body is CUT for log in view.logs):
        return CUT, CUT
    for log in view.logs:
        role, body = log.event.removeprefix("gen_ai.").removesuffix(".message"), log.body
        if log.event == "gen_ai.choice" and isinstance(body, Mapping):
            choices.append(body)
        elif log.event.endswith(".message") and isinstance(body, Mapping):
            shown.append(plain({"role": body.get("role", role), **body}))
    first = min(choices, key=build.index_of, default=None)
    return shown or None, None if first is None else _choice(first)


def _choice(body: Mapping[str, Any]) -> Any:
    """Return the reply of a model as a chat message.

    In the ``body`` of an event, it may be a chat message, a text or a list of content blocks.
    """
    message = body.get("message")
    return plain(
        message if isinstance(message, Mapping) else {"role": "assistant", "content": message}
    )


def _variables(attributes: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, item in attributes.items():
        if key.startswith(_VARIABLE) and isinstance(item, str):
            yield key.removeprefix(_VARIABLE), item


CONVENTION: Final = Convention(
    name="genai",
    kind=kind,
    to_step=to_step,
    marks=frozenset({"gen_ai.operation.name"}),
    content=(
        r"gen_ai\.(input|output)\.messages",
        r"gen_ai\.system_instructions",
        r"gen_ai\.(retrieval|memory)\.(query\.text|documents|records)",
        r"gen_ai\.tool\.call\.(arguments|result)",
        r"gen_ai\.prompt\.(variable\..+|template)",
        r"tool_arguments|tool_response|final_result|(pydantic_ai\.)?all_messages(_events)?",
    ),
    content_events=(
        (
            r"gen_ai\.(\w+\.message|choice)",
            r"(gen_ai\.event\.)?(content|message|tool_calls|reasoning)(\..+)?",
        ),
    ),
    log_events=("gen_ai.",),
    awaits_logs=awaits_logs,
    holds_documents=holds_documents,
    flat=_FLAT,
    tool_names=("gen_ai.tool.name",),
    instrumentations=r"pydantic|opentelemetry\.(util\.genai|instrumentation\.(genai|openai|ag2))",
)
