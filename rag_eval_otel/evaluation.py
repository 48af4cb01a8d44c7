"""`evaluate`: one sample, some metrics, all their scores."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial
from time import perf_counter

from rag_eval_otel.embed import Embed
from rag_eval_otel.errors import ConfigError, JudgeError
from rag_eval_otel.judge.ask import Ask, ReplyCache
from rag_eval_otel.judge.models import (
    AnyEmbedder,
    AnyJudge,
    AnyPrompts,
    chosen_models,
    chosen_prompts,
)
from rag_eval_otel.judge.prompting import BUILT_IN, Prompts
from rag_eval_otel.judge.tasks import Judge
from rag_eval_otel.judge.wire import prompt_hash
from rag_eval_otel.metrics import METRICS, MetricFunction, require_measured, resolve_metrics
from rag_eval_otel.metrics.outcome import Metric
from rag_eval_otel.redaction import Redactor
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
)

_log = logging.getLogger(__name__)

_PATIENCE = 5.0  # seconds a question waits for what it may travel with
_WAITED = 0.25  # at most this share of the time there is
_REFUSED, _SERVER = 400, 500
_MODELS = 100  # that answered, of which versions are kept
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
    clock: Callable[[], float] = perf_counter,
) -> Evaluation:
    """Score ``sample`` with ``metrics`` (metrics, their names, names of sets, or functions).

    ``judge`` and ``embedder``: objects, names as for `Config`, or LangChain's models; by default
    what the environment names, else ``lexical`` and ``hashing``. A named one is made once.

    Every metric gives exactly one score, in the order asked for. A metric that fails or takes more
    than ``timeout`` seconds gives a score with that status and reason, and the others go on.

    - ``fusion``: whether questions of several metrics may share a request.
    - ``repairs``: how often the judge is asked again for a reply that does not parse.
    - ``embedding``: whether the evaluation keeps the embedding of the question.
    - ``prompts``: a folder of files that replace the built-in prompts; default: the environment's.
    - ``label_metrics``: the metrics of the overall label; by default all, or those whose labels are
      reliable with the judge.
    - ``explanations``: whether the judge gives reasons, which are most of a reply's tokens.

    Raises `ConfigError` for metrics that are unknown or named twice, for judges and embedders that
    cannot be made, and for an incomplete folder of prompts; nothing else.
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
        clock=clock,
    )
    return await measurement.of(sample)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The resolved options of `evaluate`, for any number of samples."""

    metrics: tuple[Metric, ...]
    judge: Judge
    embedder: Embedder
    fusion: Fusion = "on"
    repairs: int = 1
    timeout: float | None = None
    cache: ReplyCache | None = None
    redactor: Redactor = Redactor()  # noqa: RUF009  # frozen
    embedding: Embedding = "drop"
    prompts: Prompts = BUILT_IN
    label_metrics: frozenset[str] | None = None
    explanations: Reasons = "off"
    clock: Callable[[], float] = perf_counter
    _known_versions: dict[str, list[str]] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )
    """The versions of the metrics by the model that answered."""

    def __post_init__(self) -> None:
        """Compute the versions of the metrics under the judge's own name, which it must have."""
        model = getattr(self.judge, "model", None)
        if not isinstance(model, str):
            kind = type(self.judge).__name__
            msg = f"a judge needs a `model`, its name in the versions of scores; {kind} has none"
            raise ConfigError(msg)
        self._versions(model)

    async def of(self, sample: Sample) -> Evaluation:
        """Return the scores of ``sample``, after its texts are redacted."""
        if self.redactor.patterns:
            sample = self.redactor.sample(sample)
        ask, embed = self._ask(), Embed(self.embedder)
        started = self.clock()
        with self._prompts():  # and in all tasks that come of these
            runs = [asyncio.ensure_future(_run(one, sample, ask, embed)) for one in self.metrics]
        try:
            await asyncio.wait(runs, timeout=self.timeout)
        finally:
            for run in runs:
                run.cancel()  # no effect on those that are done
            ask.cancel()
            embed.cancel()
        await asyncio.wait(runs)
        scores = map(_outcome, self.metrics, runs)
        versions = self._versions(ask.model or self.judge.model)
        return Evaluation(
            scores=tuple(
                replace(one, version=name) for one, name in zip(scores, versions, strict=True)
            ),
            judge=ask.model,
            duration=self.clock() - started,
            usage=ask.usage + embed.usage,
            embedder=_name_of(self.embedder) if embed.usage.embedding_requests else None,
            label_metrics=self._labelling,
            question_embedding=embed.known(sample.question) if self.embedding == "keep" else None,
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
        )

    def _prompts(self) -> AbstractContextManager[None]:
        return self.prompts.in_use() if self.prompts.texts else nullcontext()

    @cached_property
    def _labelling(self) -> frozenset[str] | None:
        named = self.label_metrics
        return labelling_of(self.metrics, self.judge) if named is None else named

    def _versions(self, model: str) -> list[str]:
        """Return the versions of the metrics for replies of ``model``."""
        known = self._known_versions.get(model)
        if known is None:
            named = partial(
                version_of,
                fusion=self.fusion,
                model=_revised(model, self.judge),
                reasons=self.explanations,
            )
            if len(self._known_versions) >= _MODELS:  # a gateway may name one for each reply
                self._known_versions.clear()
            with self._prompts():
                known = self._known_versions[model] = list(map(named, self.metrics))
        return known


