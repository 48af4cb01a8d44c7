"""A metric that runs like an evaluator of Haystack."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from rag_eval_otel.adaptors.one import the_one
from rag_eval_otel.dataset.result import DatasetResult
from rag_eval_otel.dataset.run import Progress, aevaluate_dataset, evaluate_dataset
from rag_eval_otel.judge.models import AnyEmbedder, AnyJudge, chosen_models
from rag_eval_otel.metrics.outcome import Metric
from rag_eval_otel.types import Score


class HaystackEvaluator:
    """Measures ``metric`` (or the one of that name) of columns, named as in haystack-ai 3.4.

    It needs no Haystack. To be part of a pipeline, it is declared a component::

        from haystack import component

        @component
        class Evaluator(HaystackEvaluator):
            run = component.output_types(score=float, individual_scores=list)(HaystackEvaluator.run)

    ``judge`` and ``embedder`` as for `evaluate`. ``raise_on_failure``: raise `FailedRowError` at
    the first row with an error, as Haystack's evaluators do; else its status says so.
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
        """Measure ``metric``; `ConfigError` for a name that is not known or stands for several."""
        self._metric = the_one(metric)
        asked, embeds = chosen_models(judge, embedder)
        self._options: dict[str, Any] = {
            "judge": asked,
            "embedder": embeds,
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
        """Return what Haystack's evaluators do, and why a row has no score.

        - ``score``: the mean over the rows that have one; None (there: NaN) where none has.
        - ``individual_scores``: one for each row; None (there: NaN, or 0 where the definition gives
          no number) where it has none.
        - ``results``: for each row ``score``, ``status``, ``reason``, ``explanation``, ``detail``.
        - ``statuses``: of each row ``evaluated``, ``undefined`` or ``error``; ``counts`` of them.

        Raises `ConfigError`, a `ValueError`, for columns that differ in length, naming them, and
        for a column that the metric needs and that is not there.
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
        """Do as `run` does, to be awaited."""
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
