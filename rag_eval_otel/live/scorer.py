"""`TurnScorer`: choose RAG turns, evaluate them in the background, and call the sinks."""

from __future__ import annotations

import re
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.metrics import Observation

from rag_eval_otel import semconv
from rag_eval_otel.capture.joined import Reasons
from rag_eval_otel.capture.sample import RecentTurns, Refused, read_sample
from rag_eval_otel.capture.span import ROUTES, Span, about
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.turns import Turn
from rag_eval_otel.capture.values import provider_id
from rag_eval_otel.config import TURNS, Config, Limit
from rag_eval_otel.errors import RedactionError
from rag_eval_otel.evaluation import Measurement, chosen_labelling, failed_evaluation
from rag_eval_otel.export.metrics import InstrumentSink
from rag_eval_otel.judge.budget import Budget, RedisCounts, SlidingWindow
from rag_eval_otel.judge.codec import load_prompts
from rag_eval_otel.judge.endpoint import Attempt
from rag_eval_otel.judge.lexical import evades
from rag_eval_otel.judge.usage import Meter, scope, title_of
from rag_eval_otel.live.explain import Explanations
from rag_eval_otel.live.judge_spans import write_judge_span
from rag_eval_otel.live.recorded import FeedbackIntake
from rag_eval_otel.log import cause_of
from rag_eval_otel.metrics import resolve_metrics, with_thresholds
from rag_eval_otel.models import build_live_models
from rag_eval_otel.prices import load_prices
from rag_eval_otel.runtime.guard import Edge, LimitedLog
from rag_eval_otel.runtime.threads import BackgroundEvaluator, GivenUp
from rag_eval_otel.sampling import Facts, SamplingRule, probability_of
from rag_eval_otel.types import (
    UNTOUCHED,
    Ending,
    Evaluation,
    Outcome,
    Reason,
    Sample,
    Sampling,
    Sink,
    SkipReason,
    SpanRef,
)
from rag_eval_otel.untrusted import function_of, redactor

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext, Tracer

_COMMON: Final = re.compile(r"Runnable|haystack\.pipeline")  # names of all chains of a framework
_MOST_NAMES, _NAME_LENGTH = 1000, 200  # that are remembered; characters
_GENAI_MODELS: Final = (
    semconv.GEN_AI_RESPONSE_MODEL,
    semconv.GEN_AI_REQUEST_MODEL,
    "llm.model_name",
)


@dataclass(kw_only=True, eq=False, repr=False)
class Admission:
    """Decides by sample rate, rules and limits of turns which RAG turns are evaluated."""

    sample_rate: float = 1.0
    rules: Sequence[SamplingRule] = ()
    limits: Iterable[Limit] = ()
    has_cascade: bool = False
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._windows = [(a.amount, SlidingWindow(a.seconds, cells=60_000)) for a in self.limits]

    def draw(self, trace_id: int, facts: Callable[[], Facts] = dict) -> Sampling | SkipReason:
        """Return how the turn was sampled, or the reason why it is not evaluated."""
        probability = self.sample_rate
        if self.rules or 0 < probability < 1:  # at 0, scoring is off, also after errors
            probability = probability_of(facts(), self.rules, otherwise=probability)
        if not self.has_cascade:
            if sampling_point(trace_id) >= probability:
                return "sample_rate"
            if self.is_over_budget():
                return "budget"
        return self._sampling(trace_id, probability)

    def judged(self, trace_id: int, sampling: Sampling, *, offline: Evaluation) -> Sampling | None:
        """Return how a cascade's judge samples a turn with these ``offline`` scores, or None."""
        factor = 1 if offline.label == "pass" else 4  # a bad turn is chosen more often
        probability = min(1.0, sampling.probability * factor)
        is_chosen = sampling_point(trace_id) < probability
        return self._sampling(trace_id, probability) if is_chosen else None

    def _sampling(self, trace_id: int, probability: float) -> Sampling:
        is_targeted = sampling_point(trace_id) >= self.sample_rate
        return Sampling(probability=probability, is_targeted=is_targeted)

    def is_over_budget(self) -> bool:
        """Return True if a limit of turns is reached; otherwise count one turn."""
        now = self.clock()
        if any(window.sum(now) >= amount for amount, window in self._windows):
            return True
        for _, window in self._windows:
            window.add(now, 1)
        return False


