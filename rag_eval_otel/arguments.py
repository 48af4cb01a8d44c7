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

_SCORING: Final[Mapping[str, str]] = {
    "--metrics": "metrics or sets of them, by comma (default: default)",
    "--judge lexical|PROVIDER/MODEL": "the judge (default: RAG_EVAL_JUDGE, else lexical, offline)",
    "--embedder hashing|PROVIDER/MODEL": "the embedder (default: by environment or judge)",
    "--prompts FOLDER": "prompt files that replace the built-in ones",
    "--explanations on|off": "ask the judge for reasons, most of its tokens (default: off)",
    "--prices FILE": "prices of tokens, JSON (default: RAG_EVAL_PRICES, else list prices)",
    "--max-text-chars N": "cut each text after N characters, a row after 4 N (default: 100000)",
    "--concurrency N": "rows at once (default: 16)",
    "--timeout SECONDS": "time limit of a row (default: 30)",
}
_TYPES: Final[Mapping[str, Callable[[str], Any]]] = {
    "--metrics": names_in,
    "--explanations": switch,
    "--timeout": float,
    **dict.fromkeys(("--max-text-chars", "--concurrency"), count_up_to()),
}


def add_scoring_options(parser: argparse.ArgumentParser) -> None:
    for option, text in _SCORING.items():
        name, _, metavar = option.partition(" ")
        parser.add_argument(name, help=text, metavar=metavar or None, type=_TYPES.get(name, str))
    for name, arguments in THRESHOLDS.items():
        parser.add_argument(name, **arguments)


def scoring_config(options: argparse.Namespace) -> Config:
    names = [option.partition(" ")[0][2:].replace("-", "_") for option in _SCORING]
    settings = {name: getattr(options, name) for name in (*names, "label_metrics")}
    settings["thresholds"] = chosen_thresholds(options)
    settings["evaluation_timeout"] = settings.pop("timeout")
    return Config.from_env(**{name: v for name, v in settings.items() if v is not None})


def chosen_thresholds(options: argparse.Namespace) -> dict[str, float] | None:
    if options.thresholds is None and not options.pairs:
        return None
    thresholds = {} if options.thresholds is None else read_thresholds(options.thresholds)
    return thresholds | thresholds_of(",".join(options.pairs), where="--threshold")
