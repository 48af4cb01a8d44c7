"""Recorded traces, their replay through the span processor in their order, and its verdict."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NoOpTracerProvider, SpanContext, Status, StatusCode, TraceFlags

from rag_eval_otel.capture.sample import Outcome, extract, why_none
from rag_eval_otel.capture.span import LogView
from rag_eval_otel.capture.span import Span as SpanRecord
from rag_eval_otel.capture.step import Step
from rag_eval_otel.config import Config
from rag_eval_otel.export.metrics import InstrumentSink
from rag_eval_otel.live.instrument import RagEvalSpanProcessor
from rag_eval_otel.live.pipeline import Pipeline
from rag_eval_otel.live.scorer import TurnJob, TurnScorer
from rag_eval_otel.runtime.threads import BackgroundEvaluator, GivenUp, Job
from rag_eval_otel.semconv import EVALUATION_STATUS
from rag_eval_otel.types import UNTOUCHED, Ending, Sample, SkipReason
from support import ManualClock


@dataclass(frozen=True, kw_only=True)
class Call:
    """One recorded call of a span processor, at the start or end of a span."""

    operation: Literal["start", "end"]
    span: SpanRecord
    at: int

    @property
    def key(self) -> int:
        return self.span.span_id


@dataclass(frozen=True, kw_only=True)
class Truth:
    """A question, contexts and answer that a recording is known to contain."""

    question: str | None
    contexts: tuple[str, ...] | None
    answer: str | None


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A recorded run of an application."""

    path: Path
    instrumentation: str
    app: str
    calls: tuple[Call, ...]
    truths: tuple[Truth, ...] | None
    spans: tuple[SpanRecord, ...] = field(default=())
    also: tuple[Truth, ...] = ()
    """Other defensible samples: of a turn that may be read in two ways, or need not be scored."""


def load(path: Path) -> Recording:
    data = json.loads(path.read_text(encoding="utf-8"))
    limit = (data.get("env") or {}).get("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT")
    logs: dict[str | None, list[LogView]] = {}
    for record in data.get("logs") or ():
        logs.setdefault(record.get("span_id"), []).append(_log(record))
    spans = {
        raw["span_id"]: _span(
            raw, logs=logs.get(raw["span_id"], ()), limit=int(limit) if limit else None
        )
        for raw in data["spans"]
    }
    expected = data.get("expected")
    return Recording(
        path=path,
        instrumentation=data["instrumentation"],
        app=data["app"],
        calls=tuple(_calls(data, spans)),
        truths=None if expected is None else tuple(map(_truth, expected)),
        spans=tuple(spans.values()),
        also=tuple(map(_truth, data.get("also") or ())),
    )


def _calls(data: Mapping[str, Any], spans: Mapping[str, SpanRecord]) -> list[Call]:
    found = []
    for raw in data["processor_sequence"]:
        span = spans.get(raw["span_id"]) or _unended(raw, data)
        if raw["op"] == "start":
            span = as_started(span, raw.get("attributes_at_start") or {})
        found.append(Call(operation=raw["op"], span=span, at=int(raw["t"])))
    return found


def as_started(span: SpanRecord, attributes: Mapping[str, Any]) -> SpanRecord:
    return replace(span, attributes=attributes, end=None, error=None, dropped=0, events=(), logs=())


def _unended(raw: Mapping[str, Any], data: Mapping[str, Any]) -> SpanRecord:
    """Return a span that has started but not ended, with the values in the recording ``data``."""
    known: Mapping[str, Any] = next(
        (s for s in data["never_ended"] if s.get("span_id") == raw["span_id"]), {}
    )
    traces = [span["trace_id"] for span in data["spans"]]
    trace = known.get("trace_id") or (traces[0] if traces else "0")
    parent = known.get("parent_span_id")
    return SpanRecord(
        name=str(raw.get("name") or known.get("name") or ""),
        trace_id=int(trace, 16),
        span_id=int(raw["span_id"], 16),
        parent_id=int(parent, 16) if parent else None,
        start=int(raw["t"]),
        attributes=raw.get("attributes_at_start") or {},
    )


