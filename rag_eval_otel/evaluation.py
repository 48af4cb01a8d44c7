"""`evaluate` and `aevaluate`: compute the scores of one sample, without tracing."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as release
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

from rag_eval_otel.embed import Embed, name_of
from rag_eval_otel.errors import (
    ConfigError,
    JudgeError,
    UnparsableReplyError,
    UnsuitableJudgeError,
)
from rag_eval_otel.judge.ask import Ask
from rag_eval_otel.judge.budget import Budget
from rag_eval_otel.judge.limits import outcome_of, status_of, time_limit, title_of
from rag_eval_otel.judge.models import (
    AnyEmbedder,
    AnyJudge,
    AnyPrices,
    AnyPrompts,
    budget_for,
    chosen_max_text_chars,
    chosen_models,
    chosen_prices,
    chosen_prompts,
)
from rag_eval_otel.judge.prompting import BUILT_IN, Prompts, clipped
from rag_eval_otel.judge.tasks import Judge
from rag_eval_otel.judge.usage import measuring
from rag_eval_otel.judge.wire import prompt_hash
from rag_eval_otel.log import class_name
from rag_eval_otel.metrics import METRICS, MetricFunction, require_measured, resolve_metrics
from rag_eval_otel.metrics.base import Metric, kinds_of
from rag_eval_otel.metrics.custom import FunctionMetric
from rag_eval_otel.prices import Prices
from rag_eval_otel.redaction import Redactor
from rag_eval_otel.runtime.guard import LimitedLog
from rag_eval_otel.runtime.threads import DaemonExecutor
from rag_eval_otel.types import (
    Embedder,
    Evaluation,
    Reason,
    Sample,
    Score,
    ScoreStatus,
    Usage,
)
from rag_eval_otel.untrusted import suspicions

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")

_log = LimitedLog()  # of all calls of `evaluate`
_PATIENCE = 5.0  # most seconds that a question waits to share a request
_WAITED = 0.25  # most of the timeout that a question waits
_RETRIED = frozenset({"unparsable", "judge_incomplete"})
_MODELS = 100  # most models whose versions are kept
_POLL = 0.2  # seconds; a signal just before a wait is handled after the wait


class MeasurementOptions(TypedDict, total=False):
    """The options that `evaluate` and `evaluate_dataset` have in common."""

    judge: AnyJudge
    embedder: AnyEmbedder
    share_requests: bool
    repairs: int
    timeout: float | None
    prompts: AnyPrompts
    label_metrics: Collection[str] | None
    explanations: bool
    prices: AnyPrices
    max_text_chars: int | None


class EvaluateOptions(MeasurementOptions, total=False):
    """The options of `evaluate` and `aevaluate`."""

    budget: Budget | None


def evaluate(
    sample: Sample,
    metrics: Iterable[str | Metric | MetricFunction] = ("default",),
    **options: Unpack[EvaluateOptions],
) -> Evaluation:
    """Score ``sample`` with ``metrics`` and return one score for each metric.

    `evaluate` blocks until the scores are there. It may be called while an event loop is running,
    as in a notebook. `aevaluate` does the same and must be awaited.

    ``metrics`` contains metrics, names of metrics, names of sets, or functions of a sample. The
    scores are in the order of ``metrics``. If a metric fails, its score has the status ``error`` or
    ``undefined`` and a reason; the other metrics go on. The options:

    - ``judge``, ``embedder``: objects, names as in `Config`, or LangChain models. By default, the
      environment names them, or they are ``lexical`` and ``hashing``. A judge or embedder that is
      given by name is made once and then reused in later calls.
    - ``share_requests``: whether questions of several metrics may share a request to the judge
      (default True).
    - ``repairs``: how often the judge is asked again if its reply does not parse (default 1).
    - ``timeout``: the seconds after which metrics without a score fail.
    - ``prompts``: a folder of files that replace the built-in prompts. None means the folder in
      ``RAG_EVAL_PROMPTS``, or the built-in prompts if this variable is not set.
    - ``label_metrics``: the metrics that decide the overall pass or fail label. By default, all
      metrics decide. With a judge that has ``label_metrics``, such as the offline judge, the
      built-in metrics that it names decide, together with metrics that do not ask the judge.
    - ``explanations``: whether the judge gives reasons, which are most of a reply's tokens.
    - ``prices``: a mapping or a file with the prices of tokens (see `load_prices`). None means the
      file in ``RAG_EVAL_PRICES``, or list prices if this variable is not set.
    - ``budget``: a limit of requests, tokens and money. A score that would need a request beyond
      the budget is an error with the reason ``budget``.
    - ``max_text_chars``: the most characters of each text to score. All texts of the sample have at
      most four times as many. The rest is cut, prompts say so, and the scores have
      ``detail["truncated"]``. None means ``RAG_EVAL_MAX_TEXT_CHARS``, or 100,000.

    Raises `ConfigError` for metrics that are unknown or named twice, for judges and embedders that
    cannot be made, for an incomplete folder of prompts, and for a budget of money without the
    prices of judge and embedder. No other exception is raised.
    """
    return run_now(lambda: aevaluate(sample, metrics, **options))


async def aevaluate(
    sample: Sample,
    metrics: Iterable[str | Metric | MetricFunction] = ("default",),
    **options: Unpack[EvaluateOptions],
) -> Evaluation:
    """Score ``sample`` with ``metrics``, as `evaluate` does, within a running event loop."""
    return await measurement_of(metrics, **options).of(sample)


def measurement_of(
    metrics: Iterable[str | Metric | MetricFunction] = ("default",),
    **options: Unpack[EvaluateOptions],
) -> Measurement:
    """Return the `Measurement` with ``metrics`` and the options of `evaluate`."""
    judge, embedder = chosen_models(options.get("judge"), options.get("embedder"))
    chosen = resolve_metrics(metrics)
    named = options.get("label_metrics")
    return Measurement(
        metrics=chosen,
        judge=judge,
        embedder=embedder,
        share_requests=options.get("share_requests", True),
        repairs=options.get("repairs", 1),
        timeout=options.get("timeout"),
        prompts=chosen_prompts(options.get("prompts")),
        label_metrics=None if named is None else chosen_labelling(chosen, named),
        explanations=options.get("explanations", False),
        prices=chosen_prices(options.get("prices")),
        budget=options.get("budget"),
        max_text_chars=chosen_max_text_chars(options.get("max_text_chars")),
        log=_log,
    )


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Scores samples. It is made once, and used by live scoring, `evaluate` and data sets.

    The fields are the options of `evaluate`, with objects instead of names.
    """

    metrics: tuple[Metric, ...]
    judge: Judge
    embedder: Embedder
    share_requests: bool = True
    repairs: int = 1
    timeout: float | None = None
    redactor: Redactor = Redactor()  # noqa: RUF009  # frozen
    prompts: Prompts = BUILT_IN
    label_metrics: frozenset[str] | None = None
    explanations: bool = False
    prices: Prices = Prices()  # noqa: RUF009  # frozen
    budget: Budget | None = None
    max_text_chars: int | None = None
    clock: Callable[[], float] = perf_counter
    log: LimitedLog = field(default_factory=LimitedLog, compare=False, repr=False)
    _known_versions: dict[str, list[str]] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )
    """The versions of all metrics' scores, by the name of the model that answered."""

    def __post_init__(self) -> None:
        """Compute the versions of scores.

        Raise `ConfigError` if the judge has no ``model``, or if a budget of money lacks a price.
        """
        model = getattr(self.judge, "model", None)
        if not isinstance(model, str):
            kind = type(self.judge).__name__
            msg = f"a judge needs a `model`, its name in the versions of scores; {kind} has none"
            raise ConfigError(msg)
        self._versions(model)
        if budget := budget_for(self.judge, self.budget):
            budget.require_price(model, "judge")
        if budget := budget_for(self.embedder, self.budget):
            budget.require_price(name_of(self.embedder), "embedder")

    def prepared(self, sample: Sample) -> tuple[Sample, Mapping[str, int]]:
        """Return ``sample`` as metrics see it, redacted and cut, and what was cut of each text.

        Raise `RedactionError` if a function of the option ``redact`` fails.
        """
        return clipped(self.redactor.sample(sample), self.max_text_chars)

    async def of(self, sample: Sample) -> Evaluation:
        """Return the scores of ``sample``, after private texts in it were redacted.

        Raise `RedactionError` if a function of the option ``redact`` fails.
        """
        return await self.of_prepared(*self.prepared(sample))

    async def of_prepared(self, sample: Sample, cut: Mapping[str, int]) -> Evaluation:
        """Return the scores of ``sample``, which `prepared` has returned together with ``cut``."""
        ask = self._new_ask()
        budget = budget_for(self.embedder, self.budget)
        embed = Embed(self.embedder, budget=budget)
        started = self.clock()
        # The tasks started here use the prompts and the time limit, too.
        with self._prompts(), time_limit(self.timeout):
            runs = [
                asyncio.ensure_future(self._run(metric, sample, ask, embed=embed))
                for metric in self.metrics
            ]
        try:
            await asyncio.wait(runs, timeout=self.timeout)
        finally:
            for run in runs:
                run.cancel()  # no effect on a run that is done
            ask.cancel()
            embed.cancel()
        await asyncio.wait(runs)
        models = (ask.model or self.judge.model, self.judge.model)
        prices = partial(self.prices.cost_of, judge=models, embedder=name_of(self.embedder))

        def cost(usage: Usage) -> float | None:
            return prices(usage) if usage.tokens else None

        asks = any(map(kinds_of, self.metrics))
        remarks = _remarks(sample, cut, is_shortened=ask.is_shortened) if asks else {}
        scores = self._scores(runs, ask, embed=embed, remarks=remarks, cost=cost)
        usage = ask.usage + embed.usage
        return Evaluation(
            scores=tuple(scores),
            judge=ask.model,
            duration=self.clock() - started,
            usage=usage,
            cost=cost(usage),
            currency=self.prices.currency,
            embedder=name_of(self.embedder) if embed.is_used else None,
            label_metrics=self.labelling,
        )

    def _scores(
        self,
        runs: Iterable[asyncio.Task[Score]],
        ask: Ask,
        *,
        embed: Embed,
        remarks: Mapping[str, Any],
        cost: Callable[[Usage], float | None],
    ) -> Iterator[Score]:
        """Yield the results of ``runs`` with their versions, requests, tokens and costs.

        The details of metrics that ask a judge get ``remarks``.
        """
        versions = self._versions(ask.model or self.judge.model)
        names = [metric.name for metric in self.metrics]
        asked, embedded = ask.ledger.shares(names), embed.ledger.shares(names)
        for metric, run, version in zip(self.metrics, runs, versions, strict=True):
            timeout = Score(name=metric.name, status="error", reason="timeout")
            score = timeout if run.cancelled() else run.result()
            detail = {**score.detail, **remarks} if kinds_of(metric) else score.detail
            usage = asked[metric.name] + embedded[metric.name]
            yield replace(score, detail=detail, version=version, usage=usage, cost=cost(usage))

    async def _run(self, metric: Metric, sample: Sample, ask: Ask, *, embed: Embed) -> Score:
        try:
            try:
                with measuring(metric.name):
                    return _checked(await metric.measure(sample, ask, embed))
            except JudgeError as error:
                # The message about a reply may quote it, and so texts of the sample.
                is_safe = isinstance(error, UnsuitableJudgeError)
                quotes = isinstance(error, UnparsableReplyError) and not is_safe
                message = "" if quotes else f": {error}"
                cause = f"{type(error).__name__}{message}"
                return _failed(metric, error.reason, error, cause=cause)
        except Exception as error:  # noqa: BLE001  # a failed metric becomes a failed score
            part = self._part_of(error, metric, ask, embed=embed)
            self.log.write_error(part, error)
            # The message of the error may quote texts of the sample. A status is that of a model.
            of_model = None if part == f"metric {metric.name}" else error
            return _failed(metric, _reason_of(error), of_model, cause=class_name(type(error)))

    def _part_of(self, error: Exception, metric: Metric, ask: Ask, *, embed: Embed) -> str:
        """Return the name of the judge, the embedder or the metric that has raised ``error``."""
        if any(failure is error for failure in ask.errors):
            return title_of("judge", self.judge)
        if any(failure is error for failure in embed.errors):
            return title_of("embedder", self.embedder)
        return f"metric {metric.name}"

    def _new_ask(self) -> Ask:
        patience = _PATIENCE if self.timeout is None else min(_PATIENCE, self.timeout * _WAITED)
        return Ask(
            self.judge,
            share_requests=self.share_requests,
            repairs=self.repairs,
            patience=patience,
            reasons=self.explanations,
            budget=budget_for(self.judge, self.budget),
        )

    def _prompts(self) -> AbstractContextManager[None]:
        return self.prompts.in_use() if self.prompts.texts else nullcontext()

    @cached_property
    def labelling(self) -> frozenset[str] | None:
        """The names of the metrics that decide the overall pass or fail label; None: all."""
        named = self.label_metrics
        return labelling_of(self.metrics, self.judge) if named is None else named

    def definitions(self) -> dict[str, str]:
        """Return, for each metric name, a text that describes how the metric is measured.

        Scores of equal samples may stand for each other if their texts are equal. The text contains
        the version of the metric, the names and revisions of the judge and the embedder, and the
        release of this library. A function metric may label its scores itself, so its text also
        contains the threshold.
        """
        models = [_identity(model) for model in (self.judge, self.embedder)]
        version = partial(
            version_of,
            share_requests=self.share_requests,
            model=models[0],
            reasons=self.explanations,
        )
        definitions: dict[str, str] = {}
        with self.prompts.in_use():
            for metric in self.metrics:
                own = [repr(metric.threshold)] if isinstance(metric, FunctionMetric) else []
                definitions[metric.name] = " ".join([version(metric), *models, _release(), *own])
        return definitions

    def _versions(self, model: str) -> list[str]:
        """Return the version of each metric's scores if ``model`` answers."""
        known = self._known_versions.get(model)
        if known is None:
            named = partial(
                version_of,
                share_requests=self.share_requests,
                model=_revised(model, self.judge),
                reasons=self.explanations,
            )
            if len(self._known_versions) >= _MODELS:  # a gateway may give each reply another name
                self._known_versions.clear()
            with self._prompts():
                known = self._known_versions[model] = list(map(named, self.metrics))
        return known


