"""`RagEvalCallbackHandler`: score the LangChain runs to which an application passes the handler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rag_eval_otel.capture.langchain import LangChainCapture
from rag_eval_otel.capture.runs import RunRecorder
from rag_eval_otel.capture.vectorstores import record_searches
from rag_eval_otel.config import Config, ConfigOptions
from rag_eval_otel.environment import sdk_disabled
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.export.metrics import Stats
from rag_eval_otel.live.instrument import (
    ATTACHING,
    Handle,
    config_of,
    find_sinks,
    instrument,
    pipeline_of,
    recorder_of,
)
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.types import Sink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack


class RagEvalCallbackHandler(LangChainCapture):
    """A LangChain callback handler that scores RAG turns (one question and its answer each).

    ::

        chain.invoke(question, config={"callbacks": [RagEvalCallbackHandler()]})

    The handler takes the arguments of `instrument`, except the providers. It attaches to the tracer
    provider at its first run, ``flush()`` or use of ``stats``, so the application may set the
    provider later. All handlers on one provider share one pipeline, which has the options and sinks
    of the first handler.
    """

    def __init__(
        self,
        config: Config | None = None,
        *,
        sinks: Sequence[Sink | str] = (),
        **options: Unpack[ConfigOptions],
    ) -> None:
        self._config = config_of(config, options)
        self._sinks = tuple(find_sinks(sinks))
        self._given = self._config if config or options else None
        self._attached: Handle | None = None
        self._has_failed = False
        edge = Edge("callback", on_error=self._count_error, raise_errors=self._config.raise_errors)
        super().__init__(self._attach, edge=edge)
        self.enabled = not sdk_disabled()
        if self.enabled and self._config.host_hooks:
            record_searches(edge)

    @property
    def stats(self) -> Stats:
        """The counts of turns, waiting spans and errors up to now."""
        return self._handle().stats

    def flush(self, timeout: float = 30.0) -> bool:
        """Read the LangChain runs that have ended, wait for scores, and export the spans.

        See `Handle.flush` for the result, and for what is exported after ``timeout`` seconds.
        """
        return self._handle().flush(timeout)

    def shutdown(self, timeout: float | None = None) -> None:
        """Wait up to ``timeout`` seconds for scores, export all spans, and detach.

        The other handlers on the tracer provider stop scoring, too. See `Handle.shutdown`.
        """
        if self._attached is not None:
            self._attached.shutdown(timeout)

    def _handle(self) -> Handle:
        if self._attached is None:
            self._attached = instrument(self._given, sinks=self._sinks)
        return self._attached

    def _attach(self) -> RunRecorder:
        """Attach to a tracer provider, at the first run; return the recorder of LangChain runs."""
        with ATTACHING.lock:  # the first runs may begin on several threads at once
            if self._has_failed:  # so would each further attempt
                raise ConfigError("not attached: the first attempt has failed")
            self._has_failed = True
            recorder = recorder_of(self._handle())
            self._has_failed = False
        return recorder

    def _count_error(self, place: str) -> None:
        if self._attached is not None:
            pipeline_of(self._attached).instruments.internal_error(place)
