"""`evaluate_dataset`: order, limits, failures, cache and event loops."""

import asyncio
import io
import json
import math
import signal
import statistics
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from offline import JUDGED, Reads, asked_rows, evaluated, judge, numbers
from rag_eval_otel.errors import ConfigError, JudgeTransportError, MissingDependencyError
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.runtime.guard import is_silent
from rag_eval_otel.tools.dataset import DatasetResult, in_order, run_now, show_progress
from rag_eval_otel.tools.stats import t_quantile
from rag_eval_otel.types import Replies


def test_every_row_is_scored_in_order() -> None:
    """Rows come in the order of the dataset, each with its sample and its scores."""
    result = evaluated(numbers(3, 1, 2), Reads(), Reads(factor=10, name="tenfold"))
    assert [row.index for row in result.rows] == [0, 1, 2]
    assert [row["reads"].value for row in result.rows] == [3, 1, 2]
    assert [row["tenfold"].value for row in result.rows] == [30, 10, 20]
    assert result.rows[1].sample.question == "Number 1?"


def test_needs_are_checked_before_any_request() -> None:
    """The error names the metric and the missing field."""
    asked = judge()
    with pytest.raises(ConfigError, match="context_agreement needs contexts"):
        evaluated(numbers(1), JUDGED, judge=asked)
    assert not asked.requests


@pytest.mark.parametrize("concurrency", [0, True])
def test_wrong_option_is_refused(concurrency: object) -> None:
    """The error names the allowed values."""
    with pytest.raises(ConfigError, match="concurrency must be 1 or more"):
        evaluated(numbers(1), concurrency=concurrency)


def test_budget_of_requests_is_kept() -> None:
    """Scores beyond it have the reason ``budget``; metrics without a judge are scored."""
    asked = judge()
    result = evaluated(
        [{**row, "answer": "1"} for row in asked_rows(5)],
        JUDGED,
        Reads(),
        judge=asked,
        max_requests=2,
    )
    assert len(asked.requests) == result.usage.judge_requests == 2
    assert (result[JUDGED.name].ok, result[JUDGED.name].error) == (2, 3)
    assert result[JUDGED.name].reasons == {"budget": 3}
    assert result["reads"].ok == 5


class Gate:
    """A judge whose replies wait until it is opened; it counts how many wait at once."""

    model = "gate"

    def __init__(self, opens_at: int) -> None:
        self.waiting = self.most = 0
        self._opens_at = opens_at
        self._open = asyncio.Event()

    async def reply(self, tasks: Any) -> Replies:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        if self.waiting == self._opens_at:
            self._open.set()
        await self._open.wait()
        self.waiting -= 1
        return Replies(
            parts=tuple(task.reply.model_validate({"passing": True}) for task in tasks),
            model=self.model,
        )


def test_concurrency_is_used_and_kept() -> None:
    """Three requests are under way at once, never four."""
    gate = Gate(opens_at=3)
    result = evaluated(asked_rows(9), JUDGED, judge=gate, concurrency=3)
    assert (result[JUDGED.name].ok, gate.most) == (9, 3)


def test_slow_row_fails_alone() -> None:
    """Missing scores of a row beyond ``timeout`` are errors; the others are kept."""
    gate = Gate(opens_at=-1)
    rows = [{**row, "answer": "1"} for row in asked_rows(2)]
    result = evaluated(rows, JUDGED, Reads(), judge=gate, timeout=0.0)
    assert result[JUDGED.name].reasons == {"timeout": 2}
    assert result["reads"].ok == 2


def test_in_order_holds_few_items() -> None:
    """Only some items are taken before the first result is."""
    taken: list[int] = []

    def items() -> Iterator[int]:
        for i in range(1000):
            taken.append(i)
            yield i

    async def work(item: int) -> int:
        return item * 2

    async def first_and_all() -> tuple[int, list[int]]:
        results = in_order(items(), work, at_once=3)
        first = await anext(results)
        held = len(taken)
        return held, [first, *[result async for result in results]]

    held, results = asyncio.run(first_and_all())
    assert held <= 12
    assert results == [i * 2 for i in range(1000)]


def test_in_order_cancels_its_work() -> None:
    """A generator that is closed early cancels its work and waits for its end."""
    ended: list[int] = []

    async def work(item: int) -> int:
        try:
            await asyncio.Event().wait() if item else None
        finally:
            ended.append(item)
        return item

    async def first() -> None:
        results = in_order(range(100), work, at_once=2)
        assert await anext(results) == 0
        await results.aclose()

    asyncio.run(asyncio.wait_for(first(), 10))
    assert sorted(ended) == [0, 1, 2]


def test_the_progress_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line on stderr counts rows, and is written again for each."""
    for told in ("\revaluating: 3/3 rows, 1 with errors\n", ""):
        monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
        monkeypatch.setattr(stream, "isatty", lambda told=told: bool(told))
        show_progress(3, 3, 1)
        assert stream.getvalue() == told


def test_interrupt_cancels_the_work() -> None:
    """^C cancels the coroutine in the other thread, and waits until it has ended."""
    ended = threading.Event()

    async def stuck() -> None:
        try:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def within() -> None:
        run_now(stuck)

    loop = asyncio.new_event_loop()  # asyncio.run has a handler of its own; notebooks have none
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(within())
    loop.close()
    assert ended.is_set()


def test_judge_requests_are_not_traced() -> None:
    """Instrumentations of the application see no request of the judge."""
    heard: list[bool] = []

    def answer(task: Task[Any]) -> object:
        heard.append(is_silent())
        return {"passing": True}

    evaluated(asked_rows(2), JUDGED, judge=judge(answer))
    assert heard == [True, True]
    assert not is_silent()


def result_of(*answers: object, **options: Any) -> DatasetResult:
    return evaluated(numbers(*answers), Reads(**options))


def test_dict_is_json_without_texts() -> None:
    """Each sample is identified by a digest."""
    found = json.loads(json.dumps(result_of(1, "?").to_dict()))
    assert found["row_count"] == 2
    assert found["metrics"]["reads"]["undefined"] == 1
    assert found["rows"][0]["scores"]["reads"]["value"] == 1.0
    assert found["rows"][1]["scores"]["reads"] == {
        "value": None,
        "status": "undefined",
        "reason": "no_claims",
        "version": found["rows"][1]["scores"]["reads"]["version"],
    }
    assert len({row["sample"] for row in found["rows"]}) == 2
    assert "Number" not in json.dumps(found)


def test_frame_has_a_line_for_each_row() -> None:
    """Values are floats, NaN if missing, with status and reason beside."""
    frame = result_of(1, "?").to_pandas()
    assert frame["reads"].dtype == "float64"
    assert frame["reads"].isna().tolist() == [False, True]
    assert frame["reads.status"].tolist() == ["ok", "undefined"]
    assert frame["reads.reason"].tolist()[1] == "no_claims"
    assert list(result_of().to_pandas().columns) == list(frame.columns)


def test_without_pandas_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "rag-eval-otel\[tools\]'):
        result_of(1).to_pandas()


def test_paired_differences() -> None:
    """The difference is over pairs of ok scores; other rows are counted."""
    found = result_of(2, 4, "?", 5).compare(result_of(1, 2, 1, 1))["reads"]
    assert (found.pairs, found.unpaired, found.higher, found.lower) == (3, 1, 3, 0)
    assert found.mean == pytest.approx((1 + 2 + 4) / 3)
    half = t_quantile(0.975, 2) * statistics.stdev([1, 2, 4]) / math.sqrt(3)
    assert found.interval == pytest.approx((found.mean - half, found.mean + half))


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
