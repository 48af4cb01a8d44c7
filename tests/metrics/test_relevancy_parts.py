"""Relevancy by four methods, each alone and combined; and the rubric of two points."""

from typing import Any

import pytest

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics import (
    DecompositionRelevancy,
    IntentRelevancy,
    MultiMethodRelevancy,
    ReverseRelevancy,
    metric,
)
from rag_eval_otel.testing.fakes import FakeJudge
from scoring import DOWN, FULL, score_of, script


def drawn(*questions: str) -> Any:
    """Draw these reverse questions, one after the other."""
    return lambda task: {"question": questions[task.draw], "noncommittal": 0}


def similar(*values: float, first: int = 1) -> dict[str, object]:
    """Return these similarities, by index from ``first``."""
    return {
        "similarities": [{"index": i, "similarity": v} for i, v in enumerate(values, start=first)]
    }


def addressed(*flags: int) -> dict[str, object]:
    """Return whether each sub-question is addressed."""
    return {"verdicts": [{"index": i, "verdict": flag} for i, flag in enumerate(flags, start=1)]}


def parts(count: int) -> dict[str, object]:
    """Return a question in this many parts."""
    return {"sub_questions": [f"part {i}?" for i in range(count)]}


# --- two points -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("subject", "focus", "value"), [(1, 1, 1), (1, 0, 0.5), (0, 0, 0)])
def test_two_points(subject: int, focus: int, value: float) -> None:
    """One point for the subject and one for the side of it; the reason is the explanation."""
    reply = {"subject": subject, "focus": focus, "reason": "So."}
    score = score_of(
        metric("answer_relevancy_rubric"), FakeJudge(script(answer_relevancy_rubric=reply))
    )
    assert (score.value, score.explanation) == (value, "So.")
    assert score.detail == {"subject": subject, "focus": focus}


# --- reverse --------------------------------------------------------------------------------------


def test_the_mean_similarity_of_reverse_questions() -> None:
    """Blank questions are left out, and the judge is shown the others with the real one."""
    judge = FakeJudge(
        script(reverse_question=drawn("a?", " ", "b?"), similarities=similar(1, 0.25))
    )
    score = score_of(ReverseRelevancy(), judge)
    assert (score.value, score.reason) == (0.625, "partial")
    assert score.detail == {"questions": ["a?", "b?"], "similarities": [1, 0.25]}
    last = judge.requests[-1][0]
    assert dict(last.inputs) == {"question": FULL.question, "questions": ("a?", "b?")}


@pytest.mark.parametrize(
    ("replies", "reason"),
    [
        ({"reverse_question": drawn("", " ", "\n")}, "no_questions"),
        ({"similarities": similar(1, 1)}, "judge_incomplete"),
        ({"similarities": similar(1, 1, 1, first=2)}, "judge_incomplete"),
        ({"similarities": similar(1, 1, 1, first=0)}, "judge_incomplete"),
        ({"similarities": None}, "unparsable"),
        ({"reverse_question": None}, "unparsable"),
    ],
)
def test_no_reverse_relevancy(replies: dict[str, object], reason: str) -> None:
    """Without questions, or without a similarity for each, there is no number."""
    score = score_of(ReverseRelevancy(), FakeJudge(script(**replies)))
    assert (score.value, score.status, score.reason) == (None, "undefined", reason)


def test_similarities_belong_to_questions_by_index() -> None:
    """Order says nothing, and numbers of questions that do not exist neither."""
    found = [*reversed(similar(0.1, 0.2, 0.3)["similarities"])]  # type: ignore[call-overload]
    reply = {"similarities": [{"index": 9, "similarity": 1}, *found]}
    score = score_of(ReverseRelevancy(), FakeJudge(script(similarities=reply)))
    assert score.detail["similarities"] == [0.1, 0.2, 0.3]


# --- direct and intent ----------------------------------------------------------------------------


@pytest.mark.parametrize("rating", [0, 0.37, 1, 1.0])
def test_direct_relevancy_is_the_judges_number(rating: float) -> None:
    """The number counts as it is."""
    reply = {"rating": rating, "reason": "So."}
    score = score_of(metric("direct_relevancy"), FakeJudge(script(direct_relevancy=reply)))
    assert (score.value, score.explanation) == (rating, "So.")


def test_intent_is_stated_before_it_is_rated() -> None:
    """The intent is told from the question alone; then the answer is held against it."""
    judge = FakeJudge(script(intent={"intent": "to know"}, intent_fulfilment={"rating": 0.3}))
    score = score_of(IntentRelevancy(), judge)
    assert (score.value, score.detail) == (0.3, {"intent": "to know"})
    assert [dict(task.inputs) for request in judge.requests for task in request] == [
        {"question": FULL.question},
        {"intent": "to know", "answer": FULL.answer},
    ]


# --- decomposition --------------------------------------------------------------------------------


