"""`evaluate_dataset`: every row once, in order, within limits, and what becomes of failures."""

from __future__ import annotations

import asyncio
import io
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from offline import EMBEDDER, JUDGED, Reads, asked_rows, judge, numbers
from rag_eval_otel.dataset.result import DatasetResult
from rag_eval_otel.dataset.run import (
    Budget,
    Progress,
    aevaluate_dataset,
    evaluate_dataset,
    in_order,
    progress_bar,
    run_now,
)
from rag_eval_otel.errors import (
    ConfigError,
    FailedRowError,
    JudgeTransportError,
    MissingDependencyError,
)
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.runtime.guard import is_silent
from rag_eval_otel.types import Replies, Sample, Usage


def evaluated(samples: object, *metrics: Any, **options: Any) -> DatasetResult:
    """Evaluate ``samples`` with a judge that says yes."""
    given = {"judge": judge(), "embedder": EMBEDDER, **options}
    return evaluate_dataset(samples, metrics or (Reads(),), **given)


def test_every_row_is_scored_in_order() -> None:
    """Rows come in the order of the dataset, each with its sample and its scores."""
    result = evaluated(numbers(3, 1, 2), Reads(), Reads(factor=10, name="tenfold"))
    assert [row.index for row in result.rows] == [0, 1, 2]
    assert [row["reads"].value for row in result.rows] == [3, 1, 2]
    assert [row["tenfold"].value for row in result.rows] == [30, 10, 20]
    assert result.rows[1].sample.question == "Number 1?"


def test_what_cannot_be_measured_is_no_number() -> None:
    """Undefined and failed scores are counted beside the mean, and are in none."""
    result = evaluated(numbers(1, "?", "wrong", 3))
    found = result["reads"]
    assert (found.ok, found.undefined, found.error) == (2, 1, 1)
    assert (found.mean, found.median, found.passed, found.labelled) == (2.0, 2.0, 2, 2)
    assert found.reasons == {"no_claims": 1, "internal": 1}
    assert result.totals.failed == 1


def test_a_failure_can_be_an_error() -> None:
    """``raise_on_failure`` names the row and the reason, and goes no further."""
    with pytest.raises(FailedRowError, match=r"the list, row 1: reads failed \(internal\): Value"):
        evaluated(numbers(1, "wrong", "wrong"), raise_on_failure=True)


def test_an_empty_dataset_has_a_report_without_means() -> None:
    """Nothing was measured: None, never NaN or 0."""
    result = evaluated([])
    assert result.rows == ()
    assert result["reads"].mean is result["reads"].median is result["reads"].interval is None
    assert result.judge is None
    assert "0 rows" in repr(result)


def test_needs_are_checked_before_anything_is_asked() -> None:
    """A metric that the dataset cannot serve is refused by name, and no judge hears of it."""
    asked = judge()
    with pytest.raises(ConfigError, match="response_relevancy needs contexts"):
        evaluated(numbers(1), JUDGED, judge=asked)
    assert not asked.requests


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"concurrency": 0}, "concurrency must be 1 or more"),
        ({"concurrency": True}, "concurrency must be 1 or more"),
        ({"fusion": "some"}, "fusion must be 'on' or 'off'"),
        ({"progress": "loud"}, "progress must be one of auto, on, off"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], told: str) -> None:
    """Each is refused with what is allowed."""
    with pytest.raises(ConfigError, match=told):
        evaluated(numbers(1), **options)


# --- usage and budget -----------------------------------------------------------------------------


def test_usage_and_judge_are_summed_up() -> None:
    """The report says what was asked, and who answered."""
    result = evaluated(asked_rows(3), JUDGED)
    assert result.usage == Usage(judge_requests=3)
    assert result.judge == "fake"
    assert result[JUDGED.name].mean == 1.0


def test_a_budget_of_requests_is_kept() -> None:
    """No request is sent beyond it; what is left unscored says why, the rest is measured."""
    asked = judge()
    result = evaluated(
        [{**row, "answer": "1"} for row in asked_rows(5)],
        JUDGED,
        Reads(),
        judge=asked,
        budget=Budget(requests=2),
    )
    assert len(asked.requests) == result.usage.judge_requests == 2
    assert (result[JUDGED.name].ok, result[JUDGED.name].error) == (2, 3)
    assert result[JUDGED.name].reasons == {"budget": 3}
    assert result["reads"].ok == 5


class Wordy:
    """Takes ten tokens for a reply, in two requests."""

    model = "wordy"

    def __init__(self) -> None:
        """Nothing asked yet."""
        self.asked = 0

    async def reply(self, tasks: Any) -> Replies:
        """Say yes."""
        self.asked += 1
        parts = tuple(task.reply.model_validate({"passing": True}) for task in tasks)
        usage = Usage(judge_requests=2, prompt_tokens=7, completion_tokens=3)
        return Replies(parts=parts, model=self.model, usage=usage)


