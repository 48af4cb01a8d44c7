"""Writes the dashboards beside it: python collector/grafana/generate.py."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rag_eval_otel.alerting.rules import WINDOWS

FOLDER = Path(__file__).parent / "dashboards"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT = 24, 8
SERVICE = 'service_name=~"$service"'
METRIC = f'gen_ai_evaluation_name=~"$metric", {SERVICE}'
ONE = f'gen_ai_evaluation_name="$metric", {SERVICE}'

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


RATE = "[$__rate_interval]"
BY_NAME = "{{gen_ai_evaluation_name}} {{service_name}}"
EVIDENCE = "max by (gen_ai_evaluation_name, service_name) (rag_evaluation:bad_log10_evalue{%s})"

OVERVIEW = Dashboard(
    uid="rag-overview",
    title="RAG answers: overview",
    panels=(
        Panel(
            title="Mean score, last hour",
            kind="bargauge",
            unit="percentunit",
            top=1,
            queries=(ask(f"rag_evaluation:mean:1h{{{METRIC}}}", BY_NAME),),
        ),
        Panel(
            title="Bad answers, last hour",
            kind="bargauge",
            unit="percentunit",
            top=1,
            queries=(ask(f"rag_evaluation:bad_ratio:1h{{{METRIC}}}", BY_NAME),),
        ),
        Panel(
            title="Mean score",
            told="Over the last hour at each point.",
            unit="percentunit",
            top=1,
            queries=(ask(f"rag_evaluation:mean:1h{{{METRIC}}}", BY_NAME),),
        ),
        Panel(
            title="Evidence that too many answers are bad",
            told="log10 of an e-value: the page goes out above the line.",
            line=5,
            queries=(ask(EVIDENCE % METRIC, BY_NAME),),
        ),
        Panel(
            title="Share of bad answers",
            unit="percentunit",
            top=1,
            queries=tuple(
                ask(f"rag_evaluation:bad_ratio:{window}{{{METRIC}}}", f"{BY_NAME} {window}")
                for window in ("1h", "1d")
            ),
        ),
        Panel(
            title="Turns by what became of them",
            unit="reqps",
            queries=(
                ask(
                    f"sum by (outcome) (rate(rag_evaluation_turns_total{{{SERVICE}}}{RATE}))",
                    "{{outcome}}",
                ),
                ask(
                    "sum by (rag_evaluation_status)"
                    f" (rate(rag_evaluation_span_turns_total{{{SERVICE}}}{RATE}))",
                    "on spans: {{rag_evaluation_status}}",
                ),
            ),
        ),
        Panel(
            title="Drift found by the detectors in the applications",
            told="Alarms in the last hour.",
            queries=(
                ask(
                    "sum by (gen_ai_evaluation_name, service_name, rag_evaluation_drift_direction)"
                    f" (increase(rag_evaluation_drift_alarms_total{{{METRIC}}}[1h]))",
                    f"{BY_NAME} {{{{rag_evaluation_drift_direction}}}}",
                ),
            ),
        ),
        Panel(
            title="Evidence of drift in the applications",
            told="log10; their alarm is at 5, or at the log10 of the `every` that was set.",
            line=5,
            queries=(
                ask(
                    "max by (gen_ai_evaluation_name, service_name)"
                    f" (rag_evaluation_drift_log10_evidence_ratio{{{METRIC}}})",
                    BY_NAME,
                ),
            ),
        ),
        Panel(
            title="Alerts",
            kind="table",
            width=WIDTH,
            queries=(ask('ALERTS{alertname=~"Rag.*"}', ""),),
        ),
    ),
)

IN_DEPTH = Dashboard(
    uid="rag-metric",
    title="RAG answers: one metric",
    metrics="one",
    panels=(
        Panel(
            title="Distribution of the scores",
            kind="heatmap",
            width=WIDTH,
            queries=(
                ask(
                    either(f"sum by (le) (increase(%s{RATE}))", "_bucket", ONE),
                    "{{le}}",
                ),
            ),
        ),
        Panel(
            title="Quantiles",
            told="The dots are turns: each leads to its trace.",
            unit="percentunit",
            top=1,
            queries=tuple(
                Query(
                    expr=f"histogram_quantile({q}, "
                    + either(f"sum by (le) (rate(%s{RATE}))", "_bucket", ONE)
                    + ")",
                    legend=f"p{100 * q:.0f}",
                    exemplars="on",
                )
                for q in (0.1, 0.5, 0.9)
            ),
        ),
        Panel(
            title="Mean score, an hour against a day",
            unit="percentunit",
            top=1,
            queries=tuple(
                ask(f"rag_evaluation:mean:{window}{{{ONE}}}", f"{{{{service_name}}}} {window}")
                for window in ("1h", "1d")
            ),
        ),
        Panel(
            title="Share of bad answers by window",
            unit="percentunit",
            top=1,
            queries=tuple(
                ask(f"rag_evaluation:bad_ratio:{window}{{{ONE}}}", window) for window in WINDOWS
            ),
        ),
        Panel(
            title="Evidence by window",
            line=5,
            queries=(
                ask(
                    f"max by (window) (rag_evaluation:bad_log10_evalue{{{ONE}}})",
                    "{{window}}",
                ),
            ),
        ),
        Panel(
            title="Pass and fail",
            unit="reqps",
            queries=(
                ask(
                    "sum by (gen_ai_evaluation_score_label)"
                    f" (rate(rag_evaluation_score_count{{{ONE}}}{RATE}))",
                    "{{gen_ai_evaluation_score_label}}",
                ),
            ),
        ),
        Panel(
            title="Mean score by judge",
            told="A step where the judge changes is the judge's.",
            unit="percentunit",
            top=1,
            queries=(
                ask(
                    "sum by (rag_evaluation_judge)"
                    f" (rate(rag_evaluation_score_sum{{{ONE}}}{RATE}))"
                    " / sum by (rag_evaluation_judge)"
                    f" (rate(rag_evaluation_score_count{{{ONE}}}{RATE}))",
                    "{{rag_evaluation_judge}}",
                ),
            ),
        ),
    ),
)


def _seconds(name: str) -> tuple[Query, ...]:
    return tuple(
        ask(
            f"histogram_quantile({q}, sum by (le)"
            f" (rate(rag_evaluation_{name}_seconds_bucket{{{SERVICE}}}{RATE})))",
            f"p{100 * q:.0f}",
        )
        for q in (0.5, 0.95)
    )


def _rate(name: str, by: str) -> str:
    return f"sum by ({by}) (rate(rag_evaluation_{name}_total{{{SERVICE}}}{RATE}))"


COST = Dashboard(
    uid="rag-cost",
    title="RAG answers: cost and coverage",
    metrics="none",
    panels=(
        Panel(
            title="Coverage",
            told="The share of turns that are scored, those left out on purpose aside.",
            unit="percentunit",
            top=1,
            queries=(ask(f"rag_evaluation:coverage:15m{{{SERVICE}}}", "{{service_name}}"),),
        ),
        Panel(
            title="Turns that are not scored, by reason",
            unit="reqps",
            queries=(
                ask(
                    "sum by (outcome, reason)"
                    f' (rate(rag_evaluation_turns_total{{outcome!="scored", {SERVICE}}}{RATE}))',
                    "{{outcome}} {{reason}}",
                ),
            ),
        ),
        Panel(
            title="Judge requests",
            unit="reqps",
            queries=(
                ask(_rate("judge_calls", "rag_evaluation_judge"), "{{rag_evaluation_judge}}"),
            ),
        ),
        Panel(
            title="Judge tokens a second",
            queries=(
                ask(
                    _rate("judge_tokens", "rag_evaluation_judge, gen_ai_token_type"),
                    "{{rag_evaluation_judge}} {{gen_ai_token_type}}",
                ),
            ),
        ),
        Panel(
            title="Judge requests and tokens a turn",
            queries=(
                ask(
                    f"sum(rate(rag_evaluation_judge_calls_total{{{SERVICE}}}{RATE}))"
                    " / sum(rate(rag_evaluation_turns_total"
                    f'{{outcome="scored", {SERVICE}}}{RATE}))',
                    "requests",
                ),
                ask(
                    f"sum(rate(rag_evaluation_judge_tokens_total{{{SERVICE}}}{RATE}))"
                    " / sum(rate(rag_evaluation_turns_total"
                    f'{{outcome="scored", {SERVICE}}}{RATE}))',
                    "tokens",
                ),
            ),
        ),
        Panel(
            title="Embedding requests",
            unit="reqps",
            queries=(ask(_rate("embedding_calls", "service_name"), "{{service_name}}"),),
        ),
        Panel(title="Time of an evaluation", unit="s", queries=_seconds("duration")),
        Panel(title="From answer to score", unit="s", queries=_seconds("lag")),
        Panel(
            title="Spans that wait for scores",
            queries=(
                ask(
                    f"sum by (service_name) (rag_evaluation_held{{{SERVICE}}})",
                    "{{service_name}}",
                ),
            ),
        ),
        Panel(
            title="Failures of rag_eval_otel itself",
            unit="reqps",
            queries=(ask(_rate("internal_errors", "place"), "{{place}}"),),
        ),
    ),
)

DASHBOARDS = (OVERVIEW, IN_DEPTH, COST)


def generated() -> Mapping[Path, str]:
    """Return each dashboard's file and what is to be in it."""
    return {
        FOLDER / f"{one.uid}.json": f"{json.dumps(page(one), indent=2)}\n" for one in DASHBOARDS
    }


