"""The doctor's eyes: begun in every Python of the program it runs, before anything else is.

It imports nothing that the program does not, until there is a span or a LangChain run. Then it
attaches, with the options of the environment, what the program has not attached itself; where the
program does so later, ours makes way.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from rag_eval_otel.doctor.environment import keep_watching
from rag_eval_otel.doctor.imports import AfterImport, ImportHook
from rag_eval_otel.doctor.installed import versions
from rag_eval_otel.doctor.notes import Ended, ProcessNote, write_note
from rag_eval_otel.doctor.patches import before
from rag_eval_otel.doctor.providers import Exports, Providers
from rag_eval_otel.doctor.watched import Pipelines
from rag_eval_otel.guard import Edge

_SECONDS: Final = 0.5  # between two notes
_EXPORTERS: Final = {
    "trace_exporter": ("traces", "OTLPSpanExporter"),
    "metric_exporter": ("metrics", "OTLPMetricExporter"),
    "_log_exporter": ("logs", "OTLPLogExporter"),
}


def begin(folder: str) -> Observer:
    """Watch this process and leave notes in ``folder``."""
    observer = Observer(Path(folder))
    observer.start()
    return observer


class Observer:
    """Watches one process."""

    def __init__(self, folder: Path) -> None:
        """Watch nothing yet."""
        self._folder = folder
        self._failures: list[str] = []
        self._edge = Edge("the doctor", on_error=self._failures.append)
        self._pipelines = Pipelines(edge=self._edge, on_attached=self._attached)
        self._providers = Providers(
            self._pipelines, edge=self._edge, on_made=self._look_at_versions
        )
        self._exports = Exports()
        self._versions: dict[str, str] = {}
        self._ended: Ended | None = None
        self._begin_notes()

    def _begin_notes(self) -> None:
        self._path = self._folder / f"{os.getpid()}-{time.time_ns()}.json"
        self._ticking: threading.Thread | None = None
        self._lock = threading.RLock()

    def start(self) -> None:
        """Stand at the doors through which everything that matters comes."""
        atexit.register(self.close, "exit")  # the first to be registered is the last to run
        before(os, "_exit", lambda *_: self.close("os._exit"))
        for name in ("execv", "execve"):
            before(os, name, self._about_to_exec)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)
        ImportHook(self._doors()).install()
        self.write()

    def _doors(self) -> dict[str, AfterImport]:
        exporters: dict[str, AfterImport] = {
            f"opentelemetry.exporter.otlp.proto.{protocol}.{module}": self._exports.door(
                protocol, *names
            )
            for protocol in ("grpc", "http")
            for module, names in _EXPORTERS.items()
        }
        return {
            "opentelemetry.trace": self._guarded(self._providers.watch_global),
            "opentelemetry.sdk.trace": self._guarded(self._providers.watch_made),
            "langchain_core.tracers.context": self._guarded(self._pipelines.watch_langchain),
            "rag_eval_otel.instrumentation": self._guarded(self._pipelines.watch_attached),
            "rag_eval_otel.capture.langchain": self._guarded(self._pipelines.watch_handlers),
            **exporters,
        }

    def _guarded(self, call: AfterImport) -> AfterImport:
        def guarded(module: ModuleType) -> None:
            with self._edge:
                call(module)

        return guarded

    def _about_to_exec(self, _path: Any, _args: Any, environ: Any = None) -> None:
        with self._edge:
            keep_watching(environ)
        self.close("exec")

    def _after_fork(self) -> None:
        """Begin anew: what was counted so far is the parent's."""
        had_thread = self._ticking is not None
        self._begin_notes()
        self._ended = None
        self._providers.reset()
        self._exports.reset()
        if had_thread:
            self._attached()

    def _look_at_versions(self) -> None:
        """Look, where it matters, and not at the end: what that imports would hide a ^C by then.

        Python forgets that it has been interrupted when code is compiled after it, and leaves with
        another status.
        """
        if not self._versions:
            self._versions = dict(versions())

    def _attached(self) -> None:
        """Write notes from time to time: from now on there is something to tell."""
        self._look_at_versions()
        with self._lock:
            if self._ticking is None:
                self._ticking = threading.Thread(
                    target=self._tick, name="rag-eval-otel-doctor", daemon=True
                )
                self._ticking.start()

    def _tick(self) -> None:
        pause = threading.Event()
        while self._ended is None:
            pause.wait(_SECONDS)
            self.write()

    def close(self, how: Ended) -> None:
        """Write the last note."""
        self._ended = how
        self.write()

    def write(self) -> None:
        """Write down what has been seen so far."""
        with self._edge, self._lock:
            write_note(self._path, self._note())

    def _note(self) -> ProcessNote:
        return ProcessNote(
            pid=os.getpid(),
            parent=os.getppid(),
            program=_program(),
            executable=sys.executable,
            ended=self._ended,
            versions=self._versions,
            global_provider=self._providers.global_name(),
            providers=tuple(self._providers.notes()),
            pipelines=tuple(self._pipelines.notes()),
            exports=tuple(self._exports.notes()),
            handlers=self._pipelines.handlers,
            langchain_runs=self._pipelines.langchain_runs,
            refused_providers=tuple(self._providers.refused),
            ignored_options=self._pipelines.ignored_options,
            failures=tuple(self._pipelines.failures),
        )


def _program() -> str:
    """Return what runs here, without its arguments, which may be secret."""
    arguments = getattr(sys, "argv", None) or [""]
    return Path(arguments[0]).name or Path(sys.executable).name
