"""Run ``rag-eval-otel metrics``: list the metrics with their needs and judge requests."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rag_eval_otel.cli.options import AS_JSON
from rag_eval_otel.dataset.summary import aligned
from rag_eval_otel.metrics import metric_names, resolve_metrics
from rag_eval_otel.metrics.outcome import Metric

_COLUMNS = ("name", "needs", "requests", "range")
DESCRIPTION = """\
Lists every metric by name, also those of installed packages, with the fields of a sample that it
needs, its judge requests if none is shared, and its range.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", **AS_JSON)


def run(options: argparse.Namespace) -> int:
    found = [_described(resolve_metrics([name])[0]) for name in metric_names()]
    if options.form == "json":
        text = json.dumps(found, indent=2, ensure_ascii=False)
    else:
        cells = [(d["name"], ", ".join(d["needs"]), d["requests"], d["range"]) for d in found]
        text = aligned([_COLUMNS, *cells], left=len(_COLUMNS))
    sys.stdout.write(f"{text}\n")
    return 0


def _described(metric: Metric) -> dict[str, Any]:
    return {
        "name": metric.name,
        "needs": sorted(metric.needs),
        "requests": str(getattr(metric, "requests", "")),
        "range": str(getattr(metric, "range", "")),
    }
