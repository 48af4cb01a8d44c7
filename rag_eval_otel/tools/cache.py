"""Store the scores of a dataset run in an SQLite file, so that an interrupted run can go on."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.evaluation import Measurement, is_final
from rag_eval_otel.log import log
from rag_eval_otel.metrics.base import label_of
from rag_eval_otel.metrics.custom import FunctionMetric
from rag_eval_otel.tools.rows import digest
from rag_eval_otel.types import Sample, Score, Usage

_OURS = 0x52414745  # "RAGE": the application id in the header of the file
_SETTINGS = (
    "PRAGMA journal_mode = WAL",  # a commit survives the process without waiting for the disk
    "PRAGMA synchronous = NORMAL",
    f"PRAGMA application_id = {_OURS}",
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
        self._is_writable = True
        self._definitions = measurement.definitions()
        self._thresholds: dict[str, float | None] = {
            metric.name: metric.threshold
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
                        threshold = self._thresholds[name]
                        label = label_of(score.value, threshold)
                        score = replace(score, threshold=threshold, label=label)
                    scores[name] = score, row[0]
        return scores

    def put(self, sample: Sample, scores: Iterable[Score], *, judge: str | None) -> None:
        """Store the ``scores`` of ``sample`` except errors, which may be gone in a later run."""
        if not self._is_writable:
            return
        keys = self._keys(sample)
        rows = [
            (
                keys[s.name],
                judge,
                json.dumps(replace(s, usage=Usage(), cost=None).as_dict(), default=str),
            )
            for s in scores
            if is_final(s)
        ]
        try:
            with _cache_errors(self._path), self._database:
                self._database.executemany(_PUT, rows)
        except ConfigError as error:
            if not isinstance(error.__cause__, sqlite3.OperationalError):
                raise
            self._is_writable = False
            log.warning(
                "the cache %s cannot be written (%s): no more scores are kept for later runs",
                self._path,
                error.__cause__,
            )

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
            (mark,) = database.execute("PRAGMA application_id").fetchone()
            (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if tables and mark != _OURS:
                raise sqlite3.DatabaseError("it is the database of another program")
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
