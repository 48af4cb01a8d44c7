"""Read spans of Haystack's own tracing into steps (calls in a trace).

Haystack writes a span for each component, each pipeline and each step of an agent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from rag_eval_otel.capture import step as build
from rag_eval_otel.capture.conventions import openinference
from rag_eval_otel.capture.conventions.convention import Convention
from rag_eval_otel.capture.span import PlainSpan, SpanView, word
from rag_eval_otel.capture.step import Kind, Step
from rag_eval_otel.capture.values import (
    CUT,
    JSON,
    STRING,
    USUAL,
    Keys,
    Lost,
    answer_in,
    data_in,
    plain,
    question_in,
    value,
)
from rag_eval_otel.types import Passage

_PREFIX: Final = "haystack."
_MARKS: Final = frozenset(
    {
        "haystack.agent.max_steps",
        "haystack.agent.step.llm.input",
        "haystack.component.type",
        "haystack.pipeline.input_data",
        "haystack.tool.name",
    }
)
"""Attribute names by which the spans of Haystack are recognised. Most spans have one of them."""
_STEPS: Mapping[str, Kind] = {
    "haystack.agent.run": "agent",
    "haystack.agent.step": "chain",
    "haystack.agent.step.llm": "llm",
    "haystack.agent.step.tool": "tool",
    "haystack.pipeline.run": "chain",
    "haystack.async_pipeline.run": "chain",
}
_COMPONENTS: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (
        re.compile(r"(AutoMerging|SentenceWindow)Retriever$"),
        "reranker",
    ),
    (re.compile(r"(Retriever|WebSearch)$"), "retriever"),
    (re.compile(r"(Ranker|DocumentJoiner)$"), "reranker"),
    (re.compile(r"Generator$"), "llm"),
    (re.compile(r"Embedder$"), "embedding"),
    (re.compile(r"^ToolInvoker$"), "tool"),
    (re.compile(r"^Agent$"), "agent"),
)
_QUERY_KEYS = ("question", "query", "text")


def kind(view: SpanView) -> Kind | None:
    if not view.name.startswith(_PREFIX):
        return None
    component = word(view, "haystack.component.type")
    if component is not None:
        return kind_of_component(component) or ("retriever" if _retrieves(view) else "chain")
    return _STEPS.get(view.name)


def kind_of_component(name: str) -> Kind | None:
    """Return the kind of call that a component makes, such as ``retriever``, or None if not known.

    ``name`` is the name of the component's class.
    """
    return next((of for pattern, of in _COMPONENTS if pattern.search(name)), None)


def _retrieves(view: SpanView) -> bool:
    """Return True if a component takes a query and returns documents, but takes no documents."""
    taken = word(view, "haystack.component.input_spec") or ""
    given = word(view, "haystack.component.output_spec") or ""
    return '"documents"' in given and '"query"' in taken and '"documents"' not in taken


def to_step(view: PlainSpan, of: Kind) -> Step:
    inputs = _value(
        view,
        "haystack.component.input",
        "haystack.agent.input",
        "haystack.agent.step.llm.input",
        "haystack.agent.step.tool.input",
    )
    outputs = _value(
        view,
        "haystack.component.output",
        "haystack.agent.output",
        "haystack.agent.step.llm.output",
        "haystack.agent.step.tool.output",
    )
    if of in {"retriever", "reranker"}:
        return build.retrieval(
            view, inputs=inputs, documents=windows_in(outputs) or outputs, kind=of
        )
    if of == "llm":
        return build.llm(view, messages=inputs, reply=outputs)
    if of == "tool":
        name = view.attributes.get("haystack.tool.name") or _invoked(outputs)
        return build.tool(view, inputs=inputs, outputs=tool_messages(outputs), name=name)
    if "haystack.pipeline.input_data" in view.attributes:
        return _pipeline(view)
    return build.chain(view, of, inputs=inputs, outputs=answers(outputs))


def _value(view: PlainSpan, *keys: str) -> Any:
    """Return the value of the first of the attributes ``keys`` that the span ``view`` has.

    The value is returned as plain data. If an input contains a callback, Haystack writes the input
    as a Python repr. Then the repr is parsed.
    """
    found = value(view, *keys, opening=JSON)
    if isinstance(found, str) and found.lstrip()[:1] == "{":
        return plain(data_in(found))
    return found


def windows_in(outputs: Any) -> tuple[Passage, ...]:
    """Return the longer texts around documents that a component returned in ``outputs``."""
    windows = outputs.get("context_windows") if isinstance(outputs, Mapping) else None
    texts = windows if isinstance(windows, list) else []
    return tuple(Passage(text=text) for text in texts if isinstance(text, str))


def _invoked(outputs: Any) -> Any:
    """Return the name of the tool in ``outputs`` if exactly one tool was called, else None."""
    messages = outputs.get("tool_messages") if isinstance(outputs, Mapping) else None
    return messages[0].get("name") if isinstance(messages, list) and len(messages) == 1 else None


def tool_messages(outputs: Any) -> Any:
    """Return the tool message in ``outputs`` if exactly one tool was called.

    If several tools were called, return None. If ``outputs`` has no tool messages, return
    ``outputs``.
    """
    messages = outputs.get("tool_messages") if isinstance(outputs, Mapping) else None
    if isinstance(messages, list):
        return messages[0] if len(messages) == 1 else None
    return outputs


def _pipeline(view: PlainSpan) -> Step:
    inputs = _value(view, "haystack.pipeline.input_data")
    outputs = _value(view, "haystack.pipeline.output_data")
    return build.chain(
        view,
        "chain",
        inputs=query_of(inputs, view.keys),
        outputs=answer_of_components(outputs, view.keys),
    )


def query_of(inputs: Any, keys: Keys = USUAL) -> Any:
    """Return the question of a pipeline from its ``inputs``, or None.

    All components that got a question must have got the same question.
    """
    if isinstance(inputs, Lost) or not isinstance(inputs, Mapping):
        return inputs
    inputs = inputs.get("data", inputs)
    given = {text for part in inputs.values() for text in _queries(part, keys)}
    given = given or set(_queries(inputs, keys))
    return next(iter(given)) if len(given) == 1 else None


def _queries(part: Any, keys: Keys) -> Iterator[str]:
    if isinstance(part, Mapping):
        yield from (part[key] for key in _QUERY_KEYS if isinstance(part.get(key), str))
        if isinstance(part.get("messages"), list) and (inputs := question_in(part, keys)):
            yield inputs


def answer_of_components(outputs: Any, keys: Keys = USUAL) -> Any:
    """Return the answer of a pipeline from the ``outputs`` of its last components, or None.

    The components must have returned only one answer. If there is an answer builder, only its
    answer counts.
    """
    if isinstance(outputs, Lost) or not isinstance(outputs, Mapping):
        return outputs
    built = [part for part in outputs.values() if isinstance(part, Mapping) and "answers" in part]
    parts = built or outputs.values()  # the application reads the result of an answer builder
    found = {text for part in parts if (text := answer_in(answers(part), keys))}
    return next(iter(found)) if len(found) == 1 else None


def answers(outputs: Any) -> Any:
    """Return the answer in the ``outputs`` of a component.

    This is the text of a built answer, of the last reply or of the last message. Without these,
    return ``outputs``.
    """
    if not isinstance(outputs, Mapping):
        return outputs
    answers = outputs.get("answers")
    if isinstance(answers, list) and answers:
        first = answers[0]
        inner = first.get("init_parameters", first) if isinstance(first, Mapping) else None
        return inner.get("data", inner.get("answer")) if isinstance(inner, Mapping) else None
    if isinstance(outputs.get("replies"), list):
        return build.reply_in({"replies": outputs["replies"]})[0]
    if isinstance(outputs.get("last_message"), Mapping):
        return build.reply_in(outputs["last_message"])[0]
    return outputs


CONVENTION: Final = Convention(
    name="haystack",
    kind=kind,
    to_step=to_step,
    marks=_MARKS,
    name_prefix=_PREFIX,
    content=(
        r"haystack\.(component|agent|tool)\.(input|output)",
        r"haystack\.agent\.step\.(llm|tool)\.(input|output)",
        r"haystack\.pipeline\.(input|output)_data",
    ),
    tool_names=("haystack.tool.name",),
    instrumentations="haystack",
)


# --- spans of OpenInference -----------------------------------------------------------------------

_SCOPE: Final = "openinference.instrumentation.haystack"
_READ_BY_KIND: Final = frozenset({"EMBEDDING", "LLM", "RERANKER", "RETRIEVER"})
_BUILDER = re.compile(r"PromptBuilder$")  # OpenInference calls it an LLM
_DOCUMENT = re.compile(  # the repr of a document does not escape quotes
    r"Document\(id=([^,]+), content: '(.*?)'(?:\)$|, (?:meta|score|embedding|blob|sparse)\w*: )",
    re.DOTALL,
)
_CUT_AT = 100
_SAID = re.compile(r"(ChatMessage|StreamingChunk)\(")
_ANSWER = re.compile(rf"(?:Generated|Extracted)Answer\(.*?\b(?:data|answer)=({STRING})", re.DOTALL)
_QUERY, _DOCUMENTS = '{"query": ', '{"documents": '


def openinference_kind(view: SpanView) -> Kind | None:
    if view.scope != _SCOPE:
        return None
    known, name = openinference.kind(view), view.name.rpartition(".")[0]
    if known is None or known == "embedding":
        return known
    if _BUILDER.search(name):
        return "chain"
    found = known if known != "chain" else kind_of_component(name)
    return found or ("retriever" if _openinference_retrieves(view) else "chain")


def _openinference_retrieves(view: SpanView) -> bool:
    """Return True if the first input of a component is a query and its first output documents."""
    inputs, outputs = word(view, "input.value") or "", word(view, "output.value") or ""
    return inputs.startswith(_QUERY) and outputs.startswith(_DOCUMENTS)


def openinference_step(view: PlainSpan, of: Kind) -> Step:
    inputs, outputs = (_parsed(value(view, f"{one}.value")) for one in ("input", "output"))
    is_read = word(view, "openinference.span.kind") in _READ_BY_KIND and of != "chain"
    if of == "llm":
        return _llm(view, inputs)
    if is_read:
        return openinference.to_step(view, of)
    if of in {"reranker", "retriever"}:
        return build.retrieval(view, inputs=inputs, documents=_documents(outputs), kind=of)
    if of == "tool":
        return build.tool(view, inputs=inputs, outputs=tool_messages(outputs))
    if isinstance(inputs, Mapping) and set(inputs) <= {"data", "include_outputs_from"}:
        inputs = query_of(inputs, view.keys)
        outputs = answer_of_components(outputs, view.keys)
    step = build.chain(view, of, inputs=inputs, outputs=answers(outputs))
    return replace(step, kept_ids=tuple(_ids(value(view, "output.value"))))


def _llm(view: PlainSpan, inputs: Any) -> Step:
    """Read the span of a model call into a `Step`, with tool results from the Python reprs.

    OpenInference's message attributes do not contain the texts of tool results.
    """
    step = openinference.to_step(view, "llm")
    messages = inputs.get("messages") if isinstance(inputs, Mapping) else None
    if all(one.text for one in step.tool_results) or not isinstance(messages, list):
        return step
    full = build.llm(view, messages=messages, reply=None)
    return replace(
        step, prompt=full.prompt, tool_results=full.tool_results, own_messages=full.own_messages
    )


def _documents(outputs: Any) -> Any:
    """Return the documents of a component whose class OpenInference does not know.

    If a document was shortened, return `CUT`. If ``outputs`` has no documents, return None.
    """
    if isinstance(outputs, Lost) or not isinstance(outputs, Mapping):
        return outputs
    windows = windows_in(outputs)
    if windows:
        return windows
    listed = outputs.get("documents")
    if not isinstance(listed, list):
        return None
    found = [_document(one) for one in listed]
    if any(one is CUT for one in found):
        return CUT
    passages = tuple(one for one in found if isinstance(one, Passage))
    return passages if len(passages) == len(listed) else None


def _document(item: Any) -> Passage | Lost | None:
    found = _DOCUMENT.match(item) if isinstance(item, str) else None
    if found is None:
        return None
    name, text = found.groups()
    return CUT if len(text) > _CUT_AT and text.endswith("...") else Passage(text=text, id=name)


def _ids(outputs: Any) -> Iterator[str]:
    """Yield the ids of the documents in the ``outputs`` of a component."""
    listed = outputs.get("documents") if isinstance(outputs, Mapping) else None
    for item in listed if isinstance(listed, list) else ():
        found = _DOCUMENT.match(item) if isinstance(item, str) else None
        if found is not None:
            yield found[1]


def _parsed(data: Any) -> Any:
    """Return ``data`` with the Python reprs of Haystack's messages and answers parsed."""
    if isinstance(data, list):
        return [_parsed(item) for item in data]
    if isinstance(data, Mapping):
        return {key: _parsed(item) for key, item in data.items()}
    if not isinstance(data, str):
        return data
    if _SAID.match(data):
        return plain(data_in(data))
    answer = _ANSWER.match(data)
    return {"data": data_in(answer[1])} if answer is not None else data


OPENINFERENCE: Final = replace(
    openinference.CONVENTION,
    name="openinference_haystack",
    kind=openinference_kind,
    to_step=openinference_step,
    scopes=frozenset({_SCOPE}),
)
