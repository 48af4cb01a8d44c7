"""`Budget`: how much may be asked of the judge, and the judge that keeps to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rag_eval_otel.errors import BudgetSpentError, ConfigError
from rag_eval_otel.judge.tasks import Judge, Task
from rag_eval_otel.types import Replies


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of one run: judge requests, and tokens (prompt and completion together).

    No request is sent once a limit is reached. Requests under way are finished, so that tokens may
    go over by what these take. Scores that are not given for it are errors, reason ``budget``.
    """

    requests: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        """Refuse limits that are no whole number from 0."""
        for name in ("requests", "tokens"):
            value = getattr(self, name)
            is_number = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (is_number and value >= 0):
                msg = f"Budget.{name} must be a whole number, 0 or more, not {value!r}"
                raise ConfigError(msg)


class ThriftyJudge:
    """Asks ``judge`` until ``budget`` is spent."""

    def __init__(self, judge: Judge, budget: Budget) -> None:
        """Start with nothing spent."""
        self._judge = judge
        self._budget = budget
        self._requests = 0
        self._tokens = 0

    @property
    def model(self) -> str:
        """The model of the judge that is asked."""
        return self._judge.model

    @property
    def revision(self) -> object:
        """The revision of the judge that is asked, where it is a program that has one."""
        return getattr(self._judge, "revision", None)

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Pass ``tasks`` on; raise `BudgetSpentError` without asking once a limit is reached."""
        budget = self._budget
        if budget.requests is not None and self._requests >= budget.requests:
            msg = f"not asked: the budget of {budget.requests} judge requests is spent"
            raise BudgetSpentError(msg)
        if budget.tokens is not None and self._tokens >= budget.tokens:
            msg = f"not asked: the budget of {budget.tokens} tokens is spent"
            raise BudgetSpentError(msg)
        self._requests += 1
        replies = await self._judge.reply(tasks)
        usage = replies.usage
        self._requests += max(0, usage.judge_requests - 1)
        self._tokens += usage.prompt_tokens + usage.completion_tokens
        return replies
