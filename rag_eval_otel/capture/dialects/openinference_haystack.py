"""Read the spans that OpenInference makes of Haystack into steps (calls in a trace).

The kind of a call follows from the class of the component. Values are Python reprs. The reprs of
messages and answers are complete. The reprs of documents are cut at a hundred characters, except
the documents of retrievers and rankers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from rag_eval_otel.capture.dialects import build, haystack, openinference
from rag_eval_otel.capture.dialects.values import CUT, STRING, Lost, data_in, plain, value
from rag_eval_otel.capture.span import PlainSpan, SpanView, word
from rag_eval_otel.capture.step import Kind, Step
from rag_eval_otel.types import Passage

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


def kind(view: SpanView) -> Kind | None:
    if view.scope != _SCOPE:
        return None
    known, name = openinference.kind(view), view.name.rpartition(".")[0]
    if known is None or known == "embedding":
        return known
    if _BUILDER.search(name):
        return "chain"
    found = known if known != "chain" else haystack.kind_of_component(name)
    return found or ("retriever" if _retrieves(view) else "chain")


def _retrieves(view: SpanView) -> bool:
    """Return True if the first input of a component is a query and its first output documents."""
    inputs, outputs = word(view, "input.value") or "", word(view, "output.value") or ""
    return inputs.startswith(_QUERY) and outputs.startswith(_DOCUMENTS)


def to_step(view: PlainSpan, of: Kind) -> Step:
    inputs, outputs = (_parsed(value(view, f"{one}.value")) for one in ("input", "output"))
    is_read = word(view, "openinference.span.kind") in _READ_BY_KIND and of != "chain"
    if of == "llm":
        return _llm(view, inputs)
    if is_read:
        return openinference.to_step(view, of)
    if of in {"reranker", "retriever"}:
        return build.retrieval(view, inputs=inputs, documents=_documents(outputs), kind=of)
    if of == "tool":
        return build.tool(view, inputs=inputs, outputs=haystack.tool_messages(outputs))
    if isinstance(inputs, Mapping) and set(inputs) <= {"data", "include_outputs_from"}:
        inputs = haystack.query_of(inputs, view.keys)
        outputs = haystack.answer_of_components(outputs, view.keys)
    step = build.chain(view, of, inputs=inputs, outputs=haystack.answers(outputs))
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
    windows = haystack.windows_in(outputs)
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
        return plain(haystack.parts_named(data_in(data)))
    answer = _ANSWER.match(data)
    return {"data": data_in(answer[1])} if answer is not None else data


DIALECT: Final = replace(
    openinference.DIALECT,
    name="openinference_haystack",
    kind=kind,
    to_step=to_step,
    scopes=frozenset({_SCOPE}),
)
