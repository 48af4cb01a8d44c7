"""Score every row of a dataset with the metrics that the caller chooses."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sqlite3
import sys
from collections import Counter, deque
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import ExitStack, aclosing, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial, wraps
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from rag_eval_otel.config import Config, Limit, thresholds_of
from rag_eval_otel.environment import names_in
from rag_eval_otel.errors import ConfigError, RedactionError
from rag_eval_otel.evaluation import (
    Measurement,
    MeasurementOptions,
    failed_evaluation,
    is_final,
    measurement_of,
    run_now,
)
from rag_eval_otel.judge.budget import Budget as RunBudget
from rag_eval_otel.judge.codec import clipped
from rag_eval_otel.log import log
from rag_eval_otel.metrics import MetricFunction, scale_of
from rag_eval_otel.metrics.base import Direction, Metric, direction_of, label_of
from rag_eval_otel.metrics.custom import FunctionMetric
from rag_eval_otel.runtime.guard import LimitedLog, require, silence
from rag_eval_otel.tools.cli.options import (
    measurement_for,
    print_result,
    require_another_file,
    say,
    scoring_config,
)
from rag_eval_otel.tools.compare import (
    ANY_RANGE,
    LEVEL,
    Comparison,
    Gate,
    GateCheck,
    GateResult,
    Versions,
    compare_rows,
)
from rag_eval_otel.tools.read import Dataset, check_needs, check_output, open_dataset, writing
from rag_eval_otel.tools.rows import TEXTS, Row, digest, flat_columns
from rag_eval_otel.tools.stats import MetricSummary, Summary, Totals
from rag_eval_otel.types import Evaluation, Sample, Score, Usage

_SETTINGS = (
    "PRAGMA journal_mode = WAL",  # a commit survives the process without waiting for the disk
    "PRAGMA synchronous = NORMAL",
    "CREATE TABLE IF NOT EXISTS scores (key TEXT PRIMARY KEY, judge TEXT, score TEXT NOT NULL)",
)
_PUT = "INSERT OR REPLACE INTO scores VALUES (?, ?, ?)"
_GET = "SELECT judge, score FROM scores WHERE key = ?"


class ScoreCache:
    """Scores in an SQLite file, by a digest of the sample and of the definition of the metric."""

    def __init__(
        self, path: Path, database: sqlite3.Connection, *, measurement: Measurement
    ) -> None:
        self._path = path
        self._database = database
        self._log = LimitedLog()
        self._definitions = measurement.definitions()
        self._thresholds: dict[str, tuple[float | None, Direction]] = {
            metric.name: (metric.threshold, direction_of(metric))
            for metric in measurement.metrics
            if hasattr(metric, "threshold") and not isinstance(metric, FunctionMetric)
        }

    def get(self, sample: Sample) -> dict[str, tuple[Score, str | None]]:
        """Return the stored scores of ``sample`` by metric, each with the name of its judge model.

        Pass and fail are computed anew, because this run may have other thresholds.
        """
        scores: dict[str, tuple[Score, str | None]] = {}
        with _cache_errors(self._path):
            for name, key in self._keys(sample).items():
                row = self._database.execute(_GET, (key,)).fetchone()
                if row is not None:
                    score = Score(name=name, **{**json.loads(row[1]), "usage": Usage()})
                    # A label without a threshold is that of the metric itself, and stays.
                    has_own_label = score.label is not None and score.threshold is None
                    if name in self._thresholds and score.value is not None and not has_own_label:
                        threshold, direction = self._thresholds[name]
                        label = label_of(score.value, threshold, direction)
                        score = replace(score, threshold=threshold, label=label)
                    scores[name] = score, row[0]
        return scores

    def put(self, sample: Sample, scores: Iterable[Score], *, judge: str | None) -> None:
        """Store the ``scores`` of ``sample`` except errors, which may be gone in a later run."""
        keys = self._keys(sample)
        final = (replace(s, usage=Usage(), cost=None) for s in scores if is_final(s))
        rows = [(keys[s.name], judge, json.dumps(s.as_dict(), default=str)) for s in final]
        try:
            with self._database:
                self._database.executemany(_PUT, rows)
        except sqlite3.Error as error:  # a full disk costs requests of a later run, and no score
            self._log.write("cache", "the cache %s cannot be written (%s)", self._path, error)

    def _keys(self, sample: Sample) -> dict[str, str]:
        content = digest(sample)
        return {name: digest(content, defined) for name, defined in self._definitions.items()}


@contextmanager
def open_cache(path: Path | None, *, measurement: Measurement) -> Iterator[ScoreCache | None]:
    if path is None:
        yield None
        return
    with _cache_errors(path):
        database = sqlite3.connect(path)
    with closing(database):
        with _cache_errors(path):
            for statement in _SETTINGS:
                database.execute(statement)
        yield ScoreCache(path, database, measurement=measurement)


@contextmanager
def _cache_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise ConfigError(
            f"{path} cannot be used as a cache: {error}."
            " Remove it to start anew, or name another file"
        ) from error


if TYPE_CHECKING:
    from typing_extensions import Unpack

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

_LOOKAHEAD = 4  # results per running row that may wait for an earlier, slower row
_UNANSWERED = 10  # rows in a row; a server that restarts fails fewer, as each has its retries


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DatasetResult:
    """The result of `evaluate_dataset`: the scored ``rows`` and their summary ``totals``.

    ``rows`` has the order of the dataset. ``result["faithfulness"]`` is the summary of the metric
    ``faithfulness``. The repr is a table. If a dataset has no rows, the means are None.
    """

    rows: tuple[Row, ...]
    totals: Totals

    @property
    def metrics(self) -> tuple[MetricSummary, ...]:
        """The summaries of the metrics, in the order in which the caller named the metrics."""
        return self.totals.metrics

    @property
    def usage(self) -> Usage:
        """The model requests and tokens of this run. Scores from the cache need none."""
        return self.totals.usage

    @property
    def judge(self) -> str | None:
        """The judges of the scores, joined by ", "; None if no judge answered."""
        return self.totals.judge

    def __getitem__(self, name: str) -> MetricSummary:
        """Return the summary of the metric ``name``; a `KeyError` lists the known names."""
        return self.totals[name]

    def __repr__(self) -> str:
        """Return the summaries as a table."""
        return repr(self.totals)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict for JSON, without the texts of the samples."""
        return {**self.totals.to_dict(), "rows": [row.to_dict() for row in self.rows]}

    def to_pandas(self) -> Any:
        """Return the scored rows as a pandas ``DataFrame``, one line for each row."""
        columns = list(flat_columns([metric.name for metric in self.metrics]))
        return require("pandas").DataFrame([row.to_flat() for row in self.rows], columns=columns)

    def compare(self, other: DatasetResult, *, versions: Versions = "same") -> Comparison:
        """Return the change of each metric from ``other`` (A) to this result (B)."""
        return compare_rows(self.rows, other.rows, versions=versions)

    def check(self, gate: Gate) -> GateResult:
        """Return whether this result meets each condition of ``gate``, with the reasons."""
        low = frozenset(metric.name for metric in self.metrics if metric.direction == "low")
        check = GateCheck(gate, dict.fromkeys((m.name for m in self.metrics), ANY_RANGE), low)
        for row in self.rows:
            check.add(row)
        return check.result(self.totals)


