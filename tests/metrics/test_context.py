"""The dual-judge metrics: context relevance and response groundedness."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.errors import JudgeTransportError
from rag_eval_otel.evaluation import evaluate
from rag_eval_otel.metrics import ContextRelevance, ResponseGroundedness
from rag_eval_otel.metrics.outcome import Metric
from rag_eval_otel.testing.fakes import FakeJudge
from rag_eval_otel.types import Evaluation, Fusion, Sample, Score

DUAL = [partial(ContextRelevance, judges=2), partial(ResponseGroundedness, judges=2)]
TEXTS = {"question": "Why?", "contexts": ["One.", "Two."], "answer": "Because."}
DOWN = JudgeTransportError("down")
both = pytest.mark.parametrize("metric", DUAL, ids=["relevance", "groundedness"])
RELEVANCE, GROUNDEDNESS = DUAL


def evaluated(
    metric: Metric, judge: FakeJudge, *, fusion: Fusion = "on", **texts: Any
) -> Evaluation:
    """Score a sample of the usual texts, except for those given."""
    return asyncio.run(
        evaluate(
            Sample(**{**TEXTS, **texts}),
            [metric],
            judge=judge,
            embedder=HashingEmbedder(),
            fusion=fusion,
        )
    )


def rated(*ratings: object) -> FakeJudge:
    """Return a judge whose voices rate so."""
    return FakeJudge(
        lambda task: {"rating": r} if isinstance(r := ratings[task.kind.voice - 1], int) else r
    )


@both
@pytest.mark.parametrize(
    ("ratings", "value", "disagreement"),
    [((2, 2), 1.0, 0.0), ((2, 1), 0.75, 0.5), ((0, 2), 0.5, 1.0), ((0, 0), 0.0, 0.0)],
)
def test_the_mean_of_two_judges(
    metric: Callable[[], Metric], ratings: tuple[int, int], value: float, disagreement: float
) -> None:
    """The score is the mean rating over 2; how far the judges differ is told on the same scale."""
    score = evaluated(metric(), rated(*ratings)).scores[0]
    assert (score.value, score.reason) == (value, None)
    assert score.detail == {
        "ratings": list(ratings),
        "rated": "integer",
        "judges_used": 2,
        "disagreement": disagreement,
    }


@both
@pytest.mark.parametrize("bad", [None, DOWN, 3, -1, True, {"rating": "2"}])
@pytest.mark.parametrize("first", [True, False], ids=["first", "second"])
def test_one_judge_is_enough(metric: Callable[[], Metric], bad: object, *, first: bool) -> None:
    """Whichever judge is without a valid rating, the other's counts, with a remark."""
    ratings = (bad, 2) if first else (2, bad)
    score = evaluated(metric(), rated(*ratings)).scores[0]
    assert (score.value, score.reason, score.detail["judges_used"]) == (1.0, "partial", 1)


@both
@pytest.mark.parametrize(
    ("bad", "status", "reason"),
    [((None, None), "undefined", "unparsable"), ((DOWN, None), "error", "transport")],
)
def test_no_judge_is_no_number(
    metric: Callable[[], Metric], bad: tuple[object, object], status: str, reason: str
) -> None:
    """Without a valid rating the reason is the first judge's."""
    score = evaluated(metric(), rated(*bad)).scores[0]
    assert (score.value, score.status, score.reason) == (None, status, reason)


@pytest.mark.parametrize(
    ("metric", "texts", "reason"),
    [
        (RELEVANCE, {"question": ""}, "missing_question"),
        (RELEVANCE, {"question": " ", "contexts": []}, "missing_question"),
        (RELEVANCE, {"contexts": []}, "no_context"),
        (RELEVANCE, {"contexts": ["", " \n"]}, "no_context"),
        (GROUNDEDNESS, {"answer": ""}, "empty_answer"),
        (GROUNDEDNESS, {"answer": "\n", "contexts": []}, "empty_answer"),
        (GROUNDEDNESS, {"contexts": []}, "no_context"),
        (GROUNDEDNESS, {"contexts": ["", " \n"]}, "no_context"),
    ],
)
def test_blank_is_zero_without_a_request(
    metric: Callable[[], Metric], texts: dict[str, Any], reason: str
) -> None:
    """Nothing retrieved, asked or answered is 0, and says why."""
    judge = rated(2, 2)
    score = evaluated(metric(), judge, **texts).scores[0]
    assert (score.value, score.reason, score.label) == (0.0, reason, "fail")
    assert judge.requests == []


