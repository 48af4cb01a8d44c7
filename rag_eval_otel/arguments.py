"""Define the command line options that the commands of several areas share.

They are those of scoring (metrics, thresholds, judge, limits), for ``evaluate`` and ``serve``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from rag_eval_otel.config import Config, read_thresholds, thresholds_of
from rag_eval_otel.environment import names_in, switch


def count_up_to(most: int | None = None) -> Callable[[str], int]:
    """Return a function that reads a whole number from 0 to ``most``, for ``type=``."""

    def count(text: str) -> int:
        if not text.isdecimal() or (most is not None and int(text) > most):
            limits = ", 0 or more" if most is None else f" from 0 to {most}"
            msg = f"must be a whole number{limits}, not {text!r}"
            raise argparse.ArgumentTypeError(msg)
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

_SCORING: Final[Mapping[str, Mapping[str, Any]]] = {
    "--metrics": {"type": names_in, "help": "metrics or sets of them, by comma (default: default)"},
    **THRESHOLDS,
    "--judge": {
        "metavar": "lexical|PROVIDER/MODEL",
        "help": "the judge (default: RAG_EVAL_JUDGE, else lexical, which is offline)",
    },
    "--embedder": {
        "metavar": "hashing|PROVIDER/MODEL",
        "help": "the embedder (default: RAG_EVAL_EMBEDDER, else that of the judge's provider)",
    },
    "--prompts": {"metavar": "FOLDER", "help": "prompt files that replace the built-in ones"},
    "--explanations": {
        "type": switch,
        "metavar": "on|off",
        "help": "ask the judge for reasons, which cost most of its tokens (default: off)",
    },
    "--prices": {
        "metavar": "FILE",
        "help": "prices of tokens, JSON (default: RAG_EVAL_PRICES, else list prices)",
    },
    "--max-text-chars": {
        "type": count_up_to(),
        "metavar": "N",
        "help": "cut each text after N characters, and all of a {unit} after 4 N (default: 100000)",
    },
    "--concurrency": {
        "type": count_up_to(),
        "metavar": "N",
        "help": "{unit}s at once (default: 16)",
    },
    "--timeout": {
        "type": float,
        "dest": "evaluation_timeout",
        "metavar": "SECONDS",
        "help": "time limit of a {unit} (default: 30)",
    },
}
_SETTINGS: Final = [
    arguments.get("dest", name.removeprefix("--").replace("-", "_"))
    for name, arguments in _SCORING.items()
    if name not in {"--threshold", "--thresholds"}
]


def add_scoring_options(parser: argparse.ArgumentParser, *, unit: str) -> None:
    """Add the options of scoring to ``parser``.

    ``unit`` is what one evaluation is about in the help texts (``row`` or ``turn``).
    """
    for name, arguments in _SCORING.items():
        text = arguments["help"].format(unit=unit)
        parser.add_argument(name, **{**arguments, "help": text})


def scoring_config(options: argparse.Namespace) -> Config:
    """Return the `Config` of the environment, with the options of scoring that are set."""
    settings = {name: getattr(options, name) for name in _SETTINGS}
    settings["thresholds"] = chosen_thresholds(options)
    return Config.from_env(**{name: v for name, v in settings.items() if v is not None})


def chosen_thresholds(options: argparse.Namespace) -> dict[str, float] | None:
    """Return the thresholds of ``--thresholds`` and ``--threshold``, by metric.

    ``--threshold`` has precedence. The result is None if neither option is set.
    """
    if options.thresholds is None and not options.pairs:
        return None
    thresholds = {} if options.thresholds is None else read_thresholds(options.thresholds)
    return thresholds | thresholds_of(",".join(options.pairs), where="--threshold")
