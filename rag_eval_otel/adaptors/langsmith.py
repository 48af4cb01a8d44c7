"""Offer metrics as a LangSmith evaluator, and one metric as a LangChain string evaluator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rag_eval_otel.adaptors import single_metric
from rag_eval_otel.dataset.read import COLUMNS, check_chosen, is_missing, sample_of
from rag_eval_otel.dataset.run import run_now
from rag_eval_otel.evaluation import evaluate
from rag_eval_otel.judge.models import AnyEmbedder, AnyJudge, chosen_models
from rag_eval_otel.judge.tasks import Judge
from rag_eval_otel.metrics import MetricFunction, resolve_metrics
from rag_eval_otel.metrics.outcome import Metric
from rag_eval_otel.runtime.guard import silence
from rag_eval_otel.types import Embedder, Fusion, Sample, Score

_KEYS: Mapping[str, tuple[str, ...]] = {
    "question": (*COLUMNS["question"], "input"),
    "contexts": (*COLUMNS["contexts"], "documents", "source_documents"),
    "answer": (*COLUMNS["answer"], "output", "result"),
    "reference": (*COLUMNS["reference"], *COLUMNS["answer"], "output", "result"),
}


def langsmith_evaluator(
    metrics: Iterable[str | Metric | MetricFunction] = ("default",),
    *,
    judge: AnyJudge = None,
    embedder: AnyEmbedder = None,
    fusion: Fusion = "on",
    timeout: float | None = None,
    keys: Mapping[str, str] | None = None,
) -> Callable[[Any, Any], dict[str, Any]]:
    """Return an evaluator for LangSmith: ``evaluate(app, data=..., evaluators=[evaluator])``.

    LangSmith calls the evaluator with a run and its example. The evaluator returns ``{"results":
    [...]}`` with one feedback for each metric. A feedback has the keys ``key``, ``score``,
    ``value`` (pass or fail), ``comment`` (the explanation, or the reason for a missing score) and
    ``evaluator_info`` (status, reason, version). The score is None if scoring failed or if a
    field is missing.

    The question is read from the inputs of the example. Without an example, it is read from the
    inputs of the run. The answer and the contexts are read from the outputs of the run, and the
    reference from the outputs of the example. Each field is found by its usual names. ``keys`` maps
    ``question``, ``answer``, ``contexts`` or ``reference`` to another name. Contexts are texts or
    documents.

    ``metrics``, ``judge``, ``embedder``, ``fusion`` and ``timeout`` are the same as for `evaluate`.
    The evaluator raises `ConfigError` if a field cannot be used.
    """
    chosen = dict(keys or {})
    check_chosen(chosen)
    chosen_judge, chosen_embedder = chosen_models(judge, embedder)
    scorer = _Scorer(
        metrics=resolve_metrics(metrics),
        judge=chosen_judge,
        embedder=chosen_embedder,
        fusion=fusion,
        timeout=timeout,
    )

    def rag_eval_otel(run: Any, example: Any = None) -> dict[str, Any]:
        cells = _cells(run, example, chosen)
        scores = run_now(lambda: scorer(cells, where=f"run {getattr(run, 'id', '')}"))
        return {"results": [_feedback(score) for score in scores]}

    return rag_eval_otel


class RagStringEvaluator:
    """Offer one metric as a LangChain ``StringEvaluator``. LangChain is not imported.

    If you need an instance of LangChain's class, inherit from both classes, from this class first::

        class Evaluator(RagStringEvaluator, StringEvaluator): ...

    `evaluate_strings` takes the answer as ``prediction``, the question as ``input``, the
    ``reference``, and also ``contexts``, which LangChain's interface does not have.
    """

    def __init__(
        self,
        metric: str | Metric,
        *,
        judge: AnyJudge = None,
        embedder: AnyEmbedder = None,
        timeout: float | None = None,
    ) -> None:
        self._metric = single_metric(metric)
        chosen_judge, chosen_embedder = chosen_models(judge, embedder)
        self._score = _Scorer(
            metrics=(self._metric,),
            judge=chosen_judge,
            embedder=chosen_embedder,
            fusion="on",
            timeout=timeout,
        )

    @property
    def evaluation_name(self) -> str:
        """The name of the metric."""
        return self._metric.name

    @property
    def requires_input(self) -> bool:
        """Whether the metric needs the question."""
        return "question" in self._metric.needs

    @property
    def requires_reference(self) -> bool:
        """Whether the metric needs a reference answer."""
        return "reference" in self._metric.needs

    def evaluate_strings(
        self,
        *,
        prediction: str,
        reference: str | None = None,
        input: str | None = None,  # noqa: A002  # LangChain's name
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Score one answer and return ``score``, ``value`` (pass or fail) and ``reasoning``.

        If scoring fails, ``score`` is None and ``reasoning`` has the reason. Texts in ``kwargs``
        are extra fields for your own metrics. Other values in ``kwargs`` that are no fields of a
        sample are ignored.
        """
        cells = {**kwargs, "answer": prediction, "reference": reference, "question": input}
        return _graded(run_now(lambda: self._score(cells, where="evaluate_strings"))[0])

    async def aevaluate_strings(
        self,
        *,
        prediction: str,
        reference: str | None = None,
        input: str | None = None,  # noqa: A002  # LangChain's name
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Score one answer as `evaluate_strings` does, asynchronously."""
        cells = {**kwargs, "answer": prediction, "reference": reference, "question": input}
        return _graded((await self._score(cells, where="aevaluate_strings"))[0])

    _evaluate_strings = evaluate_strings
    _aevaluate_strings = aevaluate_strings


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scorer:
    """Score one sample with ``metrics``.

    If the sample lacks a field that a metric needs, the score of that metric is undefined.
    """

    metrics: tuple[Metric, ...]
    judge: Judge
    embedder: Embedder
    fusion: Fusion
    timeout: float | None

    async def __call__(self, cells: Mapping[str, Any], *, where: str) -> list[Score]:
        """Return one score for each metric, in the order of the metrics.

        ``cells`` are the fields of the sample, and ``where`` names the sample in error messages.
        """
        # The task has its own context, so that tracing is suppressed for this task only.
        return await asyncio.ensure_future(self._scores(cells, where=where))

    async def _scores(self, cells: Mapping[str, Any], *, where: str) -> list[Score]:
        silence()
        given = {name: _read(name, cell) for name, cell in cells.items() if not is_missing(cell)}
        sample = sample_of(given, {name: name for name in COLUMNS if name in given}, where=where)
        filled = given.keys() | ({"retrieved_ids"} if sample.ranked_ids else set())
        able = [metric for metric in self.metrics if metric.needs <= filled]
        found = await self._measure(sample, able) if able else {}
        return [found.get(each.name) or _missing_input(each, filled) for each in self.metrics]

    async def _measure(self, sample: Sample, metrics: Iterable[Metric]) -> dict[str, Score]:
        evaluation = await evaluate(
            sample,
            metrics,
            judge=self.judge,
            embedder=self.embedder,
            fusion=self.fusion,
            timeout=self.timeout,
        )
        return {score.name: score for score in evaluation.scores}


def _missing_input(metric: Metric, filled: Iterable[str]) -> Score:
    lacks = ", ".join(sorted(metric.needs.difference(filled)))
    error = f"{lacks} not found; there are {', '.join(sorted(filled)) or 'none'}"
    return Score(
        name=metric.name, status="undefined", reason="missing_input", detail={"error": error}
    )


# --- fields of a run ------------------------------------------------------------------------------


def _cells(run: Any, example: Any, keys: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a `Sample` that are in ``run`` and ``example``, by field name."""
    outputs = _part(run, "outputs")
    expected = _part(example, "outputs")
    inputs = _part(example, "inputs") or _part(run, "inputs")
    places = {"question": inputs, "reference": expected, "relevant_ids": expected}
    texts = {name: cell for name, cell in inputs.items() if name not in COLUMNS}
    found = {field: _first(places.get(field, outputs), _names(field, keys)) for field in COLUMNS}
    return {**texts, **found}


def _part(record: Any, name: str) -> Mapping[str, Any]:
    return getattr(record, name, None) or {}


def _names(field: str, keys: Mapping[str, str]) -> tuple[str, ...]:
    return (keys[field],) if field in keys else _KEYS.get(field, COLUMNS[field])


def _first(part: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((part[name] for name in names if not is_missing(part.get(name))), None)


def _read(field: str, cell: Any) -> Any:
    """Return ``cell``; in the field ``contexts``, documents are converted to texts with ids."""
    if field != "contexts" or not isinstance(cell, list | tuple):
        return cell
    return [_context(item) for item in cell]


def _context(item: Any) -> Any:
    if isinstance(item, Mapping):
        return item.get("kwargs", item)  # LangChain serialises a document like this
    if hasattr(item, "page_content"):
        return {"text": item.page_content, "id": getattr(item, "id", None)}
    return item


# --- feedback -------------------------------------------------------------------------------------


def _feedback(score: Score) -> dict[str, Any]:
    info = {"status": score.status, "reason": score.reason, "version": score.version}
    return {
        "key": score.name,
        "score": score.value,
        "value": score.label,
        "comment": _comment(score),
        "evaluator_info": {name: value for name, value in info.items() if value},
    }


def _graded(score: Score) -> dict[str, Any]:
    return {"score": score.value, "value": score.label, "reasoning": _comment(score)}


def _comment(score: Score) -> str | None:
    """Return the explanation of ``score``, or the reason why it has no value."""
    if score.status == "ok":
        return score.explanation or score.reason
    why = score.detail.get("error")
    return f"{score.status}: {score.reason}" + (f" ({why})" if why else "")
