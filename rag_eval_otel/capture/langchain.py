"""Record LangChain runs by a callback handler, on the application's thread.

Nothing is parsed here, and no OpenTelemetry context is attached: it would leak to the application.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, SupportsFloat, cast
from uuid import UUID, uuid4

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tracers.context import register_configure_hook

from rag_eval_otel.capture.runs import PARAMETERS, Run, RunRecorder
from rag_eval_otel.capture.step import Kind
from rag_eval_otel.runtime.guard import Edge, is_silent

if TYPE_CHECKING:
    from contextvars import ContextVar


_SCALARS: Final = frozenset({str, bool, int, float, type(None)})
_NUMBERS: Final = frozenset({int, float})
_LEVELS: Final = 6  # levels of containers within containers that are copied
_ENDS: Final = ("finish_reason", "stop_reason", "done_reason")  # by provider
_ITEMS: Final = 1000  # the most items of a container that are copied; of a list the last ones


class LangChainCapture(BaseCallbackHandler):
    """A LangChain callback handler that records every run of a chain, model, retriever or tool."""

    raise_error = False
    outside: LangChainCapture | None = None  # records vector store searches outside any run

    def __init__(self, connect: Callable[[], RunRecorder], *, edge: Edge) -> None:
        self.enabled = True
        self._connect = connect
        self._recorder: RunRecorder | None = None
        self.edge = edge

    @property
    def recorder(self) -> RunRecorder:
        if self._recorder is None:  # no `cached_property`: until Python 3.12, all share one lock
            self._recorder = self._connect()
        return self._recorder

    @property
    def run_inline(self) -> bool:  # type: ignore[override]
        """Whether async LangChain calls a method without a thread: all but ``on_llm_start``."""
        # If a handler is inline, LangChain's asynchronous `on_llm_start` omits all that are not.
        frame = sys._getframe(1)  # noqa: SLF001
        if frame.f_code.co_name == "<listcomp>" and frame.f_back:
            frame = frame.f_back
        return frame.f_code.co_name != "on_llm_start"

    def on_chain_start(self, serialized: Any, inputs: Any, **event: Any) -> None:
        with self.edge:
            run = self._start("chain", serialized, event, inputs)
            if run is not None:
                run.is_prompt = event.get("run_type") == "prompt"

    def on_chat_model_start(self, serialized: Any, messages: Any, **event: Any) -> None:
        with self.edge:
            run = self._start("llm", serialized, event, messages[0] if messages else None)
            _note_request(run, event)

    on_llm_start = on_chat_model_start  # type: ignore[assignment]  # with texts for messages

    def on_retriever_start(self, serialized: Any, query: Any, **event: Any) -> None:
        with self.edge:
            self._start("retriever", serialized, event, query)

    def on_tool_start(self, serialized: Any, input_str: Any, **event: Any) -> None:
        with self.edge:
            arguments = event.get("inputs")
            asked = input_str if arguments is None else arguments
            run = self._start("tool", serialized, event, asked)
            if run is not None:
                run.description = (serialized or {}).get("description")
                run.call_id = event.get("tool_call_id")

    def on_chain_end(self, outputs: Any, *, run_id: UUID, inputs: Any = None, **_: Any) -> None:
        """Record the end and the output of a chain, and its input if that came as a stream."""
        with self.edge:
            run = self.find(run_id)
            if run is not None:
                try:
                    if inputs is not None:
                        run.asked = note(inputs)
                finally:
                    self.end(run, note, outputs)

    def on_llm_end(self, response: Any, **event: Any) -> None:
        with self.edge:
            run = self.find(event["run_id"])
            if run is None and self.find(event.get("parent_run_id")) is not None:
                run = self._start("llm", None, event, None)
            if run is not None:
                self.end(run, partial(_note_reply, run), response)

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        with self.edge:
            self.end(self.find(run_id), note, output)

    on_retriever_end = on_tool_end  # type: ignore[assignment]  # other parameter names

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        with self.edge:
            run = self.find(run_id)
            if run is not None:
                self.failed(run, error)

    on_llm_error = on_retriever_error = on_tool_error = on_chain_error

    def _start(
        self, kind: Kind, serialized: Mapping[str, Any] | None, event: Mapping[str, Any], asked: Any
    ) -> Run | None:
        if not self.enabled:
            return None
        recorder = self.recorder
        parent_id = event.get("parent_run_id")
        parent = _number(parent_id) if parent_id is not None else None
        if parent not in recorder.runs and is_silent():
            return None
        name = event.get("name") or (serialized or {}).get("name") or kind
        metadata = event.get("metadata") or {}
        run = recorder.start(kind, _number(event["run_id"]), parent, name, metadata)
        if run is not None:
            run.asked = note(asked)
        return run

    def find(self, run_id: UUID | None) -> Run | None:
        return None if run_id is None else self.recorder.runs.get(_number(run_id))

    def search(self, above: Run | None, name: str, query: object) -> Run | None:
        parent = above.id if above else None
        run = self.recorder.start("retriever", uuid4().int, parent, name, {})
        if run is not None:
            run.is_search, run.asked = True, query if isinstance(query, str) else None
        return run

    def end(self, run: Run | None, noted: Callable[[Any], Any], output: Any) -> None:
        if run is not None:
            try:
                run.told = noted(output)
            finally:
                self.recorder.end(run)

    def failed(self, run: Run, error: BaseException) -> None:
        run.error = type(error).__qualname__
        self.recorder.end(run)


def _number(run_id: UUID | str) -> int:  # LangServe names its root runs by texts
    return (run_id if isinstance(run_id, UUID) else UUID(run_id)).int


def active_run() -> tuple[LangChainCapture, Run] | None:
    config = var_child_runnable_config.get()
    manager = config.get("callbacks") if config else None
    if not isinstance(manager, BaseCallbackManager):
        return None
    for handler in manager.handlers:
        if isinstance(handler, LangChainCapture):
            with handler.edge:
                run = handler.find(manager.parent_run_id)
                if run is not None:
                    return handler, run
    return None


class LangChainHook:
    """Makes LangChain call our handler for all runs in all threads; `remove` stops this."""

    _handler: LangChainCapture | None = None
    _unless: Callable[[], bool] | None = None
    _known = False

    def install(self, handler: LangChainCapture, unless: Callable[[], bool] | None = None) -> None:
        """Report LangChain runs to ``handler``, unless ``unless()`` is True at the first run."""
        self._handler, self._unless = handler, unless
        if not self._known:
            self._known = True
            # LangChain asks for a context variable, but only calls the method `get` of it. A real
            # variable would be empty in threads that the application starts itself.
            register_configure_hook(cast("ContextVar[Any]", self), inheritable=True)

    def remove(self) -> None:
        """Report no further runs. Runs that have already started are still reported."""
        self._handler = None

    def get(self) -> LangChainCapture | None:
        """Return the handler that LangChain should call for a new run, or None."""
        unless, self._unless = self._unless, None
        if unless is not None and unless():
            self._handler = None
        return self._handler


def _note_request(run: Run | None, event: Mapping[str, Any]) -> None:
    given = event.get("invocation_params")
    if run is not None and isinstance(given, dict):
        run.request = {name: note(given[name]) for name in PARAMETERS if name in given}


def _note_reply(run: Run, response: Any) -> Any:
    """Return a model's reply as plain data; set model, response id, end and tokens of ``run``."""
    row = next(filter(None, response.generations), None)
    if row is None:
        return None
    generation = row[0]
    run.model = (response.llm_output or {}).get("model_name") or run.metadata.get("ls_model_name")
    message = getattr(generation, "message", None)
    if message is None:
        return generation.text
    run.model = message.response_metadata.get("model_name") or run.model
    run.response_id = message.response_metadata.get("id") or message.id
    end = next(filter(None, map(message.response_metadata.get, _ENDS)), None)
    run.finish = str(end) if end else None
    usage = getattr(message, "usage_metadata", None)
    if usage:
        run.tokens = (usage["input_tokens"], usage["output_tokens"])
        read, written = usage.get("input_token_details"), usage.get("output_token_details")
        run.details = {**(read or {}), **(written or {})}
    return {**_note_message(message), "content": generation.text}


