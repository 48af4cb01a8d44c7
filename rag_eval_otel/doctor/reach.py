"""Whether judge, embedder and OTLP endpoints answer: one small request each, with a time limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from rag_eval_otel.config import Config
from rag_eval_otel.doctor.otlp import Answer, probe
from rag_eval_otel.doctor.targets import Target
from rag_eval_otel.errors import JudgeError, JudgeTimeoutError
from rag_eval_otel.judge.models import build_embedder, build_plain_judge
from rag_eval_otel.judge.tasks import STATEMENTS
from rag_eval_otel.runtime.background import DaemonExecutor

if TYPE_CHECKING:
    from rag_eval_otel.judge.tasks import Judge
    from rag_eval_otel.types import Embedder

Part = Literal["judge", "embedder"]
PARTS: Final[tuple[Part, ...]] = ("judge", "embedder")

_QUESTION, _ANSWER = "What is the capital of France?", "Paris is the capital of France."


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What judge or embedder answered in ``seconds``; ``error`` where there was no usable reply."""

    part: Part
    name: str
    told: str
    seconds: float
    error: JudgeError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Who was asked and what came of it."""

    replies: tuple[Reply, ...] = ()
    answers: tuple[Answer, ...] = ()


def reach(
    config: Config | None,
    targets: Sequence[Target],
    *,
    parts: Sequence[Part] = PARTS,
    timeout: float,
) -> Reached:
    """Ask the ``parts`` and the ``targets`` at once, each for at most ``timeout`` seconds.

    Without a config there is nobody to ask but the ``targets``.
    """
    asked = [] if config is None else _questions(config, parts, timeout=timeout)
    return asyncio.run(_reach(asked, targets, timeout=timeout))


async def _reach(
    asked: Sequence[Awaitable[Reply]], targets: Sequence[Target], *, timeout: float
) -> Reached:
    # Nobody waits for its threads, of which one may hang in a name look-up.
    asyncio.get_running_loop().set_default_executor(DaemonExecutor())
    replies, answers = await asyncio.gather(
        asyncio.gather(*asked), asyncio.gather(*(_probe(one, timeout) for one in targets))
    )
    return Reached(replies=tuple(replies), answers=tuple(answers))


async def _probe(target: Target, timeout: float) -> Answer:
    loop = asyncio.get_running_loop()
    try:
        # A look around takes as long again.
        found = loop.run_in_executor(None, probe, target, timeout)
        return await asyncio.wait_for(found, 2 * timeout)
    except asyncio.TimeoutError:
        return Answer(target=target, verdict="timeout", told="no answer in time")


def _questions(
    config: Config, parts: Sequence[Part], *, timeout: float
) -> list[Coroutine[Any, Any, Reply]]:
    hasty = replace(config, judge_timeout=timeout, judge_retries=0)
    asked = []
    if "judge" in parts:
        question = ask_judge(build_plain_judge(hasty))
        asked.append(_timed("judge", str(config.judge), question, timeout=timeout))
    if "embedder" in parts:
        question = ask_embedder(build_embedder(hasty))
        asked.append(_timed("embedder", str(config.embedder), question, timeout=timeout))
    return asked


async def _timed(part: Part, name: str, question: Awaitable[str], *, timeout: float) -> Reply:
    began = time.monotonic()
    reply = partial(Reply, part=part, name=name)
    try:
        told = await asyncio.wait_for(question, timeout)
    except asyncio.TimeoutError:
        late = JudgeTimeoutError(f"no reply within {timeout:g} s")
        return reply(told=str(late), seconds=time.monotonic() - began, error=late)
    except JudgeError as error:
        return reply(told=str(error), seconds=time.monotonic() - began, error=error)
    return reply(told=told, seconds=time.monotonic() - began)


async def ask_judge(judge: Judge) -> str:
    """Put one small question to ``judge`` and return who answered; raise a `JudgeError` if none."""
    task = STATEMENTS.task({"question": _QUESTION, "answer": _ANSWER})
    replies = await judge.reply([task])
    first = replies.parts[0]
    if isinstance(first, JudgeError):
        raise first
    return f"{replies.model} answers"


async def ask_embedder(embedder: Embedder) -> str:
    """Embed one text and return the size of the vector; raise a `JudgeError` if there is none."""
    rows = await embedder.embed([_ANSWER])
    return f"vectors of {rows.shape[1]}"