def page(dashboard: Dashboard) -> dict[str, Any]:
    """Return ``dashboard`` as Grafana reads it."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["rag_eval_otel"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-24h", "to": "now"},
        "templating": {"list": list(_variables(dashboard))},
        "links": [{"type": "dashboards", "tags": ["rag_eval_otel"], "title": "RAG answers"}],
        "panels": list(_panels(dashboard.panels)),
    }


def _variables(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    yield {"type": "datasource", "name": "datasource", "query": "prometheus", "label": "Source"}
    yield _choice("service", "service_name", how="many")
    if dashboard.metrics != "none":
        yield _choice("metric", "gen_ai_evaluation_name", how=dashboard.metrics)


def _choice(name: str, label: str, *, how: Literal["many", "one"]) -> dict[str, Any]:
    series = (
        "rag_evaluation:count:increase1h"
        if name == "metric"
        else "rag_evaluation:turns:increase15m"
    )
    many = how == "many"
    return {
        "type": "query",
        "name": name,
        "label": name.capitalize(),
        "datasource": SOURCE,
        "query": {"query": f"label_values({series}, {label})", "refId": name},
        "refresh": 2,
        "multi": many,
        "includeAll": many,
        **({"allValue": ".+", "current": {"text": "All", "value": "$__all"}} if many else {}),
    }


def _panels(panels: Iterable[Panel]) -> Iterator[dict[str, Any]]:
    x = y = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > WIDTH:
            x, y = 0, y + HEIGHT
        yield {
            "id": number,
            "title": panel.title,
            "description": panel.told,
            "type": panel.kind,
            "datasource": SOURCE,
            "gridPos": {"x": x, "y": y, "w": panel.width, "h": HEIGHT},
            "targets": _targets(panel),
            "fieldConfig": {"defaults": _field(panel), "overrides": []},
            "options": _options(panel),
        }
        x += panel.width


def _targets(panel: Panel) -> list[dict[str, Any]]:
    instant = panel.kind in {"table", "bargauge"}
    form = {"heatmap": "heatmap", "table": "table"}.get(panel.kind, "time_series")
    return [
        {
            "refId": chr(ord("A") + index),
            "datasource": SOURCE,
            "expr": query.expr,
            "legendFormat": query.legend,
            "instant": instant,
            "range": not instant,
            "exemplar": query.exemplars == "on",
            "format": form,
        }
        for index, query in enumerate(panel.queries)
    ]


def _field(panel: Panel) -> dict[str, Any]:
    found: dict[str, Any] = {"unit": panel.unit}
    if panel.top is not None:
        found |= {"min": 0, "max": panel.top}
    if panel.line is not None:
        found["thresholds"] = {
            "mode": "absolute",
            "steps": [{"color": "green", "value": None}, {"color": "red", "value": panel.line}],
        }
        found["custom"] = {"thresholdsStyle": {"mode": "line"}}
    return found


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "heatmap":
        return {
            "calculate": False,
            "yAxis": {"unit": "percentunit"},
            "color": {"scheme": "Viridis"},
        }
    if panel.kind == "bargauge":
        return {"orientation": "horizontal", "displayMode": "basic"}
    return {}


def queries(dashboards: Sequence[Dashboard] = DASHBOARDS) -> Iterator[str]:
    """Yield every expression of ``dashboards``."""
    for dashboard in dashboards:
        for panel in dashboard.panels:
            yield from (query.expr for query in panel.queries)


if __name__ == "__main__":
    for path, text in generated().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