def _budget(requests: int | None, tokens: int | None) -> RunBudget | None:
    amounts = {"judge requests": requests, "tokens": tokens}
    limits = [
        Limit(amount=amount, unit=unit, seconds=math.inf)
        for unit, amount in amounts.items()
        if amount is not None
    ]
    return RunBudget(limits, estimates="off") if limits else None


async def aevaluate_dataset(
    samples: object,
    metrics: Iterable[str | Metric | MetricFunction] = ("default",),
    *,
    concurrency: int = 16,
    cache: str | PathLike[str] | None = None,
    max_requests: int | None = None,
    max_tokens: int | None = None,
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    **options: Unpack[MeasurementOptions],
) -> DatasetResult:
    """Score every row of ``samples`` with ``metrics`` and return a `DatasetResult`.

    `evaluate_dataset` blocks until all rows are scored, even in a notebook. `aevaluate_dataset`
    does the same and must be awaited. ``docs/evaluate.md`` has more about each argument.

    - ``samples``: a list of `Sample` or dict, a pandas or Hugging Face dataset, or the path of a
      ``.jsonl``, ``.csv`` or ``.parquet`` file. ``columns`` maps a field of `Sample` to a column
      with another name. ``limit`` is the number of rows to read.
    - ``metrics`` and ``options``: as for `evaluate`.
    - ``concurrency``: the number of rows that are scored at the same time.
    - ``cache``: a file for scores, also of many runs. After an interrupt, the judge is asked only
      for scores that are missing or failed.
    - ``max_requests``, ``max_tokens``: no judge request is sent after so many, retries included.

    The run stops after ten rows in a row without a response of the judge or the embedder, or with a
    refused key: the result has the rows that are done, and ``result.totals.stopped`` says why.

    Raises `ConfigError`, before a model is asked, if a row or column cannot be used, or if a metric
    needs a field that no row has.
    """
    measurement = measurement_of(metrics, **options)
    run = Run(
        measurement=replace(measurement, budget=_budget(max_requests, max_tokens)),
        concurrency=concurrency,
        cache=None if cache is None else Path(cache),
    )
    rows = list[Row]()
    totals = await run.score(open_dataset(samples, columns, limit=limit), rows.append)
    if run.stopped is not None:
        log.warning(
            "the evaluation stopped after %d rows (%s): check the judge, its key and its address,"
            " then call again; %s",
            len(rows),
            run.stopped,
            f"{cache} keeps the scores" if cache else "with cache=FILE, no row is scored twice",
        )
    return DatasetResult(rows=tuple(rows), totals=totals)


