"""Record the shapes: ``PYTHONPATH=tests python .../record.py INSTRUMENTATION FOLDER [SHAPE...]``.

Needs that instrumentation, and the framework it is for: ``langchain``, ``langchain-classic`` and
``langgraph``, or ``llama-index-core``, or ``haystack-ai``.
"""

import json
import sys
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from registry import SHAPES

from corpus.keep_spans import as_recording
from corpus.retold import Calls, call
from corpus.sources import SOURCES
from rag_eval_otel import Handle

MODULES = {
    "langchain": ("agents", "chains", "checked", "conversations", "graphs", "wording"),
    "llamaindex": ("engines",),
    "haystack": ("pipelines",),
}
INSTRUMENTATIONS = {
    "haystack-otel-native": ("haystack", "haystack_native"),
    "langfuse": ("langchain", "langfuse"),
    "langsmith-otel": ("langchain", "langsmith"),
    "openinference-haystack": ("haystack", "openinference"),
    "openinference-langchain": ("langchain", "openinference"),
    "openinference-llama-index": ("llamaindex", "openinference"),
    "otel-genai-langchain": ("langchain", "genai"),
    "traceloop-langchain": ("langchain", "traceloop"),
    "traceloop-llamaindex": ("llamaindex", "traceloop"),
}


def main(instrumentation: str, folder: Path, names: list[str]) -> None:
    """Run each shape in a context of its own, and write its spans to a file."""
    framework, via = INSTRUMENTATIONS[instrumentation]
    calls, provider = Calls(), TracerProvider()
    provider.add_span_processor(calls)
    trace.set_tracer_provider(provider)
    folder.mkdir(parents=True, exist_ok=True)
    with (
        SOURCES[framework][via]() as source,
        source.watching(provider, cast("Handle", None)) as config,
    ):
        for handler in config.get("callbacks", ()):
            _use_everywhere(handler)
        for module in MODULES[framework]:
            import_module(module)
        for name in names or sorted(SHAPES):
            calls.notes.clear()
            call(SHAPES[name], config)
            if via == "langsmith":
                import_module("langsmith.run_trees").get_cached_client().flush()
            recording = as_recording(SHAPES[name], calls.notes, instrumentation)
            text = json.dumps(recording, ensure_ascii=False, separators=(",", ":"))
            path = folder / f"{instrumentation}__{name}.json"
            path.write_text(f"{text}\n", encoding="utf-8")


def _use_everywhere(handler: Any) -> None:
    from langchain_core.tracers.context import register_configure_hook  # noqa: PLC0415

    hook: ContextVar[Any] = ContextVar("handler", default=handler)  # threads must find it
    register_configure_hook(hook, inheritable=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