def sampling_point(trace_id: int) -> float:
    """Return a number in [0, 1) made from ``trace_id``; rates above this number sample the turn."""
    return zlib.crc32(trace_id.to_bytes(16, "big")) / 2**32


def facts_of(turn: Turn, attributes: Iterable[Mapping[str, Any]]) -> Facts:
    steps = tuple(_steps(turn))
    values: defaultdict[str, list[object]] = defaultdict(list)
    for name, value in chain.from_iterable(each.items() for each in attributes):
        values[name].append(value)
    for name, value in chain.from_iterable(step.metadata.items() for step in steps):
        values[f"metadata.{name}"].append(value)
    bare = {name.removeprefix("metadata."): each for name, each in values.items()}
    facts: dict[str, Sequence[object]] = dict(values)
    for name, names in (
        ("route", (*ROUTES, "route")),
        ("model", (*_GENAI_MODELS, "ls_model_name", "model")),
    ):
        facts[name] = tuple(v for each in names for v in bare.get(each, ()) if v is not None)
    facts["error"] = (any(step.error is not None for step in steps),)
    return facts


def attributes_around(turn: Turn, spans: Mapping[Any, Span]) -> Iterator[Mapping[str, Any]]:
    own = {step.id: spans[step.id] for step in _steps(turn) if step.id in spans}
    yield from (view.attributes for view in own.values())
    routed = (view for view in spans.values() if not view.attributes.keys().isdisjoint(ROUTES))
    # At most 100, as a trace of many turns has them for each turn.
    yield from (view.bystander().attributes for view in islice(routed, 100))


def _steps(turn: Turn) -> Iterator[Step]:
    return chain(turn.path, turn.calls, turn.other_calls, turn.retrievers, turn.steps, turn.tools)


