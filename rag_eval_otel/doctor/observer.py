"""The doctor's eyes in a program that uses OpenTelemetry or LangChain.

At the first span or LangChain run it attaches, with the options of the environment, what the
program has not attached itself; where the program does so later, ours makes way.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

from rag_eval_otel.config import Signal
from rag_eval_otel.doctor.imports import AfterImport
from rag_eval_otel.doctor.installed import versions
from rag_eval_otel.doctor.notes import Ended, ProcessNote, write_note
from rag_eval_otel.doctor.providers import Exports, Providers
from rag_eval_otel.doctor.watched import Pipelines
from rag_eval_otel.runtime.guard import Edge

_SECONDS: Final = 0.5  # between two notes
_EXPORTERS: Final[Mapping[str, tuple[Signal, str]]] = {
    "trace_exporter": ("traces", "OTLPSpanExporter"),
    "metric_exporter": ("metrics", "OTLPMetricExporter"),
    "_log_exporter": ("logs", "OTLPLogExporter"),
}


class Observer:
    """Watches one process, which runs ``program()``, and notes in ``path`` what it sees."""

    def __init__(self, path: str, *, program: Callable[[], str]) -> None:
        """Watch nothing yet."""
        self._program = program
        self._failures: list[str] = []
        self._edge = Edge("the doctor", on_error=self._failures.append)
        self._pipelines = Pipelines(edge=self._edge, on_attached=self._attached)
        self._providers = Providers(
            self._pipelines, edge=self._edge, on_made=self._look_at_versions
        )
        self._exports = Exports()
        self._versions: dict[str, str] = {}
        self._begin_notes(path)

    def _begin_notes(self, path: str) -> None:
        self._path = Path(path)
        self._ended: Ended | None = None
        self._ticking: threading.Thread | None = None
        self._lock = threading.RLock()

    def opened(self, name: str, module: ModuleType) -> None:
        """Look on at ``module``, which has just been imported."""
        doors: Mapping[str, AfterImport] = {
            "opentelemetry.trace": self._providers.watch_global,
            "opentelemetry.sdk.trace": self._providers.watch_made,
            "langchain_core.tracers.context": self._pipelines.watch_langchain,
            "rag_eval_otel.live.instrument": self._pipelines.watch_attached,
            "rag_eval_otel.capture.langchain": self._pipelines.watch_handlers,
        }
        with self._edge:
            if name in doors:
                doors[name](module)
            else:
                protocol, _, kind = name.rpartition(".proto.")[2].partition(".")
                signal, exporter = _EXPORTERS[kind]
                self._exports.watch(getattr(module, exporter), signal=signal, protocol=protocol)

    def after_fork(self, path: str) -> None:
        """Begin anew, in ``path``: what was counted so far is the parent's."""
        had_thread = self._ticking is not None
        self._begin_notes(path)
        self._providers.reset()
        self._exports.reset()
        if had_thread:
            self._attached()

    def _look_at_versions(self) -> None:
        """Look where it matters, and not at the end, when nothing should be imported any more."""
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
            program=self._program(),
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
            tracers=tuple(sorted(self._providers.asked)),
            ignored_options=self._pipelines.ignored_options,
            failures=tuple(self._pipelines.failures),
        )