def _span(raw: Mapping[str, Any], *, logs: Sequence[LogView], limit: int | None) -> SpanRecord:
    parent = raw.get("parent_span_id")
    return SpanRecord(
        name=raw["name"],
        scope=(raw.get("scope") or {}).get("name") or "",
        trace_id=int(raw["trace_id"], 16),
        span_id=int(raw["span_id"], 16),
        parent_id=int(parent, 16) if parent else None,
        parent_is_remote=bool(raw.get("parent_is_remote")),
        start=int(raw["start_time_unix_nano"]),
        end=int(raw["end_time_unix_nano"]) if raw.get("end_time_unix_nano") else None,
        error=_error(raw),
        dropped=int(raw.get("dropped_attributes") or 0),
        value_limit=limit,
        attributes=raw["attributes"],
        events=[(event["name"], event.get("attributes") or {}) for event in raw["events"]],
        links=raw.get("links") or (),
        logs=logs,
        dropped_events=int(raw.get("dropped_events") or 0),
    )


def _error(raw: Mapping[str, Any]) -> str | None:
    status = raw.get("status") or {}
    if status.get("code") != "ERROR":
        return None
    return str(raw["attributes"].get("error.type") or status.get("description") or "error")


def _log(record: Mapping[str, Any]) -> LogView:
    return LogView(
        event=record.get("event_name") or "",
        body=record.get("body"),
        attributes=record.get("attributes") or {},
    )


def _truth(expected: Mapping[str, Any]) -> Truth:
    contexts = expected.get("contexts")
    return Truth(
        question=expected.get("question"),
        contexts=None if contexts is None else tuple(contexts),
        answer=expected.get("answer"),
    )


_HOLD_SECONDS = 3600.0  # the most that is allowed: recorded times pass at once
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_RESOURCE = Resource.get_empty()  # a default resource would be detected anew for every span


class _Attributes(dict[str, Any]):
    """The attributes of a recorded span, and the SDK's length limit of their values."""

    max_value_len: int | None = None


class ReplayedSpan(ReadableSpan):
    """A recorded span in the form in which the OpenTelemetry SDK passes spans to a span processor.

    The object first has the values at the start of the span. `fill` replaces them by the values at
    the end of the span.
    """

    def __init__(self, view: SpanRecord) -> None:
        self.fill(view)

    def fill(self, view: SpanRecord) -> None:
        """Set name, times, attributes and all else of this SDK span from the recorded span."""
        attributes = _Attributes(view.attributes)
        attributes.max_value_len = view.value_limit
        super().__init__(
            name=view.name,
            resource=_RESOURCE,
            context=_context(view.trace_id, view.span_id),
            parent=None
            if view.parent_id is None
            else _context(view.trace_id, view.parent_id, is_remote=view.parent_is_remote),
            attributes=attributes,
            events=[
                Event(name, attributes=dict(values), timestamp=view.start)
                for name, values in view.events
            ],
            links=view.links,
            status=Status() if view.error is None else Status(StatusCode.ERROR, view.error),
            start_time=view.start,
            end_time=view.end,
            instrumentation_scope=InstrumentationScope(view.scope),
        )
        self._dropped = view.dropped

    @property
    def dropped_attributes(self) -> int:
        return self._dropped


def _context(trace_id: int, span_id: int, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote, _SAMPLED)


class InlineEvaluator(BackgroundEvaluator):
    """Runs each job on the thread that submits it; no job waits for anything."""

    def submit(self, job: Job) -> bool:
        with self._lock, suppress(StopIteration):
            if job.begin():
                job.run().send(None)
                msg = "the job waits"
                raise AssertionError(msg)
        return True


class _NotingScorer(TurnScorer):
    """Records the outcome of each turn, and asks no judge."""

    def __init__(self, config: Config) -> None:
        instruments = InstrumentSink(NoOpMeterProvider())
        super().__init__(config, instruments=instruments, evaluator=InlineEvaluator())
        self.found: list[Outcome] = []

    async def score(self, job: TurnJob) -> Ending:
        result = extract(job.turn)
        if isinstance(result, Sample) and self._recent.is_repeated(result, job.turn):
            result = "duplicate"
        self.found.append(Outcome(result=result, turn=job.turn, is_span_missed=job.is_missed))
        return Ending("scored") if isinstance(result, Sample) else UNTOUCHED

    def refuse(self, reason: SkipReason, *, turns: int = 1) -> None:
        self.found.append(Outcome(result=reason))

    def refuse_steps(self, steps: Sequence[Step], trace_id: int = 0) -> dict[Any, Ending]:
        reason = why_none(steps)
        if reason is None:
            return {}
        self.refuse(reason)
        return {None: Ending("skipped", reason)}

    def drop(self, why: GivenUp, turns: int = 1) -> None:
        raise AssertionError(why, turns)


