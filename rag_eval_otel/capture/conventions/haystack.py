"""Read spans of Haystack, by its own tracer or OpenInference, into steps (calls in a trace)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rag_eval_otel.capture import step as build
from rag_eval_otel.capture.conventions import openinference
from rag_eval_otel.capture.conventions.convention import Convention
from rag_eval_otel.capture.span import Span, value, word
from rag_eval_otel.capture.step import RETRIEVALS, Kind, Step
from rag_eval_otel.capture.values import CUT, JSON, STRING, answer_in, data_in, plain, question_in
from rag_eval_otel.types import Passage

_PREFIX: Final = "haystack."
_STEPS: Mapping[str, Kind] = {
    "haystack.agent.run": "agent",
    "haystack.agent.step": "chain",
    "haystack.agent.step.llm": "llm",
    "haystack.agent.step.tool": "tool",
    "haystack.pipeline.run": "chain",
    "haystack.async_pipeline.run": "chain",
}
_COMPONENTS: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"(AutoMerging|SentenceWindow)Retriever$"), "reranker"),
    (re.compile(r"(Retriever|WebSearch)$"), "retriever"),
    (re.compile(r"(Ranker|DocumentJoiner)$"), "reranker"),
    (re.compile(r"Generator$"), "llm"),
    (re.compile(r"Embedder$"), "embedding"),
    (re.compile(r"^ToolInvoker$"), "tool"),
    (re.compile(r"^Agent$"), "agent"),
)
_QUERIES = ("question", "query", "text")
_PLACES = ("component", "agent", "agent.step.llm", "agent.step.tool")


def _kind(view: Span) -> Kind | None:
    component = word(view, "haystack.component.type")
    if component is None:
        return _STEPS.get(view.name)
    taken = word(view, "haystack.component.input_spec") or ""
    returned = word(view, "haystack.component.output_spec") or ""
    retrieves = '"documents"' in returned and '"query"' in taken and '"documents"' not in taken
    return _kind_of_component(component) or ("retriever" if retrieves else "chain")


def _kind_of_component(name: str) -> Kind | None:
    return next((kind for pattern, kind in _COMPONENTS if pattern.search(name)), None)


def _to_step(view: Span, of: Kind) -> Step:
    inputs = _value(view, *(f"haystack.{place}.input" for place in _PLACES))
    outputs = _value(view, *(f"haystack.{place}.output" for place in _PLACES))
    if of in RETRIEVALS:
        documents = _windows_in(outputs) or outputs
        return build.retrieval(view, inputs=inputs, documents=documents, kind=of)
    if of == "llm":
        return build.llm(view, messages=inputs, reply=outputs)
    if of == "tool":
        name = view.attributes.get("haystack.tool.name")
        return build.tool(view, inputs=inputs, outputs=outputs, name=name)
    if "haystack.pipeline.input_data" in view.attributes:
        inputs = query_of(_value(view, "haystack.pipeline.input_data"))
        outputs = answer_of_components(_value(view, "haystack.pipeline.output_data"))
        return build.chain(view, "chain", inputs=inputs, outputs=outputs)
    return build.chain(view, of, inputs=inputs, outputs=_answers(outputs))


def _value(view: Span, *keys: str) -> Any:
    found = value(view, *keys, opening=JSON)
    if isinstance(found, str) and found.lstrip()[:1] == "{":
        return plain(data_in(found))
    return found


def _windows_in(outputs: Any) -> tuple[Passage, ...]:
    windows = outputs.get("context_windows") if isinstance(outputs, dict) else None
    texts = windows if isinstance(windows, list) else []
    return tuple(Passage(text=text) for text in texts if isinstance(text, str))


def query_of(inputs: Any) -> Any:
    """Return the question in a pipeline's ``inputs``; None if components got different ones."""
    if not isinstance(inputs, dict):
        return inputs
    inputs = inputs.get("data", inputs)
    for parts in (inputs.values(), [inputs]):
        questions = set[str]()
        for part in parts:
            if isinstance(part, dict):
                texts = [part[key] for key in _QUERIES if isinstance(part.get(key), str)]
                if isinstance(part.get("messages"), list):
                    texts.append(question_in(part))
                questions.update(filter(None, texts))
        if questions:
            return next(iter(questions)) if len(questions) == 1 else None
    return None


def answer_of_components(outputs: Any) -> Any:
    """Return the only answer in a pipeline's ``outputs`` (of answer builders, if any), or None."""
    if not isinstance(outputs, dict):
        return outputs
    built = [part for part in outputs.values() if isinstance(part, dict) and "answers" in part]
    parts = built or outputs.values()
    texts = {text for part in parts if (text := answer_in(_answers(part)))}
    return next(iter(texts)) if len(texts) == 1 else None


