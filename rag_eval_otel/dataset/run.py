"""Score every row of a dataset with the metrics that the caller chooses."""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections import deque
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from concurrent.futures import Future, wait
from contextlib import aclosing, closing, contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar, get_args

from rag_eval_otel.dataset.cache import ScoreCache, open_cache
from rag_eval_otel.dataset.read import Dataset, check_needs, open_dataset
from rag_eval_otel.dataset.result import DatasetResult
from rag_eval_otel.dataset.summary import Summary
from rag_eval_otel.errors import ConfigError, FailedRowError, RedactionError
from rag_eval_otel.evaluation import (
    Measurement,
    chosen_labelling,
    evaluate,
    failed_evaluation,
    labelling_of,
)
from rag_eval_otel.judge.ask import ReplyCache
from rag_eval_otel.judge.budget import Budget as RunBudget
from rag_eval_otel.judge.models import (
    AnyEmbedder,
    AnyJudge,
    AnyPrices,
    AnyPrompts,
    chosen_max_text_chars,
    chosen_models,
    chosen_prices,
    chosen_prompts,
)
from rag_eval_otel.judge.prompting import BUILT_IN, Prompts
from rag_eval_otel.judge.shortening import clipped
from rag_eval_otel.judge.tasks import Judge
from rag_eval_otel.limits import Limit
from rag_eval_otel.metrics import MetricFunction, resolve_metrics, with_thresholds
from rag_eval_otel.metrics.outcome import Metric
from rag_eval_otel.prices import Prices
from rag_eval_otel.redaction import Redactor
from rag_eval_otel.results.rows import Row
from rag_eval_otel.runtime.guard import silence
from rag_eval_otel.runtime.installed import require
from rag_eval_otel.runtime.workers import DaemonExecutor
from rag_eval_otel.thresholds import thresholds_of
from rag_eval_otel.types import Embedder, Evaluation, Fusion, Reasons, Sample

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

Progress = Literal["auto", "on", "off"]
"""When to show a progress bar: always, never, or ``auto``.

``auto`` shows the bar if stderr is a terminal and tqdm is installed.
"""

Advance: TypeAlias = Callable[[], object]

