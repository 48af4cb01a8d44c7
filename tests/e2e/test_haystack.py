"""Our metrics in a pipeline of the real Haystack."""

import asyncio
from typing import Any

import pytest
from haystack import Pipeline, component
from haystack.components.evaluators import AnswerExactMatchEvaluator

from rag_eval_otel import HashingEmbedder
from rag_eval_otel.adaptors.haystack import HaystackEvaluator
from rag_eval_otel.metrics import AnswerExactMatch
from rag_eval_otel.testing import FakeJudge
from support import answers

QUESTIONS = ["When was Einstein born?"]
CONTEXTS = [["Albert Einstein was born March 14, 1879."]]
ANSWERS = ["Einstein was born in 1879."]

OUTPUTS = component.output_types(score=float, individual_scores=list[float])


@component
class Evaluator(HaystackEvaluator):
    """A Haystack component made of our evaluator."""

    run = OUTPUTS(HaystackEvaluator.run)
    run_async = OUTPUTS(HaystackEvaluator.run_async)


@component
class Reporter:
    """A component that accepts an evaluator's output."""

    @component.output_types(told=str)
    def run(self, score: float) -> dict[str, Any]:
        """Tell the score."""
        return {"told": f"{score:.2f}"}


def evaluator(metric: Any) -> Any:
    """Return a component whose judge supports every claim."""
    return Evaluator(metric, judge=FakeJudge(answers()), embedder=HashingEmbedder())


def inputs() -> dict[str, Any]:
    """Return the inputs of a pipeline run."""
    return {"e": {"questions": QUESTIONS, "contexts": CONTEXTS, "predicted_answers": ANSWERS}}


def test_an_evaluator_runs_in_a_pipeline_and_is_connected() -> None:
    """Haystack knows its inputs and outputs by name and type."""
    pipeline = Pipeline()
    pipeline.add_component("e", evaluator("statement_faithfulness"))
    pipeline.add_component("r", Reporter())
    pipeline.connect("e.score", "r.score")
    assert pipeline.run(inputs())["r"] == {"told": "1.00"}


def test_an_evaluator_runs_in_a_pipeline_that_is_awaited() -> None:
    """The pipeline awaits it, and it measures in the running event loop."""
    pipeline = Pipeline()
    pipeline.add_component("e", evaluator("statement_faithfulness"))
    assert asyncio.run(pipeline.run_async(inputs()))["e"]["individual_scores"] == [1.0]


def test_scores_equal_those_of_haystack() -> None:
    """Without a judge, score and individual scores equal those of Haystack's own evaluator."""
    columns = {
        "ground_truth_answers": ["Berlin", "Paris", "Rome"],
        "predicted_answers": ["Berlin", "Lyon", "rome"],
    }
    theirs = AnswerExactMatchEvaluator().run(**columns)
    ours = evaluator(AnswerExactMatch()).run(**columns)
    assert ours["score"] == pytest.approx(theirs["score"])
    assert ours["individual_scores"] == theirs["individual_scores"]


def test_columns_of_unequal_length_are_a_value_error_for_both() -> None:
    """Both evaluators raise the same type of error."""
    columns = {"ground_truth_answers": ["Berlin", "Rome"], "predicted_answers": ["Berlin"]}
    for one in (AnswerExactMatchEvaluator(), evaluator(AnswerExactMatch())):
        with pytest.raises(ValueError, match="length"):
            one.run(**columns)
