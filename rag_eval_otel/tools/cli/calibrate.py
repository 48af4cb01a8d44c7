"""Compare scores with human labels, or a judge with known verdicts."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from rag_eval_otel.config import Config
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.models import build_plain_judge
from rag_eval_otel.metrics import METRICS
from rag_eval_otel.prices import load_prices
from rag_eval_otel.tools.calibrate import (
    Calibration,
    Check,
    calibrate,
    check_judge,
    check_table,
)
from rag_eval_otel.tools.cli.options import (
    AS_JSON,
    Options,
    add_all,
    count_up_to,
    print_result,
    say,
)
from rag_eval_otel.tools.files import source_of, write_whole
from rag_eval_otel.tools.labels import observations
from rag_eval_otel.types import Form

_BARE = re.compile("[A-Za-z0-9_-]+")  # the keys that TOML has without quotes
_HEAD = """\
# From which score on each metric passes. Read by `rag-eval-otel evaluate --thresholds FILE`, by
# `rag-eval-otel rules --thresholds FILE`, by the option `thresholds` and RAG_EVAL_THRESHOLDS.
[thresholds]
"""
_FORMS: Mapping[str, tuple[Form, ...]] = {
    "both": ("short", "full"),
    "short": ("short",),
    "full": ("full",),
}
_BOUND = 0.8
_OF_JUDGE = ("judge", "concurrency", "prices")

DESCRIPTION = """\
Compares the scores of a metric with human labels: agreement, the errors of its pass and fail, the
threshold that fits the labels best. FILE is .jsonl, .csv or .parquet, each row one of

  {"score": 0.8, "label": "pass"}
  {"scores": {"faithfulness": 0.8}, "labels": {"faithfulness": 1}}
  {"faithfulness": 0.8, "faithfulness.human": 1}
  what `rag-eval-otel evaluate --output` wrote, with <metric>.human or human added

With --built-in, a judge is asked about 84 cases with known verdicts, in six languages, with the
real prompts: numbers, negations, half-supported and over-long answers, refusals, contexts without
content, injected instructions. The command prints how often it is right in each task, in the short
form (set default) and as the sources define the metrics (set dual), where it is weak, and the price
of 1,000 turns.

Exit status: 0 done, 1 with --built-in a judge is right in less than --bound of a task, 2 misuse.
"""


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1, not {text}")
    return value


_OPTIONS: Options = {
    "file FILE": (".jsonl, .csv or .parquet", {"nargs": "?"}),
    "--metric NAME": ("only this metric", {}),
    "--threshold": ("lowest score that passes (default: the metric's own)", {"type": float}),
    "--label-threshold": ("lowest label that passes, if labels are on a scale", {"type": float}),
    "--write FILE.toml": ("write the thresholds that fit, for --thresholds", {"type": Path}),
    **AS_JSON,
}
_JUDGE_OPTIONS: Options = {
    "--built-in": ("compare a judge with known verdicts; without FILE", {"action": "store_true"}),
    "--judge": ("the judge (default: RAG_EVAL_JUDGE, else lexical)", {}),
    "--form": (
        "form of the replies (default: both)",
        {"choices": tuple(_FORMS), "dest": "reply_form"},
    ),
    "--bound SHARE": (
        f"lowest share of right replies in a task (default: {_BOUND})",
        {"type": _share},
    ),
    "--concurrency": ("cases at once (default: 16)", {"type": count_up_to()}),
    "--prices FILE": ("prices of judge tokens, JSON", {}),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    add_all(parser, _OPTIONS)
    add_all(parser.add_argument_group("checking a judge on built-in cases"), _JUDGE_OPTIONS)


def run(options: argparse.Namespace) -> int:
    _check_usage(options)
    if options.built_in:
        return _run_on_built_in_cases(options)
    seen = observations(source_of(options.file).rows(), metric=options.metric)
    calibrations = [
        calibrate(
            *zip(*observed, strict=True),
            threshold=_threshold(name, options),
            label_threshold=options.label_threshold,
            metric=name,
        )
        for name, observed in seen.items()
    ]
    results = [calibration.to_dict() for calibration in calibrations]
    print_result(options, results, "\n\n".join(map(repr, calibrations)))
    if options.write is not None:
        _write(options.write, calibrations)
    return 0


def _run_on_built_in_cases(options: argparse.Namespace) -> int:
    settings = {name: getattr(options, name) for name in _OF_JUDGE}
    config = Config.from_env(**{name: v for name, v in settings.items() if v is not None})
    bound = _BOUND if options.bound is None else options.bound
    prices = load_prices(config.prices)
    judge = build_plain_judge(config)

    async def check() -> list[Check]:
        return [
            await check_judge(judge, form=form, prices=prices, concurrency=config.concurrency)
            for form in _FORMS[options.reply_form or "both"]
        ]

    checks = asyncio.run(check())
    results = [
        {**each.to_dict(), "below": each.below(bound), "weak": each.weak(bound)} for each in checks
    ]
    print_result(
        options,
        {"bound": bound, "currency": prices.currency, "checks": results},
        check_table(checks, bound=bound, currency=prices.currency),
    )
    return 1 if any(each.below(bound) for each in checks) else 0


def _check_usage(options: argparse.Namespace) -> None:
    names = (*_OF_JUDGE, "reply_form", "bound")
    of_judge = [name for name in names if getattr(options, name) is not None]
    msg = ""
    if options.built_in == (options.file is not None):
        msg = "name a FILE with human labels, or --built-in to check a judge"
    elif of_judge and not options.built_in:
        msg = f"--{of_judge[0].removeprefix('reply_')} needs --built-in"
    if msg:
        raise ConfigError(msg)


def _threshold(name: str, options: argparse.Namespace) -> float | None:
    metric = METRICS[name]() if options.threshold is None and name in METRICS else None
    threshold: float | None = getattr(metric, "threshold", options.threshold)
    return threshold


def _write(path: Path, calibrations: Iterable[Calibration]) -> None:
    lines = []
    for each in calibrations:
        name, chosen = each.metric, each.fitting_threshold
        if chosen.value is None:
            say(f"no threshold for {name}: {chosen.reason}")
            continue
        key = name if _BARE.fullmatch(name) else json.dumps(name)
        remark = f"chosen on {each.labelled} labelled rows, Youden's J {each.youden}"
        lines.append(f"{key} = {chosen.value:.6g}  # {remark}\n")
    if not lines:
        raise ConfigError(f"nothing was written to {path}: no threshold fits")
    write_whole(path, _HEAD + "".join(lines), option="--write")
