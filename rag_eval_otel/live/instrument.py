"""`instrument()`: the one place where everything is built from a `Config` and put together."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import NoOpTracerProvider, TracerProvider, get_tracer_provider

from rag_eval_otel import semconv
from rag_eval_otel.capture.logs import Listener, listen
from rag_eval_otel.capture.record import RunRecorder
from rag_eval_otel.capture.spans import SpanWriter
from rag_eval_otel.config import Config
from rag_eval_otel.live.assembler import TraceAssembler
from rag_eval_otel.live.processor import RagEvalSpanProcessor
from rag_eval_otel.live.score import Admission, Intake, TurnScorer, build_measurement
from rag_eval_otel.protocols import Sink
from rag_eval_otel.redaction import redactor
from rag_eval_otel.runtime.background import BackgroundEvaluator
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.runtime.providers import (
    Downstream,
    Seat,
    find_seat,
    global_or_new_tracer_provider,
    logger_provider_or_global,
)
from rag_eval_otel.sinks.content import ContentFilter
from rag_eval_otel.sinks.instruments import InstrumentSink
from rag_eval_otel.sinks.online import DriftSink, check_targets, online_sinks

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider
    from opentelemetry.metrics import MeterProvider

    from rag_eval_otel.capture.langchain import LangChainCapture, LangChainHook


_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Handle:
    """What `instrument` attached: its callback, and the ways to flush and to take it off again."""

    config: Config
    intake: Intake
    recorder: RunRecorder
    evaluator: BackgroundEvaluator
    processor: RagEvalSpanProcessor | None
    seat: Seat | None
    edge: Callable[[str], Edge]
    internal_error: Callable[[str], None]
    deafen: Callable[[], None] = lambda: None

    @cached_property
    def callback(self) -> LangChainCapture:
        """The LangChain callback handler: ``chain.invoke(..., config={"callbacks": [...]})``."""
        from rag_eval_otel.capture.langchain import LangChainCapture  # noqa: PLC0415

        return LangChainCapture(lambda: self.recorder, edge=self.edge("callback"))

    @cached_property
    def _hook(self) -> LangChainHook:
        from rag_eval_otel.capture.langchain import LangChainHook  # noqa: PLC0415

        return LangChainHook()

    def install_langchain_hook(self) -> None:
        """Let every LangChain run of the process report here, without passing it the callback.

        A second time changes nothing, nor does passing `callback` as well.
        """
        self._hook.install(self.callback)

    def remove_langchain_hook(self) -> None:
        """Undo `install_langchain_hook`; `shutdown` does it, too. Runs under way are finished."""
        if "_hook" in vars(self):
            self._hook.remove()

    def flush(self, timeout: float = 30.0) -> bool:
        """Finish what has ended, wait for its scores, and export; False if time ran out.

        Scores still missing after half of ``timeout`` (5 s at most) leave their span without
        them, with status ``flushed``, and go to events and metrics when they come.
        """
        deadline = time.monotonic() + timeout
        self.recorder.flush()
        flushed = self.processor is None or self.processor.force_flush(int(timeout * 1000))
        return self.evaluator.flush(max(0.0, deadline - time.monotonic())) and flushed

    def shutdown(self, timeout: float | None = None) -> None:
        """Wait up to ``timeout`` seconds for scores under way, release every span, and detach.

        The provider goes on as if it had never been instrumented. ``timeout`` defaults to
        ``shutdown_seconds``.
        """
        self.remove_langchain_hook()
        self.drain(timeout)
        self.deafen()
        if self.seat is not None and self.seat.owner is self:
            self.seat.leave(self.processor)
        atexit.unregister(self.drain)
        for sink in self.intake.scorer.sinks:
            if isinstance(sink, DriftSink):
                with self.edge("sink"):  # a detector of the user's own may have no state
                    sink.close()

    def drain(self, timeout: float | None = None) -> None:
        """Finish, score and release what there is; nothing is held afterwards.

        Runs at exit before the meter and logger providers that were there first shut down, so that
        the last scores still become events and metrics.
        """
        grace = self.config.shutdown_seconds if timeout is None else timeout
        self.recorder.flush()
        if self.processor is None:
            self.evaluator.shutdown(grace)
        else:
            self.processor.drain(grace)


def instrument(
    config: Config | None = None,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    logger_provider: LoggerProvider | None = None,
    wrap: Downstream | None = None,
    sinks: Sequence[Sink] = (),
    **options: Any,
) -> Handle:
    """Attach live scoring to a tracer provider and return its `Handle`.

    Without ``config`` it is read from the environment, ``options`` taking precedence. Without
    ``tracer_provider`` the global one is used; if the application has set none, one is made from
    the standard ``OTEL_*`` variables. A provider is instrumented once: a further call returns the
    handle of the first. ``sinks`` get every `Evaluation` beside the built-in ones.

    ``wrap`` is for those who put their provider together themselves: nothing is attached, and
    ``handle.processor`` stands in front of ``wrap``, to be added in its place (not beside it)::

        handle = instrument(wrap=BatchSpanProcessor(exporter))
        provider.add_span_processor(handle.processor)

    Raises `ConfigError` for options that cannot be used.
    """
    asked_for = config is not None or bool(options)
    config = config or Config.from_env(**options)
    check_targets(config)
    if config.sdk_disabled:
        config = replace(config, sample_rate=0.0, spans="none")
    with _ATTACHING:
        made = wrap is not None or config.sdk_disabled
        find = get_tracer_provider if made else global_or_new_tracer_provider
        provider = tracer_provider or find()
        seat = find_seat(provider) if wrap is None else None
        if seat is not None and isinstance(seat.owner, Handle):
            if asked_for and seat.owner.config != config:
                _log.warning("already instrumented: the options of the first call stay in force")
            return seat.owner
        ours = online_sinks(config, provider=provider, meters=meter_provider, logs=logger_provider)
        assembly = _Assembly(
            config,
            provider=NoOpTracerProvider() if config.sdk_disabled else provider,
            instruments=InstrumentSink(meter_provider),
            sinks=(*sinks, *ours),
        )
        return assembly.handle(seat, wrap, logs=logger_provider_or_global(logger_provider))


_ATTACHING = threading.RLock()  # what loads an exporter may come back here


class _Assembly:
    """The parts of one instrumentation, built from ``config`` and wired."""

    def __init__(
        self,
        config: Config,
        *,
        instruments: InstrumentSink,
        provider: TracerProvider,
        sinks: Sequence[Sink] = (),
    ) -> None:
        self.config = config
        self.instruments = instruments
        self.provider = provider
        self.processor: RagEvalSpanProcessor | None = None
        self.evaluator = BackgroundEvaluator(
            concurrency=config.concurrency,
            capacity=config.max_held,
            max_bytes=config.max_held_bytes,
        )
        self.assembler = TraceAssembler(on_evicted=partial(instruments.turn, "skipped", "evicted"))
        self.scorer = TurnScorer(
            build_measurement(config),
            evaluator=self.evaluator,
            instruments=instruments,
            sinks=sinks,
            admission=Admission(
                sample_rate=config.sample_rate, max_per_minute=config.max_turns_per_minute
            ),
            metadata_keys=config.metadata_keys,
            edge=self.edge,
        )
        self.intake = Intake(assembler=self.assembler, scorer=self.scorer, instruments=instruments)

    def edge(self, place: str) -> Edge:
        return Edge(place, on_error=self.instruments.internal_error, mode=self.config.errors)

    def handle(self, seat: Seat | None, wrap: Downstream | None, *, logs: LoggerProvider) -> Handle:
        if wrap is not None:
            self.processor = self._processor(wrap)
        elif seat is not None and seat.sees_spans and not self.config.sdk_disabled:
            self.processor = seat.take(self._processor)
        elif not self.config.sdk_disabled:
            _log.warning(
                "%s is not the OpenTelemetry SDK's: scores go to events and metrics, not on spans,"
                " and content=%r has no effect",
                type(self.provider).__name__,
                self.config.content,
            )
        handle = Handle(
            config=self.config,
            intake=self.intake,
            recorder=self._recorder(),
            evaluator=self.evaluator,
            processor=self.processor,
            seat=seat,
            edge=self.edge,
            internal_error=self.instruments.internal_error,
            deafen=self._listen(logs),
        )
        if seat is not None:
            seat.sign(handle)
        atexit.register(handle.drain)
        self.instruments.watch_held(self._held)
        return handle

    def _listen(self, logs: object) -> Callable[[], None]:
        if self.processor is None:  # there is no span to which a log record could belong
            return lambda: None
        heard, threads = self.processor.watch.logged, self.evaluator.threads
        return listen(logs, Listener(heard=heard, edge=self.edge("logs"), own_threads=threads))

    def _held(self) -> int:
        return self.processor.held if self.processor else 0

    def _recorder(self) -> RunRecorder:
        config = self.config
        tracer = self.provider.get_tracer(semconv.SCOPE, schema_url=semconv.GEN_AI_SCHEMA_URL)
        return RunRecorder(
            SpanWriter(
                tracer=tracer,
                spans=config.spans,
                content=config.capture_content,
                redactor=redactor(config.redact),
                metadata_keys=config.metadata_keys,
            ),
            self.intake,
            edge=self.edge("callback"),
            question_keys=(config.question_key,) if config.question_key else (),
            answer_keys=(config.answer_key,) if config.answer_key else (),
        )

    def _processor(self, downstream: Downstream) -> RagEvalSpanProcessor:
        config = self.config
        return RagEvalSpanProcessor(
            downstream,
            assembler=self.assembler,
            scorer=self.scorer,
            edge=self.edge,
            hold_seconds=config.hold_seconds,
            max_held=config.max_held,
            max_held_bytes=config.max_held_bytes,
            shutdown_seconds=config.shutdown_seconds,
            explanations=config.explanations,
            content=ContentFilter(
                foreign=config.content,
                own=config.capture_content,
                redactor=redactor(config.redact),
            ),
        )
