"""Requests for embeddings that the evaluations of several turns share."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from openai_server import ScriptedOpenAI
from rag_eval_otel.config import Limit
from rag_eval_otel.embed import Batches, Embed, OpenAIEmbedder
from rag_eval_otel.errors import (
    JudgeError,
    JudgeRequestError,
    JudgeTimeoutError,
    JudgeTransportError,
)
from rag_eval_otel.judge.budget import Budget
from rag_eval_otel.judge.usage import Ledger, attempt, current_scope, deadline_after, scope
from rag_eval_otel.types import Usage, Vectors
from virtual_time import run_virtually


class Sent:
    """Embeds a text as its length, in 20 ms; keeps the texts and the times of requests."""

    def __init__(
        self, refuses: Callable[[Sequence[str]], Exception | None] = lambda _: None
    ) -> None:
        self.refuses = refuses
        self.texts: list[list[str]] = []
        self.at: list[float] = []
        self.deadlines: list[float] = []
        self.cancelled = 0
        self.batches = Batches(self.send)

    async def send(self, texts: Sequence[str]) -> Vectors:
        self.texts.append(list(texts))
        self.at.append(asyncio.get_running_loop().time())
        self.deadlines.append(current_scope().deadline)
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        error = self.refuses(texts)
        if error is not None:
            raise error
        return np.array([[len(text)] for text in texts], dtype=float)

    async def after(self, seconds: float, *texts: str) -> Any:
        await asyncio.sleep(seconds)
        try:
            return (await self.batches.embed(texts)).tolist()
        except Exception as error:  # noqa: BLE001
            return type(error)


def all_of(sent: Sent, *calls: tuple[Any, ...]) -> list[Any]:
    async def use(_: Callable[[], float]) -> list[Any]:
        return await asyncio.gather(*(sent.after(*call) for call in calls))

    return run_virtually(use)


def test_callers_during_a_request_share_the_next_one() -> None:
    """Each gets the vectors of its own texts."""
    sent = Sent()
    found = all_of(sent, (0.0, "a"), (0.001, "bb", "ccc"), (0.01, "dddd"), (0.03, "eeeee"))
    assert found == [[[1.0]], [[2.0], [3.0]], [[4.0]], [[5.0]]]
    assert sent.texts == [["a"], ["bb", "ccc", "dddd", "eeeee"]]
    assert sent.at == pytest.approx([0.0, 0.051])


@pytest.mark.parametrize(
    ("comes", "sent_at"),
    [((0.0, 0.021, 0.042), (0.0, 0.021, 0.042)), ((0.0, 0.01, 0.2), (0.0, 0.06, 0.2))],
    ids=["one after the other", "one while another is under way"],
)
def test_a_caller_waits_only_while_others_come(
    comes: Sequence[float], sent_at: Sequence[float]
) -> None:
    """A request is sent at once if none is under way, and after 50 ms without a caller."""
    sent = Sent()
    all_of(sent, *((seconds, "a") for seconds in comes))
    assert sent.at == pytest.approx(sent_at)


def test_a_full_request_does_not_wait() -> None:
    """The texts of eight turns with four texts each are sent before the window ends."""
    sent = Sent()
    calls = [(0.001 * i, *(f"{i} {k}" for k in range(4))) for i in range(1, 10)]
    found = all_of(sent, (0.0, "first"), *calls)
    assert all(len(rows) == 4 for rows in found[1:])
    assert [len(texts) for texts in sent.texts] == [1, 32, 4]
    assert sent.at[1] == pytest.approx(0.008)


def test_a_caller_with_many_texts_is_not_divided() -> None:
    """Its texts are one request, as they would be without other callers."""
    sent = Sent()
    many = [str(i) for i in range(50)]
    all_of(sent, (0.0, "a"), (0.001, "b"), (0.002, *many))
    assert sent.texts == [["a"], ["b"], many]


def server_error(status: int) -> JudgeTransportError:
    error = JudgeTransportError(f"HTTP {status}")
    error.status = status
    return error


@pytest.mark.parametrize("refusal", [JudgeRequestError("HTTP 400"), server_error(500)], ids=str)
def test_a_text_that_is_refused_fails_only_its_caller(refusal: JudgeError) -> None:
    """The texts of each caller are sent alone; later requests stay as large."""
    sent = Sent(lambda texts: refusal if "bad" in texts else None)
    others = [(0.001, text) for text in "bcdefg"]
    found = all_of(sent, (0.0, "a"), *others, (0.001, "bad"), (1.0, "a"), *[(1.01, "x")] * 7)
    assert found == [*[[[1.0]]] * 7, type(refusal), *[[[1.0]]] * 8]
    assert [len(texts) for texts in sent.texts] == [1, 7, *[1] * 7, 1, 7]


def test_an_outage_is_not_multiplied() -> None:
    """All callers get the error, and their texts are not sent again."""
    sent = Sent(lambda texts: None if "a" in texts else server_error(503))
    found = all_of(sent, (0.0, "a"), *[(0.001, text) for text in "bcdefghi"])
    assert found == [[[1.0]], *[JudgeTransportError] * 8]
    assert len(sent.texts) == 2


def cancelling(*late: int) -> tuple[Sent, list[Any]]:
    sent = Sent()

    async def use(_: Callable[[], float]) -> list[Any]:
        first = asyncio.ensure_future(sent.after(0.0, "a"))
        others = [asyncio.ensure_future(sent.after(0.001, text)) for text in ("b", "cc", "ddd")]
        await asyncio.sleep(0.06)
        for i in late:
            others[i].cancel()
        return await asyncio.gather(first, *others, return_exceptions=True)

    return sent, run_virtually(use)


def test_a_caller_that_is_cancelled_does_not_disturb_the_others() -> None:
    """They get their vectors from the request that they share."""
    sent, found = cancelling(0)
    assert isinstance(found[1], asyncio.CancelledError)
    assert found[2:] == [[[2.0]], [[3.0]]]
    assert sent.cancelled == 0


def test_a_request_has_the_latest_deadline_of_its_callers() -> None:
    """A turn with little time left does not take time from the others."""
    sent = Sent()

    async def use(clock: Callable[[], float]) -> None:
        async def limited(seconds: float) -> None:
            with scope(deadline=deadline_after(seconds, clock=clock)):
                await sent.after(0.0, "x")

        await asyncio.gather(*map(limited, (5.0, 1.0, 3.0, 2.0)))

    run_virtually(use)
    assert sent.deadlines == pytest.approx([5.0, 3.0])


def test_each_event_loop_has_requests_of_its_own() -> None:
    """Nothing is left waiting in a loop that has ended, as at the end of `asyncio.run`."""
    sent = Sent()
    for _ in range(3):
        found = all_of(sent, (0.0, "a"), (0.001, "b"))
        assert found == [[[1.0]], [[1.0]]]
    assert len(sent.texts) == 6


TURNS = 12


def embedded(
    answer: Callable[[str], Any], *, budget: Budget | None = None, **options: Any
) -> tuple[list[Usage], list[Any], int]:
    with ScriptedOpenAI(lambda _: "", answer, embed_latency=0.1) as server:
        options = {"retries": 0, "api_key": "k", **options}
        embedder = OpenAIEmbedder("m", base_url=server.base_url, **options)

        async def turns() -> tuple[list[Embed], list[Any]]:
            fronts = [Embed(embedder, Ledger(budget)) for _ in range(TURNS)]
            texts = [[f"question {i}", "text " * (i + 1)] for i in range(TURNS)]
            calls = (front(two) for front, two in zip(fronts, texts, strict=True))
            return fronts, await asyncio.gather(*calls, return_exceptions=True)

        fronts, found = asyncio.run(turns())
        return [front.ledger.usage for front in fronts], found, len(server.requests)


def test_shared_requests_and_their_tokens_are_counted_once() -> None:
    """The turns' requests and tokens add up to those of the server, in fair shares."""
    usages, found, requests = embedded(lambda text: [float(len(text)), 1.0])
    total = sum(usages, Usage())
    assert all(rows.shape == (2, 2) for rows in found)
    assert total.embedding_requests == requests < TURNS
    assert total.embedding_tokens == sum(2 + (i + 1) for i in range(TURNS))
    assert all(usage.embedding_tokens for usage in usages)


