"""Haystack's own tracing: a span for each component, pipeline and step of an agent."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rag_eval_otel.capture.dialects import build
from rag_eval_otel.capture.dialects.dialect import Dialect
from rag_eval_otel.capture.dialects.values import JSON, Lost, data_in, plain, value
from rag_eval_otel.capture.span import PlainSpan, SpanView, word
from rag_eval_otel.capture.step import Kind, Step
from rag_eval_otel.capture.text import USUAL, Keys
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
"""Attributes of which most of its spans have one."""
_STEPS: Mapping[str, Kind] = {
    "haystack.agent.run": "agent",
    "haystack.agent.step": "chain",
    "haystack.agent.step.llm": "llm",
    "haystack.agent.step.tool": "tool",
    "haystack.pipeline.run": "chain",
    "haystack.async_pipeline.run": "chain",
}
_COMPONENTS: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"(AutoMerging|SentenceWindow)Retriever$"), "reranker"),  # of what others found
    (re.compile(r"(Retriever|WebSearch)$"), "retriever"),
    (re.compile(r"(Ranker|DocumentJoiner)$"), "reranker"),
    (re.compile(r"Generator$"), "llm"),
    (re.compile(r"Embedder$"), "embedding"),
    (re.compile(r"^ToolInvoker$"), "tool"),
    (re.compile(r"^Agent$"), "agent"),
)
_QUERY_KEYS = ("question", "query", "text")


def kind(view: SpanView) -> Kind | None:
    """Return the kind of ``view``, or None if it is not of this dialect."""
    if not view.name.startswith(_PREFIX):
        return None
    component = word(view, "haystack.component.type")
    if component is not None:
        return kind_of_component(component) or ("retriever" if _retrieves(view) else "chain")
    return _STEPS.get(view.name)


def kind_of_component(name: str) -> Kind | None:
    """Return the kind of components of a class with this ``name``, where that tells."""
    return next((of for pattern, of in _COMPONENTS if pattern.search(name)), None)


def _retrieves(view: SpanView) -> bool:
    """Tell whether a component of the user's own makes documents of a query."""
    taken = word(view, "haystack.component.input_spec") or ""
    given = word(view, "haystack.component.output_spec") or ""
    return '"documents"' in given and '"query"' in taken and '"documents"' not in taken


def to_step(view: PlainSpan, of: Kind) -> Step:
    """Return what ``view`` tells."""
    asked = _value(
        view,
        "haystack.component.input",
        "haystack.agent.input",
        "haystack.agent.step.llm.input",
        "haystack.agent.step.tool.input",
    )
    told = _value(
        view,
        "haystack.component.output",
        "haystack.agent.output",
        "haystack.agent.step.llm.output",
        "haystack.agent.step.tool.output",
    )
    if of in {"retriever", "reranker"}:
        return build.retrieval(view, asked=asked, documents=windows_in(told) or told, kind=of)
    if of == "llm":
        return build.llm(view, messages=_prompt(asked), said=told)
    if of == "tool":
        name = view.attributes.get("haystack.tool.name") or _invoked(told)
        return build.tool(view, asked=asked, told=tool_messages(told), name=name)
    if "haystack.pipeline.input_data" in view.attributes:
        return _pipeline(view)
    return build.chain(view, of, asked=asked, told=answers(told))


def _value(view: PlainSpan, *keys: str) -> Any:
    """Return the first of the attributes that is there; where a callback is in it, it is a repr."""
    found = value(view, *keys, opening=JSON)
    if isinstance(found, str) and found.lstrip()[:1] == "{":
        return plain(parts_named(data_in(found)))
    return found


def parts_named(data: Any) -> Any:
    """Return data read from a repr, where the parts of messages have lost their names."""
    if isinstance(data, list):
        return [parts_named(item) for item in data]
    if not isinstance(data, Mapping):
        return data
    named = {key: parts_named(item) for key, item in data.items()}
    if "origin" in data and "result" in data:
        return {"tool_call_result": named}
    return {"tool_call": named} if "tool_name" in data else named


def windows_in(told: Any) -> tuple[Passage, ...]:
    """Return the texts around documents, where a component makes these of them."""
    windows = told.get("context_windows") if isinstance(told, Mapping) else None
    texts = windows if isinstance(windows, list) else []
    return tuple(Passage(text=text) for text in texts if isinstance(text, str))


def _prompt(asked: Any) -> Any:
    """Return the messages, or the one prompt of a generator of text."""
    if isinstance(asked, Mapping) and isinstance(asked.get("prompt"), str):
        return asked["prompt"]
    return asked if not isinstance(asked, str) else None  # the repr of something


def _invoked(told: Any) -> Any:
    """Return the name of the tool that was invoked, if it was one."""
    messages = told.get("tool_messages") if isinstance(told, Mapping) else None
    return messages[0].get("name") if isinstance(messages, list) and len(messages) == 1 else None


def tool_messages(told: Any) -> Any:
    """Return what the only tool said: an invoker may have called several."""
    messages = told.get("tool_messages") if isinstance(told, Mapping) else None
    if isinstance(messages, list):
        return messages[0] if len(messages) == 1 else None
    return told


def _pipeline(view: PlainSpan) -> Step:
    asked = _value(view, "haystack.pipeline.input_data")
    told = _value(view, "haystack.pipeline.output_data")
    return build.chain(
        view, "chain", asked=query_of(asked, view.keys), told=answer_of_components(told, view.keys)
    )


def query_of(asked: Any, keys: Keys = USUAL) -> Any:
    """Return the question a pipeline was given, if its components were all given the same."""
    if isinstance(asked, Lost) or not isinstance(asked, Mapping):
        return asked
    asked = asked.get("data", asked)
    given = {text for part in asked.values() for text in _queries(part, keys)}
    given = given or set(_queries(asked, keys))
    return next(iter(given)) if len(given) == 1 else None


def _queries(part: Any, keys: Keys) -> Iterator[str]:
    if isinstance(part, Mapping):
        yield from (part[key] for key in _QUERY_KEYS if isinstance(part.get(key), str))
        if isinstance(part.get("messages"), list) and (asked := build.question_in(part, keys)):
            yield asked


def answer_of_components(told: Any, keys: Keys = USUAL) -> Any:
    """Return what the last components of a pipeline answered, if it is one thing."""
    if isinstance(told, Lost) or not isinstance(told, Mapping):
        return told
    built = [part for part in told.values() if isinstance(part, Mapping) and "answers" in part]
    parts = built or told.values()  # an answer that was built is what the application reads
    found = {text for part in parts if (text := build.answer_in(answers(part), keys))}
    return next(iter(found)) if len(found) == 1 else None


def answers(told: Any) -> Any:
    """Return the one reply, built answer or last message of a component."""
    if not isinstance(told, Mapping):
        return told
    answers = told.get("answers")
    if isinstance(answers, list) and answers:
        first = answers[0]
        inner = first.get("init_parameters", first) if isinstance(first, Mapping) else None
        return inner.get("data", inner.get("answer")) if isinstance(inner, Mapping) else None
    if isinstance(told.get("replies"), list):
        return build.said_in(told["replies"])[0]
    if isinstance(told.get("last_message"), Mapping):
        return build.said_in(told["last_message"])[0]
    return told


DIALECT: Final = Dialect(
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