def _answers(outputs: Any) -> Any:
    """Return the built answer, first reply or last message in ``outputs``, else ``outputs``."""
    if not isinstance(outputs, dict):
        return outputs
    answers = outputs.get("answers")
    if isinstance(answers, list) and answers:
        first = answers[0]
        inner = first.get("init_parameters", first) if isinstance(first, dict) else None
        return inner.get("data", inner.get("answer")) if isinstance(inner, dict) else None
    if isinstance(outputs.get("replies"), list):
        return build.reply_in({"replies": outputs["replies"]})[0]
    if isinstance(outputs.get("last_message"), dict):
        return build.reply_in(outputs["last_message"])[0]
    return outputs


CONVENTION: Final = Convention(
    name="haystack",
    kind=_kind,
    to_step=_to_step,
    marks=frozenset(
        {
            *("haystack.agent.max_steps", "haystack.agent.step.llm.input", "haystack.tool.name"),
            *("haystack.component.type", "haystack.pipeline.input_data"),
        }
    ),
    name_prefix=_PREFIX,
    content=(
        r"haystack\.(component|agent|tool)\.(input|output)",
        r"haystack\.agent\.step\.(llm|tool)\.(input|output)",
        r"haystack\.pipeline\.(input|output)_data",
    ),
    instrumentations="haystack",
)


_DOCUMENT = re.compile(  # the repr of a document does not escape quotes
    r"Document\(id=([^,]+), content: '(.*?)'(?:\)$|, (?:meta|score|embedding|blob|sparse)\w*: )",
    re.DOTALL,
)
_ANSWER = re.compile(rf"(?:Generated|Extracted)Answer\(.*?\b(?:data|answer)=({STRING})", re.DOTALL)


def _openinference_kind(view: Span) -> Kind | None:
    kind, name = openinference.kind(view), view.name.rpartition(".")[0]
    if kind is None or kind == "embedding":
        return kind
    if name.endswith("PromptBuilder"):  # OpenInference calls it an LLM
        return "chain"
    if kind != "chain":
        return kind
    inputs, outputs = word(view, "input.value") or "", word(view, "output.value") or ""
    retrieves = inputs.startswith('{"query": ') and outputs.startswith('{"documents": ')
    return _kind_of_component(name) or ("retriever" if retrieves else "chain")


def _openinference_step(view: Span, of: Kind) -> Step:
    raw = value(view, "output.value")
    inputs, outputs = _parsed(value(view, "input.value")), _parsed(raw)
    if of == "llm":
        return _llm(view, inputs)
    named = word(view, openinference.SPAN_KIND)
    if named in {"EMBEDDING", "LLM", "RERANKER", "RETRIEVER"} and of != "chain":
        return openinference.to_step(view, of)
    if of in RETRIEVALS:
        return build.retrieval(view, inputs=inputs, documents=_documents(outputs), kind=of)
    if of == "tool":
        return build.tool(view, inputs=inputs, outputs=outputs)
    if isinstance(inputs, dict) and set(inputs) <= {"data", "include_outputs_from"}:
        inputs, outputs = query_of(inputs), answer_of_components(outputs)
    step = build.chain(view, of, inputs=inputs, outputs=_answers(outputs))
    listed = raw.get("documents") if isinstance(raw, dict) else None
    items = listed if isinstance(listed, list) else []
    reprs = [_DOCUMENT.match(item) for item in items if isinstance(item, str)]
    return replace(step, kept_ids=tuple(match[1] for match in reprs if match is not None))


def _llm(view: Span, inputs: Any) -> Step:
    """Read a model call. OpenInference's messages lack tool results, which the reprs have."""
    step = openinference.to_step(view, "llm")
    messages = inputs.get("messages") if isinstance(inputs, dict) else None
    if all(result.text for result in step.tool_results) or not isinstance(messages, list):
        return step
    full = build.llm(view, messages=messages, reply=None)
    names = ("prompt", "tool_results", "own_messages", "history")
    return replace(step, **{name: getattr(full, name) for name in names})


def _documents(outputs: Any) -> Any:
    """Parse the reprs of documents in a component's ``outputs``; `CUT` if one is cut, or None."""
    if not isinstance(outputs, dict):
        return outputs
    windows = _windows_in(outputs)
    listed = outputs.get("documents")
    if windows or not isinstance(listed, list):
        return windows or None
    passages: list[Passage] = []
    for item in listed:
        match = _DOCUMENT.match(item) if isinstance(item, str) else None
        if match is None:
            return None
        name, text = match.groups()
        if text[100:] and text.endswith("..."):
            return CUT
        passages.append(Passage(text=text, id=name))
    return tuple(passages)


def _parsed(data: Any) -> Any:
    if isinstance(data, list):
        return [_parsed(item) for item in data]
    if isinstance(data, dict):
        return {key: _parsed(item) for key, item in data.items()}
    if not isinstance(data, str):
        return data
    if data.startswith(("ChatMessage(", "StreamingChunk(")):
        return plain(data_in(data))
    answer = _ANSWER.match(data)
    return {"data": data_in(answer[1])} if answer is not None else data


OPENINFERENCE: Final = replace(
    openinference.CONVENTION,
    name="openinference_haystack",
    kind=_openinference_kind,
    to_step=_openinference_step,
    scopes=frozenset({"openinference.instrumentation.haystack"}),
)
