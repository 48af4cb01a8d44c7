"""`HaystackEvaluator` has the interface of a Haystack evaluator, and its failures are no scores."""

import asyncio
from typing import Any

import pytest

from rag_eval_otel import HashingEmbedder
from rag_eval_otel.adaptors.haystack import HaystackEvaluator
from rag_eval_otel.errors import ConfigError, FailedRowError, JudgeTransportError
from rag_eval_otel.metrics import StatementContextRelevance, StatementFaithfulness
from rag_eval_otel.testing import FakeJudge
from support import in_turn

QUESTIONS = ["Who?", "When?", "Where?"]
CONTEXTS = [["Lee, in May, at Ulm."]] * 3
ANSWERS = ["Lee.", "In May.", "At Ulm."]
IN_ONE_STEP = StatementFaithfulness(form="full")
DOWN = JudgeTransportError("connection refused")


def evaluator(metric: Any = IN_ONE_STEP, **options: Any) -> HaystackEvaluator:
    """Return an evaluator whose judge has one reply for each row, in turn."""
    replies = in_turn(options.pop("replies", [{"statements": []}]))
    judge = FakeJudge(replies)
    return HaystackEvaluator(metric, judge=judge, embedder=HashingEmbedder(), **options)


def judged(*verdicts: int) -> dict[str, Any]:
    """Return a reply with one claim for each verdict."""
    return {
        "statements": [{"statement": f"claim {n}", "verdict": v} for n, v in enumerate(verdicts)]
    }


def run(one: HaystackEvaluator, rows: int = 3) -> dict[str, Any]:
    """Run ``one`` on the first rows."""
    return one.run(
        questions=QUESTIONS[:rows], contexts=CONTEXTS[:rows], predicted_answers=ANSWERS[:rows]
    )


def test_undefined_row_is_not_in_the_mean() -> None:
    """The mean is over two rows; the third is undefined, not NaN or 0."""
    found = run(evaluator(replies=[judged(1, 1), judged(), judged(1, 0)]))
    assert found["score"] == 0.75
    assert found["individual_scores"] == [1.0, None, 0.5]
    assert found["statuses"] == ["evaluated", "undefined", "evaluated"]
    assert found["counts"] == {"evaluated": 2, "undefined": 1, "error": 0}
    assert [row["reason"] for row in found["results"]] == [None, "no_claims", None]
    assert found["results"][2]["explanation"] == "Not backed: claim 1"


def test_without_scores_the_mean_is_none() -> None:
    """The mean of failed rows, and of no rows, is None."""
    down = run(evaluator(replies=[DOWN], raise_on_failure=False))
    assert (down["score"], down["statuses"]) == (None, ["error"] * 3)
    assert down["results"][0]["detail"]["error"] == "JudgeTransportError: connection refused"
    assert run(evaluator(), rows=0)["score"] is None


def test_failed_row_raises_by_default() -> None:
    """The first failed row ends the run, as in Haystack, unless ``raise_on_failure`` is False."""
    with pytest.raises(FailedRowError, match=r"row 0.*connection refused"):
        run(evaluator(replies=[DOWN]))


def test_run_works_within_an_event_loop() -> None:
    """Both `run_async` and `run` can be called from a coroutine."""

    async def both() -> tuple[dict[str, Any], dict[str, Any]]:
        columns: Any = {"ground_truth_answers": ["a", "b"], "predicted_answers": ["a", "c"]}
        one = evaluator("answer_exact_match")
        return await one.run_async(**columns), one.run(**columns)

    awaited, blocked = asyncio.run(both())
    assert awaited == blocked
    assert awaited["score"] == 0.5


def test_wrong_columns_are_an_error() -> None:
    """Unequal lengths and a missing column raise a `ValueError` that names them."""
    with pytest.raises(ValueError, match=r"differ in length.*questions.*3.*contexts.*1"):
        evaluator().run(questions=QUESTIONS, contexts=CONTEXTS[:1], predicted_answers=ANSWERS)
    with pytest.raises(ValueError, match=r"needs.*contexts"):
        evaluator().run(questions=QUESTIONS, predicted_answers=ANSWERS)


def test_set_of_metrics_is_refused() -> None:
    """The error lists the metrics of the set."""
    with pytest.raises(ConfigError, match=r"'lean' is a set.*answer_relevancy"):
        evaluator("lean")


def test_batch_has_the_score_of_haystacks_evaluator() -> None:
    """A found, an unreadable and an empty reply give (1 + 0) / 2, as recorded from Haystack."""
    nothing: dict[str, Any] = {"relevant_statements": []}
    found = {"Who?": {"relevant_statements": ["a"]}, "When?": None}
    judge = FakeJudge(lambda task: found.get(task.text("question"), nothing))
    metric = StatementContextRelevance(form="full")
    one = HaystackEvaluator(metric, judge=judge, embedder=HashingEmbedder())
    result = one.run(questions=QUESTIONS, contexts=CONTEXTS)
    assert result["score"] == 0.5
    assert result["individual_scores"] == [1.0, None, 0.0]
    assert result["results"][1]["reason"] == "unparsable"
