"""``rag-eval-otel drift --plot``: scores, running mean with its interval, alarms, onset."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_eval_otel.dataset.optional import require
from rag_eval_otel.errors import ConfigError

if TYPE_CHECKING:
    from rag_eval_otel.commands.drift import Finding

_NORMAL = 1.96
_WIDTH, _HEIGHT = 10.0, 3.2  # inches, of one stream


def plot(findings: Sequence[Finding], path: Path) -> None:
    """Draw each stream, one below the other, to ``path``.

    Raises `MissingDependencyError` without matplotlib, and `ConfigError` where ``path`` cannot be
    written.
    """
    matplotlib = require("matplotlib.figure", "plot")  # no window, no global state
    figure = matplotlib.Figure(figsize=(_WIDTH, _HEIGHT * len(findings)), layout="constrained")
    axes = figure.subplots(len(findings), 1, squeeze=False)
    for finding, row in zip(findings, axes, strict=True):
        _draw(row[0], finding)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        msg = f"{path} cannot be written: {error}"
        raise ConfigError(msg) from error


def _draw(axes: Any, finding: Finding) -> None:
    values = [point.value or 0.0 for point in finding.points]
    axes.plot(values, ".", markersize=2, alpha=0.25, color="tab:gray", label="scores")
    means = running_means(values, window=max(10, min(200, len(values) // 20)))
    at = [index for index, _, _ in means]
    axes.plot(at, [mean for _, mean, _ in means], color="tab:blue", label="running mean, 95 %")
    low, high = [m - half for _, m, half in means], [m + half for _, m, half in means]
    axes.fill_between(at, low, high, color="tab:blue", alpha=0.2, linewidth=0)
    if finding.before is not None:
        axes.axhline(finding.before, color="tab:green", linestyle=":", label="baseline")
    for number, alarm in enumerate(finding.alarms):
        first = number == 0
        axes.axvline(alarm.index, color="tab:red", label="alarm" if first else None)
        onset = "onset" if first else None
        axes.axvline(alarm.onset, color="tab:orange", linestyle="--", label=onset)
    if finding.learned:
        axes.axvspan(0, finding.learned, color="tab:green", alpha=0.08, label="learned")
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("score number")
    stream = finding.series.stream
    axes.set_title(" ".join(filter(None, (stream.service, stream.name))))
    axes.legend(loc="lower left", fontsize="small", ncols=3)


def running_means(values: Sequence[float], *, window: int) -> list[tuple[int, float, float]]:
    """Return index, mean and half the interval of ``window`` values each, half a window apart."""
    found = []
    for end in range(window, len(values) + 1, max(1, window // 2)):
        part = values[end - window : end]
        mean = sum(part) / window
        variance = sum((value - mean) ** 2 for value in part) / max(1, window - 1)
        found.append((end - 1, mean, _NORMAL * math.sqrt(variance / window)))
    return found
