"""`evaluate_dataset`: every row of a dataset scored, and a `Report` on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import aclosing, closing
from os import PathLike
from pathlib import Path
from typing import get_args

from rag_eval_otel.dataset.blocking import blocking
from rag_eval_otel.dataset.budget import Budget
from rag_eval_otel.dataset.progress import Progress, progress_bar
from rag_eval_otel.dataset.read import open_dataset
from rag_eval_otel.dataset.report import Report
from rag_eval_otel.dataset.stream import Plan, scored_rows
from rag_eval_otel.dataset.summary import Summary
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.evaluation import chosen_labelling
from rag_eval_otel.judge.models import (
    AnyEmbedder,
    AnyJudge,
    AnyPrompts,
    chosen_models,
    chosen_prompts,
)
from rag_eval_otel.metrics import MetricFunction, resolve_metrics, with_thresholds
from rag_eval_otel.metrics.outcome import Metric
from rag_eval_otel.results.rows import Row
from rag_eval_otel.thresholds import thresholds_of
from rag_eval_otel.types import Fusion, Reasons


async def aevaluate_dataset(
    samples: object,
    metrics: Iterable[str | Metric | MetricFunction] = ("default",),
    *,
    judge: AnyJudge = None,
    embedder: AnyEmbedder = None,
    thresholds: Mapping[str, float] | str | PathLike[str] | None = None,
    label_metrics: Iterable[str] = (),
    fusion: Fusion = "on",
    repairs: int = 1,
    concurrency: int = 16,
    timeout: float | None = None,
    progress: Progress = "auto",
    raise_on_failure: bool = False,
    cache: str | PathLike[str] | None = None,
    budget: Budget | None = None,
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    prompts: AnyPrompts = None,
    explanations: Reasons = "off",
) -> Report:
    """Score every row of ``samples`` with ``metrics`` and return the `Report`.

    `evaluate_dataset` blocks until it is done; it may be called where an event loop is running, as
    in a notebook. `aevaluate_dataset` is the same, to be awaited.

    ``samples``: a list of `Sample` or dict, a pandas or Hugging Face dataset, a dict of columns, or
    the path of a ``.jsonl``, ``.csv`` or ``.parquet`` file. The columns of ragas, LlamaIndex and
    Haystack are recognised; ``columns`` maps a field of `Sample` to a column called otherwise, and
    texts in further columns become ``Sample.extra``. ``limit`` takes the first rows only.

    ``thresholds`` says from which score a metric passes, by its name: a dict, or a ``.toml`` file
    as `rag-eval-otel calibrate` writes it. ``label_metrics`` names those that the label of a row
    goes by; by default all, or those that the judge can tell good from bad by.

    ``metrics``, ``judge``, ``embedder``, ``fusion``, ``repairs``, ``explanations``, ``prompts``: as
    for `evaluate`. At most ``concurrency`` rows are under way at once; one that takes more than
    ``timeout`` seconds keeps what it has, its other scores are errors.

    ``cache`` is a file in which scores are kept as they come: a run that was interrupted or killed,
    called again, asks only for what is missing or failed. Scores are found again by the content of
    the sample and by metric, prompts, judge, embedder and fusion, so that one file may serve many
    runs. (A metric of your own is known by its class's name and its dataclass fields: after a
    change of its code, take another file.) ``budget`` limits what is asked of the judge: scores
    beyond it are errors, reason ``budget``.

    ``progress``: a bar on stderr; ``auto`` shows it where stderr is a terminal.
    ``raise_on_failure``: raise `FailedRowError` at the first row with a score that is an error,
    instead of going on with the others.

    Raises `ConfigError`, before anything is asked, for a row or column that cannot be used, and for
    metrics that need what no row has.
    """
    chosen_judge, chosen_embedder = chosen_models(judge, embedder)
    chosen = with_thresholds(
        resolve_metrics(metrics), thresholds_of(thresholds or {}, where="thresholds")
    )
    plan = Plan(
        metrics=chosen,
        label_metrics=chosen_labelling(chosen, tuple(label_metrics)),
        judge=chosen_judge,
        embedder=chosen_embedder,
        fusion=fusion,
        repairs=repairs,
        concurrency=concurrency,
        timeout=timeout,
        raise_on_failure=raise_on_failure,
        cache=None if cache is None else Path(cache),
        budget=budget,
        prompts=chosen_prompts(prompts),
        explanations=explanations,
    )
    if progress not in get_args(Progress):
        msg = f"progress must be one of {', '.join(get_args(Progress))}, not {progress!r}"
        raise ConfigError(msg)
    dataset = open_dataset(samples, columns, limit=limit)
    rows: list[Row] = []
    with closing(Summary(plan.names)) as summary:
        with progress_bar(dataset.count, progress) as advance:
            async with aclosing(scored_rows(dataset, plan)) as scored:
                async for row in scored:
                    summary.add(row.evaluation)
                    rows.append(row)
                    advance()
        return Report(rows=tuple(rows), totals=summary.totals())


evaluate_dataset = blocking(aevaluate_dataset, "evaluate_dataset")
