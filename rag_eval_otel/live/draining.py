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

from rag_eval_otel.environment import sdk_disabled
from rag_eval_otel.live.pipeline import Pipeline
from rag_eval_otel.live.store import CHUNK
from rag_eval_otel.runtime.providers import logger_provider_or_global
from rag_eval_otel.types import Ending, HoldStatus

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
        pipeline = self.pipeline
        deadline = pipeline.now() + timeout
        if pipeline.recorder.runs:
            pipeline.clock.call(pipeline.recorder.flush, timeout)
        flushed = self.force_flush(int(self._left(deadline) * 1000))
        scored = pipeline.evaluator.flush(self._left(deadline))
        return self._flush_sinks(deadline) and scored and flushed

    def flush_all(self, timeout: float) -> None:
        """Flush as `flush` does, and then the exporters of logs and metrics."""
        deadline = self.pipeline.now() + timeout
        self.flush(timeout)
        for provider in self._others():
            self._call(partial(self._flush_provider, provider), deadline=deadline)

    def force_flush(self, timeout_millis: int) -> bool:
        """Wait for scores for half of ``timeout_millis`` (5 s at most), and export all spans.

        Return False if not all spans were passed on in ``timeout_millis``, or if the flush of the
        next processor failed. A judge, a sink or an exporter may call this method on a thread of
        ours. Then the method does not wait, because nothing goes on while that thread waits. It
        only flushes the next processor.
        """
        pipeline = self.pipeline
        if pipeline.is_own_thread():
            self._flush_next(timeout_millis / 1000)
            return not pipeline.store.held
        deadline = pipeline.now() + timeout_millis / 1000
        if pipeline.store.traces:
            pipeline.clock.call(pipeline.submit_ended, self._left(deadline))
        pipeline.store.wait_left(min(_MAX_FLUSH_WAIT, timeout_millis / 2000))
        is_released = self._release_all("flushed", deadline)
        flush = partial(self._flush_next, self._left(deadline))
        return self._within(flush, timeout=self._left(deadline)) and is_released

    def _flush_next(self, seconds: float) -> bool:
        with self.pipeline.release_edge:
            return self.pipeline.flush_next(seconds)
        return False

    def _release_all(self, status: HoldStatus, deadline: float) -> bool:
        """Let all that is held now leave with ``status``, and wait for it until ``deadline``.

        The next processor is flushed after every 256 spans, so that its queue does not overflow.
        """
        pipeline = self.pipeline
        spans = pipeline.store.older()
        for i in range(0, len(spans), CHUNK):
            for held in spans[i : i + CHUNK]:
                pipeline.store.decide(held, Ending(status))
            pipeline.clock.export()
            if i + CHUNK < len(spans):
                pipeline.store.wait_left(self._left(deadline), number=spans[i + CHUNK].number)
                left = self._left(deadline)
                if left > 0:
                    self._within(partial(self._flush_next, left), timeout=left)
        wait = 0.0 if pipeline.is_own_thread() else self._left(deadline)
        return pipeline.store.wait_left(wait)

    # --- the end ----------------------------------------------------------------------------------

    def drain(self, timeout: float | None = None) -> None:
        """End the pipeline within ``timeout`` seconds, by default ``shutdown_seconds``.

        Scores are awaited until a fifth of the time is left, but not more than one second of it.
        Then the other spans are exported without scores, and evaluations under way are cancelled.
        """
        timeout = self.pipeline.config.shutdown_seconds if timeout is None else timeout
        reserve = min(_MAX_RESERVE, timeout * _RESERVE)
        end = self.pipeline.now() + timeout
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
        end = pipeline.now() + timeout
        self._wait_and_release(end, reserve)
        self._call(partial(self._flush_next, _MAX_FLUSH_WAIT), deadline=end - reserve / 2)
        self._stop(end, reserve)
        for provider in self._others():
            self._call(partial(self._flush_provider, provider), deadline=end)
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
            pipeline.store.wait_left(0.0 if pipeline.is_own_thread() else wait)
        finally:  # also if Ctrl-C has interrupted the wait
            self._release_all("shutdown", max(end - reserve / 2, pipeline.now() + _GRACE))

    def _stop(self, end: float, reserve: float) -> None:
        """Cancel evaluations, and close the sinks."""
        pipeline, share = self.pipeline, max(reserve, _GRACE) / 4
        wait = self._left(end - 2 * share)
        stop = partial(pipeline.evaluator.shutdown, wait, grace=share)
        self._within(stop, timeout=wait + share + _GRACE)
        if pipeline.scorer.delivers:  # a backend takes the scores of a span that it has
            spans, left = partial(self._flush_next, _MAX_FLUSH_WAIT), self._left(end)
            self._within(spans, timeout=max(share, left / 2))
            self._flush_sinks(end, at_least=share)
        close = _done(pipeline.scorer.close)
        self._within(close, timeout=max(self._left(end), 2 * share))
        pipeline.flushes.close()

    def _flush_sinks(self, deadline: float, *, at_least: float = 0.0) -> bool:
        """Have the sinks send what waits, until ``deadline`` or for ``at_least`` some seconds.

        Return False if something is left.
        """
        if not self.pipeline.scorer.delivers:
            return True
        timeout = max(at_least, self._left(deadline))
        if self.pipeline.is_own_thread():  # no sink is waited for on a thread of ours
            timeout = 0.0
        return self._within(partial(self.pipeline.scorer.flush, timeout), timeout=timeout)

    def _call(self, call: Callable[[], object], *, deadline: float) -> None:
        """Call ``call()``; wait for it until ``deadline``, and for at least half a second."""
        self._within(_done(call), timeout=max(_GRACE, self._left(deadline)))

    def _within(self, call: Callable[[], bool], *, timeout: float) -> bool:
        """Return ``call()``, made on a thread of its own, or False after ``timeout`` seconds."""
        pipeline = self.pipeline
        if pipeline.is_own_thread() or sdk_disabled():
            return call()
        return pipeline.flushes.call(call, timeout)

    def _left(self, deadline: float) -> float:
        return max(0.0, deadline - self.pipeline.now())

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
