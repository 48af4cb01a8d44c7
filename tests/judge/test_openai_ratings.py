"""Ratings weighed by the judge's probabilities, over HTTP."""

import asyncio
import json
import math
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_server import HttpReply, ScriptedOpenAI
from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.evaluation import aevaluate
from rag_eval_otel.judge.openai import OpenAIJudge, with_expectations
from rag_eval_otel.judge.tasks import CONTEXT_RELEVANCE, Rating
from rag_eval_otel.metrics import Correctness, Rubric, metric
from rag_eval_otel.metrics.base import Metric
from rag_eval_otel.types import Sample, Score
from support import names_asked

SAMPLE = Sample(
    question="Who wrote it?", contexts=["Lee wrote it."], answer="Lee.", reference="Lee wrote it."
)
Probabilities = Mapping[str, float]


def completion(text: str, at_rating: Probabilities) -> dict[str, Any]:
    alternatives = [
        {"token": token, "logprob": math.log(p)} for token, p in at_rating.items() if p > 0
    ]
    content = [
        {
            "token": token,
            "logprob": -0.1,
            "top_logprobs": alternatives if token.strip().isdigit() else [],
        }
        for token in re.findall(r" ?[A-Za-z_]+| ?\d|\s+|[^\w\s]", text)
    ]
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "judge-1",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": text},
                "logprobs": {"content": content, "refusal": None},
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def answering(rating: int, at_rating: Probabilities, *, reason: str | None = None) -> Any:
    def answer(body: Mapping[str, Any]) -> HttpReply:
        schema = body["response_format"]["json_schema"]["schema"]
        talkative = {name: {"rating": rating, "reason": reason} for name in names_asked(body)}
        reply = in_form(schema, rating) if reason is None else talkative
        return HttpReply(body=completion(json.dumps(reply), at_rating))

    return answer


def in_form(schema: Mapping[str, Any], rating: int) -> object:
    if "properties" in schema:
        return {name: in_form(member, rating) for name, member in schema["properties"].items()}
    return "so" if schema["type"] == "string" else rating


def measured(
    metric: Metric, answer: Any, *, explanations: bool = False
) -> tuple[Score, list[Mapping[str, Any]]]:
    with ScriptedOpenAI(answer) as server:
        judge = OpenAIJudge("judge-1", base_url=server.base_url, api_key="none", retries=0)
        evaluation = asyncio.run(
            aevaluate(
                SAMPLE, [metric], judge=judge, embedder=HashingEmbedder(), explanations=explanations
            )
        )
        return evaluation.scores[0], [request.body for request in server.requests]


