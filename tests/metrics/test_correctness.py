"""Answers compared with a reference: by claims, by vectors, by grade, by letters."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics import AnswerCorrectness, Correctness, SemanticSimilarity, metric
from rag_eval_otel.metrics.base import Metric
from rag_eval_otel.metrics.correctness import f_beta
from rag_eval_otel.testing.fakes import FakeEmbedder, FakeJudge
from rag_eval_otel.types import Score
from scoring import BLANK, FULL, Case, assert_case, case, evaluated, flagged, score_of, script

ANSWER, REFERENCE = FULL.answer, FULL.reference or ""


def compared(answer: Sequence[object], reference: Sequence[object]) -> dict[str, object]:
    sides = {"answer_statements": flagged(*answer), "reference_statements": flagged(*reference)}
    return {"compared_statements": sides}


BLANKS = {"compared_statements": {"answer_statements": [BLANK], "reference_statements": [BLANK]}}
EXACT = metric("answer_exact_match")
CASES = [
    *(
        case(
            AnswerCorrectness(beta=beta, weights=(1, 0)),
            factual,
            compared(answer, reference),
            factual=pytest.approx(factual),
            reason=None,
        )
        for answer, reference, beta, factual in (
            ([1, 1], [1, 1], 1, 1),
            ([1, 0], [1, 1], 1, 2 / 3),
            ([1, 1], [1, 0, 0], 1, 2 * (2 / 4) / (1 + 2 / 4)),
            ([0, 0], [0, 0], 1, 0),
            ([], [1, 1], 1, 0),
            ([1, 1], [], 1, 0),
            ([1, 0], [1, 0, 0], 2, 5 * (1 / 2) * (1 / 3) / (4 / 2 + 1 / 3)),
            ([1, 0], [1, 0, 0], 0.5, 1.25 * (1 / 2) * (1 / 3) / (0.25 / 2 + 1 / 3)),
        )
    ),
    *(
        case(AnswerCorrectness(), None, replies, reason="no_claims")
        for replies in (compared([], []), BLANKS)
    ),
    *(
        case(
            Correctness(),
            rating,
            {"correctness": {"rating": rating, "reason": "So."}},
            normalized=pytest.approx(unit),
            label=label,
            explanation="So.",
        )
        for rating, unit, label in ((1, 0, "fail"), (3.9, 0.725, "fail"), (4, 0.75, "pass"))
    ),
    *(
        case(Correctness(), None, {"correctness": {"rating": rating}}, reason="unparsable")
        for rating in (0, 5.01, 7, "4/5")
    ),
    case(Correctness(), 1, texts={"answer": " "}, normalized=0, reason="empty_answer"),
    *(
        case(EXACT, value, texts={"answer": answer, "reference": reference}, reason=None)
        for answer, reference, value in (
            ("a", "a", 1),
            ("a", "A", 0),
            ("a ", "a", 0),
            ("", "a", 0),
            (" ", " ", 1),
        )
    ),
    *(case(EXACT, None, texts={"reference": r}, reason="missing_reference") for r in (None, "")),
]


@pytest.mark.parametrize("one", CASES)
def test_the_score_of_replies(one: Case) -> None:
    """Replies of a judge become value, reason, explanation and detail."""
    assert_case(one)


def compare(one: Metric, answer: list[float], reference: list[float]) -> Score:
    return score_of(one, embedder=FakeEmbedder({ANSWER: answer, REFERENCE: reference}))


FAR = 1 / (1 + 89**0.5)


@pytest.mark.parametrize(
    ("parameters", "value", "normalized", "label"),
    [
        ({}, 0.6, None, "fail"),
        ({"threshold": 0.6}, 0.6, None, "pass"),
        ({"threshold": 0.0}, 0.6, None, "pass"),
        ({"threshold": None}, 0.6, None, None),
        ({"rule": "threshold"}, 0, None, "fail"),
        ({"rule": "threshold", "threshold": 0.6}, 1, None, "pass"),
        ({"rule": "threshold", "threshold": 0.0}, 1, None, "pass"),
        ({"mode": "dot_product"}, 6, None, "pass"),
        ({"mode": "euclidean"}, -(89**0.5), FAR, "fail"),
        ({"mode": "euclidean", "threshold": 0.09}, -(89**0.5), FAR, "pass"),
        ({"mode": "euclidean", "rule": "threshold", "threshold": 0.09}, 1, None, "pass"),
    ],
)
def test_similarity(
    parameters: Any, value: float, normalized: float | None, label: str | None
) -> None:
    """Cosine, dot product or negative distance; 0 is a threshold like any other."""
    score = compare(SemanticSimilarity(**parameters), [1, 0], [6, 8])
    assert score.value == pytest.approx(value)
    assert score.normalized == (normalized and pytest.approx(normalized))
    assert score.label == label


@pytest.mark.parametrize("vector", [[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0]])
@pytest.mark.parametrize("mode", ["cosine", "dot_product", "euclidean"])
def test_a_vector_without_direction(mode: Any, vector: list[float]) -> None:
    """A similarity that is not finite is undefined."""
    score = compare(SemanticSimilarity(mode=mode), [1, 0], vector)
    if mode == "cosine" or not all(map(math.isfinite, vector)):
        assert (score.value, score.reason) == (None, "zero_vector")
    else:
        assert score.status == "ok"


def test_claims_and_vectors_are_weighed() -> None:
    """By default, three quarters claims and one quarter cosine."""

    def weighed(flags: list[int], reference: list[float]) -> Score:
        judge = FakeJudge(script(**compared(flags, flags)))
        embedder = FakeEmbedder({ANSWER: [1, 0], REFERENCE: reference})
        return score_of(AnswerCorrectness(), judge, embedder=embedder)

    score = weighed([1], [0.6, 0.8])
    assert score.value == pytest.approx(0.75 + 0.25 * 0.6)
    counts = {"tp": 1, "fp": 0, "fn": 0, "factual": 1, "similarity": pytest.approx(0.6)}
    assert score.detail == counts
    assert weighed([0], [-1, 0]).value == -0.25
    assert weighed([1], [0, 0]).reason == "zero_vector"


@pytest.mark.parametrize(("weights", "judged", "embedded"), [((1, 0), 1, 0), ((0, 1), 0, 1)])
def test_a_part_without_weight_is_not_asked(weights: Any, judged: int, embedded: int) -> None:
    """Without weight for claims no judge is asked, without one for vectors no embedder."""
    usage = evaluated(AnswerCorrectness(weights=weights)).usage
    assert (usage.judge_requests, usage.embedding_requests) == (judged, embedded)


COUNT = st.integers(0, 20)


@given(COUNT, COUNT, COUNT, st.floats(1e-300, 1e6))
def test_f_is_a_share(tp: int, fp: int, fn: int, beta: float) -> None:
    """F is in [0, 1], grows with hits and falls with every claim that is wrong or missing."""
    value = f_beta(tp, fp, fn=fn, beta=beta)
    assert 0 <= value <= 1 + 1e-15
    assert f_beta(tp + 1, fp, fn=fn, beta=beta) >= value - 1e-12
    assert f_beta(tp, fp + 1, fn=fn, beta=beta) <= value + 1e-12
    assert f_beta(tp, fp, fn=fn + 1, beta=beta) <= value + 1e-12


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        *(
            (AnswerCorrectness, {"beta": beta}, "beta must be above 0, at most 1e")
            for beta in (0, -1, math.nan, math.inf, 1e200)
        ),
        *(
            (AnswerCorrectness, {"weights": weights}, "weights must be two numbers from 0, one ab")
            for weights in (
                *((0, 0), (-1, 2), (math.nan, 1), (1, math.inf), (1e308, 1e308), (1, 1, 1)),
            )
        ),
        (SemanticSimilarity, {"rule": "threshold", "threshold": None}, "needs a threshold"),
    ],
)
def test_options_that_cannot_be_used(make: Any, options: dict[str, Any], message: str) -> None:
    """Options that would give no number are refused at once."""
    with pytest.raises(ConfigError, match=message):
        make(**options)
