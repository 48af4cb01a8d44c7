"""The cache of scores: continued runs, and files that cannot be used."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from offline import EMBEDDER, JUDGED, Reads, asked_rows, judge, numbers
from rag_eval_otel.errors import ConfigError, JudgeTransportError
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.tools.dataset import DatasetResult, evaluate_dataset


def evaluated(samples: object, *metrics: Any, **options: Any) -> DatasetResult:
    given = {"judge": judge(), "embedder": EMBEDDER, **options}
    return evaluate_dataset(samples, metrics or (Reads(),), **given)


def broken_at(count: int) -> Callable[[Task[Any]], object]:
    answers = iter([{"passing": True, "reason": "so it is"}] * count)
    return lambda task: next(answers, JudgeTransportError("scripted"))


def test_interrupted_run_is_continued(tmp_path: Any) -> None:
    """Known scores are not asked again, failed ones are; the result is that of one run."""
    cache = tmp_path / "scores.cache"
    first = evaluated(asked_rows(5), JUDGED, judge=judge(broken_at(2)), cache=cache, concurrency=1)
    assert (first[JUDGED.name].ok, first[JUDGED.name].error) == (2, 3)
    asked = judge()
    again = evaluated(asked_rows(5), JUDGED, judge=asked, cache=cache)
    assert len(asked.requests) == again.usage.judge_requests == 3
    whole = evaluated(asked_rows(5), JUDGED)
    assert again.to_dict()["rows"] == whole.to_dict()["rows"]
    assert again.judge == "fake"


def test_unusable_reply_is_asked_again(tmp_path: Any) -> None:
    """Its score is not kept."""
    cache = tmp_path / "scores.cache"
    first = evaluated(asked_rows(2), JUDGED, judge=judge(lambda task: None), cache=cache)
    assert first[JUDGED.name].reasons == {"unparsable": 2}
    assert "the first: UnparsableReplyError" in repr(first)
    again = evaluated(asked_rows(2), JUDGED, cache=cache)
    assert (again[JUDGED.name].ok, again[JUDGED.name].first_failure) == (2, None)


def test_only_missing_scores_are_measured(tmp_path: Any) -> None:
    """Added rows and metrics are asked for, in any order of rows."""
    cache = str(tmp_path / "scores.cache")
    rows = [{**row, "answer": "1"} for row in asked_rows(3)]
    evaluated(rows, JUDGED, cache=cache)
    asked = judge()
    result = evaluated(
        [*reversed(rows), *asked_rows(4)[3:]], Reads(), JUDGED, judge=asked, cache=cache
    )
    assert len(asked.requests) == 1
    assert [score.name for score in result.rows[0].scores] == ["reads", JUDGED.name]


def test_another_judge_or_metric_is_measured_again(tmp_path: Any) -> None:
    """The cache has scores for one judge, and one set of metric parameters."""
    cache = tmp_path / "scores.cache"
    evaluated(asked_rows(1), JUDGED, cache=cache)
    other = judge()
    other.model = "another"
    assert evaluated(asked_rows(1), JUDGED, judge=other, cache=cache).usage.judge_requests == 1
    assert evaluated(numbers(2), Reads(), cache=cache)["reads"].mean == 2.0
    assert evaluated(numbers(2), Reads(factor=3), cache=cache)["reads"].mean == 6.0


@pytest.mark.parametrize(
    "content", [b"no database, but long enough to be read as one" * 99, b"SQLite format 3\0" * 99]
)
def test_damaged_cache_is_an_error(content: bytes, tmp_path: Any) -> None:
    """The error names the file, which is left alone."""
    cache = tmp_path / "scores.cache"
    cache.write_bytes(content)
    with pytest.raises(ConfigError, match=r"scores\.cache cannot be used.*Remove it.*another file"):
        evaluated(numbers(1), cache=cache)
    assert cache.read_bytes() == content


def test_database_of_another_program_is_refused(tmp_path: Any) -> None:
    """A file with tables that are not ours is refused."""
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE theirs (a)")
    database.close()
    with pytest.raises(ConfigError, match="the database of another program"):
        evaluated(numbers(1), cache=path)
