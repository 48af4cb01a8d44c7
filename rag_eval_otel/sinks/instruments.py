"""Record scores and counts in OpenTelemetry instruments (histograms, counters and gauges).

A *turn* is one question of a user and its answer.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from rag_eval_otel import semconv
from rag_eval_otel.capture.text import exportable
from rag_eval_otel.evaluation import Measurement
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.sampling import Sampling
from rag_eval_otel.sinks.attributes import span_context
from rag_eval_otel.sinks.health import (
    SECONDS,
    Gauge,
    Health,
    Held,
    Source,
    add_gauge_source,
    meter_of,
)
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
    from opentelemetry.metrics import Meter, MeterProvider

Counted = Literal["captured", "turn", "source", "released", "failure", "feedback"]
"""What a `Tally` counts.

``captured``: turns that were found, with the name ``turn``. ``turn``: turns by outcome and reason.
``source``: spans by the instrumentation that wrote them, and turns of LangChain runs as
``callback``. ``released``: spans that waited for scores, by the status with which they were
exported. ``failure``: failures of this library by the part that failed, such as ``sink``.
``feedback``: feedback of people by what became of it.
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

    def add(self, kind: Counted, name: str, *, number: int = 1) -> None:
        with self._lock:
            self._counts.setdefault(kind, Counter())[name] += number

    def of(self, kind: Counted) -> Mapping[str, int]:
        """Return the counts of ``kind`` by name, for example of turns by outcome and reason."""
        with self._lock:
            return dict(self._counts.get(kind, {}))

    def turns(self) -> tuple[int, Mapping[str, int]]:
        """Return the number of turns that were found, and the turns by outcome and reason.

        Both are from the same moment. Their difference is the number of turns without an outcome.
        """
        with self._lock:
            return sum(self.of("captured").values()), self.of("turn")


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
_BUDGET = Gauge(
    name=semconv.BUDGET_LEFT,
    unit="1",
    description="Share of the limits of the budget that is left.",
    join=min,
)

_MOST_NAMES = 100  # of models, services, or feedback, in attributes of metrics


