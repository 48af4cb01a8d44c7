"""Options of the command line that several commands share, and checks of files.

What is slow to import is imported by the functions that need it, as ``--help`` needs none of it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.untrusted import visible

if TYPE_CHECKING:
    from rag_eval_otel.config import Config
    from rag_eval_otel.evaluation import Measurement

Options: TypeAlias = Mapping[str, tuple[str, Mapping[str, Any]]]
"""Options by their names and metavar, ``-o --output FILE``, with help and further arguments."""


def chosen(*words: str, default: str | None = None) -> Mapping[str, Any]:
    return {"choices": words, "default": default}


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
    text = json.dumps(result, indent=2, ensure_ascii=False) if options.json else text
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


_SETTINGS: Final = (
    *("metrics", "judge", "embedder", "prompts", "explanations", "prices", "max_text_chars"),
    *("concurrency", "label_metrics"),
)
"""The options of scoring that have the name of an option of `Config`."""


def scoring_config(options: argparse.Namespace) -> Config:
    from rag_eval_otel.config import Config  # noqa: PLC0415  # slow to import

    settings = {name: getattr(options, name) for name in _SETTINGS}
    settings["thresholds"] = chosen_thresholds(options)
    settings["evaluation_timeout"] = options.timeout
    return Config.from_env(**{name: v for name, v in settings.items() if v is not None})


def measurement_for(config: Config, **changes: Any) -> Measurement:
    """Return the `Measurement` of live evaluation, with ``changes``, without circuit breakers."""
    from rag_eval_otel.live.scorer import build_measurement  # noqa: PLC0415
    from rag_eval_otel.models import build_embedder, build_plain_judge  # noqa: PLC0415
    from rag_eval_otel.runtime.guard import LimitedLog  # noqa: PLC0415

    return replace(
        build_measurement(config),
        judge=build_plain_judge(config),  # a circuit breaker would fail all rows during an outage
        embedder=build_embedder(config),
        log=LimitedLog(),
        **changes,
    )


def moment_of(text: str) -> datetime:
    """Return the time that ``text`` names: ISO 8601 (UTC without a zone), or ago: 7d, 12h."""
    hours = {"d": 24, "h": 1}.get(text[-1:])
    with suppress(ValueError, OverflowError):
        if hours and text[:-1].isdecimal():
            return datetime.now(timezone.utc) - timedelta(hours=hours * int(text[:-1]))
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    raise argparse.ArgumentTypeError(f"must be a time, as 2026-11-22T09:00Z or 7d, not {text!r}")


def chosen_thresholds(options: argparse.Namespace) -> dict[str, float] | None:
    from rag_eval_otel.config import read_thresholds, thresholds_of  # noqa: PLC0415

    if options.thresholds is None and not options.pairs:
        return None
    thresholds = {} if options.thresholds is None else read_thresholds(options.thresholds)
    return thresholds | thresholds_of(",".join(options.pairs), where="--threshold")
