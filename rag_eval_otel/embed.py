"""Embed texts with a server, with LangChain or offline, and compute the cosine of two vectors."""

from __future__ import annotations

import asyncio
import base64
import copy
import hashlib
import math
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rag_eval_otel.config import Config
from rag_eval_otel.errors import JudgeRequestError, UnparsableReplyError
from rag_eval_otel.judge.ask import given_up
from rag_eval_otel.judge.batching import Batches
from rag_eval_otel.judge.budget import Budget
from rag_eval_otel.judge.openai_client import OpenAIClient, connection
from rag_eval_otel.judge.protection import CHARACTERS, Endpoint
from rag_eval_otel.judge.texts import features
from rag_eval_otel.judge.usage import Ledger, Meter
from rag_eval_otel.providers import PROVIDERS, parts_of
from rag_eval_otel.runtime.watchdog import within
from rag_eval_otel.runtime.workers import SyncFirst
from rag_eval_otel.types import Embedder, Usage, Vectors

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings
    from openai import AsyncOpenAI
    from typing_extensions import Self


_HASHED = 100_000  # most characters of a text that are hashed
_SIGN = 1 << 31  # the bit of a digest that gives the sign of a feature
_MATRIX = 2  # dimensions of an array of row vectors


def cosine(one: Vectors, other: Vectors) -> float | None:
    """Return the cosine of two vectors, from -1 to 1; None if a vector is zero or not finite."""
    norms = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    if not (norms > 0 and math.isfinite(norms)):
        return None
    # Rounding errors may lead slightly out of the range.
    return min(1.0, max(-1.0, float(np.dot(one, other)) / norms))


def named_embedder(model: str, config: Config) -> OpenAIEmbedder:
    """Return an embedder that asks ``model`` of the provider in ``config.embedder``.

    If ``config`` has no address for the embedder, and the judge has the same provider (or is not
    given by provider and model), the address and the key of the judge are used.
    """
    provider = PROVIDERS[str(config.embedder).partition("/")[0]]
    judge = parts_of(config.judge) if isinstance(config.judge, str) else None
    base_url, key = config.embedder_base_url, config.embedder_api_key
    if base_url is None and (judge is None or judge[0] is provider):
        base_url, key = config.judge_base_url, key or config.judge_api_key
    return OpenAIEmbedder(model, **connection(provider, config, base_url=base_url, key=key))


def offline_embedder(_model: str, _config: Config) -> HashingEmbedder:
    """Return the offline embedder, which has neither a model name nor options."""
    return HashingEmbedder()


class OpenAIEmbedder:
    """An embedder behind an OpenAI-compatible server; `OpenAIJudge` explains the parameters."""

    def __init__(
        self,
        model: str = "text-embedding-3-small",
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 30.0,
        max_retries: int = 3,
        client: AsyncOpenAI | None = None,
        api_version: str | None = None,
        key_variable: str = "OPENAI_API_KEY",
    ) -> None:
        """Embed with ``model``; connect to the server with the first request only."""
        self.model = model
        self._client = OpenAIClient(
            base_url=base_url,
            api_key=api_key,
            timeout=timeout,
            max_retries=max_retries,
            client=client,
            key_variable=key_variable,
            api_version=api_version,
        )
        self._coding = {"encoding_format": "base64"}
        self.use_endpoint(Endpoint(f"embedder {model}", self._client.limits))

    def __repr__(self) -> str:
        return f"OpenAIEmbedder({self.model!r})"

    def with_endpoint(self, endpoint: Endpoint) -> Self:
        """Return a copy of this embedder that sends its requests by way of ``endpoint``."""
        found = copy.copy(self)
        found.use_endpoint(endpoint)
        return found

    def use_endpoint(self, endpoint: Endpoint) -> None:
        """Send later requests by way of ``endpoint``."""
        self.endpoint = endpoint
        self._batches = Batches(self._embed, name=endpoint.name)

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector (row) for each of ``texts``; raise `JudgeError` on failure.

        All texts are sent in one request, which callers may share (see `Batches`). An empty text is
        sent as a space, because servers refuse empty strings. A lone surrogate is sent as a
        question mark.
        """
        return await self._batches.embed(texts)

    async def _embed(self, texts: Sequence[str]) -> Vectors:
        shown = [(text or " ").encode("utf-8", "replace").decode() for text in texts]
        body = {"model": self.model, "input": shown}
        try:
            return await self._sent({**body, **self._coding})
        except JudgeRequestError as error:
            if "encoding_format" not in str(error):
                raise
            self._coding = {}
            return await self._sent(body)

    async def _sent(self, body: Mapping[str, Any]) -> Vectors:
        texts: Sequence[str] = body["input"]

        async def send() -> Vectors:
            return _rows(await self._client.embeddings(body), len(texts))

        await self._client.open()  # now, because the time of an attempt is limited
        return await self.endpoint.call(send, tokens=sum(map(len, texts)) // CHARACTERS)


def _rows(payload: Mapping[str, Any], count: int) -> Vectors:
    try:
        rows = {item["index"]: _vector(item["embedding"]) for item in payload["data"]}
        return np.stack([rows[i] for i in range(count)])
    except (KeyError, TypeError, ValueError) as error:
        msg = f"the embeddings reply does not hold {count} vectors of one length: {error!r}"
        raise UnparsableReplyError(msg) from error


def _vector(value: str | Sequence[float]) -> Vectors:
    if isinstance(value, str):
        return np.frombuffer(base64.b64decode(value), dtype="<f4").astype(np.float64)
    return np.asarray(value, dtype=np.float64)


class LangChainEmbedder:
    """An embedder that calls LangChain ``Embeddings`` on at most ``max_threads`` worker threads.

    The synchronous ``embed_documents`` is called, not ``aembed_documents``: LangChain's packages
    share one asynchronous HTTP client in a process, which fails if two event loops use it.
    """

    def __init__(self, embeddings: Embeddings, *, max_threads: int = 16) -> None:
        self._call = SyncFirst(
            embeddings.embed_documents, embeddings.aembed_documents, max_threads=max_threads
        )
        model = getattr(embeddings, "model", None)
        self.model = model if isinstance(model, str) else type(embeddings).__name__

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector (row) for each of ``texts``; exceptions of LangChain are raised."""
        return np.asarray(await self._call(list(texts)), dtype=np.float64)


