"""What belongs to a request: its deadline, metric and prompts, and the tokens that it takes."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from rag_eval_otel.errors import JudgeError, JudgeTimeoutError, UnparsableReplyError
from rag_eval_otel.judge.budget import Budget, Reservation
from rag_eval_otel.providers import Part
from rag_eval_otel.types import Usage

if TYPE_CHECKING:
    from typing_extensions import Self

Weights: TypeAlias = Mapping[Any, int]
_COUNTS = tuple(field.name for field in fields(Usage))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The context of a request: when it must end, which metric asks, and what counts it."""

    deadline: float = math.inf
    metric: str | None = None
    prompts: Mapping[str, str] | None = None
    meter: Meter | None = None


_NO_SCOPE = Scope()
_SCOPE: ContextVar[Scope] = ContextVar("rag_eval_otel_scope", default=_NO_SCOPE)


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


def deadline_after(seconds: float | None, *, clock: Callable[[], float] = time.monotonic) -> float:
    return min(math.inf if seconds is None else clock() + seconds, _SCOPE.get().deadline)


def is_offline(model: object) -> bool:
    return getattr(model, "is_offline", False) is True


def title_of(part: Part, model: object) -> str:
    title = getattr(getattr(model, "endpoint", None), "title", None)
    names = (title, *(getattr(model, name, None) for name in ("title", "model")))
    name = next(filter(None, names), type(model).__name__)
    return name if title else f"{part} {name}"


@dataclass(slots=True)
class AttemptUsage:
    """The tokens of one attempt, as the server names them; None if it does not."""

    usage: Usage | None = None


def _is_unpaid(error: BaseException) -> bool:
    is_unknown = isinstance(error, JudgeTimeoutError | UnparsableReplyError)
    return isinstance(error, JudgeError) and not is_unknown


class Meter:
    """Counts the attempts of one request to a judge or an embedder, as a context manager.

    The first attempt passes ``budget`` when the block is entered, and each further one when the
    client calls `attempt`. If the client does not, the tokens given to `tell` count, or else an
    estimate; a request that ends before its first attempt then counts as one.
    """

    def __init__(self, budget: Budget | None, *, model: str, size: int, part: Part) -> None:
        self.usage = Usage()
        self.budget, self.model, self.size, self.part = budget, model, size, part
        self.is_closed = False
        self._unused: Reservation | None = None
        self._is_told = False
        self.assumed = 1  # attempts, if none is counted; 0 if the client calls `attempt`
        self.begun = self._ended = 0

    async def __aenter__(self) -> Self:
        self._unused = await self.reserve()
        self._scope = scope(meter=self)
        self._scope.__enter__()
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._scope.__exit__(None, None, None)
        self.is_closed = True
        if error is not None and self.assumed and not self.begun:
            is_sent = not isinstance(error, JudgeError) or error.requests > 0
            self.usage = _requests(self.part, int(is_sent))
        is_known = self._is_told if error is None else _is_unpaid(error)
        requests = self.usage.judge_requests + self.usage.embedding_requests
        self.settle(self.take_unused(), self.usage if is_known else None, requests=requests)

    def tell(self, usage: Usage) -> None:
        if self.begun or not self.assumed:
            return
        self.usage, self._is_told = usage, usage.tokens > 0
        if self.budget is not None and not usage.judge_requests + usage.embedding_requests:
            self.usage += _requests(self.part, 1)

    def close(self) -> Usage:
        self.is_closed = True
        return self.usage + _requests(self.part, max(self.begun, self.assumed) - self._ended)

    def end(self, reservation: Reservation | None, usage: Usage | None) -> None:
        self._ended += 1
        tokens = replace(usage or Usage(), judge_requests=0, embedding_requests=0)
        counted = tokens + _requests(self.part, 1)
        self.usage += counted
        self.settle(reservation, None if usage is None else counted)

    def take_unused(self) -> Reservation | None:
        reservation, self._unused = self._unused, None
        return reservation

    def settle(self, taken: Reservation | None, usage: Usage | None, *, requests: int = 1) -> None:
        if taken is not None and self.budget is not None:
            self.budget.settle(taken, usage, requests=requests)

    async def reserve(self) -> Reservation | None:
        if self.budget is None:
            return None
        return await self.budget.reserve(self.model, size=self.size, part=self.part)


