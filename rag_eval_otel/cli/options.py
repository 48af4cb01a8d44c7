"""Define the command line options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag_eval_otel.thresholds import read_thresholds, thresholds_of


def names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


AS_JSON: Mapping[str, Any] = {
    "dest": "form",
    "action": "store_const",
    "const": "json",
    "default": "text",
    "help": "print the result as JSON",
}
"""The keyword arguments of ``add_argument`` for the option ``--json``."""

THRESHOLDS: Mapping[str, Mapping[str, Any]] = {
    "--threshold": {
        "action": "append",
        "default": [],
        "dest": "pairs",
        "metavar": "METRIC=SCORE",
        "help": "lowest score with which a metric passes; may be given several times",
    },
    "--thresholds": {
        "type": Path,
        "metavar": "FILE.toml",
        "help": "thresholds as `rag-eval-otel calibrate --write` writes them",
    },
    "--label-metrics": {
        "type": names,
        "metavar": "METRICS",
        "help": "metrics that decide the label of a row (default: those the judge can tell)",
    },
}
"""The options about thresholds, for every command that labels scores."""


def chosen_thresholds(options: argparse.Namespace) -> dict[str, float] | None:
    """Return the thresholds of ``--thresholds`` and ``--threshold``, by metric.

    ``--threshold`` has precedence. The result is None if neither option is given.
    """
    if options.thresholds is None and not options.pairs:
        return None
    found = {} if options.thresholds is None else read_thresholds(options.thresholds)
    return found | thresholds_of(",".join(options.pairs), where="--threshold")
