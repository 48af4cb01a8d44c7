"""What a judge is asked whose model cannot read so much."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rag_eval_otel import Sample, evaluate
from rag_eval_otel.errors import JudgeTooLongError
from rag_eval_otel.judge.shortening import with_fewer_contexts
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.judge.wire import compose
from rag_eval_otel.types import Replies

LONG = [
    f"{'Paris is the capital of France. ' * 300}{number}" for number in range(6)
]  # equal first halves


class ShortSighted:
    """Refuses each request as too long, and notes its size."""

    model = "m"

    def __init__(self) -> None:
        """Start with no request."""
        self.asked: list[Sequence[Task[Any]]] = []

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Refuse them."""
        self.asked.append(tasks)
        msg = "too long"
        raise JudgeTooLongError(msg)


def asked_about(contexts: list[str], metrics: list[str]) -> list[Sequence[Task[Any]]]:
    """Return the requests to a judge that refuses each one."""
    judge = ShortSighted()
    sample = Sample(question="Q?", contexts=contexts, answer="Paris.", reference="Paris.")
    scores = asyncio.run(evaluate(sample, metrics, judge=judge)).scores
    assert {score.reason for score in scores} == {"too_long"}
    return judge.asked


@pytest.mark.parametrize(
    "metrics",
    [
        ["faithfulness"],
        ["context_precision"],
        ["faithfulness", "context_precision"],
        ["default", "context_utilization", "context_precision"],
    ],
)
def test_the_second_request_is_shorter(metrics: list[str]) -> None:
    """Lists of contexts and questions about single contexts lose the same texts."""
    requests = asked_about(LONG, metrics)
    whole = [
        tasks for tasks in requests if "is left out" not in str(tasks) and LONG[0] in str(tasks)
    ]
    assert whole
    for tasks in whole:
        fewer = with_fewer_contexts(tasks)
        assert fewer in requests
        assert len(compose(fewer).user) < 0.6 * len(compose(tasks).user)
        assert len(set(fewer)) == len(set(tasks))
        singles = [task.text("context") for task in fewer if "context" in dict(task.inputs)]
        assert not any(text.startswith("(context") for text in singles)


@pytest.mark.parametrize("contexts", [["Paris."], ["Paris."] * 6, [], ["A.", "B.", "C."]])
def test_short_contexts_are_not_replaced_by_longer_notes(contexts: list[str]) -> None:
    """The judge is not asked again if nothing would be shorter."""
    requests = asked_about(contexts, ["faithfulness" if contexts else "answer_correctness"])
    assert all(with_fewer_contexts(tasks) == list(tasks) for tasks in requests)
    assert "is left out" not in str(requests)
