"""Score the turns that a backend has stored."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from rag_eval_otel.config import Config
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.evaluation import Measurement
from rag_eval_otel.live.scorer import sampling_point
from rag_eval_otel.tools.backfill import (
    Progress,
    Source,
    StoppedError,
    ToBackend,
    ToFile,
    estimated,
    fill,
    open_source,
)
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
    backend, source = open_source(options.source, options.output)
    config = scoring_config(options)
    measurement = measurement_for(config)
    progress = Progress(measurement)
    try:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "turns.jsonl"
            with writing_samples(path) as write:
                for turn in _turns(options, config, source, progress):
                    write(turn.to_dict())
            dataset = open_dataset(path)
            if not dataset.count:
                return 0
            _write_estimate(measurement, dataset)
            if not (options.yes or _is_confirmed()):
                return 2
            target: ToBackend | ToFile = (
                ToBackend(backend, progress.mark, measurement, options.sample_rate)
                if backend
                else ToFile(options.output, progress.mark)
            )
            scoring = Run(measurement=measurement, concurrency=config.concurrency)
            return _fill(options, scoring, dataset, target)
    except KeyboardInterrupt:
        _say("interrupted; run the same command again to continue")
        return _INTERRUPTED


def _turns(
    options: argparse.Namespace, config: Config, source: Source, progress: Progress
) -> Iterator[CollectedTurn]:
    """Yield the turns of the period and the sample that do not have their scores."""
    since, until = options.since, options.until
    first = since.timestamp() if since else 0.0
    last = until.timestamp() if until and options.output else float("inf")
    selection = Selection(
        contexts_from_prompt=config.contexts_from_prompt, max_text_chars=config.max_text_chars
    )
    counts, done, left = Collected(), 0, 0
    turns = (
        turn
        for turn in collect(source.messages(since, until), selection, counts)
        if first <= turn.time < last
        and sampling_point(int(turn.trace_id, 16)) < options.sample_rate
    )
    while batch := list(islice(turns, _ASKED)):
        scored = progress.done(source, batch)
        todo = [turn for turn in batch if (turn.trace_id, turn.span_id) not in scored]
        done, left = done + len(batch) - len(todo), left + len(todo)
        yield from todo
    _say(f"{counts}; {done:,} turns have their scores, {left:,} are to be scored")


def _write_estimate(measurement: Measurement, dataset: Dataset) -> None:
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


def _fill(
    options: argparse.Namespace, scoring: Run, dataset: Dataset, target: ToBackend | ToFile
) -> int:
    try:
        try:
            totals = asyncio.run(fill(scoring, dataset, target))
        finally:  # also after an interrupt: what is scored is written
            target.flush()
    except StoppedError as error:
        _say(str(error))
        return 1
    finally:
        target.close()
    print_result(options, totals.to_dict(), repr(totals))
    remarks = [
        *([f"stopped ({totals.stopped}): check the judge"] if totals.stopped else []),
        *([f"{totals.failed} turns have errors instead of scores"] if totals.failed else []),
        *([f"{target.lost} scores could not be written"] if target.lost else []),
    ]
    for remark in remarks:
        _say(f"{remark}; run the same command again to continue")
    return 1 if remarks else 0


def _say(text: str) -> None:
    sys.stderr.write(f"rag-eval-otel: {text}\n")
