"""The judge as one sample sees it: dedupe, share, repair, cache, give up."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

import questions
from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.errors import (
    JudgeTimeoutError,
    JudgeTransportError,
    UnparsableReplyError,
)
from rag_eval_otel.evaluation import aevaluate
from rag_eval_otel.judge.ask import Ask, Question, grouped
from rag_eval_otel.judge.tasks import Judge, Rating, Statements, Task, may_share
from rag_eval_otel.metrics import METRIC_SETS
from rag_eval_otel.metrics.base import Metric
from rag_eval_otel.testing.fakes import FakeJudge
from rag_eval_otel.types import Evaluation, Replies, Usage
from scoring import FULL, Failing, script
from support import GOOD, answers, in_turn
from virtual_time import VirtualLoop

T = TypeVar("T")

Q, A, C = "Why?", "Because.", ("One.", "Two.")
STATEMENTS = questions.statements(Q, A)
CONTEXT_1, CONTEXT_2 = (questions.context_relevance(Q, C, voice=voice) for voice in (1, 2))
GROUNDED_1, GROUNDED_2 = (questions.groundedness(A, C, voice=voice) for voice in (1, 2))
DRAWS = [questions.reverse_question(A, draw=i) for i in range(3)]
EVERY: list[Task[Any]] = [*DRAWS, CONTEXT_1, CONTEXT_2, STATEMENTS, GROUNDED_1, GROUNDED_2]


def put(ask: Ask, *tasks: Task[Any]) -> list[Any]:
    async def main() -> list[Any]:
        return list(await ask.each(tasks))

    return asyncio.run(main())


def test_a_question_asked_twice_is_asked_once() -> None:
    """Equal tasks get one reply, whether they wait together or come one after the other."""
    judge = FakeJudge(answers())
    ask = Ask(judge)

    async def use() -> list[Statements]:
        together = await asyncio.gather(ask(STATEMENTS), ask(questions.statements(Q, A)))
        return [*together, await ask(STATEMENTS)]

    replies = asyncio.run(use())
    assert judge.requests == [(STATEMENTS,)]
    assert replies == [replies[0]] * 3


def test_tasks_that_wait_at_once_share_requests() -> None:
    """All questions of the default metrics that can be put at once take three requests."""
    judge = FakeJudge(answers())
    ask = Ask(judge)
    put(ask, *EVERY)
    assert judge.requests == [
        tuple(DRAWS),
        (CONTEXT_1, STATEMENTS, GROUNDED_1),
        (CONTEXT_2, GROUNDED_2),
    ]
    assert ask.ledger.usage == Usage(judge_requests=3)
    assert ask.model == "fake"


GROUP = st.lists(st.sampled_from(EVERY), max_size=8, unique=True)


@given(group=GROUP, share_requests=st.booleans())
def test_grouping_keeps_tasks_and_rules(group: list[Task[Any]], *, share_requests: bool) -> None:
    """Each task is in exactly one request, and with none that it must not see."""
    requests = grouped([*map(Question, group)], share_requests=share_requests)
    assert sorted(map(repr, group)) == sorted(repr(each.task) for one in requests for each in one)
    for request in requests:
        assert share_requests or len(request) == 1
        assert all(may_share(a.task, b.task) for a in request for b in request if a is not b)


def test_only_what_does_not_parse_is_asked_again() -> None:
    """The second request holds the broken part alone, and says what was wrong with it."""
    rating = in_turn([{"rating": 7}, {"rating": 1}])
    judge = FakeJudge(
        lambda task: rating() if task == CONTEXT_1 or task.complaint else GOOD[task.prompt]
    )
    replies = put(Ask(judge), CONTEXT_1, STATEMENTS)
    assert replies == [Rating(rating=1), Statements.model_validate(GOOD["statements"])]
    assert [len(request) for request in judge.requests] == [2, 1]
    (again,) = judge.requests[1]
    assert "Input should be 0, 1 or 2" in again.complaint


@pytest.mark.parametrize("repairs", [0, 1, 4])
def test_repair_ends(repairs: int) -> None:
    """A judge that never makes sense is asked once, and then as often as was allowed."""
    judge = FakeJudge(answers(statements=None))
    ask = Ask(judge, repairs=repairs)
    assert isinstance(put(ask, STATEMENTS)[0], UnparsableReplyError)
    assert ask.ledger.usage == Usage(judge_requests=1 + repairs)


def test_a_repair_keeps_nobody_else_waiting() -> None:
    """What parsed is handed on while the rest is asked again, and kept if that is given up."""

    async def use() -> tuple[object, object]:
        judge = Stalled(1, context_relevance_1=None)
        ask = Ask(judge)
        broken = asyncio.ensure_future(ask(CONTEXT_1))
        reply = await ask(STATEMENTS)
        await judge.asked.wait()
        ask.cancel()
        return reply, (await asyncio.gather(broken, return_exceptions=True))[0]

    reply, failure = asyncio.run(use())
    assert isinstance(reply, Statements)
    assert isinstance(failure, JudgeTimeoutError)


@pytest.mark.parametrize("error", [JudgeTransportError("down"), RuntimeError("bug"), KeyError("k")])
def test_a_failed_request_fails_each_of_its_tasks(error: Exception) -> None:
    """Every task gets the judge's own error, nobody waits for ever, and the attempt is counted."""
    ask = Ask(Failing(error))
    assert put(ask, CONTEXT_1, STATEMENTS) == [error, error]
    assert ask.ledger.usage == Usage(judge_requests=1)
    assert ask.model is None


