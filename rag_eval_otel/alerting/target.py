"""What a service promises of its answers, and how often an alarm may be false."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.semconv import SCORE_BOUNDS

JAEGER = (
    "http://localhost:16686/search?service={service}"
    "&tags=%7B%22rag.evaluation.{metric}.label%22%3A%22fail%22%7D"
)
"""The failed turns of a service in Jaeger, as ``collector/docker-compose.yaml`` starts it."""

_MIN_SLO, _MAX_SLO = 0.5, 0.9999
_ADDRESS = re.compile(r"(\{(service|metric)\}|[!-z|~])+")  # one line, and no other braces
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_DURATION = re.compile(r"[1-9][0-9]*(ms|s|m|h)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A promise about scores. Raises `ConfigError` where Prometheus could not watch over it.

    ``slo`` is the share of answers that are to be good, 0.5 to 0.9999; an answer is bad where its
    score is at or below ``tau``, which is a bound of the score histogram: 0.05, 0.1, ... 0.95.
    ``every`` scores there may be one false alarm, while the promise is kept. ``interval`` is how
    often the rules run, as Prometheus writes times. ``traces`` is the address of a service's bad
    turns in the tracing backend, ``{service}`` and ``{metric}`` standing for the names; other
    braces and blanks are written ``%7B``, ``%7D``, ``%20``.

    ``thresholds`` are those of metrics that have another than ``tau``, in [0, 1]; each is counted
    at the bound of the histogram next to it. Only ``label_metrics`` wake anybody; if there are
    none, all do but those that the offline judge's overall label leaves out.
    """

    slo: float = 0.9
    tau: float = 0.5
    every: float = 100_000
    interval: str = "1m"
    traces: str = JAEGER
    thresholds: Mapping[str, float] = field(default_factory=dict, hash=False)
    label_metrics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check every value."""
        if not _MIN_SLO <= self.slo <= _MAX_SLO:
            msg = f"--slo must be between {_MIN_SLO} and {_MAX_SLO}, not {self.slo}"
            raise ConfigError(msg)
        if self.tau not in SCORE_BOUNDS:
            bounds = ", ".join(f"{bound:g}" for bound in SCORE_BOUNDS)
            msg = f"--tau must be a bound of the score histogram ({bounds}), not {self.tau}"
            raise ConfigError(msg)
        if not 1 < self.every < float("inf"):
            msg = f"--every must be a number of scores above 1, not {self.every}"
            raise ConfigError(msg)
        if not _DURATION.fullmatch(self.interval):
            msg = f"--interval must be a time such as 30s or 1m, not {self.interval!r}"
            raise ConfigError(msg)
        for name, threshold in self.thresholds.items():
            if not 0 <= threshold <= 1:
                msg = f"the threshold of {name} must be from 0 to 1 in rules, not {threshold:g}"
                raise ConfigError(msg)
        for name in (*self.thresholds, *self.label_metrics):
            if not _NAME.fullmatch(name):
                msg = f"a metric can't be named {name!r}; use a-z, 0-9 and _"
                raise ConfigError(msg)
        if not _ADDRESS.fullmatch(self.traces):
            msg = (
                "--traces must be an address without blanks, and without braces but {service} and"
                f" {{metric}} (write %20, %7B and %7D), not {self.traces!r}"
            )
            raise ConfigError(msg)

    @property
    def allowed(self) -> float:
        """The share of answers that may be bad."""
        return round(1 - self.slo, 10)

    def bound(self, threshold: float) -> float:
        """Return the bound of the histogram next to ``threshold``, the lower of two."""
        return min(SCORE_BOUNDS, key=lambda bound: (round(abs(bound - threshold), 9), bound))
