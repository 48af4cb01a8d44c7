"""Record the shapes: ``python record.py INSTRUMENTATION FOLDER [SHAPE...]``.

Needs that instrumentation, and the framework it is for: ``langchain``, ``langchain-classic`` and
``langgraph``, or ``llama-index-core``, or ``haystack-ai``.
"""

import sys
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from attach import INSTRUMENTATIONS, settle
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from recorder import Recorder
from registry import SHAPES, Run


def main(instrumentation: str, folder: Path, names: list[str]) -> None:
    """Run each shape in a thread of its own, so that no context leaks into the next."""
    recorder = Recorder()
    provider = TracerProvider()
    provider.add_span_processor(recorder)
    trace.set_tracer_provider(provider)
    attach, modules = INSTRUMENTATIONS[instrumentation]
    attach(provider)
    for module in modules:
        import_module(module)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or sorted(SHAPES):
        run, truths = SHAPES[name]
        thread = threading.Thread(target=_run, args=(run,))
        thread.start()
        thread.join()
        settle(instrumentation)
        path = folder / f"{instrumentation}__{name}.json"
        recorder.write(path, instrumentation=instrumentation, app=name, expected=truths)
        recorder.clear()


def _run(run: Run) -> None:
    with suppress(ConnectionError):  # what the failing shapes raise
        run()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
