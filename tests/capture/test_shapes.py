"""Traces in the shapes that both conventions describe: spans in, samples out.

The spans are written by hand from the conventions. A shape that an instrumentation writes says so.
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pytest

from plain_views import View
from rag_eval_otel.capture.conventions import kind_of, owner_of, read
from rag_eval_otel.capture.span import Span
from rag_eval_otel.types import Passage, Sample
from replay import Call, replay
from steps import outcomes_of

ASKED, QUERY = "When was it founded?", "founding year of the society"
TOLD = "The society was founded in 1949, and moved to Bern in 1963."
PAGE, MORE = "The society was founded in 1949.", "In 1963 it moved to Bern."
PROMPT = f"Answer by this.\n\n{PAGE}\n\n{MORE}"
FACTS = "The user is Ada, who asks about the society."

Expected: TypeAlias = "tuple[str, tuple[str, ...], str, str] | str | None"
FOUND: Expected = (ASKED, (PAGE, MORE), TOLD, "retrieval")

_SECOND = 1_000_000_000


def trace(*rows: tuple[int, int | None, Mapping[str, Any]], **fields: Any) -> list[Span]:
    """Build the spans of a trace out of their ids, the ids above and the attributes.

    Each lasts from its place in the list to the last place of a span below.
    """
    places = {number: place for place, (number, *_) in enumerate(rows)}
    ends = dict(places)
    for number, above, _ in reversed(rows):
        if above in ends:
            ends[above] = max(ends[above], ends[number])
    return [
        View(
            name=f"step {number}",
            span_id=number,
            parent_id=above,
            start=(10 + places[number]) * _SECOND,
            end=(11 + ends[number]) * _SECOND + 1000 - places[number],
            attributes=attributes,
            **fields,
        )
        for number, above, attributes in rows
    ]


def genai(operation: str, **values: Any) -> dict[str, Any]:
    """Return attributes; names have ``_`` for a full stop, and the values are no JSON."""
    named = {f"gen_ai.{name.replace('__', '.')}": value for name, value in values.items()}
    return {"gen_ai.operation.name": operation, **named}


def said(role: str, *parts: Any) -> dict[str, Any]:
    texts = [{"type": "text", "content": p} if isinstance(p, str) else p for p in parts]
    return {"role": role, "parts": texts}


def chat(*shown: Any, reply: Sequence[Any] = (TOLD,), **more: Any) -> dict[str, Any]:
    messages = [said("system", PROMPT), said("user", ASKED)] if not shown else list(shown)
    return genai(
        "chat", input__messages=messages, output__messages=[said("assistant", *reply)], **more
    )


def root(operation: str = "invoke_agent", *, told: str = TOLD) -> dict[str, Any]:
    return genai(
        operation, input__messages=[said("user", ASKED)], output__messages=[said("assistant", told)]
    )


BARE = genai("invoke_agent")
RETRIEVAL = genai(
    "retrieval",
    retrieval__query__text=ASKED,
    retrieval__documents=[{"content": PAGE, "id": "a"}, {"content": MORE, "id": 7, "score": 1}],
)
REWRITTEN = {**RETRIEVAL, "gen_ai.retrieval.query.text": QUERY}
MEMORY = genai(
    "search_memory",
    memory__query__text=ASKED,
    memory__records=[{"content": PAGE}, {"content": {"text": MORE}, "score": 0.5}],
)


def memory(*contents: Any) -> dict[str, Any]:
    return {**MEMORY, "gen_ai.memory.records": [{"content": content} for content in contents]}


def as_json(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in attributes.items()}


def oi(kind: str, **values: Any) -> dict[str, Any]:
    return {
        "openinference.span.kind": kind,
        **{name.replace("__", "."): value for name, value in values.items()},
    }


def items(prefix: str, *values: Mapping[str, Any], at: Sequence[int] = ()) -> dict[str, Any]:
    numbers = at or range(len(values))
    return {
        f"{prefix}.{number}.{name}": value
        for number, item in zip(numbers, values, strict=True)
        for name, value in item.items()
    }


def documents(*texts: str | None, at: Sequence[int] = ()) -> dict[str, Any]:
    rows = [
        {"document.id": n} if t is None else {"document.content": t} for n, t in enumerate(texts)
    ]
    return oi("RETRIEVER", input__value=ASKED) | items("retrieval.documents", *rows, at=at)


def call(*contents: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return the attributes of a model call whose reply has parts."""
    shown = [("system", PROMPT), ("user", ASKED)]
    rows = [{"message.role": role, "message.content": text} for role, text in shown]
    parts = contents or ({"message_content.type": "text", "message_content.text": TOLD},)
    reply = {"message.role": "assistant", **items("message.contents", *parts)}
    return (
        oi("LLM", **more) | items("llm.input_messages", *rows) | items("llm.output_messages", reply)
    )


