"""Command line options of scoring (metrics, thresholds, judge, limits) for several commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from rag_eval_otel.config import Config, read_thresholds, thresholds_of
from rag_eval_otel.environment import names_in, switch


def count_up_to(most: int | None = None) -> Callable[[str], int]:
    def count(text: str) -> int:
        if not text.isdecimal() or (most is not None and int(text) > most):
            limits = ", 0 or more" if most is None else f" from 0 to {most}"
            raise argparse.ArgumentTypeError(f"must be a whole number{limits}, not {text!r}")
        return int(text)

    return count


THRESHOLDS: Final[Mapping[str, Mapping[str, Any]]] = {
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
        "type": names_in,
        "metavar": "METRICS",
        "help": "metrics that decide the overall label (default: those the judge can tell)",
    },
}
"""The options about thresholds, for every command that labels scores."""

_COUNT: Final = {"type": count_up_to(), "metavar": "N"}
_SCORING: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "--metrics": ("metrics or sets of them, by comma (default: default)", {"type": names_in}),
    "--judge": (
        "the judge (default: RAG_EVAL_JUDGE, else lexical, which is offline)",
        {"metavar": "lexical|PROVIDER/MODEL"},
    ),
    "--embedder": (
        "the embedder (default: RAG_EVAL_EMBEDDER, else that of the judge's provider)",
        {"metavar": "hashing|PROVIDER/MODEL"},
    ),
    "--prompts": ("prompt files that replace the built-in ones", {"metavar": "FOLDER"}),
    "--explanations": (
        "ask the judge for reasons, which cost most of its tokens (default: off)",
        {"type": switch, "metavar": "on|off"},
    ),
    "--prices": (
        "prices of tokens, JSON (default: RAG_EVAL_PRICES, else list prices)",
        {"metavar": "FILE"},
    ),
    "--max-text-chars": (
        "cut each text after N characters, and all of a row after 4 N (default: 100000)",
        _COUNT,
    ),
    "--concurrency": ("rows at once (default: 16)", _COUNT),
    "--timeout": (
        "time limit of a row (default: 30)",
        {"type": float, "dest": "evaluation_timeout", "metavar": "SECONDS"},
    ),
}


def add_scoring_options(parser: argparse.ArgumentParser) -> None:
    for name, (text, arguments) in _SCORING.items():
        parser.add_argument(name, help=text, **arguments)
    for name, arguments in THRESHOLDS.items():
        parser.add_argument(name, **arguments)


def scoring_config(options: argparse.Namespace) -> Config:
    names = [a.get("dest", name[2:].replace("-", "_")) for name, (_, a) in _SCORING.items()]
    settings = {name: getattr(options, name) for name in (*names, "label_metrics")}
    settings["thresholds"] = chosen_thresholds(options)
    return Config.from_env(**{name: v for name, v in settings.items() if v is not None})


def chosen_thresholds(options: argparse.Namespace) -> dict[str, float] | None:
    if options.thresholds is None and not options.pairs:
        return None
    thresholds = {} if options.thresholds is None else read_thresholds(options.thresholds)
    return thresholds | thresholds_of(",".join(options.pairs), where="--threshold")
