"""What a turn costs in tokens, counted by a server that answers at usual length."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from openai_server import ScriptedOpenAI, estimate_tokens
from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.evaluation import aevaluate
from rag_eval_otel.judge.openai import OpenAIJudge
from rag_eval_otel.types import Evaluation, Sample
from support import benchmark

TRIAD = ("answer_relevancy", "context_relevance", "faithfulness")


def scored(metrics: Sequence[str], *, explanations: bool = False) -> Evaluation:
    turns: Any = benchmark("_turns")
    sample = Sample(**turns.turns()[7])
    assert len(sample.question.split()) >= 15
    assert all(len(text.split()) >= 120 for text in sample.context_texts)
    assert len(sample.answer.split()) >= 60
    with ScriptedOpenAI(turns.reply, tokens=estimate_tokens) as server:
        judge = OpenAIJudge("m", base_url=server.base_url, api_key="sk-x")
        return asyncio.run(
            aevaluate(
                sample, metrics, judge=judge, embedder=HashingEmbedder(), explanations=explanations
            )
        )


@pytest.mark.parametrize(("metrics", "most"), [(TRIAD, 95), (("default",), 150)])
def test_a_turn_takes_few_reply_tokens(metrics: Sequence[str], most: int) -> None:
    """Two requests: one for three questions, one for digits."""
    evaluation = scored(metrics)
    assert [score.status for score in evaluation.scores] == ["ok"] * len(evaluation.scores)
    assert evaluation.usage.judge_requests == 2
    assert evaluation.usage.completion_tokens <= most


def test_the_triad_takes_few_prompt_tokens() -> None:
    """All texts are shown once, but for the answer, and the instructions are short."""
    assert scored(TRIAD).usage.prompt_tokens <= 1690


def test_reasons_are_what_costs() -> None:
    """With explanations on, the judge writes more, and they are there."""
    plain, explained = scored(("default",)), scored(("default",), explanations=True)
    assert explained.usage.completion_tokens > 1.2 * plain.usage.completion_tokens
    assert "another year" in (explained["faithfulness"].explanation or "")
    assert "another year" not in str([score.explanation for score in plain.scores])
    versions = [score.version for score in (*plain.scores, *explained.scores)]
    assert len(set(versions)) == len(versions)
