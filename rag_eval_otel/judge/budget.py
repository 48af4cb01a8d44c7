"""`Budget`: limit the requests, tokens and money of judge and embedder in windows of time.

A request is *reserved* with an estimate before it is sent, and *settled* with its real tokens when
it has ended. So requests that are under way at the same time count, too.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from rag_eval_otel.errors import BudgetSpentError, ConfigError
from rag_eval_otel.limits import Limit
from rag_eval_otel.prices import Prices
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.types import Usage

CELLS = 200
"""A window is divided into this number of cells, each of which leaves the window as a whole."""
NANO = 1_000_000_000
"""Money is counted in whole billionths of the currency, so that sums are exact."""
_REPLY = 256  # tokens of a reply, before there was one
_CHARACTERS = 3.0  # in a token of a prompt, before there was one; English has about 4
_FRESH = 1.0  # seconds for which the sums of all processes that a request has seen are used
_FORGET = 0.9  # share of the largest earlier value that an estimate keeps after each value
_HALVED = 60.0  # seconds without a value, after which an estimate keeps half of the largest


class SlidingWindow:
    """Adds up whole amounts of the last ``seconds`` seconds.

    The window is divided into ``cells`` cells. The sum also has the amounts of the cell that only
    partly lies in the window. So if the sum is never above a limit, no window of ``seconds``
    seconds has more than the limit. Amounts are kept longer than ``seconds`` by at most one cell.
    The window is not thread-safe.
    """

    def __init__(self, seconds: float, *, cells: int = CELLS) -> None:
        self._count = cells
        self._width = seconds / cells
        self._cells: deque[list[int]] = deque()  # pairs of the cell's number and its amount
        self._sum = 0

    def sum(self, now: float) -> int:
        """Return the sum of the amounts in the window that ends at ``now`` (seconds)."""
        first = int(now / self._width) - self._count
        while self._cells and self._cells[0][0] < first:
            self._sum -= self._cells.popleft()[1]
        return self._sum

    def add(self, now: float, amount: int) -> int:
        """Add ``amount`` at ``now`` (seconds), and return the number of its cell."""
        cell = int(now / self._width)
        if self._cells and self._cells[-1][0] >= cell:  # ``>``: another thread had a later time
            cell = self._cells[-1][0]
            self._cells[-1][1] += amount
        else:
            self._cells.append([cell, amount])
        self._sum += amount
        return cell

    def correct(self, cell: int, difference: int) -> None:
        """Add ``difference`` to the amount of ``cell``, unless it has left the window."""
        for found in reversed(self._cells):
            if found[0] == cell:
                found[1] += difference
                self._sum += difference
            if found[0] <= cell:
                return


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a store of counts answers: the index of the exceeded limit, or the cells of amounts.

    ``used`` are the sums in the windows, which include what was taken.
    """

    refused: int | None
    cells: tuple[int, ...] = ()
    used: tuple[int, ...] = ()


class SharedCounts(Protocol):
    """Counts that several processes share, such as `judge.redis_counts.RedisCounts`."""

    async def take(self, amounts: Sequence[int], used: Sequence[int]) -> Taken | None:
        """Take ``amounts`` if no limit is exceeded; return None if the store cannot be reached.

        ``used`` is what this process has used in the windows, in case that the store has lost it.
        """

    def correct(self, cells: Sequence[int], differences: Sequence[int]) -> None:
        """Add ``differences`` to the amounts that were taken in ``cells``; return at once."""

    def add(self, amounts: Sequence[int]) -> None:
        """Add ``amounts`` that this process has used while the store could not be reached."""


class _LocalCounts:
    """The counts of this process. Thread-safe.

    With ``inherited``, a forked child goes on with the counts of its parent. Otherwise it counts
    from zero, because a store that both share has the counts of the parent.
    """

    def __init__(
        self, limits: Sequence[Limit], clock: Callable[[], float], *, inherited: bool
    ) -> None:
        self._limits = [whole(limit) for limit in limits]
        self._seconds = [limit.seconds for limit in limits]
        self._clock = clock
        self._inherited = inherited
        self._forget()
        call_in_child(self._reset)

    def _forget(self) -> None:
        self._windows = [SlidingWindow(seconds) for seconds in self._seconds]
        self._lock = threading.RLock()

    def _reset(self) -> None:
        """Create the lock that a forked child needs, because no thread would unlock the old one."""
        if self._inherited:
            self._lock = threading.RLock()
        else:
            self._forget()

    def take(self, amounts: Sequence[int]) -> Taken:
        with self._lock:
            now = self._clock()
            used = [window.sum(now) for window in self._windows]
            refused = first_exceeded(used, amounts, limits=self._limits)
            if refused is not None:
                return Taken(refused=refused, used=tuple(used))
            return self._add(now, amounts)

    def add(self, amounts: Sequence[int]) -> Taken:
        """Take ``amounts`` in any case."""
        with self._lock:
            return self._add(self._clock(), amounts)

    def _add(self, now: float, amounts: Sequence[int]) -> Taken:
        pairs = list(zip(self._windows, amounts, strict=True))
        cells = tuple(window.add(now, amount) for window, amount in pairs)
        return Taken(refused=None, cells=cells, used=tuple(w.sum(now) for w in self._windows))

    def correct(self, cells: Sequence[int], differences: Sequence[int]) -> None:
        with self._lock:
            for window, cell, each in zip(self._windows, cells, differences, strict=True):
                window.correct(cell, each)

    def used(self) -> list[int]:
        with self._lock:
            now = self._clock()
            return [window.sum(now) for window in self._windows]


