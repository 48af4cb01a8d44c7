"""Is the answer right? By two judges, by claims, by a grade, by vectors, by letters."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics import (
    AnswerCorrectness,
    Correctness,
    CrossEncoderSimilarity,
    SemanticSimilarity,
    metric,
)
from rag_eval_otel.metrics.base import Metric
from rag_eval_otel.metrics.correctness import f_beta
from rag_eval_otel.testing.fakes import FakeEmbedder, FakeJudge
from rag_eval_otel.types import Sample, Score
from scoring import DOWN, FULL, evaluated, flagged, score_of, script

ANSWER, REFERENCE = FULL.answer, FULL.reference or ""


def rated(one: object, other: object) -> FakeJudge:
    """Return a judge whose two voices rate so."""
    replies = {
        f"accuracy_{i}": {"rating": r} if isinstance(r, int | float | str) else r
        for i, r in enumerate((one, other), start=1)
    }
    return FakeJudge(script(**replies))


# --- accuracy -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "value"), [(4, 4, 1), (4, 2, 0.75), (2, 0, 0.25), (0, 0, 0), (0, 4, 0.5)]
)
def test_the_mean_of_two_accuracies(one: int, other: int, value: float) -> None:
    """The score is the mean rating over 4, whichever voice gave which."""
    for ratings in ((one, other), (other, one)):
        score = score_of(metric("answer_accuracy"), rated(*ratings))
        assert (score.value, score.reason) == (value, None)
        assert score.detail["disagreement"] == abs(one - other) / 4


@pytest.mark.parametrize("bad", [1, 3, -2, 40, "4", None, DOWN])
def test_one_accuracy_is_enough(bad: object) -> None:
    """1 and 3 are not on the scale; whichever judge is without a rating, the other's counts."""
    for ratings in ((bad, 2), (2, bad)):
        score = score_of(metric("answer_accuracy"), rated(*ratings))
        assert (score.value, score.reason, score.detail["judges_used"]) == (0.5, "partial", 1)


def test_the_second_judge_sees_them_in_each_others_place() -> None:
    """The second judge rates the reference against the answer, in a request of its own."""
    judge = FakeJudge(script())
    score_of(metric("answer_accuracy"), judge)
    first, second = (dict(task.inputs) for request in judge.requests for task in request)
    assert len(judge.requests) == 2
    assert first == {"question": FULL.question, "answer": ANSWER, "reference": REFERENCE}
    assert second == {"question": FULL.question, "answer": REFERENCE, "reference": ANSWER}


# --- correctness by claims ------------------------------------------------------------------------


def compared(answer: list[int], reference: list[int]) -> FakeJudge:
    """Return a judge that finds these claims on either side, shared (1) or not."""
    reply = {"answer_statements": flagged(*answer), "reference_statements": flagged(*reference)}
    return FakeJudge(script(compared_statements=reply))


@pytest.mark.parametrize(
    ("answer", "reference", "beta", "factual"),
    [
        ([1, 1], [1, 1], 1, 1),
        ([1, 0], [1, 1], 1, 2 / 3),
        ([1, 1], [1, 0, 0], 1, 2 * (2 / 4) / (1 + 2 / 4)),
        ([0, 0], [0, 0], 1, 0),
        ([], [1, 1], 1, 0),
        ([1, 1], [], 1, 0),
        ([0], [], 1, 0),
        ([1, 0], [1, 0, 0], 2, 5 * (1 / 2) * (1 / 3) / (4 / 2 + 1 / 3)),
        ([1, 0], [1, 0, 0], 0.5, 1.25 * (1 / 2) * (1 / 3) / (0.25 / 2 + 1 / 3)),
    ],
)
def test_the_f_score_of_claims(
    answer: list[int], reference: list[int], beta: float, factual: float
) -> None:
    """Precision over the answer's claims, recall over hits and what the reference has more."""
    judge = compared(answer, reference)
    score = score_of(AnswerCorrectness(beta=beta, weights=(1, 0)), judge)
    assert score.value == pytest.approx(factual)
    assert score.detail["factual"] == score.value


def test_claims_and_vectors_are_weighed() -> None:
    """Three quarters claims, one quarter cosine, by default."""
    embedder = FakeEmbedder({ANSWER: [1, 0], REFERENCE: [0.6, 0.8]})
    score = score_of(AnswerCorrectness(), compared([1], [1]), embedder=embedder)
    assert score.value == pytest.approx(0.75 + 0.25 * 0.6)
    assert score.detail == {
        "tp": 1,
        "fp": 0,
        "fn": 0,
        "factual": 1,
        "similarity": pytest.approx(0.6),
    }
    opposite = FakeEmbedder({ANSWER: [1, 0], REFERENCE: [-1, 0]})
    worst = score_of(AnswerCorrectness(), compared([0], [0]), embedder=opposite)
    assert worst.value == -0.25


