"""Count what each request to judge and embedder takes, and divide it among the metrics that ask.

`Meter` counts the attempts of one request, and lets each attempt pass the budget. `Ledger` divides
the tokens of requests that several metrics share.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from rag_eval_otel.errors import JudgeError, JudgeTimeoutError, UnparsableReplyError
from rag_eval_otel.judge.budget import Budget, Reservation
from rag_eval_otel.types import Usage

if TYPE_CHECKING:
    from typing_extensions import Self

Part = Literal["judge", "embedder"]
_COUNTS = tuple(field.name for field in fields(Usage))


@dataclass(slots=True)
class AttemptUsage:
    """The tokens of one attempt at a request, as the server names them; None if it does not."""

    usage: Usage | None = None


def _is_unpaid(error: BaseException | None) -> bool:
    """Return True if a request that ended with ``error`` took no tokens, as one that was refused.

    The tokens after a timeout or a cancellation, and of a reply that cannot be read, are unknown.
    """
    return isinstance(error, JudgeError) and not isinstance(
        error, JudgeTimeoutError | UnparsableReplyError
    )


class Meter:
    """Counts the attempts of one request to a judge or an embedder, as a context manager.

    When the ``with`` block is entered, the first attempt passes ``budget`` (which may raise
    `BudgetSpentError`). A client calls `attempt` around each attempt, and a further attempt passes
    the budget, too. If the client does not call `attempt`, the tokens given to `tell` count. If no
    tokens are named, the budget counts its estimate. A request that ends before its first attempt
    counts as one request, unless the client has called `will_attempt`.

    ``model`` is the name under which prices are looked up, and ``size`` the number of characters of
    the prompt or of the texts to embed. ``usage`` are the requests and tokens up to now, ``begun``
    and ``ended`` the numbers of attempts. The meter ``is_closed`` when its usage was read.
    """

    def __init__(self, budget: Budget | None, *, model: str, size: int, part: Part) -> None:
        self.usage = Usage()
        self.budget = budget
        self.size = size
        self.is_closed = False
        self.model = model
        self.part = part
        self._unused: Reservation | None = None
        self._is_told = False  # the tokens, if the client does not call `attempt`
        self._assumed = 1  # attempts, if none is counted
        self.begun = 0
        self.ended = 0

    async def __aenter__(self) -> Self:
        self._unused = await self._reserve()
        self._token = _METER.set(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        _METER.reset(self._token)
        self.is_closed = True
        if error is not None and self._assumed and not self.begun:  # the client calls no `attempt`
            requests = error.requests if isinstance(error, JudgeError) else 1
            self.usage = _requests(self.part, min(self._assumed, requests))
        reservation, self._unused = self._unused, None
        if reservation is None or self.budget is None:
            return
        is_known = self._is_told if error is None else _is_unpaid(error)
        requests = self.usage.judge_requests + self.usage.embedding_requests
        self.budget.settle(reservation, self.usage if is_known else None, requests=requests)

    def tell(self, usage: Usage) -> None:
        """Count ``usage``, which the judge names, if the client does not count attempts.

        With a budget, it counts as one request at least.
        """
        if self.begun or not self._assumed:
            return
        self.usage, self._is_told = usage, usage.tokens > 0
        if self.budget is not None and not usage.judge_requests + usage.embedding_requests:
            self.usage += _requests(self.part, 1)

    @property
    def so_far(self) -> Usage:
        """The usage with the attempt that is under way; see the class for no attempt at all."""
        return self.usage + _requests(self.part, max(self.begun, self._assumed) - self.ended)

    def close(self) -> Usage:
        """Return the usage `so_far`; what a shared request takes later counts for other meters."""
        self.is_closed = True
        return self.so_far

    def expect_attempts(self) -> None:
        """Count attempts only, because the client calls `attempt` around each of them."""
        self._assumed = 0

    async def begin(self) -> Reservation | None:
        """Return the budget's reservation for the next attempt, or None without a budget."""
        reservation, self._unused = self._unused, None
        if reservation is None:
            reservation = await self._reserve()
        self.begun += 1
        return reservation

    def end(self, reservation: Reservation | None, usage: Usage | None) -> None:
        """Count an attempt that has ended with ``usage``; None if its tokens are not known."""
        self.ended += 1
        tokens = replace(usage or Usage(), judge_requests=0, embedding_requests=0)
        counted = tokens + _requests(self.part, 1)
        self.usage += counted
        if reservation is not None and self.budget is not None:
            self.budget.settle(reservation, None if usage is None else counted)

    def give_back(self) -> None:
        """Give the reservation back that was made when the ``with`` block was entered."""
        reservation, self._unused = self._unused, None
        if reservation is not None and self.budget is not None:
            self.budget.settle(reservation, Usage())

    async def _reserve(self) -> Reservation | None:
        if self.budget is None:
            return None
        return await self.budget.reserve(self.model, size=self.size, part=self.part)


_METER: ContextVar[Meter | None] = ContextVar("rag_eval_otel_meter", default=None)


def current_meter() -> Meter | None:
    """Return the meter in whose ``with`` block the caller is, or None."""
    return _METER.get()


@contextmanager
def shared_by(meters: Sequence[Meter]) -> Iterator[None]:
    """Count the attempts in the ``with`` block once, and divide their usage among ``meters``.

    The shares are in proportion to the sizes of the texts, for the meters that are not closed at
    the end. The first meter's budget admits the attempts.
    """
    if not meters:
        yield
        return
    for meter in meters:
        meter.give_back()
    first, size = meters[0], sum(meter.size for meter in meters)
    total = Meter(first.budget, model=first.model, size=size, part=first.part)
    token = _METER.set(total)
    try:
        yield
    finally:
        _METER.reset(token)
        still_open = [meter for meter in meters if not meter.is_closed]
        parts = shares(total.usage, [meter.size for meter in still_open])
        for meter, part in zip(still_open, parts, strict=True):
            meter.usage += part