CHAIN, NAMELESS = oi("CHAIN", input__value=ASKED, output__value=TOLD), oi("CHAIN")
GRADE = oi("LLM", output__value="The answer is grounded in what was found, so it passes.")
GRADER = GRADE | items(
    "llm.input_messages", {"message.role": "user", "message.content": f"Is it good? {PROMPT}"}
)


def result(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, **data}


HITS = [{"text": PAGE, "filename": "a.md", "score": 0.9}, {"text": MORE, "filename": "b.md"}]
CALLED = {"type": "server_tool_call", "id": "s1", "name": "file_search", "server_tool_call": {}}
ANSWERED = result(
    "server_tool_call_response",
    id="s1",
    server_tool_call_response={"type": "file_search", "results": HITS},
)
CALCULATED = result(
    "server_tool_call_response", id="c", server_tool_call_response={"type": "code", "output": "4"}
)
BLOCKS = [
    result("search_result", source="a.md", title="A", content=[{"type": "text", "text": PAGE}]),
    result("search_result", source="b.md", title="B", content=[{"type": "text", "text": MORE}]),
]
HIDDEN_HITS = result(
    "web_search_tool_result",
    tool_use_id="w",
    content=[{"type": "web_search_result", "url": "https://a.example", "title": "A"}],
)
THOUGHT = {"type": "reasoning", "content": "Let me think about the year."}