def whole(limit: Limit) -> int:
    """Return the amount of ``limit`` as a whole number: requests, tokens, or `NANO` of money."""
    return int(limit.amount * NANO) if limit.is_money else int(limit.amount)


def first_exceeded(
    used: Sequence[int], more: Sequence[int], *, limits: Sequence[int]
) -> int | None:
    """Return the index of the first limit that ``more`` would exceed, or None.

    If nothing is ``used`` of a limit, it admits any amount: an amount above the whole limit would
    otherwise be refused for ever.
    """
    for index, (sum_, amount, limit) in enumerate(zip(used, more, limits, strict=True)):
        if amount and sum_ and sum_ + amount > limit:
            return index
    return None


class _LargestRecent:
    """Estimates the next value by the largest of the recent values; at least their mean.

    A larger value counts at once. A tenth of it is forgotten with each further value, and half of
    it in each minute without a value. So one large value does not refuse all later requests.
    """

    def __init__(self, first: float) -> None:
        self._largest = self._mean = first
        self._at = math.inf  # seconds, when the last value came

    def estimate(self, now: float) -> float:
        """Return the estimate at ``now`` (seconds)."""
        minutes = max(0.0, now - self._at) // _HALVED
        return max(self._mean, math.ldexp(self._largest, -int(minutes)))

    def learn(self, value: float, now: float) -> None:
        """Include ``value``, which came at ``now`` (seconds)."""
        self._largest = max(value, self.estimate(now) * _FORGET)
        self._mean += (value - self._mean) * (1 - _FORGET)
        self._at = now


@dataclass(slots=True, eq=False, kw_only=True)
class Reservation:
    """A request that `Budget.reserve` has admitted: its model and estimate, and where it counts."""

    model: str
    part: str
    size: int
    amounts: tuple[int, ...]
    cells: tuple[int, ...]
    shared: tuple[int, ...] | None
    """The cells in the shared counts; None if these were not reached."""
    is_settled: bool = False