class HashingEmbedder:
    """An offline embedder that hashes the words of a text into a vector.

    Texts with content words in common have similar vectors. The vectors of two questions are more
    similar if both ask for the same kind of thing (who, when, how many). The embedder does not know
    what words mean. It is deterministic and needs no model. It is good for a first set-up, demos
    and tests, and does not replace a trained model.
    """

    model = "hashing"

    def __init__(self, dimensions: int = 1024) -> None:
        self._dimensions = dimensions

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector (row) of unit length for each of ``texts``.

        If a text has no letters or digits, its vector is zero. Only the first 100,000 characters of
        a text are read.
        """
        rows = np.zeros((len(texts), self._dimensions))
        for i, text in enumerate(texts):
            rows[i] = self._row(text[:_HASHED])
        return rows

    def _row(self, text: str) -> Vectors:
        row = np.zeros(self._dimensions)
        for feature, weight in features(text).items():
            digest = zlib.crc32(feature.encode("utf-8", "replace"))
            sign = 1 if digest & _SIGN else -1  # features that share a column cancel out on average
            row[digest % _SIGN % self._dimensions] += sign * weight
        norm = np.linalg.norm(row)
        return row / norm if norm else row


def name_of(embedder: Embedder) -> str:
    """Return the model's name of ``embedder``, or the name of its class."""
    model = getattr(embedder, "model", None)
    return model if isinstance(model, str) else type(embedder).__name__


class VectorCache:
    """Keeps the vectors of up to ``max_texts`` texts, under digests of the texts.

    With all that belongs to them, they take at most ``max_bytes`` of memory. If the cache is full,
    the least recently used vectors are dropped. The texts are not kept. A cache belongs to one
    embedder.
    """

    def __init__(self, max_bytes: int = 16 * 1024 * 1024, *, max_texts: int = 2048) -> None:
        self._max_bytes = max_bytes
        self._max_texts = max_texts
        self._bytes = 0
        self._rows: OrderedDict[bytes, Vectors] = OrderedDict()

    def get(self, text: str) -> Vectors | None:
        """Return the vector of ``text``, or None if it is not in the cache."""
        key = _digest(text)
        found = self._rows.get(key)
        if found is not None:
            self._rows.move_to_end(key)
        return found

    def put(self, text: str, row: Vectors) -> None:
        """Keep a copy of ``row``, the vector of ``text``."""
        key, kept = _digest(text), np.array(row)
        before = self._rows.pop(key, None)
        self._bytes += _size(kept) - (0 if before is None else _size(before))
        self._rows[key] = kept
        while self._bytes > self._max_bytes or len(self._rows) > self._max_texts:
            self._bytes -= _size(self._rows.popitem(last=False)[1])


