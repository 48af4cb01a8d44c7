"""Offer a metric behind the interface of a Haystack evaluator."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from rag_eval_otel.adaptors import single_metric
from rag_eval_otel.dataset.result import DatasetResult
from rag_eval_otel.dataset.run import Progress, aevaluate_dataset, evaluate_dataset
from rag_eval_otel.judge.models import AnyEmbedder, AnyJudge, chosen_models
from rag_eval_otel.metrics.outcome import Metric
from rag_eval_otel.types import Score


class HaystackEvaluator:
    """Measure ``metric`` on columns with the names of the evaluators in haystack-ai 3.4.

    Haystack is not imported. For a pipeline, declare a component::

        from haystack import component

        @component
        class Evaluator(HaystackEvaluator):
            run = component.output_types(score=float, individual_scores=list)(HaystackEvaluator.run)

    ``metric`` is a metric or the name of a metric. An unknown name and the name of a set of metrics
    raise `ConfigError`. ``judge`` and ``embedder`` are the same as for `evaluate`. With
    ``raise_on_failure``, the first failed row raises `FailedRowError`, as Haystack's evaluators do.
    Without it, a failed row has the status ``error``.
    """

    def __init__(
        self,
        metric: str | Metric,
        *,
        judge: AnyJudge = None,
        embedder: AnyEmbedder = None,
        raise_on_failure: bool = True,
        progress: Progress = "off",
    ) -> None:
        self._metric = single_metric(metric)
        chosen_judge, chosen_embedder = chosen_models(judge, embedder)
        self._options: dict[str, Any] = {
            "judge": chosen_judge,
            "embedder": chosen_embedder,
            "raise_on_failure": raise_on_failure,
            "progress": progress,
        }

    def run(
        self,
        *,
        questions: list[str] | None = None,
        contexts: list[list[str]] | None = None,
        predicted_answers: list[str] | None = None,
        ground_truth_answers: list[str] | None = None,
    ) -> dict[str, Any]:
        """Score the rows of the columns, and return the outputs of a Haystack evaluator.

        - ``score``: the mean of the scores. Without scores it is None (in Haystack NaN).
        - ``individual_scores``: the score of each row. A missing score is None (in Haystack NaN, or
          0 if the score is undefined).
        - ``results``: a dict for each row with ``score``, ``status``, ``reason``, ``explanation``
          and ``detail``.
        - ``statuses``: ``evaluated``, ``undefined`` or ``error`` for each row.
        - ``counts``: the number of rows with each status.

        Raises `ConfigError`, which is a `ValueError`, if the columns differ in length or if a
        column is missing that the metric needs.
        """
        columns = _given(questions, contexts, predicted_answers, ground_truth_answers)
        return _result(evaluate_dataset(columns, [self._metric], **self._options))

    async def run_async(
        self,
        *,
        questions: list[str] | None = None,
        contexts: list[list[str]] | None = None,
        predicted_answers: list[str] | None = None,
        ground_truth_answers: list[str] | None = None,
    ) -> dict[str, Any]:
        """Score the rows asynchronously and return the outputs that `run` returns."""
        columns = _given(questions, contexts, predicted_answers, ground_truth_answers)
        return _result(await aevaluate_dataset(columns, [self._metric], **self._options))


_COLUMNS = ("questions", "contexts", "predicted_answers", "ground_truth_answers")
_STATUS = {"ok": "evaluated", "undefined": "undefined", "error": "error"}


def _given(*columns: list[Any] | None) -> dict[str, list[Any]]:
    named = zip(_COLUMNS, columns, strict=True)
    return {name: column for name, column in named if column is not None}


def _result(result: DatasetResult) -> dict[str, Any]:
    scores = [row.scores[0] for row in result.rows]
    values = [score.value for score in scores if score.value is not None]
    results = [_row(score) for score in scores]
    statuses = [result["status"] for result in results]
    return {
        "score": math.fsum(values) / len(values) if values else None,
        "individual_scores": [score.value for score in scores],
        "results": results,
        "statuses": statuses,
        "counts": {status: Counter(statuses)[status] for status in _STATUS.values()},
    }


def _row(score: Score) -> dict[str, Any]:
    return {
        "score": score.value,
        "status": _STATUS[score.status],
        "reason": score.reason,
        "explanation": score.explanation,
        "detail": dict(score.detail),
    }
