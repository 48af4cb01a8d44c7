"""``rag-eval-otel metrics``: what can be measured, what it needs and what it costs."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from rag_eval_otel.commands import Commands

if TYPE_CHECKING:
    from rag_eval_otel.protocols import Metric

_COLUMNS = ("name", "needs", "requests", "range")


def add(commands: Commands) -> None:
    """Describe the command."""
    metrics = commands.add_parser(
        "metrics",
        help="list the metrics: name, needs, judge requests, range",
        description=(
            "Lists every metric by name, those of installed packages included: the fields of a"
            " sample that it needs, the judge requests it takes when nothing is shared, its range."
        ),
    )
    metrics.add_argument(
        "--json",
        dest="form",
        action="store_const",
        const="json",
        default="text",
        help="print them as JSON",
    )
    metrics.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """List the metrics."""
    from rag_eval_otel.dataset.table import aligned  # noqa: PLC0415  # --help is to be quick

    found = [_described(metric) for metric in _metrics()]
    if options.form == "json":
        text = json.dumps(found, indent=2, ensure_ascii=False)
    else:
        cells = [(d["name"], ", ".join(d["needs"]), d["requests"], d["range"]) for d in found]
        text = aligned([_COLUMNS, *cells], left=len(_COLUMNS))
    sys.stdout.write(f"{text}\n")
    return 0


def _metrics() -> list[Metric]:
    from rag_eval_otel.metrics import metric_names, resolve_metrics  # noqa: PLC0415

    return [resolve_metrics([name])[0] for name in metric_names()]


def _described(metric: Metric) -> dict[str, Any]:
    return {
        "name": metric.name,
        "needs": sorted(metric.needs),
        "requests": str(getattr(metric, "requests", "")),
        "range": str(getattr(metric, "range", "")),
    }