@pytest.mark.parametrize("parts", [(), (Rating(rating=1),), (Rating(rating=1),) * 3])
def test_a_judge_that_loses_count_is_not_believed(parts: tuple[object, ...]) -> None:
    """Replies that cannot be told apart are unparsable, and nobody waits for ever."""

    class Miscounting:
        model = "miscounting"

        async def reply(self, group: Sequence[Task[Any]]) -> Replies:
            return Replies(parts=parts, model=self.model)

    replies = put(Ask(Miscounting()), CONTEXT_1, GROUNDED_1)
    assert [str(reply) for reply in replies] == [
        f"the judge gave {len(parts)} replies to 2 tasks"
    ] * 2


class Stalled(FakeJudge):
    """Answers the first ``good`` requests; notes when it stalls, and how many were given up."""

    def __init__(self, good: int = 0, **by_prompt: object) -> None:
        super().__init__(answers(**by_prompt))
        self.good, self.given_up, self.asked = good, 0, asyncio.Event()

    async def reply(self, group: Sequence[Task[Any]]) -> Replies:
        if len(self.requests) < self.good:
            return await super().reply(group)
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.given_up += 1
        raise AssertionError("unreachable")  # noqa: EM101


def test_requests_under_way_can_be_given_up() -> None:
    """Cancelling ends them; whoever still waits is told so, and they were requests all the same."""

    async def use() -> tuple[Ask, Stalled, list[object]]:
        judge = Stalled()
        ask = Ask(judge)
        waiting = asyncio.ensure_future(ask.each([CONTEXT_1, CONTEXT_2]))
        await judge.asked.wait()
        await asyncio.sleep(0)
        ask.cancel()
        return ask, judge, list(await waiting)

    ask, judge, outcomes = asyncio.run(use())
    assert [type(outcome) for outcome in outcomes] == [JudgeTimeoutError, JudgeTimeoutError]
    assert judge.given_up == 2
    assert ask.ledger.usage == Usage(judge_requests=2)


class Watched(VirtualLoop):
    """An event loop with virtual time that remembers its timers."""

    def __init__(self) -> None:
        self.timers: list[asyncio.TimerHandle] = []
        super().__init__()

    def call_at(self, *args: Any, **options: Any) -> asyncio.TimerHandle:
        self.timers.append(super().call_at(*args, **options))
        return self.timers[-1]

    def left(self) -> list[object]:
        timers = [t for t in self.timers if not t.cancelled() and t.when() > self.time()]
        return [*timers, *(task for task in asyncio.all_tasks(self) if not task.done())]