class InstrumentSink:
    """Record scores and durations in histograms, and turns, requests and failures in counters.

    Values in the histograms can have exemplars, which refer to the evaluated spans. The counter
    ``rag.evaluation.turns`` counts every turn exactly once, with or without scores. It has the
    attribute ``outcome`` and, if there is a reason, the attribute ``reason``.
    """

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        meter = meter_of(meter_provider)
        self.tally = Tally()
        self._judges = set[str]()
        self._services = set[str]()
        self._feedback_names = set[str]()
        self._health: Health | None = None
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
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self._lag = meter.create_histogram(
            semconv.LAG,
            unit="s",
            description="Time from the end of an evaluated span to its scores.",
            explicit_bucket_boundaries_advisory=SECONDS,
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
        self._captured = meter.create_counter(
            semconv.CAPTURED, unit="{turn}", description="RAG turns that were found."
        )
        self._errors = meter.create_counter(
            semconv.ERRORS, unit="{error}", description="Failures of this library, by place."
        )

        self._add_health_instruments(meter)
        self._add_feedback_instruments(meter)

    def _add_feedback_instruments(self, meter: Meter) -> None:
        self._feedback_score = meter.create_histogram(
            semconv.FEEDBACK_SCORE,
            unit="1",
            description="Feedback of people, from 0 (bad) to 1 (good).",
            explicit_bucket_boundaries_advisory=semconv.SCORE_BOUNDS,
        )
        self._feedback = meter.create_counter(
            semconv.FEEDBACK_RECEIVED, unit="{feedback}", description="Feedback by outcome."
        )
        self._agreement = meter.create_counter(
            semconv.FEEDBACK_AGREEMENT,
            unit="{turn}",
            description="Turns with feedback, by the labels of the judge and of people.",
        )
        self._feedback_evaluated = meter.create_counter(
            semconv.FEEDBACK_EVALUATED,
            unit="{turn}",
            description="Turns that were evaluated because of bad feedback.",
        )

    def _add_health_instruments(self, meter: Meter) -> None:
        self._released = meter.create_counter(
            semconv.RELEASED,
            unit="{span}",
            description="Exported spans that waited for scores, by status.",
        )
        self._lookups = meter.create_counter(
            semconv.CACHE_LOOKUPS,
            unit="{turn}",
            description="Turns whose scores were looked up among kept scores, by outcome.",
        )
        self._watchdog = meter.create_counter(
            semconv.WATCHDOG,
            unit="{event}",
            description="Parts that blocked the event loop and were disabled, by place.",
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
        """Record the scores and the duration of ``evaluation``, and its requests and tokens.

        Of a turn that was evaluated because of feedback, only the cost is recorded. The turn was
        counted when it was skipped.
        """
        if evaluation.sampling is not None and evaluation.sampling.is_by_feedback:
            self.count_cost(evaluation)
            return
        self.record(evaluation)
        self.turn(*outcome_of(evaluation))

    def record(self, evaluation: Evaluation) -> None:
        """Record what `emit` records, without the outcome of a turn, as for a row of a dataset."""
        context = span_context(evaluation.span)
        source = self._judge_and_service(evaluation)
        self._record_scores(evaluation)
        if evaluation.offline is not None:
            self._record_scores(evaluation.offline)
            self.count_cost(evaluation.offline)
        self._duration.record(evaluation.duration, source, context=context)
        if evaluation.lag is not None:
            self._lag.record(evaluation.lag, source, context=context)
        self.count_cost(evaluation)

    def _record_scores(self, evaluation: Evaluation) -> None:
        """Record the scores of one judge.

        The histogram has a uniform sample of the turns. Turns that were chosen because they look
        bad would make all figures worse. The weighted sums have all turns, in proportion.
        """
        context, sampling = span_context(evaluation.span), evaluation.sampling or Sampling()
        histogram = self._offline if sampling.stage == "offline" else self._score
        source = self._judge_and_service(evaluation)
        for score in evaluation.scores:
            if score.value is None:
                continue
            name = {semconv.GEN_AI_EVALUATION_NAME: score.name, **source}
            label = {} if score.label is None else {_LABEL: score.label}
            # The buckets cover [0, 1]; some metrics have another scale.
            value = score.value if score.normalized is None else score.normalized
            if not sampling.is_targeted:
                histogram.record(value, {**name, **label}, context=context)
            if sampling.stage == "judge" and value >= 0:  # a counter takes no negative numbers
                self._weighted_scores.add(value / sampling.probability, name)
                self._weights.add(1 / sampling.probability, name)

    def found(self, turns: int = 1) -> None:
        """Count ``turns`` RAG turns as found; `turn` counts later what became of each."""
        self.tally.add("captured", "turn", number=turns)
        self._captured.add(turns)

    def turn(
        self, outcome: Outcome, reason: Reason | SkipReason | DropReason | None = None
    ) -> None:
        attributes: dict[str, str] = {semconv.OUTCOME: outcome}
        if reason is not None:
            attributes[semconv.REASON] = reason
        self._turns.add(1, attributes)
        self.tally.add("turn", " ".join(attributes.values()))

    def feedback(self, feedback: Feedback | None, outcome: FeedbackOutcome) -> None:
        """Count feedback of people; ``feedback`` is None if it could not be read."""
        attributes: dict[str, str] = {semconv.OUTCOME: outcome}
        if feedback is not None:
            attributes |= self._of_feedback(feedback)
        self._feedback.add(1, attributes)
        self.tally.add("feedback", outcome)

    def emit_feedback(self, feedback: Feedback) -> None:
        """Record the score of ``feedback``."""
        rated = SpanRef(trace_id=feedback.trace_id, span_id=feedback.span_id or 0)
        name = self._of_feedback(feedback)
        self._feedback_score.record(feedback.score, name, context=span_context(rated))

    def emit_agreement(self, agreement: Agreement) -> None:
        """Count a turn by the labels of the judge and of people."""
        name = {semconv.GEN_AI_EVALUATION_NAME: agreement.metric, _LABEL: agreement.label}
        self._agreement.add(1, {**name, **self._of_feedback(agreement.feedback)})

    def feedback_evaluated(self) -> None:
        """Count a turn that is evaluated because of bad feedback."""
        self._feedback_evaluated.add(1)

    def _of_feedback(self, feedback: Feedback) -> dict[str, str]:
        """Return the attributes of ``feedback``; after 100 names, the name is ``other``."""
        name = _limited(feedback.name, self._feedback_names)
        return {semconv.FEEDBACK: name, semconv.FEEDBACK_LABEL: feedback.label or ""}

    def released(self, status: HoldStatus) -> None:
        """Count a span that has waited for scores; ``status`` is written on the span."""
        self.tally.add("released", status)
        self._released.add(1, {semconv.STATUS: status})

    def cache_lookup(self, outcome: str) -> None:
        """Count a turn whose scores were looked up: ``hit``, ``partial`` or ``miss``."""
        self._lookups.add(1, {semconv.OUTCOME: outcome})

    def blocked(self, part: str) -> None:
        """Count that ``part``, for example ``metric toxicity``, has blocked the event loop."""
        self.tally.add("failure", f"blocked {part}")
        self._watchdog.add(1, {semconv.PLACE: part})

    def internal_error(self, place: str) -> None:
        """Count a failure of this library; ``place`` is the part that failed, such as "sink"."""
        self.tally.add("failure", place)
        self._errors.add(1, {semconv.PLACE: place})

    def stats(self, *, held: int, scoring: int) -> Stats:
        """Return all counts, with the number of spans that are ``held`` and ``scoring`` now."""
        captured, turns = self.tally.turns()
        return Stats(
            captured=captured,
            turns=turns,
            pending=captured - sum(turns.values()),
            released=self.tally.of("released"),
            sources=self.tally.of("source"),
            failures=self.tally.of("failure"),
            held=held,
            scoring=scoring,
            feedback=self.tally.of("feedback"),
        )

    def watch(self, held: Held, measurements: Iterable[Measurement] = ()) -> None:
        """Report the state of the evaluator in gauges, at each collection of metrics.

        ``held`` are the spans that wait for scores. The gauges also show the judges and embedders
        of ``measurements``, whose requests are counted until `stop_watching`.
        """
        self._health = Health(
            self._meter_provider,
            held=held,
            pending=self._count_pending,
            measurements=measurements,
        )

    def stop_watching(self) -> None:
        """Stop reporting judges and embedders. The other gauges go on, to the last collection."""
        if self._health is not None:
            self._health.stop()

    def _count_pending(self) -> int:
        captured, turns = self.tally.turns()
        return captured - sum(turns.values())

    def watch_budget(self, left: Source) -> None:
        """Report what is left of the budget, at each collection of metrics.

        ``left`` is a bound method, and its object is referenced weakly. If several pipelines have
        equal limits, the lowest value is reported.
        """
        add_gauge_source(self._meter_provider, _BUDGET, source=left)

    def _judge_and_service(self, evaluation: Evaluation) -> dict[str, str]:
        """Return the attributes that name the judge's model, and the service if it is known.

        The judge's server names the model, and each name makes new series of metrics. After 100
        models, or services, the name is ``other``.
        """
        model = _limited(exportable(evaluation.judge or ""), self._judges)
        found = {semconv.EVALUATION_JUDGE: model} if model else {}
        if evaluation.service is not None:
            found[semconv.SERVICE_NAME] = _limited(evaluation.service, self._services)
        return found

    def count_cost(self, evaluation: Evaluation) -> None:
        """Count the requests, tokens and money of ``evaluation``, and nothing else."""
        usage, source = evaluation.usage, self._judge_and_service(evaluation)
        if usage.judge_requests:
            self._calls.add(usage.judge_requests, source)
        if usage.embedding_requests:
            self._embeddings.add(usage.embedding_requests)
        for kind, tokens in (("input", usage.prompt_tokens), ("output", usage.completion_tokens)):
            if tokens:
                self._tokens.add(tokens, {**source, semconv.GEN_AI_TOKEN_TYPE: kind})
        if usage.embedding_tokens:
            self._embedded.add(usage.embedding_tokens)
        currency = {semconv.EVALUATION_CURRENCY: evaluation.currency}
        for score in evaluation.scores:
            if score.cost:
                name = {semconv.GEN_AI_EVALUATION_NAME: score.name}
                self._cost.add(score.cost, {**name, **source, **currency})


def _limited(name: str, known: set[str]) -> str:
    """Add ``name`` to ``known`` and return it; return ``other`` if there are too many names."""
    if name not in known and len(known) >= _MOST_NAMES:
        return "other"
    known.add(name)
    return name


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
