"""`instrument()`, `Handle` and `RagEvalSpanProcessor`: attach a scoring pipeline to tracing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, cast

from opentelemetry.sdk.trace import Span, SpanProcessor
from opentelemetry.trace import NoOpTracerProvider, TracerProvider, get_tracer_provider

from rag_eval_otel.capture.runs import RunRecorder
from rag_eval_otel.capture.trace import log_tap
from rag_eval_otel.config import Config, ConfigOptions
from rag_eval_otel.drift.monitor import DriftOptions
from rag_eval_otel.environment import doctor_is_on, sdk_disabled
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.export.attributes import EventSink
from rag_eval_otel.export.backends.delivery import BackendSink
from rag_eval_otel.export.drift import DriftSink
from rag_eval_otel.export.metrics import InstrumentSink, Stats
from rag_eval_otel.live.pipeline import Pipeline
from rag_eval_otel.live.shutdown import call_at_end
from rag_eval_otel.log import log
from rag_eval_otel.metrics import resolve_metrics
from rag_eval_otel.registry import Registry
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.sdk import (
    Attachment,
    OriginalProcessor,
    attachment_of,
    check_processor,
    global_or_new_tracer_provider,
)
from rag_eval_otel.types import Evaluation, Sink

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from typing_extensions import Unpack

    from rag_eval_otel.capture.langchain import LangChainCapture, LangChainHook


class Handle:
    """An attached scoring pipeline, with its LangChain callback, counts, flush and shutdown.

    `instrument` makes handles. ``processor`` is the span processor of the pipeline, or None if the
    tracer provider takes no span processors.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        processor: RagEvalSpanProcessor | None,
        attachment: Attachment | None = None,
    ) -> None:
        self.config = config = pipeline.config
        self.processor = processor
        self._pipeline = pipeline
        self._attachment = attachment
        self._log_tap = None  # reads log records, which are parts of spans
        if processor is not None:
            processor.handle = self
            self._log_tap = log_tap(pipeline.logger_provider)
        if self._log_tap is not None:
            self._log_tap.listeners[self] = (pipeline.store.add_log, pipeline.edge("logs"))
        self._cancel_at_end = call_at_end(
            pipeline, seconds=config.shutdown_seconds, at_sigterm=config.host_hooks
        )
        pipeline.instruments.watch(pipeline.store, pipeline.scorer.measurements)

    @cached_property
    def callback(self) -> LangChainCapture:
        """The LangChain callback handler that scores runs.

        Pass it to a chain with ``chain.invoke(..., config={"callbacks": [handle.callback]})``.
        """
        from rag_eval_otel.capture.langchain import LangChainCapture  # noqa: PLC0415

        self._record_searches()
        pipeline = self._pipeline
        callback = LangChainCapture(
            partial(getattr, pipeline, "recorder"), edge=pipeline.edge("callback")
        )
        callback.enabled = not sdk_disabled()
        return callback

    def _record_searches(self) -> None:
        if self.config.host_hooks:
            from rag_eval_otel.capture.vectorstores import record_searches  # noqa: PLC0415

            record_searches(self._pipeline.edge("callback"))

    @cached_property
    def _hook(self) -> LangChainHook:
        from rag_eval_otel.capture.langchain import LangChainHook  # noqa: PLC0415

        return LangChainHook()

    def install_langchain_hook(self, *, unless: Callable[[], bool] | None = None) -> None:
        """Trace and score every LangChain run of the process, without passing a callback to it.

        No run is scored twice, even after a second call, or if it also gets `callback`.
        ``unless`` is called at the first run; if it returns True, the hook is not used.
        """
        self._hook.install(self.callback, unless)

    def remove_langchain_hook(self) -> None:
        """Undo `install_langchain_hook`; runs that have begun are still scored."""
        if "_hook" in vars(self):
            self._hook.remove()

    @property
    def stats(self) -> Stats:
        """The counts of turns, waiting spans and errors up to now."""
        return self._pipeline.stats

    def explain(self, trace_id: int | str) -> str | None:
        """Say why turns of a trace were skipped, what is missing, and what would help.

        ``trace_id`` is an int or its hexadecimal digits. None if no turn of the trace was skipped,
        or if it is not among the last 1,000 traces with such a turn.
        """
        number = int(trace_id, 16) if isinstance(trace_id, str) else trace_id
        return "\n".join(self._pipeline.scorer.explanations.get(number, ())) or None

    def flush(self, timeout: float = 30.0) -> bool:
        """Read the spans and runs that have ended, wait for their scores, and export the spans.

        Backends get the scores that they do not have yet. Return False if ``timeout`` seconds were
        not enough, or if a span processor reports a failed flush. A span without scores after half
        of ``timeout`` (5 s at most) is exported with the status ``flushed``; its scores go to a
        span of their own, events and metrics. True does not mean that a server has the spans: the
        SDK's processors return True even if their exporter fails or drops spans, which it logs.
        """
        return self._pipeline.flush(timeout)

    def shutdown(self, timeout: float | None = None) -> None:
        """Wait for scores up to ``timeout`` s (or ``shutdown_seconds``), export all, and detach."""
        self.remove_langchain_hook()
        self._pipeline.drain(timeout)
        if self._log_tap is not None:
            self._log_tap.listeners.pop(self, None)
        if self._attachment is not None and self._attachment.owner is self:
            self._attachment.detach(self.processor)
        self._cancel_at_end()