@contextmanager
def shared_by(meters: Sequence[Meter]) -> Iterator[None]:
    """Count the attempts in the block once, and divide them among ``meters`` by their sizes."""
    if not meters:
        yield
        return
    for meter in meters:
        meter.settle(meter.take_unused(), Usage())
    first, size = meters[0], sum(meter.size for meter in meters)
    total = Meter(first.budget, model=first.model, size=size, part=first.part)
    try:
        with scope(meter=total):
            yield
    finally:
        still_open = [meter for meter in meters if not meter.is_closed]
        parts = shares(total.usage, [meter.size for meter in still_open])
        for meter, part in zip(still_open, parts, strict=True):
            meter.usage += part


def will_attempt() -> None:
    """Tell the `Meter` of this context, before any wait, that the client calls `attempt`."""
    if meter := _SCOPE.get().meter:
        meter.assumed = 0


@asynccontextmanager
async def attempt() -> AsyncIterator[AttemptUsage]:
    """Count one HTTP request, whose ``usage`` the caller sets; raise `BudgetSpentError` before."""
    meter, result = _SCOPE.get().meter, AttemptUsage()
    if meter is None:
        yield result
        return
    reservation = meter.take_unused() or await meter.reserve()
    meter.begun += 1
    unnamed: Usage | None = None
    try:
        yield result
    except JudgeError as error:
        unnamed = Usage() if _is_unpaid(error) else None
        raise
    finally:
        meter.end(reservation, result.usage or unnamed)


def _requests(part: Part, number: int) -> Usage:
    is_embedder = part == "embedder"
    return Usage(**{"embedding_requests" if is_embedder else "judge_requests": number})


class Ledger:
    """Divides the requests of one sample among questions, by weight, and those among metrics."""

    def __init__(self, budget: Budget | None = None) -> None:
        self.usage = Usage()
        self._budget = budget
        self._open: dict[Meter, Mapping[Any, int]] = {}
        self._asked: dict[Hashable, dict[str, None]] = {}
        self._spent: dict[Hashable, Usage] = {}

    def ask(self, question: Hashable) -> None:
        metric = _SCOPE.get().metric
        if metric is not None:
            self._asked.setdefault(question, {})[metric] = None

    @asynccontextmanager
    async def metered(self, weights: Weights, *, model: str, part: Part) -> AsyncIterator[Meter]:
        meter = Meter(self._budget, model=model, size=sum(weights.values()), part=part)
        self._open[meter] = weights
        try:
            async with meter:
                yield meter
        finally:
            if self._open.pop(meter, None) is not None:  # else `close` has counted it
                self.spend(weights, meter.usage)

    def close(self) -> None:
        for meter, weights in self._open.items():
            self.spend(weights, meter.close())
        self._open.clear()

    def spend(self, weights: Weights, usage: Usage) -> None:
        self.usage += usage
        for question, share in zip(weights, shares(usage, list(weights.values())), strict=True):
            self._spent[question] = self._spent.get(question, Usage()) + share

    def shares(self, metrics: Iterable[str]) -> dict[str, Usage]:
        by_metric = dict.fromkeys(metrics, Usage())
        for question, usage in self._spent.items():
            askers = [name for name in self._asked.get(question, ()) if name in by_metric]
            for name, share in zip(askers, shares(usage, [1] * len(askers)), strict=True):
                by_metric[name] += share
        return by_metric


def shares(usage: Usage, weights: list[int]) -> list[Usage]:
    """Divide ``usage`` in proportion to ``weights``; each field of the results adds up exactly."""
    if len(weights) == 1:
        return [usage]
    weights = weights if any(weights) else [1] * len(weights)
    # Cached tokens are divided apart from others, so that no share has more than its prompt.
    fresh = replace(usage, prompt_tokens=usage.prompt_tokens - usage.cached_tokens)
    columns = {name: _divided(getattr(fresh, name), weights) for name in _COUNTS}
    pairs = zip(columns["prompt_tokens"], columns["cached_tokens"], strict=True)
    columns["prompt_tokens"] = list(map(sum, pairs))
    rows = zip(*columns.values(), strict=True)
    return [Usage(**dict(zip(columns, row, strict=True))) for row in rows]


def _divided(number: int, weights: list[int]) -> list[int]:
    ends = [0, *(number * part // sum(weights) for part in accumulate(weights))]
    return [end - start for start, end in pairwise(ends)]
