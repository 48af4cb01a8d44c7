"""The interface of detectors, the registry of their names, and the adapter for river's."""

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

DETECTORS = Registry(
    kind="detector", built_in={"betting": "rag_eval_otel.drift.betting:BettingDetector"}
)
_REMOVED = ("cusum", "page-hinkley")


class Detector(Protocol):
    """A detector of drift in one stream of scores."""

    alarm: Alarm | None
    """The last alarm."""

    @property
    def count(self) -> int:
        """The number of valid values so far."""

    @property
    def since(self) -> int:
        """The index of the first value that counts as evidence."""

    @property
    def log10_evidence(self) -> float | None:
        """The evidence of a change; None if the detector does not measure evidence."""

    def update(self, value: Any, *, stratum: str | None = None) -> bool:
        """Add ``value`` and return True if it raises an alarm."""

    def to_state(self) -> Mapping[str, Any] | None:
        """Return the state as JSON values; None if it cannot be saved."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `to_state` returned; raise ValueError or the like if it is invalid."""


class RiverLike(Protocol):
    """The interface of the drift detectors in river."""

    @property
    def drift_detected(self) -> bool:
        """Whether the last value raised an alarm."""

    def update(self, x: Any) -> object:
        """Add ``x``."""


DetectorSource: TypeAlias = (
    str | Callable[[Stream], Detector | RiverLike] | Callable[[], Detector | RiverLike] | RiverLike
)
"""How detectors are made: a name, a function, or an object with river's interface to copy."""


def check_detector_source(source: object) -> None:
    """Raise `ConfigError` unless ``source`` is a `DetectorSource`."""
    if isinstance(source, str):
        find_detector(source)
    elif not callable(source) and not _is_river_like(source):
        msg = (
            "detector must be a name, a function that returns a detector, or an object with"
            f" update() and drift_detected, not {source!r}"
        )
        raise ConfigError(msg)


def find_detector(name: str) -> Any:
    """Return the class or function of the detector called ``name``."""
    if name in _REMOVED and name not in DETECTORS.names():
        msg = (
            f"the detector {name!r} was removed, because it has no bound on false alarms; use"
            " 'betting', or in code a detector of river: DriftOptions(detector=PageHinkley())"
        )
        raise ConfigError(msg)
    return DETECTORS.find(name)


def make_detector(source: DetectorSource, stream: Stream) -> Detector:
    """Return a new detector for ``stream``.

    A function with a required parameter is called with ``stream``. An object with river's interface
    is copied for each stream and adapted.
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
    """Adapts a detector with river's interface, ``update(x)`` and ``drift_detected``.

    Such a detector has no bound on false alarms and no evidence, and its state is not saved. It
    does not report the size of a change, so the alarm estimates onset and means: it splits the last
    256 scores where the means before and after differ most clearly.
    """

    log10_evidence = None

    def __init__(self, detector: RiverLike) -> None:
        self.alarm: Alarm | None = None
        self.count = 0
        self.ignored = 0
        self.drift_detected = False
        self._detector = detector
        self._clear()

    def _clear(self) -> None:
        """Forget the scores before the next one."""
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._n, self._total, self._squares = 0, 0.0, 0.0

    @property
    def since(self) -> int:
        """The index of the oldest score that an alarm can date a change to."""
        return self.count - len(self._recent)

    def update(self, score: float | None, *, stratum: str | None = None) -> bool:  # noqa: ARG002
        """Add ``score`` and return True if it raises an alarm; ``stratum`` has no effect."""
        self.drift_detected = False
        value = valid_score(score)
        if value is None:
            self.ignored = count_ignored(score, self.ignored)
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
        """Return how clearly the last ``n`` scores, which add up to ``total``, differ."""
        earlier = self._n - n
        if not earlier:
            return 0.0
        return (total / n - (self._total - total) / earlier) ** 2 * n * earlier

    def to_state(self) -> None:
        """Return None: the state of the adapted detector cannot be saved as JSON."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError: there is no state to restore."""
        msg = f"it belongs to the detector {state.get('kind')!r}; this one keeps no state"
        raise ValueError(msg)


def _variance(squares: float, mean: float, n: int) -> float:
    return max(0.0, squares / n - mean * mean)
