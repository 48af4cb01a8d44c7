"""Record scores, counts and the state of the evaluator in OpenTelemetry instruments.

`INSTRUMENTS` describes every instrument of a pipeline. `Meters` makes those that are asked for, and
lets several pipelines report values for one gauge.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias, get_args

from opentelemetry.metrics import (
    CallbackOptions,
    Meter,
    MeterProvider,
    Observation,
    get_meter_provider,
)

from rag_eval_otel import semconv
from rag_eval_otel.capture.values import exportable
from rag_eval_otel.environment import sdk_metrics_enabled
from rag_eval_otel.evaluation import Measurement
from rag_eval_otel.export.attributes import span_context
from rag_eval_otel.judge.limits import AttemptResult, Endpoint, EndpointState
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.sampling import Sampling
from rag_eval_otel.types import (
    Evaluation,
    Feedback,
    HoldStatus,
    Label,
    Reason,
    SkipReason,
    SpanRef,
)

if TYPE_CHECKING:
    from opentelemetry.context import Context

_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""The bucket bounds of histograms of durations."""


# --- the table ------------------------------------------------------------------------------------


class Instrument(NamedTuple):
    """The kind, unit and description of an instrument.

    If several pipelines report values of a gauge with equal attributes, ``join`` computes one value
    from them.
    """

    kind: Literal["counter", "histogram", "gauge", "up_down_counter"]
    unit: str
    description: str
    bounds: tuple[float, ...] | None = None
    join: Callable[[Iterable[float]], float] = sum


_counter = partial(Instrument, "counter")
_scores = partial(Instrument, "histogram", "1", bounds=semconv.SCORE_BOUNDS)
_durations = partial(Instrument, "histogram", "s", bounds=_SECONDS)
_gauge = partial(Instrument, "gauge")


INSTRUMENTS: Final[Mapping[str, Instrument]] = {
    semconv.SCORE: _scores("Evaluation scores of RAG turns."),
    semconv.DURATION: _durations("Time from the start of an evaluation to its last score."),
    semconv.LAG: _durations("Time from the end of an evaluated span to its scores."),
    semconv.JUDGE_CALLS: _counter("{request}", "Requests to the judge."),
    semconv.EMBEDDING_CALLS: _counter("{request}", "Requests to the embedder."),
    semconv.JUDGE_TOKENS: _counter("{token}", "Tokens the judge read and wrote."),
    semconv.JUDGE_COST: _counter(
        "{currency}", "Money for the tokens of judge and embedder, by metric."
    ),
    semconv.EMBEDDING_TOKENS: _counter("{token}", "Tokens of embedded texts."),
    semconv.TURNS: _counter("{turn}", "RAG turns by what became of them."),
    semconv.CAPTURED: _counter("{turn}", "RAG turns that were found."),
    semconv.ERRORS: _counter("{error}", "Failures of this library, by place."),
    semconv.FEEDBACK_SCORE: _scores("Feedback of people, from 0 (bad) to 1 (good)."),
    semconv.FEEDBACK_RECEIVED: _counter("{feedback}", "Feedback by outcome."),
    semconv.FEEDBACK_AGREEMENT: _counter(
        "{turn}", "Turns with feedback, by the labels of the judge and of people."
    ),
    semconv.RELEASED: _counter("{span}", "Exported spans that waited for scores, by status."),
    semconv.CACHE_LOOKUPS: _counter(
        "{turn}", "Turns whose scores were looked up among kept scores, by outcome."
    ),
    semconv.OFFLINE_SCORE: _scores("Scores of all RAG turns by the offline judge of a cascade."),
    semconv.WEIGHTED_SCORE: _counter(
        "{score}", "Scores, each divided by the probability with which its turn was chosen."
    ),
    semconv.WEIGHTED_COUNT: _counter(
        "{turn}", "Turns for which the scores stand: the sum of 1 / probability."
    ),
    semconv.ENDPOINT_ATTEMPTS: _counter(
        "{request}", "Requests to judge and embedder, with each retry, by outcome."
    ),
    semconv.ENDPOINT_DURATION: _durations(
        "Time from sending a request to its reply or its failure."
    ),
    semconv.ENDPOINT_NOT_SENT: _counter(
        "{request}", "Requests to judge and embedder that were not sent, by reason."
    ),
    semconv.BUDGET_LEFT: _gauge("1", "Share of the limits of the budget that is left.", join=min),
    semconv.HELD: _gauge("{span}", "Spans that wait for their scores."),
    semconv.HELD_BYTES: _gauge(
        "By", "About how much memory the spans that wait for their scores take."
    ),
    semconv.PENDING: _gauge("{turn}", "RAG turns that were found and have no outcome yet."),
    semconv.ENDPOINT_BREAKER: _gauge(
        "{state}", "State of the circuit breaker: 0 closed, 1 open.", join=max
    ),
    semconv.ENDPOINT_LIMIT: _gauge("{request}", "Requests that may be under way at the same time."),
    semconv.ENDPOINT_IN_FLIGHT: _gauge("{request}", "Requests that are under way."),
    semconv.ENDPOINT_PAUSE: _gauge(
        "s", "Time until the next request may be sent after a refusal (429).", join=max
    ),
    semconv.SDK_QUEUE_SIZE: Instrument(
        "up_down_counter",
        "{span}",
        "The number of spans in the queue of a given instance of an SDK span processor.",
    ),
    semconv.SDK_QUEUE_CAPACITY: Instrument(
        "up_down_counter",
        "{span}",
        "The maximum number of spans the queue of a given instance of an SDK span processor can"
        " hold.",
    ),
    semconv.DRIFT_ALARMS: _counter("{alarm}", "Alarms: the scores have drifted."),
    semconv.DRIFT_EVIDENCE: _gauge(
        "1", "Evidence of drift, log10; an alarm is at log10 of the scores for one.", join=max
    ),
    semconv.BACKEND_SCORES: _counter("{score}", "Scores for backends, by what became of them."),
    semconv.BACKEND_QUEUED: _gauge("{score}", "Scores that wait to be sent to a backend."),
}
"""Every instrument of a pipeline, by its name."""


