"""Print Prometheus rules that alert if too many answers have a bad score.

The evidence of a window is a likelihood ratio, and so an e-value. The maximum over windows is never
above the e-Shiryaev-Roberts statistic: while the target is met, it exceeds ``every`` at most once
in as many scores, at any traffic and for any mix of metrics.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.metrics import METRICS, scale_of, with_thresholds
from rag_eval_otel.metrics.base import direction_of, kinds_of
from rag_eval_otel.semconv import SCORE_BOUNDS
from rag_eval_otel.tools.cli.options import chosen_thresholds

JAEGER = (
    "http://localhost:16686/search?service={service}"
    "&tags=%7B%22rag.evaluation.{metric}.label%22%3A%22fail%22%7D"
)
"""The traces with failed answers in the Jaeger that ``collector/docker-compose.yaml`` starts."""

_TAUS = tuple(round(bound, 2) for bound in SCORE_BOUNDS)
_MIN_SLO, _MAX_SLO = 0.5, 0.9999
_MAX_TIME_SCALE = 300
_ADDRESS = re.compile(r"(\{(service|metric)\}|[!-z|~])+")  # no blanks, and no other braces
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_DURATION = re.compile(r"[1-9][0-9]*(ms|s|m|h)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A service level objective for evaluation scores, and the options of the alerts on it.

    ``slo`` is the fraction of answers that should be good. An answer is bad if its score is below
    ``tau``, or the multiple of 0.05 (to 0.95) nearest to its metric's threshold in ``thresholds``.
    There is one false alarm in ``every`` scores while the target is met. ``traces`` is an address
    with ``{service}`` and ``{metric}``. Only ``label_metrics`` raise alerts on bad answers; by
    default, all do, but with the offline judge only those that decide its label. ``time_scale``
    divides all times. Raises `ConfigError` for invalid options.
    """

    slo: float = 0.9
    tau: float = 0.5
    every: float = 100_000
    interval: str = "1m"
    traces: str = JAEGER
    thresholds: Mapping[str, float] = field(default_factory=dict, hash=False)
    label_metrics: tuple[str, ...] = ()
    time_scale: float = 1.0

    def __post_init__(self) -> None:
        taus = ", ".join(f"{tau:g}" for tau in _TAUS)
        wrong = [f"{n}={t:g}" for n, t in self.thresholds.items() if not 0 <= t <= 1]
        names = [n for n in (*self.thresholds, *self.label_metrics) if not _NAME.fullmatch(n)]
        low, high, most = _MIN_SLO, _MAX_SLO, _MAX_TIME_SCALE
        allowed: dict[str, object] = {
            f"--slo must be between {low} and {high}, not {self.slo}": low <= self.slo <= high,
            f"--tau must be one of {taus}, not {self.tau}": self.tau in _TAUS,
            f"--every must be above 1 and finite, not {self.every}": 1 < self.every < math.inf,
            f"--interval must be a time such as 30s or 1m, not {self.interval!r}": (
                _DURATION.fullmatch(self.interval)
            ),
            f"--time-scale must be from 1 to {most}, not {self.time_scale:g}": (
                1 <= self.time_scale <= most
            ),
            f"a threshold must be from 0 to 1 in rules, not {', '.join(wrong)}": not wrong,
            f"a metric can't be named {', '.join(names)}; use a-z, 0-9 and _": not names,
            (
                "--traces must be an address without blanks, and without braces but {service} and"
                f" {{metric}} (write %20, %7B and %7D), not {self.traces!r}"
            ): _ADDRESS.fullmatch(self.traces),
        }
        for message, is_met in allowed.items():
            if not is_met:
                raise ConfigError(message)

    @property
    def allowed(self) -> float:
        return round(1 - self.slo, 10)

    def bound(self, threshold: float) -> float:
        """Return the bound of the score histogram nearest to ``threshold``, of two the lower."""
        return min(SCORE_BOUNDS, key=lambda bound: round(abs(bound - threshold), 3))


WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
"""The time windows in which the rules count bad answers.

The window of 5 minutes is not used for evidence, because the Prometheus function ``increase``
extrapolates so short a window by up to 25 %.
"""

TIMES = (1.5, 2.0, 3.0)
"""Fractions of bad answers that the evidence tests, as multiples of the allowed fraction."""

_BY = "gen_ai_evaluation_name, service_name"
_SOURCES = ("rag_evaluation_score", "rag_evaluation_span_score")
"""The score histograms of the application and of the collector.

If a service has both histograms, the histogram of the application is used.
"""
_LOW = tuple(name for name, make in METRICS.items() if direction_of(make()) == "low")
_MIN_SCORES = 20  # with fewer scores in a window, its fraction of bad answers raises no alert
_MAX_SHARE = 0.95  # the largest fraction of bad answers that the evidence tests


_BURN_RATES = (
    ("1h", "5m", "page", 14.4, 0.5),
    ("6h", "30m", "page", 6, 0.4),
    ("1d", "2h", "ticket", 3, 0.3),
    ("3d", "6h", "ticket", 1.5, 0.2),
)
"""Alerts on two windows: their times, the severity, and the limit of the fraction of bad answers.

The limit is a multiple of the allowed fraction, but at most the last number. The common multiples
suit targets of 99.9 %; at 90 %, the largest possible multiple is 10.
"""


_CAUSES = (
    ("needless_refusal", "RagNeedlessRefusals", 0.05),
    ("retrieval", "RagRetrievalFails", 0.2),
)
"""Causes that a share of the turns may have, with the alert on more of them."""
_DEVIATIONS = 4  # standard deviations above its share that a cause may have by chance


