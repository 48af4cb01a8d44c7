"""Embedders, the cosine, and requests that are shared."""

import asyncio
import base64
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_server import HttpReply, ScriptedOpenAI
from rag_eval_otel import errors
from rag_eval_otel.config import Limit
from rag_eval_otel.embed import Batches, Embed, HashingEmbedder, OpenAIEmbedder, cosine
from rag_eval_otel.judge.budget import Budget
from rag_eval_otel.judge.usage import Ledger, attempt, current_scope, deadline_after, scope
from rag_eval_otel.testing.fakes import FakeEmbedder
from rag_eval_otel.types import Usage, Vectors
from virtual_time import run_virtually

VECTORS = {"a": [1.0, 0.0], "b": [0.0, 1.0], "c": [1.0, 1.0]}


@pytest.mark.parametrize(
    ("one", "other", "value"),
    [
        ([1, 0], [5, 0], 1.0),
        ([1, 0], [-2, 0], -1.0),
        ([1, 0], [0, 3], 0.0),
        ([1, 1], [1, 0], math.sqrt(0.5)),
        ([0, 0], [1, 0], None),
        ([1, 0], [0, 0], None),
        ([math.nan, 1], [1, 0], None),
        ([math.inf, 1], [1, 0], None),
    ],
)
def test_cosine(one: list[float], other: list[float], value: float | None) -> None:
    """The length of a vector plays no part; without a direction there is no cosine."""
    found = cosine(np.array(one, dtype=float), np.array(other, dtype=float))
    assert found == (None if value is None else pytest.approx(value, abs=1e-15))


@given(st.lists(st.tuples(st.floats(), st.floats()), min_size=1, max_size=6))
def test_a_cosine_is_within_its_bounds(pairs: list[tuple[float, float]]) -> None:
    """Whatever an embedder returns, the cosine is between -1 and 1 or there is none."""
    one, other = (np.array(row) for row in zip(*pairs, strict=True))
    with np.errstate(all="ignore"):
        value = cosine(one, other)
    assert value is None or -1 <= value <= 1


def hashed(*texts: str, dimensions: int = 1024) -> Vectors:
    return asyncio.run(HashingEmbedder(dimensions).embed(texts))


def test_hashing_is_the_same_everywhere() -> None:
    """The vectors do not depend on the process's random seed for hashes."""
    expected = [0.3077002876297407, 0.13187155184131744, 0.0, -0.9423006032087305]
    assert hashed("Ulm on the Danube", dimensions=4).tolist() == [pytest.approx(expected)]


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_hashed_rows_have_unit_length_or_none(texts: list[str]) -> None:
    """A text with letters or digits has a direction; one without has none."""
    for text, row in zip(texts, hashed(*texts), strict=True):
        says_something = any(c.isalnum() or c == "_" for c in text)
        length = float(np.linalg.norm(row))
        assert length == pytest.approx(1.0) or (length == 0 and not says_something)


def embedded(
    answer: Callable[[str], Any], *texts: str, **options: Any
) -> tuple[Vectors, list[Any]]:
    with ScriptedOpenAI(lambda _: "", answer) as server:
        options = {"retries": 0, "api_key": "sk-secret", **options}
        embedder = OpenAIEmbedder("small", base_url=server.base_url, **options)
        return asyncio.run(embedder.embed(texts)), server.requests


def row(index: object, embedding: object) -> dict[str, object]:
    return {"index": index, "embedding": embedding}


@pytest.mark.parametrize(
    ("texts", "sent"),
    [
        (["b", "a"], ["b", "a"]),
        (["", "a"], [" ", "a"]),  # servers refuse the empty string
        (["bad \ud800 text"], ["bad ? text"]),  # as badly decoded documents have it
    ],
)
def test_openai_embeds_all_texts_in_one_request(texts: list[str], sent: list[str]) -> None:
    """One request, base64 for speed, one row per text in the order of the texts."""
    rows, requests = embedded(lambda text: VECTORS.get(text, [1.0, 1.0]), *texts)
    assert rows.tolist() == [VECTORS.get(text, [1.0, 1.0]) for text in sent]
    assert [request.body for request in requests] == [
        {"model": "small", "input": sent, "encoding_format": "base64"}
    ]


def test_openai_rows_are_put_in_order() -> None:
    """Some servers return the rows in another order, and some as plain lists."""
    body = {"data": [row(1, [2.0]), row(0, base64.b64encode(struct.pack("<f", 1.0)).decode())]}
    rows, _ = embedded(lambda _: HttpReply(body=body), "a", "b")
    assert rows.tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"data": "rows"},
        {"data": [row(0, [1.0])]},
        {"data": [row(0, [1.0]), row(1, [1.0, 2.0])]},
        {"data": [row(0, [1.0]), row(1, "not base64!")]},
        {"data": [row(0, [1.0]), row(1, ["x"])]},
        {"data": [row(0, [1.0]), {"index": 1}]},
        {"data": [1, 2]},
        [],
        "",
    ],
)
def test_openai_rows_that_are_none(body: Any) -> None:
    """What does not hold one vector per text is an unparsable reply, whatever is wrong with it."""
    with pytest.raises(errors.UnparsableReplyError):
        embedded(lambda _: HttpReply(body=body), "a", "b")