class Meters:
    """Makes the counters and histograms in `INSTRUMENTS` at their first use, and records in them.

    ``provider`` is a meter provider, by default the global one.
    """

    def __init__(self, provider: MeterProvider | None = None) -> None:
        self._meter = meter_of(provider)
        self._made: dict[str, Callable[..., None]] = {}

    def record(
        self,
        name: str,
        value: float = 1,
        attributes: Mapping[str, str] | None = None,
        *,
        context: Context | None = None,
    ) -> None:
        """Add ``value`` to the counter ``name``, or record it in the histogram ``name``."""
        record = self._made.get(name)
        if record is None:
            record = self._made[name] = self._make(name)
        record(value, attributes, context=context)

    def _make(self, name: str) -> Callable[..., None]:
        kind, unit, description, bounds, _ = INSTRUMENTS[name]
        if kind == "counter":
            return self._meter.create_counter(name, unit, description).add
        return self._meter.create_histogram(
            name, unit, description, explicit_bucket_boundaries_advisory=bounds
        ).record


# --- gauges ---------------------------------------------------------------------------------------

Source: TypeAlias = "Callable[[Any], Iterable[Observation]]"
"""Returns the values of a gauge at a collection of metrics, from an object."""


@dataclass(slots=True)
class _SharedGauge:
    """A gauge of one meter provider, which OpenTelemetry allows once, and the sources of values."""

    join: Callable[[Iterable[float]], float]
    sources: list[tuple[weakref.ref[Any], Source]] = field(default_factory=list)

    def observe(self, _: CallbackOptions) -> Iterator[Observation]:
        """Yield one observation for each attribute set."""
        observations: dict[frozenset[tuple[str, object]], list[Observation]] = {}
        for reference, source in tuple(self.sources):
            owner = reference()
            for each in () if owner is None else source(owner):
                key = frozenset((each.attributes or {}).items())
                observations.setdefault(key, []).append(each)
        for same in observations.values():
            yield Observation(self.join(each.value for each in same), same[0].attributes)


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all pipelines of one meter provider share: the gauges, and the endpoints reported on."""

    gauges: dict[str, _SharedGauge] = field(default_factory=dict)
    endpoints: weakref.WeakSet[Endpoint] = field(default_factory=weakref.WeakSet)


# The global provider may be a proxy now and replaced later.
_of_global = _Shared()
_of_others: weakref.WeakKeyDictionary[MeterProvider, _Shared] = weakref.WeakKeyDictionary()


def _shared_by(provider: MeterProvider) -> _Shared:
    shared = _of_others.get(provider)
    if shared is None:
        is_global = provider is get_meter_provider()
        shared = _of_global if is_global else _of_others.setdefault(provider, _Shared())
    return shared


def meter_of(provider: MeterProvider | None) -> Meter:
    """Return this library's meter of ``provider``, by default of the global meter provider."""
    return (provider or get_meter_provider()).get_meter(
        semconv.SCOPE, semconv.VERSION, schema_url=semconv.GEN_AI_SCHEMA_URL
    )