@pytest.mark.parametrize(("weights", "judged", "embedded"), [((1, 0), 1, 0), ((0, 1), 0, 1)])
def test_what_has_no_weight_is_not_asked(
    weights: tuple[float, float], judged: int, embedded: int
) -> None:
    """Without weight for claims no judge is asked, without one for vectors no embedder."""
    usage = evaluated(AnswerCorrectness(weights=weights)).usage
    assert (usage.judge_requests, usage.embedding_requests) == (judged, embedded)


def test_nobody_claims_anything() -> None:
    """Two texts without claims are no success, and no failure."""
    for reply in (compared([], []), FakeJudge(script(compared_statements=blank()))):
        score = score_of(AnswerCorrectness(), reply)
        assert (score.value, score.reason) == (None, "no_claims")


def blank() -> dict[str, object]:
    """Return claims that say nothing."""
    claims = [{"statement": " ", "verdict": 1}]
    return {"answer_statements": claims, "reference_statements": claims}


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"beta": 0}, "beta must be a number above 0, at most 1e"),
        ({"beta": -1}, "beta must be"),
        ({"beta": float("nan")}, "beta must be"),
        ({"beta": float("inf")}, "beta must be"),
        ({"beta": 1e200}, "beta must be"),
        ({"weights": (0, 0)}, "weights must be two numbers from 0, not both 0"),
        ({"weights": (-1, 2)}, "weights must be"),
        ({"weights": (float("nan"), 1)}, "weights must be"),
        ({"weights": (1, float("nan"))}, "weights must be"),
        ({"weights": (float("inf"), 1)}, "weights must be"),
        ({"weights": (1e308, 1e308)}, "weights must be"),
        ({"weights": (1, 1, 1)}, "weights must be"),
        ({"weights": (1,)}, "weights must be"),
    ],
)
def test_parameters_that_cannot_be_used(parameters: dict[str, Any], told: str) -> None:
    """A beta or weights that would give no number are refused at once."""
    with pytest.raises(ConfigError, match=told):
        AnswerCorrectness(**parameters)


COUNT = st.integers(0, 20)


@given(COUNT, COUNT, COUNT, st.floats(1e-300, 1e6))
def test_f_is_a_share(tp: int, fp: int, fn: int, beta: float) -> None:
    """F is in [0, 1], grows with hits and falls with every claim that is wrong or missing."""
    value = f_beta(tp, fp, fn=fn, beta=beta)
    assert 0 <= value <= 1 + 1e-15
    assert f_beta(tp + 1, fp, fn=fn, beta=beta) >= value - 1e-12
    assert f_beta(tp, fp + 1, fn=fn, beta=beta) <= value + 1e-12
    assert f_beta(tp, fp, fn=fn + 1, beta=beta) <= value + 1e-12


# --- a grade --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rating", "normalized", "label"),
    [(1, 0, "fail"), (3.9, 0.725, "fail"), (4, 0.75, "pass"), (5.0, 1, "pass")],
)
def test_a_grade_from_1_to_5(rating: float, normalized: float, label: str) -> None:
    """From 4 it passes; the grade is brought to [0, 1] beside."""
    reply = {"rating": rating, "reason": "So."}
    score = score_of(Correctness(), FakeJudge(script(correctness=reply)))
    assert (score.value, score.normalized, score.label) == (
        rating,
        pytest.approx(normalized),
        label,
    )
    assert (score.explanation, score.detail) == ("So.", {"rated": "integer"})


@pytest.mark.parametrize("rating", [0, 5.01, 7, -2, "4", "4/5", None, True, float("nan")])
def test_a_grade_off_the_scale(rating: object) -> None:
    """7 is no grade, nor is a text with a grade in it."""
    score = score_of(Correctness(), FakeJudge(script(correctness={"rating": rating})))
    assert (score.value, score.normalized, score.reason) == (None, None, "unparsable")


def test_the_reference_is_shown_where_there_is_one() -> None:
    """Correctness does without a reference, and then none is shown."""
    for reference, shown in ((REFERENCE, True), (None, False), (" ", False)):
        judge = FakeJudge(script())
        score_of(Correctness(), judge, reference=reference)
        assert ("reference" in dict(judge.requests[0][0].inputs)) is shown


def test_an_empty_answer_has_the_lowest_grade() -> None:
    """No answer is graded 1, which is the bottom of the scale."""
    score = score_of(Correctness(), answer=" ")
    assert (score.value, score.normalized, score.reason) == (1, 0, "empty_answer")


# --- yes or no ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["response_supported", "context_agreement"])
@pytest.mark.parametrize(("passing", "value"), [(True, 1), (False, 0)])
def test_yes_or_no(name: str, passing: object, value: float) -> None:
    """The judge's boolean is the score, its reason the explanation."""
    reply = {"passing": passing, "reason": "So."}
    score = score_of(metric(name), FakeJudge(script(**{name: reply})))
    assert (score.value, score.explanation) == (value, "So.")


@pytest.mark.parametrize("name", ["response_supported", "context_agreement"])
@pytest.mark.parametrize("passing", ["yes", "YES", "not YES", 1, 0, None])
def test_letters_are_no_decision(name: str, passing: object) -> None:
    """Yes is not searched for in texts: eyes and yesterday would pass."""
    score = score_of(metric(name), FakeJudge(script(**{name: {"passing": passing}})))
    assert (score.value, score.reason) == (None, "unparsable")


