"""`TurnScorer`: choose RAG turns, evaluate them in the background, and call the sinks.

A *turn* is one question of a user and its answer. A *sink* is called with each evaluation, for
example to write an event or a metric. `Admission` draws the turns that are evaluated, and
`Spending` keeps them within the budget. In a *cascade*, the offline judge evaluates all turns, and
the judge a sample, with more of the turns whose offline scores are bad.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import threading
import time
import zlib
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.metrics import Observation

from rag_eval_otel import semconv
from rag_eval_otel.capture.sample import RecentTurns, extract, why_none
from rag_eval_otel.capture.span import ROUTES, Span, about
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.trace import Held
from rag_eval_otel.capture.turns import Turn
from rag_eval_otel.config import TURNS, Config, Limit
from rag_eval_otel.errors import RedactionError
from rag_eval_otel.evaluation import Measurement, chosen_labelling, failed_evaluation, is_final
from rag_eval_otel.export.metrics import Agreement, DropReason, InstrumentSink
from rag_eval_otel.judge.budget import NANO, Budget, RedisCounts, SlidingWindow, whole
from rag_eval_otel.judge.limits import title_of
from rag_eval_otel.judge.models import build_judge, build_live_embedder, is_offline
from rag_eval_otel.judge.prompting import BUILT_IN, load_prompts
from rag_eval_otel.live.recorded import FeedbackIntake
from rag_eval_otel.live.store import Clock
from rag_eval_otel.metrics import resolve_metrics, with_thresholds
from rag_eval_otel.prices import load_prices
from rag_eval_otel.redaction import Redactor, redactor
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.guard import Edge, LimitedLog
from rag_eval_otel.runtime.threads import BackgroundEvaluator, GivenUp
from rag_eval_otel.sampling import Facts, Sampling, SamplingRule, probability_of
from rag_eval_otel.types import (
    UNTOUCHED,
    Ending,
    Evaluation,
    Feedback,
    JudgeLike,
    Reason,
    Sample,
    Score,
    Sink,
    SkipReason,
    SpanRef,
    Usage,
)

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

_CELLS: Final = 60_000  # of a window: in a minute, a turn counts one millisecond too long at most
_SUSPICIOUS: Final = 4.0  # how much more often a turn is chosen whose offline scores are bad
_KEPT: Final = 1024  # turns whose scores are kept for equal turns; an offline judge costs nothing
_EXPORTED: Final = ("injection", "truncated")  # the entries of details that quote no texts
_UNUSED: Final = Usage()  # one object for all scores that are kept
_INTENDED: Final = frozenset({"budget", "duplicate", "not_sampled", "sample_rate"})
"""Reasons that are not logged: the configuration wants them, or the turn is scored elsewhere."""

_MODELS: Final = (
    *("gen_ai.response.model", "gen_ai.request.model", "llm.model_name"),
    *("ls_model_name", "model"),
)
_FEEDBACK: Final = ("feedback", "user_feedback", "feedback.score", "user.feedback")
_BAD_WORDS: Final = frozenset(
    {
        *("bad", "negative", "down", "thumbs_down", "thumbsdown", "dislike", "no", "false"),
        *("wrong", "incorrect", "poor", "unhelpful", "not_helpful"),
    }
)
_THUMBS_DOWN: Final = "\N{THUMBS DOWN SIGN}"  # a tone of skin may follow
_BAD_NUMBER: Final = 0.5  # below it, a number is bad feedback: 0 or 1, -1 or 1


# --- which turns are evaluated --------------------------------------------------------------------


class Admission:
    """Decide for each RAG turn (a question and its answer) whether the turn is evaluated.

    - ``sample_rate``: the fraction of traces whose turns are evaluated.
    - ``rules``: the rates of turns with certain attributes, in place of ``sample_rate``.
    - ``limits``: the limits of turns in windows of time, of this process.
    - ``has_cascade``: whether the offline judge evaluates all turns first.
    """

    def __init__(
        self,
        *,
        sample_rate: float = 1.0,
        rules: Sequence[SamplingRule] = (),
        limits: Iterable[Limit] = (),
        has_cascade: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.has_cascade = has_cascade
        self._rate = sample_rate
        self._rules = rules
        self._clock = clock
        self._windows = [
            (limit.amount, SlidingWindow(limit.seconds, cells=_CELLS)) for limit in limits
        ]
        self._reset_lock()
        call_in_child(self._reset_lock)

    @classmethod
    def of(cls, config: Config) -> Admission:
        return cls(
            sample_rate=config.base_rate,
            rules=config.sampling_rules,
            limits=[limit for limit in config.limits if limit.unit == TURNS],
            has_cascade=config.cascade is not None,
        )

    def _reset_lock(self) -> None:
        self._lock = threading.RLock()

    def draw(self, trace_id: int, facts: Callable[[], Facts] = dict) -> Sampling | SkipReason:
        """Return how a RAG turn in this trace was chosen, or the reason why it is not evaluated.

        In a cascade, each turn is evaluated by the offline judge, and the result has the
        probability for the judge. `judged` then decides.
        """
        if self._rate >= 1 and not self._rules:
            sampling = Sampling()
        else:
            # With the rate 0 and no rules, scoring is off, also for turns with errors.
            is_off = self._rate <= 0 and not self._rules
            probability = (
                0.0 if is_off else probability_of(facts(), self._rules, otherwise=self._rate)
            )
            sampling = self._sampling(trace_id, probability)
            if not self.has_cascade and sampling_point(trace_id) >= probability:
                return "sample_rate"
        return "budget" if not self.has_cascade and self.is_over_budget() else sampling

    def judged(self, trace_id: int, sampling: Sampling, *, offline: Evaluation) -> Sampling | None:
        """Return how a turn of a cascade was chosen for the judge; None if it was not chosen.

        ``sampling`` is from `draw`. Without the label ``pass``, the probability is fourfold.
        """
        probability = sampling.probability
        if offline.label != "pass":
            probability = min(1.0, probability * _SUSPICIOUS)
        if sampling_point(trace_id) >= probability:
            return None
        return self._sampling(trace_id, probability)

    def _sampling(self, trace_id: int, probability: float) -> Sampling:
        """Return how a turn was chosen; ``sample_rate`` alone would not choose a targeted one."""
        is_targeted = sampling_point(trace_id) >= self._rate
        return Sampling(probability=probability, is_targeted=is_targeted)

    def is_over_budget(self) -> bool:
        """Count one turn, and return True if a limit of turns is reached."""
        if not self._windows:
            return False
        with self._lock:
            now = self._clock()
            if any(window.sum(now) >= amount for amount, window in self._windows):
                return True
            for _, window in self._windows:
                window.add(now, 1)
            return False


def sampling_point(trace_id: int) -> float:
    """Return a number in [0, 1) for ``trace_id``, below which a turn's probability must not be.

    It does not depend on the bits of the trace id that trace samplers use.
    """
    return zlib.crc32(trace_id.to_bytes(16, "big")) / 2**32


def facts_of(turn: Turn, attributes: Iterable[Mapping[str, Any]]) -> Facts:
    """Return what sampling rules can match: attributes of spans, metadata, route, model, errors.

    ``attributes`` are those of the spans of ``turn`` and of the spans around them, nearest first.
    """
    found: defaultdict[str, list[object]] = defaultdict(list)
    for one in attributes:
        for name, value in one.items():
            found[name].append(value)
    steps = tuple(_steps(turn))
    for step in steps:
        for name, value in step.metadata.items():
            found[f"metadata.{name}"].append(value)
    bare = {name.removeprefix("metadata."): values for name, values in found.items()}
    facts: dict[str, Sequence[object]] = dict(found)
    for name, names in (("route", (*ROUTES, "route")), ("model", _MODELS)):
        values = [value for one in names for value in bare.get(one, ())]
        facts[name] = tuple(value for value in values if value is not None)
    facts["error"] = (any(step.error is not None for step in steps),)
    given = [value for one in _FEEDBACK for value in bare.get(one, ())]
    recorded = (name for name in found if name.startswith(semconv.FEEDBACK_PREFIX))
    given += [v for name in recorded if name.endswith(semconv.LEAF_SCORE) for v in found[name]]
    facts["feedback"] = _verdict(given)
    return facts


def attributes_around(turn: Turn, spans: Mapping[Any, Span]) -> Iterator[Mapping[str, Any]]:
    """Yield the attributes of the spans of ``turn``, then the routes of web requests around it.

    ``spans`` are the spans of the trace by id.
    """
    own = {step.id: spans[step.id] for step in _steps(turn) if step.id in spans}
    yield from (view.attributes for view in own.values())
    yield from (view.bystander().attributes for view in spans.values())


def _steps(turn: Turn) -> Iterator[Step]:
    for steps in (turn.path, turn.calls, turn.other_calls, turn.retrievers, turn.steps, turn.tools):
        yield from steps


def _verdict(feedback: Iterable[object]) -> Sequence[str]:
    """Return ``("bad",)`` if one of ``feedback`` is bad, else ``("good",)``; empty if none says."""
    found = {_is_bad(value) for value in feedback if value is not None and value != ""}
    return ("bad" if True in found else "good",) if found else ()


def _is_bad(feedback: object) -> bool:
    """Return True for a number below one half, also as a text, and for words such as "bad".

    Of a list or a mapping, one bad value is enough.
    """
    if isinstance(feedback, Mapping):
        return any(map(_is_bad, feedback.values()))
    if isinstance(feedback, list | tuple):
        return any(map(_is_bad, feedback))
    try:
        return float(feedback) < _BAD_NUMBER  # type: ignore[arg-type]
    except (OverflowError, TypeError, ValueError):
        pass
    text = str(feedback).strip().lower()
    words = text.replace("-", "_").replace(" ", "_").strip(":")
    return words in _BAD_WORDS or text.startswith(_THUMBS_DOWN)


# --- evaluations within a budget, equal turns once -----------------------------------------------


class SharedEvaluations:
    """Evaluates equal samples by ``measurement`` once.

    Of samples that come at the same time, the first is evaluated, and the others get its scores.
    The scores of the last ``max_kept`` samples are kept, if all of them are final. Scores that are
    shared or kept have no usage and cost. Only digests of samples are kept, and details that quote
    texts only with ``explanations``. ``count`` is called with ``hit`` or ``miss``.
    """

    def __init__(
        self,
        measurement: Measurement,
        *,
        max_kept: int = 0,
        count: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._measurement = measurement
        self._max_kept = max_kept
        self._count = count if max_kept else lambda _: None
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        self._lock = threading.RLock()
        # The thread is a part of the key: a blocked event loop may never finish an evaluation.
        self._under_way: dict[tuple[int, str], Future[Evaluation | None]] = {}
        self._kept: OrderedDict[str, Evaluation] = OrderedDict()

    async def of(self, sample: Sample) -> Evaluation:
        """Return the scores of ``sample``; raise `RedactionError` if ``redact`` fails."""
        started = self._measurement.clock()
        prepared, cut = self._measurement.prepared(sample)
        key = self._key(prepared)
        kept = self._find(key, started)
        if kept is not None:
            return kept
        place = (threading.get_ident(), key)
        while (shared := self._under_way.get(place)) is not None:
            # A caller that is cancelled must not cancel what the other callers wait for.
            evaluation = await asyncio.shield(asyncio.wrap_future(shared))
            if evaluation is not None:  # else the first evaluation has failed
                return _unpaid(evaluation)
        self._count("miss")
        result = self._under_way[place] = Future[Evaluation | None]()
        evaluation = None
        try:
            evaluation = await self._measurement.of_prepared(prepared, cut)
        finally:
            del self._under_way[place]
            if not result.done():  # at a shutdown, one of the other callers may have cancelled it
                result.set_result(evaluation)
        self._keep(key, evaluation)
        return evaluation

    def known(self, sample: Sample) -> Evaluation | None:
        """Return the scores of ``sample`` if they are kept, else None."""
        started = self._measurement.clock()
        return self._find(self._key(self._measurement.prepared(sample)[0]), started)

    def _key(self, sample: Sample) -> str:
        # A judge may change its model, also while a process runs.
        text = repr((self._measurement.judge.model, sample))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def _find(self, key: str, started: float) -> Evaluation | None:
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                return None
            self._kept.move_to_end(key)
        self._count("hit")
        return replace(kept, duration=self._measurement.clock() - started)

    def _keep(self, key: str, evaluation: Evaluation) -> None:
        if not self._max_kept or not all(map(is_final, evaluation.scores)):
            return
        kept = _unpaid(evaluation)
        if not self._measurement.explanations:
            kept = replace(kept, scores=tuple(map(_without_texts, kept.scores)))
        with self._lock:
            self._kept[key] = kept
            while len(self._kept) > self._max_kept:
                self._kept.popitem(last=False)


def _unpaid(evaluation: Evaluation) -> Evaluation:
    """Return ``evaluation`` without its usage and cost, which count for another turn."""
    scores = tuple(replace(score, usage=_UNUSED, cost=None) for score in evaluation.scores)
    return replace(evaluation, scores=scores, usage=_UNUSED, cost=None)


def _without_texts(score: Score) -> Score:
    """Return ``score`` without texts that are not exported, which take most of its memory."""
    detail = {name: score.detail[name] for name in _EXPORTED if name in score.detail}
    return replace(score, explanation=None, detail=detail)


class Spending:
    """Measures turns within a budget.

    Each request of ``measurement`` passes ``budget``. When it is spent, turns are skipped. The
    scores of ``max_kept`` turns are used for equal turns, also when the budget is spent.
    ``on_unused`` is called with an evaluation that was paid in part, and that is not returned.
    ``count`` is that of `SharedEvaluations`.
    """

    def __init__(
        self,
        measurement: Measurement,
        *,
        budget: Budget | None,
        max_kept: int = 0,
        count: Callable[[str], None] = lambda _: None,
        on_unused: Callable[[Evaluation], None] = lambda _: None,
    ) -> None:
        """Give the budget to ``measurement``; raise `ConfigError` if a price is missing."""
        self._budget = budget
        self._on_unused = on_unused
        if budget is not None:
            measurement = replace(measurement, budget=budget)
        self._evaluations = SharedEvaluations(measurement, max_kept=max_kept, count=count)

    @property
    def is_spent(self) -> bool:
        """Whether a limit of the budget is reached now."""
        return self._budget is not None and self._budget.spent_limit is not None

    async def of(
        self, sample: Sample, sampling: Sampling, *, otherwise: Evaluation | None = None
    ) -> Evaluation | SkipReason:
        """Return the scores of ``sample``, or ``budget`` if the budget leaves no metric a score.

        ``otherwise``, if given, is the result in place of ``budget``: in a cascade, the scores of
        the offline judge. It gets the usage and the cost of requests that were sent before the
        budget was spent.
        """
        refused = None
        if not self.is_spent:
            evaluation = await self._evaluations.of(sample)
            if evaluation.status != "error" or evaluation.reason != "budget":
                return replace(evaluation, sampling=sampling)
            refused = evaluation
        elif (known := self._evaluations.known(sample)) is not None:
            return replace(known, sampling=sampling)
        if otherwise is None:
            if refused is not None:
                self._on_unused(refused)
            return "budget"
        return otherwise if refused is None else _paid(otherwise, refused)

    def observe_left(self) -> list[Observation]:
        """Return what is left of each limit, as a share of the limit from 0 to 1."""
        left = [] if self._budget is None else self._budget.left()
        return [
            Observation(
                amount / max(whole(limit) / (NANO if limit.is_money else 1), math.ulp(1.0)),
                {semconv.LIMIT: str(limit)},
            )
            for limit, amount in left
        ]


def _paid(evaluation: Evaluation, refused: Evaluation) -> Evaluation:
    """Return ``evaluation`` with the usage and the cost of ``refused``, which has no scores."""
    spent = {score.name: score for score in refused.scores}
    scores = [
        replace(one, usage=one.usage + spent[one.name].usage, cost=spent[one.name].cost)
        if one.name in spent
        else one
        for one in evaluation.scores
    ]
    return replace(
        evaluation,
        scores=tuple(scores),
        usage=evaluation.usage + refused.usage,
        cost=refused.cost,
        currency=refused.currency,
    )


# --- the scorer -----------------------------------------------------------------------------------


class TurnScorer:
    """Evaluate RAG turns in the background, and pass the scores to ``sinks``.

    Each turn is counted once, with its outcome. In a cascade, ``offline`` measures all turns, and
    ``measurement`` a sample of them. ``metadata_keys`` names the metadata of a turn that goes to
    the sinks with the scores. ``redactor`` redacts comments of people.
    """

    def __init__(
        self,
        measurement: Measurement,
        *,
        offline: Measurement | None = None,
        evaluator: BackgroundEvaluator,
        instruments: InstrumentSink,
        sinks: Sequence[Sink] = (),
        admission: Admission | None = None,
        metadata_keys: Sequence[str] = (),
        raise_errors: bool,
        spending: Spending | None = None,
        redactor: Redactor = Redactor(),  # noqa: B008  # frozen
    ) -> None:
        self._measurement = measurement
        self._spending = spending or Spending(measurement, budget=None)
        self._offline = offline
        self.evaluator = evaluator
        self.instruments = instruments
        self.feedback = FeedbackIntake(
            instruments=instruments,
            evaluator=evaluator,
            pass_on=self._pass_on,
            redactor=redactor,
        )
        # Counted first: another sink may block.
        self.sinks: tuple[Sink, ...] = (instruments, self.feedback, *sinks)
        self._admission = admission or Admission()
        self._metadata_keys = metadata_keys
        self._recent = RecentTurns()
        edge = partial(Edge, on_error=instruments.internal_error, raise_errors=raise_errors)
        self._edge = edge("evaluation")
        self._edge_of = cache(lambda sink: edge("sink", part=sink))
        self._log = LimitedLog()
        self._is_closed = False
        # A worker sets both: its spans are of several services, and may be taken from it.
        self.service_of: Callable[[SpanRef], str | None] = lambda _: None
        self.is_wanted: Callable[[SpanContext], bool] = lambda _: True

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """The measurement with the judge, and in a cascade that with the offline judge."""
        return (self._measurement, *filter(None, [self._offline]))

    def choose(self, trace_id: int, facts: Callable[[], Facts]) -> Sampling | SkipReason:
        """Return how a turn was chosen, or why not; sampling rules match ``facts()``."""
        return self._admission.draw(trace_id, facts)

    def refuse(self, reason: SkipReason, *, turns: int = 1) -> None:
        """Count RAG turns as skipped because of ``reason``; log one such turn in a minute."""
        for _ in range(turns):
            self.instruments.turn("skipped", reason)
        if reason not in _INTENDED:
            self._log.write(
                f"skipped {reason}",
                "a RAG turn is not scored: %s; docs/doctor.md says why; logged once a minute",
                reason,
            )

    def refuse_steps(self, steps: Sequence[Step]) -> SkipReason | None:
        """Count a trace with these steps and no turn as skipped, and return the reason.

        The reason goes on its held spans. Return None for a trace without RAG, and for a chat
        without retrieval in which the application has recorded no text.
        """
        reason = why_none(steps)
        if reason is None:
            return None
        self.instruments.found()
        if reason == "no_retrieval" and not any(step.recorded for step in steps):
            self.instruments.turn("skipped", reason)
            return None
        self.refuse(reason)
        return reason

    def submit(self, job: TurnJob) -> bool:
        """Have a RAG turn evaluated; return False if there is no room, and it was dropped."""
        if self.evaluator.submit(job):
            return True
        why: DropReason = "shutdown" if self.evaluator.is_closed else "overload"
        self.drop(why)
        job.release(Ending(why))
        return False

    def _pass_on(self, found: Feedback | Agreement) -> None:
        """Pass feedback, or its agreement with the judge, to the sinks that take it."""
        method = "emit_feedback" if isinstance(found, Feedback) else "emit_agreement"
        for sink in self.sinks:
            emit = getattr(sink, method, None)
            if emit is not None:
                with self._guard(sink):
                    emit(found)

    def _guard(self, sink: Sink) -> Edge:
        """Return a context manager that counts and logs the errors of ``sink``."""
        return self._edge_of(f"sink {getattr(sink, '__name__', type(sink).__name__)}")

    def drop(self, why: GivenUp, turns: int = 1) -> None:
        """Count RAG turns that are not scored because of ``why``."""
        for _ in range(turns):
            if why == "error":
                self.instruments.turn("error", "internal")
            else:
                self.instruments.turn("dropped", why)

    def leave_open(self, sinks: Sequence[Sink]) -> None:
        """Do not use or close those of ``sinks``, because another pipeline uses them."""
        self.sinks = tuple(sink for sink in self.sinks if all(sink is not one for one in sinks))

    def close(self) -> None:
        """Call the method ``close`` of each sink that has one, at the first call only."""
        sinks, self._is_closed = () if self._is_closed else self.sinks, True
        for sink in sinks:
            with self._guard(sink):
                getattr(sink, "close", lambda: None)()

    @property
    def delivers(self) -> bool:
        """Whether a sink has a method ``flush``, as a sink has that sends to a backend."""
        return any(hasattr(sink, "flush") for sink in self.sinks)

    def flush(self, timeout: float) -> bool:
        """Call the method ``flush`` of each sink that has one; return False if any is not done."""
        done = True
        for sink in self.sinks:
            with self._guard(sink):
                done = bool(getattr(sink, "flush", lambda _: True)(timeout)) and done
        return done

    def _log_failures(self, evaluation: Evaluation) -> None:
        """Log why scores in ``evaluation`` are missing, once a minute for each reason."""
        models = title_of("judge", self._measurement.judge)
        if evaluation.is_useless:
            told = "the %s answers, but no metric can use what it says (%s); logged once a minute"
            self._log.write(f"unscored {evaluation.reason}", told, models, evaluation.reason)
        models = f"{models}, {title_of('embedder', self._measurement.embedder)}"
        failed = {one.reason for one in evaluation.scores if one.status == "error"}
        for reason in failed - {"internal"}:  # the exception that it stands for is logged
            told = "scores are failing (%s): %s; see rag-eval-otel doctor; logged once a minute"
            self._log.write(f"error {reason}", told, reason, models)

    async def score(self, job: TurnJob) -> Ending:
        """Evaluate a turn, count it, and return what to write on its span."""
        turn, span = job.turn, job.span
        flags = int(span.trace_flags)
        ref = SpanRef(trace_id=span.trace_id, span_id=span.span_id, trace_flags=flags)
        result = await self._evaluation(job, ref)
        if not isinstance(result, Evaluation):
            ending = Ending("skipped", result, feedback=self.feedback.of(ref))
            if job.claim(ending):
                self.refuse(result)
            return ending
        result = replace(result, is_span_missed=job.is_missed)
        reason: SkipReason | Reason | None = result.sampling.reason if result.sampling else None
        reason = result.reason if result.status == "unscored" else reason
        ending = Ending(
            result.status,
            reason,
            evaluation=result,
            contexts=turn.contexts_source,
            feedback=self.feedback.of(ref),
        )
        if job.claim(ending):
            self._emit(result)
        return ending

    async def _evaluation(self, job: TurnJob, span: SpanRef) -> Evaluation | SkipReason:
        turn = job.turn
        with self._edge:
            if turn.is_complete:
                self.instruments.tally.add("source", "callback")
            sample = extract(turn)
            if not isinstance(sample, Sample):
                return sample
            if self._recent.is_repeated(sample, turn):
                return "duplicate"
            try:
                evaluation = await self._measured(
                    sample, job.sampling or Sampling(), trace_id=job.trace_id
                )
            except RedactionError as error:
                self._log.write("redact", "%s", error)
                return "redaction_error"
            if not isinstance(evaluation, Evaluation):
                return evaluation
            located = partial(
                replace,
                span=span,
                lag=seconds_since(job.ended),
                about=about(_metadata(turn), self._metadata_keys),
                answer_length=len(sample.answer),
                service=self.service_of(span),
            )
            offline = evaluation.offline
            return located(evaluation, offline=None if offline is None else located(offline))
        return failed_evaluation(self._measurement.metrics, "internal")

    async def _measured(
        self, sample: Sample, chosen: Sampling, *, trace_id: int
    ) -> Evaluation | SkipReason:
        """Return the scores of ``sample``: in a cascade, the offline scores or both judges'."""
        if self._offline is None:
            return await self._spending.of(sample, chosen)
        offline = replace(await self._offline.of(sample), sampling=Sampling(stage="offline"))
        sampling = self._admission.judged(trace_id, chosen, offline=offline)
        if sampling is None:
            return offline
        refused = replace(offline, sampling=Sampling(stage="offline", reason="budget"))
        if self._admission.is_over_budget():
            return refused
        judged = await self._spending.of(sample, sampling, otherwise=refused)
        if not isinstance(judged, Evaluation) or judged.sampling is not sampling:
            return judged
        return replace(judged, offline=offline)

    def _emit(self, result: Evaluation) -> None:
        """Pass ``result`` to the sinks, on this thread."""
        self._log_failures(result)
        for sink in self.sinks:
            with self._guard(sink):
                sink(result)


