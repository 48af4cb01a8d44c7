"""Where the doctor waits in every Python of the program that it runs, before anything else is.

It waits at the doors through which all that matters comes, and costs next to nothing until one of
them is opened: only then the `observer` is imported. Many a Python that a program starts never uses
OpenTelemetry or LangChain.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from rag_eval_otel.doctor.imports import AfterImport, ImportHook
from rag_eval_otel.doctor.patches import before

if TYPE_CHECKING:
    from types import ModuleType

    from rag_eval_otel.doctor.notes import Ended
    from rag_eval_otel.doctor.observer import Observer

_WITH_ENVIRON = 3  # arguments of an exec: path, arguments, environment
_EXPORTERS = ("trace_exporter", "metric_exporter", "_log_exporter")
_MODULES = (
    "opentelemetry.trace",
    "opentelemetry.sdk.trace",
    "langchain_core.tracers.context",
    "rag_eval_otel.live.instrument",
    "rag_eval_otel.capture.langchain",
    *(f"opentelemetry.exporter.otlp.proto.{p}.{m}" for p in ("grpc", "http") for m in _EXPORTERS),
)


def begin(folder: str) -> None:
    """Wait in this process, and leave notes in ``folder``."""
    Doors(folder).start()


class Doors:
    """The doors of one process: modules that are imported, and the ways out."""

    def __init__(self, folder: str) -> None:
        """Wait nowhere yet."""
        self._folder = folder
        self._observer: Observer | None = None
        self._path = self._new_path()

    def _new_path(self) -> str:
        return f"{self._folder}/{os.getpid()}-{time.time_ns()}.json"

    def start(self) -> None:
        """Wait at each."""
        atexit.register(self.leave, "exit")  # the first to be registered is the last to run
        before(os, "_exit", lambda *_, **__: self.leave("os._exit"))
        for name in ("execv", "execve"):
            before(os, name, self._about_to_exec)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)
        ImportHook({name: self._door(name) for name in _MODULES}).install()
        self._write(None)

    def _door(self, name: str) -> AfterImport:
        def opened(module: ModuleType) -> None:
            if self._observer is None:
                from rag_eval_otel.doctor.observer import Observer  # noqa: PLC0415

                self._observer = Observer(self._path, program=program)
            self._observer.opened(name, module)

        return opened

    def leave(self, how: Ended) -> None:
        """Write the last note."""
        if self._observer is None:
            self._write(how)
        else:
            self._observer.close(how)

    def _about_to_exec(self, *args: Any, env: Any = None, **_named: Any) -> None:
        from rag_eval_otel.doctor.environment import keep_watching  # noqa: PLC0415

        keep_watching(args[2] if len(args) == _WITH_ENVIRON else env)
        self.leave("exec")

    def _after_fork(self) -> None:
        """Begin anew: what was noted so far is the parent's."""
        self._path = self._new_path()
        if self._observer is not None:
            self._observer.after_fork(self._path)

    def _write(self, ended: Ended | None) -> None:
        """Note that this process was here; nothing that this needs may be imported at its end.

        Python forgets that it has been interrupted when code is compiled after it, and leaves with
        another status than it would without us.
        """
        note = {
            "pid": os.getpid(),
            "parent": os.getppid(),
            "program": program(),
            "executable": sys.executable,
            "ended": ended,
        }
        try:
            with open(self._path, "w", encoding="utf-8") as file:  # noqa: PTH123  # pathlib takes 10 ms
                file.write(json.dumps(note))
        except OSError:  # the doctor has gone
            return


def program() -> str:
    """Return what runs here, without its arguments, which may be secret."""
    arguments = getattr(sys, "argv", None) or [""]
    return os.path.basename(arguments[0]) or os.path.basename(sys.executable)  # noqa: PTH119
