"""``rag-eval-otel metrics``: what can be measured, what it needs and what it costs."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rag_eval_otel.metrics.outcome import Metric


_COLUMNS = ("name", "needs", "requests", "range")


DESCRIPTION = """\
Lists every metric by name, with those of installed packages: the fields of a sample that it
needs, the judge requests it takes if none is shared, and its range.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json",
        dest="form",
        action="store_const",
        const="json",
        default="text",
        help="print them as JSON",
    )


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