def add_gauges(
    provider: MeterProvider | None, owner: object, sources: Mapping[str, Source]
) -> Callable[[], None]:
    """Report the values of ``source(owner)`` in the gauges ``sources`` of `INSTRUMENTS`.

    ``owner`` is referenced weakly. Returns a function that ends the reports. Not thread-safe:
    `instrument` calls it under a lock.
    """
    used, reference = provider or get_meter_provider(), weakref.ref(owner)
    gauges = _shared_by(used).gauges
    for name, source in sources.items():
        if name not in gauges:
            row = INSTRUMENTS[name]
            shared = gauges[name] = _SharedGauge(row.join)
            create = getattr(meter_of(used), f"create_observable_{row.kind}")
            create(name, callbacks=[shared.observe], unit=row.unit, description=row.description)
        kept = [each for each in gauges[name].sources if each[0]() is not None]
        gauges[name].sources[:] = [*kept, (reference, source)]

    def stop() -> None:
        for name in sources:
            gauges[name].sources[:] = [e for e in gauges[name].sources if e[0] is not reference]

    return stop


def add_gauge_source(
    provider: MeterProvider | None, name: str, *, source: Callable[[], Iterable[Observation]]
) -> Callable[[], None]:
    """Report the values of the bound method ``source`` in the gauge ``name``: see `add_gauges`."""
    method: Any = source
    return add_gauges(provider, method.__self__, {name: method.__func__})


# --- turns ----------------------------------------------------------------------------------------

Counted = Literal["captured", "turn", "source", "released", "failure", "feedback"]
"""What a `Tally` counts, each by the names that `Stats` lists."""


