"""The parts of a dashboard: panels and their queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WIDTH = 24
"""The number of columns of a page."""

Kind = Literal["timeseries", "stat", "heatmap", "table", "bargauge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A PromQL expression and the legend of its series."""

    expr: str
    legend: str
    exemplars: Literal["off", "on"] = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel with some queries, ``width`` of 24 columns wide."""

    title: str
    queries: tuple[Query, ...]
    told: str = ""
    kind: Kind = "timeseries"
    unit: str = "short"
    width: int = 12
    top: float | None = None
    line: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A page of panels, with a choice of services and, if it has any, of metrics."""

    uid: str
    title: str
    panels: tuple[Panel, ...]
    metrics: Literal["none", "many", "one"] = "many"


def ask(expr: str, legend: str) -> Query:
    """Return the query ``expr`` whose series are named ``legend``."""
    return Query(expr=expr, legend=legend)


def either(form: str, part: str, where: str) -> str:
    """Return ``form`` over the counts of applications, or of spans for services without them."""
    own, spans = f"rag_evaluation_score{part}", f"rag_evaluation_span_score{part}"
    return f"{form % f'{own}{{{where}}}'} or {form % f'{spans}{{{where}}}'}"


def zero(expr: str) -> str:
    """Return ``expr``, or 0 while it has no series: nothing was counted."""
    return f"{expr} or (vector(0) unless on () ({expr}))"


def of_run(record: str, where: str) -> str:
    """Return the recorded value of a window; without scores in it, the value of the whole run.

    A batch job is over before Prometheus sees its counts increase.
    """
    name, _, _window = record.rpartition(":")
    return f"{record}{{{where}}} or {name}:run{{{where}}}"
