"""Traces in the shapes that both conventions describe: spans in, samples out.

The spans are written by hand from the conventions; no instrumentation that is recorded here writes
them yet. The values are structured, as the SDK allows since 1.45, or texts with JSON.
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pytest

from plain_views import View
from rag_eval_otel.capture.conventions import owner_of, read
from rag_eval_otel.capture.conventions.openinference import GUARDRAILS
from rag_eval_otel.capture.span import Span
from rag_eval_otel.types import Passage, Sample
from replay import Call, replay
from steps import outcomes_of

Expected: TypeAlias = "tuple[str, tuple[str, ...], str, str] | str"
Row: TypeAlias = "dict[str, Any] | tuple[int, dict[str, Any]]"

ASKED, QUERY = "When was it founded?", "founding year of the society"
TOLD = "The society was founded in 1949, and moved to Bern in 1963."
OTHER = "It was founded in 1950, I believe, or in another year."
PAGE, MORE = "The society was founded in 1949.", "In 1963 it moved to Bern."
PROMPT = f"Answer by this.\n\n{PAGE}\n\n{MORE}"
HEADED = f"Context:\n{PAGE}\n\n{MORE}\n\nQuestion: {ASKED}"
FACTS = "The user is Ada, who asks about the society."

FOUND: Expected = (ASKED, (PAGE, MORE), TOLD, "retrieval")
BY_TOOL, IN_MEMORY, IN_PROMPT = (
    (ASKED, (PAGE, MORE), TOLD, source) for source in ("tool", "memory", "prompt")
)


def trace(*rows: Row, **fields: Any) -> list[Span]:
    """Build spans 1, 2, ... of a trace. Each is below the first, or below the span it names."""
    placed = [row if isinstance(row, tuple) else (int(n > 0), row) for n, row in enumerate(rows)]
    ends = list(range(len(rows)))
    for number in reversed(range(1, len(rows))):
        above = placed[number][0] - 1
        ends[above] = max(ends[above], ends[number])
    second = 1_000_000_000
    return [
        View(
            name=f"step {number}",
            span_id=number,
            parent_id=above or None,
            start=(9 + number) * second,
            end=(11 + last) * second + 1000 - number,
            attributes=attributes,
            **fields,
        )
        for number, ((above, attributes), last) in enumerate(zip(placed, ends, strict=True), 1)
    ]


# --- GenAI ----------------------------------------------------------------------------------------


def genai(operation: str, **values: Any) -> dict[str, Any]:
    named = {f"gen_ai.{name.replace('__', '.')}": value for name, value in values.items()}
    return {"gen_ai.operation.name": operation, **named}


def said(role: str, *parts: Any) -> dict[str, Any]:
    texts = [{"type": "text", "content": p} if isinstance(p, str) else p for p in parts]
    return {"role": role, "parts": texts}


def chat(*shown: Any, reply: Sequence[Any] = (TOLD,)) -> dict[str, Any]:
    messages = [said("system", PROMPT), said("user", ASKED)] if not shown else list(shown)
    told = [said("assistant", *reply)]
    return genai("chat", input__messages=messages, output__messages=told)


def asked(*reply: Any) -> dict[str, Any]:
    return chat(said("user", ASKED), reply=[*reply, TOLD])


def root(operation: str = "invoke_agent", *told: str) -> dict[str, Any]:
    shown, replies = [said("user", ASKED)], [said("assistant", text) for text in told or (TOLD,)]
    return genai(operation, input__messages=shown, output__messages=replies)


def documents(*items: Any) -> dict[str, Any]:
    return genai("retrieval", retrieval__query__text=ASKED, retrieval__documents=items)


def memory(*contents: Any) -> dict[str, Any]:
    records = [{"content": content, "score": 1} for content in contents]
    return genai("search_memory", memory__query__text=ASKED, memory__records=records)


def as_json(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in attributes.items()}


BARE = genai("invoke_agent")
RETRIEVAL = documents({"content": PAGE, "id": "a"}, {"content": MORE, "id": 7, "score": 1})
REWRITTEN = {**RETRIEVAL, "gen_ai.retrieval.query.text": QUERY}
BLIND = documents({"content": PAGE}, {"id": "b"})
UNTOLD = genai("invoke_agent", input__messages=[said("user", ASKED)])
SEARCHES = {"type": "tool_call", "name": "search", "id": "1"}
CHOICES = [said("assistant", TOLD), said("assistant", SEARCHES), said("assistant", OTHER)]
SEVERAL = genai("chat", output__messages=CHOICES, request__choice__count=3)
SEVERAL |= {"gen_ai.input.messages": chat()["gen_ai.input.messages"]}
THOUGHT = {"type": "reasoning", "content": "Let me think about the year."}
HITS = [{"text": PAGE, "filename": "a.md", "score": 0.9}, {"text": MORE, "filename": "b.md"}]
CALLED = {"type": "server_tool_call", "id": "s1", "name": "file_search", "server_tool_call": {}}


def hosted(**data: Any) -> dict[str, Any]:
    return {"type": "server_tool_call_response", "id": "s1", "server_tool_call_response": data}


ANSWERED, CALCULATED = hosted(type="file_search", results=HITS), hosted(type="code", output="4")
BLOCKS = [
    {"type": "search_result", "title": "A", "content": [{"type": "text", "text": text}]}
    for text in (PAGE, MORE)
]
GENERIC = [{**block, "type": "generic", "generic_type": "search_result"} for block in BLOCKS]
ENCRYPTED = {"type": "web_search_tool_result", "content": [{"url": "https://a.example"}]}
TOOL = said("tool", {"type": "tool_call_response", "id": "1", "response": BLOCKS})
BY_BLOCKS = chat(said("user", *BLOCKS, ASKED))
BY_RESULT = chat(said("user", ASKED), said("assistant", SEARCHES), TOOL)
EARLIER = chat(
    *(said("system", PROMPT), said("user", "Who?"), said("assistant", ENCRYPTED, "Ada.")),
    said("user", ASKED),
)
LISTS = chat(said("user", f"List facts of: {ASKED}"), reply=[FACTS])
PLANS = chat(said("user", ASKED), reply=["Next I look for the city of Bern, and for the year."])
TURN = "handle_conversation_turn"
TURNS = (root(TURN), (2, REWRITTEN), (2, chat()), root(TURN, OTHER), (5, memory(MORE)))
MADE, UPDATE = (genai("create_memory_store"), genai("create_agent")), genai("update_memory")
FETCHED = genai("fetch_response", output__messages=[said("assistant", OTHER)])
IN_PART, UNLIKE = {"type": "text", "content": PAGE}, documents({"content": FACTS}, {"id": "b"})

OF_GENAI: dict[str, tuple[Any, ...]] = {
    "memory is searched": (IN_MEMORY, root(), memory(PAGE, {"text": MORE}), chat()),
    "records as JSON": (IN_MEMORY, root(), as_json(memory(PAGE, MORE)), chat()),
    "memory and a retrieval": (IN_MEMORY, root(), memory(PAGE), RETRIEVAL, chat()),
    "a record of another type": ("no_contexts", root(), memory(PAGE, 1963), chat()),
    "a record of parts": (IN_MEMORY, root(), memory([IN_PART], MORE), chat()),
    "remembered afterwards": (FOUND, UNTOLD, RETRIEVAL, chat(), UPDATE, (4, LISTS)),
    "made before, fetched after": (FOUND, UNTOLD, *MADE, RETRIEVAL, chat(), FETCHED),
    "a turn of a conversation": (FOUND, root(TURN), BARE, (2, REWRITTEN), (2, chat())),
    "two turns": (FOUND, genai("invoke_workflow"), *TURNS, (5, chat(reply=[OTHER]))),
    "a turn without its question": ("redacted", genai(TURN), REWRITTEN, chat()),
    "an unknown operation": ("redacted", genai("invent"), REWRITTEN, chat()),
    "a plan before": (FOUND, root(), genai("plan"), (2, PLANS), RETRIEVAL, chat()),
    "a plan after": (FOUND, UNTOLD, RETRIEVAL, chat(), genai("plan"), (4, PLANS)),
    "only a plan": ("no_answer", UNTOLD, RETRIEVAL, genai("plan"), (3, chat())),
    "an evaluation": (FOUND, UNTOLD, RETRIEVAL, chat(), genai("evaluation"), (4, LISTS)),
    "several choices": (FOUND, UNTOLD, RETRIEVAL, SEVERAL),
    "a thought": (FOUND, UNTOLD, RETRIEVAL, chat(reply=[THOUGHT, TOLD])),
    "only a thought": ("no_answer", UNTOLD, RETRIEVAL, chat(reply=[THOUGHT])),
    "one without text": ("no_contexts", root(), BLIND, chat()),
    "one without text, known": (IN_PROMPT, root(), BLIND, chat(said("user", HEADED))),
    "other texts are shown": ("ambiguous", root(), UNLIKE, chat(said("user", HEADED))),
    "a hosted search": (FOUND, asked(CALLED, ANSWERED)),
    "a hosted search as JSON": (FOUND, as_json(asked(CALLED, ANSWERED))),
    "a hosted search below": (FOUND, root(), asked(CALLED, ANSWERED)),
    "a response inside": (FOUND, asked(hosted(type="web_search", response=HITS))),
    "a response named by its call": (FOUND, asked(CALLED, hosted(results=HITS))),
    "generic results": (FOUND, asked(*GENERIC)),
    "results of file search": (FOUND, asked({"type": "file_search", "results": HITS})),
    "hosted results without texts": ("no_contexts", asked(ENCRYPTED)),
    "hosted code": (FOUND, root(), RETRIEVAL, chat(reply=[CALCULATED, TOLD])),
    "only hosted code": ("no_retrieval", asked(CALCULATED)),
    "results in the question": (BY_TOOL, root(), BY_BLOCKS),
    "results of a retrieval": (FOUND, root(), RETRIEVAL, BY_BLOCKS),
    "results in a tool's result": (BY_TOOL, root(), BY_RESULT),
    "results of an earlier turn": (FOUND, root(), RETRIEVAL, EARLIER),
}

# --- OpenInference --------------------------------------------------------------------------------


def oi(kind: str, *, told: str = "", **values: Any) -> dict[str, Any]:
    about = {"input.value": ASKED, "output.value": told, **values}
    return {"openinference.span.kind": kind, **{k: v for k, v in about.items() if v}}


def items(prefix: str, *values: Mapping[str, Any], at: Sequence[int] = ()) -> dict[str, Any]:
    pairs = zip(at or range(len(values)), values, strict=True)
    return {f"{prefix}.{n}.{name}": value for n, item in pairs for name, value in item.items()}


def pages(*texts: str | None, at: Sequence[int] = ()) -> dict[str, Any]:
    rows = [{"document.id": "a"} if t is None else {"document.content": t} for t in texts]
    return oi("RETRIEVER") | items("retrieval.documents", *rows, at=at)


def shown(prompt: str, *contents: Mapping[str, Any]) -> dict[str, Any]:
    pairs = [("system", prompt), ("user", ASKED)]
    rows = [{"message.role": role, "message.content": text} for role, text in pairs]
    reply = {"message.role": "assistant", **items("message.contents", *contents)}
    messages = items("llm.input_messages", *rows) | items("llm.output_messages", reply)
    return {"openinference.span.kind": "LLM", **messages}


def part(text: str, kind: str = "text") -> dict[str, Any]:
    return {"message_content.type": kind, "message_content.text": text}


USE = {"message_content.type": "tool_use", "tool_call.id": "1", "tool_call.function.name": "search"}
CALL, GRADER = shown(PROMPT, part(TOLD)), shown(f"Is it good? {PROMPT}", part(f"Good: {OTHER}"))
AGENT, DONE = oi("AGENT"), oi("CHAIN", told=TOLD)
TEN = tuple(f"Page {n} is here." for n in range(12))
NUMBERED = items("llm.input_messages.0.message.contents", *map(part, TEN))
SPARSE = {key.replace("input_messages.0", "input_messages.3"): v for key, v in CALL.items()}
COMPLETED = oi("LLM") | items("llm.prompts", {"prompt.text": f"{PROMPT}\n\n{ASKED}"})
FIRST, SECOND = {"completion.text": TOLD}, {"completion.text": OTHER}
LOOKALIKES = {
    **items("retrieval.documents_x", {"document.content": "no"}),
    **items("retrieval.documents0", {"document.content": "no"}),
    **{
        f"retrieval.documents.{number}.document.content": "no"
        for number in ("01", "\u0663", "9" * 5000, "-1", "1e3", "")
    },
}
SCORED = items(
    "evaluations",
    {"evaluation.name": "correct", "evaluation.score": 0.1, "evaluation.explanation": MORE},
) | {"rag.evaluation.correct.score": 0.9, "rag.evaluation.status": "scored"}
EVALUATOR, GUARDRAIL, DECISION = oi("EVALUATOR"), oi("GUARDRAIL"), oi("DECISION", told=OTHER)
LANGFUSE = {"langfuse.observation.type": "evaluator"}

BOTH, ALL = pages(PAGE, MORE), (ASKED, TEN, TOLD, "retrieval")
THINKS = shown(PROMPT, part("Hm.", "reasoning"), part(TOLD))
TOLD_ALL = CALL | NUMBERED | {"llm.input_messages.0.message.content": ""}
OF_OPENINFERENCE: dict[str, tuple[Any, ...]] = {
    "a thought": (FOUND, AGENT, BOTH, THINKS),
    "a tool is used": (FOUND, AGENT, BOTH, shown(PROMPT, part(OTHER), USE), CALL),
    "messages without the first": (FOUND, AGENT, BOTH, SPARSE),
    "numbers above nine": (ALL, DONE, pages(*TEN), TOLD_ALL),
    "prompts": (FOUND, AGENT, BOTH, COMPLETED | items("llm.choices", FIRST, SECOND)),
    "a gap": ("no_contexts", DONE, pages(PAGE, MORE, at=[0, 2]), CALL),
    "one without content": ("no_contexts", DONE, pages(PAGE, MORE, None), CALL),
    "names that look alike": (FOUND, DONE, BOTH | LOOKALIKES, CALL),
    "an evaluator": (FOUND, AGENT, BOTH, CALL, EVALUATOR, (4, pages(FACTS)), (4, GRADER)),
    "guardrails": (FOUND, AGENT, GUARDRAIL, (2, GRADER), BOTH, CALL, GUARDRAIL, (6, GRADER)),
    "only an evaluator": ("nothing", EVALUATOR, BOTH, GRADER),
    "a decision": (FOUND, AGENT, BOTH, CALL, DECISION, (4, GRADER)),
    "Langfuse": (FOUND, AGENT, BOTH, CALL, LANGFUSE, (4, GRADER)),
    "scores by others": (FOUND, DONE | SCORED, BOTH, CALL),
}


def outcome(spans: Sequence[Span], **options: bool) -> Expected:
    """Return the first outcome under the span processor; with it, the spans leave once."""
    calls = [
        Call(operation=operation, span=span, at=at or 0)
        for span in spans
        for operation, at in (("start", span.start), ("end", span.end))
    ]
    first, *_ = replay(sorted(calls, key=lambda one: one.at), **options)
    told = first.result
    if not isinstance(told, Sample):
        return told if outcomes_of(spans) else "nothing"
    assert first.turn is not None
    texts = tuple(passage.text for passage in told.contexts)
    return told.question, texts, told.answer, first.turn.contexts_source


SHAPES = OF_GENAI | {f"OpenInference: {name}": one for name, one in OF_OPENINFERENCE.items()}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str) -> None:
    """Each shape is read as what it is, or refused for the reason that is true."""
    expected, *rows = SHAPES[name]
    assert outcome(trace(*rows)) == expected


@pytest.mark.parametrize("root", [AGENT, DONE])
def test_guards_of_guardrails_ai_wrap_the_model(root: dict[str, Any]) -> None:
    """Its guards wrap a call without texts, which may wrap that of another instrumentation."""
    guard = GUARDRAIL | {"input.value": json.dumps({"index": 0, "messages": None})}
    inner = [] if root is DONE else [(4, CALL)]
    spans = trace(root, BOTH, guard, (3, oi("LLM")), *inner, scope=GUARDRAILS)
    assert outcome(spans) == FOUND


EXPORTED = {
    "foreign": (
        *("gen_ai.memory.query.text", "gen_ai.memory.records", "gen_ai.tool.definitions"),
        *("gen_ai.tool.description", "tool.description", "gen_ai.evaluation.explanation"),
        *("llm.function_call", "llm.tools.0.tool.json_schema", "llm.invocation_parameters"),
        *("evaluations.12.evaluation.explanation", "trace.evaluations.0.evaluation.metadata"),
        *("annotations.0.annotation.explanation", "session.annotations.3.annotation.metadata"),
        *("llm.prompts.0.prompt.text", "llm.choices.1.completion.text", "decision.reason"),
        *("gcp.vertex.agent.llm_request", "llm.input_messages.3.function.0", "crew_inputs"),
        *("haystack.component.output", "langfuse.observation.input", "gen_ai.completion"),
        *("llamaindex.step.input_summary", "mlflow.spanOutputs", "output.value", "system_prompt"),
        *("smolagents.task", "gen_ai.prompt.0.content", "db.query.embeddings.vector"),
    ),
    None: (
        *("gen_ai.tool.name", "gen_ai.memory.store.id", "gen_ai.evaluation.score.value"),
        *("evaluations.0.evaluation.name", "evaluations.0.evaluation.score", "tool.name"),
        *("evaluations.0.evaluation.label", "annotations.0.annotation.identifier"),
        *("rag.evaluation.faithfulness.score", "llm.model_name", "session.id", "my.input.value"),
        *("llm.token_count.prompt", "gen_ai.prompt.0.role", "input.mime_type", "output"),
        *("gen_ai.prompt.0.tool_calls.0.name", "metadata", "retrieval.documents.0.document.id"),
    ),
}


@pytest.mark.parametrize(("owner", "names"), EXPORTED.items())
def test_texts_that_are_removed(owner: str | None, names: Sequence[str]) -> None:
    """What users, models and judges wrote is known by its name; names and scores are kept."""
    assert {name: owner_of(name) for name in names} == dict.fromkeys(names, owner)


@pytest.mark.slow
def test_many_attributes() -> None:
    """The time to read a span is linear in the number of its attributes."""

    def took(number: int) -> float:
        ids = {f"retrieval.documents.{n}.document.id": n for n in range(1, number)}
        scores = {f"evaluations.{n}.evaluation.name": "a" for n in range(number)}
        view = View(attributes=pages(PAGE) | ids | scores)
        begin = time.thread_time()
        step = read(view)
        assert (step.documents, step.lacks_texts) == ((Passage(text=PAGE),), True)
        return time.thread_time() - begin

    assert min(took(100_000) for _ in range(3)) < 20 * min(took(10_000) for _ in range(3))
