"""`BackendSink` queues the annotations of a pipeline for each of its backends (`BACKENDS`)."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, distribution
from typing import Final, Literal, TypeAlias
from uuid import UUID

from opentelemetry.metrics import MeterProvider, Observation

from rag_eval_otel import semconv
from rag_eval_otel.environment import first_set
from rag_eval_otel.errors import ConfigError, MissingDependencyError
from rag_eval_otel.export.backends.annotation import (
    Annotation,
    BackendError,
    Client,
    annotation_of,
    annotations_of,
)
from rag_eval_otel.export.backends.clients import LANGFUSE_KEYS
from rag_eval_otel.export.metrics import Meters, add_gauges
from rag_eval_otel.registry import Registry
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.guard import Edge, LimitedLog, silence
from rag_eval_otel.runtime.threads import start_thread
from rag_eval_otel.types import Evaluation, Feedback

Outcome: TypeAlias = Literal[
    "delivered", "expired", "overload", "rejected", "shutdown", "unauthorized"
]
"""What became of an annotation: ``delivered``, or why it was dropped, see docs/backends.md."""

_UNAUTHORIZED: Final = frozenset({401, 403})
_OF_ONE: Final = frozenset({*_UNAUTHORIZED, 404})  # the next request need not wait
_QUOTED: Final = 300  # characters of a backend's message in the log


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a `Delivery`; all times are in seconds."""

    items: int = 20_000  # annotations in the queue
    batch: int = 100  # annotations in a request
    linger: float = 6.0  # until the first request: the SDK exports the span every five seconds
    pause: float = 1.0  # the first pause between two attempts
    max_pause: float = 60.0
    hurry: float = 0.25  # the longest pause while a flush waits
    patience: float = 300.0  # in which the span of an annotation must arrive at the backend
    max_age: float = 3600.0  # in which the backend must accept an annotation


@dataclass(slots=True)
class _Entry:
    annotation: Annotation
    due: float  # the next attempt
    since: float  # when it was queued


