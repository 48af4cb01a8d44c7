"""What was once scored in the place of the answer, the question or the contexts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from rag_eval_otel.capture import step as build
from rag_eval_otel.capture.conventions import read
from rag_eval_otel.capture.documents import block_in, documents_in
from rag_eval_otel.capture.sample import Outcome, extract, turns_in
from rag_eval_otel.capture.span import LogView, Span
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.turns import find_turns
from rag_eval_otel.capture.values import plain
from rag_eval_otel.types import Passage, Sample
from steps import chain, llm, outcomes, retriever

ASKED, SEARCHED = "And what about its battery?", "battery life of the X200 camera"
PAGES = ("The X200 runs nine hours on one battery.", "Chargers take two hours for it.")
TOLD, OTHER = "It runs nine hours on one battery.", "Its battery is good for a whole day."
THOUGHT = "The user means the camera X200."
SECOND = 1_000_000_000


def span(attributes: Mapping[str, Any], **more: Any) -> Span:
    fields: dict[str, Any] = {"span_id": 1, "parent_id": None, "start": 0, "end": 5 * SECOND}
    fields |= {"name": "call", "scope": "scope", "error": None, **more}
    return Span(attributes=attributes, **fields)


def message(role: str, *parts: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": role, "parts": list(parts)}


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "content": text}


def genai(*replies: Mapping[str, Any]) -> Span:
    asked = json.dumps([message("user", said(ASKED))])
    names = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": asked}
    return span({**names, "gen_ai.output.messages": json.dumps(replies)})


def openinference(*parts: tuple[str, str]) -> Span:
    prefix = "llm.output_messages.0.message.contents"
    names = {"openinference.span.kind": "LLM", "llm.output_messages.0.message.role": "assistant"}
    for number, (of, text) in enumerate(parts):
        names[f"{prefix}.{number}.message_content.type"] = of
        names[f"{prefix}.{number}.message_content.text"] = text
    return span(names)


WORDS = [f"{number} " for number in range(12)]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (openinference(("reasoning", THOUGHT), ("text", TOLD)), TOLD),
        (openinference(*(("text", word) for word in WORDS)), "".join(WORDS)),
        (genai(message("assistant", {"type": "reasoning", "content": THOUGHT}, said(TOLD))), TOLD),
        (genai(message("assistant", {"type": "thinking", "text": THOUGHT}, said(TOLD))), TOLD),
        (genai(message("model", {"text": THOUGHT, "thought": True}, {"text": TOLD})), TOLD),
        (
            span(
                {
                    "langfuse.observation.type": "generation",
                    "langfuse.observation.output": json.dumps(
                        [{"type": "text", "text": TOLD}, {"type": "reasoning", "text": THOUGHT}]
                    ),
                }
            ),
            TOLD,
        ),
    ],
)
def test_thoughts_of_a_model(call: Span, expected: str) -> None:
    """The answer has all parts of the reply in their order, but not the reasoning."""
    assert read(call).output == expected


def choices(*texts: str) -> list[dict[str, Any]]:
    return [
        {"index": number, "message": {"role": "assistant", "content": text}}
        for number, text in enumerate(texts)
    ]


def listed(prefix: str, role: str, text: str) -> dict[str, str]:
    return {
        f"{prefix}.{number}.{name}": value
        for number, told in enumerate((TOLD, OTHER))
        for name, value in ((role, "assistant"), (text, told))
    }


@pytest.mark.parametrize(
    "call",
    [
        genai(message("assistant", said(TOLD)), message("assistant", said(OTHER))),
        span(
            {
                "openinference.span.kind": "LLM",
                **listed("llm.output_messages", "message.role", "message.content"),
            }
        ),
        span({"llm.request.type": "chat", **listed("gen_ai.completion", "role", "content")}),
        span(
            {"gen_ai.operation.name": "chat"},
            logs=[LogView(event="gen_ai.choice", body=one) for one in choices(TOLD, OTHER)[::-1]],
        ),
        span(
            {
                "langfuse.observation.type": "generation",
                "langfuse.observation.output": json.dumps({"choices": choices(TOLD, OTHER)[::-1]}),
            }
        ),
        span(
            {
                "mlflow.spanType": '"CHAT_MODEL"',
                "mlflow.spanOutputs": json.dumps(
                    {"generations": [[{"text": TOLD}, {"text": OTHER}]]}
                ),
            }
        ),
        span(
            {
                "haystack.component.type": "OpenAIChatGenerator",
                "haystack.component.output": json.dumps(
                    {"replies": [{"role": "assistant", "content": [{"text": TOLD}]}, OTHER]}
                ),
            },
            name="haystack.component.run",
        ),
    ],
)
def test_several_choices(call: Span) -> None:
    """Of several replies to one prompt the first counts, as in applications."""
    assert read(call).output == TOLD


def test_a_reply_in_several_messages() -> None:
    """Thoughts, a search of the provider and the text are no alternatives to each other."""
    thought = message("assistant", {"type": "reasoning", "content": THOUGHT})
    asks = message("assistant", {"type": "tool_call", "id": "1", "name": "search"})
    found = message("tool", {"type": "tool_call_response", "id": "1", "response": PAGES[0]})
    assert read(genai(thought, message("assistant", said(TOLD)))).output == TOLD
    assert read(genai(asks, found, message("assistant", said(TOLD)))).output == TOLD
    assert read(genai(message("assistant", said("Let me see.")), asks)).calls_tools


def conversation(operation: str, documents: Sequence[Mapping[str, Any]], **root: str) -> Any:
    """Return the outcome of a turn that searched for another text than its question."""
    inner = {"parent_id": 1, "scope": "opentelemetry.util.genai"}
    found = {
        "gen_ai.operation.name": "retrieval",
        "gen_ai.retrieval.query.text": SEARCHED,
        "gen_ai.retrieval.documents": json.dumps(documents),
    }
    shown = "\n".join(PAGES)
    usual = f"From:\n{shown}\n{root.pop('prompt', SEARCHED)}"
    asked = message("user", said(root.pop("whole", usual)))
    call = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": json.dumps([asked]),
        "gen_ai.output.messages": json.dumps([message("assistant", said(TOLD))]),
    }
    spans = [
        span({"gen_ai.operation.name": operation, **root}, start=0, end=9 * SECOND),
        span(found, span_id=2, start=SECOND, end=2 * SECOND, **inner),
        span(call, span_id=3, start=3 * SECOND, end=4 * SECOND, **inner),
    ]
    (turn,) = turns_in([read(one) for one in spans], contexts_from_prompt=False)
    return Outcome(result=extract(turn)).result


FOUND = [{"id": str(number), "content": page} for number, page in enumerate(PAGES)]


@pytest.mark.parametrize("operation", ["handle_conversation_turn", "answer_question"])
def test_the_question_of_an_unknown_operation(operation: str) -> None:
    """The question on it is never replaced by the query of the search, even if it is withheld."""
    asked = {"gen_ai.input.messages": json.dumps([message("user", said(ASKED))])}
    assert conversation(operation, FOUND, **asked) == "ambiguous"  # who rewrote it is not known
    exact = conversation(operation, FOUND, prompt=ASKED, **asked)
    assert isinstance(exact, Sample)
    assert exact.question == ASKED
    assert conversation(operation, FOUND) == "redacted"


ROCKS = (
    "Rivers have many sources in the hills.",
    "Springs are the sources of most rivers.",
    "Rain feeds them all, and so do glaciers.",
)


@pytest.mark.parametrize(
    "prompt",
    [
        "Use the search results:\n\n" + "\n\n".join(ROCKS),
        "<context>\n" + "\n\n".join(ROCKS) + "\n</context>",
    ],
)
def test_contexts_below_a_heading(prompt: str) -> None:
    """All are read, also those whose last line has a name such as "sources" in it."""
    block = block_in([f"{prompt}\n\nQuestion: Where do rivers come from?\nAnswer:"])
    assert block is not None
    assert block.passages() == tuple(Passage(text=text) for text in ROCKS)


@pytest.mark.parametrize(
    "prompt",
    [
        "\n=====\n".join(ROCKS),
        "\n=====\n".join(f"Context {n}:\n{text}" for n, text in enumerate(ROCKS, 1)),
        "Context:\n" + "\n=====\n".join(ROCKS),
        "\n=====\n".join(f"Context {n}:\n{text}" for n, text in zip("ABC", ROCKS, strict=True)),
        "".join(f"<context>{text}</context>\n" for text in ROCKS),
        "Documents\n========\n" + "\n========\n".join(ROCKS),
        f"Article section:\nThe Rhine has these sources:\nUse them well.\n{ROCKS[0]}",
        f"Context:\nCats purr.\n\nQuestion: Do cats purr?\n\nContext:\n{ROCKS[0]}",
        "Context:\n" + "\n\n".join(ROCKS) + "\n\nIf it is not in the context, say so.",
        "Context:\n" + "\n\n".join(ROCKS) + "\n\nNote: be brief.",
    ],
)
def test_contexts_that_may_be_elsewhere(prompt: str) -> None:
    """A part of the contexts is not read as all of them."""
    block = block_in([f"{prompt}\n\nQuestion: Where do rivers come from?\nAnswer:"])
    assert block is None or block.passages() is None


def draft(number: int, page: str, under: str | None) -> Step:
    shown = f"Context:\n{page}\n\nQuestion: {ASKED}"
    at = (10 * number, 10 * number + 5)
    return llm(f"draft{number}", under, at=at, shown=[shown], said=f"{TOLD} ({number})")


@pytest.mark.parametrize("under", [None, "root"])
def test_a_draft_for_each_context(under: str | None) -> None:
    """Which of several answers to one question was chosen is not to be seen."""
    root = span({}, name="ask", span_id="root", end=100)
    drafts = [draft(number, page, under) for number, page in enumerate(PAGES, 1)]
    found = turns_in([*([read(root)] if under else []), *drafts], contexts_from_prompt=True)
    assert {extract(turn) for turn in found} == {"ambiguous"}


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ({"answer": TOLD, "sources": ["a"]}, TOLD),
        ({"answer_based_on_content": TOLD}, TOLD),
        ({"analysis": THOUGHT, "conclusion": TOLD}, None),
        ({"rewritten_question": TOLD}, None),
        ([TOLD, OTHER], None),
    ],
)
@pytest.mark.parametrize("form", ["{}", "```json\n{}\n```"])
def test_json_of_a_model(form: str, reply: Any, expected: str | None) -> None:
    """Only a field that is named as an answer is one; the JSON around it never is."""
    steps = (
        chain("app", asked=ASKED),
        retriever("find", "app", at=(10, 20), query=ASKED, found=PAGES),
        llm(
            "write",
            "app",
            at=(30, 40),
            shown=[*PAGES, ASKED],
            said=form.replace("{}", json.dumps(reply)),
        ),
    )
    (found,) = outcomes(*steps)
    assert (found.answer if isinstance(found, Sample) else None) == expected


def around(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Sample | str:
    """Read a turn below a chain with these inputs and outputs."""
    names = {"input.value": json.dumps(inputs), "output.value": json.dumps(outputs)}
    app = read(span({"openinference.span.kind": "CHAIN", **names}, end=200 * SECOND))
    (found,) = outcomes(
        replace(app, id="app", start=0),
        retriever("find", "app", at=(10, 20), query=ASKED, found=PAGES),
        llm("write", "app", at=(30, 40), shown=[*PAGES, ASKED], said=TOLD),
    )
    return found


@pytest.mark.parametrize(
    "outputs",
    [
        {"status": "ok", "result": "success", "response": TOLD},
        {"message": "success", "reply": TOLD},
        {"output": "answers/7.md", "content": TOLD},
    ],
)
def test_a_status_beside_the_answer(outputs: Mapping[str, Any]) -> None:
    """What no model has said is no answer, where another text of the output was said by one."""
    found = around({"question": ASKED}, outputs)
    assert isinstance(found, Sample)
    assert found.answer == TOLD


@pytest.mark.parametrize(
    "inputs",
    [
        {"prompt": "You are a guide for cameras.", "user_query": ASKED},
        {"message": "msg-123", "body": ASKED},
    ],
)
def test_another_input_beside_the_question(inputs: Mapping[str, Any]) -> None:
    """The input that the prompt shows is the question, whatever its key is."""
    found = around(inputs, {"answer": TOLD})
    assert isinstance(found, Sample)
    assert found.question == ASKED


@pytest.mark.parametrize("of", [["museum", "tourist_attraction"], {"a": 1}, 7])
def test_a_type_that_is_no_text(of: object) -> None:
    """Tools return dicts whose ``type`` is anything, such as the list of JSON-LD."""
    documents_in([{"name": "Museum", "type": of}])
    assert read(genai(message("assistant", {"type": of, "content": THOUGHT}, said(TOLD)))).output


def test_an_iteration_over_one_document_leaves_out_no_other() -> None:
    """A loop over all documents is one chain: if spans are lost, its first pass is no filter."""
    grades = [
        replace(chain("grade", "turn", at=(n, n)), id=n, documents_seen=(Passage(text=page),))
        for n, page in enumerate(PAGES, 20)
    ]
    (turn,) = find_turns(
        [
            chain("turn", asked=ASKED, told=TOLD),
            retriever("search", "turn", at=(1, 5), query=ASKED, found=PAGES),
            *grades,
            llm("call", "turn", at=(50, 60), shown=(f"{PAGES[0]}\n{ASKED}",), said=TOLD),
        ],
        loss="possible",
    )
    assert extract(turn) == "partial"


def test_a_tool_that_returned_nothing_is_not_a_text_that_was_cut() -> None:
    """An empty text stands for one that was cut, and is not searched for in the prompt."""
    shown = [
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": []}]}
    ]
    call = build.llm(span({}), messages=plain(shown), reply=TOLD)
    assert [result.text for result in call.tool_results] == ["[]"]
