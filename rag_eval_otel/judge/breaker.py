"""A circuit breaker around a judge: an outage must not cost a timeout for every turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from rag_eval_otel.errors import (
    JudgeRequestError,
    JudgeUnavailableError,
    UnparsableReplyError,
)
from rag_eval_otel.judge.tasks import Judge, Task
from rag_eval_otel.types import Replies


class CircuitBreaker:
    """Stops asking ``judge`` for ``cooldown`` seconds after ``failures`` failed requests in a row.

    After the cool-down one request is let through; its success closes the circuit again, its
    failure starts another cool-down. A reply that does not parse is not an outage, nor is a
    request that is refused for what is in it: one text that is too long must not cost the others.
    """

    def __init__(
        self,
        judge: Judge,
        *,
        failures: int = 5,
        cooldown: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Guard ``judge``."""
        self._judge = judge
        self._limit = failures
        self._cooldown = cooldown
        self._clock = clock
        self._failed = 0
        self._open_until = float("-inf")

    @property
    def model(self) -> str:
        """The guarded judge's model."""
        return self._judge.model

    @property
    def revision(self) -> int | None:
        """The guarded judge's revision, where it is a program that has one."""
        return getattr(self._judge, "revision", None)

    @property
    def label_metrics(self) -> frozenset[str] | None:
        """The metrics that the guarded judge lets the overall label go by; None: all."""
        return getattr(self._judge, "label_metrics", None)

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Pass ``tasks`` on; raise `JudgeUnavailableError` at once while the circuit is open."""
        self._admit()
        failed = True
        try:
            replies = await self._judge.reply(tasks)
            failed = False
        except (UnparsableReplyError, JudgeRequestError):
            failed = False
            raise
        finally:
            self._count(failed=failed)
        return replies

    def _admit(self) -> None:
        now = self._clock()
        if now < self._open_until:
            wait = self._open_until - now
            msg = f"not asked: {self._failed} requests failed in a row; next try in {wait:.0f} s"
            raise JudgeUnavailableError(msg)
        if self._failed >= self._limit:
            self._open_until = now + self._cooldown  # the others wait for this one's outcome

    def _count(self, *, failed: bool) -> None:
        if not failed:
            self._failed, self._open_until = 0, float("-inf")
            return
        self._failed += 1
        if self._failed >= self._limit:
            self._open_until = self._clock() + self._cooldown