class Exported(SpanProcessor):
    """A span processor that collects the spans that would be exported."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


def replay(
    calls: Iterable[Call], *, timed: bool = True, contexts_from_prompt: bool = False
) -> list[Outcome]:
    """Pass the recorded ``calls`` to the span processor and return the outcome of each RAG turn.

    ``timed``: a trace is read when it is complete by the recorded times, not at the end. Asserts
    that each ended span is exported once, and each scored turn on a span of its own.
    """
    config = Config(
        judge="lexical",
        drift=False,
        raise_errors=True,
        hold_seconds=_HOLD_SECONDS,
        contexts_from_prompt=contexts_from_prompt,
    )
    noting, clock, exported = _NotingScorer(config), ManualClock(), Exported()
    pipeline = Pipeline(
        config,
        provider=NoOpTracerProvider(),
        instruments=noting.instruments,
        scorer=noting,
        now=clock,
    )
    processor = RagEvalSpanProcessor.of_pipeline(exported, pipeline)
    pipeline.clock.is_inline = True  # the recorded times of the calls are used instead
    live: dict[int, ReplayedSpan] = {}
    for call in calls:
        if timed:
            clock.advance(max(0.0, call.at / 1e9 - clock()))
            pipeline.sweep()
        if call.operation == "end":
            for record in call.span.logs:
                pipeline.store.add_log(call.span.trace_id, call.span.span_id, record)
        _feed(call, live, processor)
    pipeline.drain(0.0)
    ended = sum(span.end_time is not None for span in live.values())
    if len(exported.spans) != ended or len({id(span) for span in exported.spans}) != ended:
        msg = f"{ended} spans ended, {len(exported.spans)} left"
        raise AssertionError(msg)
    statuses = [(span.attributes or {}).get(EVALUATION_STATUS) for span in exported.spans]
    on_spans = statuses.count("scored")
    scored = [one for one in noting.found if isinstance(one.result, Sample)]
    if on_spans != sum(not one.is_span_missed for one in scored):
        msg = f"{len(scored)} turns are scored, {on_spans} of them on spans"
        raise AssertionError(msg)
    return sorted(noting.found, key=_start) or [Outcome(result="no_retrieval")]


def _feed(call: Call, live: dict[int, ReplayedSpan], processor: RagEvalSpanProcessor) -> None:
    if call.operation == "start":
        live[call.span.span_id] = span = ReplayedSpan(call.span)
        processor.on_start(cast("Span", span))
        return
    span = live.setdefault(call.span.span_id, ReplayedSpan(call.span))
    span.fill(call.span)
    processor.on_end(span)


def _start(outcome: Outcome) -> int:
    return outcome.turn.anchor.start if outcome.turn is not None else 0


Verdict: TypeAlias = Literal["exact", "incomplete", "none", "refused", "unstated", "wrong"]
"""``none``: there is no true sample, and none was found. ``incomplete``: only some were found."""


def verdict(recording: Recording, found: Sequence[Outcome]) -> Verdict:
    """Compare question, contexts with their order, answer, and the number of samples."""
    if recording.truths is None:
        return "unstated"
    samples = [one.result for one in found if isinstance(one.result, Sample)]
    if unmatched(recording.truths, samples):
        return "wrong"
    if not recording.truths:
        return "none"
    if not samples:
        return "refused"
    return "exact" if len(samples) == len(recording.truths) else "incomplete"


def unmatched(truths: Sequence[Truth], samples: Sequence[Sample]) -> list[Sample]:
    left, wrong = list(truths), []
    for sample in samples:
        truth = next((one for one in left if _is_true(sample, one)), None)
        if truth is None:
            wrong.append(sample)
        else:
            left.remove(truth)
    return wrong


def _is_true(sample: Sample, truth: Truth) -> bool:
    found = (sample.question, tuple(p.text for p in sample.contexts), sample.answer)
    stated = (truth.question, truth.contexts, truth.answer)
    return all(t is None or t == f for t, f in zip(stated, found, strict=True))
