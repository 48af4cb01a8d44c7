"""`Traces`: collect the spans of each RAG trace, which come in several requests over OTLP."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from rag_eval_otel.worker.wire import LARGEST, Part

# Seconds without a span after which a trace is read. Exporters send what has ended in batches, so
# the spans of a trace come together; of other services, up to five seconds later.
_ROOT_QUIET: Final = 1.0  # if the root has come
_QUIET: Final = 30.0  # longer than most calls, as a worker does not know which spans are open
_MAX_AGE: Final = 300.0
_PART: Final = 256  # bytes of the objects of a part, besides its content


@dataclass(slots=True, eq=False)
class _Trace:
    first: float
    last: float
    parts: list[Part] = field(default_factory=list)
    size: int = 0
    has_root: bool = False


@dataclass(eq=False, repr=False)
class Traces:
    """The traces that are not complete. ``size`` is the memory that they take, in bytes."""

    clock: Callable[[], float] = time.monotonic
    size: int = 0
    _traces: dict[bytes, _Trace] = field(default_factory=dict)
    _refused: float = float("-inf")

    def __len__(self) -> int:
        return len(self._traces)

    def __contains__(self, trace_id: object) -> bool:
        return trace_id in self._traces

    def add(self, trace_id: bytes, part: Part) -> None:
        now = self.clock()
        trace = self._traces.setdefault(trace_id, _Trace(now, now))
        trace.last = now
        trace.parts.append(part)
        trace.has_root |= part.has_root
        trace.size += len(part.content) + _PART
        self.size += len(part.content) + _PART

    def wait_for_refused(self) -> None:
        """Keep traces without a root longer, as a refused request may have their other spans."""
        self._refused = self.clock()

    def complete(self, *, all_traces: bool = False) -> list[tuple[bytes, int]]:
        """Remove the traces that are complete; return the request and number of spans of each."""
        ready = [key for key, trace in self._traces.items() if all_traces or self._is_ready(trace)]
        traces = [self._traces.pop(key) for key in ready]
        # Serialized messages one after the other are one message, with the items of all lists.
        requests = [
            (b"".join(part.content for part in trace.parts), sum(p.spans for p in trace.parts))
            for trace in traces
        ]
        self.size -= sum(trace.size for trace in traces)
        return requests

    def _is_ready(self, trace: _Trace) -> bool:
        now = self.clock()
        if trace.size >= LARGEST:  # reading it takes a multiple of that
            return True
        idle = now - (trace.last if trace.has_root else max(trace.last, self._refused))
        return idle >= (_ROOT_QUIET if trace.has_root else _QUIET) or now - trace.first >= _MAX_AGE
