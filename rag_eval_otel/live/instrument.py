"""`instrument()`: the one place where everything is built from a `Config` and put together."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import NoOpTracerProvider, TracerProvider, get_tracer_provider

from rag_eval_otel.capture.buffer import Listener, listen
from rag_eval_otel.config import Config
from rag_eval_otel.live.notes import take_notes
from rag_eval_otel.live.pipeline import Pipeline
from rag_eval_otel.live.processor import Downstream, RagEvalSpanProcessor, Seat, find_seat
from rag_eval_otel.redaction import redactor
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.runtime.providers import (
    global_or_new_tracer_provider,
    logger_provider_or_global,
)
from rag_eval_otel.sinks.attributes import ContentFilter
from rag_eval_otel.sinks.factory import build_sinks, check_targets, find_sinks
from rag_eval_otel.sinks.instruments import InstrumentSink
from rag_eval_otel.types import Sink

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider
    from opentelemetry.metrics import MeterProvider

    from rag_eval_otel.capture.langchain import LangChainCapture, LangChainHook
    from rag_eval_otel.capture.vectorstores import VectorStoreSearches


_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Handle:
    """What `instrument` attached: its callback, and the ways to flush and to take it off again."""

    config: Config
    pipeline: Pipeline
    processor: RagEvalSpanProcessor | None
    seat: Seat | None
    deafen: Callable[[], None] = lambda: None

    @cached_property
    def callback(self) -> LangChainCapture:
        """The LangChain callback handler: ``chain.invoke(..., config={"callbacks": [...]})``."""
        from rag_eval_otel.capture.langchain import LangChainCapture  # noqa: PLC0415

        self.record_searches()
        recorder = self.pipeline.recorder
        callback = LangChainCapture(lambda: recorder, edge=self.pipeline.edge("callback"))
        callback.enabled = not self.config.sdk_disabled
        return callback

    @cached_property
    def _searches(self) -> VectorStoreSearches:
        from rag_eval_otel.capture.vectorstores import VectorStoreSearches  # noqa: PLC0415

        return VectorStoreSearches()

    def record_searches(self) -> None:
        """Record searches of LangChain vector stores within runs, unless that is switched off."""
        if self.config.vector_stores == "on":
            self._searches.install()

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
        return self.pipeline.flush(timeout)

    def shutdown(self, timeout: float | None = None) -> None:
        """Wait up to ``timeout`` seconds for scores under way, release every span, and detach.

        The provider goes on as if it had never been instrumented. ``timeout`` defaults to
        ``shutdown_seconds``.
        """
        self.remove_langchain_hook()
        if "_searches" in vars(self):
            self._searches.remove()
        self.drain(timeout)
        self.deafen()
        if self.seat is not None and self.seat.owner is self:
            self.seat.leave(self.processor)
        atexit.unregister(self.drain)
        for sink in self.pipeline.scorer.sinks:
            with self.pipeline.edge("sink"):
                getattr(sink, "close", lambda: None)()

    def drain(self, timeout: float | None = None) -> None:
        """Finish, score and release what there is; nothing is held afterwards.

        Runs at exit before the meter and logger providers that were there first shut down, so that
        the last scores still become events and metrics.
        """
        self.pipeline.drain(timeout)


def instrument(
    config: Config | None = None,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    logger_provider: LoggerProvider | None = None,
    wrap: Downstream | None = None,
    sinks: Sequence[Sink | str] = (),
    **options: Any,
) -> Handle:
    """Attach live scoring to a tracer provider and return its `Handle`.

    Without ``config`` it is read from the environment, ``options`` taking precedence. Without
    ``tracer_provider`` the global one is used; if the application has set none, one is made from
    the standard ``OTEL_*`` variables. A provider is instrumented once: a further call returns the
    handle of the first. ``sinks`` get every `Evaluation` in addition to the built-in ones; a name
    is that of an entry point in the group ``rag_eval_otel.sinks``.

    ``wrap`` is for those who put their provider together themselves: nothing is attached, and
    ``handle.processor`` stands in front of ``wrap``, to be added in its place (not beside it)::

        handle = instrument(wrap=BatchSpanProcessor(exporter))
        provider.add_span_processor(handle.processor)

    Raises `ConfigError` for options that cannot be used.
    """
    asked_for = config is not None or bool(options)
    config = config or Config.from_env(**options)
    check_targets(config)
    own_sinks = find_sinks(sinks)
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
        instruments = InstrumentSink(meter_provider)
        ours = build_sinks(
            config,
            provider=provider,
            meters=meter_provider,
            logs=logger_provider,
            guard=Edge("sink", on_error=instruments.internal_error, mode=config.errors),
        )
        pipeline = Pipeline(
            config,
            provider=NoOpTracerProvider() if config.sdk_disabled else provider,
            instruments=instruments,
            sinks=(*own_sinks, *ours),
        )
        processor = _attached(pipeline, seat, wrap, provider=provider)
        handle = Handle(
            config=config,
            pipeline=pipeline,
            processor=processor,
            seat=seat,
            deafen=_listening(pipeline, logger_provider_or_global(logger_provider)),
        )
        if seat is not None:
            seat.sign(handle)
        take_notes(handle, provider)
        atexit.register(handle.drain)
        pipeline.instruments.watch_held(pipeline.count_held)
        return handle


_ATTACHING = threading.RLock()  # what loads an exporter may come back here


def _attached(
    pipeline: Pipeline, seat: Seat | None, wrap: Downstream | None, *, provider: TracerProvider
) -> RagEvalSpanProcessor | None:
    """Put a processor in front of ``wrap``, or of the provider's; None where there is no place."""
    config = pipeline.config

    def processor(downstream: Downstream) -> RagEvalSpanProcessor:
        content = ContentFilter(
            foreign=config.content, own=config.capture_content, redactor=redactor(config.redact)
        )
        return RagEvalSpanProcessor(downstream, pipeline, content=content)

    if wrap is not None:
        return processor(wrap)
    if config.sdk_disabled:
        return None
    if seat is not None and seat.sees_spans:
        return seat.take(processor)
    _log.warning(
        "%s is not the OpenTelemetry SDK's: the spans of other instrumentations are not scored,"
        " and content=%r has no effect",
        type(provider).__name__,
        config.content,
    )
    return None


def _listening(pipeline: Pipeline, logs: object) -> Callable[[], None]:
    if not pipeline.has_spans:  # there is no span to which a log record could belong
        return lambda: None
    heard, threads = pipeline.buffer.logged, pipeline.evaluator.threads
    return listen(logs, Listener(heard=heard, edge=pipeline.edge("logs"), own_threads=threads))