SHAPES: dict[str, tuple[list[Span], Expected]] = {
    # --- operations
    "memory is searched": (
        trace((1, None, root()), (2, 1, MEMORY), (3, 1, chat())),
        (ASKED, (PAGE, MORE), TOLD, "memory"),
    ),
    "memory and a retrieval": (
        trace((1, None, root()), (2, 1, memory(PAGE)), (3, 1, RETRIEVAL), (4, 1, chat())),
        (ASKED, (PAGE, MORE), TOLD, "memory"),
    ),
    "a record of another type": (
        trace((1, None, root()), (2, 1, memory(PAGE, 1963)), (3, 1, chat())),
        "no_contexts",
    ),
    "records as JSON": (
        trace((1, None, root()), (2, 1, as_json(MEMORY)), (3, 1, chat())),
        (ASKED, (PAGE, MORE), TOLD, "memory"),
    ),
    "what is remembered after the answer": (
        trace(
            (1, None, BARE),
            (2, 1, RETRIEVAL),
            (3, 1, chat()),
            (4, 1, genai("update_memory", memory__records=[{"content": FACTS}])),
            (5, 4, chat(said("user", f"List facts of: {ASKED}"), reply=[FACTS])),
        ),
        FOUND,
    ),
    "stores are made and agents": (
        trace(
            (1, None, root()),
            (2, 1, genai("create_memory_store")),
            (3, 1, genai("create_agent", system_instructions="Be kind.")),
            (4, 1, RETRIEVAL),
            (5, 1, chat()),
            (6, 1, genai("fetch_response", output__messages=[said("assistant", MORE)])),
        ),
        FOUND,
    ),
    "a turn of a conversation": (
        trace(
            (1, None, root("handle_conversation_turn")),
            (2, 1, genai("invoke_agent")),
            (3, 2, REWRITTEN),
            (4, 2, chat()),
        ),
        FOUND,
    ),
    "two turns of a conversation": (
        trace(
            (1, None, genai("invoke_workflow")),
            (2, 1, root("handle_conversation_turn")),
            (3, 2, REWRITTEN),
            (4, 2, chat()),
            (5, 1, root("handle_conversation_turn", told=MORE)),
            (6, 5, memory(MORE)),
            (7, 5, chat(reply=[MORE])),
        ),
        FOUND,
    ),
    "a turn that does not say what was asked": (
        trace((1, None, genai("handle_conversation_turn")), (2, 1, REWRITTEN), (3, 1, chat())),
        "redacted",
    ),
    "a plan before the search": (
        trace(
            (1, None, root()),
            (2, 1, genai("plan", output__messages=[said("assistant", "1. Search. 2. Answer.")])),
            (3, 2, chat(said("user", ASKED), reply=["First I search, then I answer."])),
            (4, 1, RETRIEVAL),
            (5, 1, chat()),
        ),
        FOUND,
    ),
    "a plan after the search, nothing said above": (
        trace(
            (1, None, genai("invoke_agent", input__messages=[said("user", ASKED)])),
            (2, 1, RETRIEVAL),
            (3, 1, chat()),
            (4, 1, genai("plan")),
            (5, 4, chat(said("user", ASKED), reply=["Next I would look for the city of Bern."])),
        ),
        FOUND,
    ),
    "only a plan": (
        trace((1, None, BARE), (2, 1, RETRIEVAL), (3, 1, genai("plan")), (4, 3, chat())),
        "no_answer",
    ),
    # --- replies
    "several choices": (
        trace(
            (1, None, genai("invoke_workflow")),
            (2, 1, RETRIEVAL),
            (
                3,
                1,
                chat(request__choice__count=3)
                | {
                    "gen_ai.output.messages": [
                        said("assistant", TOLD),
                        said("assistant", {"type": "tool_call", "name": "search", "id": "1"}),
                        said("assistant", "It was in 1950, perhaps, or in another year."),
                    ]
                },
            ),
        ),
        FOUND,
    ),
    "a thought before the answer": (
        trace((1, None, BARE), (2, 1, RETRIEVAL), (3, 1, chat(reply=[THOUGHT, TOLD]))),
        FOUND,
    ),
    "only a thought": (
        trace((1, None, BARE), (2, 1, RETRIEVAL), (3, 1, chat(reply=[THOUGHT]))),
        "no_answer",
    ),
    # --- documents
    "a document without text": (
        trace(
            (1, None, root()),
            (2, 1, RETRIEVAL | {"gen_ai.retrieval.documents": [{"content": PAGE}, {"id": "b"}]}),
            (3, 1, chat()),
        ),
        "no_contexts",
    ),
    "a document without text, and all in the prompt": (
        trace(
            (1, None, root()),
            (2, 1, RETRIEVAL | {"gen_ai.retrieval.documents": [{"content": PAGE}, {"id": "b"}]}),
            (3, 1, chat(said("user", f"Context:\n{PAGE}\n\n{MORE}\n\nQuestion: {ASKED}"))),
        ),
        (ASKED, (PAGE, MORE), TOLD, "prompt"),
    ),
    "other texts in the prompt than were found": (
        trace(
            (1, None, root()),
            (2, 1, RETRIEVAL | {"gen_ai.retrieval.documents": [{"content": FACTS}, {"id": "b"}]}),
            (3, 1, chat(said("user", f"Context:\n{PAGE}\n\n{MORE}\n\nQuestion: {ASKED}"))),
        ),
        "ambiguous",
    ),
    "a document of parts": (
        trace(
            (1, None, root()),
            (2, 1, memory([{"type": "text", "content": PAGE}], MORE)),
            (3, 1, chat()),
        ),
        (ASKED, (PAGE, MORE), TOLD, "memory"),
    ),
    # --- searches by the provider of the model
    "a hosted search": (
        trace((1, None, chat(said("user", ASKED), reply=[CALLED, ANSWERED, TOLD]))),
        FOUND,
    ),
    "a hosted search as JSON": (
        trace((1, None, as_json(chat(said("user", ASKED), reply=[CALLED, ANSWERED, TOLD])))),
        FOUND,
    ),
    "hosted results of a generic type": (
        trace(
            (
                1,
                None,
                chat(
                    said("user", ASKED),
                    reply=[{**b, "type": "generic", "generic_type": b["type"]} for b in BLOCKS]
                    + [TOLD],
                ),
            )
        ),
        FOUND,
    ),
    "results of file search": (
        trace(
            (1, None, chat(said("user", ASKED), reply=[result("file_search", results=HITS), TOLD]))
        ),
        FOUND,
    ),
    "hosted results without texts": (
        trace((1, None, chat(said("user", ASKED), reply=[HIDDEN_HITS, TOLD]))),
        "no_contexts",
    ),
    "a hosted search beside a retrieval": (
        trace((1, None, root()), (2, 1, RETRIEVAL), (3, 1, chat(reply=[ANSWERED, TOLD]))),
        "ambiguous",
    ),
    "hosted code is no search": (
        trace((1, None, root()), (2, 1, RETRIEVAL), (3, 1, chat(reply=[CALCULATED, TOLD]))),
        FOUND,
    ),
    "only hosted code": (
        trace((1, None, chat(said("user", ASKED), reply=[CALCULATED, TOLD]))),
        "no_retrieval",
    ),
    "search results in the question": (
        trace((1, None, root()), (2, 1, chat(said("user", *BLOCKS, ASKED)))),
        (ASKED, (PAGE, MORE), TOLD, "tool"),
    ),
    "search results of a retrieval": (
        trace((1, None, root()), (2, 1, RETRIEVAL), (3, 1, chat(said("user", *BLOCKS, ASKED)))),
        FOUND,
    ),
    "search results in a tool's result": (
        trace(
            (1, None, root()),
            (
                2,
                1,
                chat(
                    said("user", ASKED),
                    said("assistant", {"type": "tool_call", "id": "1", "name": "search"}),
                    said("tool", {"type": "tool_call_response", "id": "1", "response": BLOCKS}),
                ),
            ),
        ),
        (ASKED, (PAGE, MORE), TOLD, "tool"),
    ),
    "hosted results of an earlier turn": (
        trace(
            (1, None, root()),
            (2, 1, RETRIEVAL),
            (
                3,
                1,
                chat(
                    said("system", PROMPT),
                    said("user", "Who?"),
                    said("assistant", HIDDEN_HITS, "Ada."),
                    said("user", ASKED),
                ),
            ),
        ),
        FOUND,
    ),
    # --- OpenInference
    "a thought": (
        trace(
            (1, None, NAMELESS),
            (2, 1, documents(PAGE, MORE)),
            (
                3,
                1,
                call(
                    {"message_content.type": "reasoning", "message_content.text": "Let me think."},
                    {"message_content.type": "text", "message_content.text": TOLD},
                ),
            ),
        ),
        FOUND,
    ),
    "a tool is used": (
        trace(
            (1, None, oi("AGENT", input__value=ASKED)),
            (2, 1, documents(PAGE, MORE)),
            (
                3,
                1,
                call(
                    {"message_content.type": "text", "message_content.text": "Let me look again."},
                    {
                        "message_content.type": "tool_use",
                        "tool_call.id": "1",
                        "tool_call.function.name": "search",
                    },
                ),
            ),
            (4, 1, call()),
        ),
        FOUND,
    ),
    "parts and documents above nine": (
        trace(
            (1, None, CHAIN),
            (2, 1, documents(*(f"Number {n} is here." for n in range(12)))),
            (
                3,
                1,
                call()
                | {"llm.input_messages.0.message.content": ""}
                | items(
                    "llm.input_messages.0.message.contents",
                    *({"message_content.text": f"Number {n} is here."} for n in range(12)),
                ),
            ),
        ),
        (ASKED, tuple(f"Number {n} is here." for n in range(12)), TOLD, "retrieval"),
    ),
    "prompts and completions": (
        trace(
            (1, None, CHAIN),
            (2, 1, documents(PAGE, MORE)),
            (
                3,
                1,
                oi("LLM")
                | items("llm.prompts", {"prompt.text": f"{PROMPT}\n\n{ASKED}"})
                | items(
                    "llm.choices", {"completion.text": TOLD}, {"completion.text": "In 1950, I say."}
                ),
            ),
        ),
        FOUND,
    ),
    "the first completion was dropped": (
        trace(
            (1, None, oi("CHAIN", input__value=ASKED)),
            (2, 1, documents(PAGE, MORE)),
            (
                3,
                1,
                oi("LLM")
                | items("llm.prompts", {"prompt.text": f"{PROMPT}\n\n{ASKED}"})
                | items("llm.choices", {"completion.text": "In 1950, I say."}, at=[1]),
            ),
        ),
        "truncated",
    ),
    "documents with a gap": (
        trace((1, None, CHAIN), (2, 1, documents(PAGE, MORE, at=[0, 2])), (3, 1, call())),
        "no_contexts",
    ),
    "one without content": (
        trace((1, None, CHAIN), (2, 1, documents(PAGE, MORE, None)), (3, 1, call())),
        "no_contexts",
    ),
    "names like those of documents": (
        trace(
            (1, None, CHAIN),
            (
                2,
                1,
                documents(PAGE, MORE)
                | items("retrieval.documents_x", {"document.content": "no"})
                | {
                    "retrieval.documents00.document.content": "no",
                    "retrieval.documents.01.document.content": "no",
                    "retrieval.documents.٣.document.content": "no",
                    f"retrieval.documents.{'9' * 5000}.document.content": "no",
                    "retrieval.documents.-1.document.content": "no",
                },
            ),
            (3, 1, call()),
        ),
        FOUND,
    ),
    "an evaluator in the turn": (
        trace(
            (1, None, NAMELESS | {"input.value": ASKED}),
            (2, 1, documents(PAGE, MORE)),
            (3, 1, call()),
            (4, 1, oi("EVALUATOR", input__value=TOLD, output__value="pass")),
            (5, 4, documents(FACTS)),
            (6, 4, GRADER),
        ),
        FOUND,
    ),
    "guardrails around the call": (
        trace(
            (1, None, oi("AGENT", input__value=ASKED)),
            (2, 1, oi("GUARDRAIL", input__value=ASKED)),
            (3, 2, GRADE),
            (4, 1, documents(PAGE, MORE)),
            (5, 1, call()),
            (6, 1, oi("GUARDRAIL")),
            (7, 6, GRADER),
        ),
        FOUND,
    ),
    "an evaluator alone": (
        trace((1, None, oi("EVALUATOR")), (2, 1, documents(PAGE)), (3, 1, GRADER)),
        None,
    ),
    "a decision between": (
        trace(
            (1, None, oi("AGENT", input__value=ASKED)),
            (2, 1, documents(PAGE, MORE)),
            (3, 1, call()),
            (4, 1, oi("DECISION", output__value="hand over")),
            (5, 4, GRADER),
        ),
        FOUND,
    ),
    "evaluators of Langfuse": (
        trace(
            (1, None, CHAIN),
            (2, 1, documents(PAGE, MORE)),
            (3, 1, call()),
            (4, 1, {"langfuse.observation.type": "evaluator"}),
            (5, 4, {"langfuse.observation.type": "generation"}),
        ),
        FOUND,
    ),
    "scores by others on the judged span": (
        trace(
            (
                1,
                None,
                CHAIN
                | items(
                    "evaluations",
                    {
                        "evaluation.name": "faithfulness",
                        "evaluation.score": 0.1,
                        "evaluation.explanation": MORE,
                    },
                )
                | {"rag.evaluation.faithfulness.score": 0.9, "rag.evaluation.status": "scored"},
            ),
            (2, 1, documents(PAGE, MORE)),
            (3, 1, call()),
        ),
        FOUND,
    ),
}