@pytest.mark.parametrize("explanations", [False, True])
@pytest.mark.parametrize(
    ("metric", "rating", "at_rating", "value"),
    [
        (
            metric("context_relevance", rating="logprobs"),
            2,
            {"2": 0.5, "1": 0.25, "0": 0.25},
            0.625,
        ),
        (
            metric("response_groundedness", rating="logprobs"),
            1,
            {"1": 0.6, " 1": 0.2, "2": 0.2},
            0.6,
        ),
        (
            metric("answer_accuracy", rating="logprobs"),
            4,
            {"4": 0.5, "2": 0.25, "3": 0.25},
            10 / 12,
        ),
        (Correctness(rating="logprobs"), 4, {"4": 0.75, "5": 0.25, "9": 0.0}, 4.25),
        (Rubric(rating="logprobs"), 5, {"5": 0.5, "4": 0.25, '"': 0.25}, 14 / 3),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_mean_under_the_judges_probabilities(
    metric: Metric, rating: int, at_rating: Probabilities, value: float, *, explanations: bool
) -> None:
    """What the judge might have said counts by its probability; what is off the scale does not."""
    score, requests = measured(metric, answering(rating, at_rating), explanations=explanations)
    assert score.value == pytest.approx(value, abs=1e-12)
    assert (score.reason, score.detail["rated"]) == (None, "logprobs")
    assert all((r["logprobs"], r["top_logprobs"]) == (True, 20) for r in requests)


def test_integers_ask_for_no_probabilities() -> None:
    """By default the number replied counts, and the request is no larger than it was."""
    score, requests = measured(
        metric("context_relevance", judges=2), answering(2, {"2": 0.5, "0": 0.5})
    )
    assert (score.value, score.detail["rated"]) == (1.0, "integer")
    assert not any("logprobs" in request for request in requests)


def plain(body: Mapping[str, Any]) -> dict[str, object]:
    return {name: {"rating": 1} for name in names_asked(body)}


def test_a_server_without_probabilities() -> None:
    """The number counts, and the score says that it does."""
    score, _ = measured(metric("context_relevance", rating="logprobs"), plain)
    assert (score.value, score.reason, score.detail["rated"]) == (0.5, "no_logprobs", "integer")


@pytest.mark.parametrize("most", [5, 0])
def test_a_server_that_refuses_so_many(most: int) -> None:
    """It is asked for fewer, then for none; what it refused is not tried again."""

    def answer(body: Mapping[str, Any]) -> object:
        if body.get("top_logprobs", 0) > most:
            error = {"message": f"top_logprobs must be at most {most}", "type": "invalid_request"}
            return HttpReply(status=400, body={"error": error})
        return answering(2, {"2": 0.5, "1": 0.5})(body) if most else plain(body)

    score, _ = measured(metric("context_relevance", rating="logprobs", judges=1), answer)
    assert (score.value, score.detail["rated"]) == (
        (0.75, "logprobs") if most else (0.5, "integer")
    )


@pytest.mark.parametrize(
    "reason",
    ['it says "rating": 0 there', "braces } and { and 2 digits", "émigré — 日本 \U0001f600 1"],
)
def test_the_rating_is_found_beside_any_reason(reason: str) -> None:
    """Digits and quotes in the reason are not taken for the rating."""
    score, _ = measured(
        metric("context_relevance", rating="logprobs"),
        answering(2, {"2": 0.75, "1": 0.25}, reason=reason),
    )
    assert (score.value, score.detail["rated"]) == (0.875, "logprobs")


BROKEN = (
    None,
    "none",
    {},
    {"content": None},
    {"content": [{}]},
    {"content": [{"token": 1}]},
    {"content": [{"token": "{"}]},
    {"content": [{"token": '{"context_relevance_1": {"rating": 2}}'}]},
    {"content": [{"token": t} for t in ['{"context_relevance_1": {"rating": ', "1", "}}"]]},
    {"content": [{"token": t} for t in ['{"context_relevance_1": {"rating": ', "2", "}}"]]},
    {
        "content": [
            {"token": t, "top_logprobs": [{"token": "2", "logprob": None}, {"token": None}]}
            for t in ['{"context_relevance_1": {"rating": ', "2", "}}"]
        ]
    },
)


@pytest.mark.parametrize("logprobs", BROKEN, ids=range(len(BROKEN)))
def test_broken_probabilities_are_none(logprobs: object) -> None:
    """Whatever a server sends in their place, the number replied counts."""

    def answer(body: Mapping[str, Any]) -> HttpReply:
        reply = completion(json.dumps({name: {"rating": 2} for name in names_asked(body)}), {})
        reply["choices"][0]["logprobs"] = logprobs
        return HttpReply(body=reply)

    score, _ = measured(metric("context_relevance", rating="logprobs", judges=1), answer)
    assert (score.value, score.reason) == (1.0, "no_logprobs")


@given(st.lists(st.floats(0.001, 1), min_size=3, max_size=3))
def test_the_mean_stays_on_the_scale(weights: list[float]) -> None:
    """Any probabilities give a rating between the lowest and the highest."""
    total = sum(weights)
    text = '{"context_relevance_1": {"rating": 2}}'
    choice = completion(text, {str(i): w / total for i, w in enumerate(weights)})["choices"][0]
    task = CONTEXT_RELEVANCE[0].task({"question": "Q", "contexts": ["C"]}, rated="logprobs")
    (part,) = with_expectations([Rating(rating=2)], [task], choice=choice)
    assert isinstance(part, Rating)
    assert part.expected == pytest.approx((weights[1] + 2 * weights[2]) / total)
