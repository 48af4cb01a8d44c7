"""What belongs to a request: its deadline, metric and prompts, and the tokens that it takes."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import sub
from typing import TYPE_CHECKING, Any, TypeAlias

from rag_eval_otel.errors import JudgeError, JudgeTimeoutError, UnparsableReplyError
from rag_eval_otel.judge.budget import Budget, Reservation
from rag_eval_otel.providers import Part
from rag_eval_otel.types import COUNTS, Usage

if TYPE_CHECKING:
    from typing_extensions import Self

Weights: TypeAlias = Mapping[Any, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What the code that sends a request gets from its caller, in a context variable.

    The deadline of the turn (``time.monotonic``), the metric that asks, the user's prompts by name,
    the `Meter` of the request, and a function that gets each `Attempt` with this meter.
    """

    deadline: float = math.inf
    metric: str | None = None
    prompts: Mapping[str, str] | None = None
    meter: Meter | None = None
    on_attempt: Callable[[Any, Meter | None], object] = lambda *_: None


_SCOPE: ContextVar[Scope] = ContextVar("rag_eval_otel_scope", default=Scope())  # noqa: B039


def current_scope() -> Scope:
    return _SCOPE.get()


@contextmanager
def scope(**changes: Any) -> Iterator[None]:
    """Change fields of the `Scope` in the ``with`` block, and in asyncio tasks started there."""
    token = _SCOPE.set(replace(_SCOPE.get(), **changes))
    try:
        yield
    finally:
        _SCOPE.reset(token)


def note(**fields: Any) -> None:
    """Add ``fields``, such as the texts of the request that is under way, to its `Meter`."""
    if meter := _SCOPE.get().meter:
        meter.notes |= fields


def deadline_after(seconds: float | None, *, clock: Callable[[], float] = time.monotonic) -> float:
    return min(math.inf if seconds is None else clock() + seconds, _SCOPE.get().deadline)


def is_offline(model: object) -> bool:
    return getattr(model, "is_offline", False) is True


def name_of(model: object) -> str:
    name = getattr(model, "model", None)
    return name if isinstance(name, str) else type(model).__name__


def title_of(part: Part, model: object) -> str:
    title = getattr(getattr(model, "endpoint", None), "title", None)
    return title or f"{part} {getattr(model, 'title', None) or name_of(model)}"


@dataclass(slots=True)
class AttemptUsage:
    """The tokens of one attempt, as the response of the server says; None if it does not say."""

    usage: Usage | None = None


def _is_unpaid(error: BaseException) -> bool:
    is_unknown = isinstance(error, JudgeTimeoutError | UnparsableReplyError)
    return isinstance(error, JudgeError) and not is_unknown


class Meter:
    """Counts attempts and tokens of one request; reserves budget for the first attempt on entry.

    `OpenAIClient` calls `attempt` for each HTTP request; else `tell`, or the estimate, counts.
    """

    def __init__(self, budget: Budget | None, *, model: str, size: int, part: Part) -> None:
        self.budget, self.model, self.size, self.part = budget, model, size, part
        self.usage = Usage()
        self.notes: dict[str, Any] = {}  # about the last attempt
        self.error: BaseException | None = None
        self.assumed = 1  # attempts, if none is counted
        self._unused: Reservation | None = None
        self._is_told = False
        self._begun = self._ended = 0

    async def __aenter__(self) -> Self:
        self._unused = await self._reserve()
        self._token = _SCOPE.set(replace(_SCOPE.get(), meter=self))
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        _SCOPE.reset(self._token)
        self.error = error
        if error is not None and self.assumed and not self._begun:
            self.usage = self._requests(error.requests if isinstance(error, JudgeError) else 1)
        is_known = self._is_told if error is None else _is_unpaid(error)
        requests = self.usage.judge_requests + self.usage.embedding_requests
        self.settle(self.take(), self.usage if is_known else None, requests=requests)

    def tell(self, usage: Usage) -> None:
        if self._begun or not self.assumed:
            return
        self.usage, self._is_told = usage, usage.tokens > 0
        if self.budget is not None and not usage.judge_requests + usage.embedding_requests:
            self.usage += self._requests(1)

    def close(self) -> Usage:
        return self.usage + self._requests(max(self._begun, self.assumed) - self._ended)

    @asynccontextmanager
    async def attempt(self) -> AsyncIterator[AttemptUsage]:
        reservation = self.take() or await self._reserve()
        self._begun += 1
        result, unnamed = AttemptUsage(), None
        try:
            yield result
        except JudgeError as error:
            unnamed = Usage() if _is_unpaid(error) else None
            raise
        finally:
            self._ended += 1
            usage = result.usage or unnamed
            tokens = replace(usage or Usage(), judge_requests=0, embedding_requests=0)
            counted = tokens + self._requests(1)
            self.usage += counted
            self.settle(reservation, None if usage is None else counted)

    def take(self) -> Reservation | None:
        reservation, self._unused = self._unused, None
        return reservation

    def settle(self, taken: Reservation | None, usage: Usage | None, *, requests: int = 1) -> None:
        if taken is not None and self.budget is not None:
            self.budget.settle(taken, usage, requests=requests)

    async def _reserve(self) -> Reservation | None:
        if self.budget is None:
            return None
        return await self.budget.reserve(self.model, size=self.size, part=self.part)

    def _requests(self, number: int) -> Usage:
        is_embedder = self.part == "embedder"
        return Usage(**{"embedding_requests" if is_embedder else "judge_requests": number})