def is_final(score: Score) -> bool:
    """Return True unless ``score`` has failed or the judge gave no usable reply.

    Other scores are not kept for an equal sample, so that the judge is asked again.
    """
    return score.status != "error" and score.reason not in _RETRIED


def _identity(model: object) -> str:
    name, revision = getattr(model, "model", ""), getattr(model, "revision", None)
    return f"{name or type(model).__qualname__}@{revision}"


def _release() -> str:
    try:
        return release("rag-eval-otel")
    except PackageNotFoundError:  # used from a source tree
        return "source"


def _remarks(sample: Sample, cut: Mapping[str, int], *, is_shortened: bool) -> dict[str, Any]:
    """Return entries for the details of scores: signs of hostile texts, and what was cut."""
    texts = [sample.question, *sample.context_texts, sample.answer, sample.reference or ""]
    signs = suspicions([*texts, *sample.extra.values()])
    remarks: dict[str, Any] = {"injection": list(signs)} if signs else {}
    if cut or is_shortened:
        remarks["truncated"] = {**cut, **({"judge": "fewer contexts"} if is_shortened else {})}
    return remarks


def labelling_of(metrics: Iterable[Metric], judge: Judge) -> frozenset[str] | None:
    """Return the names of metrics that decide the overall pass or fail label; None: all metrics.

    If ``judge`` has an attribute ``label_metrics``, the built-in metrics that it names decide.
    Metrics that do not ask the judge, and metrics that are not built in, decide in any case.
    """
    named: frozenset[str] | None = getattr(judge, "label_metrics", None)
    if named is None:
        return None
    others = (m.name for m in metrics if not kinds_of(m) or m.name not in METRICS)
    return named.union(others)