class TurnScorer:
    """Evaluates RAG turns in the background, counts the outcome of each, and calls ``sinks``."""

    def __init__(
        self,
        config: Config,
        *,
        instruments: InstrumentSink,
        sinks: Sequence[Sink] = (),
        measurement: Measurement | None = None,
        evaluator: BackgroundEvaluator | None = None,
    ) -> None:
        self._config = config
        measurement = measurement or build_measurement(config)
        self._budget = build_budget(config, partial(instruments.internal_error, "redis"))
        if self._budget is not None:  # raises `ConfigError` if a price is missing
            measurement = replace(measurement, budget=self._budget)
        self._measurement = measurement
        instruments.watch_budget(self._observe_left)
        self._offline = None
        if config.cascade is not None:
            cheap = replace(config, judge=config.cascade, embedder="hashing", cascade=None)
            self._offline = build_measurement(replace(cheap, drift=False))
        self.measurements = (measurement, *filter(None, [self._offline]))
        self.evaluator = evaluator or BackgroundEvaluator(
            config.concurrency, config.max_held, config.max_held_bytes
        )
        self.instruments = instruments
        self.feedback = FeedbackIntake(
            instruments=instruments,
            evaluator=self.evaluator,
            pass_on=partial(self._call_sinks, "emit_feedback"),
            redactor=redactor(config.redact),
        )
        # Counted first: another sink may block.
        self.sinks: tuple[Sink, ...] = (instruments, self.feedback, *sinks)
        self.admission = Admission(
            sample_rate=config.base_rate,
            rules=config.sampling_rules,
            limits=[limit for limit in config.limits if limit.unit == TURNS],
            has_cascade=config.cascade is not None,
        )
        self.judge_tracer: Tracer | None = None  # of the option ``judge_spans``
        self._on_sample = function_of("a Sample", config.on_sample, option="on_sample")
        self.explanations = Explanations()
        self._recent, self._reasons = RecentTurns(), Reasons()
        self.retrieving: set[str] = set()  # names of steps that answered after a retrieval
        self._of_turns: set[int] = set()  # ids of traces with a turn
        on_error, raises = instruments.internal_error, config.raise_errors
        self._edge = Edge("evaluation", on_error, raises)
        self._edge_of = cache(lambda sink: Edge("sink", on_error, raises, part=sink))
        self._log = LimitedLog()
        self._is_closed = False

    def refuse(self, reason: SkipReason, *, turns: int = 1) -> None:
        self.instruments.turn("skipped", reason, turns=turns)
        if reason not in {"budget", "duplicate", "not_sampled", "sample_rate"}:  # intended
            text = "a RAG turn is not scored: %s; docs/doctor.md says why; logged once a minute"
            self._log.write(f"skipped {reason}", text, reason)

    def refuse_steps(self, steps: Sequence[Step], trace_id: Hashable) -> Mapping[Hashable, Ending]:
        """Count a trace without a turn; return endings by span id (None: of all other spans)."""
        reason = self._reasons.why_none(steps)
        if reason is None:
            return {}
        root = next((step for step in steps if step.parent is None), steps[0])
        self.explanations.add(trace_id, reason, root.name, steps)
        recorded = [step for step in steps if step.recorded and reason == "no_retrieval"]
        if reason != "no_retrieval" or recorded:
            self.instruments.found()
            self.refuse(reason)
            return {None: _without_search(recorded[-1]) if recorded else Ending("skipped", reason)}
        known = () if trace_id in self._of_turns else self.retrieving
        answers = {step.id: step for step in steps if step.name in known and step.output}
        outer = [step for step in answers.values() if step.parent not in answers]
        endings: dict[Hashable, Ending] = {step.id: _without_search(step) for step in outer}
        self.instruments.found(max(1, len(endings)))
        self.instruments.turn("skipped", reason, turns=0 if endings else 1)
        for ending in endings.values():
            verdict = {semconv.OUTCOME: ending.outcome or ""}
            self.instruments.turn("skipped", reason, verdict=verdict)
        return endings

    def drop(self, why: GivenUp, turns: int = 1) -> None:
        if why == "error":
            self.instruments.turn("error", "internal", turns=turns)
        else:
            self.instruments.turn("dropped", why, turns=turns)

    def submit(self, job: TurnJob) -> None:
        name = job.turn.anchor.name[:_NAME_LENGTH]
        if job.turn.retrievers and not _COMMON.search(name):
            _remember(self.retrieving, name)
        _remember(self._of_turns, job.span.trace_id)
        if not self.evaluator.submit(job):
            job.give_up("shutdown" if self.evaluator.is_closed else "overload")

    def _call_sinks(self, method: str, *arguments: object) -> list[object]:
        """Call ``method`` of each sink that has it; return the results of those that succeed."""
        results: list[object] = []
        for sink in self.sinks:
            function = getattr(sink, method, None)
            if function is not None:
                with self._edge_of(f"sink {getattr(sink, '__name__', type(sink).__name__)}"):
                    results.append(function(*arguments))
        return results

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._call_sinks("close")

    @property
    def delivers(self) -> bool:
        return any(hasattr(sink, "flush") for sink in self.sinks)

    def flush(self, timeout: float) -> bool:
        """Flush the sinks that have a method ``flush``; return False if one returned False."""
        return False not in self._call_sinks("flush", timeout)

    def _log_failures(self, evaluation: Evaluation) -> None:
        models = title_of("judge", self._measurement.judge)
        if evaluation.is_useless:
            text = "the %s answers, but no metric can use what it says (%s); logged once a minute"
            self._log.write(f"unscored {evaluation.reason}", text, models, evaluation.reason)
        models = f"{models}, {title_of('embedder', self._measurement.embedder)}"
        failed = {score.reason for score in evaluation.scores if score.status == "error"}
        for reason in failed - {"internal"}:  # the exception that it stands for is logged
            text = "scores are failing (%s): %s; see rag-eval-otel doctor; logged once a minute"
            self._log.write(f"error {reason}", text, reason, models)

    async def score(self, job: TurnJob) -> Ending:
        trace_id, span_id, flags = job.span.trace_id, job.span.span_id, int(job.span.trace_flags)
        ref = SpanRef(trace_id=trace_id, span_id=span_id, trace_flags=flags)
        result: Evaluation | SkipReason | None = None
        with self._edge:
            result = await self._evaluation(job, ref)
        result = result or failed_evaluation(self._measurement.metrics, "internal")
        if not isinstance(result, Evaluation):
            said, made = self.feedback.of(ref), job.turn.searches
            ending = Ending("skipped", result, feedback=said, searches=made)
            if job.claim(ending):
                self.refuse(result)
                job.explain(result)
            return ending
        result = replace(result, is_span_missed=job.is_missed)
        reason: SkipReason | Reason | None = result.sampling.reason if result.sampling else None
        ending = Ending(
            result.status,
            result.reason if result.status == "unscored" else reason,
            evaluation=result,
            contexts=job.turn.contexts_source,
            feedback=self.feedback.of(ref),
            searches=job.turn.searches,
        )
        if job.claim(ending):
            self._call_sinks("__call__", result)
            with self._edge:
                self._log_failures(result)
        return ending

    async def _evaluation(self, job: TurnJob, span: SpanRef) -> Evaluation | SkipReason:
        turn = job.turn
        if turn.is_complete:
            self.instruments.tally.add("sources", "callback")
        try:
            sample = read_sample(turn)
        except Refused as refused:
            job.rule = cause_of(refused).partition(" < ")[0]
            return refused.reason
        if self._recent.is_repeated(sample, turn):
            return "duplicate"
        if self._on_sample is not None:
            with self._edge_of("on_sample"):
                self._on_sample(sample)
        try:
            with scope(on_attempt=partial(self._write_judge_span, job.span)):
                evaluation = await self._measured(sample, job.sampling or Sampling(), job.trace_id)
        except RedactionError as error:
            self._log.write("redact", "%s", error)
            return "redaction_error"
        if not isinstance(evaluation, Evaluation):
            return evaluation
        steps = (*turn.path, *turn.calls, *turn.retrievers)
        answer_id = provider_id(turn.calls[-1].response_id) if turn.calls else None
        answered = {} if answer_id is None else {semconv.GEN_AI_RESPONSE_ID: answer_id}
        known = about((step.metadata for step in steps), self._config.metadata_keys)
        located = partial(
            replace,
            span=span,
            lag=max(0, time.time_ns() - job.ended) / 1e9,
            about={**known, **answered, **job.about},
            answer_length=len(sample.answer),
        )
        offline = evaluation.offline
        return located(evaluation, offline=None if offline is None else located(offline))

    def _write_judge_span(self, parent: SpanContext, attempt: Attempt, meter: Meter | None) -> None:
        tracer, prices = self.judge_tracer, self._measurement.prices
        shows = self._config.export_content == "all"
        if tracer and parent.is_valid and meter and meter.part == "judge":
            with self._edge_of("judge_spans"):
                write_judge_span(parent, attempt, meter, tracer=tracer, prices=prices, shows=shows)

    async def _measured(
        self, sample: Sample, chosen: Sampling, trace_id: int
    ) -> Evaluation | SkipReason:
        if self._offline is None:
            return await self._judged(sample, chosen) or "budget"
        offline = replace(await self._offline.of(sample), sampling=Sampling(stage="offline"))
        sampling = self.admission.judged(trace_id, chosen, offline=offline)
        if sampling is None:
            return offline
        is_over = self.admission.is_over_budget()
        judged = None if is_over else await self._judged(sample, sampling)
        if judged is None:
            return replace(offline, sampling=Sampling(stage="offline", reason="budget"))
        return replace(judged, offline=offline)

    async def _judged(self, sample: Sample, sampling: Sampling) -> Evaluation | None:
        """Return the scores of ``sample`` by the judge; None if the budget is spent."""
        if self._budget is not None and self._budget.spent_limit is not None:
            return None
        evaluation = await self._measurement.of(sample)
        if (evaluation.status, evaluation.reason) == ("error", "budget"):
            self.instruments.count_cost(evaluation)
            return None
        return replace(evaluation, sampling=sampling)

    def _observe_left(self) -> list[Observation]:
        left = [] if self._budget is None else self._budget.left()
        return [Observation(n / one.amount, {semconv.LIMIT: str(one)}) for one, n in left]