def labelling_of(metrics: Iterable[Metric], judge: Judge) -> frozenset[str] | None:
    """Return the metrics of the overall label with ``judge``; None: all.

    A judge may name the built-in metrics whose labels are reliable with it. Metrics that do not ask
    the judge count, and so do metrics of the user's own.
    """
    told: frozenset[str] | None = getattr(judge, "label_metrics", None)
    if told is None:
        return None
    counts = (one.name for one in metrics if not one.asks or one.name not in METRICS)
    return told.union(counts)


def chosen_labelling(metrics: Iterable[Metric], named: Collection[str]) -> frozenset[str] | None:
    """Return the metrics ``named`` for the overall label, or None; reject unknown ones."""
    if isinstance(named, str):
        msg = f"label_metrics takes names of metrics, as ({named!r},), not one text"
        raise ConfigError(msg)
    measured = {metric.name for metric in metrics}
    for name in named:
        require_measured("an overall label", name, measured)
    return frozenset(named) or None


def _name_of(embedder: Embedder) -> str:
    model = getattr(embedder, "model", None)
    return model if isinstance(model, str) else type(embedder).__name__


def _revised(model: str, judge: Judge) -> str:
    """Return the name of the judge in versions: its model, and its revision if it has one."""
    revision = getattr(judge, "revision", None)
    return model if revision is None else f"{model}.{revision}"


def version_of(metric: Metric, *, fusion: Fusion, model: str, reasons: Reasons = "off") -> str:
    """Return the version of a metric's scores: ``<metric>/<hash>/<way>/<model>``.

    The hash covers the metric's class and parameters (its threshold apart, which only labels) and
    the text of its prompts. The way is ``fused`` or ``single``, followed by ``-short`` where we
    broke up the answer and not the judge, and by ``-reasons`` where the judge gave reasons. Scores
    of different versions must not be compared.
    """
    frame = [
        "frame",
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
        return _checked(await metric.measure(sample, ask, embed))
    except JudgeError as error:
        return _failed(metric, error.reason, told=f"{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001  # one metric's failure is one failed score
        _log.debug("metric %s failed", metric.name, exc_info=True)
        # The message may quote what was asked; only the debug log has it.
        return _failed(metric, _reason_of(error), told=type(error).__name__)


def _checked(score: object) -> Score:
    """Return ``score``, or raise `TypeError` if a metric returned another type."""
    if not isinstance(score, Score):
        msg = f"measure() must return a Score, not {type(score).__name__}"
        raise TypeError(msg)
    return score


def _failed(metric: Metric, reason: Reason, *, told: str) -> Score:
    status: ScoreStatus = "undefined" if reason == "unparsable" else "error"
    return Score(name=metric.name, status=status, reason=reason, detail={"error": told})


def _reason_of(error: Exception) -> Reason:
    """Return the reason for an exception of a user's own judge, or of a LangChain model."""
    status = getattr(error, "status_code", None) or _aws_status(error)
    if isinstance(status, int):
        refused: Reason = "bad_request" if _REFUSED <= status < _SERVER else "transport"
        return _REASONS.get(status, refused)
    # By name: every client has a class of its own, and they have no other base in common.
    kinds = " ".join(kind.__name__ for kind in type(error).__mro__)
    if "Timeout" in kinds:
        return "timeout"
    if "Credentials" in kinds:
        return "unauthorized"
    return "transport" if "Connect" in kinds else "internal"


def _aws_status(error: Exception) -> object:
    """Return the HTTP status of an error of AWS's client."""
    response = getattr(error, "response", None)
    told = response.get("ResponseMetadata") if isinstance(response, dict) else None
    return told.get("HTTPStatusCode") if isinstance(told, dict) else None


def _outcome(metric: Metric, run: asyncio.Task[Score]) -> Score:
    if run.cancelled():
        return Score(name=metric.name, status="error", reason="timeout")
    return run.result()


def failed_evaluation(metrics: Sequence[Metric], reason: Reason) -> Evaluation:
    """Return an evaluation in which every metric failed for ``reason``; the judge is not asked."""
    return Evaluation(
        scores=tuple(Score(name=m.name, status="error", reason=reason) for m in metrics)
    )