def in_virtual_time(use: Callable[[VirtualLoop], Awaitable[T]]) -> T:
    loop = Watched()

    async def main() -> T:
        return await use(loop)

    try:
        result = loop.run_until_complete(main())
        for _ in range(20):
            loop.run_until_complete(asyncio.sleep(0))
        assert not loop.left()
    finally:
        loop.close()
    return result


class Slow:
    """Answers well, each request after so many turns of the loop; notes when it was asked."""

    model = "slow"

    def __init__(self, turns: Sequence[int], *, hanging: str = "", **by_prompt: object) -> None:
        self.requests: list[tuple[float, list[str]]] = []
        self._turns = iter(turns)
        self._hanging = hanging
        self._fake = FakeJudge(script(**by_prompt))

    async def reply(self, group: Sequence[Task[Any]]) -> Replies:
        prompts = [task.prompt for task in group]
        self.requests.append((asyncio.get_running_loop().time(), prompts))
        if self._hanging in prompts:
            await asyncio.Event().wait()
        for _ in range(next(self._turns, 0)):
            await asyncio.sleep(0)
        return await self._fake.reply(group)


async def scored(judge: Judge, *sets: str | Metric, timeout: float | None = None) -> Evaluation:
    return await aevaluate(FULL, sets, judge=judge, embedder=HashingEmbedder(), timeout=timeout)


TURNS = st.lists(st.integers(0, 40) | st.integers(0, 400), max_size=6)


@given(TURNS)
def test_the_online_set_takes_three_requests(turns: list[int]) -> None:
    """However late and in whatever order the replies come: first two requests, then one."""
    judge = Slow(turns)
    evaluation = in_virtual_time(lambda _: scored(judge, "online"))
    assert evaluation.usage.judge_requests == 3
    assert [score.reason for score in evaluation.scores] == [None] * 5
    assert judge.requests[0][1][:2] == ["supported", "relevant_contexts"], "asked alone"
    assert set(judge.requests[2][1]) == {"similarities", "addressed", "intent_fulfilment"}


@pytest.mark.parametrize(("timeout", "patience"), [(100, 5), (20, 5), (8, 2)])
@pytest.mark.parametrize(
    ("name", "hanging"), [("dual", "reverse_question"), ("dual", "context_relevance_2")]
)
def test_a_request_that_hangs(name: str, hanging: str, timeout: float, patience: float) -> None:
    """After five seconds, or a quarter of the time there is, what waits goes without it."""
    judge = Slow([], hanging=hanging)
    evaluation = in_virtual_time(lambda _: scored(judge, name, timeout=timeout))
    assert [t for t, prompts in judge.requests if "verdicts" in prompts] == [patience]
    assert evaluation["faithfulness"].status == "ok"
    assert "timeout" in {score.reason for score in evaluation.scores}


class Fickle(Slow):
    """Fails, hangs, talks nonsense or answers, as it is told."""

    def __init__(self, moods: Sequence[str], turns: Sequence[int]) -> None:
        super().__init__(turns)
        self._moods = iter(moods)

    async def reply(self, group: Sequence[Task[Any]]) -> Replies:
        mood = next(self._moods, "good")
        replies = await super().reply(group)
        if mood == "hang":
            await asyncio.Event().wait()
        if mood == "fail":
            raise JudgeTransportError
        if mood == "break":
            raise RuntimeError
        if mood == "unparsable":
            return replace(replies, parts=tuple(UnparsableReplyError("no") for _ in group))
        return replies


@pytest.mark.slow
@given(
    st.lists(st.sampled_from(["good", "hang", "fail", "break", "unparsable"]), max_size=8),
    TURNS,
    st.sampled_from(["online", "reference", "default"]),
)
def test_nothing_is_ever_stuck(moods: list[str], turns: list[int], name: str) -> None:
    """Whatever becomes of the requests, every metric has its score and nothing is left behind."""
    judge = Fickle(moods, turns)
    evaluation = in_virtual_time(lambda _: scored(judge, name, timeout=60))
    assert len(evaluation.scores) == len(METRIC_SETS[name]())
    assert all((score.value is None) == (score.status != "ok") for score in evaluation.scores)
    assert evaluation.usage.judge_requests == len(judge.requests)