def _blocking(function: Callable[P, Coroutine[Any, Any, T]], name: str) -> Callable[P, T]:
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_now(lambda: function(*args, **kwargs))

    call.__name__ = call.__qualname__ = name
    return call


evaluate_dataset = _blocking(aevaluate_dataset, "evaluate_dataset")


@dataclass(kw_only=True)
class Run:
    """The scoring of one dataset. ``stopped`` says why, if the run ended before the last row."""

    measurement: Measurement
    concurrency: int = 16
    cache: Path | None = None
    stopped: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.concurrency, bool) or self.concurrency < 1:
            raise ConfigError(f"concurrency must be 1 or more, not {self.concurrency!r}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(metric.name for metric in self.measurement.metrics)

    @property
    def low(self) -> frozenset[str]:
        metrics = self.measurement.metrics
        return frozenset(each.name for each in metrics if direction_of(each) == "low")

    async def score(self, dataset: Dataset, *sinks: Callable[[Row], object]) -> Totals:
        """Score ``dataset``, call each of ``sinks`` with each row, and return the summary."""
        summary = Summary(self.names, self.low)
        async with aclosing(self.rows(dataset)) as rows:
            async for row in rows:
                summary.add(row.evaluation)
                for sink in sinks:
                    sink(row)
        return summary.totals(stopped=self.stopped)

    async def rows(self, dataset: Dataset) -> AsyncGenerator[Row, None]:
        """Yield the rows of ``dataset`` with their scores, in order, until the run is stopped."""
        check_needs(self.measurement.metrics, dataset)
        done = failed = 0
        with open_cache(self.cache, measurement=self.measurement) as cache:
            score = partial(_score, measurement=self.measurement, cache=cache, stop=_Stop())
            results = in_order(dataset.rows(), score, at_once=self.concurrency)
            async with aclosing(results) as rows:
                try:
                    async for row in rows:
                        yield row
                        done, failed = done + 1, failed + bool(row.failed)
                        show_progress(done, dataset.count, failed)
                except _StoppedError as error:
                    self.stopped = str(error)


async def _score(
    row: Row, *, measurement: Measurement, cache: ScoreCache | None, stop: _Stop
) -> Row:
    metrics = measurement.metrics
    try:
        whole = measurement.redactor.sample(row.sample)
    except RedactionError:
        failed = failed_evaluation(metrics, "redaction_error")
        return replace(row, sample=Sample(), evaluation=failed)
    sample, cut = clipped(whole, measurement.max_text_chars)
    silence()  # each row has its own task, and so its own context
    cached = cache.get(sample) if cache else {}
    missing = tuple(metric for metric in metrics if metric.name not in cached)
    fresh = Evaluation(scores=())
    if missing:
        part = replace(measurement, metrics=missing, label_metrics=None) if cached else measurement
        fresh = await part.of_prepared(sample, cut)
        if cache:
            cache.put(sample, fresh.scores, judge=fresh.judge)
    stop.count(fresh)
    scores = {name: score for name, (score, _) in cached.items()}
    scores |= {score.name: score for score in fresh.scores}
    judges = [fresh.judge, *(judge for _, judge in cached.values())]
    evaluation = replace(
        fresh,
        scores=tuple(scores[metric.name] for metric in metrics),
        judge=next((judge for judge in judges if judge is not None), None),
        label_metrics=measurement.labelling,
    )
    return replace(row, sample=whole, evaluation=evaluation)


class _StoppedError(Exception):
    """The run ends, because no further row would be scored."""


class _Stop:
    """Stops a run after ten rows in a row without a response or with a refused key."""

    def __init__(self) -> None:
        self._unanswered = 0  # rows in a row

    def count(self, evaluation: Evaluation) -> None:
        """Count rows without a response; raise `_StoppedError` at the tenth in succession."""
        # Without a request to a model, the exception is that of a metric of the user.
        has_asked = bool(evaluation.usage.judge_requests or evaluation.usage.embedding_requests)
        unanswered = [
            score
            for score in evaluation.scores
            if score.reason == "unauthorized"
            or (has_asked and score.reason in {"transport", "timeout"})
            if score.detail.get("http_status") in {None, 401, 403}
        ]
        if evaluation.judge is not None or (has_asked and not unanswered):
            self._unanswered = 0
        elif unanswered:
            self._unanswered += 1
        if self._unanswered >= _UNANSWERED and unanswered:
            cause = unanswered[0].detail.get("error") or unanswered[0].reason
            raise _StoppedError(f"{_UNANSWERED} rows in a row: {unanswered[0].name}: {cause}")


async def in_order(
    items: Iterable[T], work: Callable[[T], Awaitable[R]], *, at_once: int
) -> AsyncGenerator[R, None]:
    """Call ``work`` for each of ``items`` and yield the results in the order of ``items``.

    At most ``at_once`` calls run at the same time, and at most four times as many results wait for
    a slower one. When the generator is closed or a call fails, the running calls are cancelled.
    """
    running: deque[asyncio.Task[R]] = deque()
    semaphore = asyncio.Semaphore(at_once)

    async def limited(item: T) -> R:
        async with semaphore:
            return await work(item)

    try:
        for item in items:
            running.append(asyncio.create_task(limited(item)))
            await asyncio.sleep(0)  # the calls that have begun go on: the first requests leave
            if len(running) >= at_once * _LOOKAHEAD:
                yield await running.popleft()
        while running:
            yield await running.popleft()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def show_progress(done: int, total: int, failed: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        sys.stderr.write(f"\revaluating: {done}/{total} rows, {failed} with errors{end}")
        sys.stderr.flush()


_GATE_FAILED = 3


def run(options: argparse.Namespace) -> int:
    cache = options.cache
    if cache is None and options.output is not None:
        cache = options.output.with_name(f"{options.output.name}.cache")
    try:
        config = scoring_config(options)
        if options.output is not None:
            check_output(options.output)
            read = [Path(options.file), *filter(None, [options.baseline])]
            require_another_file(options.output, *read, option="--output")
        scoring = _run(config, options, cache)
        check = _gate_check(options, scoring)
        dataset = open_dataset(options.file, options.columns, limit=options.limit)
        with ExitStack() as stack:
            sinks: list[Callable[[Row], object]] = [] if check is None else [check.add]
            if options.output is not None:
                texts = TEXTS if options.texts == "on" else ()
                further = (*texts, *dataset.origin)
                add = writing(options.output, scoring.names, further=further)
                sinks.append(stack.enter_context(add))
            totals = asyncio.run(scoring.score(dataset, *sinks))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_kept(cache)) from None
    is_complete = not (totals.failed or totals.unscored or totals.stopped)
    result = None if check is None else check.result(totals)
    gate = {} if result is None else {"gate": result.to_dict()}
    text = repr(totals) + (f"\n\n{result!r}" if result else "")
    print_result(options, totals.to_dict() | gate, text)
    # After the gate: if its baseline is refused, the next run need not ask the judge again.
    if cache is not None and options.cache is None and is_complete:
        cache.unlink(missing_ok=True)
    _remark(options.file, totals, cache)
    if not is_complete:
        return 1
    return 0 if result is None or result.passed else _GATE_FAILED


def _remark(file: str, totals: Totals, cache: Path | None) -> None:
    remarks = [] if totals.rows else [f"{file} has no rows: nothing was scored"]
    if totals.stopped:
        remarks.append(
            f"stopped after {totals.rows} rows ({totals.stopped}); check the judge, its key and its"
            f" address; {_kept(cache)}"
        )
    elif totals.failed:
        remarks.append(f"{totals.failed} rows have errors instead of scores; {_kept(cache)}")
    if totals.unscored:
        reasons = sum((Counter(metric.reasons) for metric in totals.metrics), Counter[str]())
        why = ", ".join(reason for reason, _ in reasons.most_common(2))
        rows = "1 row" if totals.unscored == 1 else f"{totals.unscored} rows"
        remarks.append(
            f"{rows} without a score: no metric can use what the judge says ({why}); {_kept(cache)}"
        )
    for remark in remarks:
        say(remark)


def _kept(cache: Path | None) -> str:
    if cache is None:
        return "nothing was kept: name an --output or a --cache"
    return f"finished scores are kept in {cache}: run the same command again to continue"


def _gate_check(options: argparse.Namespace, scoring: Run) -> GateCheck | None:
    for name in ("fail_under", "fail_over", "no_worse"):
        option, given = f"--{name.replace('_', '-')}", getattr(options, name)
        if not all(map(names_in, given)):  # a variable that is not set: the gate would always pass
            raise ConfigError(f"{option} is empty: name a metric, as in {option} faithfulness=0.8")
    if not options.no_worse and (options.level is not None or options.versions is not None):
        raise ConfigError("--level and --versions need --no-worse METRIC and --baseline FILE")
    # A metric without a drop gets the drop 0.
    drops = [
        item if "=" in item else f"{item}=0" for text in options.no_worse for item in names_in(text)
    ]
    gate = Gate(
        means=thresholds_of(",".join(options.fail_under), where="--fail-under"),
        most=thresholds_of(",".join(options.fail_over), where="--fail-over"),
        pass_rate=options.fail_under_pass_rate,
        no_worse=thresholds_of(",".join(drops), where="--no-worse"),
        baseline=options.baseline,
        versions=options.versions or "same",
        level=LEVEL if options.level is None else options.level,
    )
    if not (gate.means or gate.most or gate.no_worse) and gate.pass_rate is None:
        return None
    ranges = {each.name: scale_of(each) for each in scoring.measurement.metrics}
    return GateCheck(gate, ranges, scoring.low)


def _run(config: Config, options: argparse.Namespace, cache: Path | None) -> Run:
    budget = _budget(options.max_requests, options.max_tokens)
    return Run(
        measurement=measurement_for(config, repairs=options.repairs, budget=budget),
        concurrency=config.concurrency,
        cache=cache,
    )
