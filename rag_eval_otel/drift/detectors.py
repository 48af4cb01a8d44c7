"""Define the interface of drift detectors, and make a detector from a name, function or object.

`RiverDetector` gives this interface to a drift detector of river, a Python library for online
machine learning.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from copy import deepcopy
from inspect import Parameter, signature
from itertools import accumulate
from typing import Any, Protocol, TypeAlias

from rag_eval_otel.drift.records import Alarm, Stream, View, change_interval, direction_of
from rag_eval_otel.drift.validation import count_ignored, valid_score
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.registry import Registry
from rag_eval_otel.runtime.limited_log import LimitedLog

DETECTORS = Registry(
    kind="detector", built_in={"betting": "rag_eval_otel.drift.betting:BettingDetector"}
)
_REMOVED = ("cusum", "page-hinkley")


class Detector(Protocol):
    """The interface of an object that detects drift in one stream of scores."""

    alarm: Alarm | None
    """The last alarm, or None if there was none."""

    @property
    def count(self) -> int:
        """The number of valid scores or embeddings that the detector has received."""

    @property
    def since(self) -> int:
        """The index of the first value on which the present evidence of a change is based."""

    @property
    def log10_evidence(self) -> float | None:
        """The logarithm to base 10 of the evidence of a change.

        This is None if the detector does not measure evidence.
        """

    def update(self, value: Any, *, stratum: str | None = None) -> bool:
        """Add ``value``, a score or an embedding, and return True if ``value`` raises an alarm.

        ``stratum`` names the kind of input that the value belongs to, such as a route.
        """

    def to_state(self) -> Mapping[str, Any] | None:
        """Return the state of the detector as JSON values, or None if it cannot be saved."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``, which `to_state` returned in this or an earlier process.

        Raises KeyError, TypeError, ValueError or OverflowError if ``state`` is invalid.
        """


class RiverLike(Protocol):
    """The interface of the drift detectors in the river library."""

    @property
    def drift_detected(self) -> bool:
        """Whether the last value raised an alarm."""

    def update(self, x: Any) -> object:
        """Add the value ``x`` to the stream that the detector watches."""


DetectorSource: TypeAlias = (
    str | Callable[[Stream], Detector | RiverLike] | Callable[[], Detector | RiverLike] | RiverLike
)
"""The type of the option ``DriftOptions.detector``: a name, a function, or a detector object.

