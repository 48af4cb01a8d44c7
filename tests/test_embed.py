"""Embedders, the cosine, and the vectors of one sample."""

import asyncio
import base64
import math
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_server import HttpReply, ScriptedOpenAI
from rag_eval_otel import errors
from rag_eval_otel.embed import Embed, HashingEmbedder, OpenAIEmbedder, cosine
from rag_eval_otel.testing.fakes import FakeEmbedder
from rag_eval_otel.types import Usage, Vectors

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
        {"data": [row(0, [1.0])]},
        {"data": [row(0, [1.0]), row(1, [1.0, 2.0])]},
        {"data": [row(0, [1.0]), row(1, "not base64!")]},
        {"data": [row(0, [1.0]), row(1, ["x"])]},
        {"data": [row(0, [1.0]), {"index": 1}]},
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


@pytest.mark.parametrize("rows", [[], [[1.0]], [1.0, 2.0], [[[1.0]], [[1.0]]], None])
def test_rows_of_another_shape_are_refused(rows: Any) -> None:
    """An embedder that does not give one row per text fails, instead of shifting rows."""

    async def shaped(_: object) -> Any:
        return rows

    embedder: Any = SimpleNamespace(embed=shaped)
    with pytest.raises(errors.UnparsableReplyError, match="for 2 texts"):
        asyncio.run(Embed(embedder)(["a", "b"]))
