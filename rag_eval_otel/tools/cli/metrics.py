"""List the metrics and their sets."""

from __future__ import annotations

import argparse
import math
from collections import defaultdict

from rag_eval_otel.metrics import METRIC_SETS, metric, metric_names, scale_of
from rag_eval_otel.metrics.base import Metric
from rag_eval_otel.tools.cli.options import print_result


def run(options: argparse.Namespace) -> int:
    metrics = [metric(name) for name in metric_names()]
    sets = {name: [each.name for each in made()] for name, made in METRIC_SETS.items()}
    rows = []
    for each in metrics:
        low, high = scale_of(each)
        rows.append(
            {
                "name": each.name,
                "needs": sorted(each.needs),
                "range": f"{low:g} to {high:g}" if math.isfinite(high - low) else "",
                "about": _sentence(each),
                "sets": [name for name, members in sets.items() if each.name in members],
            }
        )
    by_needs = defaultdict[str, list[str]](list)
    width = max(len(each.name) for each in metrics)
    for each in metrics:
        mark = "*" if each.name in sets["default"] else " "
        line = f"{mark} {each.name:<{width}}  {_sentence(each)}"
        by_needs[", ".join(sorted(each.needs)) or "nothing"].append(line)
    lines = ["* in the set default, which is measured unless --metrics names others"]
    for needs, members in sorted(by_needs.items(), key=lambda item: max(item[1]) < "*"):
        lines += ["", f"needs {needs}:", *members]
    lines += ["", "sets:", *(f"  {name:<{width}}  {', '.join(of)}" for name, of in sets.items())]
    print_result(options, rows, "\n".join(lines))
    return 0


def _sentence(metric: Metric) -> str:
    """Return the first line of a metric's description, else of the docstring of its class."""
    text: str = getattr(metric, "about", None) or type(metric).__doc__ or ""
    return text.strip().partition("\n")[0].replace("`", "")
