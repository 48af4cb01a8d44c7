"""Golden cases are read in every form in which they are written, also where the text is alone."""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from golden.checks import assert_the_peers_number
from golden.run import outcome_of

TEXTS = {"question": "Why?", "answer": "Because.", "reference": "Since.", "contexts": ["One."]}
WEIGHTS = {"reverse": 0.3, "direct": 0.25, "decomposition": 0.25, "intent": 0.2}
RUBRIC = {"score0_description": "bad", "score0.5_description": "fair", "score1_description": "good"}
BATCH = {"questions": ["Why?", "Why?"], "contexts_list": [["One."], ["One."]]}
IDS = {"expected_ids": ["a", "b"], "retrieved_ids": ["b", "x", "a"]}

FORMS: Mapping[str, tuple[str, dict[str, Any], dict[str, Any], float]] = {
    "grade-raw": ("li_correctness", {}, {"raw": ["3.5\nSo so."]}, 3.5),
    "marker-raw": ("li_answer_relevancy", {}, {"raw": ["Half.\n[RESULT] 1"]}, 0.5),
    "marker-decimal": ("li_context_relevancy", {}, {"raw": ["Some. [RESULT] 2.5"]}, 0.625),
    "yes-raw": ("li_faithfulness", {}, {"raw": ["Yes, it does."]}, 1.0),
    "no-raw": ("li_relevancy", {}, {"raw": ["NO"]}, 0.0),
    "guideline-neutral": ("li_guideline", {}, {"passing": True}, 1.0),
    "rating-raw": ("answer_accuracy", {}, {"raw": ["4", "2"]}, 0.75),
    "similarities-neutral": (
        "mm_reverse",
        {"n": 2},
        {"questions": ["Why?", "How?"], "similarities": [1.0, 0.5]},
        0.75,
    ),
    "addressed-neutral": (
        "mm_decomposition",
        {},
        {"sub_questions": ["a", "b", "c", "d"], "addressed": [True, False, False, False]},
        0.25,
    ),
    "rating-neutral": ("mm_direct", {}, {"score": 0.4}, 0.4),
    "intent-neutral": ("mm_intent", {}, {"score": 0.4}, 0.4),
    "protocol": (
        "mm_comprehensive",
        {"weights": WEIGHTS},
        {
            "raw": [
                *("1. Why?\n2) How?", "1", "0.5", "0.6"),
                *("- a?\n- b?\n- c?", "YES", "no", "NO"),
                *("To know.", "0.7"),
            ]
        },
        0.3 * 0.75 + 0.25 * 0.6 + 0.25 / 3 + 0.2 * 0.7,
    ),
    "rubric-given": ("rubric_score", {"rubrics": RUBRIC}, {"score": 0.5}, 0.5),
    "instance-rubric": ("instance_rubric_score", {"rubrics": RUBRIC}, {"score": 0.5}, 0.5),
    "proportion": (
        "hs_context_relevance",
        {},
        {"statements": ["a", "b"], "statement_scores": [1, 0]},
        0.5,
    ),
    "two-outputs": (
        "hs_llm_evaluator",
        {"outputs": ["why", "score"]},
        {"raw": ['{"why": "so", "score": 1}']},
        1.0,
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_judge_in_another_form(form: str) -> None:
    """A judge's block may have the texts alone, or what they mean alone."""
    metric, params, judge, expected = FORMS[form]
    inputs = {"answers": ["Because."]} if metric == "hs_llm_evaluator" else TEXTS
    case = {"metric": metric, "inputs": inputs, "params": params, "judge": judge}
    assert_the_peers_number({**case, "expected": expected}, outcome_of(case))


BATCHES: Mapping[str, tuple[str, dict[str, Any], dict[str, Any], list[float | None]]] = {
    "relevance": (
        "hs_context_relevance",
        BATCH,
        {"relevant_statements_list": [["a"], []]},
        [1.0, 0.0],
    ),
    "relevance-raw": (
        "hs_context_relevance",
        BATCH,
        {"raw": ['{"relevant_statements": ["a"]}', "no"]},
        [1.0, None],
    ),
    "faithfulness": (
        "hs_faithfulness",
        {**BATCH, "answers": ["A.", "B."]},
        {"verdicts_list": [[1, 0], None]},
        [0.5, None],
    ),
    "logits": (
        "hs_sas",
        {"answers": ["a", "b"], "references": ["c", "d"]},
        {"pair_logits": [8.0, 0.0]},
        [0.9996646498695336, 0.5],
    ),
    "graded": (
        "hs_document_ndcg",
        {"expected_ids_list": [["a", "b"]], "retrieved_ids_list": [["b"]], "scores_list": [[3, 1]]},
        {},
        [1 / (3 + 1 / math.log2(3))],
    ),
}


@pytest.mark.parametrize("form", BATCHES)
def test_a_batch_in_another_form(form: str) -> None:
    """Columns are scored row by row, and their mean is that of a report: over what is ok."""
    metric, inputs, judge, scores = BATCHES[form]
    case = {"metric": metric, "inputs": inputs, "params": {}, "judge": judge}
    ok = [score for score in scores if score is not None]
    stated = {"expected": sum(ok) / len(ok), "individual_scores": scores}
    assert_the_peers_number({**case, **stated}, outcome_of(case))


@pytest.mark.parametrize(
    ("metric", "params", "expected"),
    [
        ("li_hit_rate", {"granular": True}, 1.0),
        ("li_mrr", {"granular": True}, (1 + 1 / 3) / 2),
        ("li_ndcg", {"mode": "exponential"}, 0.9197207891481876),
        ("li_average_precision", {}, (1 + 2 / 3) / 2),
        ("hs_document_recall", {"mode": "multi_hit"}, 1.0),
    ],
)
def test_ids(metric: str, params: dict[str, Any], expected: float) -> None:
    """Retrieval metrics take their modes from the parameters."""
    case = {"metric": metric, "inputs": IDS, "params": params, "judge": {}}
    assert_the_peers_number({**case, "expected": expected}, outcome_of(case))


@pytest.mark.parametrize(
    ("inputs", "params"),
    [
        ({"expected_ids": ["a", "b"], "expected_scores": [1.0, 0.5]}, {}),
        ({"expected_ids": {"a": 1.0, "b": 0.5}}, {}),
        ({"expected_ids": [["a", 1.0], ["b", 0.5]]}, {}),
        ({"expected_ids": [{"id": "a", "score": 1.0}, {"content": "b", "score": 0.5}]}, {}),
        ({"expected_ids": ["a", "b"]}, {"truth_scores": [1.0, 0.5]}),
    ],
)
def test_grades(inputs: dict[str, Any], params: dict[str, Any]) -> None:
    """Grades stand beside the ids, with them, or among the parameters."""
    given = {**inputs, "retrieved_ids": ["a", "x", "b"]}
    case = {"metric": "hs_document_ndcg", "inputs": given, "params": params, "judge": {}}
    expected = (1 + 0.5 / 2) / (1 + 0.5 / math.log2(3))
    assert_the_peers_number({**case, "expected": expected}, outcome_of(case))


def test_what_is_stated_beside_the_number_is_compared() -> None:
    """A statement that does not agree with our score is a failure, too."""
    case = {"metric": "li_correctness", "inputs": TEXTS, "params": {}, "judge": {"score": 4}}
    assert_the_peers_number({**case, "expected": 4.0, "passing": True}, outcome_of(case))
    with pytest.raises(AssertionError, match="passing"):
        assert_the_peers_number({**case, "expected": 4.0, "passing": False}, outcome_of(case))
