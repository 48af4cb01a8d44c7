"""The pipelines of a watched process: the program's own, or else one that the doctor attaches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rag_eval_otel.doctor.environment import NOTES_VARIABLE, variables
from rag_eval_otel.doctor.notes import PipelineNote
from rag_eval_otel.doctor.patches import after
from rag_eval_otel.errors import RagEvalError
from rag_eval_otel.runtime.guard import Edge

if TYPE_CHECKING:
    from rag_eval_otel.capture.langchain import LangChainCapture
    from rag_eval_otel.capture.runs import RunRecorder
    from rag_eval_otel.config import Config
    from rag_eval_otel.live.instrument import Handle
    from rag_eval_otel.sinks.instruments import Counted

By: TypeAlias = Literal["program", "doctor"]
_NOT_CONFIG = ("tracer_provider", "meter_provider", "logger_provider", "wrap", "sinks")
_COUNTED: tuple[Counted, ...] = ("turn", "source", "released", "failure")


class Pipelines:
    """Knows every handle; attaches one where there is none, which makes way for the program's."""

    def __init__(self, *, edge: Edge, on_attached: Callable[[], object]) -> None:
        """Attach nothing yet; ``on_attached`` is told of each handle."""
        self._edge = edge
        self._on_attached = on_attached
        self._lock = threading.RLock()
        self._handles: list[tuple[By, Handle]] = []
        self._own: Handle | None = None
        self._callback: LangChainCapture | None = None
        self._instrument: Callable[..., Handle] | None = None
        self._gave_up = False
        self.handlers = 0
        self.langchain_runs = 0
        self.ignored_options = 0
        self.failures: list[str] = []

    @property
    def any(self) -> bool:
        """Tell whether something is attached, or the program is about to."""
        return bool(self._handles or self.handlers)

    def handles(self) -> list[Handle]:
        """Return all there were."""
        return [handle for _, handle in self._handles]

    # --- what the program does ------------------------------------------------------------------

    def watch_attached(self, module: ModuleType) -> None:
        """Look on while the program calls ``instrument``."""
        self._instrument = original = module.instrument

        @wraps(original)
        def instrument(config: Config | None = None, **options: Any) -> Handle:
            self._make_way()
            try:
                handle: Handle = original(config, **options)
            except RagEvalError as error:
                self.failures.append(f"{type(error).__name__}: {error}")
                raise
            with self._edge:
                self._note(handle, config, options)
            return handle

        setattr(module, "instrument", instrument)  # noqa: B010  # it is no attribute of every module

    def watch_handlers(self, module: ModuleType) -> None:
        """Count the LangChain handlers that the program makes."""

        def made(*_: Any, **__: Any) -> None:
            self.handlers += 1

        after(module.LangChainCapture, "__init__", made)

    def watch_langchain(self, module: ModuleType) -> None:
        """Catch LangChain's runs, where the program has no handler; nothing is imported for it."""
        # LangChain makes the handler itself, of a class, when a run begins.
        at_first_run = type("AtFirstRun", (), {"__new__": lambda _: self._callback_of_a_run()})
        nobody: ContextVar[Any] = ContextVar("rag_eval_otel_doctor", default=None)
        module.register_configure_hook(
            nobody, inheritable=True, handle_class=at_first_run, env_var=NOTES_VARIABLE
        )

    def _make_way(self) -> None:
        with self._lock:
            own, self._own = self._own, None
        if own is not None:
            with self._edge:
                own.shutdown()

    def _note(self, handle: Handle, config: Config | None, options: Mapping[str, Any]) -> None:
        if handle not in self.handles():
            self._add("program", handle)
        elif _differs(handle.config, config, options):
            self.ignored_options += 1

    def _add(self, by: By, handle: Handle) -> None:
        self._handles.append((by, handle))
        self._on_attached()

    # --- what the doctor does -------------------------------------------------------------------

    def attach(self) -> Handle | None:
        """Return the program's handle, else attach one with the environment's options."""
        with self._lock:
            if not self._handles and not self._gave_up:
                self._attach()
            return self._handles[-1][1] if self._handles else None

    def _attach(self) -> None:
        import rag_eval_otel.live.instrument  # noqa: F401, PLC0415  # the hook hands us `instrument`

        if self._instrument is None:
            return
        try:
            self._own = self._instrument()
        except RagEvalError as error:
            self._gave_up = True
            self.failures.append(f"{type(error).__name__}: {error}")
        else:
            self._add("doctor", self._own)

    def _callback_of_a_run(self) -> LangChainCapture:
        """Return the doctor's callback; it is deaf where the program has one."""
        from rag_eval_otel.capture.langchain import LangChainCapture  # noqa: PLC0415

        with self._lock:
            self.langchain_runs += 1
            if self._callback is None:
                self._callback = LangChainCapture(self._recorder, edge=self._edge)
                self.handlers -= 1  # this one is not the program's
            callback = self._callback
        with self._edge:
            callback.enabled = not self.handlers and self.attach() is not None
        return callback

    def _recorder(self) -> RunRecorder:
        return self._handles[-1][1].pipeline.recorder

    # --- what is noted --------------------------------------------------------------------------

    def notes(self) -> Iterator[PipelineNote]:
        """Yield what there is to tell of each pipeline."""
        for by, handle in list(self._handles):
            yield _note_of(by, handle)


def _note_of(by: By, handle: Handle) -> PipelineNote:
    config, tally = handle.config, handle.pipeline.instruments.tally
    return PipelineNote(
        by=by,
        sees_spans=handle.processor is not None,
        counts={kind: tally.of(kind) for kind in _COUNTED},
        held=handle.pipeline.count_held(),
        judge=_named(config.judge),
        embedder=_named(config.embedder),
        judge_base_url=config.judge_base_url,
        judge_key=_key_of(config),
    )


def _named(model: object) -> str:
    return model if isinstance(model, str) else f"an object, {type(model).__name__}"


def _key_of(config: Config) -> Literal["variable", "code", "none"]:
    environ = variables()
    known = (environ.get("RAG_EVAL_JUDGE_API_KEY"), environ.get("OPENAI_API_KEY"))
    if config.judge_api_key and config.judge_api_key not in known:
        return "code"
    return "variable" if any(known) else "none"


def _differs(inforce: Config, config: Config | None, options: Mapping[str, Any]) -> bool:
    if config is not None:
        return config != inforce
    asked = {name: value for name, value in options.items() if name not in _NOT_CONFIG}
    return any(getattr(inforce, name, None) != value for name, value in asked.items())
