"""Relevancy of answers: reverse questions, sub-questions, intent, and their weighted sum."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.metrics import (
    AnswerRelevancy,
    DecompositionRelevancy,
    IntentRelevancy,
    MultiMethodRelevancy,
    ReverseRelevancy,
    metric,
)
from rag_eval_otel.testing.fakes import FakeEmbedder, FakeJudge
from rag_eval_otel.types import Score
from scoring import DOWN, FULL, Case, assert_case, case, indexed, score_of, script, shown, verdicts


def drawn(*questions: object) -> Callable[[Task[Any]], object]:
    def answer(task: Task[Any]) -> object:
        draw = questions[task.draw]
        question, flag = draw if isinstance(draw, tuple) else (draw, 0)
        is_reply = isinstance(question, str)
        return {"question": question, "noncommittal": flag} if is_reply else draw

    return answer


def similar(*values: float, first: int = 1) -> dict[str, object]:
    return {"similarities": indexed("similarity", *values, first=first)}


def parts(count: int) -> dict[str, object]:
    return {"sub_questions": [f"part {i}?" for i in range(count)]}


CASES = [
    *(
        case(
            metric("answer_relevancy_rubric"),
            value,
            {"answer_relevancy_rubric": {"subject": a, "focus": b}},
            focus=b,
        )
        for a, b, value in ((1, 1, 1), (1, 0, 0.5), (0, 0, 0))
    ),
    *(
        case(metric("direct_relevancy"), r, {"direct_relevancy": {"rating": r}}, requests=1)
        for r in (0, 0.37, 1)
    ),
    case(IntentRelevancy(), None, {"intent": {"intent": " "}}, reason="judge_incomplete"),
    case(
        ReverseRelevancy(),
        0.625,
        {"reverse_question": drawn("a?", " ", "b?"), "similarities": similar(1, 0.25)},
        reason="partial",
        questions=["a?", "b?"],
        similarities=[1, 0.25],
    ),
    case(
        ReverseRelevancy(),  # by number
        0.2,
        {"similarities": {"similarities": [*reversed(indexed("similarity", 0.1, 0.2, 0.3, 1))]}},
        similarities=[0.1, 0.2, 0.3],
    ),
    *(
        case(ReverseRelevancy(), None, replies, reason=reason)
        for replies, reason in (
            ({"reverse_question": drawn("", " ", "\n")}, "no_questions"),
            ({"similarities": similar(1, 1)}, "judge_incomplete"),
            ({"similarities": similar(1, 1, 1, first=2)}, "judge_incomplete"),
            ({"similarities": similar(1, 1, 1, first=0)}, "judge_incomplete"),
            ({"reverse_question": None}, "unparsable"),
        )
    ),
    case(
        DecompositionRelevancy(),
        0.5,
        {"sub_questions": {"sub_questions": ["a?", " ", "b?"]}, "addressed": verdicts(1, 0)},
        explanation="Not addressed: b?",
        sub_questions=["a?", "b?"],
        coverage="1/2",
    ),
    case(DecompositionRelevancy(), 1, {"sub_questions": parts(20)}, coverage="8/8"),
    *(
        case(DecompositionRelevancy(), None, replies, reason=reason)
        for replies, reason in (
            ({"sub_questions": parts(0)}, "no_questions"),
            ({"sub_questions": {"sub_questions": [" "]}}, "no_questions"),
            ({"addressed": verdicts(1)}, "judge_incomplete"),
            ({"addressed": None}, "unparsable"),
        )
    ),
]


@pytest.mark.parametrize("one", CASES)
def test_the_score_of_replies(one: Case) -> None:
    """Replies of a judge become value, reason, explanation and detail."""
    assert_case(one)


def test_intent_is_stated_before_it_is_rated() -> None:
    """The judge that states the intent does not see the answer."""
    judge = FakeJudge(script(intent={"intent": "to know"}, intent_fulfilment={"rating": 0.3}))
    assert score_of(IntentRelevancy(), judge).detail == {"intent": "to know"}
    assert shown(judge) == [
        {"question": FULL.question},
        {"intent": "to know", "answer": FULL.answer},
    ]


VECTORS = {
    FULL.question: [1.0, 0.0],
    "same": [2.0, 0.0],
    "half": [0.5, 0.75**0.5],
    "orthogonal": [0.0, 1.0],
    "opposite": [-1.0, 0.0],
    "zero": [0.0, 0.0],
    "": [3.0, 4.0],
    " ": [3.0, 4.0],
}


def relevant(*draws: object, **options: Any) -> Score:
    judge = FakeJudge(script(reverse_question=drawn(*draws)))
    one = AnswerRelevancy(strictness=len(draws))
    return score_of(one, judge, embedder=FakeEmbedder(VECTORS), **options)


@pytest.mark.parametrize(
    ("draws", "value", "reason"),
    [
        (["same", "half", "orthogonal"], 0.5, None),
        (["opposite", "orthogonal"], -0.5, None),
        (["same", ("half", 1)], 0.75, None),
        ([("same", 1), ("half", 1)], 0.0, "noncommittal"),
        ([("zero", 1), ("", 1)], 0.0, "noncommittal"),
        ([("same", 1), ("", 0)], 1.0, "partial"),
        (["same", " ", "half"], 0.75, "partial"),
        (["same", "zero"], 1.0, "partial"),
        (["same", None], 1.0, "partial"),
        (["same", ("half", 2)], 1.0, "partial"),
        ([None, DOWN, "half"], 0.5, "partial"),
        (["", " \n"], None, "no_questions"),
        (["zero", "zero"], None, "zero_vector"),
        ([None, None], None, "unparsable"),
        ([DOWN, DOWN], None, "transport"),
        ([None, DOWN], None, "unparsable"),
    ],
)
def test_answer_relevancy(draws: list[object], value: float | None, reason: str | None) -> None:
    """The mean cosine of the questions that are usable; 0 if all replies say evasive."""
    score = relevant(*draws)
    assert score.value == (None if value is None else pytest.approx(value))
    assert score.reason == reason
    if reason is None and value == 0.5:
        assert score.explanation == "The answer reads as a reply to: same / half / orthogonal"
        assert score.detail["similarities"] == pytest.approx([1.0, 0.5, 0.0])


QUARTERS = {
    "similarities": similar(1, 1, 1),
    "direct_relevancy": {"rating": 0.5},
    "sub_questions": parts(4),
    "addressed": verdicts(1, 0, 0, 0),
    "intent_fulfilment": {"rating": 0.75},
}
"""Reverse 1, direct .5, decomposition .25, intent .75."""


def combined(**replies: object) -> Score:
    return score_of(MultiMethodRelevancy(), FakeJudge(script(**{**QUARTERS, **replies})))


def test_the_weighted_sum() -> None:
    """Three tenths reverse, a quarter direct, a quarter decomposition, a fifth intent."""
    score = combined()
    assert score.value == pytest.approx(0.3 * 1 + 0.25 * 0.5 + 0.25 * 0.25 + 0.2 * 0.75)
    assert score.reason is None
    parts_ = {"reverse": 1.0, "direct": 0.5, "decomposition": 0.25, "intent": 0.75}
    assert score.detail == {"parts": parts_, "missing": {}, "coverage": "1/4"}


@pytest.mark.parametrize("failure", [None, DOWN, RuntimeError("a client of one's own")])
def test_a_missing_part_has_no_value(failure: object) -> None:
    """The weights of the other parts are normalised."""
    score = combined(direct_relevancy=failure)
    expected = (0.3 * 1 + 0.25 * 0.25 + 0.2 * 0.75) / 0.75
    assert (score.value, score.reason) == (pytest.approx(expected), "partial")
    assert set(score.detail["missing"]) == {"direct"}


def test_without_half_of_the_weight_there_is_no_value() -> None:
    """Reverse and direct have more than half of the weight."""
    score = combined(direct_relevancy=None, similarities=None)
    assert (score.value, score.reason) == (None, "judge_incomplete")
    assert score.detail["missing"] == {"reverse": "unparsable", "direct": "unparsable"}


def test_parts_without_weight_are_not_asked() -> None:
    """Their prompts are not sent."""
    judge = FakeJudge(script(**QUARTERS))
    score = score_of(MultiMethodRelevancy(weights={"direct": 1, "intent": 3, "reverse": 0}), judge)
    assert score.value == pytest.approx((0.5 + 3 * 0.75) / 4)
    prompts = {task.prompt for request in judge.requests for task in request}
    assert prompts == {"direct_relevancy", "intent", "intent_fulfilment"}


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        *(
            (MultiMethodRelevancy, {"weights": weights}, "weights must map some of reverse, direct")
            for weights in ({"direct": -1}, {"direct": math.nan}, {"direkt": 1})
        ),
        *(
            (MultiMethodRelevancy, {"weights": weights}, "at least one of the weights must be abov")
            for weights in ({}, {"direct": 0}, {"direct": 1e308, "intent": 1e308})
        ),
        (AnswerRelevancy, {"strictness": 0}, "strictness must be at least 1, not 0"),
        (ReverseRelevancy, {"strictness": 0}, "strictness must be at least 1, not 0"),
    ],
)
def test_options_that_cannot_be_used(make: Any, options: dict[str, Any], message: str) -> None:
    """Options that would give no number are refused at once."""
    with pytest.raises(ConfigError, match=message):
        make(**options)
