"""`Spending`: keep live scoring within the budget, and decide what happens when it is spent.

The functions ``build_...()`` make the measurements of live scoring, which spend the budget.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from opentelemetry.metrics import Observation

from rag_eval_otel import semconv
from rag_eval_otel.config import Config
from rag_eval_otel.embed import VectorCache, name_of
from rag_eval_otel.evaluation import Measurement, chosen_labelling
from rag_eval_otel.judge.ask import ReplyCache
from rag_eval_otel.judge.budget import NANO, Budget, whole
from rag_eval_otel.judge.models import build_judge, build_live_embedder
from rag_eval_otel.judge.prompting import BUILT_IN, load_prompts
from rag_eval_otel.judge.redis_counts import RedisCounts
from rag_eval_otel.limits import AtBudget
from rag_eval_otel.live.repeats import KeptMeasurement, SharedEvaluations, keeping
from rag_eval_otel.metrics import resolve_metrics, with_thresholds
from rag_eval_otel.prices import load_prices
from rag_eval_otel.redaction import redactor
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.sampling import Sampling
from rag_eval_otel.sinks.instruments import InstrumentSink
from rag_eval_otel.types import Evaluation, JudgeLike, Sample, SkipReason, Usage

_REPLIES = 512  # replies of the judge that are kept; the scores of more turns are
_TURNS = 50  # recent turns that count most for the mean cost, and for the time between turns


def build_budget(config: Config, on_error: Callable[[], None] = lambda: None) -> Budget | None:
    """Return the budget of ``config``, or None if it has none.

    ``on_error`` is called when the Redis of the budget cannot be reached. Raises `ConfigError` if
    the URL of the Redis cannot be used, or if the currency differs from that of the prices.
    """
    limits = config.limits
    if not limits:
        return None
    url, option = config.budget_redis, "budget_redis"
    if url is None:
        url, option = config.redis, "redis"
    return Budget(
        limits,
        prices=load_prices(config.prices),
        reply_tokens=config.max_tokens,
        shared=None if url is None else RedisCounts(url, limits, option=option, on_error=on_error),
    )


class Spending:
    """Measures turns within a budget.

    ``measurement`` asks the judge, and each of its requests passes ``budget``. ``at_budget`` says
    what happens to turns when the budget is spent:

    - ``drop``: they are skipped with the reason ``budget``.
    - ``offline``, or the name of a ``local/`` judge: ``offline`` measures them.
    - ``sample``: the same as ``drop``, but `pace` lowers the probability of each turn beforehand,
      so that the budget lasts.

    ``keep`` returns the measurement with the scores that are kept, which are used also when the
    budget is spent. ``on_unused`` is called with an evaluation that took requests before the budget
    refused the rest of them, and that is not returned. ``clock`` returns seconds and never goes
    back.
    """

    def __init__(
        self,
        measurement: Measurement,
        *,
        budget: Budget | None,
        at_budget: AtBudget | str = "drop",
        offline: Measurement | None = None,
        keep: Callable[[Measurement], KeptMeasurement | None] = lambda _: None,
        on_unused: Callable[[Evaluation], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Give the budget to ``measurement``; raise `ConfigError` if a price is missing."""
        self._budget = budget
        self._at_budget = at_budget
        self._is_paced = at_budget == "sample"
        self._offline = None if at_budget in {"drop", "sample"} else offline
        self._measurement = measurement
        self._shared = SharedEvaluations()
        self._on_unused = on_unused
        self._clock = clock
        if budget is not None:
            self._measurement = replace(measurement, budget=budget)
        self._kept = keep(self._measurement)
        self._gap: float | None = None  # mean seconds between two turns
        self._last: float | None = None
        self._costs: tuple[float, ...] | None = None  # mean of a turn, for each limit
        self._reset_lock()
        call_in_child(self._reset_lock)

    def _reset_lock(self) -> None:
        """Create the lock; a forked child needs its own, because no thread would unlock it."""
        self._lock = threading.RLock()

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
            found = await self._shared.of(self._kept or self._measurement, sample)
            self._learn(found.usage)
            if found.status != "error" or found.reason != "budget":
                return replace(found, sampling=sampling)
            refused = found
        elif self._kept is not None and (known := await self._kept.known(sample)) is not None:
            return replace(known, sampling=sampling)
        if otherwise is None and self._offline is not None:
            offline = await self._offline.of(sample)
            sampling = replace(sampling, stage="offline", reason="budget")
            otherwise = replace(offline, sampling=sampling)
        if otherwise is None:
            if refused is not None:
                self._on_unused(refused)
            return "budget"
        return otherwise if refused is None else _paid(otherwise, refused)

    # --- sampling -------------------------------------------------------------------------------

    def pace(self) -> float:
        """Count a turn, and return the share of turns to evaluate, above 0 and at most 1.

        With ``at_budget="sample"``, an evaluated turn may take on average what each limit earns in
        the time between two turns: the limit, divided by its seconds. The share is this amount,
        divided by the mean that an evaluated turn takes, and the lowest of all limits counts. Both
        means are over recent turns. The share is 1 until the first turn is evaluated.
        """
        if self._budget is None or not self._is_paced:
            return 1.0
        with self._lock:
            self._arrived()
            gap, costs = self._gap, self._costs
        if gap is None or costs is None:
            return 1.0
        factors = (
            whole(limit) / limit.seconds * gap / cost
            for limit, cost in zip(self._budget.limits, costs, strict=True)
            if cost > 0
        )
        return min(1.0, max(min(factors, default=1.0), 1e-6))

    def _arrived(self) -> None:
        now = self._clock()
        if self._last is not None:
            self._gap = _mean(self._gap, now - self._last)
        self._last = now

    def _learn(self, usage: Usage) -> None:
        """Include the requests and tokens of a turn in the mean cost of turns."""
        if self._budget is None or not self._is_paced:
            return
        embedded = Usage(
            embedding_requests=usage.embedding_requests, embedding_tokens=usage.embedding_tokens
        )
        judged = replace(usage, embedding_requests=0, embedding_tokens=0)
        parts = (
            self._budget.amounts(self._measurement.judge.model, judged),
            self._budget.amounts(name_of(self._measurement.embedder), embedded),
        )
        taken = tuple(map(sum, zip(*parts, strict=True)))
        with self._lock:
            known = self._costs or taken
            self._costs = tuple(_mean(*pair) for pair in zip(known, taken, strict=True))

    # --- metrics --------------------------------------------------------------------------------

    def observe_left(self) -> list[Observation]:
        """Return what is left of each limit, as a share of the limit from 0 to 1."""
        left = [] if self._budget is None else self._budget.left()
        return [
            Observation(
                amount / max(whole(limit) / (NANO if limit.is_money else 1), math.ulp(1.0)),
                {semconv.LIMIT: str(limit), semconv.AT_BUDGET: self._at_budget},
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


def _mean(mean: float | None, value: float) -> float:
    return value if mean is None else mean + (value - mean) / _TURNS


# --- what scores turns, by the options ------------------------------------------------------------


def build_measurement(config: Config, on_error: Callable[[], None] = lambda: None) -> Measurement:
    """Return a `Measurement` with the metrics, the judge and the embedder that ``config`` names.

    ``on_error`` is called when the Redis with the limits a minute cannot be reached.
    """
    watched = config.drift == "on" or getattr(config.drift, "questions", 0) > 0
    metrics = with_thresholds(resolve_metrics(config.metrics), config.passing_scores)
    return Measurement(
        metrics=metrics,
        judge=build_judge(config, on_error),
        embedder=build_live_embedder(config, on_error),
        fusion=config.fusion,
        explanations=config.explanations,
        timeout=config.evaluation_timeout,
        cache=ReplyCache(_REPLIES),
        vectors=VectorCache(),
        redactor=redactor(config.redact),
        max_text_chars=config.max_text_chars,
        embedding="keep" if watched else "drop",
        label_metrics=chosen_labelling(metrics, config.label_metrics),
        prompts=load_prompts(config.prompts) if config.prompts else BUILT_IN,
        prices=load_prices(config.prices),
    )


def build_offline(config: Config, judge: str | JudgeLike) -> Measurement:
    """Return a `Measurement` with the offline embedder and ``judge``, which is not that of config.

    It is the first judge of a cascade, or scores turns when the budget is spent.
    """
    offline = replace(
        config,
        judge=judge,
        embedder="hashing",
        judge_base_url=None,
        judge_api_key=None,
        cascade=None,
        suspicious_rate=None,
        drift="off",
    )
    return build_measurement(offline)


def build_spending(
    config: Config, measurement: Measurement, *, instruments: InstrumentSink
) -> Spending:
    """Return the `Spending` of ``config``; in a cascade, it has no offline judge of its own."""
    on_error = partial(instruments.internal_error, "budget_redis")
    budget, at_budget = build_budget(config, on_error), config.at_budget
    judge = "lexical" if at_budget == "offline" else at_budget
    needs_judge = budget is not None and config.cascade is None
    is_offline = needs_judge and at_budget not in {"drop", "sample"}
    return Spending(
        measurement,
        budget=budget,
        at_budget=at_budget,
        offline=build_offline(config, judge) if is_offline else None,
        keep=partial(keeping, config, instruments=instruments),
        on_unused=instruments.count_cost,
    )
