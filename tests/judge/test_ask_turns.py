"""What comes up as two replies arrive shares one request, whichever is first and by how much."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rag_eval_otel.evaluation import evaluate
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.testing.fakes import FakeEmbedder, FakeJudge
from rag_eval_otel.types import Replies, Sample

REPLIES: dict[str, object] = {
    "reverse_question": {"question": "Why?", "noncommittal": 0},
    "similarities": {"similarities": [{"index": i, "similarity": 1} for i in (1, 2, 3)]},
    "direct_relevancy": {"rating": 1},
    "sub_questions": {"sub_questions": ["Why?"]},
    "addressed": {"verdicts": [{"index": 1, "verdict": 1}]},
    "intent": {"intent": "To know why."},
    "intent_fulfilment": {"rating": 1},
}


class LateJudge(FakeJudge):
    """Answers a request with a certain prompt some turns of the loop later than others."""

    def __init__(self, prompt: str, turns: int) -> None:
        """Answer what has ``prompt`` in it ``turns`` turns later."""
        super().__init__(lambda task: REPLIES[task.prompt])
        self._prompt = prompt
        self._turns = turns

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Let the turns pass, then answer."""
        late = any(task.prompt == self._prompt for task in tasks)
        for _ in range(self._turns if late else 0):
            await asyncio.sleep(0)
        return await super().reply(tasks)


@pytest.mark.parametrize("turns", range(30))
@pytest.mark.parametrize("prompt", ["reverse_question", "intent"])
def test_follow_ups_of_two_replies_share_a_request(prompt: str, turns: int) -> None:
    """The follow-ups of the first reply wait for those of the second, by then on their way."""
    judge = LateJudge(prompt, turns)
    sample = Sample(question="Why?", answer="Because.")
    asyncio.run(
        evaluate(sample, ["multi_method_relevancy"], judge=judge, embedder=FakeEmbedder({}))
    )
    assert len(judge.requests) == 3
