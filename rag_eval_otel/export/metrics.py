"""Report scores, counts and the state of the pipeline in OpenTelemetry instruments."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, get_args

from opentelemetry.metrics import (
    CallbackOptions,
    Meter,
    MeterProvider,
    Observation,
    get_meter_provider,
)

from rag_eval_otel import semconv
from rag_eval_otel.capture.values import exportable
from rag_eval_otel.evaluation import Measurement
from rag_eval_otel.export.attributes import span_context
from rag_eval_otel.judge.endpoint import Endpoint
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.types import Evaluation, Feedback, HoldStatus, Reason, Sampling, SkipReason

if TYPE_CHECKING:
    from opentelemetry.context import Context

_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)  # bounds of durations


class Instrument(NamedTuple):
    """A row of `INSTRUMENTS`. ``join`` combines the values of several pipelines in a gauge."""

    kind: Literal["counter", "histogram", "gauge"]
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
        "{currency}", "Money for tokens of judge and embedder, by metric."
    ),
    semconv.TURNS: _counter("{turn}", "RAG turns by what became of them."),
    semconv.CAPTURED: _counter("{turn}", "RAG turns that were found."),
    semconv.ERRORS: _counter("{error}", "Failures of this library, by place."),
    semconv.FEEDBACK_RECEIVED: _counter("{feedback}", "Feedback by outcome."),
    semconv.RELEASED: _counter("{span}", "Exported spans that waited for scores, by status."),
    semconv.OMITTED: _counter("{attribute}", "Attributes of scores that a span had no room for."),
    semconv.OFFLINE_SCORE: _scores("Scores of all RAG turns by the offline judge of a cascade."),
    semconv.WEIGHTED_SCORE: _counter(
        "{score}", "Scores, divided by the probability of their turn."
    ),
    semconv.WEIGHTED_COUNT: _counter(
        "{turn}", "Turns that were scored: the sum of 1 / probability."
    ),
    semconv.ENDPOINT_ATTEMPTS: _counter("{request}", "Requests with each retry, by outcome."),
    semconv.ENDPOINT_DURATION: _durations("Time from sending a request to its reply or failure."),
    semconv.ENDPOINT_NOT_SENT: _counter("{request}", "Requests that were not sent, by reason."),
    semconv.BUDGET_LEFT: _gauge("1", "Share of the limits of the budget that is left.", join=min),
    semconv.HELD: _gauge("{span}", "Spans that wait for their scores."),
    semconv.HELD_BYTES: _gauge("By", "About how much memory the waiting spans take."),
    semconv.PENDING: _gauge("{turn}", "RAG turns that were found and have no outcome yet."),
    semconv.ENDPOINT_BREAKER: _gauge("{state}", "Circuit breaker: 0 closed, 1 open.", join=max),
    semconv.DRIFT_ALARMS: _counter("{alarm}", "Alarms: the scores have drifted."),
    semconv.DRIFT_EVIDENCE: _gauge("1", "Evidence of drift, log10; see docs/drift.md.", join=max),
    semconv.WORKER_SPANS: _counter("{span}", "Spans that a worker has sent on, by outcome."),
    semconv.WORKER_REFUSED: _counter("{request}", "Requests that a worker refused, by reason."),
    semconv.KAFKA_MESSAGES: _counter("{message}", "Kafka messages that were read, by outcome."),
    semconv.KAFKA_LAG: _gauge("{message}", "Kafka messages that are not finished, by partition."),
    semconv.BACKEND_SCORES: _counter("{score}", "Scores for backends, by what became of them."),
    semconv.BACKEND_QUEUED: _gauge("{score}", "Scores that wait to be sent to a backend."),
}


class Meters:
    """Creates counters and histograms of `INSTRUMENTS` on first use, and records values."""

    def __init__(self, provider: MeterProvider | None = None) -> None:
        self._meter = _meter_of(provider or get_meter_provider())
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
            kind, unit, description, bounds, _ = INSTRUMENTS[name]
            record = self._made[name] = (
                self._meter.create_counter(name, unit, description).add
                if kind == "counter"
                else self._meter.create_histogram(
                    name, unit, description, explicit_bucket_boundaries_advisory=bounds
                ).record
            )
        record(value, attributes, context=context)


def _meter_of(provider: MeterProvider) -> Meter:
    return provider.get_meter(semconv.SCOPE, semconv.VERSION, schema_url=semconv.GEN_AI_SCHEMA_URL)


# Returns the observations of a gauge from an object, at each collection of metrics.
Source: TypeAlias = "Callable[[Any], Iterable[Observation]]"
_Sources: TypeAlias = list[tuple[weakref.ref[Any], Source]]

_of_global: dict[str, _Sources] = {}
_of_others: weakref.WeakKeyDictionary[MeterProvider, dict[str, _Sources]]
_of_others = weakref.WeakKeyDictionary()


def _gauges_of(provider: MeterProvider) -> dict[str, _Sources]:
    """Return the sources by gauge: a meter provider creates each once, for all pipelines."""
    # The global provider may be a proxy now and replaced later.
    is_global = provider is get_meter_provider() and provider not in _of_others
    return _of_global if is_global else _of_others.setdefault(provider, {})


def add_gauges(
    provider: MeterProvider | None, owner: object, sources: Mapping[str, Source]
) -> None:
    """Report in each gauge of ``sources`` the observations that its function makes of ``owner``.

    ``owner`` is kept as a weak reference. Not thread-safe: `instrument` has a lock.
    """
    provider, reference = provider or get_meter_provider(), weakref.ref(owner)
    gauges = _gauges_of(provider)
    for name, source in sources.items():
        if name not in gauges:
            row, gauges[name] = INSTRUMENTS[name], []
            getattr(_meter_of(provider), f"create_observable_{row.kind}")(
                name,
                callbacks=[partial(_observe, gauges[name], row.join)],
                unit=row.unit,
                description=row.description,
            )
        kept = [each for each in gauges[name] if each[0]() is not None]
        gauges[name][:] = [*kept, (reference, source)]


def _observe(
    sources: _Sources, join: Callable[[Iterable[float]], float], _: CallbackOptions
) -> Iterator[Observation]:
    """Yield one observation for each set of attributes, joined from those of all ``sources``."""
    observations: dict[frozenset[tuple[str, object]], list[Observation]] = {}
    for reference, source in tuple(sources):
        owner = reference()
        for each in () if owner is None else source(owner):
            key = frozenset((each.attributes or {}).items())
            observations.setdefault(key, []).append(each)
    for same in observations.values():
        yield Observation(join(each.value for each in same), same[0].attributes)


Counted = Literal["captured", "turns", "released", "sources", "failures", "feedback"]


class Tally:
    """Thread-safe counters for `Handle.stats`, by kind and name; zero again in a forked child."""

    def __init__(self) -> None:
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        # Reentrant: a garbage collection may end a span while the lock is held, which is counted.
        self._lock = threading.RLock()
        self._counts: Mapping[Counted, Counter[str]] = {k: Counter() for k in get_args(Counted)}

    def add(self, kind: Counted, name: str, *, number: int = 1) -> None:
        with self._lock:
            self._counts[kind][name] += number

    def stats(self, *, held: int = 0, scoring: int = 0) -> Stats:
        """Return all counts; ``held``: spans that wait now, ``scoring``: those being scored."""
        with self._lock:
            counts: dict[str, Any] = {kind: dict(each) for kind, each in self._counts.items()}
        captured = sum(counts.pop("captured").values())
        pending = captured - sum(counts["turns"].values())
        return Stats(captured=captured, pending=pending, held=held, scoring=scoring, **counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Counts of one pipeline since it was built; in a forked child, since the fork."""

    captured: int  # turns (questions with their answers) that were found
    turns: Mapping[str, int]  # by outcome and reason, such as ``scored`` or ``skipped no_answer``
    pending: int  # turns without an outcome: ``captured`` less the sum of ``turns``
    released: Mapping[str, int]  # spans that waited for scores, by the status on them
    sources: Mapping[str, int]  # spans by instrumentation; LangChain turns are ``callback``
    failures: Mapping[str, int]  # errors of this library, by the part that failed
    held: int  # spans and run trees that wait now
    scoring: int  # those of them that have been read and are being scored
    feedback: Mapping[str, int]  # feedback of people by outcome, such as ``joined``


