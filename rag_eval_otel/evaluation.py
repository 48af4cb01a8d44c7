"""`evaluate` and `aevaluate`: compute the scores of one sample, without tracing."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as release
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar, cast

from rag_eval_otel import errors
from rag_eval_otel.config import Thresholds, thresholds_of
from rag_eval_otel.embed import Embed
from rag_eval_otel.judge.ask import Ask
from rag_eval_otel.judge.budget import Budget
from rag_eval_otel.judge.codec import clipped, prompt_hash
from rag_eval_otel.judge.endpoint import outcome_of, status_of
from rag_eval_otel.judge.tasks import Judge
from rag_eval_otel.judge.usage import Ledger, deadline_after, is_offline, name_of, scope
from rag_eval_otel.metrics import (
    METRICS,
    MetricFunction,
    require_measured,
    resolve_metrics,
    with_thresholds,
)
from rag_eval_otel.metrics.base import Metric, kinds_of
from rag_eval_otel.metrics.custom import FunctionMetric
from rag_eval_otel.models import (
    AnyEmbedder,
    AnyJudge,
    AnyPrices,
    AnyPrompts,
    chosen_max_text_chars,
    chosen_models,
    chosen_prices,
    chosen_prompts,
)
from rag_eval_otel.prices import Prices
from rag_eval_otel.runtime.guard import LimitedLog
from rag_eval_otel.runtime.threads import Workers
from rag_eval_otel.types import (
    Embedder,
    EmbedFn,
    Evaluation,
    Reason,
    Sample,
    Score,
    ScoreStatus,
    Usage,
)
from rag_eval_otel.untrusted import Redactor, suspicions

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
AnyMetrics: TypeAlias = "Iterable[str | Metric | MetricFunction]"

_log = LimitedLog()  # of all calls of `evaluate`
_PATIENCE = 5.0  # most seconds that a question waits to share a request
_WAITED = 0.25  # most of the timeout that a question waits
_RETRIED = frozenset({"unparsable", "judge_incomplete"})
_GRACE = 1.0  # seconds in which cancelled metrics may clean up
_POLL = 0.2  # seconds; a signal just before a wait is handled after the wait


class MeasurementOptions(TypedDict, total=False):
    """The options that `evaluate` and `evaluate_dataset` have in common."""

    judge: AnyJudge
    embedder: AnyEmbedder
    share_requests: bool
    repairs: int
    timeout: float | None
    prompts: AnyPrompts
    thresholds: Thresholds | None
    label_metrics: Collection[str] | None
    explanations: bool
    prices: AnyPrices
    max_text_chars: int | None


class EvaluateOptions(MeasurementOptions, total=False):
    """The options of `evaluate` and `aevaluate`."""

    budget: Budget | None


def evaluate(
    sample: Sample, metrics: AnyMetrics = ("default",), **options: Unpack[EvaluateOptions]
) -> Evaluation:
    """Score ``sample`` with ``metrics`` and return one score for each metric.

    `evaluate` blocks, even in a notebook, where an event loop is running. ``metrics`` contains
    metrics, names of metrics or of sets, or functions of a sample. If a metric fails, its score has
    the status ``error`` or ``undefined`` and a reason; the other metrics go on. The options:

    - ``judge``, ``embedder``: objects, names as in `Config`, or LangChain models. By default, the
      environment names them, or they are ``lexical`` and ``hashing``. Later calls reuse a judge or
      an embedder that is given by name.
    - ``share_requests``: whether questions of several metrics may share a request to the judge
      (default True).
    - ``repairs``: how often the judge is asked again if its reply does not parse (default 1).
    - ``timeout``: the seconds after which metrics without a score fail.
    - ``prompts``: a folder of files that replace the built-in prompts (``RAG_EVAL_PROMPTS``).
    - ``thresholds``: the lowest score that passes, by metric, or a ``.toml`` file that
      `rag-eval-otel calibrate` wrote.
    - ``label_metrics``: the metrics that decide the overall pass or fail label. By default, all
      metrics decide. With a judge that has ``label_metrics``, such as the offline judge, the
      built-in metrics that it names decide, together with metrics that do not ask the judge.
    - ``explanations``: whether the judge gives reasons, which are most of a reply's tokens.
    - ``prices``: a mapping or a file with the prices of tokens (see `load_prices`), by default that
      in ``RAG_EVAL_PRICES``, or list prices.
    - ``budget``: a limit of requests, tokens and money. A score that would need a request beyond
      the budget is an error with the reason ``budget``.
    - ``max_text_chars``: the most characters of each text to score, by default
      ``RAG_EVAL_MAX_TEXT_CHARS``, or 100,000. All texts of the sample have at most four times as
      many. The rest is cut, prompts say so, and the scores have ``detail["truncated"]``.

    Raises `ConfigError` for metrics that are unknown or named twice, for judges and embedders that
    cannot be made, for an incomplete folder of prompts, and for a budget of money without the
    prices of judge and embedder; `MissingDependencyError` if a judge needs another package.
    """
    return run_now(lambda: aevaluate(sample, metrics, **options))


async def aevaluate(
    sample: Sample, metrics: AnyMetrics = ("default",), **options: Unpack[EvaluateOptions]
) -> Evaluation:
    """Score ``sample`` in the running event loop, with the options and results of `evaluate`."""
    return await measurement_of(metrics, **options).of(sample)


def measurement_of(
    metrics: AnyMetrics = ("default",), **options: Unpack[EvaluateOptions]
) -> Measurement:
    judge, embedder = chosen_models(options.get("judge"), options.get("embedder"))
    given: dict[str, Any] = {**options}
    passing = thresholds_of(given.pop("thresholds", None) or {}, where="thresholds")
    chosen = with_thresholds(resolve_metrics(metrics), passing)
    named = options.get("label_metrics")
    given |= {
        "judge": judge,
        "embedder": embedder,
        "prompts": chosen_prompts(options.get("prompts")),
        "label_metrics": None if named is None else chosen_labelling(chosen, named),
        "prices": chosen_prices(options.get("prices")),
        "max_text_chars": chosen_max_text_chars(options.get("max_text_chars")),
    }
    return Measurement(metrics=chosen, log=_log, **given)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Scores samples with the same metrics, judge and options; `evaluate` explains the options."""

    metrics: tuple[Metric, ...]
    judge: Judge
    embedder: Embedder
    share_requests: bool = True
    repairs: int = 1
    timeout: float | None = None
    redactor: Redactor = Redactor()  # noqa: RUF009  # frozen
    prompts: Mapping[str, str] = field(default_factory=dict, hash=False)
    label_metrics: frozenset[str] | None = None
    explanations: bool = False
    prices: Prices = Prices()  # noqa: RUF009  # frozen
    budget: Budget | None = None
    max_text_chars: int | None = None
    clock: Callable[[], float] = perf_counter
    log: LimitedLog = field(default_factory=LimitedLog, compare=False, repr=False)

    def __post_init__(self) -> None:
        model: object = getattr(self.judge, "model", None)
        if not isinstance(model, str):
            kind = type(self.judge).__name__
            raise errors.ConfigError(f"a judge needs a `model` for versions; {kind} has none")
        for part, of in (("judge", self.judge), ("embedder", self.embedder)):
            if self.budget is not None and not is_offline(of):
                self.budget.require_price(name_of(of), part)

    def prepared(self, sample: Sample) -> tuple[Sample, Mapping[str, int]]:
        return clipped(self.redactor.sample(sample), self.max_text_chars)

    async def of(self, sample: Sample) -> Evaluation:
        return await self.of_prepared(*self.prepared(sample))

    async def of_prepared(self, sample: Sample, cut: Mapping[str, int]) -> Evaluation:
        started = self.clock()
        patience = _PATIENCE if self.timeout is None else min(_PATIENCE, self.timeout * _WAITED)
        ledger = Ledger(self.budget)
        way: dict[str, Any] = {"share_requests": self.share_requests, "repairs": self.repairs}
        way |= {"patience": patience, "reasons": self.explanations}
        ask = Ask(self.judge, ledger=ledger, **way)
        embed = Embed(self.embedder, ledger)
        # The tasks started here use the prompts and the time limit, too.
        with scope(prompts=self.prompts, deadline=deadline_after(self.timeout)):
            measured = [self._run(metric, sample, ask, embed=embed) for metric in self.metrics]
            runs = [*map(asyncio.create_task, measured)]
        try:
            _, late = await asyncio.wait(runs, timeout=self.timeout)
        finally:
            for run in runs:
                run.cancel()  # no effect on a run that is done
            requests = ask.cancel()
            for request, _ in embed.requests.values():
                request.cancel()
        if late or requests:
            await asyncio.wait([*late, *requests], timeout=_GRACE)
        spent = ledger.shares([metric.name for metric in self.metrics])
        model, revision = ask.model or self.judge.model, getattr(self.judge, "revision", None)
        embedder = name_of(self.embedder)
        prices = partial(self.prices.cost_of, judge=(model, self.judge.model), embedder=embedder)
        model = model if revision is None else f"{model}.{revision}"
        texts = [sample.question, *sample.context_texts, sample.answer, *sample.extra.values()]
        texts += [sample.reference or "", sample.query or "", *(m.text for m in sample.history)]
        signs = suspicions(texts)
        remarks: dict[str, Any] = {"injection": list(signs)} if signs else {}
        if cut:
            remarks["truncated"] = cut

        def cost(usage: Usage) -> float | None:
            return prices(usage) if usage.tokens else None

        scores: list[Score] = []
        definitions = self.definitions_by_history[bool(sample.history)]
        for metric, run, definition in zip(self.metrics, runs, definitions, strict=True):
            is_measured = run.done() and not run.cancelled()
            late_score = Score(name=metric.name, status="error", reason="timeout")
            score = run.result() if is_measured else late_score
            detail = {**score.detail, **remarks} if kinds_of(metric) else score.detail
            if self.redactor and "offsets" in detail:  # places in another text than the answer
                detail = {name: value for name, value in detail.items() if name != "offsets"}
            version, usage = f"{definition}/{model}", spent[metric.name]
            score = replace(score, detail=detail, version=version, usage=usage, cost=cost(usage))
            scores.append(score)
        return Evaluation(
            scores=tuple(scores),
            judge=ask.model,
            duration=self.clock() - started,
            usage=ledger.usage,
            cost=cost(ledger.usage),
            currency=self.prices.currency,
            embedder=embedder if embed.requests else None,
            computed=frozenset(m.name for m in self.metrics if not kinds_of(m)),
            label_metrics=self.labelling,
            messages=len(sample.history),
            is_rewritten=sample.query is not None,
        )

    async def _run(self, metric: Metric, sample: Sample, ask: Ask, *, embed: EmbedFn) -> Score:
        try:
            try:
                with scope(metric=metric.name):
                    score: object = await metric.measure(sample, ask, embed)
                if isinstance(score, Score):
                    return score
                raise TypeError(f"measure() must return a Score, not {type(score).__name__}")
            except errors.JudgeError as error:
                # The message about a reply may quote it, and so texts of the sample.
                is_safe = isinstance(error, errors.UnsuitableJudgeError)
                quotes = isinstance(error, errors.UnparsableReplyError) and not is_safe
                cause = type(error).__name__ + ("" if quotes else f": {error}")
                return _failed(metric, error.reason, error, cause=cause)
        except Exception as error:  # noqa: BLE001  # a failed metric becomes a failed score
            failed = (title for failure, title in ask.ledger.failures if failure is error)
            title = next(failed, None)
            self.log.write_error(title or f"metric {metric.name}", error)
            outcome = outcome_of(error)
            reason = "bad_request" if outcome == "not_found" else cast("Reason", outcome)
            # The message of the error may quote texts of the sample. A status is that of a model.
            return _failed(metric, reason, error if title else None, cause=type(error).__name__)

    @cached_property
    def labelling(self) -> frozenset[str] | None:
        """The names of the metrics that decide the overall pass or fail label; None: all."""
        if self.label_metrics is not None:
            return self.label_metrics
        named: frozenset[str] | None = getattr(self.judge, "label_metrics", None)
        others = (m.name for m in self.metrics if not kinds_of(m) or m.name not in METRICS)
        return None if named is None else named.union(others)

    @cached_property
    def definitions_by_history(self) -> Mapping[bool, list[str]]:
        """`definition_of` each metric, for samples without (False) and with (True) a history."""
        ways = {"share_requests": self.share_requests, "reasons": self.explanations}
        with scope(prompts=self.prompts):
            return {
                history: [definition_of(metric, **ways, history=history) for metric in self.metrics]
                for history in (False, True)
            }

    def definitions(self) -> dict[str, str]:
        """Return a cache key for each metric: with equal keys, equal samples can share scores."""
        pair = (self.judge, self.embedder)
        models = [f"{name_of(one)}@{getattr(one, 'revision', None)}" for one in pair]
        ours = "source"  # the package is used without an installation
        with suppress(PackageNotFoundError):
            ours = release("rag-eval-otel")
        texts: dict[str, str] = {}
        for metric, definition in zip(self.metrics, self.definitions_by_history[True], strict=True):
            own = [repr(metric.threshold)] if isinstance(metric, FunctionMetric) else []
            texts[metric.name] = " ".join([f"{definition}/{models[0]}", *models, ours, *own])
        return texts