class Delivery:
    """Send annotations to the backend ``name`` in batches, from a bounded queue, on a thread.

    Each ends in exactly one `Outcome`, for which ``report(outcome, number)`` is called.
    ``connect()`` makes the client; ``on_error(place)`` is called for its exceptions.
    """

    def __init__(
        self,
        connect: Callable[[], Client],
        *,
        name: str,
        report: Callable[[Outcome, int], None] = lambda _outcome, _number: None,
        on_error: Callable[[str], None] = lambda _: None,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._connect, self._report, self._limits = connect, report, limits or Limits()
        self._clock = clock
        self._edge = Edge(f"backend {name}", on_error=on_error)
        self._log = LimitedLog()
        self._is_closed = False
        self._reset()
        call_in_child(self._reset)
        self._start()  # from Python 3.12 on, no thread can be started while Python exits

    def _reset(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._entries: dict[int, _Entry] = {}  # by number, which says what came before a flush
        self._next = self._flushes = 0
        self._pause = self._paused_until = 0.0
        self._client: Client | None = None
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        """Return the number of annotations in the queue, including those of a running request."""
        return len(self._entries)

    def put(self, annotations: Iterable[Annotation]) -> None:
        """Queue ``annotations`` without blocking; drop those that exceed the limits."""
        lost: Counter[Outcome] = Counter()
        with self._changed:
            now, linger = self._clock(), 0.0 if self._flushes else self._limits.linger
            for annotation in annotations:
                if self._is_closed or len(self) >= self._limits.items:
                    lost["shutdown" if self._is_closed else "overload"] += 1
                else:
                    self._entries[self._next] = _Entry(annotation, due=now + linger, since=now)
                    self._next += 1
            self._start()
            self._changed.notify_all()
        self._count(lost, "the process ended, or the backend is slow or down")

    def begin_flush(self) -> int:
        """Make all annotations due now, and return the ``limit`` that `end_flush` takes."""
        with self._changed:
            self._flushes += 1
            self._paused_until = 0.0
            for entry in self._entries.values():
                entry.due = 0.0
            self._changed.notify_all()
            return self._next

    def end_flush(self, limit: int, *, timeout: float) -> bool:
        """Wait for the annotations numbered below ``limit``; return False after ``timeout``."""
        with self._changed:
            try:
                return self._changed.wait_for(
                    lambda: all(number >= limit for number in self._entries), timeout
                )
            finally:
                self._flushes -= 1

    def close(self) -> None:
        """Drop all annotations, and end the thread without waiting for a running request."""
        with self._changed:
            self._is_closed = True
            left, self._entries = len(self), {}
            self._changed.notify_all()
        self._count(Counter[Outcome]({"shutdown": left}), "the process ended first")

    def send_due(self) -> float | None:
        """Send one due batch; return the seconds until the next, or None if the queue is empty."""
        with self._changed:
            now, size = self._clock(), 1 if self._pause else self._limits.batch
            due = sorted((each.due, n) for n, each in self._entries.items() if each.due <= now)
            chosen = due[:size] if now >= self._paused_until else ()
            batch = {number: self._entries[number] for _, number in chosen}
        if batch:
            self._settle(batch, self._send([entry.annotation for entry in batch.values()]))
        with self._changed:
            times = [max(self._paused_until, entry.due) for entry in self._entries.values()]
            return max(0.0, min(times) - self._clock()) if times else None

    def _run(self) -> None:
        silence()
        seconds: float | None = None
        while True:
            with self._changed:
                if self._is_closed:
                    return
                if seconds or not self._entries:
                    self._changed.wait(seconds)
            seconds = self.send_due()

    def _start(self) -> None:
        if self._thread is None:  # at the first `put` also in a forked child
            self._thread = start_thread(self._run, f"-{self.name}")

    def _send(self, batch: Sequence[Annotation]) -> Mapping[UUID, BackendError]:
        """Send ``batch``, and return the errors by the ids of annotations."""
        failure = BackendError("an unexpected error of its client", status=HTTPStatus.BAD_REQUEST)
        with self._edge:
            try:
                self._client = self._client or self._connect()
                return {each.annotation.id: each.error for each in self._client.send(batch)}
            except BackendError as error:
                failure = error
        return dict.fromkeys((each.id for each in batch), failure)

    def _settle(self, batch: Mapping[int, _Entry], errors: Mapping[UUID, BackendError]) -> None:
        """Remove and count the annotations of ``batch`` that ended; schedule the others again."""
        ended: Counter[Outcome] = Counter()
        failed = [error for error in errors.values() if error.status not in _OF_ONE]
        with self._changed:
            if self._is_closed:  # `close` has counted the batch
                return
            pause = min(2 * self._pause or self._limits.pause, self._limits.max_pause)
            self._pause = pause if failed else 0.0
            waits = [max(self._at_most(pause), e.retry_after) for e in failed if e.is_temporary]
            self._paused_until = self._clock() + max(waits, default=0.0)
            for number, entry in batch.items():
                error = errors.get(entry.annotation.id)
                outcome = self._outcome(entry, error, is_alone=len(batch) == 1)
                if outcome is not None:
                    ended[outcome] += 1
                    del self._entries[number]
            self._changed.notify_all()
        told = next(map(str, errors.values()), "")
        self._count(ended, told)
        if not ended and waits:
            text = "%s did not take scores (%s); they are sent again; logged at most once a minute"
            self._log.write("again", text, self.name, told[:_QUOTED])

    def _outcome(
        self, entry: _Entry, error: BackendError | None, *, is_alone: bool
    ) -> Outcome | None:
        """Return how ``entry`` ended, or None to send it again. ``is_alone``: it was sent alone."""
        age, most = self._clock() - entry.since, self._limits.max_age
        if error is None or error.status in _UNAUTHORIZED:
            return "delivered" if error is None else "unauthorized"
        if error.status == HTTPStatus.NOT_FOUND:  # its span may arrive later
            most = self._limits.patience
            entry.due = self._clock() + self._at_most(max(self._limits.pause, age))
        elif error.is_temporary:
            entry.due = self._paused_until
        elif is_alone:  # else another annotation of the batch may be the invalid one
            return "rejected"
        return "expired" if age > most else None

    def _at_most(self, pause: float) -> float:
        return min(pause, self._limits.hurry if self._flushes else self._limits.max_pause)

    def _count(self, ended: Counter[Outcome], why: str) -> None:
        text = "%s: %d scores were dropped (%s): %s; logged at most once a minute"
        for outcome, number in (+ended).items():
            self._report(outcome, number)
            if outcome != "delivered":
                self._log.write(outcome, text, self.name, number, outcome, why[:_QUOTED])


# The class of a backend, the package of its client, and the variables that the client needs.
_NEEDS: Final[Mapping[str, tuple[str, str, tuple[str, ...]]]] = {
    "phoenix": ("Phoenix", "arize-phoenix-client", ()),
    "mlflow": ("MLflow", "mlflow-skinny", ("MLFLOW_TRACKING_URI",)),
    "langfuse": ("Langfuse", "langfuse", LANGFUSE_KEYS),
}
_CLIENTS = "rag_eval_otel.export.backends.clients"
BACKENDS = Registry(
    kind="backend", built_in={name: f"{_CLIENTS}:{row[0]}" for name, row in _NEEDS.items()}
)
"""The classes of backends by name; called without arguments, each makes an `annotation.Client`."""


def check_backends(names: Iterable[str]) -> None:
    """Raise an error for an unknown backend, or a missing package or environment variable."""
    for name in names:
        BACKENDS.find(name)
        if name in _NEEDS:
            _, package, variables = _NEEDS[name]
            try:
                distribution(package)
            except PackageNotFoundError:
                raise MissingDependencyError(package, extra=name) from None
            missing = [variable for variable in variables if first_set([variable]) is None]
            if missing:
                msg = f"the backend {name!r} needs the variable {' and '.join(missing)}"
                raise ConfigError(msg)


class BackendSink:
    """A sink that queues each score for each backend in ``names``, and counts how it ended."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        explanations: bool = False,
        meter_provider: MeterProvider | None = None,
        limits: Limits | None = None,
    ) -> None:
        check_backends(names)
        self._meters = Meters(meter_provider)
        self._annotations_of = partial(annotations_of, explanations=explanations)
        self.deliveries = tuple(
            Delivery(
                partial(BACKENDS.make, name),
                name=name,
                report=partial(self._count, name),
                on_error=lambda place: self._meters.record(
                    semconv.ERRORS, 1, {semconv.PLACE: place}
                ),
                limits=limits,
            )
            for name in dict.fromkeys(names)
        )
        add_gauges(meter_provider, self, {semconv.BACKEND_QUEUED: BackendSink._queued})

    def __call__(self, evaluation: Evaluation) -> None:
        annotations = tuple(self._annotations_of(evaluation) if evaluation.span else ())
        for delivery in self.deliveries:
            delivery.put(annotations)

    def emit_feedback(self, feedback: Feedback) -> None:
        for delivery in self.deliveries:
            delivery.put([annotation_of(feedback)])

    def flush(self, timeout: float) -> bool:
        """Send all queued scores; return False if that takes more than ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        begun = [(delivery, delivery.begin_flush()) for delivery in self.deliveries]
        done = [each.end_flush(n, timeout=deadline - time.monotonic()) for each, n in begun]
        return all(done)

    def close(self) -> None:
        for delivery in self.deliveries:
            delivery.close()

    def _count(self, name: str, outcome: Outcome, number: int) -> None:
        attributes = {semconv.BACKEND: name, semconv.OUTCOME: outcome}
        if outcome != "delivered":
            attributes |= {semconv.OUTCOME: "dropped", semconv.REASON: outcome}
        self._meters.record(semconv.BACKEND_SCORES, number, attributes)

    def _queued(self) -> list[Observation]:
        return [Observation(len(one), {semconv.BACKEND: one.name}) for one in self.deliveries]
