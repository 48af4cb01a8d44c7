"""Read spans of LlamaIndex's own tracing into steps (calls in a trace).

All texts are in span events. The spans themselves have only names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rag_eval_otel.capture import step as build
from rag_eval_otel.capture.conventions import openinference
from rag_eval_otel.capture.conventions.convention import Convention
from rag_eval_otel.capture.documents import passages_in
from rag_eval_otel.capture.span import PlainSpan, SpanView, word
from rag_eval_otel.capture.step import Kind, Step
from rag_eval_otel.capture.values import JSON, read, value

_SCOPE: Final = "llamaindex.opentelemetry.tracer"
_EVENTS: Mapping[str, Kind] = {
    "EmbeddingStartEvent": "embedding",
    "LLMChatStartEvent": "llm",
    "LLMCompletionStartEvent": "llm",
    "ReRankStartEvent": "reranker",
    "RetrievalStartEvent": "retriever",
    "StreamChatStartEvent": "llm",
}
RERANKS: Final = re.compile(r"(Rerank|Reranker)\._?a?postprocess_nodes$")
_NAMES: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"Retriever\.\w+$"), "retriever"),
    (re.compile(r"(Tool\.a?call|\.call_tool)$"), "tool"),
    (re.compile(r"Agent\.run$"), "agent"),
    (RERANKS, "reranker"),
)

_EVALUATES: Final = re.compile(
    r"Please tell if a given piece of information is supported by the context"
    r"|Your task is to evaluate if the (response|retrieved context)"
    r"|You are an expert evaluation system for a question answering chatbot"
)
"""Matches prompts of LlamaIndex's evaluators, which judge an answer to a question."""
_OBSERVES = "Observation: "
_THOUGHT = re.compile(r"\s*Thought:.*?\n(?P<what>Answer|Action):\s*(?P<rest>.*)", re.DOTALL)


def kind(view: SpanView) -> Kind | None:
    if view.scope != _SCOPE:
        return None
    for name, outputs in view.events:
        if name in _EVENTS:
            found = _EVENTS[name]
            return "other" if found == "llm" and any(map(evaluates, outputs.values())) else found
    return next((of for name, of in _NAMES if name.search(view.name)), "chain")


def evaluates(inputs: object) -> bool:
    """Return True if ``inputs`` is a prompt of LlamaIndex that asks a model to judge an answer."""
    return isinstance(inputs, str) and _EVALUATES.search(inputs) is not None


def observes(text: object) -> bool:
    """Return True if the user message ``text`` is a tool result, as ReAct agents write it."""
    return isinstance(text, str) and text.startswith(_OBSERVES)


def thought(call: Step) -> Step:
    """Return the model call of a ReAct agent with only the final answer as its output.

    If the model named an action instead of an answer, the output is None. If ``call`` is not the
    call of a ReAct agent, return ``call`` unchanged.
    """
    found = _THOUGHT.match(call.output or "")
    if found is None:
        return call
    if found["what"] == "Action":
        return replace(call, output=None, calls_tools=True)
    return replace(call, output=found["rest"].strip())


def to_step(view: PlainSpan, of: Kind) -> Step:
    if of == "retriever":
        return build.retrieval(
            view,
            inputs=_get(view, "Retrieval", "str_or_query_bundle", "str_or_query_bundle.query_str"),
            documents=_get(view, "RetrievalEnd", "nodes"),
        )
    if of == "reranker":
        nodes = _get(view, "ReRankEnd", "nodes")
        return build.retrieval(view, inputs=None, documents=nodes, kind=of)
    if of == "llm":
        return thought(build.llm(view, messages=_messages(view), reply=_reply(view)))
    inputs = _get(view, "QueryStart", "query", "query.query_str")
    step = build.chain(view, of, inputs=inputs, outputs=_outputs(view))
    sources = _get(view, "SynthesizeEnd", "response.source_nodes")
    return replace(step, documents_seen=passages_in(sources) or ())


def _messages(view: PlainSpan) -> Any:
    messages = _get(view, "LLMChat", "messages") or _get(view, "LLMCompletionStart", "prompt")
    if not isinstance(messages, list):
        return messages
    return [{**one, "role": "tool"} if _is_observation(one) else one for one in messages]


def _is_observation(message: Any) -> bool:
    is_users = isinstance(message, Mapping) and message.get("role") == "user"
    return is_users and observes(message.get("content"))