@pytest.mark.parametrize("budget", [Budget(tokens=20), Budget(requests=3)])
def test_a_budget_counts_what_the_judge_says_it_took(budget: Budget) -> None:
    """Tokens, and requests that one reply took more of, count when they are known."""
    wordy = Wordy()
    result = evaluated(asked_rows(5), JUDGED, judge=wordy, budget=budget, concurrency=1)
    assert wordy.asked == result[JUDGED.name].ok == 2
    assert result[JUDGED.name].reasons == {"budget": 3}


@pytest.mark.parametrize("value", [-1, 1.5, True])
def test_a_budget_is_a_whole_number(value: Any) -> None:
    """Other limits are refused by name."""
    with pytest.raises(ConfigError, match=r"Budget\.tokens must be a whole number"):
        Budget(tokens=value)


# --- at once, and no more -------------------------------------------------------------------------


class Gate:
    """A judge whose replies wait until it is opened; it counts how many wait at once."""

    model = "gate"

    def __init__(self, opens_at: int) -> None:
        """Open when ``opens_at`` requests wait."""
        self.waiting = self.most = 0
        self._opens_at = opens_at
        self._open = asyncio.Event()

    async def reply(self, tasks: Any) -> Replies:
        """Wait, then say yes."""
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


def test_rows_are_under_way_at_once_and_no_more_than_told() -> None:
    """Three requests wait for each other; a fourth never comes beside them."""
    gate = Gate(opens_at=3)
    result = evaluated(asked_rows(9), JUDGED, judge=gate, concurrency=3)
    assert (result[JUDGED.name].ok, gate.most) == (9, 3)


def test_a_row_that_takes_too_long_fails_alone() -> None:
    """Over ``timeout`` a row's missing scores are errors; what it had is kept."""
    gate = Gate(opens_at=-1)
    rows = [{**row, "answer": "1"} for row in asked_rows(2)]
    result = evaluated(rows, JUDGED, Reads(), judge=gate, timeout=0.0)
    assert result[JUDGED.name].reasons == {"timeout": 2}
    assert result["reads"].ok == 2


def test_few_items_are_held() -> None:
    """However many there are, only some are taken before the first result is."""
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


def test_what_is_under_way_ends_with_the_one_who_waits() -> None:
    """Closed early, the generator cancels its work and waits for its end."""
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


# --- the progress bar -----------------------------------------------------------------------------


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