Outcome = Literal["scored", "unscored", "error", "dropped", "skipped"]
DropReason = Literal["overload", "shutdown"]
_WhyNot: TypeAlias = Reason | SkipReason | DropReason | None
FeedbackOutcome = Literal["joined", "unmatched", "dropped", "refused"]
"""``unmatched``: the turn is not known. ``dropped``: no room. ``refused``: a wrong argument."""

_LABEL = semconv.GEN_AI_EVALUATION_SCORE_LABEL
_MOST_NAMES = 100  # of models or feedback, in attributes of metrics
_NAME_LENGTH = 128  # characters of such a name: more than models have


class InstrumentSink:
    """Record scores and durations in histograms, and turns, requests and failures in counters."""

    def __init__(
        self, meter_provider: MeterProvider | None = None, *, services: Iterable[str] = ()
    ) -> None:
        self.tally = Tally()
        self._names: dict[str, set[str]] = {semconv.SERVICE_NAME: set(services)}
        self._meter_provider = meter_provider
        self._record = Meters(meter_provider).record

    def __call__(self, evaluation: Evaluation) -> None:
        self.record(evaluation)
        verdict = {
            semconv.GEN_AI_EVALUATION_SCORE_LABEL: evaluation.label,
            semconv.OUTCOME: evaluation.outcome,
            semconv.CAUSE: evaluation.cause,
        }
        known = {name: value for name, value in verdict.items() if value is not None}
        self.turn(*outcome_of(evaluation), verdict=known)

    def record(self, evaluation: Evaluation) -> None:
        """Record ``evaluation`` without counting a turn, as for a row of a dataset."""
        context, source = span_context(evaluation.span), self._source(evaluation)
        for scored in filter(None, (evaluation, evaluation.offline)):
            self._record_scores(scored, context)
            self.count_cost(scored)
        self._record(semconv.DURATION, evaluation.duration, source, context=context)
        if evaluation.lag is not None:
            self._record(semconv.LAG, evaluation.lag, source, context=context)

    def _record_scores(self, evaluation: Evaluation, context: Context | None) -> None:
        """Record the scores of one judge; those of targeted turns would bias the histogram."""
        sampling = evaluation.sampling or Sampling()
        histogram = semconv.OFFLINE_SCORE if sampling.stage == "offline" else semconv.SCORE
        source = self._source(evaluation)
        for score in evaluation.scores:
            # The buckets cover [0, 1]; some metrics have another scale.
            value = score.value if score.normalized is None else score.normalized
            if value is None:
                continue
            name = {semconv.GEN_AI_EVALUATION_NAME: score.name, **source}
            label = {} if score.label is None else {_LABEL: score.label}
            if not sampling.is_targeted:
                self._record(histogram, value, {**name, **label}, context=context)
            if sampling.stage == "judge" and value >= 0:  # a counter takes no negative numbers
                self._record(semconv.WEIGHTED_SCORE, value / sampling.probability, name)
                self._record(semconv.WEIGHTED_COUNT, 1 / sampling.probability, name)

    def found(self, turns: int = 1) -> None:
        """Count RAG turns that were found; `turn` later counts the outcome of each."""
        self.tally.add("captured", "turn", number=turns)
        self._record(semconv.CAPTURED, turns)

    def turn(
        self,
        status: Outcome,
        reason: _WhyNot = None,
        *,
        turns: int = 1,
        verdict: Mapping[str, str] | None = None,
    ) -> None:
        attributes: dict[str, str] = {semconv.STATUS: status}
        if reason is not None:
            attributes[semconv.REASON] = reason
        if turns:  # 0 would be a point and an outcome of its own
            self._record(semconv.TURNS, turns, {**attributes, **(verdict or {})})
            self.tally.add("turns", " ".join(attributes.values()), number=turns)

    def feedback(self, feedback: Feedback | None, outcome: FeedbackOutcome) -> None:
        """Count feedback by ``outcome``; ``feedback`` is None if its arguments were wrong."""
        about: dict[str, str] = {}
        if feedback is not None:
            about[semconv.FEEDBACK] = self.limited("feedback", feedback.name)
            about[semconv.FEEDBACK_LABEL] = feedback.label or ""
        self._record(semconv.FEEDBACK_RECEIVED, 1, {semconv.OUTCOME: outcome, **about})
        self.tally.add("feedback", outcome)

    def released(self, status: HoldStatus) -> None:
        """Count a span that was held and is now exported, by its ``rag.evaluation.status``."""
        self.tally.add("released", status)
        self._record(semconv.RELEASED, 1, {semconv.STATUS: status})

    def omitted(self, number: int) -> None:
        """Count attributes of scores for which a span had no room."""
        self._record(semconv.OMITTED, number)

    def internal_error(self, place: str) -> None:
        """Count an exception in the part ``place`` of this library, such as "sink"."""
        self.tally.add("failures", place)
        self._record(semconv.ERRORS, 1, {semconv.PLACE: place})

    def watch(self, held: Any, measurements: Iterable[Measurement] = ()) -> None:
        """Report ``held`` (length, ``size``), pending turns and endpoints of models in gauges."""
        provider = self._meter_provider
        self._held = held  # gauges refer to it weakly
        gauges: dict[str, Source] = {
            semconv.HELD: lambda held: _one(len(held)),
            semconv.HELD_BYTES: lambda held: _one(held.size),
        }
        add_gauges(provider, held, gauges)
        add_gauges(provider, self.tally, {semconv.PENDING: lambda t: _one(t.stats().pending)})
        for measurement in measurements:
            for model in (measurement.judge, measurement.embedder):
                endpoint = getattr(model, "endpoint", None)  # an offline one has none
                if isinstance(endpoint, Endpoint):
                    _watch_endpoint(provider, endpoint)

    def watch_budget(self, left: Callable[[], Iterable[Observation]]) -> None:
        """Report the shares of the budget that the bound method ``left`` returns, in a gauge."""
        method: Any = left
        add_gauges(self._meter_provider, method.__self__, {semconv.BUDGET_LEFT: method.__func__})

    def _source(self, evaluation: Evaluation) -> dict[str, str]:
        names = {
            semconv.EVALUATION_JUDGE: exportable(evaluation.judge or ""),
            semconv.SERVICE_NAME: evaluation.about.get(semconv.SERVICE_NAME),
        }
        return {kind: self.limited(kind, str(name)) for kind, name in names.items() if name}

    def limited(self, kind: str, name: str) -> str:
        """Return ``name``, truncated; ``other`` after 100 names of ``kind`` limits time series."""
        known, name = self._names.setdefault(kind, set()), name[:_NAME_LENGTH]
        if name not in known and len(known) >= _MOST_NAMES:
            return "other"
        known.add(name)
        return name

    def count_cost(self, evaluation: Evaluation) -> None:
        """Count the requests, tokens and money of ``evaluation``."""
        usage, source = evaluation.usage, self._source(evaluation)
        read, written = ({**source, semconv.TOKEN_TYPE: k} for k in ("input", "output"))
        for name, number, attributes in (
            (semconv.JUDGE_CALLS, usage.judge_requests, source),
            (semconv.JUDGE_TOKENS, usage.prompt_tokens, read),
            (semconv.JUDGE_TOKENS, usage.completion_tokens, written),
            (semconv.EMBEDDING_CALLS, usage.embedding_requests, None),
        ):
            if number:
                self._record(name, number, attributes)
        currency = {**source, semconv.EVALUATION_CURRENCY: evaluation.currency}
        for score in evaluation.scores:
            if score.cost:
                paid = {semconv.GEN_AI_EVALUATION_NAME: score.name, **currency}
                self._record(semconv.JUDGE_COST, score.cost, paid)