_POLL = 0.2  # seconds; a signal just before a wait is handled after the wait
_LOOKAHEAD = 4  # results per running row that may wait for an earlier, slower row
_REPLIES = 1024  # judge replies kept in memory, for rows with the same question


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limit the judge requests and the tokens (prompt and completion together) of one run.

    A request that is sent again counts again. No request is sent after a limit is reached. Requests
    that were already sent are finished, so the number of tokens may exceed the limit. Scores that
    need further requests are errors with the reason ``budget``.
    """

    requests: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("requests", "tokens"):
            value = getattr(self, name)
            is_number = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (is_number and value >= 0):
                msg = f"Budget.{name} must be a whole number, 0 or more, not {value!r}"
                raise ConfigError(msg)

    def counted(self) -> RunBudget | None:
        """Return an object that counts the requests and tokens of one run, or None for no limit."""
        amounts = {"judge requests": self.requests, "tokens": self.tokens}
        limits = [
            Limit(amount=amount, unit=unit, seconds=math.inf)
            for unit, amount in amounts.items()
            if amount is not None
        ]
        return RunBudget(limits, estimates="off") if limits else None


# --- scoring rows ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of one run over a dataset: metrics, models and limits.

    The settings have the same meaning as the arguments of `evaluate_dataset`.
    """

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
    prices: Prices = Prices()  # noqa: RUF009  # frozen
    label_metrics: frozenset[str] | None = None
    max_text_chars: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.concurrency, bool) or self.concurrency < 1:
            msg = f"concurrency must be 1 or more, not {self.concurrency!r}"
            raise ConfigError(msg)
        if self.fusion not in get_args(Fusion):
            msg = f"fusion must be 'on' or 'off', not {self.fusion!r}"
            raise ConfigError(msg)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the metrics, in the order of ``metrics``."""
        return tuple(metric.name for metric in self.metrics)


async def scored_rows(dataset: Dataset, plan: Plan) -> AsyncGenerator[Row, None]:
    """Score the rows of ``dataset`` as ``plan`` says, and yield the rows in their order.

    Memory does not grow with the number of rows. Raises `ConfigError`, before a model is asked, if
    a metric needs a field that no row has. If ``plan.raise_on_failure`` is set, the first row with
    a failed score raises `FailedRowError`.
    """
    check_needs(plan.metrics, dataset)
    measurement = Measurement(
        metrics=plan.metrics,
        judge=plan.judge,
        embedder=plan.embedder,
        fusion=plan.fusion,
        prompts=plan.prompts,
        explanations=plan.explanations,
    )
    with open_cache(plan.cache, measurement=measurement) as cache:
        score = _RowScorer(plan, cache)
        async with aclosing(in_order(dataset.rows(), score, at_once=plan.concurrency)) as rows:
            async for row in rows:
                if plan.raise_on_failure and row.failed:
                    raise _failure(dataset, row)
                yield row


def _failure(dataset: Dataset, row: Row) -> FailedRowError:
    score = row.failed[0]
    details = score.detail.get("error", "no details")
    return FailedRowError(
        f"{dataset.name}, row {row.index}: {score.name} failed ({score.reason}): {details}"
    )


class _RowScorer:
    """Score one row at each call. Scores that are in the cache are not computed again."""

    def __init__(self, plan: Plan, cache: ScoreCache | None) -> None:
        self._plan = plan
        self._cache = cache
        self._budget = plan.budget.counted() if plan.budget else None
        self._replies = ReplyCache(_REPLIES)
        self._label_metrics = plan.label_metrics or labelling_of(plan.metrics, plan.judge)

    async def __call__(self, row: Row) -> Row:
        try:
            sample = self._plan.redactor.sample(row.sample)
        except RedactionError:
            failed = failed_evaluation(self._plan.metrics, "redaction_error")
            return replace(row, sample=Sample(), evaluation=failed)
        silence()  # each row has its own task, and so its own context
        content = self._content(sample)
        known = self._cache.get(content) if self._cache else {}
        missing = [metric for metric in self._plan.metrics if metric.name not in known]
        fresh = await self._evaluate(sample, missing) if missing else Evaluation(scores=())
        if self._cache and missing:
            self._cache.put(content, fresh.scores, judge=fresh.judge)
        scores = {name: score for name, (score, _) in known.items()}
        scores |= {score.name: score for score in fresh.scores}
        judges = [fresh.judge, *(judge for _, judge in known.values())]
        evaluation = replace(
            fresh,
            scores=tuple(scores[name] for name in self._plan.names),
            judge=next((judge for judge in judges if judge is not None), None),
            label_metrics=self._label_metrics,
        )
        return replace(row, sample=sample, evaluation=evaluation)

    def _content(self, sample: Sample) -> Sample:
        """Return ``sample`` with the limit of characters if it is cut: scores depend on both."""
        if self._cache is None or not clipped(sample, self._plan.max_text_chars)[1]:
            return sample
        limit = {"max_text_chars": str(self._plan.max_text_chars)}
        return replace(sample, extra={**sample.extra, **limit})

    async def _evaluate(self, sample: Sample, metrics: Iterable[Metric]) -> Evaluation:
        plan = self._plan
        return await evaluate(
            sample,
            metrics,
            judge=plan.judge,
            embedder=plan.embedder,
            fusion=plan.fusion,
            repairs=plan.repairs,
            timeout=plan.timeout,
            cache=self._replies,
            prompts=plan.prompts,
            explanations=plan.explanations,
            prices=plan.prices,
            budget=self._budget,
            max_text_chars=plan.max_text_chars,
        )


async def in_order(
    items: Iterable[T], work: Callable[[T], Awaitable[R]], *, at_once: int
) -> AsyncGenerator[R, None]:
    """Call ``work`` for each of ``items`` and yield the results in the order of ``items``.

    At most ``at_once`` calls run at the same time. Memory does not grow with the number of items,
    because at most four times ``at_once`` calls are started ahead. When the generator is closed or
    a call fails, the running calls are cancelled.
    """
    running: deque[asyncio.Task[R]] = deque()
    semaphore = asyncio.Semaphore(at_once)

    async def limited(item: T) -> R:
        async with semaphore:
            return await work(item)

    try:
        for item in items:
            running.append(asyncio.create_task(limited(item)))
            await asyncio.sleep(0)  # the calls that have begun go on: the first requests leave
            if len(running) >= at_once * _LOOKAHEAD:
                yield await running[0]
                running.popleft()
        while running:
            yield await running[0]
            running.popleft()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


@contextmanager
def progress_bar(total: int, mode: Progress) -> Iterator[Advance]:
    """Return a context manager that shows a progress bar of ``total`` rows.

    The context manager gives a function that moves the bar by one row. tqdm draws the bar. If tqdm
    is not installed, the mode ``on`` raises `MissingDependencyError`, and the mode ``auto`` shows
    no bar.
    """
    if mode == "off" or (mode == "auto" and not find_spec("tqdm")):
        yield lambda: None
        return
    disable = None if mode == "auto" else False  # None: no bar if stderr is no terminal
    with require("tqdm").tqdm(total=total, desc="evaluating", unit="row", disable=disable) as bar:
        yield bar.update


# --- from code that does not await ----------------------------------------------------------------


def run_now(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the coroutine that ``make`` creates, wait for its end, and return its result.

    If an event loop runs in this thread, the coroutine runs in another thread. A keyboard interrupt
    cancels the coroutine, and is raised after the coroutine has ended.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    return _in_thread(make)


def _in_thread(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    cancel: list[Callable[[], object]] = []

    async def cancellable() -> T:
        task = asyncio.ensure_future(make())
        loop = asyncio.get_running_loop()
        cancel.append(lambda: loop.call_soon_threadsafe(task.cancel))
        return await task

    executor = DaemonExecutor(1)
    context = contextvars.copy_context()
    future: Future[T] = executor.submit(context.run, asyncio.run, cancellable())
    try:
        while not wait([future], timeout=_POLL).done:
            pass
    except KeyboardInterrupt:
        for stop in cancel:
            stop()
        wait([future])
        raise
    finally:
        executor.shutdown()
    return future.result()


def _blocking(function: Callable[P, Coroutine[Any, Any, T]], name: str) -> Callable[P, T]:
    """Return a blocking version of the coroutine function ``function``, called ``name``."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_now(lambda: function(*args, **kwargs))

    call.__name__ = call.__qualname__ = name
    return call


