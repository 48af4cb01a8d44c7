"""The LangChain side: a callback handler that records runs and hands finished trees on.

It is a plain synchronous handler, never ``run_inline`` (inline handlers make LangChain drop the
events of others) and never attaches a context (it would leak into the application). Every event
only writes down what it is given; the rest happens once the root run has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook

from rag_eval_otel.capture.record import RunRecorder
from rag_eval_otel.capture.runs import Run
from rag_eval_otel.capture.step import Kind
from rag_eval_otel.capture.text import last_message, role_of, text_of_message
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.runtime.suppression import is_silent
from rag_eval_otel.types import Passage

if TYPE_CHECKING:
    from contextvars import ContextVar


class LangChainCapture(BaseCallbackHandler):
    """Records LangChain runs into ``recorder``; whatever goes wrong stays behind ``edge``."""

    raise_error = False
    run_inline = False

    def __init__(self, recorder: Callable[[], RunRecorder], *, edge: Edge) -> None:
        """Record into ``recorder()``, which is called at the first run and at every root."""
        self.enabled = True
        self._recorder = recorder
        self._edge = edge

    def on_chain_start(
        self,
        serialized: dict[str, Any] | None,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **event: Any,
    ) -> None:
        """Note a chain, graph, node or agent."""
        with self._edge:
            run = self._start("chain", run_id, parent_run_id, serialized=serialized, event=event)
            if run is not None:
                run.input = self._recorder().question_of(inputs)
                run.is_prompt = event.get("run_type") == "prompt"

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **event: Any) -> None:
        """Note its answer; a stream gives its real input only now."""

        def read(run: Run) -> None:
            if event.get("inputs") is not None:
                run.input = self._recorder().question_of(event["inputs"]) or run.input
            run.output = self._recorder().answer_of(outputs)
            if run.is_prompt:
                _read_prompt(run, outputs)

        self._end(run_id, read)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Note how it failed."""
        self._fail(error, run_id)

    def on_chat_model_start(
        self,
        serialized: dict[str, Any] | None,
        messages: list[list[Any]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **event: Any,
    ) -> None:
        """Note a chat model's call and what it was shown."""
        with self._edge:
            run = self._start("llm", run_id, parent_run_id, serialized=serialized, event=event)
            if run is not None and messages:
                run.messages = tuple((role_of(m) or "", text_of_message(m)) for m in messages[0])
                run.input = last_message(messages[0])

    def on_llm_start(
        self,
        serialized: dict[str, Any] | None,
        prompts: list[str],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **event: Any,
    ) -> None:
        """Note a completion model's call and its prompt."""
        with self._edge:
            run = self._start("llm", run_id, parent_run_id, serialized=serialized, event=event)
            if run is not None and prompts:
                run.messages = (("prompt", prompts[0]),)
                run.input = prompts[0]

    def on_llm_end(
        self, response: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **event: Any
    ) -> None:
        """Note what the model said. The start may have been kept from us by inline handlers."""
        with self._edge:
            run = self._recorder().find(run_id)
            if run is None and self._recorder().find(parent_run_id) is not None:
                self._start("llm", run_id, parent_run_id, serialized=None, event=event)
        self._end(run_id, lambda run: _read_generation(run, response))

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Note how it failed."""
        self._fail(error, run_id)

    def on_retriever_start(
        self,
        serialized: dict[str, Any] | None,
        query: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **event: Any,
    ) -> None:
        """Note a retrieval and its query."""
        with self._edge:
            run = self._start(
                "retriever", run_id, parent_run_id, serialized=serialized, event=event
            )
            if run is not None:
                run.input = self._recorder().question_of(query)

    def on_retriever_end(self, documents: Sequence[Any], *, run_id: UUID, **_: Any) -> None:
        """Note the texts that were found, before anyone changes the documents."""

        def read(run: Run) -> None:
            run.documents = tuple(
                Passage(text=document.page_content, id=_id_of(document)) for document in documents
            )

        self._end(run_id, read)

    def on_retriever_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Note how it failed."""
        self._fail(error, run_id)

    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **event: Any,
    ) -> None:
        """Note a tool call and its arguments."""
        with self._edge:
            run = self._start("tool", run_id, parent_run_id, serialized=serialized, event=event)
            if run is not None:
                run.input = input_str

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        """Note what the tool returned, where it is text."""

        def read(run: Run) -> None:
            run.output = output if isinstance(output, str) else text_of_message(output)

        self._end(run_id, read)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Note how it failed."""
        self._fail(error, run_id)

    def _start(
        self,
        kind: Kind,
        run_id: UUID,
        parent_run_id: UUID | None,
        *,
        serialized: Mapping[str, Any] | None,
        event: Mapping[str, Any],
    ) -> Run | None:
        if not self.enabled or is_silent():
            return None
        return self._recorder().start(
            kind,
            run_id,
            parent=parent_run_id,
            name=event.get("name") or (serialized or {}).get("name") or kind,
            metadata=event.get("metadata") or {},
        )

    def _end(self, run_id: UUID, read: Callable[[Run], None]) -> None:
        with self._edge:
            run = self._recorder().find(run_id)
            if run is None:
                return
            try:
                read(run)
            finally:  # whatever could be read of it, the run has ended
                self._recorder().end(run, time.time_ns())

    def _fail(self, error: BaseException, run_id: UUID) -> None:
        def read(run: Run) -> None:
            run.error = type(error).__qualname__

        self._end(run_id, read)


class LangChainHook:
    """Where LangChain looks for a handler of all runs, in every thread, without being passed one.

    LangChain never forgets whom it once asked; it asks us by `get`, and finds nobody when removed.
    """

    def __init__(self) -> None:
        """Have nobody."""
        self._handler: LangChainCapture | None = None
        self._known = False

    def install(self, handler: LangChainCapture) -> None:
        """Let every run that starts from now on report to ``handler``."""
        self._handler = handler
        if not self._known:
            self._known = True
            # It asks for a context variable, of which it calls this one method. A variable would
            # be empty in threads that the application starts itself.
            register_configure_hook(cast("ContextVar[Any]", self), inheritable=True)

    def remove(self) -> None:
        """Let no further run report; those under way end as they began."""
        self._handler = None

    def get(self) -> LangChainCapture | None:
        """Return whom LangChain should tell."""
        return self._handler


def _id_of(document: Any) -> str | None:
    found = getattr(document, "id", None)
    return None if found is None else str(found)


def _read_prompt(run: Run, value: Any) -> None:
    messages = value.to_messages() if hasattr(value, "to_messages") else ()
    run.messages = tuple((role_of(m) or "", text_of_message(m)) for m in messages)
    run.input = last_message(messages)


def _read_generation(run: Run, response: Any) -> None:
    generation = next((row[0] for row in response.generations if row), None)
    if generation is None:
        return
    run.output = generation.text
    said = response.llm_output or {}
    run.model = said.get("model_name") or run.metadata.get("ls_model_name")
    message = getattr(generation, "message", None)
    if message is None:
        return
    run.calls_tools = bool(getattr(message, "tool_calls", None))
    run.model = message.response_metadata.get("model_name") or run.model
    run.response_id = message.response_metadata.get("id") or message.id
    usage = getattr(message, "usage_metadata", None)
    if usage:
        run.tokens = (usage["input_tokens"], usage["output_tokens"])