@pytest.mark.parametrize(
    ("mode", "stream", "is_shown"),
    [
        ("on", io.StringIO, True),
        ("off", Terminal, False),
        ("auto", Terminal, True),
        ("auto", io.StringIO, False),
    ],
)
def test_progress_bar_is_shown_on_a_terminal_or_on_demand(
    mode: Progress,
    stream: Callable[[], io.StringIO],
    is_shown: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bar counts rows on stderr."""
    monkeypatch.setattr(sys, "stderr", stream())
    with progress_bar(3, mode) as advance:
        for _ in range(3):
            advance()
    assert ("3/3" in sys.stderr.getvalue()) == is_shown  # type: ignore[attr-defined]


def test_without_tqdm_there_is_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """``auto`` goes without; ``on`` is an error that names the extra."""
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert evaluated(numbers(1), progress="auto")["reads"].ok == 1
    assert "1/1" not in sys.stderr.getvalue()  # type: ignore[attr-defined]
    with pytest.raises(MissingDependencyError, match="dataset"):
        evaluated(numbers(1), progress="on")


# --- where it runs --------------------------------------------------------------------------------


def test_it_can_be_awaited_and_called_within_a_loop() -> None:
    """In a notebook, where a loop is running, the blocking form works too."""

    async def both() -> list[DatasetResult]:
        options: dict[str, Any] = {"judge": judge(), "embedder": EMBEDDER}
        awaited = await aevaluate_dataset(numbers(1, 2), [Reads()], **options)
        return [awaited, evaluate_dataset(numbers(1, 2), [Reads()], **options)]

    one, other = asyncio.run(both())
    assert one.to_dict() == other.to_dict()


def test_an_interrupt_within_a_loop_ends_the_work_first() -> None:
    """^C cancels what runs in the thread beside the loop, and waits until it has ended."""
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


def test_the_judge_is_asked_in_silence() -> None:
    """Instrumentation of the application does not trace what is asked of the judge."""
    heard: list[bool] = []

    def answer(task: Task[Any]) -> object:
        heard.append(is_silent())
        return {"passing": True}

    evaluated(asked_rows(2), JUDGED, judge=judge(answer))
    assert heard == [True, True]
    assert not is_silent()


# --- cache ----------------------------------------------------------------------------------------


def broken_at(count: int) -> Callable[[Task[Any]], object]:
    """Answer ``count`` times, then no more."""
    answers = iter([{"passing": True, "reason": "so it is"}] * count)
    return lambda task: next(answers, JudgeTransportError("scripted"))


def test_a_run_is_taken_up_again(tmp_path: Any) -> None:
    """What was scored is not asked again, what failed is; the report is as from one run."""
    cache = tmp_path / "scores.cache"
    first = evaluated(asked_rows(5), JUDGED, judge=judge(broken_at(2)), cache=cache, concurrency=1)
    assert (first[JUDGED.name].ok, first[JUDGED.name].error) == (2, 3)
    asked = judge()
    again = evaluated(asked_rows(5), JUDGED, judge=asked, cache=cache)
    assert len(asked.requests) == again.usage.judge_requests == 3
    whole = evaluated(asked_rows(5), JUDGED)
    assert again.to_dict()["rows"] == whole.to_dict()["rows"]
    assert again.judge == "fake"


def test_what_the_judge_could_not_say_is_asked_again(tmp_path: Any) -> None:
    """A reply that was of no use is not kept, and says why there is no number."""
    cache = tmp_path / "scores.cache"
    first = evaluated(asked_rows(2), JUDGED, judge=judge(lambda task: None), cache=cache)
    assert first[JUDGED.name].reasons == {"unparsable": 2}
    assert "the first: UnparsableReplyError: " in repr(first)
    again = evaluated(asked_rows(2), JUDGED, cache=cache)
    assert (again[JUDGED.name].ok, again[JUDGED.name].first_failure) == (2, None)


def test_only_what_is_missing_is_measured(tmp_path: Any) -> None:
    """Rows and metrics that are added cost what they cost; in whatever order rows come."""
    cache = str(tmp_path / "scores.cache")
    rows = [{**row, "answer": "1"} for row in asked_rows(3)]
    evaluated(rows, JUDGED, cache=cache)
    asked = judge()
    result = evaluated(
        [*reversed(rows), *asked_rows(4)[3:]], Reads(), JUDGED, judge=asked, cache=cache
    )
    assert len(asked.requests) == 1
    assert [score.name for score in result.rows[0].scores] == ["reads", JUDGED.name]


class Differs:
    """Stands for an embedder with another model; it is never asked."""

    model = "other"

    async def embed(self, texts: Any) -> Any:
        """Not asked."""
        raise NotImplementedError


@pytest.mark.parametrize(
    ("options", "answer", "requests"),
    [
        ({}, "It is 0.", 0),
        ({"fusion": "off"}, "It is 0.", 1),
        ({"embedder": Differs()}, "It is 0.", 1),
        ({}, "It is another.", 1),
    ],
)
def test_another_measurement_is_measured(
    options: dict[str, Any], answer: str, requests: int, tmp_path: Any
) -> None:
    """The cache answers for the same sample, fusion and embedder alone."""
    cache = tmp_path / "scores.cache"
    evaluated(asked_rows(1), JUDGED, cache=cache)
    rows = [{**asked_rows(1)[0], "answer": answer}]
    assert evaluated(rows, JUDGED, cache=cache, **options).usage.judge_requests == requests


def test_another_judge_or_metric_is_asked(tmp_path: Any) -> None:
    """The cache answers for the same judge, and for a metric with the same parameters alone."""
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
def test_a_damaged_cache_says_the_way_out(content: bytes, tmp_path: Any) -> None:
    """A file that cannot be a cache is left alone, and named."""
    cache = tmp_path / "scores.cache"
    cache.write_bytes(content)
    with pytest.raises(ConfigError, match=r"scores\.cache cannot be used.*Remove it.*another file"):
        evaluated(numbers(1), cache=cache)
    assert cache.read_bytes() == content


def test_the_database_of_another_program_is_left_alone(tmp_path: Any) -> None:
    """A file with tables that are not ours is refused."""
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE theirs (a)")
    database.close()
    with pytest.raises(ConfigError, match="the database of another program"):
        evaluated(numbers(1), cache=path)


def test_a_score_that_was_tampered_with_is_refused(tmp_path: Any) -> None:
    """What does not read as a score is no score."""
    path = tmp_path / "scores.cache"
    evaluated(numbers(1), cache=path)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE scores SET score = '{'")
    database.close()
    with pytest.raises(ConfigError, match="cannot be used as a cache"):
        evaluated(numbers(1), cache=path)


def test_samples_themselves_are_taken() -> None:
    """A list of samples needs no columns."""
    assert evaluated([Sample(answer="4")])["reads"].mean == 4.0