# --- the public functions -------------------------------------------------------------------------


async def aevaluate_dataset(
    samples: object,
    metrics: Iterable[str | Metric | MetricFunction] = ("default",),
    *,
    judge: AnyJudge = None,
    embedder: AnyEmbedder = None,
    thresholds: Mapping[str, float] | str | PathLike[str] | None = None,
    label_metrics: Iterable[str] = (),
    fusion: Fusion = "on",
    repairs: int = 1,
    concurrency: int = 16,
    timeout: float | None = None,
    progress: Progress = "auto",
    raise_on_failure: bool = False,
    cache: str | PathLike[str] | None = None,
    budget: Budget | None = None,
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    prompts: AnyPrompts = None,
    explanations: Reasons = "off",
    prices: AnyPrices = None,
    max_text_chars: int | None = None,
) -> DatasetResult:
    """Score every row of ``samples`` with ``metrics`` and return a `DatasetResult`.

    `evaluate_dataset` blocks until all rows are scored. It may be called while an event loop is
    running, as in a notebook. `aevaluate_dataset` does the same and must be awaited.

    ``samples`` is a list of `Sample` or dict, a pandas or Hugging Face dataset, a dict of columns,
    or the path of a ``.jsonl``, ``.csv`` or ``.parquet`` file. The column names of ragas,
    LlamaIndex and Haystack are recognised. ``columns`` maps a field of `Sample` to a column with
    another name. Texts in further columns become ``Sample.extra``. ``limit`` is the number of rows
    to read, from the first.

    ``metrics``, ``judge``, ``embedder``, ``fusion``, ``repairs``, ``explanations``, ``prompts``,
    ``prices`` and ``max_text_chars`` have the same meaning as for `evaluate`.

    ``thresholds`` maps the name of a metric to the lowest score that passes. The mapping is a dict,
    or the path of a ``.toml`` file that `rag-eval-otel calibrate` wrote. ``label_metrics`` names
    the metrics that decide the label of a row. By default these are the metrics by which the judge
    can tell good answers from bad ones, if that is known of the judge, else all metrics.

    At most ``concurrency`` rows are scored at the same time. If a row takes more than ``timeout``
    seconds, its finished scores are kept, and its other scores are errors.

    ``cache`` is the path of a file for scores. If a run was interrupted or killed, call the
    function again with the same file. The judge is then asked only for scores that are missing or
    failed. A score is found by the content of the sample, the metric, the prompts, the judge, the
    embedder and the fusion, so one file may serve many runs. The cache knows your own metric by the
    name of its class and its dataclass fields. Use another file after a change of the metric's
    code.

    ``budget`` limits the requests to the judge and their tokens. Scores beyond the budget are
    errors with the reason ``budget``.

    ``progress`` shows a progress bar on stderr. ``auto`` shows the bar if stderr is a terminal.
    If ``raise_on_failure`` is set, the first row with a score that is an error raises
    `FailedRowError`.

    Raises `ConfigError`, before a model is asked, if a row or column cannot be used, or if a metric
    needs a field that no row has.
    """
    chosen_judge, chosen_embedder = chosen_models(judge, embedder)
    chosen = with_thresholds(
        resolve_metrics(metrics), thresholds_of(thresholds or {}, where="thresholds")
    )
    plan = Plan(
        metrics=chosen,
        label_metrics=chosen_labelling(chosen, tuple(label_metrics)),
        judge=chosen_judge,
        embedder=chosen_embedder,
        fusion=fusion,
        repairs=repairs,
        concurrency=concurrency,
        timeout=timeout,
        raise_on_failure=raise_on_failure,
        cache=None if cache is None else Path(cache),
        budget=budget,
        prompts=chosen_prompts(prompts),
        explanations=explanations,
        prices=chosen_prices(prices),
        max_text_chars=chosen_max_text_chars(max_text_chars),
    )
    if progress not in get_args(Progress):
        msg = f"progress must be one of {', '.join(get_args(Progress))}, not {progress!r}"
        raise ConfigError(msg)
    dataset = open_dataset(samples, columns, limit=limit)
    rows: list[Row] = []
    with closing(Summary(plan.names)) as summary:
        with progress_bar(dataset.count, progress) as advance:
            async with aclosing(scored_rows(dataset, plan)) as scored:
                async for row in scored:
                    summary.add(row.evaluation)
                    rows.append(row)
                    advance()
        return DatasetResult(rows=tuple(rows), totals=summary.totals())


evaluate_dataset = _blocking(aevaluate_dataset, "evaluate_dataset")
