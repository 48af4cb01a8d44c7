"""Whatever values stand on a span, or are handed to a chain: no exception, and no wrong text."""

import json
import math
from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np
import pytest

from plain_views import View
from rag_eval_otel.capture.conventions import CONVENTIONS, convention_of, kind_of, read
from rag_eval_otel.capture.span import Copier, LogView, Span
from rag_eval_otel.capture.values import ANSWERS, QUESTIONS, answer_in, question_in

QUESTION, ANSWER, PAGE = "When was it founded?", "It was founded in 1987.", "Founded in 1987."
LONG = "x" * 10_000_000


class Role(str, Enum):
    """What somebody else's library takes for a string."""

    USER = "user"
    ASSISTANT = "assistant"


class Kind(str, Enum):
    """Kinds of spans, as members of an Enum."""

    LLM = "LLM"
    RETRIEVER = "RETRIEVER"
    TOOL = "TOOL"


class Word(str):
    """A string of a class of its own, which says something else."""

    __slots__ = ()

    def __str__(self) -> str:
        return "<word>"


def circle() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in (*QUESTIONS, *ANSWERS, "messages", "content", "documents"):
        found[key] = found
    return found


def ring() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


ODD = {
    "array": np.array([["a", "b"]]),
    "bytes": b"\xff\xfe\x00",
    "circle": circle(),
    "class": object(),
    "date": np.datetime64("2026-01-01"),
    "deep": json.loads("[" * 500 + "]" * 500),
    "enum": Role.USER,
    "long": LONG,
    "long JSON": json.dumps([LONG]),
    "nan": math.nan,
    "nest": "[" * 10_000,
    "no JSON": '{"messages": [{"role": "user", "content": "',
    "number": np.float32(1.5),
    "pair": ("user", Role.USER),
    "quote": '"',
    "ring": ring(),
    "set": frozenset({Role.USER}),
    "surrogate": "\ud800",
    "without text": [{"id": "1", "metadata": {}}, {"page_content": None}],
    "word": Word("said"),
    "zero": "\x00",
}


def spans_of(value: Any) -> list[Span]:
    """Return a span of each convention on which every known attribute has this value."""
    names = ("input.value", "output.value", "llm.input_messages.0.message.content", "metadata")
    names += ("llm.output_messages.0.message.content", "retrieval.documents.0.document.content")
    names += ("retrieval.documents.0.document.metadata", "traceloop.entity.input", "user.id")
    names += ("traceloop.entity.output", "gen_ai.prompt.0.content", "gen_ai.completion.0.content")
    names += ("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.tool.call.result")
    names += ("gen_ai.retrieval.documents", "langfuse.observation.input", "gen_ai.prompt")
    names += ("langfuse.observation.output", "gen_ai.completion", "mlflow.spanInputs")
    names += ("mlflow.spanOutputs", "haystack.component.input", "haystack.component.output")
    names += ("rag.question", "rag.contexts", "rag.answer")
    marks: list[Mapping[str, Any]] = [
        {"openinference.span.kind": kind} for kind in ("LLM", "TOOL", "CHAIN", "RETRIEVER", value)
    ]
    marks += [{"traceloop.span.kind": kind} for kind in ("workflow", "tool", value)]
    marks += [{"gen_ai.operation.name": kind} for kind in ("chat", "execute_tool", "retrieval")]
    marks += [{"langfuse.observation.type": kind} for kind in ("generation", "retriever", "tool")]
    marks += [{"langsmith.span.kind": "llm"}, {"mlflow.spanType": "RETRIEVER"}]
    marks += [{"haystack.component.type": kind} for kind in ("OpenAIGenerator", "Agent", value)]
    scopes = ["strands.telemetry.tracer", "llamaindex.opentelemetry.tracer"]
    frameworks = ("autogen_agentchat", "crewai", "dspy", "google_adk", "haystack")
    frameworks += ("llama_index", "smolagents")
    scopes += [f"openinference.instrumentation.{name}" for name in frameworks]
    both = [("somebody", mark) for mark in marks]
    both += [(scope, mark) for scope in scopes for mark in (*marks[:3], marks[8], marks[9])]
    events = ("gen_ai.choice", "gen_ai.user.message", "RetrievalEndEvent", "LLMChatEndEvent")
    told = {"content": value, "message": value, "nodes": value, "messages": value}
    return [
        View(
            name="haystack.component.run",
            scope=scope,
            attributes={**dict.fromkeys(names, value), **mark},
            events=[(name, told) for name in events],
            logs=[LogView(event="gen_ai.choice", body=value)],
        )
        for scope, mark in both
    ]


@pytest.mark.parametrize("name", [name for name in ODD if "long" not in name])
def test_no_value_breaks_a_convention(name: str) -> None:
    """Every convention reads every value, and tells nothing that is not a plain string."""
    for view in spans_of(ODD[name]):
        step = read(view)
        assert step.kind == kind_of(view)
        texts = [step.input, step.output, *step.prompt, *(p.text for p in step.documents or ())]
        assert {type(text) for text in texts} <= {str, type(None)}


def test_members_of_enums_are_their_values() -> None:
    """Messages by `Role.USER` are messages by the user, of spans whose kind is one as well."""
    view = View(
        attributes={
            "openinference.span.kind": Kind.LLM,
            "llm.input_messages.0.message.role": Role.USER,
            "llm.input_messages.0.message.content": Word(QUESTION),
            "llm.output_messages.0.message.role": Role.ASSISTANT,
            "llm.output_messages.0.message.content": np.str_(ANSWER),
        }
    )
    step = read(view)
    assert (kind_of(view), step.input, step.output) == ("llm", QUESTION, ANSWER)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Role.USER, "user"),
        (Word("said"), "said"),
        (b"caf\xc3\xa9", "café"),
        (np.str_("a"), "a"),
        (np.float64(0.5), 0.5),
        (("a", Role.USER), ["a", "user"]),
        (OrderedDict(a=(1, None)), {"a": [1, None]}),
        ({Role.USER: {b"b"}}, {"user": ["b"]}),
        (object(), None),
        (True, True),
    ],
)
def test_values_become_plain_data(value: Any, expected: Any) -> None:
    """Strings, numbers, lists and dicts of exactly these types, and nothing else."""
    found = Copier().value(value)
    assert found == expected
    assert type(found) is type(expected)


def test_circles_end() -> None:
    """What holds itself is read to some depth, and is no question or answer."""
    assert Copier().value(ring()) is not None
    assert question_in(Copier().value(circle())) is None
    assert answer_in(Copier().value(circle())) is None


def test_every_convention_is_tried() -> None:
    """The spans of these tests are of every convention there is, but of databases."""
    read_by = {convention_of(view) for view in spans_of("x")}
    assert {convention.name for convention in CONVENTIONS} - read_by == {"vectordb"}
