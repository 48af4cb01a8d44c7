"""Write the spans of finished LangChain run trees, and have the turns in them scored.

A run tree is a root run of LangChain and all runs below it. A *turn* is one question of a user and
its answer. When a root run has ended, the application's thread submits one `TreeJob`. On the
evaluator's thread, the job finds the turns, writes the spans with the recorded times
(`SpanWriter`), and has the turns scored. The span of a turn ends after the turn is scored.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from opentelemetry import context as otel_context
from opentelemetry.trace import (
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)

from rag_eval_otel import semconv
from rag_eval_otel.capture.dialects.values import messages_in, plain
from rag_eval_otel.capture.runs import Run, RunTree
from rag_eval_otel.capture.span import about
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.text import Keys, exportable
from rag_eval_otel.capture.turn import Turn, find_turns
from rag_eval_otel.config import ContentCapture, Spans
from rag_eval_otel.errors import RedactionError
from rag_eval_otel.live.hold import Awaited, Holdback
from rag_eval_otel.live.score import TurnJob, TurnScorer, given_up
from rag_eval_otel.redaction import Redactor
from rag_eval_otel.runtime.background import GivenUp
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.sinks.attributes import score_attributes
from rag_eval_otel.sinks.instruments import DropReason
from rag_eval_otel.types import UNTOUCHED, ContextsFromPrompt, Ending, Reasons

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

    Attributes = Mapping[str, AttributeValue | None]

TreeUse: TypeAlias = Literal["read", "joined", "evicted"]
"""How a run tree is used. ``read``: turns are looked for in the tree alone. ``joined``: turns are
looked for in the trace around it. ``evicted``: its spans are written, no turn is looked for."""

_OVERHEAD = 4096  # bytes of a held tree without its texts


# --- the job --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reading:
    """The steps (calls) of a run tree, its turns, and how its root span ends.

    ``steps`` maps the id of a run to its step. ``turns`` maps the id of the run whose span gets the
    scores to the turn. ``root`` is the status that is written on the span of the root run.
    """

    steps: Mapping[Hashable, Step]
    turns: Mapping[Hashable, Turn]
    root: Ending = UNTOUCHED


_FAILED = _Reading({}, {}, Ending("error"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeParts:
    """The parts of a pipeline that the jobs for all LangChain run trees share."""

    writer: SpanWriter
    scorer: TurnScorer
    hold: Holdback
    keys: Keys
    contexts_from_prompt: ContextsFromPrompt
    explanations: Reasons
    edge: Edge


class TreeJob:
    """A job of `BackgroundEvaluator` that writes the spans of one finished LangChain run tree.

    The job also waits in `Holdback`, the store of spans that wait for scores, with a deadline. The
    spans are written once. They are written when the job runs, or at the deadline, a flush or a
    shutdown, whichever comes first. The spans of RAG turns stay open until the turns have scores.
    When the last of these spans has ended, the job is removed from `Holdback`.
    """

    __slots__ = (
        "_contexts",
        "_held",
        "_lock",
        "_open",
        "_parts",
        "_reading",
        "_uncounted",
        "_use",
        "tree",
    )

    def __init__(self, tree: RunTree, parts: TreeParts, use: TreeUse) -> None:
        self.tree = tree
        self._parts = parts
        self._use: TreeUse = use
        self._lock = threading.RLock()
        self._reading: _Reading | None = None
        self._held: Awaited | None = None
        self._open: dict[Hashable, tuple[Span, Run]] = {}
        self._contexts: dict[Hashable, SpanContext] = {}
        self._uncounted = 0  # turns without an outcome so far

    @property
    def key(self) -> tuple[int, int]:
        """The key of this run tree in `Holdback`, the store of spans that wait for scores."""
        return (0, id(self))

    @property
    def size(self) -> int:
        """About how many bytes this tree keeps in memory."""
        return _OVERHEAD + self.tree.size

    @property
    def seconds_left(self) -> float:
        """Seconds until the spans are released at their deadline; see `Awaited`."""
        return float("inf") if self._held is None else self._held.seconds_left

    def begin(self) -> bool:
        """Write the spans of the run tree, and have its turns scored by a job each.

        The span of a RAG turn (a question and its answer) stays open until the turn has scores.
        """
        turns = self._write().turns
        if self._open:
            self._held = self._parts.hold.start_scoring(self.key)
        else:
            self._parts.hold.release(self.key, UNTOUCHED)
        for run_id, turn in turns.items():
            job = self._turn_job(run_id, turn)
            self._uncounted -= 1
            if job is not None:
                self._parts.scorer.submit(job)
        return False

    async def run(self) -> None:
        """Do nothing, because each turn has a job of its own."""

    def _turn_job(self, run_id: Hashable, turn: Turn) -> TurnJob | None:
        """Return a job that scores ``turn``; for a refused turn, end the span and return None."""
        scorer, held = self._parts.scorer, _TurnSpan(self, run_id)
        around = get_current_span(self.tree.context).get_span_context()
        context = self._contexts.get(run_id, around)
        if context.is_valid and not context.trace_flags.sampled:
            scorer.refuse("not_sampled")
            held.release(UNTOUCHED)
            return None
        trace_id = context.trace_id or zlib.crc32(repr(turn.anchor.id).encode())  # any number does
        job = TurnJob(scorer, turn, context, turn.path[-1].end or time.time_ns(), held)
        outer = getattr(get_current_span(self.tree.context), "attributes", None) or {}
        return job if job.admit(trace_id, lambda: [outer]) else None

    def give_up(self, why: GivenUp) -> None:
        """Count the RAG turns of this job as dropped or failed, and end their spans."""
        self.release(given_up(why))
        self._parts.scorer.count_given_up(why, self._uncounted)
        self._uncounted = 0

    def drop(self, why: DropReason) -> None:
        """Count the RAG turns of this tree as dropped, because there was no room for the tree."""
        self._parts.scorer.drop(why, self._uncounted)
        self._uncounted = 0

    def release(self, ending: Ending) -> None:
        """Write the spans that are not written yet, and end open spans with ``ending``.

        ``ending`` has the scores, or the reason why there are none.
        """
        for run_id in self._write().turns:
            self.end_turn(run_id, ending)

    def _write(self) -> _Reading:
        """Read the run tree and write its spans, at the first call only.

        The spans of RAG turns stay open. Later calls return the same result.
        """
        with self._lock:
            if self._reading is not None:
                return self._reading
            edge, scorer = self._parts.edge, self._parts.scorer
            self._reading = _FAILED
            with edge:  # an error in reading must not keep the spans from being written
                self._reading = self._read()
            if self._reading is _FAILED:
                with edge:
                    scorer.instruments.found()
                    scorer.instruments.turn("error", "internal")
            self._uncounted = len(self._reading.turns)
            scorer.instruments.found(self._uncounted)
            token = otel_context.attach(self.tree.context)
            try:
                self._write_spans(self._reading)
            finally:
                otel_context.detach(token)
            return self._reading

    def _read(self) -> _Reading:
        tree, parts = self.tree, self._parts
        steps = tree.steps(parts.keys)
        by_id = {step.id: step for step in steps}
        if self._use != "read":
            return _Reading(by_id, {})
        if tree.lost:
            parts.scorer.instruments.found()
            parts.scorer.refuse("evicted")
            return _Reading(by_id, {}, Ending("skipped", "evicted"))
        found = find_turns(steps, contexts_from_prompt=parts.contexts_from_prompt)
        turns = {turn.path[-1].id: turn for turn in found}
        reason = None if turns else parts.scorer.refuse_steps(steps)
        return _Reading(by_id, turns, UNTOUCHED if reason is None else Ending("skipped", reason))

    def _write_spans(self, reading: _Reading) -> None:
        tree, edge = self.tree, self._parts.edge
        turns = reading.turns.keys()
        spans = self._parts.writer.start(tree, reading.steps, also=turns, edge=edge)
        if reading.root.status is not None and tree.root.id in spans:
            with edge:
                spans[tree.root.id].set_attributes(score_attributes(reading.root))
        for run in sorted(tree.runs, key=lambda r: (r.end or tree.root.end or 0, -r.start)):
            span = spans.get(run.id)
            if span is None:
                continue
            self._contexts[run.id] = span.get_span_context()
            if run.id in turns and span.is_recording():
                self._open[run.id] = (span, run)
            else:
                with edge:
                    end_span(span, run)

    def end_turn(self, run_id: Hashable, ending: Ending) -> None:
        """End the span of one RAG turn, with its scores or the reason in ``ending``.

        The span ends in the context in which the root run started. A second call for the same turn
        does nothing.
        """
        found = self._open.pop(run_id, None)
        if found is None:
            return
        span, run = found
        parts = self._parts
        token = otel_context.attach(self.tree.context)
        try:
            if ending.status is not None:
                with parts.edge:
                    parts.scorer.instruments.released(ending.status)
                    scores = score_attributes(ending, explanations=parts.explanations)
                    span.set_attributes(scores)
            with parts.edge:
                end_span(span, run)
        finally:
            otel_context.detach(token)
        if not self._open:
            parts.hold.release(self.key, UNTOUCHED)


@dataclass(frozen=True, slots=True)
class _TurnSpan:
    """The open span of one turn in a LangChain run tree."""

    tree: TreeJob
    run_id: Hashable

    @property
    def seconds_left(self) -> float:
        return self.tree.seconds_left

    def release(self, ending: Ending) -> None:
        self.tree.end_turn(self.run_id, ending)


# --- the spans ------------------------------------------------------------------------------------


_ESSENTIAL = frozenset({"llm", "retriever", "tool"})
_CLIENT = frozenset({"llm", "retriever"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanWriter:
    """Write the spans of LangChain run trees by the GenAI semantic conventions, with ``tracer``.

    Texts are written on the spans only if ``content`` is ``span``.
    """

    tracer: Tracer
    spans: Spans = "essential"
    content: ContentCapture = "off"
    redactor: Redactor = Redactor()  # noqa: RUF009  # frozen
    metadata_keys: Sequence[str] = ()

    def start(
        self,
        tree: RunTree,
        steps: Mapping[Hashable, Step],
        *,
        also: Iterable[Hashable],
        edge: Edge,
    ) -> dict[int, Span]:
        """Start the spans of the LangChain run tree ``tree``, and return the spans by run id.

        The root run, the runs with ids in ``also``, and the runs that the option ``spans`` selects
        get a span. Spans of parents are started first. ``steps`` maps a run id to the texts that
        were read from the run. If a span cannot be started, it is missing from the result, and
        ``edge`` handles the error.
        """
        if self.spans == "none":
            return {}
        by_id = {run.id: run for run in tree.runs}
        forced = {tree.root.id, *also}
        started: dict[int, Span] = {}
        for run in tree.runs:
            if run.id in forced or self._is_visible(run, by_id):
                with edge:
                    span = self._start(run, steps.get(run.id), by_id=by_id, started=started)
                    started[run.id] = span
        return started

    def _is_visible(self, run: Run, by_id: Mapping[int, Run]) -> bool:
        is_inner = run.kind == "retriever" and _is_inside_retriever(run, by_id)
        if self.spans == "all":
            return not (is_inner and run.is_search)  # LangChain has no run for it
        return run.kind in _ESSENTIAL and not is_inner

    def _start(
        self,
        run: Run,
        step: Step | None,
        *,
        by_id: Mapping[int, Run],
        started: Mapping[int, Span],
    ) -> Span:
        parent = by_id.get(run.parent) if run.parent else None
        while parent is not None and parent.id not in started:
            parent = by_id.get(parent.parent) if parent.parent else None
        context = run.tree.context
        if parent is not None:
            context = set_span_in_context(started[parent.id], context)
        operation = operation_of(run)
        return self.tracer.start_span(
            exportable(span_name(run, operation)),
            context=context,
            kind=SpanKind.CLIENT if run.kind in _CLIENT else SpanKind.INTERNAL,
            attributes=self._attributes(run, step, operation),
            start_time=run.start,
        )

    def _attributes(
        self, run: Run, step: Step | None, operation: str | None
    ) -> dict[str, AttributeValue]:
        found: dict[str, AttributeValue | None] = {semconv.GEN_AI_OPERATION_NAME: operation}
        found.update(_described(run, operation))
        if run is run.tree.root:
            found.update(about([run.metadata], self.metadata_keys))
        if self.content == "span" and step is not None:
            with suppress(RedactionError):  # then no text of the run is exported
                found.update(_content(run, step, self.redactor))
        return {
            key: exportable(value) if isinstance(value, str) else value
            for key, value in found.items()
            if value is not None
        }


def end_span(span: Span, run: Run) -> None:
    """End ``span`` at the time when ``run`` ended, with the run's error, if there is one.

    If the run has not ended, the span ends at the time when the root run ended.
    """
    if run.error is not None:
        span.set_attribute(semconv.ERROR_TYPE, run.error)
        span.set_status(Status(StatusCode.ERROR))
    at = run.end or run.tree.root.end
    span.end(end_time=None if at is None else max(at, run.start))


def _is_inside_retriever(run: Run, by_id: Mapping[int, Run]) -> bool:
    parent = by_id.get(run.parent) if run.parent else None
    while parent is not None:
        if parent.kind == "retriever":
            return True
        parent = by_id.get(parent.parent) if parent.parent else None
    return False


def operation_of(run: Run) -> str | None:
    """Return the GenAI operation name of a LangChain run, or None for a chain within a run."""
    if run.kind == "llm":
        is_chat = isinstance(run.asked, list)
        return semconv.OPERATION_CHAT if is_chat else semconv.OPERATION_TEXT_COMPLETION
    if run.kind == "retriever":
        return semconv.OPERATION_RETRIEVAL
    if run.kind == "tool":
        return semconv.OPERATION_EXECUTE_TOOL
    if run is not run.tree.root:
        return None
    called = any(_calls_tools(other) for other in run.tree.runs)
    ran = any(
        other.kind == "tool" for other in run.tree.runs
    )  # without one, the call of a tool is a structured output
    return semconv.OPERATION_INVOKE_AGENT if called and ran else semconv.OPERATION_INVOKE_WORKFLOW


def _calls_tools(run: Run) -> bool:
    return run.kind == "llm" and isinstance(run.told, dict) and bool(run.told.get("tool_calls"))


def span_name(run: Run, operation: str | None) -> str:
    """Return the span name of ``run``: the operation, then the model or the name of the run."""
    target = {"llm": run.model, "retriever": None}.get(run.kind, run.name)
    return " ".join(str(part) for part in (operation, target) if part) or run.name


def _described(run: Run, operation: str | None) -> Attributes:
    if run.kind == "llm":
        read, written = run.tokens or (None, None)
        return {
            semconv.GEN_AI_PROVIDER_NAME: run.metadata.get("ls_provider"),
            semconv.GEN_AI_REQUEST_MODEL: run.metadata.get("ls_model_name"),
            semconv.GEN_AI_RESPONSE_MODEL: run.model,
            semconv.GEN_AI_RESPONSE_ID: run.response_id,
            semconv.GEN_AI_USAGE_INPUT_TOKENS: read,
            semconv.GEN_AI_USAGE_OUTPUT_TOKENS: written,
        }
    if run.kind == "retriever":
        count = len(run.told) if isinstance(run.told, list) else None
        return {semconv.DOCUMENT_COUNT: count}
    if run.kind == "tool":
        return {semconv.GEN_AI_TOOL_NAME: run.name}
    if operation == semconv.OPERATION_INVOKE_AGENT:
        return {semconv.GEN_AI_AGENT_NAME: run.name}
    return {semconv.GEN_AI_WORKFLOW_NAME: run.name}


def _content(run: Run, step: Step, clean: Redactor) -> Attributes:
    asked = None if step.input is None else clean.text(step.input)
    told = None if step.output is None else clean.text(step.output)
    if run.kind == "retriever":
        documents = [
            {"id": p.id, "score": p.score, "content": clean.text(p.text)}
            for p in step.documents or ()
        ]
        return {
            semconv.GEN_AI_RETRIEVAL_QUERY_TEXT: asked,
            semconv.GEN_AI_RETRIEVAL_DOCUMENTS: _json(documents),
        }
    if run.kind == "tool":
        return {
            semconv.GEN_AI_TOOL_CALL_ARGUMENTS: clean.text(_arguments(run)),
            semconv.GEN_AI_TOOL_CALL_RESULT: told,
        }
    shown = _messages_shown(run) or ([("user", asked)] if asked else [])
    return {
        semconv.GEN_AI_INPUT_MESSAGES: _messages((role, clean.text(text)) for role, text in shown),
        semconv.GEN_AI_OUTPUT_MESSAGES: _messages([("assistant", told)] if told else []),
    }


def _arguments(run: Run) -> str:
    return run.asked if isinstance(run.asked, str) else _json(run.asked)


def _messages_shown(run: Run) -> list[tuple[str, str]]:
    if run.kind != "llm":
        return []
    if isinstance(run.asked, str):
        return [("user", run.asked)]
    return [(str(m["role"]), str(m.get("content") or "")) for m in messages_in(plain(run.asked))]


def _messages(messages: Iterable[tuple[str, str]]) -> str | None:
    found = [
        {"role": role, "parts": [{"type": "text", "content": text}]} for role, text in messages
    ]
    return _json(found) if found else None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
