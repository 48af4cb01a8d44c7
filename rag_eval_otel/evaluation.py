"""`evaluate`: compute the scores of one sample, without tracing."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as release
from time import perf_counter
from typing import Any

from rag_eval_otel.embed import Embed, VectorCache, name_of
from rag_eval_otel.errors import ConfigError, JudgeError
from rag_eval_otel.judge.ask import Ask, ReplyCache
from rag_eval_otel.judge.budget import Budget
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
from rag_eval_otel.judge.outcomes import status_of
from rag_eval_otel.judge.prompting import BUILT_IN, Prompts
from rag_eval_otel.judge.protection import time_limit
from rag_eval_otel.judge.shortening import clipped
from rag_eval_otel.judge.tasks import Judge
from rag_eval_otel.judge.usage import measuring
from rag_eval_otel.judge.wire import prompt_hash
from rag_eval_otel.metrics import METRICS, MetricFunction, require_measured, resolve_metrics
from rag_eval_otel.metrics.function import FunctionMetric
from rag_eval_otel.metrics.outcome import Metric
from rag_eval_otel.prices import Prices
from rag_eval_otel.redaction import Redactor, scrubbed
from rag_eval_otel.runtime.watchdog import within
from rag_eval_otel.types import (
    Embedder,
    Embedding,
    Evaluation,
    Fusion,
    Reason,
    Reasons,
    Sample,
    Score,
    ScoreStatus,
    Usage,
)
from rag_eval_otel.untrusted import suspicions

_log = logging.getLogger(__name__)

_PATIENCE = 5.0  # most seconds that a question waits to share a request
_WAITED = 0.25  # most of the timeout that a question waits
_REFUSED, _SERVER = 400, 500
_RETRIED = frozenset({"unparsable", "judge_incomplete"})
_MODELS = 100  # most models whose versions are kept
_REASONS: Mapping[int, Reason] = {
    401: "unauthorized",
    403: "unauthorized",
    408: "timeout",
    429: "rate_limited",
}


async def evaluate(
    sample: Sample,
    metrics: Iterable[str | Metric | MetricFunction] = ("default",),
    *,
    judge: AnyJudge = None,
    embedder: AnyEmbedder = None,
    fusion: Fusion = "on",
    repairs: int = 1,
    timeout: float | None = None,
    cache: ReplyCache | None = None,
    embedding: Embedding = "drop",
    prompts: AnyPrompts = None,
    label_metrics: Collection[str] | None = None,
    explanations: Reasons = "off",
    prices: AnyPrices = None,
    budget: Budget | None = None,
    max_text_chars: int | None = None,
    clock: Callable[[], float] = perf_counter,
) -> Evaluation:
    """Score ``sample`` with ``metrics`` and return one score for each metric.

    ``metrics`` contains metrics, names of metrics, names of sets, or functions of a sample.
    ``judge`` and ``embedder`` are objects, names as in `Config`, or LangChain models. By default,
    the environment names them, or they are ``lexical`` and ``hashing``. A judge or embedder that is
    given by name is made once and then reused in later calls.

    The scores are in the order of ``metrics``. If a metric fails or takes more than ``timeout``
    seconds, its score has the status ``error`` or ``undefined`` and a reason; the other metrics go
    on.

    - ``fusion``: with ``"on"``, questions of several metrics may share a request to the judge.
    - ``repairs``: how often the judge is asked again if its reply does not parse.
    - ``cache``: replies of the judge to earlier questions. An equal question is not asked again.
    - ``embedding``: with ``"keep"``, the evaluation has the vector of the question if a metric
      embedded the question.
    - ``prompts``: a folder of files that replace the built-in prompts. None means the folder in
      ``RAG_EVAL_PROMPTS``, or the built-in prompts if this variable is not set.
    - ``label_metrics``: the metrics that decide the overall pass or fail label. By default, all
      metrics decide. With a judge that has ``label_metrics``, such as the offline judge, the
      built-in metrics that it names decide, together with metrics that do not ask the judge.
    - ``explanations``: with ``"on"``, the judge gives reasons, which are most of a reply's tokens.
    - ``prices``: a mapping or a file with the prices of tokens (see `load_prices`). None means the
      file in ``RAG_EVAL_PRICES``, or list prices if this variable is not set.
    - ``budget``: a limit of requests, tokens and money. A score that would need a request beyond
      the budget is an error with the reason ``budget``.
    - ``max_text_chars``: the most characters of each text to score. All texts of the sample have at
      most four times as many. The rest is cut, prompts say so, and the scores have
      ``detail["truncated"]``. None means ``RAG_EVAL_MAX_TEXT_CHARS``, or 100,000.
    - ``clock``: a function that returns the time in seconds, to measure the duration.

    Raises `ConfigError` for metrics that are unknown or named twice, for judges and embedders that
    cannot be made, for an incomplete folder of prompts, and for a budget of money without the
    prices of judge and embedder. No other exception is raised.
    """
    chosen_judge, chosen_embedder = chosen_models(judge, embedder)
    chosen = resolve_metrics(metrics)
    measurement = Measurement(
        metrics=chosen,
        judge=chosen_judge,
        embedder=chosen_embedder,
        fusion=fusion,
        repairs=repairs,
        timeout=timeout,
        cache=cache,
        embedding=embedding,
        prompts=chosen_prompts(prompts),
        label_metrics=None if label_metrics is None else chosen_labelling(chosen, label_metrics),
        explanations=explanations,
        prices=chosen_prices(prices),
        budget=budget,
        max_text_chars=chosen_max_text_chars(max_text_chars),
        clock=clock,
    )
    return await measurement.of(sample)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Scores samples; the fields are the options of `evaluate`, with objects instead of names."""

    metrics: tuple[Metric, ...]
    judge: Judge
    embedder: Embedder
    fusion: Fusion = "on"
    repairs: int = 1
    timeout: float | None = None
    cache: ReplyCache | None = None
    vectors: VectorCache | None = None
    redactor: Redactor = Redactor()  # noqa: RUF009  # frozen
    embedding: Embedding = "drop"
    prompts: Prompts = BUILT_IN
    label_metrics: frozenset[str] | None = None
    explanations: Reasons = "off"
    prices: Prices = Prices()  # noqa: RUF009  # frozen
    budget: Budget | None = None
    max_text_chars: int | None = None
    clock: Callable[[], float] = perf_counter
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
        for part, name, asked in (
            ("judge", model, self.judge),
            ("embedder", name_of(self.embedder), self.embedder),
        ):
            budget = budget_for(asked, self.budget)
            if budget is not None:
                budget.require_price(name, part)

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
        ask = self._ask()
        budget = budget_for(self.embedder, self.budget)
        embed = Embed(self.embedder, budget=budget, cache=self.vectors)
        started = self.clock()
        # The tasks started here use the prompts and the time limit, too.
        with self._prompts(), time_limit(self.timeout):
            runs = [asyncio.ensure_future(_run(one, sample, ask, embed)) for one in self.metrics]
        try:
            await asyncio.wait(runs, timeout=self.timeout)
        finally:
            for run in runs:
                run.cancel()  # no effect on a run that is done
            ask.cancel()
            embed.cancel()
        await asyncio.wait(runs)
        cost = self._pricing(ask.model)
        asks = any(metric.asks for metric in self.metrics)
        remarks = _remarks(sample, cut, is_shortened=ask.is_shortened) if asks else {}
        found = (
            _remarked(_outcome(m, run), m, remarks=remarks)
            for m, run in zip(self.metrics, runs, strict=True)
        )
        scores = self._told(found, ask, embed=embed, cost=cost)
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
            question_embedding=embed.known(sample.question) if self.embedding == "keep" else None,
        )

    def _told(
        self,
        scores: Iterable[Score],
        ask: Ask,
        *,
        embed: Embed,
        cost: Callable[[Usage], float | None],
    ) -> Iterator[Score]:
        """Yield ``scores`` with their versions, requests and tokens, and with what these cost."""
        versions = self._versions(ask.model or self.judge.model)
        names = [metric.name for metric in self.metrics]
        asked, embedded = ask.ledger.shares(names), embed.ledger.shares(names)
        for name, score, version in zip(names, scores, versions, strict=True):
            usage = asked[name] + embedded[name]
            yield replace(score, version=version, usage=usage, cost=cost(usage))

    def _pricing(self, model: str | None) -> Callable[[Usage], float | None]:
        """Return a function that returns what a usage costs if ``model`` has answered."""
        return partial(
            self.prices.cost_of,
            judge=(model or self.judge.model, self.judge.model),
            embedder=name_of(self.embedder),
        )

    def _ask(self) -> Ask:
        patience = _PATIENCE if self.timeout is None else min(_PATIENCE, self.timeout * _WAITED)
        return Ask(
            self.judge,
            fusion=self.fusion,
            prompts=self.prompts.digest if self.prompts.texts else "",
            repairs=self.repairs,
            patience=patience,
            cache=self.cache,
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
            version_of, fusion=self.fusion, model=models[0], reasons=self.explanations
        )
        found: dict[str, str] = {}
        with self.prompts.in_use():
            for metric in self.metrics:
                own = [repr(metric.threshold)] if isinstance(metric, FunctionMetric) else []
                found[metric.name] = " ".join([version(metric), *models, _release(), *own])
        return found

    def _versions(self, model: str) -> list[str]:
        """Return the version of each metric's scores if ``model`` answers."""
        known = self._known_versions.get(model)
        if known is None:
            named = partial(
                version_of,
                fusion=self.fusion,
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
    signs = suspicions(_texts_of(sample))
    found: dict[str, Any] = {"injection": list(signs)} if signs else {}
    if cut or is_shortened:
        found["truncated"] = {**cut, **({"judge": "fewer contexts"} if is_shortened else {})}
    return found


def _remarked(score: Score, metric: Metric, *, remarks: Mapping[str, Any]) -> Score:
    """Return ``score`` with ``remarks`` in its details, if ``metric`` asks a judge."""
    if not remarks or not metric.asks:
        return score
    return replace(score, detail={**score.detail, **remarks})


def labelling_of(metrics: Iterable[Metric], judge: Judge) -> frozenset[str] | None:
    """Return the names of metrics that decide the overall pass or fail label; None: all metrics.

    If ``judge`` has an attribute ``label_metrics``, the built-in metrics that it names decide.
    Metrics that do not ask the judge, and metrics that are not built in, decide in any case.
    """
    told: frozenset[str] | None = getattr(judge, "label_metrics", None)
    if told is None:
        return None
    counts = (one.name for one in metrics if not one.asks or one.name not in METRICS)
    return told.union(counts)


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
        require_measured(name, measured, told="an overall label")
    return frozenset(named) or None


def _revised(model: str, judge: Judge) -> str:
    """Return ``model``, followed by the attribute ``revision`` of ``judge`` if there is one."""
    revision = getattr(judge, "revision", None)
    return model if revision is None else f"{model}.{revision}"


def version_of(metric: Metric, *, fusion: Fusion, model: str, reasons: Reasons = "off") -> str:
    """Return the version of the scores of ``metric``: ``<metric>/<hash>/<way>/<model>``.

    The hash covers the class and the parameters of the metric (apart from the threshold, which only
    decides the label) and the texts of its prompts. The way is ``fused`` if questions may share a
    request, else ``single``. It is followed by ``-short`` if this library, not the judge, split the
    answer into claims, and by ``-reasons`` if the judge gave reasons. Scores of different versions
    must not be compared.
    """
    frame = [
        "frame",
        "closing",
        "schema",
        "complaint",
        *(["repeated"] if fusion == "on" else []),
        *_extra(reasons),
    ]
    prompts = prompt_hash(frame, metric.asks)
    definition = f"{type(metric).__qualname__}{_parameters(metric)}{prompts}"
    digest = hashlib.sha256(definition.encode()).hexdigest()[:8]
    short = ["short"] if getattr(metric, "form", None) == "short" else []
    way = "-".join(["fused" if fusion == "on" else "single", *short, *_extra(reasons)])
    return f"{metric.name}/{digest}/{way}/{model}"


def _extra(reasons: Reasons) -> list[str]:
    return ["reasons"] if reasons == "on" else []


def _parameters(metric: object) -> list[tuple[str, object]]:
    if not is_dataclass(metric):
        return []
    names = (f.name for f in fields(metric) if f.compare and f.name not in {"name", "threshold"})
    return [(name, getattr(metric, name)) for name in names]


async def _run(metric: Metric, sample: Sample, ask: Ask, embed: Embed) -> Score:
    try:
        with measuring(metric.name):
            measure = partial(metric.measure, sample, ask, embed)
            return _checked(await within(f"metric {metric.name}", measure))
    except JudgeError as error:
        told = scrubbed(str(error), texts=_texts_of(sample))
        return _failed(metric, error.reason, told=f"{type(error).__name__}: {told}")
    except Exception as error:  # noqa: BLE001  # a failed metric becomes a failed score
        _log.debug("metric %s failed", metric.name, exc_info=True)
        # The message may quote texts of the sample, so only the debug log has it.
        return _failed(metric, _reason_of(error), told=type(error).__name__)


def _texts_of(sample: Sample) -> list[str]:
    texts = [sample.question, *sample.context_texts, sample.answer, sample.reference or ""]
    return [*texts, *sample.extra.values()]


def _checked(score: object) -> Score:
    """Return ``score``, which a metric returned; raise `TypeError` if it is not a `Score`."""
    if not isinstance(score, Score):
        msg = f"measure() must return a Score, not {type(score).__name__}"
        raise TypeError(msg)
    return score


def _failed(metric: Metric, reason: Reason, *, told: str) -> Score:
    status: ScoreStatus = "undefined" if reason == "unparsable" else "error"
    return Score(name=metric.name, status=status, reason=reason, detail={"error": told})


def _reason_of(error: Exception) -> Reason:
    """Return the reason for a failed score from ``error``, an exception of another library."""
    status = status_of(error)
    if status is not None:
        refused: Reason = "bad_request" if _REFUSED <= status < _SERVER else "transport"
        return _REASONS.get(status, refused)
    # By name, because the errors of the client libraries have no base class in common.
    kinds = " ".join(kind.__name__ for kind in type(error).__mro__)
    if "Timeout" in kinds:
        return "timeout"
    if "Credentials" in kinds:
        return "unauthorized"
    return "transport" if "Connect" in kinds else "internal"


def _outcome(metric: Metric, run: asyncio.Task[Score]) -> Score:
    if run.cancelled():
        return Score(name=metric.name, status="error", reason="timeout")
    return run.result()


def failed_evaluation(metrics: Sequence[Metric], reason: Reason) -> Evaluation:
    """Return an evaluation in which each score has the status ``error`` and ``reason``."""
    return Evaluation(
        scores=tuple(Score(name=m.name, status="error", reason=reason) for m in metrics)
    )