def is_final(score: Score) -> bool:
    """Return False if measuring again may give a value: after an error or an unusable reply."""
    return score.status != "error" and score.reason not in _RETRIED


def chosen_labelling(metrics: Iterable[Metric], named: Collection[str]) -> frozenset[str] | None:
    if isinstance(named, str):
        raise errors.ConfigError(f"label_metrics takes names, as ({named!r},), not one text")
    measured = {metric.name for metric in metrics}
    for name in named:
        require_measured(name, measured, option="an overall label")
    return frozenset(named) or None


def definition_of(metric: Any, *, share_requests: bool, reasons: bool, history: bool) -> str:
    """Return `Score.version` without the model: metric, hash of its definition, request form."""
    extra = ["history"] if history and kinds_of(metric) else []
    rewriting = ["standalone_question"] if extra else []
    extra += ["reasons"] if reasons else []
    repeated = ["repeated"] if share_requests else []
    frame = ["frame", "closing", "schema", "complaint", *repeated, *extra, *rewriting]
    prompts = prompt_hash(frame, kinds_of(metric))
    compared = [f.name for f in fields(metric) if f.compare] if is_dataclass(metric) else []
    parameters = [(n, getattr(metric, n)) for n in compared if n not in {"name", "threshold"}]
    definition = f"{type(metric).__qualname__}{parameters}{prompts}"
    digest = hashlib.sha256(definition.encode()).hexdigest()[:8]
    short = ["short"] if getattr(metric, "form", None) == "short" else []
    way = "-".join(["fused" if share_requests else "single", *short, *extra])
    return f"{metric.name}/{digest}/{way}"


def _failed(metric: Metric, reason: Reason, error: Exception | None, *, cause: str) -> Score:
    status: ScoreStatus = "undefined" if reason == "unparsable" else "error"
    http = None if error is None else status_of(error)
    detail = {"error": cause} if http is None else {"error": cause, "http_status": http}
    return Score(name=metric.name, status=status, reason=reason, detail=detail)


def failed_evaluation(metrics: Sequence[Metric], reason: Reason) -> Evaluation:
    scores = (Score(name=metric.name, status="error", reason=reason) for metric in metrics)
    return Evaluation(scores=tuple(scores))


def run_now(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    cancel: list[Callable[[], object]] = []

    async def cancellable() -> T:
        task = asyncio.ensure_future(make())
        loop = asyncio.get_running_loop()
        cancel.append(lambda: loop.call_soon_threadsafe(task.cancel))
        return await task

    executor = Workers(1)
    if not executor.prepare():
        raise RuntimeError("no thread can be started, and an event loop runs on this thread")
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
