"""Metrics as a LangSmith evaluator, and a metric as a LangChain string evaluator."""

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
    """Return an evaluator for LangSmith: ``evaluate(app, data=..., evaluators=[it])``.

    Called with a run and its example, it returns ``{"results": [...]}`` with the feedback of each
    metric: ``key``, ``score``, ``value`` (pass or fail), ``comment`` (the explanation, or the
    reason for no score) and ``evaluator_info`` (status, reason, version). A failed score, and one
    for which a field is missing, is None.

    The question is an input of the example (without an example, of the run), answer and contexts
    are outputs of the run, and the reference is an output of the example. Each is found by its
    usual names; ``keys`` maps question, answer, contexts or reference to another name. Contexts are
    texts or documents. ``metrics``, ``judge``, ``embedder``, ``fusion`` and ``timeout`` are as in
    `evaluate`. The evaluator raises `ConfigError` for a field that cannot be used.
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
    """A metric as a LangChain ``StringEvaluator``; LangChain is not imported.

    If an instance of LangChain's class is required, inherit from both, ours first::

        class Evaluator(RagStringEvaluator, StringEvaluator): ...

    `evaluate_strings` takes the answer as ``prediction``, the question as ``input``, the
    ``reference``, and ``contexts``, which LangChain's interface does not have.
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
        """The metric's name."""
        return self._metric.name

    @property
    def requires_input(self) -> bool:
        """Whether the metric needs the question."""
        return "question" in self._metric.needs

    @property
    def requires_reference(self) -> bool:
        """Whether the metric needs a reference."""
        return "reference" in self._metric.needs

    def evaluate_strings(
        self,
        *,
        prediction: str,
        reference: str | None = None,
        input: str | None = None,  # noqa: A002  # LangChain's name
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return ``score``, ``value`` (pass or fail) and ``reasoning``.

        A failed score is None, and ``reasoning`` has the reason. Texts in ``kwargs`` are extra
        fields for your own metrics; other values are ignored.
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
        """Do the same as `evaluate_strings`, asynchronously."""
        cells = {**kwargs, "answer": prediction, "reference": reference, "question": input}
        return _graded((await self._score(cells, where="aevaluate_strings"))[0])

    _evaluate_strings = evaluate_strings
    _aevaluate_strings = aevaluate_strings


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scorer:
    """Scores the fields given; a metric that needs another field gets an undefined score."""

    metrics: tuple[Metric, ...]
    judge: Judge
    embedder: Embedder
    fusion: Fusion
    timeout: float | None

    async def __call__(self, cells: Mapping[str, Any], *, where: str) -> list[Score]:
        """Return a score of each metric, in their order."""
        # A task has its own context, in which tracing is suppressed.
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
    """Return the fields of a `Sample` in the run and its example."""
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
    """Return the cell, documents as texts with their ids."""
    if field != "contexts" or not isinstance(cell, list | tuple):
        return cell
    return [_context(item) for item in cell]


def _context(item: Any) -> Any:
    if isinstance(item, Mapping):
        return item.get("kwargs", item)  # as LangChain serialises documents
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
    """Return the explanation of a score, or the reason why there is none."""
    if score.status == "ok":
        return score.explanation or score.reason
    why = score.detail.get("error")
    return f"{score.status}: {score.reason}" + (f" ({why})" if why else "")