def will_attempt() -> None:
    """Tell the `Meter` of this context, before any wait, that the client calls `attempt`."""
    meter = _METER.get()
    if meter is not None:
        meter.expect_attempts()


@asynccontextmanager
async def attempt() -> AsyncIterator[AttemptUsage]:
    """Count one attempt at a request: one HTTP request. Each retry is an attempt of its own.

    The attempt belongs to the `Meter` in whose ``with`` block it is made; without one, nothing is
    counted. Raises `BudgetSpentError`, before the attempt, if the budget is spent. The caller sets
    ``usage`` of the `AttemptUsage` to the tokens in the server's reply. An attempt that the server
    refuses takes no tokens; of unknown tokens, the budget counts its estimate.
    """
    meter, result = _METER.get(), AttemptUsage()
    if meter is None:
        yield result
        return
    reservation = await meter.begin()
    unnamed: Usage | None = None
    try:
        yield result
    except JudgeError as error:
        unnamed = Usage() if _is_unpaid(error) else None
        raise
    finally:
        meter.end(reservation, result.usage or unnamed)


def _requests(part: Part, number: int) -> Usage:
    if part == "embedder":
        return Usage(embedding_requests=number)
    return Usage(judge_requests=number)


# --- what each metric took ------------------------------------------------------------------------


class Ledger:
    """Counts the requests and tokens of one sample, and divides them among its metrics.

    ``usage`` are the requests and tokens up to now. Each request passes ``budget``.

    A request is divided among its questions (or texts to embed) in proportion to their weights. A
    question that several metrics ask is divided among them evenly. Tokens stay whole numbers, and
    the shares add up to the usage exactly. A request that cannot be halved counts for one metric.
    """

    def __init__(self, budget: Budget | None = None) -> None:
        self.usage = Usage()
        self._budget = budget
        self._open: dict[Meter, Mapping[Any, int]] = {}
        self._asked: dict[Hashable, dict[str, None]] = {}
        self._spent: dict[Hashable, Usage] = {}

    def ask(self, question: Hashable) -> None:
        """Note that the current metric (see `measuring`) asks ``question``."""
        metric = _METRIC.get()
        if metric is not None:
            self._asked.setdefault(question, {})[metric] = None

    @asynccontextmanager
    async def metered(
        self, weights: Mapping[Any, int], *, model: str, part: Part
    ) -> AsyncIterator[Meter]:
        """Count the request in the ``async with`` block for the questions in ``weights``.

        ``weights`` are the numbers of characters; see `Meter` for ``model`` and ``part``.
        """
        meter = Meter(self._budget, model=model, size=sum(weights.values()), part=part)
        self._open[meter] = weights
        try:
            async with meter:
                yield meter
        finally:
            if self._open.pop(meter, None) is not None:  # else `close` has counted it
                self.spend(weights, meter.usage)

    def close(self) -> None:
        """Count the requests under way as they are now."""
        for meter, weights in self._open.items():
            self.spend(weights, meter.close())
        self._open.clear()

    def spend(self, weights: Mapping[Any, int], usage: Usage) -> None:
        """Divide ``usage`` among the questions in ``weights``, in proportion to their weights."""
        self.usage += usage
        for question, share in zip(weights, shares(usage, list(weights.values())), strict=True):
            self._spent[question] = self._spent.get(question, Usage()) + share

    def shares(self, metrics: Iterable[str]) -> dict[str, Usage]:
        """Return what each of ``metrics`` took, by name."""
        found = dict.fromkeys(metrics, Usage())
        for question, usage in self._spent.items():
            askers = [name for name in self._asked.get(question, ()) if name in found]
            for name, share in zip(askers, shares(usage, [1] * len(askers)), strict=True):
                found[name] += share
        return found


def shares(usage: Usage, weights: list[int]) -> list[Usage]:
    """Divide ``usage`` in proportion to ``weights``; each field of the results adds up exactly.

    If all weights are zero, the shares are equal.
    """
    if len(weights) == 1:
        return [usage]
    weights = weights if any(weights) else [1] * len(weights)
    # Cached tokens are divided apart from others, so that no share has more than its prompt.
    fresh = replace(usage, prompt_tokens=usage.prompt_tokens - usage.cached_tokens)
    columns = {name: _divided(getattr(fresh, name), weights) for name in _COUNTS}
    columns["prompt_tokens"] = [
        sum(pair) for pair in zip(columns["prompt_tokens"], columns["cached_tokens"], strict=True)
    ]
    rows = zip(*columns.values(), strict=True)
    return [Usage(**dict(zip(columns, row, strict=True))) for row in rows]


def _divided(number: int, weights: list[int]) -> list[int]:
    """Divide a whole ``number`` by ``weights``: each share is rounded, and the sum is exact."""
    if not number:
        return [0] * len(weights)
    total = sum(weights)
    ends = [0, *(number * part // total for part in accumulate(weights))]
    return [end - start for start, end in pairwise(ends)]


_METRIC: ContextVar[str | None] = ContextVar("rag_eval_otel_metric", default=None)


@contextmanager
def measuring(metric: str) -> Iterator[None]:
    """Attribute questions that are asked in the ``with`` block to the metric of this name."""
    token = _METRIC.set(metric)
    try:
        yield
    finally:
        _METRIC.reset(token)
