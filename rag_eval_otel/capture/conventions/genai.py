"""Read spans of OpenTelemetry's GenAI semantic conventions into steps (calls in a trace)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rag_eval_otel import semconv
from rag_eval_otel.capture import step as build
from rag_eval_otel.capture.conventions.convention import Convention
from rag_eval_otel.capture.span import Copier, LogView, Span, value, word
from rag_eval_otel.capture.step import RETRIEVALS, Kind, Step
from rag_eval_otel.capture.values import CUT, HIDDEN, Lost, at, messages_in, plain, read, texts_of

_KINDS: Mapping[str, Kind] = {
    "chat": "llm",
    "embedding": "embedding",  # Spring AI
    "embeddings": "embedding",
    "evaluation": "aside",
    "execute_tool": "tool",
    "framework": "agent",  # Spring AI's chat clients and their advisors
    "generate_content": "llm",
    "invoke_agent": "agent",
    "invoke_workflow": "chain",
    "plan": "plan",
    "rerank": "reranker",
    "retrieval": "retriever",
    "search_memory": "retriever",
    "text_completion": "llm",
}
_DETAILS = "gen_ai.client.inference.operation.details"
_MESSAGES, _REPLY = "gen_ai.input.messages", "gen_ai.output.messages"
_OF_TOOLS: Mapping[str, str] = {  # events on tool spans, and attributes with the same content
    "gen_ai.choice": "gen_ai.tool.call.result",
    "gen_ai.tool.message": "gen_ai.tool.call.arguments",
}
_RESULT = re.compile(  # how a message that has the result of a tool looks in JSON
    r'tool_call_response"|"role": ?"tool"|"(generic_)?type": ?"[^"]*search'
)
_FLAT: frozenset[Kind] = frozenset({"chain"})  # a workflow may answer several questions
_VARIABLE = "gen_ai.prompt.variable."


def kind(view: Span) -> Kind | None:
    """Return the kind of call or None. An unknown operation is a chain: it may hold a question."""
    operation = word(view, "gen_ai.operation.name")
    if operation is None or operation in {"create_agent", "fetch_response"}:
        return None
    writes = operation.endswith(("_memory", "_memory_store"))  # what a user said before
    return _KINDS.get(operation) or ("aside" if writes else "chain")


def holds_documents(view: Span) -> bool:
    shown = [view.attributes]
    if kind(view) == "llm":
        events = [*((log.event, log.attributes) for log in view.logs), *view.events]
        if any(event == "gen_ai.tool.message" for event, _ in events):
            return True
        shown += [texts for _, texts in events]
    return any(_has_result(texts.get(name)) for texts in shown for name in (_MESSAGES, _REPLY))


def _has_result(messages: object) -> bool:
    if isinstance(messages, str):
        return _RESULT.search(messages) is not None
    return any(
        one["role"] == "tool" or "hosted" in one
        for one in messages_in(plain(Copier().value(messages)))
    )


def to_step(view: Span, of: Kind) -> Step:
    view = with_events(view)
    if of in RETRIEVALS:
        inputs = value(view, "gen_ai.retrieval.query.text", "gen_ai.memory.query.text")
        documents = value(view, "gen_ai.retrieval.documents", "gen_ai.memory.records")
        step = build.retrieval(view, inputs=inputs, documents=documents, kind=of)
        is_memory = word(view, "gen_ai.operation.name") == "search_memory"
        return replace(step, contexts_source="memory") if is_memory else step
    if of == "llm":
        return _llm(view)
    if of == "tool":
        return build.tool(
            view,
            inputs=value(view, "gen_ai.tool.call.arguments", "tool_arguments"),
            outputs=value(view, "gen_ai.tool.call.result", "tool_response"),
            name=view.attributes.get("gen_ai.tool.name"),
            description=str(view.attributes.get("gen_ai.tool.description") or ""),
        )
    if of == "embedding":
        return build.chain(view, of, inputs=value(view, _MESSAGES), outputs=None)
    inputs = value(view, _MESSAGES, "pydantic_ai.all_messages")
    outputs = value(view, _REPLY, "final_result")
    told = (one for one in messages_in(outputs) if one["role"] == "assistant")
    if sum(bool(one.get("content")) for one in told) > 1:
        outputs = None  # alternatives or steps: the model's call says which is the answer
    if inputs is None and outputs is None and view.logs:
        inputs, outputs = _of_events(view)
    is_known = word(view, "gen_ai.operation.name") in _KINDS
    if inputs is None and not is_known:
        inputs = HIDDEN  # it may be the question of a turn, in place of which no query counts
    return build.chain(view, of, inputs=inputs, outputs=outputs, flat=of in _FLAT and is_known)


def _llm(view: Span) -> Step:
    messages, reply = messages_of(view)
    if isinstance(reply, list) and all(at(one, "role") == "assistant" for one in reply):
        reply = reply[:1]  # of alternatives, an application takes the first
    variables = {
        key.removeprefix(_VARIABLE): text
        for key, text in view.attributes.items()
        if key.startswith(_VARIABLE) and isinstance(text, str)
    }
    call = build.llm(
        view,
        messages=messages,
        reply=reply,
        response_id=view.attributes.get("gen_ai.response.id"),
        finish=view.attributes.get("gen_ai.response.finish_reasons"),
        variables=variables,
    )
    is_complete = view.error is None and not view.dropped and _MESSAGES in view.attributes
    lacks_reply = is_complete and _REPLY not in view.attributes  # it was never recorded
    return replace(call, end=None) if lacks_reply else call


def with_events(view: Span) -> Span:
    """Return ``view`` with its GenAI events, except scores, as attributes and log records."""
    events = [pair for pair in view.events if pair[0].startswith("gen_ai.")]
    events = [(name, texts) for name, texts in events if name != semconv.EVALUATION_EVENT]
    logs = [LogView(event=name, body=_body(view, t)) for name, t in events if name != _DETAILS]
    texts: dict[str, Any] = {}
    for name, values in (*events, *((log.event, log.attributes) for log in view.logs)):
        texts |= values if name == _DETAILS else {}
    for log in logs if kind(view) == "tool" else ():
        if log.event in _OF_TOOLS:
            body = log.body
            text = body if body is CUT else body.get("content", body.get("message"))
            texts[_OF_TOOLS[log.event]] = text
    logs = [*(log for log in view.logs if log.event != _DETAILS), *logs]
    return replace(view, attributes={**texts, **view.attributes}, events=(), logs=logs)


def _body(view: Span, attributes: Mapping[str, Any]) -> Any:
    body = {name: read(text, limit=view.value_limit) for name, text in attributes.items()}
    is_cut = view.dropped_events or any(isinstance(text, Lost) for text in body.values())
    return CUT if is_cut else body


def messages_of(view: Span) -> tuple[Any, Any]:
    if _MESSAGES not in view.attributes and view.logs:
        return _of_events(view)
    messages, reply = value(view, _MESSAGES), value(view, _REPLY)
    system = read(view.attributes.get("gen_ai.system_instructions"), limit=view.value_limit)
    if isinstance(messages, list) and system:
        parts = system if isinstance(system, list) else []
        text = system if isinstance(system, str) else "".join(texts_of(parts))
        messages = [{"role": "system", "content": text}, *messages]
    return messages, reply


def _of_events(view: Span) -> tuple[Any, Any]:
    shown: list[Any] = []
    choices: list[Mapping[str, Any]] = []
    if any(log.body is CUT for log in view.logs):
        return CUT, CUT
    for log in view.logs:
        role, body = log.event.removeprefix("gen_ai.").removesuffix(".message"), log.body
        if log.event == "gen_ai.choice" and isinstance(body, dict):
            choices.append(body)
        elif log.event.endswith(".message") and isinstance(body, dict):
            shown.append(plain({"role": body.get("role", role), **body}))
    first = min(choices, key=build.index_of, default=None)
    if first is None:
        return shown or None, None
    message = first.get("message")  # a chat message, a text or content blocks
    if not isinstance(message, dict):
        message = {"role": "assistant", "content": message}
    return shown or None, plain(message)


CONVENTION: Final = Convention(
    name="genai",
    kind=kind,
    to_step=to_step,
    marks=frozenset({"gen_ai.operation.name"}),
    content=(
        r"gen_ai\.(input|output)\.messages",
        r"gen_ai\.system_instructions",
        r"gen_ai\.(retrieval|memory)\.(query\.text|documents|records)",
        r"gen_ai\.evaluation\.explanation",
        r"gen_ai\.tool\.(call\.(arguments|result)|definitions|description)",
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
    holds_documents=holds_documents,
    flat=_FLAT,
    instrumentations=r"pydantic|opentelemetry\.(util\.genai|instrumentation\.(genai|openai|ag2))",
)
