"""`RagEvalCallbackHandler`: the LangChain callback handler, which attaches on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rag_eval_otel.capture.langchain import LangChainCapture
from rag_eval_otel.capture.runs import RunRecorder
from rag_eval_otel.config import Config, ConfigOptions
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.live.instrument import Handle, instrument, pipeline_of, recorder_of
from rag_eval_otel.runtime.guard import Edge

if TYPE_CHECKING:
    from typing_extensions import Unpack


class RagEvalCallbackHandler(LangChainCapture):
    """Scores the RAG turns of the LangChain runs it is passed to.

    ::

        chain.invoke(question, config={"callbacks": [RagEvalCallbackHandler()]})

    Takes the options of `Config`, or a whole ``config``; without any, the environment's. Raises
    `ConfigError` for options that cannot be used. The tracer provider is looked up at the first
    run, so the application may set it later than it makes the handler. All handlers on one provider
    share one pipeline, with the options of the first.
    """

    def __init__(self, config: Config | None = None, **options: Unpack[ConfigOptions]) -> None:
        self._config = config or Config.from_env(**options)
        self._given = self._config if config or options else None
        self._attached: Handle | None = None
        self._recorder_of_handle: RunRecorder | None = None
        self._has_failed = False
        edge = Edge("callback", on_error=self._count_error, mode=self._config.errors)
        super().__init__(self._connect, edge=edge)
        self.enabled = not self._config.sdk_disabled

    @property
    def handle(self) -> Handle:
        """The handle of the pipeline that this handler reports to; attaches on first use."""
        if self._attached is None:
            self._attached = instrument(self._given)
        return self._attached

    def flush(self, timeout: float = 30.0) -> bool:
        """Read what has ended, wait for its scores, and export; see `Handle.flush`."""
        return self.handle.flush(timeout)

    def _connect(self) -> RunRecorder:
        """Attach once: an attempt that fails would fail again at every event of every run."""
        if self._recorder_of_handle is None:
            if self._has_failed:
                msg = "not attached: the first attempt has failed"
                raise ConfigError(msg)
            self._has_failed = True
            self._recorder_of_handle = recorder_of(self.handle)
            self._has_failed = False
        return self._recorder_of_handle

    def _count_error(self, place: str) -> None:
        if self._attached is not None:
            pipeline_of(self._attached).instruments.internal_error(place)
