"""A `Target` as Prometheus rules: recorded ratios, evidence, burn rates, and the watch over both.

The evidence is an e-value: the likelihood ratio of a window's scores, more bad answers than
allowed against just so many as allowed. Each window is one start of a sequential test, so its
maximum stays below the e-Shiryaev-Roberts statistic, and crosses ``every`` at most once in
``every`` scores while the target is met: at any traffic, and for any mix of metrics of one series.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from string import Template

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.metrics import METRICS
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


WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
"""Over 5 minutes `increase` extrapolates by up to a quarter: it is in no evidence."""

TIMES = (1.5, 2.0, 3.0)
"""How many times as many bad answers as allowed the evidence looks for."""

_BY = "gen_ai_evaluation_name, service_name"
_SOURCES = ("rag_evaluation_score", "rag_evaluation_span_score")  # the application's come first
_MINIMUM = 20  # scores, below which a ratio says nothing
_MOST = 0.95


class _Rules(Template):
    """A template that leaves the ``$`` and ``{{ }}`` of Prometheus alone."""

    delimiter = "@"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tier:
    """A pair of windows over which the allowance may burn ``burn`` times as fast, and no faster."""

    severity: str
    long: str
    short: str
    burn: float
    most: float  # the share of bad answers that must be enough, whatever the target


_TIERS = (
    _Tier(severity="page", long="1h", short="5m", burn=14.4, most=0.5),
    _Tier(severity="page", long="6h", short="30m", burn=6, most=0.4),
    _Tier(severity="ticket", long="1d", short="2h", burn=3, most=0.3),
    _Tier(severity="ticket", long="3d", short="6h", burn=1.5, most=0.2),
)


def render(target: Target) -> str:
    """Return the rules for ``target`` as a YAML file."""
    told = _told(target)
    alerts = _fill("alerts", told, burns="".join(_burns(target, told)).rstrip("\n"))
    parts = (*_windows(target, told), _chosen(target, told), *_evidence(target, told), alerts)
    return "".join((_fill("head", told), *parts))


def _windows(target: Target, told: dict[str, str]) -> Iterator[str]:
    for window in WINDOWS:
        bad = [
            f"sum by ({_BY}) (increase({source}_bucket{{{_at(bound, name)}}}[{window}]))"
            for source in _SOURCES
            for name, bound in _bounds(target)
        ]
        yield _fill("window", told, window=window, bad=_or(bad))


def _bounds(target: Target) -> Iterator[tuple[str, float]]:
    """Yield the metrics with a threshold of their own, and its bound; at last any other's."""
    for name, threshold in sorted(target.thresholds.items()):
        yield name, target.bound(threshold)
    yield "", target.tau


def _at(bound: float, name: str) -> str:
    of = f',gen_ai_evaluation_name="{name}"' if name else ""
    return f'le="{bound:g}"{of}'


def _or(expressions: Iterable[str]) -> str:
    """Join what stands for the same: of two that have a series, the first counts."""
    return " " * 10 + ("\n" + " " * 10 + "or ").join(expressions)


def _chosen(target: Target, told: dict[str, str]) -> str:
    thresholds = [
        f"group by ({_BY}) ({source}_count{of}) * {threshold:g}"
        for name, threshold in (*sorted(target.thresholds.items()), ("", target.tau))
        for of in [f'{{gen_ai_evaluation_name="{name}"}}' if name else ""]
        for source in _SOURCES
    ]
    named = "|".join(target.label_metrics or _unlabelled())
    advisory = f'gen_ai_evaluation_name{"!~" if target.label_metrics else "=~"}"{named}"'
    if not target.label_metrics:
        advisory = f'rag_evaluation_judge="{LexicalJudge.model}",{advisory}'
    return _fill("chosen", told, thresholds=_or(thresholds), advisory=advisory)


def _unlabelled() -> list[str]:
    """Return the metrics that the offline judge answers, and its overall label leaves out."""
    asking = {name for name, make in METRICS.items() if make().asks}
    return sorted(asking - LexicalJudge.label_metrics)


def _evidence(target: Target, told: dict[str, str]) -> Iterator[str]:
    yield "\n"
    for times in TIMES:
        allowed, worse = target.allowed, min(_MOST, times * target.allowed)
        yield _fill("evidence_head", told, times=f"{times:g}")
        for window in WINDOWS[1:]:
            yield _fill(
                "evidence",
                told,
                window=window,
                times=f"{times:g}",
                if_bad=f"{math.log10(worse / allowed):.6f}",
                if_good=f"{math.log10((1 - worse) / (1 - allowed)):.6f}",
                alternatives=f"{math.log10(len(TIMES)):.6f}",
            )


def _burns(target: Target, told: dict[str, str]) -> Iterator[str]:
    for tier in _TIERS:
        # The usual rates are for targets like 99.9 %: of 90 %, no more than ten times can burn.
        ratio = min(tier.burn * target.allowed, tier.most)
        yield _fill(
            "burn",
            told,
            long=tier.long,
            short=tier.short,
            severity=tier.severity,
            ratio=f"{ratio:g}",
            burn=f"{ratio / target.allowed:.3g}",
        )


def _told(target: Target) -> dict[str, str]:
    return {
        "by": _BY,
        "options": "".join(f" --threshold {n}={t:g}" for n, t in sorted(target.thresholds.items())),
        "others": "".join(f", of {name} {bound:g}" for name, bound in _bounds(target) if name),
        "slo": f"{target.slo:g}",
        "tau": f"{target.tau:g}",
        "every": f"{target.every:.0f}",
        "allowed": f"{100 * target.allowed:g}%",
        "threshold": f"{math.log10(target.every):.4g}",
        "interval": target.interval,
        "minimum": str(_MINIMUM),
        "traces": _link(target.traces),
        "change": _change(),
    }


def _link(traces: str) -> str:
    """Return the address as a Prometheus template, the names quoted for use in an address."""
    return traces.replace("{service}", "{{ $labels.service_name | urlquery }}").replace(
        "{metric}", "{{ $labels.gen_ai_evaluation_name | urlquery }}"
    )


def _change() -> str:
    ratio, mean = "rag_evaluation:bad_ratio:%s", "rag_evaluation:mean:%s"
    return (
        f"Bad answers: {_asked(ratio % '30m', 'humanizePercentage')} in the last 30 minutes,"
        f" {_asked(ratio % '1d', 'humanizePercentage', '30m')} in the day before."
        f" Mean score: {_asked(mean % '30m', 'printf `%.2f`')},"
        f" {_asked(mean % '1d', 'printf `%.2f`', '30m')} before."
    )


def _asked(record: str, form: str, offset: str = "") -> str:
    """Return a Prometheus template that looks ``record`` up for the alert's metric and service."""
    query = f"{record}{{gen_ai_evaluation_name=%q,service_name=%q}}"
    query += f" offset {offset}" if offset else ""
    labels = "$labels.gen_ai_evaluation_name $labels.service_name"
    found = f"{{{{ . | first | value | {form} }}}}"
    return f"{{{{ with printf `{query}` {labels} | query }}}}{found}{{{{ else }}}}?{{{{ end }}}}"


def _fill(name: str, told: dict[str, str], **more: str) -> str:
    text = (files("rag_eval_otel.alerting") / "templates" / f"{name}.yaml").read_text(
        encoding="utf-8"
    )
    return _Rules(text).substitute(told, **more)
