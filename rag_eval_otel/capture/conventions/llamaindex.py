"""Read spans of LlamaIndex, by its own tracer or OpenInference, into steps (calls in a trace)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rag_eval_otel.capture import step as build
from rag_eval_otel.capture.conventions import openinference
from rag_eval_otel.capture.conventions.convention import Convention
from rag_eval_otel.capture.documents import passages_in
from rag_eval_otel.capture.span import Span, value, word
from rag_eval_otel.capture.step import RETRIEVALS, Kind, Step
from rag_eval_otel.capture.values import JSON, read

_EVENTS: Mapping[str, Kind] = {
    "EmbeddingStartEvent": "embedding",
    "LLMChatStartEvent": "llm",
    "LLMCompletionStartEvent": "llm",
    "ReRankStartEvent": "reranker",
    "RetrievalStartEvent": "retriever",
    "StreamChatStartEvent": "llm",
}
_RERANKS: Final = re.compile(r"(Rerank|Reranker)\._?a?postprocess_nodes$")
_NAMES: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"Retriever\.\w+$"), "retriever"),
    (re.compile(r"(Tool\.a?call|\.call_tool)$"), "tool"),
    (re.compile(r"Agent\.run$"), "agent"),
    (_RERANKS, "reranker"),
)
_THOUGHT = re.compile(r"\s*Thought:.*?\n(?P<what>Answer|Action):\s*(?P<rest>.*)", re.DOTALL)


def _kind(view: Span) -> Kind:
    for name, _ in view.events:
        if name in _EVENTS:
            return _EVENTS[name]
    return next((kind for pattern, kind in _NAMES if pattern.search(view.name)), "chain")


def _thought(call: Step) -> Step:
    """Return ``call`` with a ReAct agent's final answer, or with no output if it calls a tool."""
    match = _THOUGHT.match(call.output or "")
    if match is None:
        return call
    if match["what"] == "Action":
        return replace(call, output=None, calls_tools=True)
    return replace(call, output=match["rest"].strip())


def _to_step(view: Span, of: Kind) -> Step:
    if of in RETRIEVALS:
        names = ("str_or_query_bundle", "str_or_query_bundle.query_str")
        inputs = _get(view, "Retrieval", *names) if of == "retriever" else None
        event = "RetrievalEnd" if of == "retriever" else "ReRankEnd"
        return build.retrieval(view, inputs=inputs, documents=_get(view, event, "nodes"), kind=of)
    if of == "llm":
        messages = _get(view, "LLMChat", "messages") or _get(view, "LLMCompletionStart", "prompt")
        return _thought(build.llm(view, messages=messages, reply=_reply(view)))
    response = _get(view, "QueryEnd", "response.response", "response")
    step = build.chain(
        view,
        of,
        inputs=_get(view, "QueryStart", "query", "query.query_str"),
        outputs=response or _get(view, "AgentRunStepEnd", "step_output.output.response"),
    )
    sources = _get(view, "SynthesizeEnd", "response.source_nodes")
    return replace(step, documents_seen=passages_in(sources) or ())


def _reply(view: Span) -> Any:
    blocks = _get(view, "LLMChatEnd", "response.message.blocks")
    if isinstance(blocks, list):
        return "".join(str(b.get("text") or "") for b in blocks if isinstance(b, dict))
    deltas = [str(values.get("delta") or "") for values in _named(view, "StreamChatDelta")]
    if deltas and _named(view, "StreamChatEnd"):
        return "".join(deltas)
    return _get(view, "LLMPredictEnd", "output") or _get(view, "LLMCompletionEnd", "response.text")


def _get(view: Span, event: str, *keys: str) -> Any:
    """Return the first value of ``keys`` in events whose name begins with ``event``, or None."""
    for attributes in _named(view, event):
        for key in keys:
            if attributes.get(key) is not None:
                return read(attributes[key], limit=view.value_limit, opening=JSON)
    return None


def _named(view: Span, prefix: str) -> Sequence[Mapping[str, Any]]:
    return [attributes for name, attributes in view.events if name.startswith(prefix)]


_NO_CONTENT: Final = (  # all other attributes of events may contain texts of users or models
    r"class_name|id_|span_id|timestamp|err_str|model_dict\..+",
    r"tags\.llamaindex\.(run_id|step\.input_event)",
    r"additional_kwargs\.(parallel_tool_calls|tool_choice|tools)",
    r"response\.((message\.)?role|additional_kwargs\.\w+_tokens)",
    r"response\.raw\.(id|model|object|created|usage\..+|service_tier|system_fingerprint)",
)

CONVENTION: Final = Convention(
    name="llamaindex",
    kind=_kind,
    to_step=_to_step,
    scopes=frozenset({"llamaindex.opentelemetry.tracer"}),
    content=(r"llamaindex\.step\.input_summary",),
    content_events=((r"\w+Event|(step|workflow)\.output", rf"(?!({'|'.join(_NO_CONTENT)})$).+"),),
    instrumentations="llamaindex",
)


_ANSWERS = re.compile(r"\._?a?(chat|get_response|query|synthesize)$")
_ROLE = re.compile(r"(llm\.input_messages\.\d+\.message\.)role")


def _openinference_kind(view: Span) -> Kind | None:
    kind = openinference.kind(view)
    # What is called an LLM, and only copies a stream or is a part of a pipeline.
    if view.name.endswith(("write_response_to_history", "_as_query_component")):
        return "chain"
    return "reranker" if kind == "chain" and _RERANKS.search(view.name) else kind


def _openinference_step(view: Span, of: Kind) -> Step:
    if of == "llm":
        return _thought(openinference.to_step(_with_observations(view), of))
    step = openinference.to_step(view, of)
    outputs = value(view, "output.value")
    of_responses = {"messages", "response", "response_gen", "source_nodes", "sources"}
    is_structured = isinstance(outputs, dict) and of_responses.isdisjoint(outputs)
    if step.output is None and is_structured and _ANSWERS.search(view.name):
        return replace(step, output=word(view, "output.value"))
    return step


def _with_observations(view: Span) -> Span:
    attributes = dict(view.attributes)
    for key, role in view.attributes.items():
        match = _ROLE.fullmatch(key) if role == "user" else None
        text = view.attributes.get(f"{match[1]}content") if match is not None else None
        if isinstance(text, str) and text.startswith("Observation: "):
            attributes[key] = "tool"
    return replace(view, attributes=attributes)


OPENINFERENCE: Final = replace(
    openinference.CONVENTION,
    name="openinference_llamaindex",
    kind=_openinference_kind,
    to_step=_openinference_step,
    scopes=frozenset({"openinference.instrumentation.llama_index"}),
)