def chosen_labelling(metrics: Iterable[Metric], named: Collection[str]) -> frozenset[str] | None:
    """Return ``named``, the metrics that the user chose for the overall pass or fail label.

    Returns None if ``named`` is empty; then all metrics decide. Raises `ConfigError` for a name
    that is not in ``metrics``.
    """
    if isinstance(named, str):
        msg = f"label_metrics takes names of metrics, as ({named!r},), not one text"
        raise ConfigError(msg)
    measured = {metric.name for metric in metrics}
    for name in named:
        require_measured(name, measured, option="an overall label")
    return frozenset(named) or None


def _revised(model: str, judge: Judge) -> str:
    """Return ``model``, followed by the attribute ``revision`` of ``judge`` if there is one."""
    revision = getattr(judge, "revision", None)
    return model if revision is None else f"{model}.{revision}"


def version_of(metric: Metric, *, share_requests: bool, model: str, reasons: bool = False) -> str:
    """Return the version of the scores of ``metric``: ``<metric>/<hash>/<way>/<model>``.

    The hash covers the class and the parameters of the metric (apart from the threshold, which only
    decides the label) and the texts of its prompts. The way is ``fused`` if questions may share a
    request, else ``single``. It is followed by ``-short`` if this library, not the judge, split the
    answer into claims, and by ``-reasons`` if the judge gave reasons. Scores of different versions
    must not be compared.
    """
    extra = ["reasons"] if reasons else []
    repeated = ["repeated"] if share_requests else []
    frame = ["frame", "closing", "schema", "complaint", *repeated, *extra]
    prompts = prompt_hash(frame, kinds_of(metric))
    definition = f"{type(metric).__qualname__}{_parameters(metric)}{prompts}"
    digest = hashlib.sha256(definition.encode()).hexdigest()[:8]
    short = ["short"] if getattr(metric, "form", None) == "short" else []
    way = "-".join(["fused" if share_requests else "single", *short, *extra])
    return f"{metric.name}/{digest}/{way}/{model}"


