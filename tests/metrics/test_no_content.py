"""Answers without content: which score they get, and that no judge sees them."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.evaluation import aevaluate
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.metrics import METRICS
from rag_eval_otel.types import Evaluation, Replies, Sample

KEYS = (":", "...", "Thought process:", "Let's solve this step by step.", "Solution:")
CONTROLS = ("Paris", "42", "Yes")


class Watched:
    """The offline judge, which notes the tasks that it is given."""

    model = "lexical"

    def __init__(self) -> None:
        self.asked: list[Task[Any]] = []
        self._judge = LexicalJudge()

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        self.asked.extend(tasks)
        return await self._judge.reply(tasks)


def scored(answer: str, metrics: Sequence[str] = tuple(METRICS)) -> tuple[Evaluation, Watched]:
    """Score ``answer`` with all metrics, with nothing else missing."""
    sample = Sample(
        question="What is the capital of France?",
        contexts=["The capital of France is Paris."],
        answer=answer,
        reference="Paris is the capital of France.",
        rubric={0: "wrong", 1: "right"},
        retrieved_ids=["a"],
        relevant_ids=["a"],
    )
    judge = Watched()
    return asyncio.run(aevaluate(sample, metrics, judge=judge, embedder=HashingEmbedder())), judge


@pytest.mark.parametrize("answer", KEYS)
def test_no_judge_sees_an_answer_without_content(answer: str) -> None:
    """Each metric that asks a judge about the answer gives its score for a missing answer."""
    evaluation, judge = scored(answer)
    shown = [text for task in judge.asked for name, text in task.inputs if name != "reference"]
    assert all(
        answer != text and answer not in (text if isinstance(text, tuple) else ()) for text in shown
    )
    of_empty, _ = scored("")
    for score, empty in zip(evaluation.scores, of_empty.scores, strict=True):
        if METRICS[score.name]().asks:
            assert (score.value, score.status) == (empty.value, empty.status)
    assert evaluation["answer_relevancy"].reason == "noncommittal"
    assert evaluation["answer_relevancy"].value == 0
    assert evaluation["faithfulness"].reason == "no_claims"


@pytest.mark.parametrize("answer", CONTROLS)
def test_short_answers_reach_the_judge(answer: str) -> None:
    """A name, a number and a yes are judged."""
    _, judge = scored(answer, ["answer_relevancy", "faithfulness"])
    assert any(answer in (text, *text) for task in judge.asked for _, text in task.inputs)