class Shared:
    """Embeds texts by a shared request with a failed and a successful attempt, of 20 ms each."""

    model = "m"

    def __init__(self) -> None:
        self.bill = Usage()
        self.batches = Batches(self.send)

    async def embed(self, texts: Sequence[str]) -> Vectors:
        return await self.batches.embed(texts)

    async def attempt(self, tokens: int) -> None:
        async with attempt() as one:
            await asyncio.sleep(0.02)
            self.bill += Usage(embedding_requests=1, embedding_tokens=tokens)
            one.usage = Usage(embedding_tokens=tokens) if tokens else None

    async def send(self, texts: Sequence[str]) -> Vectors:
        size = sum(map(len, texts))
        if self.bill.embedding_requests:
            await self.attempt(0)
        await self.attempt(size)
        return np.ones((len(texts), 1))

    def use(
        self, *sizes: int, budget: Budget | None = None, late: Sequence[int] = (), at: float = 0.06
    ) -> list[Usage]:
        async def turns(_: Callable[[], float]) -> list[Usage]:
            fronts = [Embed(self, Ledger(budget)) for _ in sizes]
            pairs = zip(fronts, sizes, strict=True)
            calls = [asyncio.ensure_future(front(["x" * size])) for front, size in pairs]
            await asyncio.sleep(at)
            for i in late:
                fronts[i].cancel()
            found = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(found[i], JudgeTimeoutError) for i in late)
            return [front.ledger.usage for front in fronts]

        return run_virtually(turns)


@pytest.mark.parametrize("at", [0.06, 0.08])
def test_what_a_turn_that_gives_up_has_shared_is_counted_with_the_others(at: float) -> None:
    """The turn leaves in the first, or in the second attempt of its request."""
    shared = Shared()
    usages = shared.use(10, 200, 30, 40, late=[1], at=at)
    assert sum(usages, Usage()) == shared.bill
    assert shared.bill.embedding_requests == 3
    assert usages[1].embedding_tokens == 0


def test_a_budget_counts_a_shared_attempt_once_if_its_tokens_are_not_known() -> None:
    """The estimate stays for all texts together, and counts one request."""
    limits = [Limit(amount=10_000, unit=unit, seconds=3600) for unit in ("requests", "tokens")]
    budget = Budget(limits)
    shared = Shared()
    shared.use(100, 200, 300, 400, budget=budget)
    left = [10_000 - amount for _, amount in budget.left()]
    assert left == [shared.bill.embedding_requests, 100 + 300 + 900]