def render(target: Target) -> str:
    environment = Environment(
        loader=PackageLoader("rag_eval_otel.tools"),
        variable_start_string="@{",  # Prometheus has templates of its own: {{ $value }}
        variable_end_string="}",
        block_start_string="<%",
        block_end_string="%>",
        comment_start_string="<#",
        comment_end_string="#>",
        autoescape=False,  # noqa: S701  # it writes YAML
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    rules = environment.get_template("rules.yaml").render(_values(target))
    if target.time_scale == 1:
        return rules
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}

    def scaled(time: re.Match[str]) -> str:
        seconds = int(time[2]) * units[time[3]] / target.time_scale
        return f"{time[1]}{max(1, math.ceil(seconds))}s"

    return re.sub(r"(\[|offset |for: |interval: )([0-9]+)([smhd])\b", scaled, rules)


def _values(target: Target) -> dict[str, Any]:
    # The last bound is for all metrics without a threshold of their own.
    low = dict.fromkeys(_LOW, target.tau)
    chosen = [*sorted({**low, **target.thresholds}.items()), ("", target.tau)]
    bounds = [(name, target.bound(threshold)) for name, threshold in chosen]
    options = [f" --threshold {n}={t:g}" for n, t in sorted(target.thresholds.items())]
    if target.label_metrics:
        options.append(f" --label-metrics {','.join(target.label_metrics)}")
    if target.time_scale != 1:
        options.append(f" --time-scale {target.time_scale:g}")
    limits = [
        (long, short, severity, min(burn * target.allowed, most))
        for long, short, severity, burn, most in _BURN_RATES
    ]
    shares = [(t, min(_MAX_SHARE, t * target.allowed) / target.allowed) for t in TIMES]
    return {
        "by": _BY,
        "bad": partial(_bad, bounds),
        "windows": WINDOWS,
        "thresholds": _or(
            f"group by ({_BY}) ({source}_count{_matcher(name, braces=True)}) * {threshold:g}"
            for name, threshold in chosen
            for source in _SOURCES
        ),
        "advisory": _advisory(target),
        "alternatives": [
            (
                f"{times:g}",
                f"{math.log10(ratio):.6f}",
                f"{math.log10((1 - ratio * target.allowed) / (1 - target.allowed)):.6f}",
            )
            for times, ratio in shares
        ],
        "prior": f"{math.log10(len(TIMES)):.6f}",
        "burns": [
            (long, short, severity, f"{ratio:g}", f"{ratio / target.allowed:.3g}")
            for long, short, severity, ratio in limits
        ],
        "causes": [
            (cause, alert, f"{share:g}", f"{_DEVIATIONS * math.sqrt(share * (1 - share)):.4g}")
            for cause, alert, share in _CAUSES
        ],
        "options": "".join(options),
        "others": "".join(
            f", of {n} {'from' if n in _LOW else 'below'} {b:.2g}" for n, b in bounds[:-1]
        ),
        "slo": f"{target.slo:g}",
        "tau": f"{target.tau:g}",
        "every": f"{target.every:.0f}",
        "allowed": f"{100 * target.allowed:g}%",
        "threshold": f"{math.log10(target.every):.4g}",
        "interval": target.interval,
        "minimum": _MIN_SCORES,
        "traces": target.traces.replace(
            "{service}", "{{ $labels.service_name | urlquery }}"
        ).replace("{metric}", "{{ $labels.gen_ai_evaluation_name | urlquery }}"),
    }


def _bad(bounds: Iterable[tuple[str, float]], function: str, window: str) -> str:
    """Return the PromQL that counts bad answers in ``window`` by ``function``, as ``increase``."""
    expressions = []
    for source, (name, bound) in product(_SOURCES, bounds):
        form = f"sum by ({_BY}) ({function}({source}_%s[{window}]))"
        below = form % f'bucket{{le="{bound:g}"{_matcher(name, before=",")}}}'
        total = form % f"count{_matcher(name, braces=True)}"
        expressions.append(f"{total} - {below}" if name in _LOW else below)
    return _or(expressions)


def _matcher(name: str, *, before: str = "", braces: bool = False) -> str:
    matcher = f'gen_ai_evaluation_name="{name}"'
    return (f"{{{matcher}}}" if braces else f"{before}{matcher}") if name else ""


def _or(expressions: Iterable[str]) -> str:
    return " " * 10 + ("\n" + " " * 10 + "or ").join(expressions)


def _advisory(target: Target) -> str:
    """Return the PromQL matchers of the metrics that raise no alerts on bad answers."""
    if target.label_metrics:
        return f'gen_ai_evaluation_name!~"{"|".join(target.label_metrics)}"'
    asking = {name for name, make in METRICS.items() if kinds_of(make())}
    named = "|".join(sorted(asking - LexicalJudge.label_metrics))
    return f'rag_evaluation_judge="{LexicalJudge.model}",gen_ai_evaluation_name=~"{named}"'


_FIELDS = ("slo", "tau", "every", "interval", "traces", "time_scale")
"""The fields of `Target` that are options."""


def run(options: argparse.Namespace) -> int:
    target = Target(
        **{name: getattr(options, name) for name in _FIELDS if getattr(options, name) is not None},
        thresholds=_on_unit_scale(chosen_thresholds(options) or {}),
        label_metrics=tuple(options.label_metrics or ()),
    )
    sys.stdout.write(render(target))
    return 0


def _on_unit_scale(thresholds: Mapping[str, float]) -> dict[str, float]:
    """Convert each threshold from the scale of its metric to [0, 1], the scale of histograms."""
    found = {}
    for name, threshold in thresholds.items():
        made = METRICS[name]() if name in METRICS else None
        low, high = (0.0, 1.0) if made is None else scale_of(made)
        if made is not None:
            with_thresholds([made], {name: threshold})
        found[name] = (threshold - low) / (high - low) if high > 1 else threshold
    return found