def note(value: Any, depth: int = 0) -> Any:
    """Copy ``value`` to plain data that its later changes do not affect; unknown types are None."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if depth > _LEVELS:
        return None
    if kind is dict:
        return {key: note(part, depth + 1) for key, part in islice(value.items(), _ITEMS)}
    if kind is list or kind is tuple:
        if value and type(value[0]) in _NUMBERS:
            return []  # an embedding
        return [note(part, depth + 1) for part in value[-_ITEMS:]]
    return _note_object(value, depth)


def _note_object(value: Any, depth: int) -> Any:  # noqa: PLR0911  # one for each kind of value
    bases = type(value).__mro__  # `isinstance` of LangChain's abstract classes takes longer
    if Document in bases:  # the most frequent kind
        fields = value.__dict__  # read often: the model's own attribute access is slower
        about = dict(fields.get("metadata") or {})
        return {"page_content": fields["page_content"], "id": fields.get("id"), "metadata": about}
    if BaseMessage in bases:
        return _note_message(value, depth)
    if PromptValue in bases:
        return [_note_message(message, depth + 1) for message in value.to_messages()]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return note(dict(value), depth)
    if isinstance(value, list | tuple):
        return note(list(value), depth)
    names = getattr(type(value), "__dataclass_fields__", None)
    if names is not None:
        return {name: note(getattr(value, name, None), depth + 1) for name in names}
    members = getattr(value, "__dict__", None)
    if members and hasattr(type(value), "model_fields"):
        return {name: note(part, depth + 1) for name, part in islice(members.items(), _ITEMS)}
    return None


def note_search(results: Sequence[Any]) -> list[Any]:
    """Return the results of a vector store search, documents or pairs with a score, as dicts."""
    noted = []
    for result in results:
        document, score = result if isinstance(result, tuple) else (result, None)
        one = note(document)
        if isinstance(one, dict) and isinstance(score, SupportsFloat):  # numpy's, too
            one["score"] = float(score)
        noted.append(one)
    return noted


def _note_message(message: BaseMessage, depth: int = 0) -> Any:
    fields = message.__dict__
    noted = {"type": fields["type"], "content": note(fields["content"], depth + 1)}
    if fields.get("tool_calls"):
        noted["tool_calls"] = note(fields["tool_calls"], depth + 1)
    if fields["type"] == "tool":
        noted["name"], noted["call_id"] = fields.get("name"), fields.get("tool_call_id")
        noted["artifact"] = note(fields.get("artifact"), depth + 1)
    return noted
