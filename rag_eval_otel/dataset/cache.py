"""`ScoreCache`: scores on disk, written as each row ends, so that a run can be continued."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.evaluation import version_of
from rag_eval_otel.judge.prompting import BUILT_IN, Prompts
from rag_eval_otel.judge.tasks import Judge
from rag_eval_otel.metrics.function import FunctionMetric
from rag_eval_otel.metrics.outcome import Metric, label_of
from rag_eval_otel.results.rows import digest, score_from_dict, score_to_dict
from rag_eval_otel.types import Embedder, Fusion, Reasons, Sample, Score

_OURS = 0x52414745  # "RAGE": the application id in the header of the file
_CREATE = (
    "CREATE TABLE IF NOT EXISTS scores"
    " (key TEXT PRIMARY KEY, judge TEXT, score TEXT NOT NULL) WITHOUT ROWID"
)
_SETTINGS = (
    "PRAGMA journal_mode = WAL",  # a commit survives the process without waiting for the disk
    "PRAGMA synchronous = NORMAL",
    f"PRAGMA application_id = {_OURS}",
    _CREATE,
)
_RETRIED = frozenset({"unparsable", "judge_incomplete"})
_PUT = "INSERT OR REPLACE INTO scores VALUES (?, ?, ?)"
_GET = "SELECT judge, score FROM scores WHERE key = ?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """The part of a run that decides what a score of a sample will be."""

    metrics: tuple[Metric, ...]
    judge: Judge
    embedder: Embedder
    fusion: Fusion
    prompts: Prompts = BUILT_IN
    reasons: Reasons = "off"

    def definitions(self) -> dict[str, str]:
        """Return for each metric a text that is equal only if its scores are comparable."""
        models = [_identity(model) for model in (self.judge, self.embedder)]
        version = partial(version_of, fusion=self.fusion, model=models[0], reasons=self.reasons)
        with self.prompts.in_use():
            return {
                m.name: " ".join([version(m), *models, _release(), *_labelling(m)])
                for m in self.metrics
            }


def _labelling(metric: Metric) -> list[str]:
    """Return the threshold of a function metric, which may label its scores itself.

    Scores of other metrics get their label when they are read from the cache.
    """
    return [repr(metric.threshold)] if isinstance(metric, FunctionMetric) else []


def _identity(model: object) -> str:
    name, revision = getattr(model, "model", ""), getattr(model, "revision", None)
    return f"{name or type(model).__qualname__}@{revision}"


def _release() -> str:
    try:
        return version("rag-eval-otel")
    except PackageNotFoundError:  # used from a source tree
        return "source"


class ScoreCache:
    """Scores in an SQLite file, by the content of the sample and the definition of the metric.

    Failed scores, and those whose judge reply was not usable, are not kept, so that they are tried
    again. Each row is committed when it ends: a killed process loses the rows under way only.
    """

    def __init__(self, path: Path, database: sqlite3.Connection, *, measure: Measure) -> None:
        self._path = path
        self._database = database
        self._definitions = measure.definitions()
        self._thresholds: dict[str, float | None] = {
            metric.name: metric.threshold
            for metric in measure.metrics
            if hasattr(metric, "threshold") and not isinstance(metric, FunctionMetric)
        }

    def get(self, sample: Sample) -> dict[str, tuple[Score, str | None]]:
        """Return the known scores of ``sample``, each with the judge model that answered."""
        found: dict[str, tuple[Score, str | None]] = {}
        with _cache_errors(self._path):
            for name, key in self._keys(sample).items():
                row = self._database.execute(_GET, (key,)).fetchone()
                if row is not None:
                    score = score_from_dict(name, json.loads(row[1]))
                    found[name] = self._labelled(score), row[0]
        return found

    def _labelled(self, score: Score) -> Score:
        """Return ``score`` with the label of its metric's present threshold.

        A label without a threshold was given by the metric itself, and stays.
        """
        has_own_label = score.label is not None and score.threshold is None
        if has_own_label or score.value is None or score.name not in self._thresholds:
            return score
        threshold = self._thresholds[score.name]
        return replace(score, threshold=threshold, label=label_of(score.value, threshold))

    def put(self, sample: Sample, scores: Iterable[Score], *, judge: str | None) -> None:
        """Keep the ``scores`` that would be the same if they were asked for again."""
        keys = self._keys(sample)
        rows = [
            (keys[s.name], judge, json.dumps(score_to_dict(s), default=str))
            for s in scores
            if _is_final(s)
        ]
        with _cache_errors(self._path), self._database:
            self._database.executemany(_PUT, rows)

    def _keys(self, sample: Sample) -> dict[str, str]:
        content = digest(sample)
        return {name: digest(content, defined) for name, defined in self._definitions.items()}


def _is_final(score: Score) -> bool:
    """Return True if asking again, or with more repairs, would not change ``score``."""
    return score.status != "error" and score.reason not in _RETRIED


@contextmanager
def open_cache(path: Path | None, *, measure: Measure) -> Iterator[ScoreCache | None]:
    """Open or create the cache at ``path``; without a path there is none.

    Raises `ConfigError` for a file that is no cache or is damaged.
    """
    if path is None:
        yield None
        return
    with _cache_errors(path):
        database = _connect(path)
    with closing(database):
        yield ScoreCache(path, database, measure=measure)


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    try:
        _require_ours(database)
        for statement in _SETTINGS:
            database.execute(statement)
    except sqlite3.Error:
        database.close()
        raise
    return database


def _require_ours(database: sqlite3.Connection) -> None:
    (mark,) = database.execute("PRAGMA application_id").fetchone()
    (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and mark != _OURS:
        msg = "it is the database of another program"
        raise sqlite3.DatabaseError(msg)


@contextmanager
def _cache_errors(path: Path) -> Iterator[None]:
    """Raise a `ConfigError` for any error of SQLite, or of damaged content."""
    try:
        yield
    except (sqlite3.Error, ValueError, TypeError) as error:
        msg = (
            f"{path} cannot be used as a cache: {error}."
            " Remove it to start anew, or name another file"
        )
        raise ConfigError(msg) from error