def outcome(spans: Sequence[Span], **options: bool) -> Expected:
    """Return the first outcome of the trace under the span processor, which asserts more."""
    calls = [
        Call(operation=operation, span=span, at=at or 0)
        for span in spans
        for operation, at in (("start", span.start), ("end", span.end))
    ]
    first, *_ = replay(sorted(calls, key=lambda one: one.at), **options)
    told = first.result
    if not isinstance(told, Sample):
        return told
    assert first.turn is not None
    source = first.turn.contexts_source
    return told.question, tuple(passage.text for passage in told.contexts), told.answer, source


@pytest.mark.parametrize(("spans", "expected"), SHAPES.values(), ids=SHAPES)
def test_shapes(spans: list[Span], expected: Expected) -> None:
    """Each shape is read as what it is, or refused for the reason that is true."""
    assert outcome(spans) == (expected or "no_retrieval")
    assert bool(outcomes_of(spans)) == (expected is not None)


@pytest.mark.parametrize("kind", ["EVALUATOR", "LLM", "CHAIN", None])
@pytest.mark.parametrize("term", ["evaluation", "trace.annotation", "session.evaluation"])
def test_a_carrier_of_scores_is_no_turn(kind: str | None, term: str) -> None:
    """A span with scores and a link to the judged span has texts of the judge, not of a user."""
    (*_, word) = term.split(".")
    scores = {f"{term}s.0.{word}.name": "correct", f"{term}s.0.{word}.explanation": FACTS}
    shown = items("llm.input_messages", {"message.content": f"Context:\n{PAGE}\n\n{ASKED}"})
    marked = {"openinference.span.kind": kind} if kind else {}
    judge = marked | shown | {"output.value": TOLD} | scores
    spans = trace((1, None, judge), (2, 1, documents(PAGE, MORE)), links=(object(),))
    assert kind_of(spans[0]) == "aside"
    assert outcome(spans, contexts_from_prompt=True) == "no_retrieval"
    assert outcomes_of(spans) == []
    assert {name for name in judge if owner_of(name)} >= {f"{term}s.0.{word}.explanation"}


