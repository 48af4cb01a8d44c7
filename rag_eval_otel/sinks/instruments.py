"""Record scores and counts in OpenTelemetry instruments (histograms, counters and gauges).

A *turn* is one question of a user and its answer.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias
from weakref import WeakKeyDictionary, WeakMethod

from opentelemetry.metrics import (
    CallbackOptions,
    Meter,
    MeterProvider,
    Observation,
    get_meter_provider,
)

from rag_eval_otel import semconv
from rag_eval_otel.capture.text import exportable
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.sampling import Sampling
from rag_eval_otel.sinks.attributes import span_context
from rag_eval_otel.types import Evaluation, HoldStatus, Reason, SkipReason

Counted = Literal["turn", "source", "released", "failure"]
"""What a `Tally` counts.

``turn``: turns by outcome and reason. ``source``: spans by the instrumentation that wrote them, and
turns of LangChain runs as ``callback``. ``released``: spans that waited for scores, by the status
with which they were exported. ``failure``: failures of this library by the part that failed, such
as ``sink``.
"""


class Tally:
    """Counters of turns, spans and failures, for `Handle.stats` and ``rag-eval-otel doctor``.

    Each counter has a kind (see `Counted`) and a name. A tally is thread-safe. In a forked child
    process all counts start at zero.
    """

    def __init__(self) -> None:
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        # The lock is reentrant, because garbage collection may end a span while the lock is held,
        # and the end of a span is counted.
        self._lock = threading.RLock()
        self._counts: dict[Counted, Counter[str]] = {}

    def add(self, kind: Counted, name: str, number: int = 1) -> None:
        with self._lock:
            self._counts.setdefault(kind, Counter())[name] += number

    def of(self, kind: Counted) -> Mapping[str, int]:
        """Return the counts of ``kind`` by name, for example of turns by outcome and reason."""
        with self._lock:
            return dict(self._counts.get(kind, {}))


Source: TypeAlias = Callable[[], Iterable[Observation]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """The name, unit and description of an observable gauge.

    If several pipelines report values with equal attributes, ``join`` computes one value from them.
    """

    name: str
    unit: str
    description: str
    join: Callable[[Iterable[float]], float]


@dataclass(slots=True)
class _SharedGauge:
    """A gauge of one meter provider, and the functions that return its values.

    Several pipelines may report values for one gauge, which OpenTelemetry allows only once.
    """

    gauge: Gauge
    sources: list[WeakMethod[Source]] = field(default_factory=list)

    def observe(self, _: CallbackOptions) -> Iterator[Observation]:
        """Call the functions in ``sources``, and yield one observation for each attribute set."""
        found: dict[frozenset[tuple[str, object]], list[Observation]] = {}
        for source in filter(None, [reference() for reference in tuple(self.sources)]):
            for seen in source():
                found.setdefault(frozenset((seen.attributes or {}).items()), []).append(seen)
        for same in found.values():
            yield Observation(self.gauge.join(seen.value for seen in same), same[0].attributes)


_of_global: dict[
    str, _SharedGauge
] = {}  # the global provider may be a proxy now and replaced later
_of_others: WeakKeyDictionary[MeterProvider, dict[str, _SharedGauge]] = WeakKeyDictionary()


def add_gauge_source(
    provider: MeterProvider | None, gauge: Gauge, source: Source
) -> Callable[[], None]:
    """Report the values that ``source()`` returns in the gauge that ``gauge`` describes.

    The gauge belongs to ``provider``, by default the global meter provider. ``source`` is a bound
    method and is called at each collection of metrics; its object is referenced weakly. Returns a
    function that ends the reports from ``source``. The function is not thread-safe; `instrument`
    calls it under a lock.
    """
    used = provider or get_meter_provider()
    known = _of_others.get(used)
    if known is None:
        is_global = used is get_meter_provider()
        known = _of_global if is_global else _of_others.setdefault(used, {})
    if gauge.name not in known:
        shared = known[gauge.name] = _SharedGauge(gauge)
        used.get_meter(
            semconv.SCOPE, semconv.VERSION, schema_url=semconv.GEN_AI_SCHEMA_URL
        ).create_observable_gauge(
            gauge.name, callbacks=[shared.observe], unit=gauge.unit, description=gauge.description
        )
    sources, reference = known[gauge.name].sources, WeakMethod(source)
    sources[:] = [*(kept for kept in sources if kept() is not None), reference]

    def stop() -> None:
        if reference in sources:
            sources.remove(reference)

    return stop


Outcome = Literal["scored", "unscored", "error", "dropped", "skipped"]
DropReason = Literal["overload", "shutdown"]

_HELD = Gauge(
    name=semconv.HELD, unit="{span}", description="Spans that wait for their scores.", join=sum
)
_LABEL = semconv.GEN_AI_EVALUATION_SCORE_LABEL
_SECONDS = [0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60]


class InstrumentSink:
    """Record scores and durations in histograms, and turns, requests and failures in counters.

    Values in the histograms can have exemplars, which refer to the evaluated spans. The counter
    ``rag.evaluation.turns`` counts every turn exactly once, with or without scores. It has the
    attribute ``outcome`` and, if there is a reason, the attribute ``reason``.
    """

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        meter = (meter_provider or get_meter_provider()).get_meter(
            semconv.SCOPE, semconv.VERSION, schema_url=semconv.GEN_AI_SCHEMA_URL
        )
        self.tally = Tally()
        self._meter_provider = meter_provider
        self._score = meter.create_histogram(
            semconv.SCORE,
            unit="1",
            description="Evaluation scores of RAG turns.",
            explicit_bucket_boundaries_advisory=semconv.SCORE_BOUNDS,
        )
        self._add_sampling_instruments(meter)
        self._duration = meter.create_histogram(
            semconv.DURATION,
            unit="s",
            description="Time from the start of an evaluation to its last score.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._lag = meter.create_histogram(
            semconv.LAG,
            unit="s",
            description="Time from the end of an evaluated span to its scores.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._calls = meter.create_counter(
            semconv.JUDGE_CALLS, unit="{request}", description="Requests to the judge."
        )
        self._embeddings = meter.create_counter(
            semconv.EMBEDDING_CALLS, unit="{request}", description="Requests to the embedder."
        )
        self._tokens = meter.create_counter(
            semconv.JUDGE_TOKENS, unit="{token}", description="Tokens the judge read and wrote."
        )
        self._cost = meter.create_counter(
            semconv.JUDGE_COST,
            unit="{currency}",
            description="Money for the tokens of judge and embedder, by metric.",
        )
        self._embedded = meter.create_counter(
            semconv.EMBEDDING_TOKENS, unit="{token}", description="Tokens of embedded texts."
        )
        self._turns = meter.create_counter(
            semconv.TURNS, unit="{turn}", description="RAG turns by what became of them."
        )
        self._errors = meter.create_counter(
            semconv.ERRORS, unit="{error}", description="Failures of this library, by place."
        )

        self._released = meter.create_counter(
            semconv.RELEASED,
            unit="{span}",
            description="Exported spans that waited for scores, by status.",
        )

    def _add_sampling_instruments(self, meter: Meter) -> None:
        self._offline = meter.create_histogram(
            semconv.OFFLINE_SCORE,
            unit="1",
            description="Scores of all RAG turns by the offline judge of a cascade.",
            explicit_bucket_boundaries_advisory=semconv.SCORE_BOUNDS,
        )
        self._weighted_scores = meter.create_counter(
            semconv.WEIGHTED_SCORE,
            unit="{score}",
            description="Scores, each divided by the probability with which its turn was chosen.",
        )
        self._weights = meter.create_counter(
            semconv.WEIGHTED_COUNT,
            unit="{turn}",
            description="Turns for which the scores stand: the sum of 1 / probability.",
        )

    def emit(self, evaluation: Evaluation) -> None:
        """Record the scores and the duration of ``evaluation``, and its requests and tokens."""
        context = span_context(evaluation.span)
        judge = _judge_of(evaluation)
        self._record_scores(evaluation)
        if evaluation.offline is not None:
            self._record_scores(evaluation.offline)
            self._count_cost(evaluation.offline, _judge_of(evaluation.offline))
        self._duration.record(evaluation.duration, judge, context=context)
        if evaluation.lag is not None:
            self._lag.record(evaluation.lag, judge, context=context)
        self._count_cost(evaluation, judge)
        self.turn(*outcome_of(evaluation))

    def _record_scores(self, evaluation: Evaluation) -> None:
        """Record the scores of one judge.

        The histogram has a uniform sample of the turns. Turns that were chosen because they look
        bad would make all figures worse. The weighted sums have all turns, in proportion.
        """
        context, sampling = span_context(evaluation.span), evaluation.sampling or Sampling()
        histogram = self._offline if sampling.stage == "offline" else self._score
        for score in evaluation.scores:
            if score.value is None:
                continue
            name = {semconv.GEN_AI_EVALUATION_NAME: score.name, **_judge_of(evaluation)}
            label = {} if score.label is None else {_LABEL: score.label}
            # The buckets cover [0, 1]; some metrics have another scale.
            value = score.value if score.normalized is None else score.normalized
            if not sampling.is_targeted:
                histogram.record(value, {**name, **label}, context=context)
            if sampling.stage == "judge" and value >= 0:  # a counter takes no negative numbers
                self._weighted_scores.add(value / sampling.probability, name)
                self._weights.add(1 / sampling.probability, name)

    def turn(
        self, outcome: Outcome, reason: Reason | SkipReason | DropReason | None = None
    ) -> None:
        attributes: dict[str, str] = {semconv.OUTCOME: outcome}
        if reason is not None:
            attributes[semconv.REASON] = reason
        self._turns.add(1, attributes)
        self.tally.add("turn", " ".join(attributes.values()))

    def released(self, status: HoldStatus) -> None:
        """Count a span that has waited for scores; ``status`` is written on the span."""
        self.tally.add("released", status)
        self._released.add(1, {semconv.STATUS: status})

    def internal_error(self, place: str) -> None:
        """Count a failure of this library; ``place`` is the part that failed, such as "sink"."""
        self.tally.add("failure", place)
        self._errors.add(1, {semconv.PLACE: place})

    def watch_held(self, count: Callable[[], int]) -> None:
        """Report the number of spans that wait for their scores, at each collection of metrics.

        ``count`` returns this number. It is a bound method, and its object is referenced weakly.
        The numbers of several pipelines are added.
        """
        self._held = WeakMethod(count)
        add_gauge_source(self._meter_provider, _HELD, self._observe_held)

    def _observe_held(self) -> list[Observation]:
        count = self._held()
        return [] if count is None else [Observation(count())]

    def _count_cost(self, evaluation: Evaluation, judge: dict[str, str]) -> None:
        usage = evaluation.usage
        if usage.judge_requests:
            self._calls.add(usage.judge_requests, judge)
        if usage.embedding_requests:
            self._embeddings.add(usage.embedding_requests)
        for kind, tokens in (("input", usage.prompt_tokens), ("output", usage.completion_tokens)):
            if tokens:
                self._tokens.add(tokens, {**judge, semconv.GEN_AI_TOKEN_TYPE: kind})
        if usage.embedding_tokens:
            self._embedded.add(usage.embedding_tokens)
        currency = {semconv.EVALUATION_CURRENCY: evaluation.currency}
        for score in evaluation.scores:
            if score.cost:
                name = {semconv.GEN_AI_EVALUATION_NAME: score.name}
                self._cost.add(score.cost, {**name, **judge, **currency})


def _judge_of(evaluation: Evaluation) -> dict[str, str]:
    model = exportable(evaluation.judge or "")
    return {semconv.EVALUATION_JUDGE: model} if model else {}


def outcome_of(evaluation: Evaluation) -> tuple[Outcome, Reason | SkipReason | None]:
    """Return the outcome of the evaluated turn (``scored``, ``unscored``, ``error``) and a reason.

    The reason says why there is no score of the judge. If only some metrics have a score, the
    reason is that of the first metric without a score. If all have a score, the reason is None.
    """
    status = evaluation.status
    if status in {"unscored", "error"}:
        return ("unscored" if status == "unscored" else "error"), evaluation.reason
    if evaluation.sampling is not None and evaluation.sampling.reason is not None:
        return "scored", evaluation.sampling.reason
    failed = next((score for score in evaluation.scores if score.status != "ok"), None)
    return "scored", failed.reason if failed else None
