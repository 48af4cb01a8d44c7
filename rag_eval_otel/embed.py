"""Embed texts with a server, with LangChain or offline, and compute the cosine of two vectors."""

from __future__ import annotations

import asyncio
import base64
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rag_eval_otel.errors import UnparsableReplyError
from rag_eval_otel.judge.endpoint import Endpoint
from rag_eval_otel.judge.lexical import MAX_CHARACTERS, features
from rag_eval_otel.judge.openai import OpenAIClient, OpenAIModel
from rag_eval_otel.judge.usage import Ledger, name_of
from rag_eval_otel.providers import provider_of
from rag_eval_otel.runtime.threads import Workers
from rag_eval_otel.types import Embedder, Usage, Vectors

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings
    from openai import AsyncOpenAI

_SIGN = 1 << 31  # the bit of a digest that gives the sign of a feature
_MATRIX = 2  # dimensions of an array of row vectors


def cosine(one: Vectors, other: Vectors) -> float | None:
    """Return the cosine of two vectors, from -1 to 1; None if a vector is zero or not finite."""
    norms = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    if not (norms > 0 and math.isfinite(norms)):
        return None
    # Rounding errors may lead slightly out of the range.
    return min(1.0, max(-1.0, float(np.dot(one, other)) / norms))


class OpenAIEmbedder(OpenAIModel):
    """An embedder behind an OpenAI-compatible server; `OpenAIJudge` explains the parameters."""

    def __init__(
        self,
        model: str = "text-embedding-3-small",
        *,
        provider: str = "openai",
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 30.0,
        retries: int = 3,
        client: AsyncOpenAI | None = None,
    ) -> None:
        """Embed with ``model``; the first request connects to the server."""
        self.model = model
        kind = provider_of(provider)
        self._client = OpenAIClient(
            kind, base_url, api_key=api_key, timeout=timeout, retries=retries, client=client
        )
        title = f"embedder {provider}/{model} at {self._client.address}"
        self.endpoint = Endpoint(f"embedder {model}", self._client.limits, title=title)

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of ``texts``, one a row; raise `JudgeError` on failure."""
        shown = [(text or " ").encode("utf-8", "replace").decode() for text in texts]
        body = {"model": self.model, "input": shown, "encoding_format": "base64"}

        async def send() -> Vectors:
            return _rows(await self._client.post("/embeddings", body), len(texts))

        await self._client.open()  # now, because the time of an attempt is limited
        return await self.endpoint.call(send)


def _rows(payload: Mapping[str, Any], count: int) -> Vectors:
    rows: dict[int, Vectors] = {}
    try:
        for item in payload["data"]:
            row = item["embedding"]
            if isinstance(row, str):
                row = np.frombuffer(base64.b64decode(row), dtype="<f4")
            rows[item["index"]] = np.asarray(row, dtype=np.float64)
        return np.stack([rows[i] for i in range(count)])
    except (KeyError, TypeError, ValueError) as error:
        raise UnparsableReplyError(f"not {count} vectors of one length: {error!r}") from error


class LangChainEmbedder:
    """An embedder that calls LangChain ``Embeddings`` on at most 16 worker threads.

    The synchronous ``embed_documents`` is called, not ``aembed_documents``: LangChain's packages
    share one asynchronous HTTP client in a process, which fails if two event loops use it.
    """

    def __init__(self, embeddings: Embeddings) -> None:
        self._embeddings, self._workers = embeddings, Workers()
        self.model = name_of(embeddings)

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of ``texts``, one a row; exceptions of LangChain are not converted."""
        call = partial(self._embeddings.embed_documents, list(texts))
        return np.asarray(await self._workers.run(call), dtype=np.float64)


class HashingEmbedder:
    """An offline embedder that hashes the words of a text into a vector of norm 1.

    Texts with content words in common have similar vectors, and so have questions that ask for the
    same kind of thing (who, when, how many). The embedder does not know what words mean: it is good
    for a first set-up, demos and tests.
    """

    model = "hashing"
    is_offline = True

    def __init__(self, dimensions: int = 1024) -> None:
        self._dimensions = dimensions

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of ``texts``, one a row; a text without words has a row of zeros."""
        rows = np.zeros((len(texts), self._dimensions))
        for row, text in zip(rows, texts, strict=True):
            for feature, weight in features(text[:MAX_CHARACTERS]).items():
                digest = zlib.crc32(feature.encode("utf-8", "replace"))
                sign = 1 if digest & _SIGN else -1  # features of a column cancel out on average
                row[digest % _SIGN % self._dimensions] += sign * weight
            row[:] = row / (np.linalg.norm(row) or 1.0)
        return rows


@dataclass(slots=True, eq=False, repr=False)
class Embed:
    """Embeds the texts of all metrics of one sample, each text once."""

    embedder: Embedder
    ledger: Ledger = field(default_factory=Ledger)
    requests: dict[str, tuple[asyncio.Task[Vectors], int]] = field(default_factory=dict)
    """The request of each text, and its row in the reply."""

    async def __call__(self, texts: Sequence[str]) -> Vectors:
        for text in texts:
            self.ledger.ask(text)
        new = [text for text in dict.fromkeys(texts) if text not in self.requests]
        if new:
            request = asyncio.ensure_future(self._fetch(new))
            request.add_done_callback(lambda done: done.cancelled() or done.exception())
            self.requests |= {text: (request, row) for row, text in enumerate(new)}
        # Shielded: if one metric is cancelled, other metrics still get the vectors.
        requests = [self.requests[text] for text in texts]
        return np.stack([(await asyncio.shield(task))[row] for task, row in requests])

    async def _fetch(self, texts: Sequence[str]) -> Vectors:
        sizes = {text: len(text) for text in texts}
        async with self.ledger.metered(sizes, self.embedder, part="embedder") as meter:
            rows = await self.embedder.embed(texts)
            meter.tell(Usage(embedding_requests=1))
            if np.ndim(rows) != _MATRIX or len(rows) != len(texts):
                raise UnparsableReplyError(f"shape {np.shape(rows)} for {len(texts)} texts")
        return rows
