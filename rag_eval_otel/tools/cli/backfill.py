"""Score the turns that a backend has stored."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.evaluation import Measurement
from rag_eval_otel.judge.codec import compose
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.judge.tasks import Reply, Task
from rag_eval_otel.judge.usage import is_offline
from rag_eval_otel.tools import collect
from rag_eval_otel.tools.cli.options import (
    measurement_for,
    print_result,
    say,
    scoring_config,
)
from rag_eval_otel.tools.dataset import Run
from rag_eval_otel.tools.read import Dataset, open_dataset, writing_samples
from rag_eval_otel.tools.stats import Summary, Totals
from rag_eval_otel.types import COUNTS, Replies, Usage

_BATCH: Final = 100  # turns for whose scores the backend is asked, or that are written, at once
_TRIED: Final = 20  # turns by which the usage of all turns is estimated
_AGAIN: Final = "run the same command again to continue"


def run(options: argparse.Namespace) -> int:
    config = scoring_config(options)
    selection = collect.Selection.of(options, config)
    source = collect.open_source(options.source, options.since, options.until)
    plan = collect.Plan.of(measurement_for(config), options.sample_rate)
    try:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "turns.jsonl"
            with writing_samples(path) as write:
                for turn in _turns(source, selection, plan):
                    write(turn.to_dict())
            dataset = open_dataset(path)
            if not dataset.count:
                return 0
            _say_price(plan.measurement, dataset)
            if not (options.yes or _is_confirmed()):
                return 2
            scoring = Run(measurement=plan.measurement, concurrency=config.concurrency)
            source.start(plan)
            totals = _fill(scoring, dataset, source)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_AGAIN) from None
    except collect.StoppedError as error:
        say(f"{error}: {_AGAIN}")
        return 1
    print_result(options, totals.to_dict(), repr(totals))
    lost = source.lost.total()
    remarks = [
        *([f"stopped ({totals.stopped})"] if totals.stopped else []),
        *([f"{totals.failed} turns have errors instead of scores"] if totals.failed else []),
        *([f"{lost} scores could not be written"] if lost else []),
    ]
    for remark in remarks:
        say(f"{remark}: {_AGAIN}")
    return 1 if remarks else 0


def _turns(
    source: collect.Source, selection: collect.Selection, plan: collect.Plan
) -> Iterator[collect.CollectedTurn]:
    """Yield the selected turns that lack scores in the backend; print their number at the end."""
    counts, left = collect.Collected(), 0
    turns = collect.collect(source.messages(), selection, counts)
    while batch := list(islice(turns, _BATCH)):
        todo = source.left(batch, plan)
        left += len(todo)
        yield from todo
    say(f"{counts}; {counts.samples - left:,} turns have their scores, {left:,} are to be scored")


def _say_price(measurement: Measurement, dataset: Dataset) -> None:
    usage, model = asyncio.run(_estimated(measurement, dataset)), measurement.judge.model
    cost = measurement.prices.cost(model, usage) if usage.tokens else 0.0
    price = "price not known" if cost is None else f"{cost:.2f} {measurement.prices.currency}"
    say(
        f"{dataset.count:,} turns with the judge {model}: about {usage.judge_requests:,} requests,"
        f" {usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens, {price}"
    )


def _is_confirmed() -> bool:
    if not sys.stdin.isatty():
        say("begin with --yes")
        return False
    sys.stderr.write("Begin? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _fill(scoring: Run, dataset: Dataset, source: collect.Source) -> Totals:
    """Score ``dataset``, and write the scores to ``source``."""
    summary = Summary(scoring.names, scoring.low)

    async def fill() -> None:
        async with aclosing(scoring.rows(dataset)) as rows:
            async for row in rows:
                summary.add(row.evaluation)
                source.write(row)
                if row.index % _BATCH == _BATCH - 1:
                    await asyncio.to_thread(source.flush)

    try:
        try:
            asyncio.run(fill())
        finally:  # also after an interrupt: what is scored is written
            source.flush()
    finally:
        source.close()
    return summary.totals(stopped=scoring.stopped)


@dataclass
class _DryJudge:
    """Answers offline, and counts the requests and tokens that a model would take."""

    model: str
    usage: Usage = field(default_factory=Usage)
    is_offline = True

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        request, replies = compose(tasks), await LexicalJudge().reply(tasks)
        said = [each.model_dump_json() for each in replies.parts if isinstance(each, Reply)]
        self.usage += Usage(
            judge_requests=1,
            prompt_tokens=(len(request.system) + len(request.user_with_schema)) // 4,
            completion_tokens=sum(map(len, said)) // 4,
        )
        return replies


async def _estimated(measurement: Measurement, dataset: Dataset) -> Usage:
    """Estimate the judge's usage for ``dataset`` from 20 turns: real prompts, offline replies."""
    judge = _DryJudge(measurement.judge.model)
    dry = replace(measurement, judge=judge, embedder=HashingEmbedder(), budget=None)
    tried = list(islice(dataset.samples(), 0, None, -(-dataset.count // _TRIED)))
    for sample in () if is_offline(measurement.judge) else tried:
        await dry.of(sample)
    factor = dataset.count / len(tried)
    return Usage(**{name: round(getattr(judge.usage, name) * factor) for name in COUNTS})