class Budget:
    """Limits what the requests to judge and embedder may take in windows of time.

    ``limits`` are in requests, tokens or money; requests and tokens are those of judge and embedder
    together. Each window slides, so that any window of its length has at most the limit, apart from
    estimates that were too low. With 64 threads, a limit is exceeded by the part of at most one
    request a thread that its estimate missed, and a limit of requests is never exceeded. A single
    request that takes more than a limit is admitted if nothing of the limit is used.

    A request is estimated by the size of its prompt, and by the largest of the recent replies.
    ``reply_tokens``, if set, is the most tokens of a reply. With ``estimates`` off, a request is
    admitted while anything is left, and may exceed the limit. ``prices`` are needed for money.
    ``shared`` are counts of several processes; if they cannot be reached, this process counts
    alone. ``clock`` returns seconds and never goes back. The object is thread-safe.
    """

    def __init__(
        self,
        limits: Sequence[Limit],
        *,
        prices: Prices | None = None,
        reply_tokens: int | None = None,
        estimates: Literal["on", "off"] = "on",
        shared: SharedCounts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = tuple(limits)
        self.prices = prices or Prices()
        self._most_reply = math.inf if reply_tokens is None else reply_tokens
        self._estimates = estimates
        self._reply = _LargestRecent(_REPLY)
        # An embedder may be a model with other tokens, and its texts have no instructions.
        self._per_character = {
            part: _LargestRecent(1 / _CHARACTERS) for part in ("judge", "embedder")
        }
        self._shared = shared
        self._local = _LocalCounts(self.limits, clock, inherited=shared is None)
        self._clock = clock
        self._seen: tuple[int, ...] = ()
        self._seen_until = -math.inf
        for limit in self.limits:
            if limit.is_money and limit.unit != self.prices.currency:
                msg = (
                    f"the budget {limit} is in {limit.unit}, but prices are in"
                    f" {self.prices.currency}: use one currency in the options budget and prices"
                )
                raise ConfigError(msg)

    def require_price(self, model: str, part: str) -> None:
        """Raise `ConfigError` if there is a limit of money, and ``model`` has no price.

        ``part`` is ``judge`` or ``embedder``; a judge needs a price of its replies, too.
        """
        money = next((limit for limit in self.limits if limit.is_money), None)
        price = self.prices.price_of(model)
        if money is None or (price is not None and (part != "judge" or price.output is not None)):
            return
        lacks = "which is not known" if price is None else 'whose price has no "output"'
        msg = (
            f"the budget {money} needs the price of the {part} {model!r}, {lacks}:"
            " name it in the option prices (docs/cost.md), or limit requests or tokens"
        )
        raise ConfigError(msg)

    # --- requests -------------------------------------------------------------------------------

    async def reserve(self, model: str, *, size: int, part: str = "judge") -> Reservation:
        """Admit one attempt of a request to ``model``, or raise `BudgetSpentError`.

        ``size`` is the number of characters of the prompt or of the texts to embed. ``part`` is
        ``judge`` or ``embedder``; an embedder writes no reply. Each reservation must be settled.
        """
        amounts = self.amounts(model, self._estimate(size, part))
        found = None
        if self._shared is not None:
            found = await self._shared.take(amounts, self._local.used())
        if found is None:
            local = self._local.take(amounts)
            self._raise_if_refused(local)
        else:
            self._seen, self._seen_until = found.used, self._clock() + _FRESH
            self._raise_if_refused(found)
            # This process counts on its own, too, for the time when the shared counts are gone.
            local = self._local.add(amounts)
        return Reservation(
            model=model,
            part=part,
            size=size,
            amounts=amounts,
            cells=local.cells,
            shared=None if found is None else found.cells,
        )

    def settle(self, reservation: Reservation, usage: Usage | None, *, requests: int = 1) -> None:
        """Replace the estimate of ``reservation`` by ``usage``; a second call changes nothing.

        None stands for unknown tokens, as after a timeout: then the estimate counts for each of
        ``requests``.
        """
        if reservation.is_settled:
            return
        reservation.is_settled = True
        amounts = tuple(requests * amount for amount in reservation.amounts)
        if usage is not None:
            amounts = self.amounts(reservation.model, usage)
            self._learn(reservation, usage)
        differences = [new - old for new, old in zip(amounts, reservation.amounts, strict=True)]
        self._local.correct(reservation.cells, differences)
        if self._shared is None:
            return
        if reservation.shared is None:
            self._shared.add(amounts)
        elif any(differences):
            self._shared.correct(reservation.shared, differences)

    def _raise_if_refused(self, found: Taken) -> None:
        if found.refused is not None:
            msg = f"not asked: the budget of {self.limits[found.refused]} is spent"
            raise BudgetSpentError(msg)

    # --- amounts --------------------------------------------------------------------------------

    def amounts(self, model: str, usage: Usage) -> tuple[int, ...]:
        """Return what ``usage`` of ``model`` is, in the unit of each limit."""
        return tuple(self._amount(limit, usage, model=model) for limit in self.limits)

    def _amount(self, limit: Limit, usage: Usage, *, model: str) -> int:
        if limit.unit == "requests":
            return usage.judge_requests + usage.embedding_requests
        if limit.unit == "judge requests":
            return usage.judge_requests
        if limit.unit == "tokens":
            return usage.tokens
        price = self.prices.price_of(model)
        return 0 if price is None else math.ceil(round(price.of(usage) * NANO, 3))

    def _estimate(self, size: int, part: str) -> Usage:
        is_on, now = self._estimates == "on", self._clock()
        tokens = math.ceil(size * self._per_character[part].estimate(now)) if is_on else 1
        if part == "embedder":
            return Usage(embedding_requests=1, embedding_tokens=tokens)
        reply = math.ceil(min(self._reply.estimate(now), self._most_reply)) if is_on else 0
        return Usage(judge_requests=1, prompt_tokens=tokens, completion_tokens=reply)

    def _learn(self, reservation: Reservation, usage: Usage) -> None:
        """Adapt the estimates to ``usage``: upwards at once, and downwards with time."""
        now = self._clock()
        if usage.completion_tokens:
            self._reply.learn(usage.completion_tokens, now)
        read = usage.prompt_tokens + usage.embedding_tokens
        if read and reservation.size:
            self._per_character[reservation.part].learn(read / reservation.size, now)

    # --- state ----------------------------------------------------------------------------------

    @property
    def spent_limit(self) -> Limit | None:
        """The first limit that is reached now, or None. Other processes count as last seen."""
        ones = [1] * len(self.limits)
        index = first_exceeded(self._used(), ones, limits=[whole(limit) for limit in self.limits])
        return None if index is None else self.limits[index]

    def left(self) -> list[tuple[Limit, float]]:
        """Return each limit with what is left of it, in its unit, at least 0."""
        pairs = zip(self.limits, self._used(), strict=True)
        return [
            (limit, max(0, whole(limit) - used) / (NANO if limit.is_money else 1))
            for limit, used in pairs
        ]

    def _used(self) -> list[int]:
        local = self._local.used()
        if self._clock() >= self._seen_until:
            return local
        return [max(pair) for pair in zip(local, self._seen, strict=True)]
