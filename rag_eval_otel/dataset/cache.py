"""`ScoreCache`: scores on disk, written as they come, so that a run can be taken up again."""

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
_TO_BE_TRIED_AGAIN = frozenset({"unparsable", "judge_incomplete"})
_PUT = "INSERT OR REPLACE INTO scores VALUES (?, ?, ?)"
_GET = "SELECT judge, score FROM scores WHERE key = ?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What makes a score of one sample the same measurement as another."""

    metrics: tuple[Metric, ...]
    judge: Judge
    embedder: Embedder
    fusion: Fusion
    prompts: Prompts = BUILT_IN
    reasons: Reasons = "off"

    def definitions(self) -> dict[str, str]:
        """Return for each metric a text that differs where its scores may."""
        asked = [_identity(one) for one in (self.judge, self.embedder)]
        version = partial(version_of, fusion=self.fusion, model=asked[0], reasons=self.reasons)
        with self.prompts.in_use():
            return {
                m.name: " ".join([version(m), *asked, _release(), *_labelling(m)])
                for m in self.metrics
            }


def _labelling(metric: Metric) -> list[str]:
    """Return the threshold of a function, which may label by a rule of its own: it is asked anew.

    Scores of other metrics are labelled anew when they are read.
    """
    return [repr(metric.threshold)] if isinstance(metric, FunctionMetric) else []


def _identity(one: object) -> str:
    model, revision = getattr(one, "model", ""), getattr(one, "revision", None)
    return f"{model or type(one).__qualname__}@{revision}"


def _release() -> str:
    try:
        return version("rag-eval-otel")
    except PackageNotFoundError:  # used from a source tree
        return "source"


class ScoreCache:
    """The scores in one SQLite file, by what was measured of which sample.

    Scores that failed, or of which the judge's reply was not usable, are not kept: they are tried
    again. Every row is written at once; a process that is killed loses what it had not finished,
    nothing else.
    """

    def __init__(self, path: Path, database: sqlite3.Connection, *, measure: Measure) -> None:
        """Read and write the open ``database`` at ``path``."""
        self._path = path
        self._database = database
        self._definitions = measure.definitions()
        self._thresholds: dict[str, float | None] = {
            one.name: one.threshold
            for one in measure.metrics
            if hasattr(one, "threshold") and not isinstance(one, FunctionMetric)
        }

    def get(self, sample: Sample) -> dict[str, tuple[Score, str | None]]:
        """Return the scores there are of ``sample``, each with the judge that answered."""
        found: dict[str, tuple[Score, str | None]] = {}
        with _told(self._path):
            for name, key in self._keys(sample).items():
                row = self._database.execute(_GET, (key,)).fetchone()
                if row is not None:
                    score = score_from_dict(name, json.loads(row[1]))
                    found[name] = self._labelled(score), row[0]
        return found

    def _labelled(self, score: Score) -> Score:
        """Return ``score`` by the threshold of today: it is no part of what was measured.

        A label that was given without a threshold stays.
        """
        own = score.label is not None and score.threshold is None
        if own or score.value is None or score.name not in self._thresholds:
            return score
        threshold = self._thresholds[score.name]
        return replace(score, threshold=threshold, label=label_of(score.value, threshold))

    def put(self, sample: Sample, scores: Iterable[Score], *, judge: str | None) -> None:
        """Keep those of ``scores`` that would be the same again."""
        keys = self._keys(sample)
        rows = [(keys[s.name], judge, _text(s)) for s in scores if _is_final(s)]
        with _told(self._path), self._database:
            self._database.executemany(_PUT, rows)

    def _keys(self, sample: Sample) -> dict[str, str]:
        content = digest(sample)
        return {name: digest(content, defined) for name, defined in self._definitions.items()}


def _is_final(score: Score) -> bool:
    """Tell whether ``score`` is one that asking again, or with more repairs, would not change."""
    return score.status != "error" and score.reason not in _TO_BE_TRIED_AGAIN


def _text(score: Score) -> str:
    return json.dumps(score_to_dict(score), default=str)


@contextmanager
def open_cache(path: Path, *, measure: Measure) -> Iterator[ScoreCache]:
    """Open the cache at ``path``, making it where there is none.

    Raises `ConfigError` for a file that is no cache or is damaged.
    """
    with _told(path):
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
def _told(path: Path) -> Iterator[None]:
    """Turn what SQLite and damaged content raise into a `ConfigError`."""
    try:
        yield
    except (sqlite3.Error, ValueError, TypeError) as error:
        msg = (
            f"{path} cannot be used as a cache: {error}."
            " Remove it to start anew, or name another file"
        )
        raise ConfigError(msg) from error