A detector is made from the option for each stream of scores. The option is the registered name of a
detector, a function that returns a detector, or an object with the interface of the drift detectors
in the river library, which is copied for each stream.
"""


def check_detector_source(source: object) -> None:
    """Raise `ConfigError` unless a detector can be made from ``source``.

    ``source`` must be a registered name, a function, or an object with the method ``update`` and
    the attribute ``drift_detected``.
    """
    if isinstance(source, str):
        find_detector(source)
    elif not callable(source) and not _is_river_like(source):
        msg = (
            "detector must be a name, a function that returns a detector, or an object with"
            f" update() and drift_detected, not {source!r}"
        )
        raise ConfigError(msg)


def find_detector(name: str) -> Any:
    """Return the class or function registered under ``name``, which makes a detector.

    Raises `ConfigError` if nothing is registered under ``name``.
    """
    if name in _REMOVED and name not in DETECTORS.names():
        msg = (
            f"the detector {name!r} was removed, because it has no bound on false alarms; use"
            " 'betting', or in code a detector of river: DriftOptions(detector=PageHinkley())"
        )
        raise ConfigError(msg)
    return DETECTORS.find(name)


def make_detector(source: DetectorSource, stream: Stream) -> Detector:
    """Make a new detector for ``stream`` from ``source`` and return it.

    If ``source`` is a name, the class or function registered under this name makes the detector. A
    class or function with a required parameter is called with ``stream``. A class or function
    without a required parameter is called without arguments. Any other object is copied. If the
    result has the interface of the drift detectors in the river library, and no method
    ``to_state``, it is wrapped in a `RiverDetector`.
    """
    made: Any = find_detector(source) if isinstance(source, str) else source
    if callable(made):
        made = made(stream) if _has_required_parameter(made) else made()
    else:
        made = deepcopy(made)
    is_adapted = hasattr(made, "to_state") or not _is_river_like(made)
    detector: Detector = made if is_adapted else RiverDetector(made)
    return detector


def _is_river_like(made: object) -> bool:
    return hasattr(made, "update") and hasattr(made, "drift_detected")


def _has_required_parameter(function: Callable[..., Any]) -> bool:
    try:
        parameters = signature(function).parameters.values()
    except ValueError:  # a function written in C may have no signature
        return True
    positional = {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
    return any(p.kind in positional and p.default is Parameter.empty for p in parameters)


_RECENT = 256


class RiverDetector:
    """Give a drift detector of the river library the interface `Detector`.

    ``detector`` must have a method ``update(x)`` and an attribute ``drift_detected``. Detectors of
    river have no bound on false alarms and do not measure evidence, and their state is not saved.
    They do not report when the scores changed and by how much. `RiverDetector` estimates the time
    and size of the change from the last 256 scores. It splits these scores at the point where the
    means before and after differ most clearly.
    """

    log10_evidence = None

    def __init__(self, detector: RiverLike) -> None:
        self.alarm: Alarm | None = None
        self.count = 0
        self.ignored = 0
        self.drift_detected = False
        self._detector = detector
        self._log = LimitedLog()
        self._clear()

    def _clear(self) -> None:
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._n, self._total, self._squares = 0, 0.0, 0.0

    @property
    def since(self) -> int:
        """The index of the oldest score that an alarm can report as the start of a change."""
        return self.count - len(self._recent)

    def update(self, score: float | None, *, stratum: str | None = None) -> bool:  # noqa: ARG002
        """Pass ``score`` to the river detector, and return True if an alarm is raised.

        ``stratum`` has no effect. A score that is None, NaN or outside [0, 1] is ignored.
        """
        self.drift_detected = False
        value = valid_score(score)
        if value is None:
            self.ignored = count_ignored(score, self.ignored, log=self._log)
            return False
        self._detector.update(value)
        self._recent.append(value)
        self.count += 1
        self._n, self._total, self._squares = (
            self._n + 1,
            self._total + value,
            self._squares + value * value,
        )
        if self._detector.drift_detected:
            self.drift_detected = True
            self.alarm = self._make_alarm()
            self._clear()
        return self.drift_detected

    def _make_alarm(self) -> Alarm:
        totals = list(accumulate(reversed(self._recent)))
        n = max(
            range(1, len(totals) + 1), key=lambda number: self._gain(number, totals[number - 1])
        )
        after, total = totals[n - 1] / n, totals[n - 1]
        squares = sum(score * score for score in list(self._recent)[-n:])
        earlier = max(1, self._n - n)
        before = (self._total - total) / earlier if self._n > n else after
        variance = _variance(self._squares - squares, before, earlier)
        view: View = "level" if after < before else "rise"
        interval = change_interval(
            after - before,
            variance=_variance(squares, after, n),
            effect=1.0,
            n=n,
            baseline_error=math.sqrt(variance / earlier),
        )
        return Alarm(
            index=self.count - 1,
            onset=self.count - n,
            n=n,
            direction=direction_of(view, interval),
            view=view,
            before=before,
            after=after,
            interval=interval,
        )

    def _gain(self, n: int, total: float) -> float:
        # How clearly the mean of the last ``n`` scores, with the sum ``total``, differs from that
        # before.
        earlier = self._n - n
        if not earlier:
            return 0.0
        return (total / n - (self._total - total) / earlier) ** 2 * n * earlier

    def to_state(self) -> None:
        """Return None, because the state of a river detector cannot be saved as JSON."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError, because a detector of the river library has no saved state."""
        msg = f"it belongs to the detector {state.get('kind')!r}; this one keeps no state"
        raise ValueError(msg)


def _variance(squares: float, mean: float, n: int) -> float:
    return max(0.0, squares / n - mean * mean)
