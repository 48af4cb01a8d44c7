"""The parts of an endpoint: circuit breaker, retry budget, slots and the limiter per minute."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoints import times_of_64_threads
from rag_eval_otel.judge.outcomes import Outcome
from rag_eval_otel.judge.throttling import Breaker, Limits, Place, RateLimiter, RetryBudget, Slots

OPENING = Limits(failures=3, probe_after=30.0, probe_at_most=100.0)


def most_in_a_minute(places: Sequence[tuple[float, int]]) -> int:
    """Return the largest sum of weights in any window of 60 seconds."""
    found = sorted(places)
    most = total = first = 0
    for at, weight in found:
        total += weight
        while found[first][0] <= at - 60:
            total -= found[first][1]
            first += 1
        most = max(most, total)
    return most


# --- the breaker ----------------------------------------------------------------------------------


def failing(breaker: Breaker, times: int, outcome: Outcome = "transport") -> list[str | None]:
    """End attempts at time 0 with ``outcome``; return how the breaker changed."""
    return [breaker.ended(outcome, is_probe=breaker.begin(), now=0, draw=0.0) for _ in range(times)]


def test_a_breaker_opens_after_failures_in_a_row() -> None:
    """A success in between starts the count again."""
    breaker = Breaker(OPENING)
    failing(breaker, 2)
    failing(breaker, 1, "ok")
    assert failing(breaker, 3) == [None, None, "opened"]
    assert (breaker.state, breaker.wait(10)) == ("open", 20)


@pytest.mark.parametrize("outcome", ["not_found", "unparsable", "timeout", "internal"])
def test_useless_answers_open_a_breaker(outcome: Outcome) -> None:
    """A wrong model and a judge that talks nonsense cost three requests, not one for each turn."""
    assert failing(Breaker(OPENING), 3, outcome)[-1] == "opened"


def test_a_refused_key_opens_a_breaker_at_once() -> None:
    """No second request can do better."""
    assert failing(Breaker(OPENING), 1, "unauthorized") == ["opened"]


@pytest.mark.parametrize("outcome", ["bad_request", "cancelled"])
def test_a_text_that_is_too_long_does_not_touch_a_breaker(outcome: Outcome) -> None:
    """Such a refusal is neither a failure nor the end of failures."""
    breaker = Breaker(OPENING)
    failing(breaker, 50, outcome)
    assert breaker.state == "closed"
    failing(breaker, 2)
    failing(breaker, 1, outcome)
    assert failing(breaker, 1) == ["opened"]


def test_a_breaker_that_never_opens() -> None:
    """Without a limit of failures, as for datasets, every request is sent."""
    breaker = Breaker(Limits())
    failing(breaker, 100, "unauthorized")
    assert breaker.wait(0) is None


def test_one_probe_at_a_time_with_growing_pauses() -> None:
    """A failed probe doubles the pause, up to the longest; the next opening starts small again."""
    breaker = Breaker(OPENING)
    failing(breaker, 3)
    now, pauses = 0.0, []
    for _ in range(4):
        wait = breaker.wait(now)
        assert wait is not None
        pauses.append(wait)
        now += wait
        assert breaker.wait(now) is None
        assert breaker.begin()
        assert breaker.state == "half_open"
        assert breaker.wait(now) is not None, "the probe is under way"
        assert breaker.ended("timeout", is_probe=True, now=now, draw=0.0) is None
    assert pauses == [30, 60, 100, 100]
    assert breaker.ended("ok", is_probe=True, now=now, draw=0.0) == "closed"
    failing(breaker, 3)
    assert (breaker.wait(0), breaker.openings) == (30, 2)


def test_only_the_probe_closes_a_breaker() -> None:
    """Replies to requests that were sent before the breaker opened say nothing about now."""
    breaker = Breaker(OPENING)
    failing(breaker, 3)
    assert breaker.ended("ok", is_probe=False, now=1, draw=0.0) is None
    assert breaker.wait(1) == 29


def test_a_probe_that_is_cancelled_makes_room_for_the_next() -> None:
    """Nothing was learnt, so the next request is the probe."""
    breaker = Breaker(OPENING)
    failing(breaker, 3)
    breaker.begin()
    breaker.ended("cancelled", is_probe=True, now=40, draw=0.0)
    assert breaker.wait(40) is None
    assert breaker.begin()


def test_a_server_that_finds_fault_with_the_probe_is_back() -> None:
    """It reads requests and replies; otherwise each later request would be one more probe."""
    breaker = Breaker(OPENING)
    failing(breaker, 3)
    assert breaker.begin()
    assert breaker.ended("bad_request", is_probe=True, now=40, draw=0.0) == "closed"
    assert (breaker.state, breaker.failures, breaker.wait(40)) == ("closed", 0, None)


def test_probes_have_jitter() -> None:
    """Processes that failed together do not come back together."""
    breaker = Breaker(OPENING)
    for _ in range(3):
        breaker.ended("transport", is_probe=False, now=0, draw=0.5)
    assert breaker.wait(0) == pytest.approx(31.5)


# --- retries --------------------------------------------------------------------------------------


def test_retries_are_a_tenth_of_first_attempts() -> None:
    """However many requests want a retry, the share holds in each minute."""
    budget = RetryBudget(0.1)
    draw = random.Random(1)
    first, retries = [], []
    now = 0.0
    for _ in range(5000):
        now += draw.expovariate(20)
        budget.first(now)
        first.append((now, 1))
        if budget.take(now):
            retries.append((now, 1))
    assert budget.total == len(retries)
    assert 0.09 * len(first) < len(retries) <= 0.1 * len(first)


def test_a_first_request_may_be_retried() -> None:
    """A process that has sent one request may retry it three times in a minute."""
    budget = RetryBudget(0.1)
    budget.first(0)
    assert [budget.take(1) for _ in range(4)] == [True, True, True, False]
    assert budget.take(61.5)


# --- slots ----------------------------------------------------------------------------------------


def full(slots: Slots, seconds: float, times: int) -> None:
    """Count replies while all slots are used."""
    for _ in range(times):
        slots.in_flight = int(slots.limit)
        slots.replied(seconds)


def test_the_limit_grows_by_one_a_round_and_halves_after_a_429() -> None:
    """Additive increase back to the start, multiplicative decrease, never below one."""
    slots = Slots(16)
    assert slots.limit == 16
    full(slots, 0.1, 20)
    slots.halve()
    before = slots.limit
    assert before == 8
    full(slots, 0.1, int(before))
    assert slots.limit == pytest.approx(before + 1, abs=0.2)
    full(slots, 0.1, 1000)
    assert slots.limit == 16
    for limit in (8, 4, 2, 1, 1):
        slots.halve()
        assert slots.limit == limit


def test_after_a_429_half_of_what_was_under_way_is_allowed() -> None:
    """A limit that was not reached says nothing; what was under way was too much."""
    slots = Slots(1024)
    slots.in_flight = 16
    slots.halve()
    assert slots.limit == 8


def test_the_limit_does_not_grow_while_slots_are_free() -> None:
    """What was not tried is not known to work."""
    slots = Slots(8)
    slots.in_flight = 8
    slots.halve()
    for _ in range(100):
        slots.in_flight = 1
        slots.replied(0.1)
    assert slots.limit == 4


def test_slower_replies_cut_the_limit() -> None:
    """When replies take much longer than usual, fewer requests are under way; one is no sign."""
    slots = Slots(16)
    full(slots, 0.1, 400)
    before = slots.limit
    full(slots, 5.0, 1)
    assert slots.limit >= before
    full(slots, 5.0, 40)
    assert slots.limit < before


def test_a_request_of_a_loop_that_was_closed_takes_no_slot() -> None:
    """Its slot goes to the next that waits, and is not given back twice."""

    async def take() -> None:
        await slots.acquire(1000)

    slots = Slots(1)
    slots.in_flight = 1
    abandoned = asyncio.new_event_loop()
    task = abandoned.create_task(take())
    abandoned.call_soon(abandoned.stop)
    abandoned.run_forever()
    abandoned.close()
    slots.release()
    assert slots.in_flight == 0
    asyncio.run(take())
    assert slots.in_flight == 1
    assert not task.done()
    coroutine = task.get_coro()
    del task
    assert coroutine is not None
    coroutine.close()  # as Python does when it deletes the task
    assert slots.in_flight == 1


def test_a_cancelled_request_passes_its_slot_on() -> None:
    """A slot that was granted at the moment of the cancellation is not lost."""

    async def use() -> int:
        slots = Slots(1)
        await slots.acquire(10)
        waiting = asyncio.ensure_future(slots.acquire(10))
        await asyncio.sleep(0)
        slots.release()
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
            slots.release()
        return slots.in_flight

    assert asyncio.run(use()) == 0


# --- the limit of a minute ------------------------------------------------------------------------


@pytest.mark.slow
def test_a_limiter_is_exact_with_64_threads() -> None:
    """600 a minute: at most 606 in any 60 seconds, and at least 594 while there is demand."""
    times = times_of_64_threads(RateLimiter(600, None))
    assert most_in_a_minute([(at, 1) for at in times]) <= 606
    starts = [number / 2 + 0.123 for number in range(270)]
    full_windows = [sum(start < at <= start + 60 for at in times) for start in starts]
    assert min(full_windows) >= 594


@given(
    st.lists(st.tuples(st.floats(0, 20), st.integers(0, 120)), min_size=1, max_size=120),
    st.integers(1, 10),
    st.integers(100, 300),
)
def test_no_window_has_more_than_both_limits(
    demand: list[tuple[float, int]], requests: int, tokens: int
) -> None:
    """Requests and tokens hold in every window, whatever comes when."""
    limiter = RateLimiter(requests, tokens)
    now, places = 0.0, list[Place]()
    for step, size in demand:
        now += step
        place = limiter.reserve(now, min(size, tokens), most=1e9)
        assert place is not None
        assert place.at >= now
        places.append(place)
    assert most_in_a_minute([(place.at, 1) for place in places]) <= requests
    assert most_in_a_minute([(place.at, place.tokens) for place in places]) <= tokens


def test_a_request_that_would_wait_too_long_reserves_nothing() -> None:
    """The next that can wait gets the place."""
    limiter = RateLimiter(1, None)
    first = limiter.reserve(0, 0, most=0)
    assert first
    assert first.at == 0
    assert limiter.reserve(10, 0, most=20) is None
    waited = limiter.reserve(10, 0, most=51)
    assert waited
    assert waited.at == pytest.approx(60, abs=0.1)


@given(
    st.lists(
        st.tuples(st.floats(0, 20), st.integers(0, 120), st.booleans()), min_size=1, max_size=120
    ),
    st.integers(1, 10),
)
def test_places_that_are_given_back_are_free(
    demand: list[tuple[float, int, bool]], requests: int
) -> None:
    """A request that is cancelled while it waits delays no later one, and the limits still hold."""
    limiter = RateLimiter(requests, 300)
    now, sent = 0.0, list[tuple[float, int]]()
    for step, size, is_cancelled in demand:
        now += step
        place = limiter.reserve(now, size, most=1e9)
        assert place is not None
        if is_cancelled:
            limiter.give_back(place)
            limiter.give_back(place)  # the second time does nothing
        else:
            sent.append((place.at, size))
    assert most_in_a_minute([(at, 1) for at, _ in sent]) <= requests
    assert most_in_a_minute(sent) <= 300
    alone, at = RateLimiter(requests, 300), 0.0
    for step, size, is_cancelled in demand:
        at += step
        if not is_cancelled:
            alone.reserve(at, size, most=1e9)
    last, as_if = limiter.reserve(now, 1, most=1e9), alone.reserve(now, 1, most=1e9)
    assert last
    assert as_if
    assert last.at == as_if.at


def test_places_for_the_same_time_are_given_back_one_by_one() -> None:
    """Requests with as many tokens as others, which end in any order."""
    limiter = RateLimiter(None, 100)
    limiter.reserve(0, 100, most=0)
    places = [limiter.reserve(1, 10, most=100) for _ in range(3)]
    assert len({place.at for place in places if place}) == 1
    for place in reversed(places):
        assert place
        limiter.give_back(place)
        limiter.settle(place, 20)
    assert limiter.used(1) == (1, 100)


def test_tokens_are_corrected_after_the_reply() -> None:
    """An estimate that was too high gives the rest back; a huge request gets its own minute."""
    limiter = RateLimiter(None, 100)
    place = limiter.reserve(0, 100, most=0)
    assert place
    assert limiter.reserve(1, 50, most=0) is None
    limiter.settle(place, 40)
    assert limiter.reserve(1, 50, most=0)
    huge = limiter.reserve(2, 1000, most=100)
    assert huge
    assert huge.at == pytest.approx(61, abs=0.1)
    limiter.settle(place, 1)
    later = limiter.reserve(62, 1, most=100)
    assert later
    assert later.at == pytest.approx(121, abs=0.1)


def test_without_limits_everything_is_sent_at_once() -> None:
    """Nothing is counted."""
    limiter = RateLimiter(None, None)
    places = [limiter.reserve(0, 9, most=0) for _ in range(3)]
    assert [place and place.at for place in places] == [0] * 3
    assert limiter.used(0) == (0, 0)