def _remember(names: set[Any], name: str | int) -> None:
    """Add ``name``; empty a full set before, which is safe while other threads use it."""
    if len(names) >= _MOST_NAMES:
        names.clear()
    names.add(name)


def _without_search(step: Step) -> Ending:
    outcome: Outcome | None = None
    if step.output:
        outcome = "declined" if evades(step.output) else "answered"
    return Ending("skipped", "no_retrieval", contexts="none", outcome=outcome)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class TurnJob:
    """A job of `BackgroundEvaluator`: score one RAG turn, and call ``release`` with its ending."""

    scorer: TurnScorer
    turn: Turn
    span: SpanContext
    ended: int  # ns since the epoch
    release: Callable[[Ending], object] = lambda _: None  # exports the held span of the turn
    is_late: Callable[[], bool] = lambda: False  # whether that span has left without scores
    sampling: Sampling | None = None
    is_missed: bool = False  # whether the span was exported before the turn was found
    trace_id: int = 0  # decides the sampling
    attributes: Callable[[], Iterable[Mapping[str, Any]]] = tuple  # for sampling rules
    runs: Sequence[Hashable] = ()  # ids of LangChain runs that feedback may name
    about: Mapping[str, str] = field(default_factory=dict)  # attributes of the evaluation
    rule: str = ""  # the place in the code where the turn was refused
    _endings: list[Ending] = field(default_factory=list, init=False)

    @property
    def size(self) -> int:
        return self.turn.size

    def begin(self) -> bool:
        """Sample the turn. If it is not evaluated, count it, export its span, and return False."""
        if self.span.is_valid and not self.span.trace_flags.sampled:  # recorded, never exported
            self._refuse("not_sampled", UNTOUCHED)
            return False
        feedback = self.scorer.feedback
        if self.runs:
            feedback.note(self.span, runs=self.runs)
        facts = lambda: facts_of(self.turn, self.attributes())  # noqa: E731
        sampling = self.scorer.admission.draw(self.trace_id, facts)
        feedback.note(self.span)
        if isinstance(sampling, Sampling):
            self.sampling = sampling
            return True
        ref = SpanRef(trace_id=self.span.trace_id, span_id=self.span.span_id)
        self._refuse(sampling, Ending("skipped", sampling, feedback=feedback.of(ref)))
        return False

    def _refuse(self, reason: SkipReason, ending: Ending) -> None:
        if self.claim(ending):
            self.scorer.refuse(reason)
            self.explain(reason)
        self.release(ending)

    def explain(self, reason: SkipReason) -> None:
        turn, trace_id = self.turn, self.span.trace_id or self.trace_id
        steps = (*turn.path, *turn.calls, *turn.retrievers)
        self.scorer.explanations.add(trace_id, reason, turn.anchor.name, steps, self.rule)

    async def run(self) -> None:
        self.release(await self.scorer.score(self))

    def give_up(self, why: GivenUp) -> None:
        """Count the turn as not scored, unless `run` has counted it, and export its span."""
        if self.claim(Ending(why)):
            self.scorer.drop(why)
        self.release(self._endings[0])

    def claim(self, ending: Ending) -> bool:
        """Store ``ending``; return True for the first, as another thread may give up the job."""
        self._endings.append(ending)
        return self._endings[0] is ending


def build_measurement(config: Config) -> Measurement:
    passing: Any = config.thresholds  # a mapping by now
    judge, embedder = build_live_models(config)
    metrics = with_thresholds(resolve_metrics(config.metrics), passing)
    return Measurement(
        metrics=metrics,
        judge=judge,
        embedder=embedder,
        explanations=config.explanations,
        timeout=config.evaluation_timeout,
        redactor=redactor(config.redact),
        max_text_chars=config.max_text_chars,
        label_metrics=chosen_labelling(metrics, config.label_metrics),
        prompts=load_prompts(config.prompts) if config.prompts else {},
        prices=load_prices(config.prices),
        log=LimitedLog(raise_errors=config.raise_errors),
    )


def build_budget(config: Config, on_error: Callable[[], None] = lambda: None) -> Budget | None:
    limits = [limit for limit in config.limits if limit.unit != TURNS]
    if not limits:
        return None
    redis = config.redis
    shared = None if redis is None else RedisCounts(redis, limits, on_error=on_error)
    return Budget(limits, prices=load_prices(config.prices), shared=shared)
