"""`scored_rows`: the rows of a dataset as they are scored, one at a time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from rag_eval_otel.dataset.budget import Budget, ThriftyJudge
from rag_eval_otel.dataset.cache import Measure, ScoreCache, open_cache
from rag_eval_otel.dataset.ordered import in_order
from rag_eval_otel.dataset.read import Dataset, check_needs
from rag_eval_otel.errors import ConfigError, FailedRowError
from rag_eval_otel.evaluation import evaluate, labelling_of
from rag_eval_otel.judge.ask import ReplyCache
from rag_eval_otel.judge.prompting import BUILT_IN, Prompts
from rag_eval_otel.judge.tasks import Judge
from rag_eval_otel.metrics.outcome import Metric
from rag_eval_otel.redaction import Redactor
from rag_eval_otel.results.rows import Row
from rag_eval_otel.runtime.guard import silence
from rag_eval_otel.types import Embedder, Evaluation, Fusion, Reasons, Sample

_REPLIES = 1024  # kept for rows that ask the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure of each row, with whom, and within which limits; see `evaluate_dataset`."""

    metrics: tuple[Metric, ...]
    judge: Judge
    embedder: Embedder
    fusion: Fusion = "on"
    repairs: int = 1
    concurrency: int = 16
    timeout: float | None = None
    raise_on_failure: bool = False
    cache: Path | None = None
    budget: Budget | None = None
    redactor: Redactor = Redactor()  # noqa: RUF009  # frozen
    prompts: Prompts = BUILT_IN
    explanations: Reasons = "off"
    label_metrics: frozenset[str] | None = None

    def __post_init__(self) -> None:
        """Refuse what would make no sense."""
        if isinstance(self.concurrency, bool) or self.concurrency < 1:
            msg = f"concurrency must be 1 or more, not {self.concurrency!r}"
            raise ConfigError(msg)
        if self.fusion not in get_args(Fusion):
            msg = f"fusion must be 'on' or 'off', not {self.fusion!r}"
            raise ConfigError(msg)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return tuple(metric.name for metric in self.metrics)


async def scored_rows(dataset: Dataset, plan: Plan) -> AsyncGenerator[Row, None]:
    """Yield the rows of ``dataset`` as they are scored, in order and in constant memory.

    Raises `ConfigError` for metrics whose needs ``dataset`` cannot meet before anything is asked,
    and `FailedRowError` at the first failed row where ``plan`` says so.
    """
    check_needs(plan.metrics, dataset)
    with _maybe_cache(plan) as cache:
        score = _Scorer(plan, cache)
        samples = enumerate(dataset.samples())
        async with aclosing(in_order(samples, score, at_once=plan.concurrency)) as rows:
            async for row in rows:
                if plan.raise_on_failure and row.failed:
                    raise _failure(dataset, row)
                yield row


@contextmanager
def _maybe_cache(plan: Plan) -> Iterator[ScoreCache | None]:
    if plan.cache is None:
        yield None
        return
    measure = Measure(
        metrics=plan.metrics,
        judge=plan.judge,
        embedder=plan.embedder,
        fusion=plan.fusion,
        prompts=plan.prompts,
        reasons=plan.explanations,
    )
    with open_cache(plan.cache, measure=measure) as cache:
        yield cache


def _failure(dataset: Dataset, row: Row) -> FailedRowError:
    score = row.failed[0]
    told = score.detail.get("error", "no details")
    return FailedRowError(
        f"{dataset.name}, row {row.index}: {score.name} failed ({score.reason}): {told}"
    )


class _Scorer:
    """Scores one row: what the cache has is not asked again."""

    def __init__(self, plan: Plan, cache: ScoreCache | None) -> None:
        self._plan = plan
        self._cache = cache
        self._judge = ThriftyJudge(plan.judge, plan.budget) if plan.budget else plan.judge
        self._replies = ReplyCache(_REPLIES)
        self._labelling = plan.label_metrics or labelling_of(plan.metrics, plan.judge)

    async def __call__(self, item: tuple[int, Sample]) -> Row:
        index, sample = item[0], self._plan.redactor.sample(item[1])
        silence()  # each row is a task, with a context of its own
        known = self._cache.get(sample) if self._cache else {}
        missing = [metric for metric in self._plan.metrics if metric.name not in known]
        fresh = await self._evaluate(sample, missing) if missing else Evaluation(scores=())
        if self._cache and missing:
            self._cache.put(sample, fresh.scores, judge=fresh.judge)
        found = {name: score for name, (score, _) in known.items()}
        found |= {score.name: score for score in fresh.scores}
        judges = [fresh.judge, *(judge for _, judge in known.values())]
        evaluation = replace(
            fresh,
            scores=tuple(found[name] for name in self._plan.names),
            judge=next((judge for judge in judges if judge is not None), None),
            label_metrics=self._labelling,
        )
        return Row(index=index, sample=sample, evaluation=evaluation)

    async def _evaluate(self, sample: Sample, metrics: Iterable[Metric]) -> Evaluation:
        plan = self._plan
        return await evaluate(
            sample,
            metrics,
            judge=self._judge,
            embedder=plan.embedder,
            fusion=plan.fusion,
            repairs=plan.repairs,
            timeout=plan.timeout,
            cache=self._replies,
            prompts=plan.prompts,
            explanations=plan.explanations,
        )
