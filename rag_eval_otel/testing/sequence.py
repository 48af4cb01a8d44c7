"""Ids and time that a test can write down beforehand."""

from __future__ import annotations

import threading

from opentelemetry.sdk.trace.id_generator import IdGenerator


class SequentialIdGenerator(IdGenerator):
    """Trace ids 1, 2, 3, ... and, counted apart, span ids 1, 2, 3, ...

    Thread-safe: no id is given twice. Not random, so ratio samplers see every trace as sampled.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trace_id = 0
        self._span_id = 0

    def generate_trace_id(self) -> int:
        """The next trace id."""
        with self._lock:
            self._trace_id += 1
            return self._trace_id

    def generate_span_id(self) -> int:
        """The next span id."""
        with self._lock:
            self._span_id += 1
            return self._span_id


class ManualClock:
    """A clock in seconds that moves only when told to; call it to read it. Thread-safe."""

    def __init__(self, start: float = 0.0) -> None:
        self._lock = threading.Lock()
        self._now = start

    def __call__(self) -> float:
        """The time now, in seconds."""
        with self._lock:
            return self._now

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds`; `ValueError` if negative, for time does not run back."""
        if seconds < 0:
            msg = f"a clock can't go back: advance({seconds})"
            raise ValueError(msg)
        with self._lock:
            self._now += seconds
