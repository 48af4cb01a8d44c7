"""Score the turns that a backend has stored."""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from rag_eval_otel.config import Config
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.evaluation import Measurement
from rag_eval_otel.live.scorer import sampling_point
from rag_eval_otel.tools.backfill import Plan, Source, StoppedError, estimated, fill, open_source
from rag_eval_otel.tools.cli.options import (
    AS_JSON,
    Options,
    add_all,
    add_scoring_options,
    check_period,
    measurement_for,
    moment_of,
    print_result,
    scoring_config,
)
from rag_eval_otel.tools.collect import Collected, CollectedTurn, Selection, collect
from rag_eval_otel.tools.dataset import Run
from rag_eval_otel.tools.files import writing_samples
from rag_eval_otel.tools.read import Dataset, open_dataset
from rag_eval_otel.untrusted import visible

DESCRIPTION = """\
Scores the turns in stored traces as live evaluation does, and writes the scores back as objects of
the backend: annotations of Phoenix, feedback of MLflow, scores of Langfuse. SOURCE is

  phoenix:PROJECT      PHOENIX_ENDPOINT, PHOENIX_API_KEY
  mlflow:EXPERIMENT    MLFLOW_TRACKING_URI, MLFLOW_TRACKING_TOKEN
  langfuse             LANGFUSE_BASE_URL, LANGFUSE_PUBLIC_KEY, LANGFUSE_SECRET_KEY
  FILE...              of a collector's file exporter; needs --output

Before it begins, it prints the number of turns, and about how many requests, tokens and how much
money they take, and asks on a terminal. Without a terminal, it begins only with --yes.

After an interrupt or a kill, run the same command again: turns that have their scores, of the same
metrics, prompts and judge, are neither scored nor written again, whoever has written them.

Exit status: 0 each turn has its scores; 1 a turn has an error instead of a score, or a score could
not be written; 2 misuse, or not begun; 130 interrupted.
"""
_INTERRUPTED = 130
_ASKED = 100  # turns for whose scores the backend is asked at once
_OPTIONS: Options = {
    "--since TIME": ("turns from this time on: 7d, 12h or 2026-11-22T09:00Z", {"type": moment_of}),
    "--until TIME": ("only turns before this time", {"type": moment_of}),
    "--sample-rate SHARE": (
        "score this share of the traces, those that live evaluation chooses (default: 1)",
        {"type": float, "default": 1.0},
    ),
    "-o --output FILE": ("add the scores of files to this file: .jsonl", {"type": Path}),
    "--yes": ("begin without asking", {"action": "store_true"}),
    **AS_JSON,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", nargs="+", metavar="SOURCE", help="as above")
    add_all(parser, _OPTIONS)
    add_scoring_options(parser)


def run(options: argparse.Namespace) -> int:
    check_period(options)
    if not 0 < options.sample_rate <= 1:
        raise ConfigError("--sample-rate must be above 0 and at most 1")
    source = open_source(options.source, options.output, options.since, options.until)
    config = scoring_config(options)
    plan = Plan.of(measurement_for(config), options.sample_rate)
    try:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "turns.jsonl"
            with writing_samples(path) as write:
                for turn in _turns(config, source, plan):
                    write(turn.to_dict())
            dataset = open_dataset(path)
            if not dataset.count:
                return 0
            _say_price(plan.measurement, dataset)
            if not (options.yes or _is_confirmed()):
                return 2
            scoring = Run(measurement=plan.measurement, concurrency=config.concurrency)
            source.start(plan)
            return _fill(options, scoring, dataset, source)
    except KeyboardInterrupt:
        _say("interrupted: run the same command again to continue")
        return _INTERRUPTED


def _turns(config: Config, source: Source, plan: Plan) -> Iterator[CollectedTurn]:
    """Yield the turns of the period and the sample that do not have their scores."""
    first = source.since.timestamp() if source.since else 0.0
    last = source.until.timestamp() if source.until else math.inf
    selection = Selection(
        contexts_from_prompt=config.contexts_from_prompt, max_text_chars=config.max_text_chars
    )
    counts, chosen, left = Collected(), 0, 0
    turns = (
        turn
        for turn in collect(source.messages(), selection, counts)
        if first <= turn.time < last and sampling_point(int(turn.trace_id, 16)) < plan.share
    )
    while batch := list(islice(turns, _ASKED)):
        todo = source.left(batch, plan)
        chosen, left = chosen + len(batch), left + len(todo)
        yield from todo
    _say(f"{counts}; {chosen - left:,} turns have their scores, {left:,} are to be scored")


def _say_price(measurement: Measurement, dataset: Dataset) -> None:
    usage, model = asyncio.run(estimated(measurement, dataset)), measurement.judge.model
    cost = measurement.prices.cost(model, usage) if usage.tokens else 0.0
    price = "price not known" if cost is None else f"{cost:.2f} {measurement.prices.currency}"
    _say(
        f"{dataset.count:,} turns with the judge {model}: about {usage.judge_requests:,} requests,"
        f" {usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens, {price}"
    )


def _is_confirmed() -> bool:
    if not sys.stdin.isatty():
        _say("begin with --yes")
        return False
    sys.stderr.write("Begin? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _fill(options: argparse.Namespace, scoring: Run, dataset: Dataset, source: Source) -> int:
    try:
        try:
            totals = asyncio.run(fill(scoring, dataset, source))
        finally:  # also after an interrupt: what is scored is written
            source.flush()
    except StoppedError as error:
        _say(f"{error}: run the same command again to continue")
        return 1
    finally:
        source.close()
    print_result(options, totals.to_dict(), repr(totals))
    remarks = [
        *([f"stopped ({totals.stopped})"] if totals.stopped else []),
        *([f"{totals.failed} turns have errors instead of scores"] if totals.failed else []),
        *([f"{source.lost} scores could not be written"] if source.lost else []),
    ]
    for remark in remarks:
        _say(f"{remark}: run the same command again to continue")
    return 1 if remarks else 0


def _say(text: str) -> None:
    sys.stderr.write(f"rag-eval-otel: {visible(text)}\n")