def recorder_of(handle: Handle) -> RunRecorder:
    """Return the recorder of LangChain runs, and record searches of vector stores from now on."""
    handle._record_searches()  # noqa: SLF001
    return handle._pipeline.recorder  # noqa: SLF001


def pipeline_of(handle: Handle) -> Pipeline:
    return handle._pipeline  # noqa: SLF001


class RagEvalSpanProcessor(SpanProcessor):
    """A span processor that scores RAG turns and passes all spans on to ``next_processor``.

    ::

        exporter = BatchSpanProcessor(OTLPSpanExporter())
        provider.add_span_processor(RagEvalSpanProcessor(exporter, judge="openai/gpt-5-mini"))

    The span of a turn is held until the turn is scored, for at most ``hold_seconds``. Then a copy
    with the scores goes to ``next_processor``, in the context in which the span ended. Add this
    processor in place of ``next_processor``, not beside it, and only once to a provider.

    The arguments are those of `instrument`. The attribute ``handle`` is its `Handle`.
    ``tracer_provider`` makes the spans of LangChain runs (`Handle.callback`) and has the service
    name.
    """

    handle: Handle

    def __init__(
        self,
        next_processor: SpanProcessor,
        config: Config | None = None,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        logger_provider: LoggerProvider | None = None,
        sinks: Sequence[Sink | str] = (),
        **options: Unpack[ConfigOptions],
    ) -> None:
        check_processor(next_processor)
        config = config_of(config, options)
        provider = tracer_provider or get_tracer_provider()
        own_sinks = find_sinks(sinks)
        pipeline = _new_pipeline(config, provider, meter_provider, logger_provider, own_sinks)
        self._connect(next_processor, pipeline)
        _report_at_exit(pipeline, provider, None)
        Handle(pipeline, processor=self)

    @classmethod
    def of_pipeline(cls, next_processor: SpanProcessor, pipeline: Pipeline) -> RagEvalSpanProcessor:
        return cls.__new__(cls)._connect(next_processor, pipeline)  # noqa: SLF001

    def _connect(self, next_processor: SpanProcessor, pipeline: Pipeline) -> RagEvalSpanProcessor:
        if isinstance(next_processor, RagEvalSpanProcessor):
            raise ConfigError(
                "the next processor is a RagEvalSpanProcessor: wrap the one that exports, once"
            )
        self._next, self._pipeline = next_processor, pipeline
        pipeline.attach(next_processor)
        if not isinstance(next_processor, OriginalProcessor):  # else the provider was checked
            pipeline.start_next = self._start_first
        # Not methods that call the pipeline's: a call per span is slow.
        self.on_start = pipeline.on_start  # type: ignore[method-assign]
        self.on_end = pipeline.on_end  # type: ignore[method-assign]
        return self

    def _start_first(self, span: Span, parent_context: Context | None = None) -> None:
        """Handle the start of the first span: check that its provider has no other pipeline."""
        pipeline = self._pipeline
        pipeline.start_next = self._next.on_start
        attachment = Attachment(target=getattr(span, "_span_processor", None))
        first = getattr(attachment.owner, "processor", None) or next(iter(_ours(attachment)), self)
        if first is not self:
            used = {id(sink) for sink in pipeline_of(first.handle).scorer.sinks}
            own = tuple(sink for sink in pipeline.scorer.sinks if id(sink) not in used)
            pipeline.scorer.sinks = own  # those of the first pipeline stay open
            pipeline.drain(0.0)
            pipeline.store.is_fed = False  # the first pipeline counts the turns
            log.warning(
                "a provider has two pipelines of rag_eval_otel: this RagEvalSpanProcessor passes"
                " its spans on without scores; add one, around all processors that export"
            )
        self._next.on_start(span, parent_context)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Wait half of ``timeout_millis`` (5 s at most) for scores, export; False on failure."""
        return self._pipeline.force_flush(timeout_millis / 1000)

    def shutdown(self) -> None:
        """Wait for scores, export all waiting spans, and shut down the next processor."""
        try:
            self._pipeline.drain()
        finally:
            self._next.shutdown()


def _ours(attachment: Attachment) -> list[RagEvalSpanProcessor]:
    return [each for each in attachment.others or () if isinstance(each, RagEvalSpanProcessor)]


def instrument(
    config: Config | None = None,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    logger_provider: LoggerProvider | None = None,
    sinks: Sequence[Sink | str] = (),
    **options: Unpack[ConfigOptions],
) -> Handle:
    """Attach live scoring to a tracer provider and return its `Handle`.

    ``options`` precede those in the environment; a ``config`` replaces both. An invalid option, and
    options beside a ``config``, raise `ConfigError`. ``tracer_provider`` is by default the global
    one; if none is set, it is made from the standard ``OTEL_*`` variables.

    A provider is instrumented once: a further call returns the handle of the first call. Each of
    ``sinks`` gets every `Evaluation`, in addition to the built-in sinks. A str is the name of an
    entry point in the group ``rag_eval_otel.sinks``.
    """
    has_options = config is not None or bool(options)
    config = config_of(config, options)
    own_sinks = find_sinks(sinks)
    with ATTACHING.lock:
        find = get_tracer_provider if sdk_disabled() else global_or_new_tracer_provider
        provider = tracer_provider or find()
        attachment = attachment_of(provider)
        owner = attachment.owner
        handles = (each.handle for each in _ours(attachment))
        others = (each for each in handles if pipeline_of(each).store.is_open)
        known = owner if isinstance(owner, Handle) else next(others, None)
        if known is not None:
            is_new = any(sink not in pipeline_of(known).scorer.sinks for sink in own_sinks)
            if is_new or (has_options and known.config != config):
                log.warning(
                    "already instrumented: the options and sinks of the first call stay in force"
                )
            return known
        pipeline = _new_pipeline(config, provider, meter_provider, logger_provider, own_sinks)
        processor = _attach(attachment, provider, pipeline)
        _report_at_exit(pipeline, provider, attachment)  # before `Handle`: reversed at the exit
        handle = Handle(pipeline, processor=processor, attachment=attachment)
        attachment.mark(handle)
        return handle


class _Attaching:
    """The lock for attaching to tracer providers. A forked child gets a new one."""

    def __init__(self) -> None:
        self._renew()
        call_in_child(self._renew)

    def _renew(self) -> None:
        self.lock = threading.RLock()  # loading an exporter may call `instrument` again


ATTACHING = _Attaching()


def config_of(config: Config | None, options: ConfigOptions) -> Config:
    if config is not None and options:
        raise ConfigError(f"pass a config or options, not both: {', '.join(options)}")
    config = config or Config.from_env(**options)
    value: object = config
    if not isinstance(value, Config):
        raise ConfigError(f"config must be a Config, not {value!r}; pass options by name")
    metrics = {metric.name for metric in resolve_metrics(config.metrics)}
    unknown = ", ".join(sorted(set(getattr(config.drift, "targets", ())) - metrics))
    if unknown:
        raise ConfigError(
            f"drift has targets for {unknown}, but metrics has {', '.join(sorted(metrics))}"
        )
    if not sdk_disabled():
        return config
    return replace(config, sample_rate=0.0, cascade=None, spans="none")


def _new_pipeline(
    config: Config,
    provider: TracerProvider,
    meters: MeterProvider | None,
    logs: LoggerProvider | None,
    sinks: Sequence[Sink],
) -> Pipeline:
    return Pipeline(
        config,
        provider=NoOpTracerProvider() if sdk_disabled() else provider,
        instruments=InstrumentSink(meters),
        sinks=(*sinks, *build_sinks(config, provider=provider, meters=meters, logs=logs)),
        meters=meters,
        logs=logs,
    )


def _attach(
    attachment: Attachment, provider: TracerProvider, pipeline: Pipeline
) -> RagEvalSpanProcessor | None:
    """Attach ``pipeline``, and return its span processor; None if the provider takes none."""
    if sdk_disabled():
        return None
    if attachment.receives_spans:
        original = OriginalProcessor(attachment.target)
        processor = RagEvalSpanProcessor.of_pipeline(original, pipeline)
        attachment.attach(processor)
        return processor
    log.warning(
        "%s is not the OpenTelemetry SDK's: the spans of other instrumentations are not scored,"
        " and export_content=%r has no effect",
        type(provider).__name__,
        pipeline.config.export_content,
    )
    return None


def print_scores(evaluation: Evaluation) -> None:
    scores = []
    for score in evaluation.scores:
        value = score.reason if score.value is None else f"{score.value:.2f}"
        scores.append(" ".join(filter(None, [score.name, value, score.label])))
    sys.stdout.write(f"{evaluation.label or 'no label'}: {', '.join(scores)}\n")


SINKS = Registry(kind="sink", built_in={"print": "rag_eval_otel.live.instrument:print_scores"})


def find_sinks(sinks: Iterable[Sink | str]) -> tuple[Sink, ...]:
    value: object = sinks
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigError(f"sinks must be a sequence of sinks and names, not {value!r}")
    found: list[Any] = []
    for sink in sinks:
        made: object = SINKS.find(sink) if isinstance(sink, str) else sink
        if isinstance(sink, str) and isinstance(made, type):
            made = SINKS.make(sink)
        if not callable(made):
            raise ConfigError(
                f"a sink must be a name, a function, or an object with __call__, not {made!r}"
            )
        found.append(made)
    return tuple(found)


def _report_at_exit(pipeline: Pipeline, provider: object, attachment: Attachment | None) -> None:
    """If ``RAG_EVAL_DOCTOR=1`` is set, have the doctor print a report when the process ends."""
    for point in entry_points(group="rag_eval_otel.reports") if doctor_is_on() else ():
        with pipeline.edge("doctor"):
            point.load()(pipeline, provider, attachment)


def build_sinks(
    config: Config,
    *,
    provider: object,
    meters: MeterProvider | None = None,
    logs: LoggerProvider | None = None,
) -> Iterator[Sink]:
    if config.score_events != "span":
        yield EventSink(logs, explanations=config.explanations)
    if sdk_disabled():
        return
    if config.backends:
        yield BackendSink(config.backends, explanations=config.explanations, meter_provider=meters)
    if not config.drift:
        return
    resource = getattr(getattr(provider, "resource", None), "attributes", {})
    yield DriftSink(
        DriftOptions() if config.drift is True else cast("DriftOptions", config.drift),
        meter_provider=meters,
        logger_provider=logs,
        service=str(resource.get("service.name", "")),
    )
