"""`Delivery`: queue annotations for one backend, and send them in batches on a thread of its own.

The queue is bounded in items and bytes. A batch that fails is sent again after a pause, which grows
with each failure and has jitter. Each annotation ends in exactly one `Outcome`.
"""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias

from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.guard import Edge, LimitedLog, silence
from rag_eval_otel.sinks.backends.annotations import Annotation

Outcome: TypeAlias = Literal[
    "delivered",
    "expired",
    "internal",
    "not_found",
    "overload",
    "rejected",
    "shutdown",
    "unauthorized",
]
"""What became of an annotation: ``delivered``, or the reason why it was dropped.

- ``expired``: the backend did not accept it within an hour.
- ``internal``: the client of the backend raised an unexpected error.
- ``not_found``: its span did not arrive at the backend within five minutes.
- ``overload``: the queue was full.
- ``rejected``: the backend refused it as invalid.
- ``shutdown``: the process ended first.
- ``unauthorized``: the backend refused the key.
"""
Refused: TypeAlias = Literal["not_found", "rejected"]
Report: TypeAlias = Callable[[Outcome, int], None]

_UNAUTHORIZED: Final = frozenset({401, 403})
_NOT_FOUND: Final = 404
_AGAIN: Final = frozenset({408, 409, 425, 429})
_SERVER_ERROR: Final = 500
_JITTER: Final = random.Random()  # noqa: S311  # no secret
_QUOTED: Final = 300  # characters of a backend's message in the log


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a `Delivery`; all times are in seconds.

    - ``items``, ``bytes``: the most annotations that wait, and about how much memory they take.
    - ``batch``: the most annotations in one request.
    - ``linger``: the time from an annotation to its first request, in which a batch collects and
      the span can leave the process.
    - ``pause``, ``max_pause``: the first and the longest pause between two attempts.
    - ``hurry``: the longest pause while a flush waits.
    - ``patience``: the time in which the span of an annotation must arrive at the backend.
    - ``max_age``: the time in which the backend must accept an annotation.
    """

    items: int = 20_000
    bytes: int = 32 * 1024 * 1024
    batch: int = 100
    linger: float = 1.0
    pause: float = 1.0
    max_pause: float = 60.0
    hurry: float = 0.25
    patience: float = 300.0
    max_age: float = 3600.0


class BackendError(Exception):
    """A request to a backend failed. ``status`` is its HTTP status, or None without a response.

    ``body`` is the text of the response. It may quote texts of users and must not be logged.
    ``retry_after`` is the number of seconds after which the backend allows the next request.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        body: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = body
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An annotation that a backend did not take, although it took the others of the request.

    ``not_found``: the span is unknown, and may arrive later. ``rejected``: it will never be taken.
    """

    annotation: Annotation
    reason: Refused
    message: str


class Client(Protocol):
    """The connection to one backend. It is used on one thread at a time."""

    def send(self, annotations: Sequence[Annotation]) -> Sequence[Refusal]:
        """Send ``annotations``, wait until the backend has stored them, and return the refusals.

        The backend must not store an annotation twice if this is called with it again. Raise
        `BackendError` if none is stored, or if that is not known.
        """


@contextmanager
def reported(*kinds: type[Exception]) -> Iterator[None]:
    """Raise errors of these ``kinds``, which a client raises, as `BackendError`."""
    try:
        yield
    except kinds as error:
        raise backend_error(error) from error


def backend_error(error: Exception) -> BackendError:
    """Return a `BackendError` with the HTTP status that ``error`` or its response has."""
    response = getattr(error, "response", None)
    status = getattr(error, "status_code", None) or getattr(response, "status_code", None)
    headers = getattr(response, "headers", None) or getattr(error, "headers", None) or {}
    after = None
    with suppress(ValueError):  # it may be a date
        after = max(0.0, float(headers.get("retry-after") or headers.get("Retry-After") or "-"))
    return BackendError(
        str(error) or type(error).__name__,
        status=status if isinstance(status, int) else None,
        body=str(getattr(response, "text", "")),
        retry_after=after,
    )


@dataclass(order=True, slots=True)
class _Entry:
    """An annotation that waits; ``due`` is the time of the next attempt."""

    due: float
    number: int
    annotation: Annotation = field(compare=False)
    since: float = field(compare=False)
    misses: int = field(default=0, compare=False)
    missed_since: float | None = field(default=None, compare=False)
    is_alone: bool = field(default=False, compare=False)


class Delivery:
    """Send annotations to the backend ``name`` by the client that ``connect()`` returns.

    ``report(outcome, number)`` is called for the annotations that have ended. ``connect`` is called
    on the thread of the delivery, because it imports the client. In a forked child the queue is
    empty and the client is a new one.
    """

    def __init__(
        self,
        connect: Callable[[], Client],
        *,
        name: str,
        report: Report = lambda _outcome, _number: None,
        on_error: Callable[[str], None] = lambda _: None,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = _JITTER.random,
    ) -> None:
        self.name = name
        self._connect = connect
        self._report = report
        self._limits = limits or Limits()
        self._clock = clock
        self._jitter = jitter
        self._edge = Edge(f"backend {name}", on_error=on_error)
        self._log = LimitedLog()
        self._is_closed = False
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._waiting: list[_Entry] = []  # a heap
        self._sending: tuple[_Entry, ...] = ()
        self._bytes = 0
        self._next = 0
        self._flushes = 0
        self._failures = 0
        self._paused_until = 0.0
        self._batch = self._limits.batch
        self._client: Client | None = None
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        """Return the number of annotations that wait or are being sent."""
        return len(self._waiting) + len(self._sending)

    @property
    def size(self) -> int:
        """About how many bytes the waiting annotations take in memory."""
        return self._bytes

    # --- what callers do --------------------------------------------------------------------------

    def put(self, annotations: Iterable[Annotation]) -> None:
        """Queue ``annotations``; never wait. What has no room is dropped."""
        lost: Counter[Outcome] = Counter()
        with self._changed:
            for annotation in annotations:
                if self._is_closed:
                    lost["shutdown"] += 1
                elif self._has_room(annotation):
                    self._push(annotation)
                else:
                    lost["overload"] += 1
            self._start()
            self._changed.notify_all()
        self._tell(lost, "the queue is full, because the backend is slow or down")

    def begin_flush(self) -> int:
        """Make all that waits due now, with short pauses until `end_flush`; return its limit."""
        with self._changed:
            self._flushes += 1
            self._paused_until = 0.0
            for entry in self._waiting:
                entry.due = 0.0
            heapq.heapify(self._waiting)
            self._start()
            self._changed.notify_all()
            return self._next

    def end_flush(self, limit: int, *, timeout: float) -> bool:
        """Wait for what `begin_flush` found; return False after ``timeout`` seconds."""
        deadline = self._clock() + timeout
        try:
            while self._thread is None and self._is_before(limit) and self._clock() < deadline:
                self._wait(self.send_due())  # the interpreter exits, and can start no thread
            with self._changed:
                left = max(0.0, deadline - self._clock())
                return self._changed.wait_for(lambda: not self._is_before(limit), left)
        finally:
            with self._changed:
                self._flushes -= 1

    def close(self) -> None:
        """Drop what waits, and end the thread. A request under way is not waited for."""
        with self._changed:
            self._is_closed = True
            lost = len(self)
            self._waiting, self._sending, self._bytes = [], (), 0
            self._changed.notify_all()
        self._tell(Counter[Outcome]({"shutdown": lost}), "the process ended first")

    # --- sending, on the thread of the delivery ---------------------------------------------------

    def send_due(self) -> float | None:
        """Send the annotations that are due, in one batch.

        Return the seconds until the next attempt, or None if nothing waits.
        """
        batch = self._take()
        if batch:
            self._settle(batch, self._send([entry.annotation for entry in batch]))
        with self._changed:
            if not self._waiting:
                return None
            return max(0.0, max(self._paused_until, self._waiting[0].due) - self._clock())

    def _run(self) -> None:
        silence()
        while not self._is_closed:
            self._wait(self.send_due())

    def _wait(self, seconds: float | None) -> None:
        """Wait until ``seconds`` have passed, or until something has changed."""
        with self._changed:
            if seconds is None and not self._waiting and not self._is_closed:
                self._changed.wait()
            elif seconds and not self._is_closed:
                self._changed.wait(seconds)

    def _start(self) -> None:
        """Start the thread unless it runs, nothing waits, or the interpreter is exiting."""
        if self._thread is not None or not self._waiting:
            return
        thread = threading.Thread(target=self._run, name=f"rag-eval-otel-{self.name}", daemon=True)
        with suppress(RuntimeError):
            thread.start()
            self._thread = thread

    def _take(self) -> tuple[_Entry, ...]:
        with self._changed:
            now, found = self._clock(), list[_Entry]()
            if now < self._paused_until:
                return ()
            while self._waiting and self._waiting[0].due <= now and len(found) < self._batch:
                if found and (self._waiting[0].is_alone or found[0].is_alone):
                    break
                found.append(heapq.heappop(self._waiting))
            self._sending = tuple(found)
            return self._sending

    def _send(self, batch: Sequence[Annotation]) -> Sequence[Refusal] | BackendError | None:
        """Return the refusals, or the error of the whole batch; None for an unexpected error."""
        with self._edge:
            try:
                if self._client is None:
                    self._client = self._connect()
                return self._client.send(batch)
            except BackendError as error:
                return error
        return None

    def _settle(
        self, batch: Sequence[_Entry], result: Sequence[Refusal] | BackendError | None
    ) -> None:
        """Report the annotations of ``batch`` that have ended, and queue the others again."""
        ended: Counter[Outcome] = Counter()
        told = "docs/backends.md"
        with self._changed:
            if self._is_closed:  # `close` has counted the batch
                return
            self._sending = ()
            self._bytes -= sum(entry.annotation.size for entry in batch)
            if result is None:
                ended["internal"] += len(batch)
            elif isinstance(result, BackendError):
                told = str(result)
                self._after_error(batch, result, ended)
            else:
                self._failures, self._paused_until = 0, 0.0
                self._batch = min(self._limits.batch, 2 * self._batch)
                refused = {one.annotation.id: one for one in result}
                told = next((one.message for one in result), told)
                for entry in batch:
                    refusal = refused.get(entry.annotation.id)
                    self._after_answer(entry, None if refusal is None else refusal.reason, ended)
            self._changed.notify_all()
        self._tell(ended, told)
        if isinstance(result, BackendError) and not ended:
            self._log.write(
                "again",
                "%s did not take scores (%s); they are sent again; logged at most once a minute",
                self.name,
                told[:_QUOTED],
            )

    def _after_error(
        self, batch: Sequence[_Entry], error: BackendError, ended: Counter[Outcome]
    ) -> None:
        status = error.status
        if status in _UNAUTHORIZED:
            ended["unauthorized"] += len(batch)
        elif status == _NOT_FOUND:
            for entry in batch:
                self._after_answer(entry, "not_found", ended)
        elif status is None or status in _AGAIN or status >= _SERVER_ERROR:
            self._failures += 1
            if status is not None and status >= _SERVER_ERROR:  # perhaps by one of the batch
                self._batch = max(1, self._batch // 2)
            pause = max(self._pause(self._failures), error.retry_after or 0.0)
            self._paused_until = self._clock() + pause
            for entry in batch:
                self._again(entry, due=self._paused_until, ended=ended)
        elif len(batch) == 1:
            ended["rejected"] += 1
        else:  # one invalid annotation must not lose the others
            for entry in batch:
                entry.is_alone = True
                self._again(entry, due=self._clock(), ended=ended)

    def _after_answer(
        self, entry: _Entry, refused: Refused | None, ended: Counter[Outcome]
    ) -> None:
        now = self._clock()
        if refused is None:
            ended["delivered"] += 1
        elif refused == "rejected":
            ended["rejected"] += 1
        elif now - (entry.missed_since or now) > self._limits.patience:
            ended["not_found"] += 1
        else:
            entry.misses += 1
            entry.missed_since = entry.missed_since or now
            self._again(entry, due=now + self._pause(entry.misses), ended=ended)

    def _again(self, entry: _Entry, *, due: float, ended: Counter[Outcome]) -> None:
        if self._clock() - entry.since > self._limits.max_age:
            ended["expired"] += 1
            return
        entry.due = due
        self._bytes += entry.annotation.size
        heapq.heappush(self._waiting, entry)

    # --- helpers, under the lock ------------------------------------------------------------------

    def _has_room(self, annotation: Annotation) -> bool:
        has_bytes = self._bytes + annotation.size <= self._limits.bytes
        return len(self) < self._limits.items and has_bytes

    def _push(self, annotation: Annotation) -> None:
        now = self._clock()
        linger = self._limits.linger if not self._flushes else 0.0
        entry = _Entry(now + linger, self._next, annotation, now)
        heapq.heappush(self._waiting, entry)
        self._next += 1
        self._bytes += annotation.size

    def _pause(self, failures: int) -> float:
        """Return the pause after so many failures: it doubles, and a half of it is random."""
        doubled = self._limits.pause * 2.0 ** min(failures - 1, 30)
        pause = min(doubled, self._limits.hurry if self._flushes else self._limits.max_pause)
        return pause * (0.5 + 0.5 * self._jitter())

    def _is_before(self, last: int) -> bool:
        """Return True if an annotation with a number below ``last`` has not ended."""
        return any(entry.number < last for entry in (*self._sending, *self._waiting))

    def _tell(self, ended: Counter[Outcome], told: str) -> None:
        """Report annotations that have ended, and log why some were dropped."""
        for outcome, number in ended.items():
            if not number:
                continue
            self._report(outcome, number)
            if outcome != "delivered":
                self._log.write(
                    outcome,
                    "%s: %d scores were dropped (%s): %s; logged at most once a minute",
                    self.name,
                    number,
                    outcome,
                    told[:_QUOTED],
                )