_ENTRY: Final = 400  # bytes of an entry of the cache without its numbers


def _size(row: Vectors) -> int:
    return int(row.nbytes) + _ENTRY


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


class Embed:
    """Sends the texts that metrics want to embed to an embedder, in few requests for a sample.

    Texts that wait at the same moment are sent in one request, and equal texts are sent once. Texts
    whose vectors are in ``cache`` are not sent. ``usage`` counts the requests and tokens, and
    ``ledger`` divides them among the metrics. A request beyond ``budget`` raises
    `BudgetSpentError`.
    """

    def __init__(
        self,
        embedder: Embedder,
        *,
        budget: Budget | None = None,
        cache: VectorCache | None = None,
    ) -> None:
        self.usage = Usage()
        self.ledger = Ledger()
        self._cache = cache
        self._embedder = embedder
        self._budget = budget
        self._meters: dict[Meter, Sequence[str]] = {}
        self._rows: dict[str, asyncio.Future[Vectors]] = {}
        self._waiting: list[str] = []
        self._requests: set[asyncio.Task[Vectors]] = set()

    async def __call__(self, texts: Sequence[str]) -> Vectors:
        """Return one vector (row) for each of ``texts``; exceptions of the embedder are raised."""
        for text in texts:
            self.ledger.ask(text)
        loop = asyncio.get_running_loop()
        new = [text for text in dict.fromkeys(texts) if text not in self._rows]
        unknown = [text for text in new if not self._find(text, loop.create_future())]
        if unknown and not self._waiting:
            loop.call_soon(self._send)
        self._waiting += unknown
        return np.stack([await asyncio.shield(self._rows[text]) for text in texts])

    def _find(self, text: str, row: asyncio.Future[Vectors]) -> bool:
        """Keep ``row`` as the vector of ``text``; return True if the cache has the vector."""
        self._rows[text] = row
        found = None if self._cache is None else self._cache.get(text)
        if found is not None:
            row.set_result(found)
        return found is not None

    @property
    def is_used(self) -> bool:
        """Whether a metric has asked for the vector of a text."""
        return bool(self._rows)

    def known(self, text: str) -> Vectors | None:
        """Return a copy of the vector of ``text``, or None if ``text`` was not embedded."""
        row = self._rows.get(text)
        if row is None or not row.done() or row.cancelled() or row.exception():
            return None
        return np.array(row.result())  # a copy does not keep other rows in memory

    def cancel(self) -> None:
        """Cancel the requests under way, and drop the texts that wait to be sent."""
        self._waiting = []
        for meter, texts in self._meters.items():
            self._spend(texts, meter.close())
        self._meters.clear()
        for request in self._requests:
            request.cancel()

    def _send(self) -> None:
        texts, self._waiting = self._waiting, []
        if not texts:  # cancelled
            return
        request = asyncio.ensure_future(self._fetch(texts))
        self._requests.add(request)
        request.add_done_callback(lambda done: self._deliver(texts, done))

    async def _fetch(self, texts: Sequence[str]) -> Vectors:
        size = sum(map(len, texts))
        name = name_of(self._embedder)
        meter = Meter(self._budget, model=name, size=size, part="embedder")
        self._meters[meter] = texts
        try:
            async with meter:
                rows = await within(f"embedder {name}", partial(self._embedder.embed, texts))
                meter.tell(Usage(embedding_requests=1))
        finally:
            if self._meters.pop(meter, None) is not None:  # else `cancel` has counted it
                self._spend(texts, meter.usage)
        if np.ndim(rows) != _MATRIX or len(rows) != len(texts):
            msg = f"the embedder returned shape {np.shape(rows)} for {len(texts)} texts"
            raise UnparsableReplyError(msg)
        return rows

    def _spend(self, texts: Sequence[str], usage: Usage) -> None:
        self.usage += usage
        self.ledger.spend({text: len(text) for text in texts}, usage)

    def _deliver(self, texts: Sequence[str], request: asyncio.Task[Vectors]) -> None:
        self._requests.discard(request)
        error = given_up() if request.cancelled() else request.exception()
        for i, text in enumerate(texts):
            future = self._rows[text]
            if error is not None:
                future.set_exception(error)
                future.exception()  # mark the error as seen, because nothing may wait for it
            else:
                row = request.result()[i]
                future.set_result(row)
                if self._cache is not None:
                    self._cache.put(text, row)