@dataclass(slots=True, kw_only=True, eq=False)
class TurnJob:
    """A job of `BackgroundEvaluator` that scores one RAG turn and then lets its span leave.

    ``span`` identifies the span to which the scores belong, and ``ended`` is the time in ns at
    which the turn ended. ``held`` is that span, which ``clock`` exports, or None if no span waits.
    ``attributes()`` returns the attributes of the spans of the turn and around it. ``runs`` are the
    ids of its LangChain runs.
    """

    scorer: TurnScorer
    turn: Turn
    span: SpanContext
    ended: int
    clock: Clock | None = None
    held: Held | None = None
    sampling: Sampling | None = None
    """How the turn was chosen; None if that is not decided yet."""
    is_missed: bool = False
    """Whether its span has left without it."""
    trace_id: int = 0
    attributes: Callable[[], Iterable[Mapping[str, Any]]] = tuple
    runs: Sequence[Hashable] = ()
    _endings: list[Ending] = field(default_factory=list, init=False)

    @property
    def size(self) -> int:
        return self.turn.size

    @property
    def seconds_left(self) -> float:
        if self.held is None or self.clock is None:
            return float("inf")
        return self.clock.store.seconds_left(self.held)

    def begin(self) -> bool:
        """Return True if the turn is to be evaluated; otherwise count it and release its span."""
        if self.sampling is not None:
            return True
        if self.span.is_valid and not self.span.trace_flags.sampled:  # recorded, never exported
            self._refuse("not_sampled", UNTOUCHED)
            return False
        feedback = self.scorer.feedback
        if self.runs:
            feedback.note(self.span, runs=self.runs)
        sampling = self.scorer.choose(self.trace_id, self._facts)
        feedback.note(self.span)
        if isinstance(sampling, Sampling):
            self.sampling = sampling
            return True
        self._refuse(sampling, Ending("skipped", sampling))
        return False

    def _refuse(self, reason: SkipReason, ending: Ending) -> None:
        if self.claim(ending):
            self.scorer.refuse(reason)
        self.release(ending)

    def _facts(self) -> Facts:
        return facts_of(self.turn, [*self.attributes(), self.scorer.feedback.facts(self.span)])

    async def run(self) -> None:
        if not self.scorer.is_wanted(self.span):
            self.give_up("shutdown")
            return
        ending = await self.scorer.score(self)
        self.release(ending)

    def give_up(self, why: GivenUp) -> None:
        """Count the turn, unless `run` has counted it, and release its span."""
        if self.claim(Ending(why)):
            self.scorer.drop(why)
        self.release(self._endings[0])

    def claim(self, ending: Ending) -> bool:
        """Return True at the first call only; another thread may give up a turn that blocks."""
        self._endings.append(ending)
        return self._endings[0] is ending

    def release(self, ending: Ending) -> None:
        if self.held is not None and self.clock is not None:
            self.clock.release(self.held, ending)


