"""`RagEvalInstrumentor`: let ``opentelemetry-instrument`` start scoring, without a code change."""

from __future__ import annotations

import sys
from collections.abc import Collection
from importlib.metadata import entry_points
from typing import Any

from rag_eval_otel.live.instrument import Handle, instrument
from rag_eval_otel.log import log
from rag_eval_otel.runtime.guard import require

BaseInstrumentor: Any = require(
    "opentelemetry.instrumentation.instrumentor", "auto"
).BaseInstrumentor


class RagEvalInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Attach live scoring to the tracer provider and to every LangChain run of the process.

    ``instrument(...)`` takes the arguments of `rag_eval_otel.instrument`. ``uninstrument()``
    exports all spans that wait for scores, and detaches from the provider.

    If another instrumentor, such as OpenInference's, traces LangChain, its spans get the scores,
    and this library makes no spans of LangChain runs. Otherwise each run would be traced twice.
    """

    _handle: Handle | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        return ("langchain-core >= 0.3",)

    def _instrument(self, **options: Any) -> None:
        for name in ("skip_dep_check", "raise_exception_on_conflict"):
            options.pop(name, None)
        names = ("tracer_provider", "meter_provider", "logger_provider", "sinks")
        others = {name: value for name in names if (value := options.pop(name, None))}
        self._handle = instrument(options.pop("config", None), **others, **options)
        self._handle.install_langchain_hook(unless=_is_traced_by_others)

    def _uninstrument(self, **_: Any) -> None:
        if self._handle is not None:
            self._handle.shutdown()


def _is_traced_by_others() -> bool:
    """Return True, and log a warning, if another instrumentor already traces LangChain."""
    for entry in entry_points(group="opentelemetry_instrumentor"):
        module, _, name = entry.value.partition(":")
        kind = getattr(sys.modules.get(module), name, None) if "langchain" in module else None
        made = getattr(kind, "_instance", None)  # instrumentors are singletons
        if getattr(made, "is_instrumented_by_opentelemetry", False):
            log.warning(
                "%s traces LangChain: its spans get the scores, and rag_eval_otel makes no spans of"
                " LangChain runs. To have the spans of rag_eval_otel instead, add %r to"
                " OTEL_PYTHON_DISABLED_INSTRUMENTATIONS",
                kind.__module__,
                entry.name,
            )
            return True
    return False