class Tally:
    """Counts of turns, spans and failures, by kind and name, for `Handle.stats` and the doctor.

    Thread-safe. In a forked child process all counts start at zero.
    """

    def __init__(self) -> None:
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        # Reentrant: a garbage collection may end a span while the lock is held, which is counted.
        self._lock = threading.RLock()
        self._counts: dict[Counted, Counter[str]] = {}

    def add(self, kind: Counted, name: str, *, number: int = 1) -> None:
        with self._lock:
            self._counts.setdefault(kind, Counter())[name] += number

    def of(self, kind: Counted) -> Mapping[str, int]:
        """Return the counts of ``kind`` by name."""
        with self._lock:
            return dict(self._counts.get(kind, {}))

    def stats(self, *, held: int = 0, scoring: int = 0) -> Stats:
        """Return all counts at this moment, with the numbers of spans that wait now."""
        with self._lock:
            counts = {kind: self.of(kind) for kind in get_args(Counted)}
        captured, turns = sum(counts["captured"].values()), counts["turn"]
        return Stats(
            captured=captured,
            turns=turns,
            pending=captured - sum(turns.values()),
            released=counts["released"],
            sources=counts["source"],
            failures=counts["failure"],
            held=held,
            scoring=scoring,
            feedback=counts["feedback"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Counts of one pipeline since it was built; in a forked child, since the fork.

    - ``captured``: number of turns (questions with their answers) that were found.
    - ``turns``: number of turns by outcome and reason, for example ``scored`` or
      ``skipped no_answer``.
    - ``pending``: number of turns without an outcome, ``captured`` less the sum of ``turns``.
    - ``released``: number of spans that waited for scores, by the status with which they were
      exported.
    - ``sources``: number of spans by instrumentation, and of LangChain turns as ``callback``.
    - ``failures``: number of errors of this library, by the part of the library that failed.
    - ``held``: number of spans and run trees that wait now.
    - ``scoring``: number of waiting spans and run trees that have been read and are being scored.
    - ``feedback``: number of feedback of people by outcome, for example ``joined``.
    """

    captured: int
    turns: Mapping[str, int]
    pending: int
    released: Mapping[str, int]
    sources: Mapping[str, int]
    failures: Mapping[str, int]
    held: int
    scoring: int
    feedback: Mapping[str, int]


Outcome = Literal["scored", "unscored", "error", "dropped", "skipped"]
DropReason = Literal["overload", "shutdown"]
FeedbackOutcome = Literal["joined", "unmatched", "dropped", "refused"]
"""What became of feedback. ``joined``: its turn, or a trace under way, is known. ``unmatched``: it
was passed on with its ids alone. ``dropped``: no room. ``refused``: a wrong argument."""

OVERALL: Final = "overall"
"""The name under which the label of a whole turn is compared with people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The judge's ``label`` of a turn for one metric, and the feedback of a person on the turn.

    ``version`` is the version of the metric's score.
    """

    metric: str
    label: Label
    version: str
    feedback: Feedback

    @property
    def value(self) -> float:
        """1 if judge and person give the same label, else 0."""
        return float(self.label == self.feedback.label)


_LABEL = semconv.GEN_AI_EVALUATION_SCORE_LABEL
_MOST_NAMES = 100  # of models, services, or feedback, in attributes of metrics
NAME_LENGTH = 128  # characters of such a name: more than services and models have


class InstrumentSink:
    """Record scores and durations in histograms, and turns, requests and failures in counters.

    Values in the histograms can have exemplars, which refer to the evaluated spans. The counter
    ``rag.evaluation.turns`` counts every turn exactly once. ``services`` are always told apart in
    metrics, however many other services there are.
    """

    def __init__(
        self, meter_provider: MeterProvider | None = None, *, services: Collection[str] = ()
    ) -> None:
        self.tally = Tally()
        self._judges = set[str]()
        self._services = set[str]()
        self._named_services = frozenset(services)
        self._feedback_names = set[str]()
        self._meter_provider = meter_provider
        self._meters = Meters(meter_provider)

    def __call__(self, evaluation: Evaluation) -> None:
        self.record(evaluation)
        self.turn(*outcome_of(evaluation))

    def record(self, evaluation: Evaluation) -> None:
        """Record ``evaluation`` without the outcome of a turn, as for a row of a dataset."""
        context = span_context(evaluation.span)
        source = self._judge_and_service(evaluation)
        self._record_scores(evaluation)
        if evaluation.offline is not None:
            self._record_scores(evaluation.offline)
            self.count_cost(evaluation.offline)
        self._meters.record(semconv.DURATION, evaluation.duration, source, context=context)
        if evaluation.lag is not None:
            self._meters.record(semconv.LAG, evaluation.lag, source, context=context)
        self.count_cost(evaluation)

    def _record_scores(self, evaluation: Evaluation) -> None:
        """Record the scores of one judge.

        The histogram has a uniform sample of the turns. Turns that were chosen because they look
        bad would make all figures worse. The weighted sums have all turns, in proportion.
        """
        context, sampling = span_context(evaluation.span), evaluation.sampling or Sampling()
        histogram = semconv.OFFLINE_SCORE if sampling.stage == "offline" else semconv.SCORE
        source = self._judge_and_service(evaluation)
        for score in evaluation.scores:
            if score.value is None:
                continue
            name = {semconv.GEN_AI_EVALUATION_NAME: score.name, **source}
            label = {} if score.label is None else {_LABEL: score.label}
            # The buckets cover [0, 1]; some metrics have another scale.
            value = score.value if score.normalized is None else score.normalized
            if not sampling.is_targeted:
                self._meters.record(histogram, value, {**name, **label}, context=context)
            if sampling.stage == "judge" and value >= 0:  # a counter takes no negative numbers
                self._meters.record(semconv.WEIGHTED_SCORE, value / sampling.probability, name)
                self._meters.record(semconv.WEIGHTED_COUNT, 1 / sampling.probability, name)

    def found(self, turns: int = 1) -> None:
        """Count ``turns`` RAG turns as found; `turn` counts later what became of each."""
        self.tally.add("captured", "turn", number=turns)
        self._meters.record(semconv.CAPTURED, turns)

    def turn(self, status: Outcome, reason: Reason | SkipReason | DropReason | None = None) -> None:
        attributes: dict[str, str] = {semconv.STATUS: status}
        if reason is not None:
            attributes[semconv.REASON] = reason
        self._meters.record(semconv.TURNS, 1, attributes)
        self.tally.add("turn", " ".join(attributes.values()))

    def feedback(self, feedback: Feedback | None, outcome: FeedbackOutcome) -> None:
        """Count feedback of people; ``feedback`` is None if it could not be read."""
        attributes: dict[str, str] = {semconv.OUTCOME: outcome}
        if feedback is not None:
            attributes |= self._of_feedback(feedback)
        self._meters.record(semconv.FEEDBACK_RECEIVED, 1, attributes)
        self.tally.add("feedback", outcome)

    def emit_feedback(self, feedback: Feedback) -> None:
        """Record the score of ``feedback``."""
        rated = SpanRef(trace_id=feedback.trace_id, span_id=feedback.span_id or 0)
        name = self._of_feedback(feedback)
        self._meters.record(
            semconv.FEEDBACK_SCORE, feedback.score, name, context=span_context(rated)
        )

    def emit_agreement(self, agreement: Agreement) -> None:
        """Count a turn by the labels of the judge and of people."""
        name = {semconv.GEN_AI_EVALUATION_NAME: agreement.metric, _LABEL: agreement.label}
        self._meters.record(
            semconv.FEEDBACK_AGREEMENT, 1, {**name, **self._of_feedback(agreement.feedback)}
        )

    def _of_feedback(self, feedback: Feedback) -> dict[str, str]:
        """Return the attributes of ``feedback``; after 100 names, the name is ``other``."""
        name = _limited(feedback.name, self._feedback_names)
        return {semconv.FEEDBACK: name, semconv.FEEDBACK_LABEL: feedback.label or ""}

    def released(self, status: HoldStatus) -> None:
        """Count a span that has waited for scores; ``status`` is written on the span."""
        self.tally.add("released", status)
        self._meters.record(semconv.RELEASED, 1, {semconv.STATUS: status})

    def cache_lookup(self, outcome: str) -> None:
        """Count a turn whose scores were looked up: ``hit`` or ``miss``."""
        self._meters.record(semconv.CACHE_LOOKUPS, 1, {semconv.OUTCOME: outcome})

    def internal_error(self, place: str) -> None:
        """Count a failure of this library; ``place`` is the part that failed, such as "sink"."""
        self.tally.add("failure", place)
        self._meters.record(semconv.ERRORS, 1, {semconv.PLACE: place})

    def watch(self, held: Held, measurements: Iterable[Measurement] = ()) -> None:
        """Report in gauges the spans that are ``held``, pending turns, and judges and embedders."""
        self._held = held  # gauges refer to it weakly
        _watch_held(self._meter_provider, held)
        pending: Source = lambda tally: [Observation(tally.stats().pending)]  # noqa: E731
        add_gauges(self._meter_provider, self.tally, {semconv.PENDING: pending})
        for measurement in measurements:
            for model in (measurement.judge, measurement.embedder):
                endpoint = getattr(model, "endpoint", None)  # an offline one has none
                if isinstance(endpoint, Endpoint):
                    _watch_endpoint(self._meter_provider, endpoint)

    def watch_budget(self, left: Callable[[], Iterable[Observation]]) -> None:
        """Report what the bound method ``left`` returns of the budget, the lowest of pipelines."""
        add_gauge_source(self._meter_provider, semconv.BUDGET_LEFT, source=left)

    def _judge_and_service(self, evaluation: Evaluation) -> dict[str, str]:
        """Return the attributes that name the judge's model, and the service if it is known.

        The judge's server names the model, and each name makes new series of metrics. After 100
        models, or services that are not named in the configuration, the name is ``other``.
        """
        model = _limited(exportable(evaluation.judge or ""), self._judges)
        found = {semconv.EVALUATION_JUDGE: model} if model else {}
        service = evaluation.service
        if service is not None:
            is_named = service in self._named_services
            found[semconv.SERVICE_NAME] = service if is_named else _limited(service, self._services)
        return found

    def count_cost(self, evaluation: Evaluation) -> None:
        """Count the requests, tokens and money of ``evaluation``, and nothing else."""
        usage, source = evaluation.usage, self._judge_and_service(evaluation)
        if usage.judge_requests:
            self._meters.record(semconv.JUDGE_CALLS, usage.judge_requests, source)
        if usage.embedding_requests:
            self._meters.record(semconv.EMBEDDING_CALLS, usage.embedding_requests)
        for kind, tokens in (("input", usage.prompt_tokens), ("output", usage.completion_tokens)):
            if tokens:
                self._meters.record(
                    semconv.JUDGE_TOKENS, tokens, {**source, semconv.GEN_AI_TOKEN_TYPE: kind}
                )
        if usage.embedding_tokens:
            self._meters.record(semconv.EMBEDDING_TOKENS, usage.embedding_tokens)
        currency = {semconv.EVALUATION_CURRENCY: evaluation.currency}
        for score in evaluation.scores:
            if score.cost:
                name = {semconv.GEN_AI_EVALUATION_NAME: score.name}
                self._meters.record(semconv.JUDGE_COST, score.cost, {**name, **source, **currency})


def _limited(name: str, known: set[str]) -> str:
    """Add ``name``, cut, to ``known`` and return it; return ``other`` for too many names."""
    name = name[:NAME_LENGTH]
    if name not in known and len(known) >= _MOST_NAMES:
        return "other"
    known.add(name)
    return name


def outcome_of(evaluation: Evaluation) -> tuple[Outcome, Reason | SkipReason | None]:
    """Return the outcome of the evaluated turn and why scores of the judge are missing.

    ``span_missed``: all are there, but not on a span, and nothing on a span says so.
    """
    status = evaluation.status
    if status in {"unscored", "error"}:
        return ("unscored" if status == "unscored" else "error"), evaluation.reason
    if evaluation.sampling is not None and evaluation.sampling.reason is not None:
        return "scored", evaluation.sampling.reason
    failed = next((score for score in evaluation.scores if score.status != "ok"), None)
    if failed is None and evaluation.is_span_missed:
        return "scored", "span_missed"
    return "scored", failed.reason if failed else None


# --- the state of a pipeline and of its endpoints -------------------------------------------------

_COMPONENT = "rag_eval_otel.RagEvalSpanProcessor"
_numbers = count()


class Held(Protocol):
    """The spans of one pipeline that wait for scores."""

    def __len__(self) -> int:
        """Return the number of spans."""

    @property
    def size(self) -> int:
        """About how many bytes the spans take in memory."""

    @property
    def capacity(self) -> int:
        """The most spans that may wait at the same time."""


def _watch_held(provider: MeterProvider | None, held: Held) -> None:
    """Report the spans that wait; if the SDK reports on itself, as the queue of a processor, too.

    Processed spans are not, because the processor that exports them counts them.
    """
    sources: dict[str, Source] = {
        semconv.HELD: lambda held: [Observation(len(held))],
        semconv.HELD_BYTES: lambda held: [Observation(held.size)],
    }
    if sdk_metrics_enabled():
        component = {
            semconv.OTEL_COMPONENT_TYPE: _COMPONENT,
            semconv.OTEL_COMPONENT_NAME: f"{_COMPONENT}/{next(_numbers)}",
        }
        sources[semconv.SDK_QUEUE_SIZE] = lambda held: [Observation(len(held), component)]
        sources[semconv.SDK_QUEUE_CAPACITY] = lambda held: [Observation(held.capacity, component)]
    add_gauges(provider, held, sources)


_ENDPOINT_GAUGES: Final[Mapping[str, Callable[[EndpointState], float]]] = {
    semconv.ENDPOINT_BREAKER: lambda state: float(state.breaker == "open"),
    semconv.ENDPOINT_LIMIT: lambda state: state.limit,
    semconv.ENDPOINT_IN_FLIGHT: lambda state: state.in_flight,
    semconv.ENDPOINT_PAUSE: lambda state: state.pause,
}


def _watch_endpoint(provider: MeterProvider | None, endpoint: Endpoint) -> None:
    """Report ``endpoint`` as long as it exists: attempts, requests not sent, and its limits.

    Several pipelines may use one judge, at the same time or one after another, and each request is
    counted once.
    """
    known = _shared_by(provider or get_meter_provider()).endpoints
    if endpoint in known:
        return
    known.add(endpoint)
    meters = Meters(provider)

    def count_attempt(attempt: AttemptResult) -> None:
        attributes = {**_named(attempt.endpoint), semconv.OUTCOME: attempt.outcome}
        meters.record(semconv.ENDPOINT_ATTEMPTS, 1, attributes)
        meters.record(semconv.ENDPOINT_DURATION, attempt.seconds, attributes)

    def count_not_sent(name: str, reason: str) -> None:
        meters.record(semconv.ENDPOINT_NOT_SENT, 1, {**_named(name), semconv.REASON: reason})

    # New lists, because another thread may read the old ones.
    endpoint.observers = [*endpoint.observers, count_attempt]
    endpoint.refusal_observers = [*endpoint.refusal_observers, count_not_sent]
    sources = {name: partial(_of_state, value) for name, value in _ENDPOINT_GAUGES.items()}
    add_gauges(provider, endpoint, sources)


def _of_state(value: Callable[[EndpointState], float], endpoint: Endpoint) -> list[Observation]:
    state = endpoint.state
    return [Observation(value(state), _named(state.name))]


def _named(endpoint: str) -> dict[str, str]:
    return {semconv.ENDPOINT: exportable(endpoint)}
