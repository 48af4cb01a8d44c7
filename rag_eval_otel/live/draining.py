"""`Draining`: flush a pipeline and end it, within a limit of time whatever the exporter does.

To *drain* a pipeline is to read all spans that have ended, wait for the scores of their turns, and
export all held spans. After that the pipeline holds no more spans back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from rag_eval_otel.live.pipeline import Pipeline
from rag_eval_otel.types import HoldStatus

_MAX_FLUSH_WAIT: Final = 5.0  # seconds that a flush waits for scores
_MAX_EXPORT: Final = 1.0  # seconds of a drain that are left to export the spans
_EXPORT_SHARE: Final = 0.2  # of the time of a drain, if that is less
_GRACE: Final = 0.5  # seconds that spans have to leave if the time of a drain is up


@dataclass(frozen=True, slots=True)
class Draining:
    """Flushes and drains ``pipeline``.

    ``others`` are the providers of log records and metrics, which report the scores, too. Functions
    that export run on threads of their own, so that an exporter that hangs delays nobody for longer
    than the time that a caller gives.
    """

    pipeline: Pipeline
    others: Sequence[Any] = ()

    # --- flush ------------------------------------------------------------------------------------

    def flush(self, timeout: float) -> bool:
        """Read ended spans and runs, wait for their scores, and export all held spans.

        Return False if ``timeout`` seconds passed before all scores came and all spans were
        exported.
        """
        return self._within(timeout, partial(self._flush, timeout))

    def _flush(self, timeout: float) -> bool:
        pipeline, deadline = self.pipeline, self.pipeline.clock() + timeout
        if pipeline.recorder.runs:
            pipeline.recorder.flush()
        flushed = self._force_flush(int(timeout * 1000))
        return pipeline.evaluator.flush(max(0.0, deadline - self.pipeline.clock())) and flushed

    def force_flush(self, timeout_millis: int) -> bool:
        """Wait for scores for half of ``timeout_millis`` (5 s at most), and export all spans.

        Return False if not all spans were exported in ``timeout_millis``. A judge or a sink may
        call this method on the evaluator's thread. Then the method does not wait, because no score
        can come while that thread waits. It only flushes the next processor.
        """
        return self._within(timeout_millis / 1000, partial(self._force_flush, timeout_millis))

    def _force_flush(self, timeout_millis: int) -> bool:
        pipeline = self.pipeline
        if pipeline.evaluator.is_current():
            pipeline.flush_next(timeout_millis / 1000)
            return not pipeline.hold
        deadline = self.pipeline.clock() + timeout_millis / 1000
        with pipeline.release_edge:
            pipeline.release_evicted()
            if pipeline.buffer.traces:
                pipeline.submit_ended()
        pipeline.hold.wait_empty(min(_MAX_FLUSH_WAIT, timeout_millis / 2000))
        is_released = self._release_all("flushed", deadline)
        return pipeline.flush_next(max(0.0, deadline - self.pipeline.clock())) and is_released

    def _release_all(self, status: HoldStatus, deadline: float) -> bool:
        def flush(left: float) -> None:
            with self.pipeline.release_edge:
                self.pipeline.flush_next(left)

        return self.pipeline.hold.release_all(status, deadline=deadline, flush=flush)

    # --- the end ----------------------------------------------------------------------------------

    def drain(self, timeout: float | None = None) -> None:
        """End the pipeline within ``timeout`` seconds, by default ``shutdown_seconds``.

        Scores are awaited until a fifth of the time is left, but not more than one second of it.
        Then the other spans are exported without scores, and evaluations under way are cancelled.
        """
        deadline = self.pipeline.clock() + self._seconds(timeout)
        self._wait_and_release(deadline)
        self._stop(deadline)

    def drain_and_flush(self, timeout: float) -> None:
        """End the pipeline as `drain` does, and flush the exporters of spans, logs and metrics."""
        deadline = self.pipeline.clock() + timeout
        self._wait_and_release(deadline)
        self._call(self._flush_spans, deadline)
        self._stop(deadline)
        for provider in self.others:
            self._call(partial(self._flush_provider, provider), deadline)
        self.pipeline.calls.close()

    def _seconds(self, timeout: float | None) -> float:
        return self.pipeline.config.shutdown_seconds if timeout is None else timeout

    def _wait_and_release(self, deadline: float) -> None:
        """Wait for scores while there is time, and export the spans that are still held."""
        pipeline, timeout = self.pipeline, max(0.0, deadline - self.pipeline.clock())
        pipeline.close()
        wait = timeout - min(_MAX_EXPORT, timeout * _EXPORT_SHARE)
        try:
            pipeline.hold.wait_empty(0.0 if pipeline.evaluator.is_current() else wait)
        finally:  # also if Ctrl-C has interrupted the wait
            until = max(deadline, self.pipeline.clock() + _GRACE)
            self._call(partial(self._release_all, "shutdown", until), until)

    def _stop(self, deadline: float) -> None:
        """Cancel evaluations, and close the sinks."""
        pipeline = self.pipeline
        pipeline.evaluator.shutdown(max(0.0, deadline - self.pipeline.clock()))
        self._call(pipeline.scorer.close, deadline)
        pipeline.calls.close()

    def _call(self, call: Callable[[], object], deadline: float) -> None:
        """Call ``call()``, and return when it is done, or at ``deadline`` at the latest."""

        def run() -> bool:
            call()
            return True

        self._within(max(_GRACE, deadline - self.pipeline.clock()), run)

    def _within(self, timeout: float, call: Callable[[], bool]) -> bool:
        """Return ``call()``, or False after ``timeout`` seconds."""
        pipeline = self.pipeline
        if pipeline.evaluator.is_current() or pipeline.config.sdk_disabled:
            return call()
        return pipeline.calls.call(call, timeout)

    def _flush_spans(self) -> None:
        with self.pipeline.release_edge:
            self.pipeline.flush_next(_MAX_FLUSH_WAIT)

    def _flush_provider(self, provider: Any) -> None:
        flush = getattr(provider, "force_flush", None)  # the API's own providers have none
        with self.pipeline.release_edge:
            if flush is not None:
                flush(int(_MAX_FLUSH_WAIT * 1000))
