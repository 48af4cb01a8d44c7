"""Judges and embedders of live scoring: each has an endpoint, whoever made it."""

import asyncio
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.runnables import RunnableLambda

import questions
from rag_eval_otel.config import Config
from rag_eval_otel.errors import JudgeUnavailableError
from rag_eval_otel.judge.models import build_judge, build_live_embedder, build_plain_judge
from rag_eval_otel.judge.tasks import Rating, Task
from rag_eval_otel.judge.usage import deadline_after, scope
from rag_eval_otel.types import Replies

CONTEXT = questions.context_relevance("Why?", ("One.",), voice=1)


class Talker:
    """A judge and embedder of a user; each call raises ``error``, if there is one."""

    model = "talker"
    revision = 7

    def __init__(self, error: Exception | None = None) -> None:
        self.calls = 0
        self.error = error

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        self.calls += 1
        if self.error:
            raise self.error
        return Replies(parts=tuple(Rating(rating=2) for _ in tasks), model="talker-1")

    async def embed(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        await self.reply([])
        return np.ones((len(texts), 3))


def calls_during_an_outage(config: Config, talker: Talker) -> tuple[int, int]:
    async def ask() -> tuple[int, int]:
        judge, embedder = build_judge(config), build_live_embedder(config)
        for i in range(30):
            with (
                scope(deadline=deadline_after(60 if i < 5 else 0.3)),
                suppress(RuntimeError, JudgeUnavailableError),
            ):
                await judge.reply([CONTEXT])
        of_judge = talker.calls
        for i in range(30):
            with (
                scope(deadline=deadline_after(60 if i < 5 else 0.3)),
                suppress(RuntimeError, JudgeUnavailableError),
            ):
                await embedder.embed(["a"])
        return of_judge, talker.calls - of_judge

    return asyncio.run(ask())


def test_judges_and_embedders_of_users_have_a_breaker() -> None:
    """Each costs five failed calls, and the one does not count for the other."""
    talker = Talker(RuntimeError("down"))
    config = Config(judge=talker, embedder=talker)
    assert calls_during_an_outage(config, talker) == (5, 5)


def test_langchain_models_have_a_breaker() -> None:
    """Their own retries stay theirs; a call is one attempt."""
    talker = Talker()

    def fail(_: object) -> str:
        talker.calls += 1
        raise RuntimeError

    embeddings = DeterministicFakeEmbedding(size=3)
    config = Config(judge=RunnableLambda(fail), embedder=embeddings)
    assert calls_during_an_outage(config, talker) == (5, 0)


def test_a_protected_judge_looks_like_the_judge() -> None:
    """Its name and revision are in the versions of scores."""
    config = Config(judge=Talker(), embedder=Talker())
    judge, embedder = build_judge(config), build_live_embedder(config)
    assert (judge.model, getattr(judge, "revision", None)) == ("talker", 7)
    assert getattr(judge, "label_metrics", "none") is None
    assert getattr(embedder, "model", None) == "talker"
    assert "Talker" in repr(judge)
    assert asyncio.run(judge.reply([CONTEXT])).parts == (Rating(rating=2),)
    assert asyncio.run(embedder.embed(["a", "b"])).shape == (2, 3)


def test_live_scoring_has_a_breaker_and_allows_the_requests_of_all_its_turns() -> None:
    """A turn sends several requests; with a short hold, a pause of ten seconds is waited for."""
    config = Config(judge="openai/m", concurrency=16, hold_seconds=2.0)
    live: Any = build_judge(config)
    limits = live.endpoint.limits
    assert (limits.concurrency, limits.failures) == (64, 5)
    assert live.endpoint.state.limit == 64
    assert 10 < limits.patience <= config.evaluation_timeout
    plain: Any = build_plain_judge(config)
    assert math.isinf(plain.endpoint.limits.failures)