# --- vectors --------------------------------------------------------------------------------------


def similar(metric: Metric, one: list[float], other: list[float]) -> Score:
    """Score an answer and a reference with these vectors."""
    embedder = FakeEmbedder({"a": one, "r": other})
    return score_of(metric, sample=Sample(answer="a", reference="r"), embedder=embedder)


@pytest.mark.parametrize(
    ("metric", "value", "normalized", "label"),
    [
        (SemanticSimilarity(), 0.6, None, "fail"),
        (SemanticSimilarity(threshold=0.6), 0.6, None, "pass"),
        (SemanticSimilarity(threshold=0.0), 0.6, None, "pass"),
        (SemanticSimilarity(threshold=None), 0.6, None, None),
        (SemanticSimilarity(rule="threshold"), 0, None, "fail"),
        (SemanticSimilarity(rule="threshold", threshold=0.6), 1, None, "pass"),
        (SemanticSimilarity(rule="threshold", threshold=0.0), 1, None, "pass"),
        (SemanticSimilarity(mode="dot_product"), 6, None, "pass"),
        (SemanticSimilarity(mode="euclidean"), -(89**0.5), 1 / (1 + 89**0.5), "fail"),
        (
            SemanticSimilarity(mode="euclidean", threshold=0.09),
            -(89**0.5),
            1 / (1 + 89**0.5),
            "pass",
        ),
        (SemanticSimilarity(mode="euclidean", rule="threshold", threshold=0.09), 1, None, "pass"),
    ],
    ids=repr,
)
def test_similarity(
    metric: Metric, value: float, normalized: float | None, label: str | None
) -> None:
    """Cosine, dot product or negative distance; 0 is a threshold like any other."""
    score = similar(metric, [1, 0], [6, 8])
    assert score.value == pytest.approx(value)
    assert score.normalized == (normalized and pytest.approx(normalized))
    assert score.label == label


@pytest.mark.parametrize("vector", [[0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]])
@pytest.mark.parametrize("mode", ["cosine", "dot_product", "euclidean"])
def test_a_vector_without_direction(mode: Any, vector: list[float]) -> None:
    """What cannot be compared has no similarity, in particular no NaN."""
    score = similar(SemanticSimilarity(mode=mode), [1, 0], vector)
    if mode == "cosine" or not all(map(math.isfinite, vector)):
        assert (score.value, score.reason) == (None, "zero_vector")
    else:
        assert score.status == "ok"


def test_a_rule_of_thresholds_needs_one() -> None:
    """Nothing can be cut without a threshold."""
    with pytest.raises(ConfigError, match="rule='threshold' needs a threshold"):
        SemanticSimilarity(rule="threshold", threshold=None)


@pytest.mark.parametrize(
    ("activation", "logit", "value"),
    [
        ("identity", 0.3, 0.3),
        ("identity", -5, -5),
        ("sigmoid", 0, 0.5),
        ("sigmoid", 8.0, 1 / (1 + math.exp(-8))),
        ("sigmoid", -1e9, 0),
        ("sigmoid", 1e9, 1),
    ],
)
def test_a_cross_encoder(activation: Any, logit: float, value: float) -> None:
    """A pair's score depends on nothing but the pair."""
    seen = []

    def score(*pair: str) -> float:
        seen.append(pair)
        return logit

    metric = CrossEncoderSimilarity(score=score, activation=activation)
    assert score_of(metric).value == pytest.approx(value)
    assert seen == [(ANSWER, REFERENCE)]


@pytest.mark.parametrize("made", [float("nan"), float("inf")])
def test_a_cross_encoder_that_gives_no_number(made: float) -> None:
    """What is no number is an error, not a score."""
    score = score_of(CrossEncoderSimilarity(score=lambda *_: made))
    assert (score.value, score.status, score.reason) == (None, "error", "internal")


@pytest.mark.parametrize(
    ("texts", "reason"),
    [({"reference": ""}, "missing_reference"), ({"answer": ""}, "empty_answer")],
)
def test_a_cross_encoder_needs_both(texts: dict[str, str], reason: str) -> None:
    """Without answer or reference there is nothing to compare."""
    score = score_of(CrossEncoderSimilarity(score=lambda *_: 1.0), **texts)
    assert (score.value, score.reason) == (None, reason)


# --- letters --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "reference", "value"),
    [("a", "a", 1), ("a", "A", 0), ("a ", "a", 0), ("", "a", 0), (" ", " ", 1)],
)
def test_the_same_letters(answer: str, reference: str, value: float) -> None:
    """Nothing is trimmed, and case counts."""
    score = score_of(metric("answer_exact_match"), answer=answer, reference=reference)
    assert (score.value, score.reason) == (value, None)


@pytest.mark.parametrize("reference", [None, ""])
def test_nothing_to_match(reference: str | None) -> None:
    """Without a reference there is no match and no mismatch."""
    assert score_of(metric("answer_exact_match"), reference=reference).reason == "missing_reference"
