"""`Engine`: score the RAG turns of whole traces, and send the traces on with the scores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from opentelemetry.trace import SpanContext, TraceFlags

from rag_eval_otel import semconv
from rag_eval_otel.capture.conventions import kind_of
from rag_eval_otel.capture.sample import steps_in, turns_in
from rag_eval_otel.capture.span import MOST_ATTRIBUTES, Span, attributes_of_otlp
from rag_eval_otel.config import Config
from rag_eval_otel.export.attributes import SpanScores
from rag_eval_otel.export.metrics import InstrumentSink
from rag_eval_otel.live.instrument import build_sinks
from rag_eval_otel.live.scorer import TurnJob, TurnScorer, attributes_around
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.runtime.threads import BackgroundEvaluator
from rag_eval_otel.types import Ending, Sink, SkipReason
from rag_eval_otel.worker.exporter import Exporter
from rag_eval_otel.worker.wire import located, may_have_rag, parsed, pieces, strip, write

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
    from opentelemetry.sdk._logs import LoggerProvider

    from rag_eval_otel.capture.step import Step

_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)  # what is exported was sampled
_PARSED: Final = 4  # times the bytes of a request: it and its message, while it is scored
_LARGE: Final = 64 * 1024  # bytes of a request that takes a millisecond or more to read
_TASK: Final = 2048  # bytes of a task, besides the request that it keeps


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class _Job(TurnJob):
    """The job of one turn, whose scores are written on the span ``message``."""

    message: SpanMessage


class Engine:
    """Scores the turns in serialized requests, each with the spans of whole traces.

    As many traces are scored at once as ``config.concurrency`` says; others wait for their turn,
    and `is_full` tells the source to read no more. A trace is sent on ``config.hold_seconds`` after
    it was read at the latest. The first 100 services, and ``services`` in any case, have their
    names in metrics. All methods but `read` are called on the event loop's thread.
    """

    def __init__(
        self,
        config: Config,
        exporter: Exporter,
        *,
        max_bytes: int,
        value_limit: int | None = None,
        services: Collection[str] = (),
        sinks: Sequence[Sink] = (),
        meter_provider: MeterProvider | None = None,
        logger_provider: LoggerProvider | None = None,
    ) -> None:
        self.config, self.exporter, self.max_bytes = config, exporter, max_bytes
        self.size = 0  # bytes of requests that wait to be scored or sent
        self.waiting = 0  # traces that wait for scores
        self.received = 0  # spans
        self._value_limit = value_limit
        self.strips = config.export_content == "none"
        self.instruments = InstrumentSink(meter_provider, services=services)
        on_span = replace(config, score_events="span")
        built_in = build_sinks(on_span, provider=None, meters=meter_provider, logs=logger_provider)
        self.scorer = TurnScorer(
            config,
            instruments=self.instruments,
            sinks=(*sinks, *built_in),
            evaluator=BackgroundEvaluator(config.concurrency, capacity=10**9),
        )
        self._scores = SpanScores(
            explanations=config.explanations,
            form=config.score_attributes,
            events="span",
            on_omitted=self.instruments.omitted,
        )
        self._slots = asyncio.Semaphore(config.concurrency)
        self._reader = ThreadPoolExecutor(2, thread_name_prefix="rag-eval-otel-read")
        self.edge = Edge("worker", self.instruments.internal_error, config.raise_errors)
        self._tasks: set[asyncio.Task[None]] = set()
        self.instruments.watch(self, self.scorer.measurements)

    def __len__(self) -> int:  # of the gauge of spans that wait
        return self.waiting

    @property
    def is_full(self) -> bool:
        """Whether no more requests fit into the memory."""
        return self.size >= self.max_bytes

    def send(self, content: bytes, spans: int) -> asyncio.Task[None]:
        """Start to send on a request with ``spans`` spans, which are not part of RAG."""
        self.received += spans
        return self._start(self._send(content, spans), len(content))

    def score(self, content: bytes, spans: int) -> asyncio.Task[None]:
        """Start to score the turns in a request of whole traces, and to send it on."""
        self.received += spans
        size = len(content) * (_PARSED if may_have_rag(content) else 1)
        return self._start(self._score(content, spans), size)

    def _start(self, work: Coroutine[Any, Any, None], size: int) -> asyncio.Task[None]:
        """Run ``work``, which keeps ``size`` bytes, in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        size += _TASK
        self.size += size

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self.size -= size
            with self.edge:
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise error

        task.add_done_callback(ended)
        return task

    async def in_thread(self, size: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``function``; on a thread if ``size``, the bytes that it reads, is large."""
        if size < _LARGE:
            return function(*arguments)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reader, function, *arguments)

    async def _send(self, content: bytes, spans: int) -> None:
        if self.strips:
            content = await self.in_thread(len(content), _stripped, content)
        await self.exporter.send(content, spans)

    async def _score(self, content: bytes, spans: int) -> None:
        if may_have_rag(content):
            self.waiting += 1
            done: dict[_Job, asyncio.Future[Ending]] = {}
            try:
                await self._slots.acquire()
                try:
                    with self.edge:
                        content = await self._scored(content, done)
                finally:
                    self._release_slot([future for future in done.values() if not future.done()])
            finally:
                self.waiting -= 1
        *before, last = pieces(content)
        for piece in before:
            count = sum(1 for _ in located(parsed(piece)))
            spans -= count
            await self._send(piece, count)
        await self._send(last, spans)

    def _release_slot(self, late: Collection[asyncio.Future[Ending]]) -> None:
        """Release a slot, but not before the evaluations that are still running (``late``) end."""
        if not late:
            self._slots.release()
            return
        waiting = asyncio.ensure_future(asyncio.wait(late))
        waiting.add_done_callback(lambda _: self._slots.release())

    async def _scored(self, content: bytes, done: dict[_Job, asyncio.Future[Ending]]) -> bytes:
        loop = asyncio.get_running_loop()

        def end(future: asyncio.Future[Ending], ending: Ending) -> None:
            if not future.done():
                future.set_result(ending)

        request, jobs = parsed(content), list[_Job]()
        with self.edge:
            jobs = await loop.run_in_executor(self._reader, self.read, request)
        call: Callable[..., object] = loop.call_soon_threadsafe
        for job in jobs:
            done[job] = future = loop.create_future()
            job.release = partial(call, partial(end, future))
        for job in jobs:
            self.scorer.submit(job)
        if done:
            await asyncio.wait(done.values(), timeout=self.config.hold_seconds)
        for job, future in done.items():
            ending = future.result() if future.done() else Ending("timeout")
            with self.edge:
                self._write(job.message, ending)
        return bytes(request.SerializeToString())

    def _write(self, message: SpanMessage, ending: Ending) -> None:
        if ending.status is None:
            return
        present = attributes_of_otlp(message)
        parts = self._scores.parts_of(ending)
        attributes = self._scores.fitting(parts, present, MOST_ATTRIBUTES)
        write(message, attributes, self._scores.events_of(ending))
        self.instruments.released(ending.status)

    def read(self, request: ExportTraceServiceRequest) -> list[_Job]:
        """Return a job for each turn without a status; write the reason on other traces."""
        traces: dict[bytes, list[tuple[Span, SpanMessage]]] = {}
        known, service = None, ""
        for resource, scope, message in located(request):
            if resource is not known:  # it may have more attributes than there are spans
                known, named = resource, attributes_of_otlp(resource.resource)
                service = str(named.get(semconv.SERVICE_NAME) or "")
            span = Span.from_otlp(
                message, scope=scope.scope.name, service=service, value_limit=self._value_limit
            )
            traces.setdefault(message.trace_id, []).append((span, message))
        jobs: list[_Job] = []
        for pairs in traces.values():
            with self.edge:
                jobs += self._jobs_of(pairs)
        return jobs

    def _jobs_of(self, pairs: Sequence[tuple[Span, SpanMessage]]) -> Iterable[_Job]:
        spans = {span.span_id: span for span, _ in reversed(pairs)}
        messages = {span.span_id: message for span, message in reversed(pairs)}
        marked = [span for span in spans.values() if kind_of(span) != "other"]
        for source in {span.scope for span in marked}:
            self.instruments.tally.add("sources", self.instruments.limited("source", source))
        steps = steps_in((span for span, _ in pairs), most=self.config.max_text_chars)
        turns = turns_in(steps or (), contexts_from_prompt=self.config.contexts_from_prompt)
        is_whole = all(
            span.parent_id is None or span.parent_is_remote or span.parent_id in spans
            for span in marked
        )
        if turns and is_whole:
            for turn in turns:
                line = [spans[step.id] for step in turn.path if step.id in spans]
                if any(semconv.EVALUATION_STATUS in span.attributes for span in line):
                    continue  # scored in the application
                self.instruments.found()
                span = line[0] if line else spans[turn.anchor.id]  # type: ignore[index]
                service = self.instruments.limited(semconv.SERVICE_NAME, span.service)
                yield _Job(
                    scorer=self.scorer,
                    turn=turn,
                    span=SpanContext(span.trace_id, span.span_id, True, _SAMPLED),  # noqa: FBT003
                    ended=span.end or span.start,
                    trace_id=span.trace_id,
                    attributes=partial(attributes_around, turn, spans),
                    about={semconv.SERVICE_NAME: service} if service else {},
                    message=messages[span.span_id],
                )
            return
        endings = self._refused(steps, pairs[0][0].trace_id, has_turns=bool(turns))
        tops = [span for span in marked if span.parent_id not in spans] or marked
        for span_id, ending in endings.items() if tops else ():
            span = spans.get(cast("int", span_id)) or min(tops, key=lambda span: span.start)
            if semconv.EVALUATION_STATUS not in span.attributes:
                self._write(messages[span.span_id], ending)

    def _refused(
        self, steps: Sequence[Step] | None, trace_id: int, *, has_turns: bool
    ) -> Mapping[Hashable, Ending]:
        """Count a trace that is not scored, and return the endings of its spans."""
        if steps is not None and not has_turns:
            return self.scorer.refuse_steps(steps, trace_id)
        reason: SkipReason = "ambiguous" if steps is None else "partial"
        self.instruments.found()
        self.scorer.refuse(reason)
        return {None: Ending("skipped", reason)}

    async def close(self, timeout: float) -> None:
        """Wait about ``timeout`` seconds for scores and exports, and give up what is left then."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        self.exporter.hurry()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout / 2)
        stop = partial(self.scorer.evaluator.shutdown, 0.0)
        await loop.run_in_executor(None, stop)  # the turns leave as `shutdown`
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=max(0.5, until - loop.time()))
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        if self.scorer.delivers:
            await loop.run_in_executor(None, self.scorer.flush, max(0.5, until - loop.time()))
        await loop.run_in_executor(None, self.scorer.close)
        self._reader.shutdown(wait=False)
        await self.exporter.close()


def _stripped(content: bytes) -> bytes:
    request = parsed(content)
    strip(request)
    return bytes(request.SerializeToString())