def _parameters(metric: object) -> list[tuple[str, object]]:
    if not is_dataclass(metric):
        return []
    names = (f.name for f in fields(metric) if f.compare and f.name not in {"name", "threshold"})
    return [(name, getattr(metric, name)) for name in names]


def _checked(score: object) -> Score:
    """Return ``score``, which a metric returned; raise `TypeError` if it is not a `Score`."""
    if not isinstance(score, Score):
        msg = f"measure() must return a Score, not {type(score).__name__}"
        raise TypeError(msg)
    return score


def _failed(metric: Metric, reason: Reason, error: Exception | None, *, cause: str) -> Score:
    status: ScoreStatus = "undefined" if reason == "unparsable" else "error"
    http = None if error is None else status_of(error)
    detail = {"error": cause} if http is None else {"error": cause, "http_status": http}
    return Score(name=metric.name, status=status, reason=reason, detail=detail)


def _reason_of(error: Exception) -> Reason:
    """Return the reason for a failed score from ``error``, an exception of another library."""
    outcome = outcome_of(error)
    return "bad_request" if outcome == "not_found" else cast("Reason", outcome)


def failed_evaluation(metrics: Sequence[Metric], reason: Reason) -> Evaluation:
    """Return an evaluation in which each score has the status ``error`` and ``reason``."""
    return Evaluation(
        scores=tuple(Score(name=m.name, status="error", reason=reason) for m in metrics)
    )


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
