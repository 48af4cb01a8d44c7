"""`Draining`: flush a pipeline and end it, within a limit of time whatever the exporter does.

To *drain* a pipeline is to read all spans that have ended, wait for the scores of their turns, and
export all held spans. After that the pipeline holds no more spans back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.metrics import get_meter_provider

from rag_eval_otel.live.pipeline import Pipeline
from rag_eval_otel.runtime.providers import logger_provider_or_global
from rag_eval_otel.runtime.workers import TimedCalls
from rag_eval_otel.types import HoldStatus

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider
    from opentelemetry.metrics import MeterProvider

_MAX_FLUSH_WAIT: Final = 5.0  # seconds that a flush waits for scores
_MAX_RESERVE: Final = 1.0  # seconds of a drain that are left to export the spans and to clean up
_RESERVE: Final = 0.2  # of the time of a drain, if that is less
_GRACE: Final = 0.5  # seconds that spans have to leave if the time of a drain is up


@dataclass(frozen=True, slots=True)
class Draining:
    """Flushes and drains ``pipeline``.

    ``logs`` and ``meters`` are the providers of log records and metrics, which report the scores,
    too; None stands for the global ones. Functions that export run on threads of their own, so that
    an exporter that hangs delays nobody for longer than the time that a caller gives. A flush that
    hangs does not keep spans from being released.
    """

    pipeline: Pipeline
    logs: LoggerProvider | None = None
    meters: MeterProvider | None = None

    # --- flush ------------------------------------------------------------------------------------

    def flush(self, timeout: float) -> bool:
        """Read ended spans and runs, wait for their scores, and export all held spans.

        Return False if ``timeout`` seconds passed before all scores came and all spans were passed
        on, or if a span processor reports or raises an error at its flush. A failed export is not
        known here: see `Handle.flush`.
        """
        deadline = self.pipeline.clock() + timeout
        if self.pipeline.recorder.runs:
            self._within(
                self.pipeline.releases, _done(self.pipeline.recorder.flush), timeout=timeout
            )
        flushed = self.force_flush(int(self._left(deadline) * 1000))
        scored = self.pipeline.evaluator.flush(self._left(deadline))
        return self._flush_sinks(deadline) and scored and flushed

    def force_flush(self, timeout_millis: int) -> bool:
        """Wait for scores for half of ``timeout_millis`` (5 s at most), and export all spans.

        Return False if not all spans were passed on in ``timeout_millis``, or if the flush of the
        next processor failed. A judge or a sink may call this method on the evaluator's thread.
        Then the method does not wait, because no score can come while that thread waits. It only
        flushes the next processor.
        """
        pipeline = self.pipeline
        if pipeline.evaluator.is_current():
            self._flush_next(timeout_millis / 1000)
            return not pipeline.hold
        deadline = pipeline.clock() + timeout_millis / 1000
        self._within(pipeline.releases, _done(self._submit), timeout=self._left(deadline))
        pipeline.hold.wait_empty(min(_MAX_FLUSH_WAIT, timeout_millis / 2000))
        release = partial(self._release_all, "flushed", deadline)
        is_released = self._within(pipeline.releases, release, timeout=self._left(deadline))
        flush = partial(self._flush_next, self._left(deadline))
        return self._within(pipeline.flushes, flush, timeout=self._left(deadline)) and is_released

    def _flush_next(self, seconds: float) -> bool:
        with self.pipeline.release_edge:
            return self.pipeline.flush_next(seconds)
        return False

    def _submit(self) -> None:
        pipeline = self.pipeline
        with pipeline.release_edge:
            pipeline.release_evicted()
            if pipeline.buffer.traces:
                pipeline.submit_ended()

    def _release_all(self, status: HoldStatus, deadline: float) -> bool:
        def flush(left: float) -> None:
            self._within(self.pipeline.flushes, partial(self._flush_next, left), timeout=left)

        return self.pipeline.hold.release_all(status, deadline=deadline, flush=flush)

    # --- the end ----------------------------------------------------------------------------------

    def drain(self, timeout: float | None = None) -> None:
        """End the pipeline within ``timeout`` seconds, by default ``shutdown_seconds``.

        Scores are awaited until a fifth of the time is left, but not more than one second of it.
        Then the other spans are exported without scores, and evaluations under way are cancelled.
        """
        timeout = self.pipeline.config.shutdown_seconds if timeout is None else timeout
        reserve = min(_MAX_RESERVE, timeout * _RESERVE)
        end = self.pipeline.clock() + timeout
        self._wait_and_release(end, reserve)
        self._stop(end, reserve)

    def drain_and_flush(self, timeout: float) -> None:
        """End the pipeline as `drain` does, and flush the exporters of spans, logs and metrics.

        In a forked child, metrics are not flushed, because they contain those of the parent. If the
        child has recorded no span and no LangChain run, nothing is done.
        """
        pipeline = self.pipeline
        if pipeline.is_idle_child:
            return
        reserve = min(_MAX_RESERVE, timeout * _RESERVE)
        end = pipeline.clock() + timeout
        self._wait_and_release(end, reserve)
        flush = partial(self._flush_next, _MAX_FLUSH_WAIT)
        self._call(pipeline.flushes, flush, deadline=end - reserve / 2)
        self._stop(end, reserve)
        for provider in self._others():
            self._call(pipeline.flushes, partial(self._flush_provider, provider), deadline=end)
        pipeline.flushes.close()

    def _others(self) -> list[Any]:
        """Return the providers that report the scores, which the application may have set late."""
        logs = logger_provider_or_global(self.logs)
        return [logs] if self.pipeline.is_forked else [logs, self.meters or get_meter_provider()]

    def _wait_and_release(self, end: float, reserve: float) -> None:
        """Wait for scores while there is time, and export the spans that are still held."""
        pipeline = self.pipeline
        pipeline.close()
        wait = self._left(end - reserve)
        try:
            pipeline.hold.wait_empty(0.0 if pipeline.evaluator.is_current() else wait)
        finally:  # also if Ctrl-C has interrupted the wait
            until = max(end - reserve / 2, pipeline.clock() + _GRACE)
            release = partial(self._release_all, "shutdown", until)
            self._call(pipeline.releases, release, deadline=until)

    def _stop(self, end: float, reserve: float) -> None:
        """Cancel evaluations, and close the sinks."""
        pipeline, share = self.pipeline, max(reserve, _GRACE) / 4
        wait = self._left(end - 2 * share)
        stop = partial(pipeline.evaluator.shutdown, wait, grace=share)
        self._within(pipeline.releases, stop, timeout=wait + share + _GRACE)
        if pipeline.scorer.delivers:  # a backend takes the scores of a span that it has
            spans, left = partial(self._flush_next, _MAX_FLUSH_WAIT), self._left(end)
            self._within(pipeline.flushes, spans, timeout=max(share, left / 2))
            self._flush_sinks(end, at_least=share)
        close = _done(pipeline.scorer.close)
        self._within(pipeline.releases, close, timeout=max(self._left(end), 2 * share))
        pipeline.flushes.close()
        pipeline.releases.close()

    def _flush_sinks(self, deadline: float, *, at_least: float = 0.0) -> bool:
        """Have the sinks send what waits, until ``deadline`` or for ``at_least`` some seconds.

        Return False if something is left.
        """
        if not self.pipeline.scorer.delivers:
            return True
        timeout = max(at_least, self._left(deadline))
        if self.pipeline.evaluator.is_current():  # no sink is waited for on the evaluator's thread
            timeout = 0.0
        flush = partial(self.pipeline.scorer.flush, timeout)
        return self._within(self.pipeline.flushes, flush, timeout=timeout)

    def _call(self, calls: TimedCalls, call: Callable[[], object], *, deadline: float) -> None:
        """Call ``call()``; wait for it until ``deadline``, and for at least half a second."""
        self._within(calls, _done(call), timeout=max(_GRACE, self._left(deadline)))

    def _within(self, calls: TimedCalls, call: Callable[[], bool], *, timeout: float) -> bool:
        """Return ``call()``, or False after ``timeout`` seconds."""
        pipeline = self.pipeline
        if pipeline.evaluator.is_current() or pipeline.config.sdk_disabled:
            return call()
        return calls.call(call, timeout)

    def _left(self, deadline: float) -> float:
        return max(0.0, deadline - self.pipeline.clock())

    def _flush_provider(self, provider: Any) -> None:
        flush = getattr(provider, "force_flush", None)  # the API's own providers have none
        with self.pipeline.release_edge:
            if flush is not None:
                flush(int(_MAX_FLUSH_WAIT * 1000))


def _done(call: Callable[[], object]) -> Callable[[], bool]:
    """Return a function that calls ``call`` and returns True."""

    def run() -> bool:
        call()
        return True

    return run