def _metadata(turn: Turn) -> Iterator[Mapping[str, Any]]:
    for step in (*turn.path, *turn.calls, *turn.retrievers):
        yield step.metadata


_EPOCH = time.time_ns() - time.monotonic_ns()
"""The wall-clock time at the start of the monotonic clock, as the wall clock was at the import."""


def seconds_since(
    ended: int,
    *,
    wall: Callable[[], int] = time.time_ns,
    monotonic: Callable[[], int] = time.monotonic_ns,
    epoch: int = _EPOCH,
) -> float:
    """Return the seconds since the wall-clock time ``ended`` in ns, also if the clock was set.

    Then only one of the two clocks gives the right time; the other a negative or a longer one.
    """
    ages = (wall() - ended, epoch + monotonic() - ended)
    return min((age for age in ages if age >= 0), default=0) / 1e9


# --- what scores turns, by the options ------------------------------------------------------------


def build_measurement(config: Config) -> Measurement:
    """Return a `Measurement` with the metrics, the judge and the embedder that ``config`` names."""
    metrics = with_thresholds(resolve_metrics(config.metrics), config.passing_scores)
    return Measurement(
        metrics=metrics,
        judge=build_judge(config),
        embedder=build_live_embedder(config),
        explanations=config.explanations,
        timeout=config.evaluation_timeout,
        redactor=redactor(config.redact),
        max_text_chars=config.max_text_chars,
        label_metrics=chosen_labelling(metrics, config.label_metrics),
        prompts=load_prompts(config.prompts) if config.prompts else BUILT_IN,
        prices=load_prices(config.prices),
        log=LimitedLog(raise_errors=config.raise_errors),
    )