def _reply(view: PlainSpan) -> Any:
    blocks = _get(view, "LLMChatEnd", "response.message.blocks")
    if isinstance(blocks, list):
        return "".join(str(b.get("text") or "") for b in blocks if isinstance(b, Mapping))
    deltas = [str(a.get("delta") or "") for _, a in _named(view.events, "StreamChatDelta")]
    ended = bool(_named(view.events, "StreamChatEnd"))
    reply = _get(view, "LLMPredictEnd", "output") or _get(view, "LLMCompletionEnd", "response.text")
    return "".join(deltas) if deltas and ended else reply


def _outputs(view: PlainSpan) -> Any:
    return _get(view, "QueryEnd", "response.response", "response") or _get(
        view, "AgentRunStepEnd", "step_output.output.response"
    )


def _get(view: PlainSpan, event: str, *keys: str) -> Any:
    """Return the first value of the attributes ``keys`` in span events.

    Only events whose name begins with ``event`` are searched. Return None if there is no value.
    """
    for _, attributes in _named(view.events, event):
        for key in keys:
            if attributes.get(key) is not None:
                return read(attributes[key], limit=view.value_limit, opening=JSON)
    return None


def _named(
    events: Sequence[tuple[str, Mapping[str, Any]]], prefix: str
) -> list[tuple[str, Mapping[str, Any]]]:
    return [event for event in events if event[0].startswith(prefix)]


_NO_CONTENT: Final = (
    r"class_name|id_|span_id|timestamp|err_str|model_dict\..+",
    r"tags\.llamaindex\.(run_id|step\.input_event)",
    r"additional_kwargs\.(parallel_tool_calls|tool_choice|tools)",
    r"response\.((message\.)?role|additional_kwargs\.\w+_tokens)",
    r"response\.raw\.(id|model|object|created|usage\..+|service_tier|system_fingerprint)",
)
"""Regular expressions for event attributes that contain no texts of users or models.

All other attributes of events may contain such texts.
"""

CONVENTION: Final = Convention(
    name="llamaindex",
    kind=kind,
    to_step=to_step,
    scopes=frozenset({_SCOPE}),
    content=(r"llamaindex\.step\.input_summary",),
    content_events=((r"\w+Event|(step|workflow)\.output", rf"(?!({'|'.join(_NO_CONTENT)})$).+"),),
    instrumentations="llamaindex",
)


# --- spans of OpenInference -----------------------------------------------------------------------

_OPENINFERENCE_SCOPE: Final = "openinference.instrumentation.llama_index"
_ANSWERS = re.compile(r"\._?a?(chat|get_response|query|synthesize)$")
_OF_RESPONSES = frozenset({"messages", "response", "response_gen", "source_nodes", "sources"})
_ROLE = re.compile(r"(llm\.input_messages\.\d+\.message\.)role")


def openinference_kind(view: SpanView) -> Kind | None:
    if view.scope != _OPENINFERENCE_SCOPE:
        return None
    found = openinference.kind(view)
    if found == "llm" and evaluates(word(view, "input.value")):
        return "other"
    return "reranker" if found == "chain" and RERANKS.search(view.name) else found


def openinference_step(view: PlainSpan, of: Kind) -> Step:
    if of == "llm":
        return thought(openinference.to_step(_with_observations(view), of))
    step = openinference.to_step(view, of)
    outputs = value(view, "output.value")
    is_structured = isinstance(outputs, Mapping) and _OF_RESPONSES.isdisjoint(outputs)
    if step.output is None and is_structured and _ANSWERS.search(view.name):
        return replace(step, output=word(view, "output.value"))
    return step


def _with_observations(view: PlainSpan) -> PlainSpan:
    """Return a copy of ``view`` in which the observations of a ReAct agent are tool messages."""
    found: dict[str, Any] = {}
    for key, role in view.attributes.items():
        place = _ROLE.fullmatch(key)
        if place is not None and role == "user":
            text = view.attributes.get(f"{place[1]}content")
            found |= {key: "tool"} if observes(text) else {}
    return replace(view, attributes={**view.attributes, **found}) if found else view


OPENINFERENCE: Final = replace(
    openinference.CONVENTION,
    name="openinference_llamaindex",
    kind=openinference_kind,
    to_step=openinference_step,
    scopes=frozenset({_OPENINFERENCE_SCOPE}),
)
