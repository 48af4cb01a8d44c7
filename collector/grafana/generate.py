"""Generates the dashboards in this folder: python collector/grafana/generate.py."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pages import DASHBOARDS
from panels import WIDTH, Dashboard, Panel

FOLDER = Path(__file__).parent / "dashboards"
OF_LOOK = Path(__file__).parents[2] / "rag_eval_otel" / "tools" / "templates" / "dashboards.json"
"""The same titles and queries, for the page of `rag-eval-otel look`."""
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
HEIGHT = 8


def generated() -> Mapping[Path, str]:
    """Return the path and the content of each dashboard's file."""
    pages = {FOLDER / f"{board.uid}.json": page(board) for board in DASHBOARDS}
    contents = {**pages, OF_LOOK: [asdict(board) for board in DASHBOARDS]}
    return {path: f"{json.dumps(content, indent=2)}\n" for path, content in contents.items()}


def page(dashboard: Dashboard) -> dict[str, Any]:
    """Return ``dashboard`` as Grafana's JSON model."""
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
    series = "rag_evaluation:count:run" if name == "metric" else "rag_evaluation:turns:increase15m"
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
        # Names above the bars: beside them, a narrow panel cuts names of metrics and services.
        return {"orientation": "horizontal", "displayMode": "basic", "namePlacement": "top"}
    return {}


if __name__ == "__main__":
    for path, text in generated().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
