"""The options of ``rag-eval-otel evaluate``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag_eval_otel.thresholds import read_thresholds, thresholds_of


def _pairs(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(column for _, _, column in pairs):
        msg = f"must be FIELD=COLUMN,..., not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return {field: column for field, _, column in pairs}


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _count(text: str) -> int:
    if not text.isdecimal():
        msg = f"must be a whole number, 0 or more, not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


THRESHOLDS: Mapping[str, Mapping[str, Any]] = {
    "--threshold": {
        "action": "append",
        "default": [],
        "dest": "pairs",
        "metavar": "METRIC=SCORE",
        "help": "a metric passes from this score; may be given several times",
    },
    "--thresholds": {
        "type": Path,
        "metavar": "FILE.toml",
        "help": "thresholds as `rag-eval-otel calibrate --write` writes them",
    },
    "--label-metrics": {
        "type": _names,
        "metavar": "METRICS",
        "help": "what the overall label goes by, by comma (default: what the judge is good for)",
    },
}
"""Options of every command that labels scores."""


def chosen_thresholds(options: argparse.Namespace) -> dict[str, float] | None:
    """Return those of ``--thresholds``, ``--threshold`` taking precedence; None for neither."""
    if options.thresholds is None and not options.pairs:
        return None
    found = {} if options.thresholds is None else read_thresholds(options.thresholds)
    return found | thresholds_of(",".join(options.pairs), where="--threshold")


OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "--metrics": {"type": _names, "help": "metrics or sets of them, by comma (default: default)"},
    **THRESHOLDS,
    "--judge": {
        "metavar": "lexical|PROVIDER/MODEL",
        "help": "who judges (default: RAG_EVAL_JUDGE, else lexical, which is offline)",
    },
    "--embedder": {
        "metavar": "hashing|PROVIDER/MODEL",
        "help": "who embeds (default: RAG_EVAL_EMBEDDER, else as the judge)",
    },
    "--judge-base-url": {"metavar": "URL", "help": "where the judge's server answers"},
    "--prompts": {"metavar": "FOLDER", "help": "files in place of the built-in prompts"},
    "--fusion": {
        "choices": ("on", "off"),
        "help": "whether questions of one row may share a judge request (default: on)",
    },
    "--explanations": {
        "choices": ("on", "off"),
        "help": "whether the judge gives reasons, which cost most of its tokens (default: off)",
    },
    "--prices": {
        "metavar": "FILE",
        "help": "prices of judge tokens, JSON (default: RAG_EVAL_PRICES, else list prices)",
    },
    "--repairs": {
        "type": _count,
        "default": 1,
        "metavar": "N",
        "help": "how often to ask again what came back unusable (default: 1)",
    },
    "--concurrency": {"type": _count, "metavar": "N", "help": "rows at once (default: 16)"},
    "--timeout": {
        "type": float,
        "dest": "evaluation_timeout",
        "metavar": "SECONDS",
        "help": "for one row (default: 60)",
    },
    "--columns": {
        "type": _pairs,
        "metavar": "FIELD=COLUMN,...",
        "help": "columns that are not called as elsewhere: question=prompt,answer=output",
    },
    "--limit": {"type": _count, "metavar": "N", "help": "take the first N rows only"},
    "--output": {
        "type": Path,
        "metavar": "FILE",
        "help": "write the scores of each row: .jsonl, .csv or .parquet",
    },
    "--otlp": {
        "action": "store_const",
        "const": "on",
        "default": "off",
        "help": "send a trace for each row to OTEL_EXPORTER_OTLP_ENDPOINT",
    },
    "--cache": {
        "type": Path,
        "metavar": "FILE",
        "help": "keep scores here for good (default: OUTPUT.cache, until all rows are scored)",
    },
    "--max-requests": {"type": _count, "metavar": "N", "help": "judge requests to send at most"},
    "--max-tokens": {"type": _count, "metavar": "N", "help": "tokens after which to ask no more"},
    "--progress": {
        "choices": ("auto", "on", "off"),
        "default": "auto",
        "help": "a bar on stderr (default: auto, where that is a terminal)",
    },
    "--raise-on-failure": {
        "action": "store_true",
        "help": "stop at the first row with a failed score",
    },
    "--json": {
        "dest": "form",
        "action": "store_const",
        "const": "json",
        "default": "text",
        "help": "print the summary as JSON",
    },
}
"""What ``add_argument`` is told of each option."""
