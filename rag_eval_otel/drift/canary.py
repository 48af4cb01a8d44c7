"""`CanaryWatch`: a small dataset scored again and again; what changes there is the judge."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from rag_eval_otel.drift.betting import BettingDetector
from rag_eval_otel.drift.records import Alarm, Cause, Drift, Stream
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.types import Evaluation

MAX_ROWS = 64  # of a canary set: as many strata as a baseline tells apart
_ROUNDS = 5  # of the canary set to learn from
_LASTS = 20  # rounds for which a change of the judge explains what else changes


class _Metric:
    """What is known of one metric in one version."""

    __slots__ = ("changed_at", "detector")

    def __init__(self, detector: BettingDetector) -> None:
        self.detector = detector
        self.changed_at: int | None = None


class CanaryWatch:
    """Compares each row of the canary set with itself, and says whose a change is.

    The first five rounds are the baseline of each metric and version. Afterwards an alarm here is
    the judge's, for the texts have not changed; it is reported with cause ``judge``. `cause` tells
    the same of an alarm on live scores: ``judge`` in the twenty rounds after a change here,
    ``system`` where the canary set is steady, ``unknown`` while it is learned. Thread-safe.
    """

    def __init__(
        self,
        report: Callable[[Drift], object],
        *,
        rows: int,
        every: float = 100_000,
        service: str = "",
    ) -> None:
        """Watch ``rows`` rows."""
        self._report = report
        self._service = service
        self._make = partial(
            BettingDetector, every=every, learn=max(2, rows) * _ROUNDS, cooldown=rows
        )
        self._metrics: dict[tuple[str, str], _Metric] = {}
        self._rounds = 0
        self._unlock()
        call_in_child(self._unlock)

    def _unlock(self) -> None:
        """Make the lock; in a forked child nobody would release the parent's."""
        self._lock = threading.RLock()

    def begin_round(self) -> None:
        """Say that the set is about to be scored once more."""
        with self._lock:
            self._rounds += 1

    def take(self, row: int, evaluation: Evaluation) -> None:
        """Take the scores of the ``row``-th row; failed ones are no evidence."""
        for score in evaluation.scores:
            value = score.value if score.normalized is None else score.normalized
            stream = Stream(service=self._service, name=score.name, version=score.version)
            alarm = self._update(stream, value, row)
            if alarm is not None:
                named = Stream(
                    service=self._service, name=f"canary.{score.name}", version=score.version
                )
                self._report(Drift(stream=named, alarm=alarm, cause="judge"))

    def _update(self, stream: Stream, value: float | None, row: int) -> Alarm | None:
        with self._lock:
            key = (stream.name, stream.version)
            found = self._metrics.setdefault(key, _Metric(self._make()))
            if not found.detector.update(value, stratum=str(row)):
                return None
            found.changed_at = self._rounds
            return found.detector.alarm

    def cause(self, stream: Stream) -> Cause:
        """Say whose a change of the live scores of ``stream`` is."""
        with self._lock:
            found = self._metrics.get((stream.name, stream.version))
            if found is None or found.detector.baseline is None:
                return "unknown"
            changed = found.changed_at
            return "system" if changed is None or self._rounds - changed > _LASTS else "judge"