def outcome_of(evaluation: Evaluation) -> tuple[Outcome, _WhyNot]:
    """Return the outcome of the turn, and the reason why scores or its span are missing."""
    status, sampling = evaluation.status, evaluation.sampling
    if status == "unscored" or status == "error":  # noqa: PLR1714  # the type is narrowed
        return status, evaluation.reason
    if sampling is not None and sampling.reason is not None:
        return "scored", sampling.reason
    failed = [score.reason for score in evaluation.scores if score.status != "ok"]
    return "scored", failed[0] if failed else "span_missed" if evaluation.is_span_missed else None


def _one(value: float, attributes: Mapping[str, str] | None = None) -> list[Observation]:
    return [Observation(value, attributes)]


def _watch_endpoint(provider: MeterProvider | None, endpoint: Endpoint) -> None:
    """Report requests of ``endpoint``, those not sent, and its breaker, once for all pipelines."""
    gauges = _gauges_of(provider or get_meter_provider())
    if any(each() is endpoint for each, _ in gauges.get(semconv.ENDPOINT_BREAKER, ())):
        return
    record, named = Meters(provider).record, {semconv.ENDPOINT: exportable(endpoint.name)}

    def count_attempt(outcome: str, seconds: float) -> None:
        attributes = {**named, semconv.OUTCOME: outcome}
        record(semconv.ENDPOINT_ATTEMPTS, 1, attributes)
        record(semconv.ENDPOINT_DURATION, seconds, attributes)

    def count_not_sent(reason: str) -> None:
        record(semconv.ENDPOINT_NOT_SENT, 1, {**named, semconv.REASON: reason})

    # New lists, because another thread may read the old ones.
    endpoint.observers = [*endpoint.observers, count_attempt]
    endpoint.refusal_observers = [*endpoint.refusal_observers, count_not_sent]
    is_open: Source = lambda each: _one(float(each.breaker.is_open), named)  # noqa: E731
    add_gauges(provider, endpoint, {semconv.ENDPOINT_BREAKER: is_open})
