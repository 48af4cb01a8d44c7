"""Steps out of the plain data of spans: calls of models and tools, retrievals and chains."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest

from plain_views import View
from rag_eval_otel.capture import step as build
from rag_eval_otel.capture.conventions.agents import without_written_calls
from rag_eval_otel.capture.step import Result, Step, arguments, has_longer_text
from rag_eval_otel.capture.values import CUT, HIDDEN, plain
from rag_eval_otel.types import Passage
from recordings import misread

ASKED, TOLD, OTHER = "When was it founded?", "It was founded in 1949.", "In 1950, I would say."
PAGE, THOUGHT = "The house was founded in 1949.", "The page on the house says it."
REDACTED = "[REDACTED]"
VIEW = View()


def message(role: str, *parts: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": role, "parts": list(parts)}


def said(text: str, of: str = "text") -> dict[str, Any]:
    return {"type": of, "content": text}


def called(reply: object, **more: Any) -> Step:
    return build.llm(VIEW, messages=ASKED, reply=plain(reply), **more)


CALL = message("assistant", {"type": "tool_call", "id": "1", "name": "search"})
RESULT = message("tool", {"type": "tool_call_response", "id": "1", "response": PAGE})
ANSWER, THINKS = message("assistant", said(TOLD)), message("assistant", said(THOUGHT, "reasoning"))
CHOICES = [
    {"index": n, "message": {"role": "assistant", "content": t}} for n, t in ((1, OTHER), (0, TOLD))
]
REPLIES: dict[str, tuple[object, str | None, bool]] = {
    "a text": (TOLD, TOLD, False),
    "a message": ([ANSWER], TOLD, False),
    "parts": ([said(TOLD), said(THOUGHT, "thinking")], TOLD, False),
    "many parts": ([said(f"{n} ") for n in range(12)], "".join(f"{n} " for n in range(12)), False),
    "thoughts in the message": (
        [message("model", said(THOUGHT, "reasoning"), said(TOLD))],
        *(TOLD, False),
    ),
    "thoughts of Gemini": (
        [message("model", {"text": THOUGHT, "thought": True}, {"text": TOLD})],
        *(TOLD, False),
    ),
    "a type that is no text": ([message("assistant", {"type": ["a"], "text": TOLD})], TOLD, False),
    "thoughts, then the answer": ([THINKS, ANSWER], TOLD, False),
    "two alternatives": ([ANSWER, message("assistant", said(OTHER))], TOLD, False),
    "a search of the provider": ([CALL, RESULT, ANSWER], TOLD, False),
    "a call after some words": ([message("assistant", said("Let me see.")), CALL], None, True),
    "choices of OpenAI": ({"choices": CHOICES}, TOLD, False),
    "generations of LangChain": ({"generations": [[{"text": TOLD}, {"text": OTHER}]]}, TOLD, False),
    "replies of Haystack": (
        {"replies": [message("assistant", {"text": TOLD}), OTHER]},
        *(TOLD, False),
    ),
    "the last message": ({"messages": [message("user", said(ASKED)), ANSWER]}, TOLD, False),
    "nested names": ({"output": {"message": ANSWER}}, TOLD, False),
    "an answer by name": ({"final_answer": TOLD}, TOLD, False),
    "nothing": ([], None, False),
    "a number": (7, None, False),
}


@pytest.mark.parametrize(("reply", "text", "calls"), REPLIES.values(), ids=REPLIES)
def test_replies_of_models(reply: object, text: str | None, *, calls: bool) -> None:
    """The words of the reply, of the first if there are several, without any thoughts."""
    found = called(reply)
    assert (found.output, found.calls_tools) == (text, calls)


@pytest.mark.parametrize(
    "messages",
    [
        ASKED,
        [ASKED, OTHER],
        {"prompts": [ASKED]},
        {"question": ASKED},
        {"messages": plain([("user", ASKED)])},
    ],
)
def test_prompts_of_models(messages: object) -> None:
    """A text, one in a list, or messages."""
    step = build.llm(VIEW, messages=messages, reply=None)
    assert (step.prompt, step.input) == ((ASKED,), ASKED)


@pytest.mark.parametrize(
    ("parts", "hidden", "cut"),
    [
        ({"messages": HIDDEN, "reply": CUT}, {"prompt"}, {"output"}),
        ({"messages": CUT, "reply": HIDDEN}, {"output"}, {"prompt"}),
        ({"messages": REDACTED, "reply": REDACTED}, {"prompt", "output"}, set()),
    ],
)
def test_lost_texts_of_a_call(parts: Any, hidden: set[str], cut: set[str]) -> None:
    """What was redacted or cut is not there, and the step says so."""
    step = build.llm(VIEW, **parts)
    assert (step.prompt, step.input, step.output) == ((), None, None)
    assert (step.hidden, step.cut) == (hidden, cut)


DOCUMENT = {"page_content": PAGE, "metadata": {}}
ARTIFACT = {"role": "tool", "content": "x", "artifact": [DOCUMENT]}
TOOLS: dict[str, tuple[object, str | None, tuple[str, ...] | None]] = {
    "a text": (PAGE, PAGE, None),
    "a message": ({"role": "tool", "content": PAGE}, PAGE, None),
    "a message below a name": ({"output": {"role": "tool", "content": PAGE}}, PAGE, None),
    "an artifact below a name": ({"output": ARTIFACT}, "x", (PAGE,)),
    "texts": (["a", "b"], None, ("a", "b")),
    "an artifact": (ARTIFACT, "x", (PAGE,)),
    "blocks": ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab", ("a", "b")),
    "blocks below a name": ({"blocks": [{"text": "a"}, {"text": "b"}]}, "ab", ("a", "b")),
    "a list of one": ([PAGE], PAGE, (PAGE,)),
    "documents": ([DOCUMENT, DOCUMENT], None, (PAGE, PAGE)),
    "by name": ({"tool_output": "a", "other": "b"}, "a", None),
    "an answer": ({"result": "a", "other": "b"}, "a", None),
    "nothing": (None, None, None),
}


def test_results_of_tools_in_the_prompt() -> None:
    """Those after the last message of the user, with the names of the tools that were called."""
    old = {"role": "tool", "content": "old"}
    given = {"role": "tool", "name": "add", "content": "5", "artifact": [{"page_content": PAGE}]}
    cut = {"role": "tool", "content": "It goes on ... [truncated]"}
    shown = plain([old, old, {"role": "user", "content": ASKED}, CALL, RESULT, given, cut])
    results = build.llm(VIEW, messages=shown, reply=None).tool_results
    assert results == (
        Result(text=PAGE, tool="search"),
        Result(text="5", tool="add", documents=(Passage(text=PAGE),)),
        Result(text=""),
    )
    empty = [{"role": "user", "content": [{"type": "tool_result", "id": "t", "content": []}]}]
    (result,) = build.llm(VIEW, messages=plain(empty), reply=None).tool_results
    assert result.text == "[]"  # an empty text would stand for one that was cut


@pytest.mark.parametrize(("outputs", "text", "documents"), TOOLS.values(), ids=TOOLS)
def test_results_of_tools(
    outputs: object, text: str | None, documents: tuple[str, ...] | None
) -> None:
    """The text of a result, and the documents that it lists."""
    step = build.tool(VIEW, inputs={"query": ASKED}, outputs=outputs)
    assert (step.kind, step.input, step.output) == ("tool", ASKED, text)
    found = step.documents
    assert (None if found is None else tuple(one.text for one in found)) == documents
    assert bool(step.documents_seen) == ("page_content" in str(outputs))


@pytest.mark.parametrize(("count", "found"), [(1, 0), (2, 2)])
def test_scored_texts_of_tools(count: int, found: int) -> None:
    """Several are those of a search; a single one may be a text that the tool rates."""
    texts = [{"text": f"{PAGE} {n}", "score": 0.9} for n in range(count)]
    assert len(build.tool(VIEW, inputs=ASKED, outputs=texts).documents_seen) == found


def test_a_retrieval() -> None:
    """Its query and documents, which are counted, and may be redacted or cut."""
    of = build.retrieval
    step = of(VIEW, inputs={"query": ASKED}, documents={"documents": [DOCUMENT]}, kind="reranker")
    assert (step.kind, step.input, step.document_count) == ("reranker", ASKED, 1)
    assert step.documents == (Passage(text=PAGE),)
    blind = of(VIEW, inputs=None, documents=[{"id": "a"}, DOCUMENT])
    assert (blind.documents, blind.document_count, blind.lacks_texts) == (step.documents, 2, True)
    some = of(VIEW, inputs=None, documents=step.documents, count=2)
    assert (some.document_count, some.lacks_texts, step.lacks_texts) == (2, True, False)
    for documents in (HIDDEN, (Passage(text=REDACTED), Passage(text=PAGE))):
        assert of(VIEW, inputs=None, documents=documents).hidden == {"documents"}
    assert of(VIEW, inputs=CUT, documents=CUT).cut == {"documents", "input"}


def test_an_answer_that_comes_later() -> None:
    """Chains of LlamaIndex may end before it."""
    pairs = (("llama_index", None), ("llama_index", TOLD), ("haystack", None))
    steps = [build.chain(View(scope=s), "chain", inputs=ASKED, outputs=told) for s, told in pairs]
    assert [step.deferred for step in steps] == [True, False, False]


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({"args": [7, ASKED], "kwargs": {}}, ASKED),
        ({"args": [ASKED, OTHER], "kwargs": {}}, None),
        ({"args": [], "kwargs": {"q": ASKED}}, {"q": ASKED}),
        ({"query": ASKED}, {"query": ASKED}),
    ],
)
def test_arguments_of_a_decorated_function(inputs: object, expected: object) -> None:
    """The only question among them, or its keywords."""
    assert arguments(inputs) == expected


STEP = Step(id=1, parent=None, kind="llm", name="x" * 99, start=0)
BEFORE = [("user", "Who built it?"), ("assistant", "Bo.")]
CALLS = {"tool_calls": [{"name": "search", "args": {}, "id": "1"}]}


@pytest.mark.parametrize(
    ("data", "history"),
    [
        ({"question": "And when?", "chat_history": [["Who built it?", "Bo."]]}, BEFORE),
        (
            {"question": "And when?", "chat_history": [("human", "Who built it?"), ("ai", "Bo.")]},
            BEFORE,
        ),
        ({"chat_history": "Human: Who built it?\nAI: Bo."}, []),
        ([{"type": "human", "content": "And when?"}], []),
        ([("system", "Be brief."), *BEFORE, ("user", "And when?")], BEFORE),
        (
            [
                ("human", "Who built it?"),
                {"type": "ai", "content": "", **CALLS},
                {"role": "tool", "content": "Bo built it.", "tool_call_id": "1"},
                ("ai", "Bo."),
                ("human", "And when?"),
                {"type": "ai", "content": "Let me see.", **CALLS},
            ],
            BEFORE,
        ),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, *BEFORE], []),
        ([{"role": "user", "content": "New task:\nWho built it?"}, *BEFORE, ("user", "And?")], []),
        (None, []),
    ],
)
def test_histories(data: Any, history: list[tuple[str, str]]) -> None:
    """Messages of user and assistant count, without calls and results of tools, and images."""
    call = replace(STEP, history=build.history_in(plain(data)))
    assert [tuple(message) for message in without_written_calls(call).history] == history
    step = build.chain(View(), "chain", inputs=data, outputs=None)
    assert step.keeps_history == ("question" in (data or ()))


LONG = "a" * 11
HOLDERS: dict[str, Any] = {
    **dict.fromkeys(("input", "output", "query", "description"), LONG),
    **dict.fromkeys(("prompt", "input_texts", "output_texts"), ("a", LONG)),
    **dict.fromkeys(("documents", "documents_seen"), (Passage(text=LONG),)),
    **{name: {"a": LONG} for name in ("variables", "windows")},
    "tool_results": (Result(text="a", documents=(Passage(text=LONG),)),),
}


@pytest.mark.parametrize("name", [one.name for one in fields(Step)])
def test_texts_over_the_limit(name: str) -> None:
    """A long text is seen wherever it may be compared with others."""
    step = replace(STEP, **{name: HOLDERS[name]}) if name in HOLDERS else STEP
    assert has_longer_text(step, 10) == (name in HOLDERS)
    assert not has_longer_text(step, 11)


def test_recordings() -> None:
    """The spans of recorded applications are read as they were."""
    assert misread() == []
