"""`FeedbackIntake`: join the feedback of people with the recent turns of a pipeline.

A *turn* is one question of a user and its answer. Feedback often comes minutes after the answer, in
another request, and names the turn by the id of its trace. So a pipeline remembers the judge's
labels of its recent turns, to compare them with people.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from rag_eval_otel.capture.text import exportable
from rag_eval_otel.errors import RedactionError
from rag_eval_otel.export.attributes import feedback_attributes
from rag_eval_otel.export.metrics import OVERALL, Agreement, InstrumentSink
from rag_eval_otel.redaction import Redactor
from rag_eval_otel.runtime.background import BackgroundEvaluator, GivenUp
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.limited_log import LimitedLog
from rag_eval_otel.types import Evaluation, Feedback, Label, SpanRef

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

Origin: TypeAlias = Literal["ids", "current", "run"]
"""Where the ids of feedback come from: the caller, the current span, or a LangChain run."""

Key: TypeAlias = "tuple[int, int]"
"""Trace id and span id of the span of a turn."""

Labels: TypeAlias = "Mapping[str, tuple[Label, str]]"
"""The label and the version of each metric."""

_MAX_TURNS = 4096  # turns whose labels are remembered
_MAX_EARLY = 1024  # traces whose feedback waits for a turn
_MAX_SAID = 16  # feedback on one turn


@dataclass(slots=True)
class _Known:
    """A recent turn: the judge's labels and versions by metric, None before the evaluation.

    ``said`` is all feedback on the turn, and ``waiting`` is the feedback that has not been compared
    with the labels.
    """

    key: Key
    labels: Labels | None = None
    said: tuple[Feedback, ...] = ()
    waiting: tuple[Feedback, ...] = ()

    def add(self, feedback: Feedback) -> None:
        self.said = (*self.said, feedback)[-_MAX_SAID:]
        self.waiting = (*self.waiting, feedback)[-_MAX_SAID:]

    def compared(self) -> list[tuple[Feedback, Labels]]:
        """Return the feedback that waited for the labels, if they are there now."""
        if self.labels is None:
            return []
        waiting, self.waiting = self.waiting, ()
        return [(feedback, self.labels) for feedback in waiting]


@dataclass(frozen=True, slots=True)
class _Early:
    """Feedback whose turn is not known yet, and whether the sinks have it."""

    feedback: Feedback
    is_told: bool


class FeedbackIntake:
    """Join feedback with the recent turns of one pipeline, and pass it on; a sink of evaluations.

    - ``pass_on(found)`` gives feedback, or its agreement with the judge, to the sinks.
    - ``is_under_way(id)`` returns True if a trace or a LangChain run of this id has not ended.
    """

    def __init__(
        self,
        *,
        instruments: InstrumentSink,
        evaluator: BackgroundEvaluator,
        pass_on: Callable[[Feedback | Agreement], None],
        redactor: Redactor = Redactor(),  # noqa: B008  # frozen
    ) -> None:
        self.instruments = instruments
        self.evaluator = evaluator
        self._pass_on = pass_on
        self._redactor = redactor
        self.is_under_way: Callable[[int], bool] = lambda _: False
        self._warnings = LimitedLog()
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        """Forget all turns; a forked child knows none of the turns of its parent."""
        self._lock = threading.RLock()
        self._turns: OrderedDict[Key, _Known] = OrderedDict()
        self._traces: dict[int, tuple[_Known, ...]] = {}
        self._runs: OrderedDict[Hashable, tuple[int, int | None]] = OrderedDict()
        self._early: OrderedDict[Hashable, list[_Early]] = OrderedDict()

    # --- on the application's thread --------------------------------------------------------------

    def submit(self, feedback: Feedback, origin: Origin) -> None:
        """Have ``feedback`` joined and passed on by the evaluator's thread."""
        # Looked up now: the trace may end before the evaluator's thread takes the feedback.
        is_expected = origin == "current" or self.is_under_way(feedback.trace_id)
        job = _FeedbackJob(self, feedback, origin, is_expected=is_expected)
        if not self.evaluator.submit(job):
            self.drop(feedback)

    def drop(self, feedback: Feedback) -> None:
        """Count ``feedback`` as dropped, because there was no room, or after a shutdown."""
        self.instruments.feedback(feedback, "dropped")
        self._warn("dropped", feedback, "there is no room for it, or the pipeline was shut down")

    def knows(self, trace_id: int) -> bool:
        """Return True if a turn, or a trace under way, has this id."""
        with self._lock:
            is_known = trace_id in self._traces or trace_id in self._runs
        return is_known or self.is_under_way(trace_id)

    # --- the turns, on the evaluator's thread -----------------------------------------------------

    def note(self, span: SpanContext, *, runs: Iterable[Hashable] = ()) -> None:
        """Remember the turn of ``span``; ``runs`` are the ids of its LangChain runs."""
        if not span.span_id:
            return
        with self._lock:
            self._known((span.trace_id, span.span_id))
            found: list[_Early] = []
            for run in runs:
                is_shared = self._runs.get(run, (0, span.span_id))[1] != span.span_id
                self._runs[run] = (span.trace_id, None if is_shared else span.span_id)
                if len(self._runs) > _MAX_TURNS:
                    self._runs.popitem(last=False)
                found += self._early.pop(run, ())
        for early in found:
            feedback = self._join(early.feedback)
            if not early.is_told:
                self._pass_on(feedback)

    def facts(self, span: SpanContext) -> dict[str, Any]:
        """Return the attributes of feedback that came before its turn, for sampling rules."""
        with self._lock:
            early = [one.feedback for one in self._early.get(span.trace_id, ())]
            known = self._turns.get((span.trace_id, span.span_id))
            said = [*early, *(known.said if known else ())]
        worst_first = sorted(said, key=lambda feedback: -feedback.score)
        return {k: v for one in worst_first for k, v in feedback_attributes(one).items()}

    def of(self, span: SpanRef) -> tuple[Feedback, ...]:
        """Return the feedback on the turn of ``span`` up to now."""
        with self._lock:
            known = self._turns.get((span.trace_id, span.span_id))
            if known is None:
                return ()
            self._settle(known)
            return known.said

    def __call__(self, evaluation: Evaluation) -> None:
        """Remember the labels of ``evaluation``, and compare them with feedback that has come.

        A sample that represents all turns is compared, so targeted turns are not.
        """
        span, sampling = evaluation.span, evaluation.sampling
        if span is None or not span.span_id:
            return
        if sampling is not None and (sampling.stage != "judge" or sampling.is_targeted):
            return
        with self._lock:
            known = self._known((span.trace_id, span.span_id))
            known.labels = _labels(evaluation)
            self._settle(known)
            compared = known.compared()
        for feedback, labels in compared:
            self._compare(feedback, labels)

    # --- the feedback, on the evaluator's thread --------------------------------------------------

    def take(self, feedback: Feedback, origin: Origin, *, is_expected: bool = False) -> None:
        """Join ``feedback`` with its turn, if the turn is known, and pass it on to the sinks.

        ``is_expected`` says that the trace of the turn was under way when the feedback came.
        """
        feedback = replace(feedback, comment=self._cleaned(feedback.comment))
        trace_id = feedback.trace_id
        with self._lock:
            known = self._find(trace_id, feedback.span_id)
        if known is not None:
            self.instruments.feedback(feedback, "joined")
            keeps_ids = origin == "ids" and feedback.span_id is not None
            joined = self._join(feedback)
            self._pass_on(feedback if keeps_ids else joined)
            return
        self.instruments.feedback(feedback, "joined" if is_expected else "unmatched")
        if not is_expected:
            self._warn("unmatched", feedback, _UNMATCHED[origin == "run"])
        if origin != "run":
            self._pass_on(feedback)
        self._wait(_Early(feedback, is_told=origin != "run"))

    def _join(self, feedback: Feedback) -> Feedback:
        """Add ``feedback`` to its turn, and return it with the ids of the turn's span."""
        with self._lock:
            known = self._find(feedback.trace_id, feedback.span_id)
            if known is None:
                return feedback
            feedback = replace(feedback, trace_id=known.key[0], span_id=known.key[1])
            known.add(feedback)
            compared = known.compared()
        for one, labels in compared:
            self._compare(one, labels)
        return feedback

    def _compare(self, feedback: Feedback, labels: Labels) -> None:
        """Tell the sinks whether the judge's labels agree with ``feedback``.

        Feedback that is named like a metric is about this metric only.
        """
        chosen = {feedback.name} if feedback.name in labels else labels.keys()
        for name in chosen:
            label, version = labels[name]
            self._pass_on(Agreement(metric=name, label=label, version=version, feedback=feedback))

    def _cleaned(self, comment: str | None) -> str | None:
        """Return ``comment`` after redaction; None if it cannot be redacted."""
        try:
            return None if comment is None else exportable(self._redactor.text(comment))
        except RedactionError:
            return None

    def _warn(self, kind: str, feedback: Feedback, why: str) -> None:
        self._warnings.write(
            kind,
            "feedback %r on trace %032x: %s (docs/feedback.md; logged at most once a minute)",
            feedback.name,
            feedback.trace_id,
            why,
        )

    # --- tables, with the lock --------------------------------------------------------------------

    def _known(self, key: Key) -> _Known:
        """Return the remembered turn of ``key``, after remembering it if it is new."""
        known = self._turns.get(key)
        if known is None:
            known = self._turns[key] = _Known(key)
            self._traces[key[0]] = (*self._traces.get(key[0], ()), known)
            if len(self._turns) > _MAX_TURNS:
                (trace_id, _), oldest = self._turns.popitem(last=False)
                left = tuple(one for one in self._traces.pop(trace_id) if one is not oldest)
                if left:
                    self._traces[trace_id] = left
        return known

    def _find(self, trace_id: int, span_id: int | None) -> _Known | None:
        """Return the turn of a span, or else the only turn of a trace or LangChain run."""
        if trace_id in self._runs:
            trace_id, of_run = self._runs[trace_id]
            span_id = span_id or of_run
        turns = self._traces.get(trace_id, ())
        only = turns[0] if len(turns) == 1 else None
        return only if span_id is None else self._turns.get((trace_id, span_id), only)

    def _settle(self, known: _Known) -> None:
        """Give early feedback to the turn ``known``, unless it may be about another turn."""
        trace_id = known.key[0]
        left = []
        for early in self._early.pop(trace_id, ()):
            if self._find(trace_id, early.feedback.span_id) is known:
                known.add(early.feedback)
            else:
                left.append(early)
        if left:
            self._early[trace_id] = left

    def _wait(self, early: _Early) -> None:
        with self._lock:
            waiting = self._early.setdefault(early.feedback.trace_id, [])
            waiting.append(early)
            del waiting[:-_MAX_SAID]
            if len(self._early) > _MAX_EARLY:
                self._early.popitem(last=False)