def test_the_share_of_parts_that_are_addressed() -> None:
    """Coverage is told as a fraction, and what was not addressed by name."""
    replies = {"sub_questions": {"sub_questions": ["a?", " ", "b?"]}, "addressed": addressed(1, 0)}
    score = score_of(DecompositionRelevancy(), FakeJudge(script(**replies)))
    assert (score.value, score.explanation) == (0.5, "Not addressed: b?")
    assert score.detail == {
        "sub_questions": ["a?", "b?"],
        "addressed": [1, 0],
        "coverage": "1/2",
    }


@pytest.mark.parametrize(
    ("replies", "reason"),
    [
        ({"sub_questions": parts(0)}, "no_questions"),
        ({"sub_questions": {"sub_questions": [" "]}}, "no_questions"),
        ({"addressed": addressed(1)}, "judge_incomplete"),
        ({"addressed": addressed()}, "judge_incomplete"),
        ({"addressed": None}, "unparsable"),
    ],
)
def test_no_decomposition(replies: dict[str, object], reason: str) -> None:
    """Without parts, or without a flag for each, there is no number."""
    score = score_of(DecompositionRelevancy(), FakeJudge(script(**replies)))
    assert (score.value, score.status, score.reason) == (None, "undefined", reason)


def test_a_question_has_at_most_eight_parts() -> None:
    """A judge that finds more does not make the metric unbounded."""
    score = score_of(DecompositionRelevancy(), FakeJudge(script(sub_questions=parts(20))))
    assert score.detail["coverage"] == "8/8"


# --- combined -------------------------------------------------------------------------------------

QUARTERS = {
    "similarities": similar(1, 1, 1),
    "direct_relevancy": {"rating": 0.5},
    "sub_questions": parts(4),
    "addressed": addressed(1, 0, 0, 0),
    "intent_fulfilment": {"rating": 0.75},
}
"""Reverse 1, direct .5, decomposition .25, intent .75."""


def combined(**replies: object) -> Any:
    """Combine the parts of `QUARTERS`, but for these replies."""
    return score_of(MultiMethodRelevancy(), FakeJudge(script(**{**QUARTERS, **replies})))


def test_the_weighted_sum() -> None:
    """Three tenths reverse, a quarter direct, a quarter decomposition, a fifth intent."""
    score = combined()
    assert score.value == pytest.approx(0.3 * 1 + 0.25 * 0.5 + 0.25 * 0.25 + 0.2 * 0.75)
    assert score.reason is None
    assert score.detail == {
        "parts": {"reverse": 1.0, "direct": 0.5, "decomposition": 0.25, "intent": 0.75},
        "missing": {},
        "coverage": "1/4",
    }


@pytest.mark.parametrize("failure", [None, DOWN, RuntimeError("a client of one's own")])
def test_the_weights_are_renormalised_over_what_there_is(failure: object) -> None:
    """A part that failed has no value, in particular not one half."""
    score = combined(direct_relevancy=failure)
    expected = (0.3 * 1 + 0.25 * 0.25 + 0.2 * 0.75) / 0.75
    assert (score.value, score.reason) == (pytest.approx(expected), "partial")
    assert set(score.detail["missing"]) == {"direct"}


def test_weights_of_ones_own() -> None:
    """Parts without a weight are not asked for."""
    judge = FakeJudge(script(**QUARTERS))
    score = score_of(MultiMethodRelevancy(weights={"direct": 1, "intent": 3, "reverse": 0}), judge)
    assert score.value == pytest.approx((0.5 + 3 * 0.75) / 4)
    prompts = {task.prompt for request in judge.requests for task in request}
    assert prompts == {"direct_relevancy", "intent", "intent_fulfilment"}


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ({"direct": -1}, "weights must map some of reverse, direct, decomposition, intent to"),
        ({"direct": float("nan")}, "weights must map"),
        ({"direct": float("inf")}, "weights must map"),
        ({"direkt": 1}, "weights must map"),
        ({}, "at least one of the weights must be above 0"),
        ({"direct": 0}, "at least one of the weights must be above 0"),
        ({"direct": 1e308, "intent": 1e308}, "their sum a number"),
    ],
)
def test_weights_that_cannot_be_used(weights: dict[str, float], told: str) -> None:
    """Weights name parts, are not negative and add up to a number above 0."""
    with pytest.raises(ConfigError, match=told):
        MultiMethodRelevancy(weights=weights)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.8, "directly addresses"),
        (0.79, "partially addresses"),
        (0.6, "partially addresses"),
        (0.59, "somewhat related"),
        (0.4, "somewhat related"),
        (0.39, "does not address"),
        (0.0, "does not address"),
    ],
)
def test_the_bands_of_the_explanation(value: float, told: str) -> None:
    """The explanation says in words which band the score is in."""
    metric = MultiMethodRelevancy(weights={"direct": 1})
    score = score_of(metric, FakeJudge(script(direct_relevancy={"rating": value})))
    assert told in (score.explanation or "")
    reverse = FakeJudge(script(similarities=similar(value, value, value)))
    assert told in (score_of(ReverseRelevancy(), reverse).explanation or "")