def build_offline(config: Config, judge: str | JudgeLike) -> Measurement:
    """Return a `Measurement` with the offline embedder and ``judge``: of a cascade, or cheap."""
    return build_measurement(
        replace(config, judge=judge, embedder="hashing", cascade=None, drift=False)
    )


def build_spending(
    config: Config, measurement: Measurement, *, instruments: InstrumentSink
) -> Spending:
    """Return the `Spending` of ``config``."""
    return Spending(
        measurement,
        budget=build_budget(config, partial(instruments.internal_error, "redis")),
        max_kept=0 if is_offline(measurement.judge) else _KEPT,
        count=instruments.cache_lookup,
        on_unused=instruments.count_cost,
    )


def build_budget(config: Config, on_error: Callable[[], None] = lambda: None) -> Budget | None:
    """Return the budget of ``config``, or None if it limits neither requests, tokens nor money.

    ``on_error`` is called when its Redis cannot be reached. Raises `ConfigError` if the URL of the
    Redis cannot be used, or if the currency differs from that of the prices.
    """
    limits = [limit for limit in config.limits if limit.unit != TURNS]
    if not limits:
        return None
    shared = None
    if config.redis is not None:
        shared = RedisCounts(config.redis, limits, on_error=on_error)
    return Budget(limits, prices=load_prices(config.prices), shared=shared)


def build_scorer(
    config: Config, *, instruments: InstrumentSink, sinks: Sequence[Sink] = ()
) -> TurnScorer:
    """Return the scorer of turns that ``config`` describes, with an evaluator of its own."""
    measurement = build_measurement(config)
    spending = build_spending(config, measurement, instruments=instruments)
    instruments.watch_budget(spending.observe_left)
    return TurnScorer(
        measurement,
        offline=None if config.cascade is None else build_offline(config, config.cascade),
        evaluator=BackgroundEvaluator(
            concurrency=config.concurrency,
            capacity=config.max_held,
            max_bytes=config.max_held_bytes,
        ),
        instruments=instruments,
        sinks=sinks,
        admission=Admission.of(config),
        metadata_keys=config.metadata_keys,
        raise_errors=config.raise_errors,
        spending=spending,
        redactor=redactor(config.redact),
    )
