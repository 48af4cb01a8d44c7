"""`RagEvalCallbackHandler`: the one line that a LangChain application needs."""

from __future__ import annotations

from typing import Any

from rag_eval_otel.capture.langchain import LangChainCapture
from rag_eval_otel.capture.runs import RunRecorder
from rag_eval_otel.config import Config
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.live.instrument import Handle, instrument
from rag_eval_otel.runtime.guard import Edge


class RagEvalCallbackHandler(LangChainCapture):
    """Scores the RAG turns of the LangChain runs it is passed to.

    ::

        chain.invoke(question, config={"callbacks": [RagEvalCallbackHandler()]})

    Takes the options of `Config`, or a whole one; without any, the environment's. Raises
    `ConfigError` for options that cannot be used. The tracer provider is looked up at the first
    run, so it may be set later than the handler is made. Any number of handlers on one provider
    share one pipeline, the first one's.
    """

    def __init__(self, config: Config | None = None, **options: Any) -> None:
        """Check the options; attach nothing yet."""
        self._config = config or Config.from_env(**options)
        self._asked_for = self._config if config or options else None
        self._attached: Handle | None = None
        self._failed = False
        edge = Edge("callback", on_error=self._count, mode=self._config.errors)
        super().__init__(self._connect, edge=edge)
        self.enabled = not self._config.sdk_disabled

    @property
    def handle(self) -> Handle:
        """The pipeline this handler reports to; attached on first use."""
        if self._attached is None:
            self._attached = instrument(self._asked_for)
        return self._attached

    def flush(self, timeout: float = 30.0) -> bool:
        """Finish, score and export what has ended so far; see `Handle.flush`."""
        return self.handle.flush(timeout)

    def _connect(self) -> RunRecorder:
        """Attach, once: where that fails it would fail again at every event of every run."""
        if self._attached is None:
            if self._failed:
                msg = "not attached: the first attempt has failed"
                raise ConfigError(msg)
            try:
                self.handle.record_searches()
                return self.handle.pipeline.recorder
            finally:
                self._failed = self._attached is None
        return self._attached.pipeline.recorder

    def _count(self, place: str) -> None:
        if self._attached is not None:
            self._attached.pipeline.instruments.internal_error(place)