def test_no_text_of_a_turn_is_sent_twice() -> None:
    """A metric uses the vectors that another one has asked for."""
    embedder = FakeEmbedder(VECTORS)
    embed = Embed(embedder)

    async def both() -> list[Vectors]:
        return await asyncio.gather(embed(["a", "b"]), embed(["b", "c", "b"]))

    one, other = asyncio.run(both())
    assert embedder.requests == [("a", "b"), ("c",)]
    assert one.tolist() == [VECTORS["a"], VECTORS["b"]]
    assert other.tolist() == [VECTORS["b"], VECTORS["c"], VECTORS["b"]]
    assert embed.ledger.usage == Usage(embedding_requests=2)


def test_a_failure_reaches_all_who_wait() -> None:
    """Every metric that needed a vector gets the embedder's own error."""
    embed = Embed(FakeEmbedder({}))

    async def both() -> list[Any]:
        return await asyncio.gather(embed(["a", "b"]), embed(["a"]), return_exceptions=True)

    assert [type(error) for error in asyncio.run(both())] == [KeyError, KeyError]
    assert embed.ledger.usage == Usage(embedding_requests=1)


class Shaped:
    """Returns whatever it is given, for any texts."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    async def embed(self, texts: Sequence[str]) -> Vectors:
        return self.rows


@pytest.mark.parametrize("rows", [[], [[1.0]], [1.0, 2.0], [[[1.0]], [[1.0]]], None])
def test_rows_of_another_shape_are_refused(rows: Any) -> None:
    """An embedder that does not give one row per text fails, instead of shifting rows."""
    with pytest.raises(errors.UnparsableReplyError, match="for 2 texts"):
        asyncio.run(Embed(Shaped(rows))(["a", "b"]))


class Sent:
    """Embeds a text as its length, in 20 ms; keeps the texts and the times of requests."""

    def __init__(
        self, refuses: Callable[[Sequence[str]], Exception | None] = lambda _: None
    ) -> None:
        self.refuses = refuses
        self.texts: list[list[str]] = []
        self.at: list[float] = []
        self.deadlines: list[float] = []
        self.batches = Batches(self.send)

    async def send(self, texts: Sequence[str]) -> Vectors:
        self.texts.append(list(texts))
        self.at.append(asyncio.get_running_loop().time())
        self.deadlines.append(current_scope().deadline)
        await asyncio.sleep(0.02)
        if error := self.refuses(texts):
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
)
def test_a_caller_waits_while_others_come(comes: Sequence[float], sent_at: Sequence[float]) -> None:
    """A request is sent at once if none is under way, and after 50 ms without a caller."""
    sent = Sent()
    all_of(sent, *((seconds, "a") for seconds in comes))
    assert sent.at == pytest.approx(sent_at)


def test_a_full_request_does_not_wait() -> None:
    """Eight turns with four texts each are sent before the window ends, and fifty texts whole."""
    sent = Sent()
    calls = [(0.001 * i, *(f"{i} {k}" for k in range(4))) for i in range(1, 10)]
    found = all_of(sent, (0.0, "first"), *calls, (0.01, *map(str, range(50))))
    assert [len(rows) for rows in found] == [1, *[4] * 9, 50]
    assert [len(texts) for texts in sent.texts] == [1, 32, 50, 4]
    assert sent.at[1:] == pytest.approx([0.008, 0.01, 0.01])


def server_error(status: int) -> errors.JudgeTransportError:
    error = errors.JudgeTransportError(f"HTTP {status}")
    error.status = status
    return error


@pytest.mark.parametrize(
    "refusal", [errors.JudgeRequestError("HTTP 400"), server_error(500)], ids=str
)
def test_a_text_that_is_refused_fails_only_its_caller(refusal: errors.JudgeError) -> None:
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
    assert found == [[[1.0]], *[errors.JudgeTransportError] * 8]
    assert len(sent.texts) == 2


def test_a_caller_that_is_cancelled_does_not_disturb_the_others() -> None:
    """They get their vectors from the request that they share."""
    sent = Sent()

    async def use(_: Callable[[], float]) -> list[Any]:
        calls = [(0.0, "a"), (0.001, "b"), (0.001, "cc"), (0.001, "ddd")]
        tasks = [asyncio.ensure_future(sent.after(*call)) for call in calls]
        await asyncio.sleep(0.06)
        tasks[1].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    _, cancelled, *others = run_virtually(use)
    assert isinstance(cancelled, asyncio.CancelledError)
    assert others == [[[2.0]], [[3.0]]]
    assert len(sent.texts) == 2


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
            assert all(isinstance(found[i], asyncio.CancelledError) for i in late)
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