@pytest.mark.parametrize(
    "name",
    [
        *("gen_ai.memory.query.text", "gen_ai.memory.records", "gen_ai.tool.definitions"),
        *("gen_ai.tool.description", "tool.description", "gen_ai.evaluation.explanation"),
        *("llm.function_call", "llm.tools.0.tool.json_schema", "llm.invocation_parameters"),
        *("evaluations.12.evaluation.explanation", "trace.evaluations.0.evaluation.metadata"),
        *("annotations.0.annotation.explanation", "session.annotations.3.annotation.metadata"),
        *("llm.prompts.0.prompt.text", "llm.choices.1.completion.text", "decision.reason"),
    ],
)
def test_texts_that_are_not_exported(name: str) -> None:
    """What users and models wrote is known by the names of the attributes."""
    assert owner_of(name) == "foreign"


@pytest.mark.parametrize(
    "name",
    [
        *("gen_ai.tool.name", "gen_ai.memory.store.id", "gen_ai.evaluation.score.value"),
        *("evaluations.0.evaluation.name", "evaluations.0.evaluation.score", "tool.name"),
        *("evaluations.0.evaluation.label", "annotations.0.annotation.identifier"),
        *("rag.evaluation.faithfulness.score", "llm.model_name", "session.id"),
    ],
)
def test_names_and_scores_that_are(name: str) -> None:
    """Names, ids and scores are kept."""
    assert owner_of(name) is None


@pytest.mark.slow
def test_many_attributes() -> None:
    """The time to read a span is linear in the number of its attributes."""

    def took(number: int) -> float:
        ids = {f"retrieval.documents.{n}.document.id": n for n in range(1, number)}
        scores = {f"evaluations.{n}.evaluation.name": "a" for n in range(number)}
        view = View(attributes=documents(PAGE) | ids | scores)
        begin = time.thread_time()
        step = read(view)
        assert (step.documents, step.lacks_texts) == ((Passage(text=PAGE),), True)
        return time.thread_time() - begin

    assert min(took(100_000) for _ in range(3)) < 20 * min(took(10_000) for _ in range(3))
