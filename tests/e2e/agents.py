"""Shared parts of the agent tests: pages to search, and a scripted model.

The model calls the search tool, then answers from its result. It supports chat completions,
streamed or not, and the responses API.
"""

import asyncio
import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from apps import company
from e2e.checks import QUESTIONS, TRUTHS
from e2e.watched import Watched
from openai_server import HttpReply, LoopbackServer, chat_reply

SEARCH, FINAL = "search_docs", "final_answer"
MODEL = "gpt-4o-mini"
ASKED = QUESTIONS[:2]


def pages(question: str) -> list[str]:
    return list(TRUTHS[question].contexts)


def joined(question: str) -> str:
    return "\n\n".join(pages(question))


def records(question: str) -> list[dict[str, Any]]:
    return [{"text": text, "score": 0.5, "source": "handbook.md"} for text in pages(question)]


def in_json(question: str) -> str:
    return json.dumps(records(question))


RETURNS = (pages, joined, records, in_json)
"""What tools return; a framework may not take all of it."""


def tool(found: Callable[[str], object]) -> Callable[[str], Any]:
    """Return a search tool, which returns what ``found`` makes of its query."""

    def search_docs(query: str) -> Any:
        """Search the handbook."""
        return found(query)

    return search_docs


EACH_RETURN = pytest.mark.parametrize("found", RETURNS, ids=lambda found: found.__name__)


@EACH_RETURN
def test_a_turn_is_scored(
    watch: Watched, url: str, found: Callable[[str], object], request: pytest.FixtureRequest
) -> None:
    """For each form of tool result, the turn of the agent of the module's `program` is scored."""
    assert_each_scored(watch, request.module.program(url, found))


def assert_each_scored(
    watch: Watched, ask: Callable[[str], Any], *, before: str = "", end: str = ""
) -> None:
    """Assert that two turns are scored, with ``before`` their questions, ``end`` their answers."""

    async def both() -> list[object]:
        return [await ask(question) for question in ASKED]

    def use() -> None:
        is_async = inspect.iscoroutinefunction(ask)
        answers = asyncio.run(both()) if is_async else [ask(question) for question in ASKED]
        for question, answer in zip(ASKED, answers, strict=True):
            assert TRUTHS[question].answer in str(answer)

    run = watch.run(use)
    truths = [TRUTHS[question] for question in ASKED]
    assert run.truths == Counter(
        replace(truth, question=before + truth.question, answer=truth.answer + end)
        for truth in truths
    )
    assert run.outcomes == {("scored", None): len(truths)}


def assert_nothing_scored(watch: Watched, ask: Callable[[str], Any]) -> None:
    run = watch.run(lambda: asyncio.run(ask(ASKED[0])))
    assert not run.truths
    assert {outcome for outcome, _ in run.outcomes} <= {"skipped"}


@contextmanager
def model(reply: Callable[[Mapping[str, Any]], Any] | None = None) -> Iterator[str]:
    """Serve a model that calls tools, and yield its base URL; ``reply`` replaces its script."""
    with LoopbackServer(lambda at, _, raw: _answer(at, json.loads(raw), reply or said)) as server:
        yield f"{server.url}/v1"


def said(body: Mapping[str, Any]) -> Any:
    """Return the model's reply: a tool call as name and arguments, or a text."""
    asked, found = _asked_and_found(body)
    tools = {tool.get("function", tool)["name"] for tool in body.get("tools") or ()}
    if not found and tools:
        return next(name for name in tools if SEARCH in name), {"query": asked}
    answer = company.answer(asked, "\n".join(found))
    return (FINAL, {"answer": answer}) if FINAL in tools else answer


def question_in(text: str) -> str:
    """Return the question in ``text``, without the text that the framework adds."""
    return next(question for question in TRUTHS if question in text)


def _asked_and_found(body: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the question, and the tool results after it or the text around it."""
    messages = body.get("messages") or body["input"]
    messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    asked = [n for n, one in enumerate(messages) if _is_question(one)][-1]
    found = [_text(one) for one in messages[asked + 1 :] if _is_result(one)]
    text = _text(messages[asked])
    return question_in(text), found if body.get("tools") else [text, *found]


def _is_question(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "user" and any(q in _text(message) for q in TRUTHS)


def _is_result(message: Mapping[str, Any]) -> bool:
    text = _text(message)
    is_result = message.get("role") == "tool" or message.get("type") == "function_call_output"
    return is_result or text.startswith("Observation:")


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content", message.get("output")) or ""
    if isinstance(content, str):
        return content.replace("\\n", "\n")  # the content may be JSON
    return "".join(str(part.get("text") or "") for part in content)


def _answer(path: str, body: Mapping[str, Any], reply: Callable[[Mapping[str, Any]], Any]) -> Any:
    what = reply(body)
    if path.endswith("/responses"):
        return HttpReply(body=_response(body, what))
    return chat_reply(body, what) if isinstance(what, str) else chat_reply(body, "", [what])


def _response(body: Mapping[str, Any], what: Any) -> dict[str, Any]:
    item: dict[str, Any] = {"id": "item_1", "status": "completed"}
    if isinstance(what, str):
        part = {"type": "output_text", "text": what, "annotations": [], "logprobs": []}
        item |= {"type": "message", "role": "assistant", "content": [part]}
    else:
        name, arguments = json.loads(json.dumps(what))
        called = {"call_id": "call_1", "name": name, "arguments": json.dumps(arguments)}
        item |= {"type": "function_call", **called}
    details = {"input_tokens_details": {"cached_tokens": 0}}
    details |= {"output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": body["model"],
        "output": [item],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": {"input_tokens": 5, "output_tokens": 5, "total_tokens": 10, **details},
    }