@pytest.mark.parametrize(
    ("metric", "texts"),
    [
        (RELEVANCE, {"question": "One. Two?", "contexts": ["One."]}),
        (RELEVANCE, {"question": "One.", "contexts": ["One."]}),
        (RELEVANCE, {"answer": ""}),
        (GROUNDEDNESS, {"answer": "One.", "contexts": ["One."]}),
        (GROUNDEDNESS, {"answer": "e", "contexts": ["One."]}),
        (GROUNDEDNESS, {"question": ""}),
    ],
)
def test_everything_else_is_judged(metric: Callable[[], Metric], texts: dict[str, Any]) -> None:
    """That one text is a piece of the other says nothing; what isn't needed may be missing."""
    judge = rated(1, 1)
    assert evaluated(metric(), judge, **texts).scores[0].value == 0.5
    assert len(judge.requests) == 2


def test_what_is_shown() -> None:
    """Context relevance is judged without the answer, groundedness without the question."""
    judge = rated(1, 1)
    evaluated(ContextRelevance(judges=2), judge, contexts=["One.", " ", "Two."])
    evaluated(ResponseGroundedness(judges=2), judge)
    shown = [dict(task.inputs) for request in judge.requests for task in request]
    contexts = ("One.", "Two.")
    assert shown == [
        *[{"question": "Why?", "contexts": contexts}] * 2,
        *[{"answer": "Because.", "contexts": contexts}] * 2,
    ]


@both
def test_one_judge_may_be_asked_for(metric: Any) -> None:
    """With judges=1 there is one request, and nothing partial about it."""
    judge = rated(1)
    score = evaluated(metric(judges=1), judge).scores[0]
    assert (score.value, score.reason, len(judge.requests)) == (0.5, None, 1)


@both
def test_reasons_become_the_explanation(metric: Callable[[], Metric]) -> None:
    """What the judges said is told, where they said something."""
    judge = FakeJudge(lambda task: {"rating": 1, "reason": "Half." if task.kind.voice == 1 else ""})
    assert evaluated(metric(), judge).scores[0].explanation == "Half."
    assert evaluated(metric(), rated(1, 1)).scores[0].explanation is None


RATING = st.sampled_from([0, 1, 2, 3, None])


def outcome(score: Score) -> tuple[object, ...]:
    """Return what can be compared of a score, apart from its version."""
    return (score.value, score.status, score.reason)


@given(st.sampled_from(DUAL), st.tuples(RATING, RATING))
def test_properties(metric: Any, ratings: tuple[object, object]) -> None:
    """A number is one of five; the judges may be swapped; fusion does not change the arithmetic."""
    score = evaluated(metric(), rated(*ratings)).scores[0]
    assert score.value in {None, 0.0, 0.25, 0.5, 0.75, 1.0}
    swapped = evaluated(metric(), rated(*reversed(ratings))).scores[0]
    apart = evaluated(metric(), rated(*ratings), fusion="off").scores[0]
    assert outcome(swapped) == outcome(apart) == outcome(score)


@given(st.permutations(["One.", "Two.", "Three."]), st.sampled_from(DUAL))
def test_the_order_of_contexts_is_the_judges_affair(contexts: list[str], metric: Any) -> None:
    """The arithmetic does not look at the order in which contexts were retrieved."""
    assert evaluated(metric(), rated(2, 1), contexts=contexts).scores[0].value == 0.75
