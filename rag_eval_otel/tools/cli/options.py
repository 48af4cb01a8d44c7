"""Options of the command line that several commands share, and checks of files."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final, TypeAlias

from rag_eval_otel.config import Config, read_thresholds, thresholds_of
from rag_eval_otel.environment import names_in, switch
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.evaluation import Measurement
from rag_eval_otel.judge.models import build_embedder, build_plain_judge
from rag_eval_otel.live.scorer import build_measurement
from rag_eval_otel.runtime.guard import LimitedLog
from rag_eval_otel.untrusted import visible

Options: TypeAlias = Mapping[str, tuple[str, Mapping[str, Any]]]
"""Options by their names and metavar, ``-o --output FILE``, with help and further arguments."""

INTERRUPTED: Final = 130
"""The exit status after an interrupt, as that of shells."""

FLAG: Final[Mapping[str, Any]] = {"action": "store_true"}


def chosen(*words: str, default: str | None = None) -> Mapping[str, Any]:
    return {"choices": words, "default": default}


def constant(word: str, *, default: str, dest: str | None = None) -> Mapping[str, Any]:
    named = {} if dest is None else {"dest": dest}
    return {"action": "store_const", "const": word, "default": default, **named}


AS_JSON: Options = {
    "--json": ("print the result as JSON", constant("json", default="text", dest="form"))
}
VERSIONS: Options = {
    "--versions": ("any: compare other judges, metrics and prompts, too", chosen("same", "any"))
}


def add_all(parser: argparse._ActionsContainer, options: Options) -> None:
    """Add ``options`` to ``parser``. A name without leading dashes is a positional argument."""
    for names, (text, arguments) in options.items():
        words = names.split()
        flags = [word for word in words if word.startswith("-")] or words[:1]
        named = {"metavar": words[-1], **arguments} if words[len(flags) :] else arguments
        parser.add_argument(*flags, help=text, **named)


def say(text: str) -> None:
    sys.stderr.write(f"rag-eval-otel: {visible(text)}\n")


def print_result(options: argparse.Namespace, result: object, text: str) -> None:
    as_json = options.form == "json"
    text = json.dumps(result, indent=2, ensure_ascii=False) if as_json else text
    sys.stdout.write(f"{text}\n")


def require_another_file(path: Path, *read: Path, option: str) -> None:
    """Raise `ConfigError` if ``path``, the file of ``option``, is one of the files in ``read``."""
    if path.resolve() in {file.resolve() for file in read}:
        raise ConfigError(f"{option} {path} is the file that is read; name another")


def count_up_to(most: int | None = None) -> Callable[[str], int]:
    def count(text: str) -> int:
        if not text.isdecimal() or (most is not None and int(text) > most):
            limits = ", 0 or more" if most is None else f" from 0 to {most}"
            raise argparse.ArgumentTypeError(f"must be a whole number{limits}, not {text!r}")
        return int(text)

    return count


THRESHOLDS: Options = {
    "--threshold METRIC=SCORE": (
        "lowest score with which a metric passes; may be given several times",
        {"action": "append", "default": [], "dest": "pairs"},
    ),
    "--thresholds FILE.toml": ("as `rag-eval-otel calibrate --write` writes it", {"type": Path}),
    "--label-metrics METRICS": (
        "metrics that decide the overall label (default: those the judge can tell)",
        {"type": names_in},
    ),
}
"""The options about thresholds, for every command that labels scores."""

_UNITS: Final = {"d": "days", "h": "hours"}
_COUNT: Final = {"type": count_up_to()}
_SCORING: Options = {
    "--metrics": ("metrics or sets of them, by comma (default: default)", {"type": names_in}),
    "--judge lexical|PROVIDER/MODEL": ("the judge (default: RAG_EVAL_JUDGE, else lexical)", {}),
    "--embedder hashing|PROVIDER/MODEL": ("(default: by environment or judge)", {}),
    "--prompts FOLDER": ("prompt files that replace the built-in ones", {}),
    "--explanations on|off": ("ask the judge for reasons (default: off)", {"type": switch}),
    "--prices FILE": ("prices of tokens, JSON (default: RAG_EVAL_PRICES, else list prices)", {}),
    "--max-text-chars N": ("cut each text after N characters, a row after 4 N", _COUNT),
    "--concurrency N": ("rows at once (default: 16)", _COUNT),
    "--timeout SECONDS": ("time limit of a row (default: 30)", {"type": float}),
}


def add_scoring_options(parser: argparse.ArgumentParser) -> None:
    add_all(parser, {**_SCORING, **THRESHOLDS})


def scoring_config(options: argparse.Namespace) -> Config:
    names = [option.partition(" ")[0][2:].replace("-", "_") for option in _SCORING]
    settings = {name: getattr(options, name) for name in (*names, "label_metrics")}
    settings["thresholds"] = chosen_thresholds(options)
    settings["evaluation_timeout"] = settings.pop("timeout")
    return Config.from_env(**{name: v for name, v in settings.items() if v is not None})


def measurement_for(config: Config, **changes: Any) -> Measurement:
    """Return what live evaluation measures by, with ``changes``."""
    return replace(
        build_measurement(config),
        judge=build_plain_judge(config),  # a circuit breaker would fail all rows during an outage
        embedder=build_embedder(config),
        log=LimitedLog(),
        **changes,
    )


def moment_of(text: str) -> datetime:
    """Return the time in ``text``, in ISO 8601, or as many days or hours ago: 7d, 12h."""
    with suppress(ValueError, OverflowError):
        if text[-1:] in _UNITS and text[:-1].isdecimal():
            return datetime.now(timezone.utc) - timedelta(**{_UNITS[text[-1]]: int(text[:-1])})
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    raise argparse.ArgumentTypeError(
        f"must be a time such as 2026-11-22, 2026-11-22T09:00Z or 7d, not {text!r}"
    )


PERIOD: Options = {
    "--since TIME": ("turns from this time on: 7d, 12h or 2026-11-22T09:00Z", {"type": moment_of}),
    "--until TIME": ("only turns before this time", {"type": moment_of}),
}


def check_period(options: argparse.Namespace) -> None:
    if options.since and options.until and options.since >= options.until:
        raise ConfigError(f"--since {options.since} must be before --until {options.until}")


def chosen_thresholds(options: argparse.Namespace) -> dict[str, float] | None:
    if options.thresholds is None and not options.pairs:
        return None
    thresholds = {} if options.thresholds is None else read_thresholds(options.thresholds)
    return thresholds | thresholds_of(",".join(options.pairs), where="--threshold")
