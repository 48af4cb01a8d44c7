"""Consume OTLP spans from a Kafka topic, and commit each message after its spans were exported.

`KafkaSource` reads what the Kafka exporter of the collector writes (encoding ``otlp_proto``, key =
trace id) as a member of a consumer group. Delivery is at least once: the committed offset of a
partition is its `Watermark`, from which another worker that gets the partition reads on, without
the messages that are `Finished`.
The threads::

    poll    receives messages, is called back by the client, commits, pauses and resumes
    feed    passes messages to the engine, and waits while the engine has no memory
    others  acknowledge exported messages (`Partition.acknowledged`)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Protocol

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.metrics import Observation
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rag_eval_otel import semconv
from rag_eval_otel.export.metrics import add_gauge_source
from rag_eval_otel.log import log
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.worker.kafka_client import Client, DeadLetters, Poison
from rag_eval_otel.worker.parts import TooManyPartsError, check_parts
from rag_eval_otel.worker.watermark import Finished, Partition
from rag_eval_otel.worker.wire import OverloadedError, Receipt, count_spans

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider


_POLL: Final = 0.1  # seconds that the poll thread waits for a message
_BATCH: Final = 200  # messages after which it looks after the partitions
_FULL: Final = 0.05  # seconds until the engine is asked again whether it has room
_COMMIT: Final = 0.5  # seconds between commits
_PROBE: Final = 2.0  # seconds between questions whether the topics can be used
_LAG_EVERY: Final = 5.0  # seconds between measurements of the lag
_PATIENCE: Final = 10.0  # seconds for the last messages to and from the brokers


class Engine(Protocol):
    """The pipeline that gets the spans."""

    def accept(self, request: ExportTraceServiceRequest, receipt: Receipt) -> None:
        """Take the spans in ``request``; `OverloadedError` if there is no memory for them."""

    def drop(self, receipts: Iterable[Receipt]) -> None:
        """Forget the spans of ``receipts``: another worker exports them."""

    def is_collecting(self, trace_id: int) -> bool:
        """Return True if spans of this trace have come, and more are expected."""


# --- reading messages -----------------------------------------------------------------------------


def read(value: bytes | None) -> ExportTraceServiceRequest | Poison:
    """Return the request in the value of a message, or why it cannot be processed."""
    value = value or b""
    try:
        check_parts(ExportTraceServiceRequest, value)
        request = ExportTraceServiceRequest.FromString(value)
    except TooManyPartsError:
        return "too_large"
    except (DecodeError, ValueError):
        return "malformed"
    if not count_spans(request):
        return "empty"
    return request if all(_has_ids(span) for span in _spans(request)) else "ids"


def _spans(request: ExportTraceServiceRequest) -> Iterator[Any]:
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            yield from scope.spans


def _has_ids(span: Any) -> bool:
    ids = span.trace_id, span.span_id
    return (len(ids[0]), len(ids[1])) == (16, 8) and any(ids[0]) and any(ids[1])


def traces_of(request: ExportTraceServiceRequest) -> frozenset[int]:
    """Return the ids of the traces that have spans in ``request``."""
    return frozenset(int.from_bytes(one, "big") for one in {s.trace_id for s in _spans(request)})


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """A message for the engine."""

    partition: Partition
    request: ExportTraceServiceRequest
    receipt: Receipt
    message: Any


class KafkaSource:
    """Reads OTLP spans from a topic, passes them to an engine, and commits what was exported."""

    def __init__(
        self,
        engine: Engine,
        client: Client,
        *,
        meter_provider: MeterProvider | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._client = client
        self._options = client.options
        self._clock = clock
        self._edge = Edge("kafka", on_error=client.count_error)
        self._consumer = client.consumer(self._committed)
        self._dead = DeadLetters(client)
        self._partitions: dict[int, Partition] = {}
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lags: dict[int, int] = {}
        self._due: dict[str, float] = {}
        self._is_committing = False
        self._notes: dict[int, str] | None = {}  # of the last commit; None if brokers refuse them
        self._draining = threading.Event()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=run, name=f"rag-eval-otel-kafka-{name}", daemon=True)
            for name, run in (("poll", self._poll), ("feed", self._feed))
        ]
        self._end_reports = [
            add_gauge_source(meter_provider, semconv.KAFKA_LAG, source=self.lags),
            add_gauge_source(meter_provider, semconv.KAFKA_IN_FLIGHT, source=self.in_flight),
        ]

    # --- the interface ----------------------------------------------------------------------------

    def start(self) -> None:
        """Join the consumer group, and read."""
        for thread in self._threads:
            thread.start()

    @property
    def is_live(self) -> bool:
        """Whether reading can go on without a restart of the process."""
        return "fatal" not in self._client.troubles and all(one.is_alive() for one in self._threads)

    @property
    def is_ready(self) -> bool:
        """Whether the topics can be used."""
        return self.is_live and not self._client.troubles

    def close(self, timeout: float) -> bool:
        """Read no more, wait until what is in flight is exported, commit, and leave the group.

        What is not exported after ``timeout`` seconds is dropped; another worker exports it. Return
        True if nothing had to be dropped. Must be called before the engine is shut down.
        """
        self._draining.set()
        deadline = self._clock() + timeout
        while self._is_busy and self._clock() < deadline:
            self._stopping.wait(_POLL)
        is_empty = not self._is_busy
        self._stopping.set()
        self._jobs.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(_PATIENCE)
        for end in self._end_reports:
            end()
        return is_empty

    @property
    def _is_busy(self) -> bool:
        return any(one.is_busy for one in tuple(self._partitions.values()))

    def lags(self) -> Iterable[Observation]:
        """Return the lag of each partition that this worker reads."""
        return [self._observation(number, lag) for number, lag in tuple(self._lags.items())]

    def in_flight(self) -> Iterable[Observation]:
        """Return the number of received and uncommitted messages of each partition."""
        parts = tuple(self._partitions.values())
        return [self._observation(one.number, one.uncommitted) for one in parts]

    def _observation(self, partition: int, value: int) -> Observation:
        place: dict[str, str | int] = {semconv.KAFKA_TOPIC: self._options.topic}
        return Observation(value, {**place, semconv.KAFKA_PARTITION: partition})

    # --- the thread that passes messages to the engine --------------------------------------------

    def _feed(self) -> None:
        while (job := self._jobs.get()) is not None:
            is_passed_on = False
            with self._edge:
                self._pass_on(job)
                is_passed_on = True
            if not is_passed_on:
                with self._edge:
                    self._engine.drop([job.receipt])
                self._dead.add(job.partition, job.message, "error")

    def _pass_on(self, job: _Job) -> None:
        partition = job.partition
        while not partition.is_revoked:
            if self._draining.is_set():
                partition.unread += 1
                return
            try:
                self._engine.accept(job.request, job.receipt)
                break
            except OverloadedError:
                self._draining.wait(_FULL)
        if partition.is_revoked:  # perhaps it was revoked while the engine took the spans
            self._engine.drop([job.receipt])

    # --- the thread that talks to the client ------------------------------------------------------

    def _poll(self) -> None:
        names = ("assign", "revoke", "lost")
        callbacks = {f"on_{name}": getattr(self, f"_on_{name}") for name in names}
        with self._edge:
            self._consumer.subscribe([self._options.topic], **callbacks)
        while not self._stopping.is_set():
            is_done = False
            with self._edge:
                self._receive()
                self._look_after()
                is_done = True
            if not is_done:
                self._stopping.wait(1.0)
        with self._edge:
            self._dead.close(_PATIENCE)
            self._consumer.close()  # calls `_on_revoke`

    def _receive(self) -> None:
        wait = _POLL
        for _ in range(_BATCH):
            message = self._consumer.poll(wait)
            if message is None:
                return
            if message.error() is None:
                self._begin(message)
            else:
                self._client.failed(message.error())
            wait = 0.0

    def _begin(self, message: Any) -> None:
        partition = self._partitions.get(message.partition())
        if partition is None:
            return
        offset, epoch, value = message.offset(), message.leader_epoch(), message.value() or b""
        if offset < partition.watermark.end:
            partition = self._begin_anew(partition)
        if partition.known is None:
            self._learn_known()
        if partition.is_known(offset, epoch):
            partition.begin(offset, epoch=epoch)
            partition.acknowledged.append(offset)
            self._client.count("finished_before")
            return
        found = read(value)
        if isinstance(found, ExportTraceServiceRequest):
            partition.begin(offset, traces_of(found), size=len(value), epoch=epoch)
            receipt = Receipt(count_spans(found), partial(partition.acknowledged.append, offset))
            partition.receipts[offset] = receipt
            self._jobs.put(_Job(partition, found, receipt, message))
        else:
            partition.begin(offset, size=len(value), epoch=epoch)
            self._dead.add(partition, message, found)
        self._pause_or_resume(partition)

    def _learn_known(self) -> None:
        """Ask the brokers which messages of new partitions other workers have finished.

        If the brokers do not answer, these messages are exported again.
        """
        new = [one for one in self._partitions.values() if one.known is None]
        places = [self._client.partition(one.number) for one in new]
        found = self._client.attempt(self._consumer.committed, places, timeout=_PATIENCE) or ()
        for one in new:
            one.known, one.committed_note = Finished(), None
        of = {one.number: one for one in new}
        for told in (one for one in found if one.error is None):
            with self._edge:  # another program may have committed bytes that are no text
                of[told.partition].learn(told.offset, told.metadata or "")

    def _begin_anew(self, old: Partition) -> Partition:
        """Return a partition without messages in place of ``old``, whose log begins anew.

        The topic was created again, or has lost messages. What was received is still exported.
        Until then no higher offset is committed: the topic may still have these messages.
        """
        self._client.count_error("offset_reset")
        told = "partition %s of %s goes on below offset %s: its offsets are counted anew"
        log.warning(told, old.number, self._options.topic, old.watermark.end)
        found = Partition(
            old.number,
            committed=old.committed,
            committed_note=old.committed_note,
            is_paused=old.is_paused,
            before=old,
            known=Finished(),
        )
        self._partitions[old.number] = found
        return found

    def _look_after(self) -> None:
        self._dead.send()
        for partition in self._partitions.values():
            exported = partition.settle(self._engine.is_collecting)
            self._client.count("exported", messages=exported)
            self._pause_or_resume(partition)
        if not self._is_committing and self._is_due("commit", _COMMIT):
            self._commit()
        if self._client.troubles and self._is_due("probe", _PROBE):
            self._client.probe(self._consumer, _PROBE)
        if "broker" not in self._client.troubles and self._is_due("lag", _LAG_EVERY):
            self._measure_lags()

    def _is_due(self, name: str, seconds: float) -> bool:
        now = self._clock()
        if now < self._due.get(name, now):
            return False
        self._due[name] = now + seconds
        return True

    def _pause_or_resume(self, partition: Partition) -> None:
        options = self._options
        used = max(
            partition.uncommitted / options.max_messages,
            partition.watermark.bytes / options.max_bytes,
        )
        is_full = used >= (0.5 if partition.is_paused else 1.0) or self._draining.is_set()
        if is_full != partition.is_paused:
            act = self._consumer.pause if is_full else self._consumer.resume
            self._client.attempt(act, [self._client.partition(partition.number)])
            partition.is_paused = is_full

    def _measure_lags(self) -> None:
        for partition in self._partitions.values():
            # A paused partition is not fetched, so that the client does not see its end.
            how = {"timeout": 0.5} if partition.is_paused else {"cached": True}
            place = self._client.partition(partition.number)
            found = self._client.attempt(self._consumer.get_watermark_offsets, place, **how)
            if found is not None and found[1] >= 0:
                has_begun = partition.watermark.offset is not None
                self._lags[partition.number] = found[1] - partition.committed if has_begun else 0

    # --- commits ----------------------------------------------------------------------------------

    def _commit(self) -> None:
        self._mark(self._partitions.values())
        offsets = self._offsets_of(self._partitions.values())
        if offsets:
            self._is_committing = True
            if self._client.attempt(self._send_commit, offsets) is None:
                self._is_committing = False

    def _send_commit(self, offsets: Sequence[Any]) -> bool:
        self._consumer.commit(offsets=offsets, asynchronous=True)
        return True

    def _mark(self, partitions: Iterable[Partition]) -> None:
        """Note what is finished: the next owner reads each trace as a whole or not at all."""
        for one in partitions:
            if self._notes is None:
                one.finished = Finished()
            else:
                one.mark(self._engine.is_collecting)

    def _offsets_of(self, partitions: Iterable[Partition]) -> list[Any]:
        found = {one.number: to for one in partitions if (to := one.to_commit) is not None}
        if self._notes is not None:
            self._notes |= {number: note for number, (_, note) in found.items()}
        return [self._client.partition(number, *to) for number, to in found.items()]

    def _committed(self, error: Any, offsets: Iterable[Any]) -> None:
        self._is_committing = False
        if error is not None:
            self._commit_failed(error)
            return
        for one in offsets:
            partition = self._partitions.get(one.partition)
            if one.error is not None:
                self._commit_failed(one.error)
            elif partition is not None:
                partition.committed = one.offset
                partition.committed_note = (self._notes or {}).get(one.partition, "")

    def _commit_failed(self, error: Any) -> None:
        self._client.failed(error)
        if error.name() == "OFFSET_METADATA_TOO_LARGE":
            self._notes = None

    # --- changes of the group ---------------------------------------------------------------------

    def _on_assign(self, _: Any, assigned: Iterable[Any]) -> None:
        self._client.troubles.pop("group", None)
        numbers = [one.partition for one in assigned]
        self._partitions |= {number: Partition(number) for number in numbers}
        log.info("reads the partitions %s of %s, too", numbers, self._options.topic)

    def _on_revoke(self, _: Any, revoked: Iterable[Any]) -> None:
        """Commit what is done, and drop the rest: the new owner reads from the committed offset."""
        gone = self._take_away(revoked)
        has_notes = self._notes is not None
        self._commit_now(gone)
        if has_notes and self._notes is None:
            self._mark(gone)
            self._commit_now(gone)
        self._drop(gone)

    def _commit_now(self, partitions: Iterable[Partition]) -> None:
        offsets = self._offsets_of(partitions)
        if not offsets or "broker" in self._client.troubles:
            return
        try:
            found = self._consumer.commit(offsets=offsets, asynchronous=False)
        except self._client.package.KafkaException as error:
            self._commit_failed(error.args[0])
            return
        for one in found:
            if one.error is not None:
                self._commit_failed(one.error)

    def _on_lost(self, _: Any, lost: Iterable[Any]) -> None:
        """Drop all work of partitions that other workers may have had for a while."""
        self._client.count_error("assignment_lost")
        self._drop(self._take_away(lost))

    def _take_away(self, partitions: Iterable[Any]) -> list[Partition]:
        found = [self._partitions.pop(one.partition, None) for one in partitions]
        gone = [one for one in found if one is not None]
        for one in gone:
            one.is_revoked = True
            if one.is_paused:  # the client would keep it paused if it is assigned again
                self._client.attempt(self._consumer.resume, [self._client.partition(one.number)])
            self._lags.pop(one.number, None)
            self._client.count("exported", messages=one.settle(self._engine.is_collecting))
        self._mark(gone)
        return gone

    def _drop(self, gone: Sequence[Partition]) -> None:
        with self._edge:
            self._engine.drop([receipt for one in gone for receipt in tuple(one.receipts.values())])
        self._client.count("revoked", messages=sum(one.watermark.open for one in gone))
        numbers = [one.number for one in gone]
        log.info("reads the partitions %s of %s no more", numbers, self._options.topic)
