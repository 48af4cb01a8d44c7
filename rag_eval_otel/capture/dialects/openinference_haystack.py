"""OpenInference over Haystack: components by their class, and values as Python's reprs.

Messages and answers are reprs in full, documents are cut at a hundred characters, unless the
component is known as a retriever or ranker.
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
_BUILDER = re.compile(r"PromptBuilder$")  # taken for a model
_DOCUMENT = re.compile(  # nothing is escaped there
    r"Document\(id=([^,]+), content: '(.*?)'(?:\)$|, (?:meta|score|embedding|blob|sparse)\w*: )",
    re.DOTALL,
)
_CUT_AT = 100
_SAID = re.compile(r"(ChatMessage|StreamingChunk)\(")
_ANSWER = re.compile(rf"(?:Generated|Extracted)Answer\(.*?\b(?:data|answer)=({STRING})", re.DOTALL)
_QUERY, _DOCUMENTS = '{"query": ', '{"documents": '


def kind(view: SpanView) -> Kind | None:
    """Return the kind of ``view``, or None if it is not of this dialect."""
    if view.scope != _SCOPE:
        return None
    told, name = openinference.kind(view), view.name.rpartition(".")[0]
    if told is None or told == "embedding":
        return told
    if _BUILDER.search(name):
        return "chain"
    known = told if told != "chain" else haystack.kind_of_component(name)
    return known or ("retriever" if _retrieves(view) else "chain")


def _retrieves(view: SpanView) -> bool:
    """Tell whether a component makes documents of a query, by how both begin."""
    asked, told = word(view, "input.value") or "", word(view, "output.value") or ""
    return asked.startswith(_QUERY) and told.startswith(_DOCUMENTS)


def to_step(view: PlainSpan, of: Kind) -> Step:
    """Return what ``view`` tells."""
    asked, told = (_revived(value(view, f"{one}.value")) for one in ("input", "output"))
    is_read = word(view, "openinference.span.kind") in _READ_BY_KIND and of != "chain"
    if of == "llm":
        return _llm(view, asked)
    if is_read:
        return openinference.to_step(view, of)
    if of in {"reranker", "retriever"}:
        return build.retrieval(view, asked=asked, documents=_documents(told), kind=of)
    if of == "tool":
        return build.tool(view, asked=asked, told=haystack.tool_messages(told))
    if isinstance(asked, Mapping) and set(asked) <= {"data", "include_outputs_from"}:
        asked = haystack.query_of(asked, view.keys)
        told = haystack.answer_of_components(told, view.keys)
    step = build.chain(view, of, asked=asked, told=haystack.answers(told))
    return replace(step, kept_ids=tuple(_ids(value(view, "output.value"))))


def _llm(view: PlainSpan, asked: Any) -> Step:
    """Return the call of a model; what tools had answered is told in the reprs alone."""
    step = openinference.to_step(view, "llm")
    messages = asked.get("messages") if isinstance(asked, Mapping) else None
    if all(one.text for one in step.tool_results) or not isinstance(messages, list):
        return step
    full = build.llm(view, messages=messages, said=None)
    return replace(
        step, prompt=full.prompt, tool_results=full.tool_results, own_messages=full.own_messages
    )


def _documents(told: Any) -> Any:
    """Return the documents of a component that is not known as a retriever, or `CUT`."""
    if isinstance(told, Lost) or not isinstance(told, Mapping):
        return told
    windows = haystack.windows_in(told)
    if windows:
        return windows
    listed = told.get("documents")
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


def _ids(told: Any) -> Iterator[str]:
    """Yield the ids of the documents that a component handed on."""
    listed = told.get("documents") if isinstance(told, Mapping) else None
    for item in listed if isinstance(listed, list) else ():
        found = _DOCUMENT.match(item) if isinstance(item, str) else None
        if found is not None:
            yield found[1]


def _revived(data: Any) -> Any:
    """Return ``data`` with reprs of messages and answers as what they are of."""
    if isinstance(data, list):
        return [_revived(item) for item in data]
    if isinstance(data, Mapping):
        return {key: _revived(item) for key, item in data.items()}
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
