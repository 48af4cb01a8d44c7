"""Answer relevancy: does the answer address the question?"""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.errors import JudgeTransportError
from rag_eval_otel.evaluation import aevaluate
from rag_eval_otel.metrics import AnswerRelevancy
from rag_eval_otel.testing.fakes import FakeEmbedder, FakeJudge
from rag_eval_otel.types import Evaluation, Sample, Score

Q = "q"
VECTORS = {
    Q: [1.0, 0.0],
    "same": [2.0, 0.0],
    "half": [0.5, 0.75**0.5],
    "orthogonal": [0.0, 1.0],
    "opposite": [-1.0, 0.0],
    "zero": [0.0, 0.0],
    "": [3.0, 4.0],
    " ": [3.0, 4.0],
}


def draw(question: str, noncommittal: int = 0) -> dict[str, object]:
    """Return one drawing of a reverse question."""
    return {"question": question, "noncommittal": noncommittal}


def evaluated(
    *draws: object,
    question: str = Q,
    answer: str = "a",
    share_requests: bool = True,
    **parameters: Any,
) -> Evaluation:
    """Score an answer from which these questions are drawn."""
    return asyncio.run(
        aevaluate(
            Sample(question=question, answer=answer),
            [AnswerRelevancy(strictness=max(len(draws), 1), **parameters)],
            judge=FakeJudge(lambda task: draws[task.draw]),
            embedder=FakeEmbedder(VECTORS),
            share_requests=share_requests,
        )
    )


def scored(*draws: object, **options: Any) -> Score:
    """Return the score of an answer from which these questions are drawn."""
    return evaluated(*draws, **options).scores[0]


def test_the_mean_of_the_cosines() -> None:
    """The score is the mean cosine of the drawn questions with the real one."""
    score = scored(draw("same"), draw("half"), draw("orthogonal"))
    assert score.value == pytest.approx(0.5)
    assert (score.reason, score.label) == (None, "pass")
    assert score.explanation == "The answer reads as a reply to: same / half / orthogonal"
    assert score.detail["similarities"] == pytest.approx([1.0, 0.5, 0.0])


def test_it_is_not_clipped() -> None:
    """A question of the opposite direction counts as it is."""
    assert scored(draw("opposite"), draw("orthogonal")).value == pytest.approx(-0.5)


@pytest.mark.parametrize(
    ("draws", "value", "reason"),
    [
        ([draw("same"), draw("half", 1)], 0.75, None),
        ([draw("same", 1), draw("half", 1)], 0.0, "noncommittal"),
        ([draw("opposite", 1), draw("opposite", 1)], 0.0, "noncommittal"),
        ([draw("zero", 1), draw("", 1)], 0.0, "noncommittal"),
        ([draw("same", 1), draw("", 0)], 1.0, "partial"),
        ([draw("same"), draw(" "), draw("half")], 0.75, "partial"),
        ([draw("same"), draw("zero")], 1.0, "partial"),
        ([draw("same"), None], 1.0, "partial"),
        ([draw("same"), draw("half", 2)], 1.0, "partial"),
        ([None, JudgeTransportError("down"), draw("half")], 0.5, "partial"),
    ],
)
def test_a_value_with_a_remark(draws: list[object], value: float, reason: str | None) -> None:
    """All evasive is 0; what can't be used of the drawings is left out, but its flag counts."""
    score = scored(*draws)
    assert (score.value, score.reason) == (pytest.approx(value), reason)


@pytest.mark.parametrize(
    ("draws", "status", "reason"),
    [
        ([draw(""), draw(" \n")], "undefined", "no_questions"),
        ([draw("zero"), draw("zero")], "undefined", "zero_vector"),
        ([None, None], "undefined", "unparsable"),
        ([JudgeTransportError("down")] * 2, "error", "transport"),
    ],
)
def test_no_value(draws: list[object], status: str, reason: str) -> None:
    """Where nothing can be compared there is no number."""
    score = scored(*draws)
    assert (score.value, score.status, score.reason) == (None, status, reason)


def test_strictness_is_at_least_one() -> None:
    """No drawing at all cannot be asked for."""
    with pytest.raises(ValueError, match="strictness must be at least 1, not 0"):
        AnswerRelevancy(strictness=0)


@pytest.mark.parametrize(("share_requests", "requests"), [(True, 1), (False, 4)])
def test_what_it_costs(requests: int, *, share_requests: bool) -> None:
    """One request for all drawings when fused, one each when not; one for the embeddings."""
    usage = evaluated(*[draw("same")] * 4, share_requests=share_requests).usage
    assert (usage.judge_requests, usage.embedding_requests) == (requests, 1)


DRAWS = st.lists(
    st.builds(draw, st.sampled_from(sorted(VECTORS)), st.sampled_from([0, 1, 2])) | st.none(),
    min_size=1,
    max_size=5,
)


@given(DRAWS, st.data())
def test_properties(draws: list[object], data: st.DataObject) -> None:
    """A number is within [-1, 1]; order and fusion do not change it."""
    score = scored(*draws)
    assert score.value is None or -1 <= score.value <= 1
    shuffled = scored(*data.draw(st.permutations(draws)))
    for other in (scored(*draws, share_requests=False), shuffled):
        assert (other.status, other.reason) == (score.status, score.reason)
        assert other.value == pytest.approx(score.value, abs=1e-12)