_UNMATCHED: Final = (
    "no turn of it is known here; the feedback is passed on with its ids",
    "no turn of this LangChain run is known here, so the feedback has no span and is not passed on",
)


def _labels(evaluation: Evaluation) -> Labels:
    found = [(s.name, s.label, s.version) for s in evaluation.scores if s.label is not None]
    if evaluation.label is not None:
        found.append((OVERALL, evaluation.label, evaluation.judge or ""))
    return _shared(tuple(found))


@lru_cache(maxsize=256)  # turns with equal labels share one object, which saves memory
def _shared(labels: tuple[tuple[str, Label, str], ...]) -> Labels:
    return {name: (label, version) for name, label, version in labels}


@dataclass(slots=True, eq=False)
class _FeedbackJob:
    """A job of the evaluator that takes one feedback."""

    intake: FeedbackIntake
    feedback: Feedback
    origin: Origin
    is_expected: bool = False
    seconds_left: float = float("inf")

    @property
    def size(self) -> int:
        return len(self.feedback.comment or "")

    def begin(self) -> bool:
        self.intake.take(self.feedback, self.origin, is_expected=self.is_expected)
        return False

    async def run(self) -> None: ...

    def give_up(self, why: GivenUp) -> None:  # noqa: ARG002  # whatever it is, the feedback is lost
        self.intake.drop(self.feedback)
