"""A plain function of a prompt is a judge: synchronous or not, and whatever it does wrong."""

import asyncio
import threading
from typing import Any

import pytest

from rag_eval_otel import FunctionJudge, evaluate
from scoring import FULL

REPLY = '{"context_relevance_1": 2, "rating": 2}'


def sync(prompt: str) -> str:
    assert "context_relevance" in prompt
    assert FULL.question in prompt
    assert threading.current_thread() is not threading.main_thread()
    return REPLY


async def slow(prompt: str) -> str:
    await asyncio.sleep(0)
    assert "JSON" in prompt
    return REPLY


class Client:
    """An object with an asynchronous call."""

    async def __call__(self, prompt: str) -> str:
        return await slow(prompt)


@pytest.mark.parametrize("function", [sync, slow, Client()])
def test_a_function_is_a_judge(function: Any) -> None:
    """Its text is read as a model's; its name is in the version."""
    result = evaluate(FULL, ["context_relevance"], judge=function)
    assert result.scores[0].value == 1
    name = getattr(function, "__name__", "Client")
    assert result.judge == name
    assert result.scores[0].version.endswith(f"/{name}")
    assert repr(FunctionJudge(function, model="m")) == "FunctionJudge('m')"
    named = evaluate(FULL, ["context_relevance"], judge=FunctionJudge(function, model="m"))
    assert named.judge == "m"


def nothing(prompt: str) -> Any:
    return None


def broken(prompt: str) -> str:
    raise KeyError(prompt)


@pytest.mark.parametrize(
    ("function", "status", "reason"),
    [
        (nothing, "undefined", "unparsable"),
        (broken, "error", "internal"),
        (str.upper, "undefined", "unparsable"),
    ],
)
def test_a_function_that_fails_gives_no_number(function: Any, status: str, reason: str) -> None:
    """An exception, nothing and nonsense are a failed score with its reason, and no cause."""
    result = evaluate(FULL, judge=function)
    found = {(s.status, s.reason) for s in result.scores if s.name == "context_relevance"}
    assert found == {(status, reason)}
    assert (result.outcome, result.cause) == (None, None)
