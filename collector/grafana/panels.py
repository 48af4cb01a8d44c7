"""What a dashboard is made of: pages of panels, panels of queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WIDTH = 24
"""Columns of a page."""

Kind = Literal["timeseries", "stat", "heatmap", "table", "bargauge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A PromQL expression and what its series are called."""

    expr: str
    legend: str
    exemplars: Literal["off", "on"] = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A picture of some queries, ``width`` of 24 columns wide."""

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
    """A page of panels, with a choice of services and, if it has metrics, of them."""

    uid: str
    title: str
    panels: tuple[Panel, ...]
    metrics: Literal["none", "many", "one"] = "many"


def ask(expr: str, legend: str) -> Query:
    """Return the query ``expr`` whose series are named ``legend``."""
    return Query(expr=expr, legend=legend)


def either(form: str, part: str, where: str) -> str:
    """Return ``form`` over what applications count, and over spans for those that count nothing."""
    own, spans = f"rag_evaluation_score{part}", f"rag_evaluation_span_score{part}"
    return f"{form % f'{own}{{{where}}}'} or {form % f'{spans}{{{where}}}'}"
