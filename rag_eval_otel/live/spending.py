"""`Spending`: keep live scoring within the budget, and decide what happens when it is spent.

The functions ``build_...()`` make the measurements of live scoring, which spend the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from opentelemetry.metrics import Observation

from rag_eval_otel import semconv
from rag_eval_otel.config import Config
from rag_eval_otel.evaluation import Measurement, chosen_labelling
from rag_eval_otel.export.metrics import InstrumentSink
from rag_eval_otel.judge.budget import NANO, Budget, whole
from rag_eval_otel.judge.models import build_judge, build_live_embedder, is_offline
from rag_eval_otel.judge.prompting import BUILT_IN, load_prompts
from rag_eval_otel.judge.redis_counts import RedisCounts
from rag_eval_otel.limits import TURNS
from rag_eval_otel.live.repeats import SharedEvaluations
from rag_eval_otel.metrics import resolve_metrics, with_thresholds
from rag_eval_otel.prices import load_prices
from rag_eval_otel.redaction import redactor
from rag_eval_otel.runtime.limited_log import LimitedLog
from rag_eval_otel.sampling import Sampling
from rag_eval_otel.types import Evaluation, JudgeLike, Sample, SkipReason

_KEPT = 1024  # turns whose scores are kept for equal turns; an offline judge costs nothing


def build_budget(config: Config, on_error: Callable[[], None] = lambda: None) -> Budget | None:
    """Return the budget of ``config``, or None if it limits neither requests, tokens nor money.

    ``on_error`` is called when the Redis of the budget cannot be reached. Raises `ConfigError` if
    the URL of the Redis cannot be used, or if the currency differs from that of the prices.
    """
    limits = [limit for limit in config.limits if limit.unit != TURNS]
    if not limits:
        return None
    shared = None
    if config.redis is not None:
        shared = RedisCounts(config.redis, limits, on_error=on_error)
    return Budget(limits, prices=load_prices(config.prices), shared=shared)


class Spending:
    """Measures turns within a budget.

    ``measurement`` asks the judge, and each of its requests passes ``budget``. When the budget is
    spent, turns are skipped with the reason ``budget``. The scores of ``max_kept``
    turns are kept for equal turns, and are used even when the budget is spent. ``on_unused`` is
    called with an evaluation that took requests before the budget refused the rest of them, and
    that is not returned. ``count`` is that of `SharedEvaluations`.
    """

    def __init__(
        self,
        measurement: Measurement,
        *,
        budget: Budget | None,
        max_kept: int = 0,
        count: Callable[[str], None] = lambda _: None,
        on_unused: Callable[[Evaluation], None] = lambda _: None,
    ) -> None:
        """Give the budget to ``measurement``; raise `ConfigError` if a price is missing."""
        self._budget = budget
        self._on_unused = on_unused
        if budget is not None:
            measurement = replace(measurement, budget=budget)
        self._evaluations = SharedEvaluations(measurement, max_kept=max_kept, count=count)

    @property
    def is_spent(self) -> bool:
        """Whether a limit of the budget is reached now."""
        return self._budget is not None and self._budget.spent_limit is not None

    async def of(
        self, sample: Sample, sampling: Sampling, *, otherwise: Evaluation | None = None
    ) -> Evaluation | SkipReason:
        """Return the scores of ``sample``, or ``budget`` if the budget is spent.

        A turn in which the budget leaves no metric a score is not scored by the judge either.
        ``otherwise``, if given, is the result in place of ``budget``: in a cascade, the scores of
        the offline judge. The result has the usage and the cost of requests that were sent before
        the budget was spent.
        """
        refused = None
        if not self.is_spent:
            evaluation = await self._evaluations.of(sample)
            if evaluation.status != "error" or evaluation.reason != "budget":
                return replace(evaluation, sampling=sampling)
            refused = evaluation
        elif (known := self._evaluations.known(sample)) is not None:
            return replace(known, sampling=sampling)
        if otherwise is None:
            if refused is not None:
                self._on_unused(refused)
            return "budget"
        return otherwise if refused is None else _paid(otherwise, refused)

    # --- metrics --------------------------------------------------------------------------------

    def observe_left(self) -> list[Observation]:
        """Return what is left of each limit, as a share of the limit from 0 to 1."""
        left = [] if self._budget is None else self._budget.left()
        return [
            Observation(
                amount / max(whole(limit) / (NANO if limit.is_money else 1), math.ulp(1.0)),
                {semconv.LIMIT: str(limit)},
            )
            for limit, amount in left
        ]


def _paid(evaluation: Evaluation, refused: Evaluation) -> Evaluation:
    """Return ``evaluation`` with the usage and the cost of ``refused``, which has no scores."""
    spent = {score.name: score for score in refused.scores}
    scores = [
        replace(one, usage=one.usage + spent[one.name].usage, cost=spent[one.name].cost)
        if one.name in spent
        else one
        for one in evaluation.scores
    ]
    return replace(
        evaluation,
        scores=tuple(scores),
        usage=evaluation.usage + refused.usage,
        cost=refused.cost,
        currency=refused.currency,
    )


# --- what scores turns, by the options ------------------------------------------------------------


def build_measurement(config: Config) -> Measurement:
    """Return a `Measurement` with the metrics, the judge and the embedder that ``config`` names."""
    metrics = with_thresholds(resolve_metrics(config.metrics), config.passing_scores)
    return Measurement(
        metrics=metrics,
        judge=build_judge(config),
        embedder=build_live_embedder(config),
        explanations=config.explanations,
        timeout=config.evaluation_timeout,
        redactor=redactor(config.redact),
        max_text_chars=config.max_text_chars,
        label_metrics=chosen_labelling(metrics, config.label_metrics),
        prompts=load_prompts(config.prompts) if config.prompts else BUILT_IN,
        prices=load_prices(config.prices),
        log=LimitedLog(raise_errors=config.raise_errors),
    )


def build_offline(config: Config, judge: str | JudgeLike) -> Measurement:
    """Return a `Measurement` with the offline embedder and ``judge``, which is not that of config.

    It is the first judge of a cascade.
    """
    return build_measurement(
        replace(config, judge=judge, embedder="hashing", cascade=None, drift=False)
    )


def build_spending(
    config: Config, measurement: Measurement, *, instruments: InstrumentSink
) -> Spending:
    """Return the `Spending` of ``config``."""
    return Spending(
        measurement,
        budget=build_budget(config, partial(instruments.internal_error, "redis")),
        max_kept=0 if is_offline(measurement.judge) else _KEPT,
        count=instruments.cache_lookup,
        on_unused=instruments.count_cost,
    )