def will_attempt() -> None:
    """Tell the `Meter` of this context, before any wait, that `attempt` will count the requests."""
    if meter := _SCOPE.get().meter:
        meter.assumed = 0


@asynccontextmanager
async def attempt() -> AsyncIterator[AttemptUsage]:
    """Count the HTTP request in the block; raise `BudgetSpentError` if the budget refuses it."""
    meter = _SCOPE.get().meter
    async with nullcontext(AttemptUsage()) if meter is None else meter.attempt() as result:
        yield result


class Ledger:
    """Counts the usage of all requests about one sample, and each metric's share of it."""

    def __init__(self, budget: Budget | None = None) -> None:
        self.usage = Usage()
        self.failures: list[tuple[BaseException, str]] = []  # of requests, with what failed
        self._budget = budget
        self._open: dict[Meter, Weights] = {}
        self._askers: dict[Hashable, dict[str, None]] = {}
        self._spent: list[tuple[Weights, Usage]] = []

    def ask(self, question: Hashable) -> None:
        metric = _SCOPE.get().metric
        if metric is not None:
            self._askers.setdefault(question, {})[metric] = None

    @asynccontextmanager
    async def metered(self, weights: Weights, model: object, *, part: Part) -> AsyncIterator[Meter]:
        """Count the request in the block; ``weights`` maps its questions to their characters."""
        budget = None if is_offline(model) else self._budget
        meter = Meter(budget, model=name_of(model), size=sum(weights.values()), part=part)
        self._open[meter] = weights
        try:
            async with meter:
                yield meter
        finally:
            if meter.error is not None:
                self.failures.append((meter.error, title_of(part, model)))
            if self._open.pop(meter, None) is not None:  # else `close` has counted it
                self.spend(weights, meter.usage)

    def close(self) -> None:
        for meter, weights in self._open.items():
            self.spend(weights, meter.close())
        self._open.clear()

    def spend(self, weights: Weights, usage: Usage) -> None:
        self.usage += usage
        self._spent.append((weights, usage))

    def shares(self, metrics: Iterable[str]) -> dict[str, Usage]:
        by_metric = dict.fromkeys(metrics, Usage())
        for weights, usage in self._spent:
            parts = dict.fromkeys(by_metric, 0.0)
            for question, weight in weights.items():
                askers = self._askers.get(question, ())
                for name in askers:
                    parts[name] += weight / len(askers)
            paid = {name: part for name, part in parts.items() if part}
            for name, share in zip(paid, shares(usage, [*paid.values()]), strict=True):
                by_metric[name] += share
        return by_metric


def shares(usage: Usage, weights: Sequence[float]) -> list[Usage]:
    """Divide ``usage`` in proportion to ``weights`` into whole numbers with the same sums."""
    ends = [*accumulate(weights if any(weights) else [1] * len(weights))]

    def divided(name: str) -> Iterator[int]:
        number = getattr(usage, name)
        marks = [round(number * end / ends[-1]) for end in ends]
        return map(sub, marks, [0, *marks])

    rows = zip(*map(divided, COUNTS), strict=True)
    return [Usage(**dict(zip(COUNTS, row, strict=True))) for row in rows]
