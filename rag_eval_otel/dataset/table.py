"""Tables of plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import shorten

from rag_eval_otel.dataset.tally import MetricSummary

_COLUMNS = ("metric", "mean", "95 % interval", "median", "ok", "undefined", "error", "pass")
_TOLD = 300  # characters of a failure


def aligned(rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Return ``rows`` as lines with columns of one width, the first ``left`` flush left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_line(row, widths, left=left) for row in rows)


def _line(row: Sequence[str], widths: Sequence[int], *, left: int) -> str:
    cells = [
        cell.ljust(width) if i < left else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def metrics_table(metrics: Sequence[MetricSummary]) -> str:
    """Return one line per metric; a dash where there is no number, reasons below."""
    lines = [aligned([_COLUMNS, *map(_cells, metrics)])]
    told: set[str | None] = {None}
    for metric in metrics:
        lines += _remarks(metric)
        if metric.first_failure not in told:
            lines.append(f"    the first: {shorten(metric.first_failure or '', _TOLD)}")
        told.add(metric.first_failure)
    return "\n".join(lines)


def _cells(metric: MetricSummary) -> tuple[str, ...]:
    return (
        metric.name,
        number(metric.mean),
        interval(metric.interval),
        number(metric.median),
        str(metric.ok),
        str(metric.undefined),
        str(metric.error),
        f"{metric.passed}/{metric.labelled}" if metric.labelled else "-",
    )


def _remarks(metric: MetricSummary) -> Iterator[str]:
    if metric.normalized_mean is not None:
        yield f"  {metric.name}: mean on the scale 0 to 1: {number(metric.normalized_mean)}"
    if metric.reasons:
        counted = ", ".join(f"{n} {reason}" for reason, n in sorted(metric.reasons.items()))
        yield f"  {metric.name}: {counted}"
    if len(metric.versions) > 1:
        yield f"  {metric.name}: a mixture of versions: {', '.join(metric.versions)}"


def number(value: float | None) -> str:
    """Return ``value`` to three places, or a dash."""
    return "-" if value is None else f"{value:.3f}"


def interval(value: tuple[float, float] | None) -> str:
    """Return both ends, or a dash."""
    return "-" if value is None else f"[{value[0]:.3f}, {value[1]:.3f}]"
