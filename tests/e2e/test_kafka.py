"""Application → collector → Kafka → workers → backend, while each part fails and comes back.

The length of the outages in seconds is ``KAFKA_TEST_OUTAGE``, by default 30. The number of changes
of the group, five seconds apart, is ``KAFKA_TEST_REBALANCES``, by default 12. The number of turns
of LangChain is ``KAFKA_TEST_TURNS``, by default 2,000.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.retrievers import BaseRetriever
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider

from apps.fakes import ScriptedChat
from apps.parts import rag
from e2e.kafka_broker import Broker, fresh, serving
from e2e.kafka_stage import PARTITIONS, Stage, Worker, scores_of, staged, status_of
from e2e.programs import PATIENCE, eventually
from e2e.turns import texts
from otlp_receiver import read_spans
from wires import request_with, turn_spans

OUTAGE = float(os.environ.get("KAFKA_TEST_OUTAGE", "30"))
TURNS = int(os.environ.get("KAFKA_TEST_TURNS", "2000"))
REBALANCES = int(os.environ.get("KAFKA_TEST_REBALANCES", "12"))
QUICK = ("--kafka-option", "session.timeout.ms=6000", "--kafka-option", "heartbeat.interval.ms=500")
"""A worker that was killed is missed after six seconds, the least that the broker allows."""
PATIENT = ("--kafka-option", "session.timeout.ms=60000")
"""No worker is missed on a busy machine; for tests in which each span has to arrive once."""

pytestmark = pytest.mark.timeout(900 + 3 * OUTAGE + 10 * REBALANCES)


@contextmanager
def two_workers(found: Stage, *options: str, **more: str) -> Iterator[list[Worker]]:
    with ExitStack() as stack:
        workers = [
            stack.enter_context(found.worker(name, *QUICK, *options, **more)) for name in "ab"
        ]
        for worker in workers:
            worker.wait()
        found.share(2)
        yield workers


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with serving(tmp_path_factory.mktemp("broker")) as found:
        yield found


@pytest.fixture
def found(broker: Broker, tmp_path: Path) -> Iterator[Stage]:
    broker.ensure()
    with staged(broker, tmp_path, latency=0.02) as found:
        yield found


def tell(text: str) -> None:
    """Show a figure, with ``pytest -s``."""
    sys.stdout.write(f"\n{text}\n")


def check_that_nothing_is_lost(found: Stage) -> None:
    """Assert that each span has arrived, and that no turn has two different scores.

    A turn that was evaluated again after an outage of the judge has scores the second time alone.
    """
    assert len(found.arrived()) == found.ended
    results: dict[int, set[object]] = {}
    for span in found.spans():
        if status_of(span):
            scores = results.setdefault(span.trace_id, set())
            if status_of(span) == "scored":
                scores.add(scores_of(span))
    assert len(results) == found.made
    assert [sorted(one, key=str) for one in results.values() if len(one) > 1] == []


class Search(BaseRetriever):
    """Finds the text about the company in the question."""

    def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        return [Document(texts(number_in(query))[1])]


def number_in(text: str) -> int:
    """Return the number of the company of which ``text`` asks."""
    return int(re.findall(r"company (\d+)", text)[-1])


def reply(messages: Iterable[BaseMessage]) -> AIMessage:
    """Answer the question at the end of a prompt."""
    *_, last = messages
    return AIMessage(texts(number_in(str(last.content)))[2])


@contextmanager
def by_openinference(provider: TracerProvider) -> Iterator[Callable[[int], object]]:
    """Ask a chain of LangChain, traced by OpenInference's instrumentation."""
    langchain = pytest.importorskip("openinference.instrumentation.langchain")
    instrumentor = langchain.LangChainInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    chain = rag(Search(), ScriptedChat(reply=reply))
    try:
        yield lambda number: chain.invoke(texts(number)[0])
    finally:
        instrumentor.uninstrument()


def test_every_span_arrives_once_and_every_turn_is_scored(found: Stage) -> None:
    """Turns of LangChain, traced by OpenInference, go through six partitions and two workers.

    Each turn costs one request.
    """
    with two_workers(found, *PATIENT) as workers:
        found.make(TURNS, by_openinference)
        found.wait()
        assert [worker.end() for worker in workers] == [0, 0]
    assert found.ended > 3 * TURNS
    assert found.statuses() == {"scored": TURNS}
    assert found.judge.asked.total() == TURNS
    assert set(found.arrived().values()) == {1}
    check_that_nothing_is_lost(found)


def test_a_killed_worker_loses_nothing(found: Stage) -> None:
    """Another worker does again what was in flight, at most the bound of each partition.

    The judge is asked again only about these turns.
    """
    bound, concurrency = 100, 8
    options = ("--max-messages", str(bound))
    with two_workers(found, *options, RAG_EVAL_CONCURRENCY=str(concurrency)) as workers:
        found.make(2000)
        eventually(lambda: len(found.spans()) > 1000, "work is under way")
        workers[0].process.send_signal(signal.SIGKILL)
        found.wait()
    assert found.statuses() == {"scored": 2000}
    assert found.without_scores() == []
    check_that_nothing_is_lost(found)
    again = {trace for (trace, _), number in found.arrived().items() if number > 1}
    tell(f"exported twice: {len(again)} turns; asked twice: {found.judge.asked.total() - 2000}")
    assert len(again) <= bound * PARTITIONS / 2, "messages of the killed worker's partitions"
    assert found.judge.asked.total() <= 2000 + bound * PARTITIONS / 2 + concurrency


def test_finished_turns_arrive_once_although_a_worker_is_killed(found: Stage) -> None:
    """A turn under way holds back the offset; the turns after it are known to be finished.

    Their retrievals are before its own, and the rest is after it, so that reading on from the
    offset alone would divide them.
    """
    topic, numbers = found.broker.create(fresh("overlapping"), 1), range(2, 12)
    turns = {number: turn_spans(number) for number in (1, *numbers)}
    spans = {span.span_id for number in numbers for span in turns[number]}
    producer = Producer(found.broker.client())

    def send(*messages: list[Span]) -> None:
        for message in messages:
            request = request_with(*message, scope="openinference.instrumentation.langchain")
            producer.produce(topic, request.SerializeToString())
        producer.flush(PATIENCE)

    def copies() -> Counter[bytes]:
        return Counter(span.span_id.to_bytes(8, "big") for span in found.spans())

    aside = {"topic": topic, "group": topic}
    with replace(found, **aside).worker("a", *QUICK) as worker:
        worker.wait()
        send(*(turns[number][:1] for number in numbers), turns[1][:1])
        send(*(turns[number][1:] for number in numbers))
        eventually(lambda: spans <= copies().keys(), "the other turns arrive")
        eventually(lambda: found.broker.committed(**aside) == {0: 10}, "the offset is committed")
        worker.process.send_signal(signal.SIGKILL)
        worker.process.wait(PATIENCE)
    with replace(found, **aside).worker("b", *QUICK) as worker:
        send(turns[1][1:])
        eventually(lambda: turns[1][-1].span_id in copies(), "the turn arrives")
        eventually(lambda: found.broker.is_consumed(**aside), "all is committed")
    assert found.statuses() == {"scored": 11}
    assert {span: number for span, number in copies().items() if number > 1} == {
        turns[1][0].span_id: 2
    }


def test_outages_lose_nothing(found: Stage) -> None:
    """Backend, judge and broker are down one after the other, while turns are made."""
    pause = threading.Event()
    with two_workers(found):
        found.make(100)
        found.backend.is_down = True
        found.make(100)
        pause.wait(OUTAGE)  # the outage
        found.backend.is_down = False
        found.wait()
        found.judge.is_down = True
        found.make(100)
        pause.wait(OUTAGE)  # the outage
        found.judge.is_down = False
        found.wait()
        found.make(100)
        found.broker.end(signal.SIGKILL)
        found.make(100)
        pause.wait(OUTAGE)  # the outage
        found.broker.start()
        found.wait()
    check_that_nothing_is_lost(found)
    tell(f"statuses: {found.statuses()}")


def test_rebalances_lose_nothing(found: Stage) -> None:
    """A third worker joins and leaves again and again, while turns are made."""
    pause = threading.Event()
    with two_workers(found):
        third = ExitStack()
        for number in range(REBALANCES):
            found.make(50)
            if number % 2:
                third.close()
            else:
                third.enter_context(found.worker("c", *QUICK)).wait()
            pause.wait(5)  # the time between two changes
        third.close()
        found.wait()
    assert set(found.statuses()) == {"scored"}
    assert found.without_scores() == []
    check_that_nothing_is_lost(found)
    tell(f"duplicates: {sum(found.arrived().values()) - len(found.arrived())} spans")


def test_spans_can_go_to_another_topic(found: Stage) -> None:
    """They are encoded as the collector does it, and a trace has the partition that it had."""
    scored = found.broker.create(fresh("scored"), PARTITIONS)
    with two_workers(found, *PATIENT, "--output-topic", scored):
        found.make(200)
        eventually(found.is_committed, "all is committed")
    messages = found.broker.messages(scored)
    requests = [ExportTraceServiceRequest.FromString(one.value()) for one in messages]
    spans = [span for request in requests for span in read_spans(request)]
    assert len(spans) == len({(one.trace_id, one.span_id) for one in spans}) == found.ended
    assert sum(status_of(span) == "scored" for span in spans) == 200
    came = {one.key(): one.partition() for one in found.broker.messages(found.topic)}
    assert all(came[one.key()] == one.partition() for one in messages)


def test_a_worker_without_a_broker_says_so(found: Stage, tmp_path: Path) -> None:
    """It is alive and not ready, logs what is wrong, and can be ended."""
    with found.worker("alone", "--kafka", "127.0.0.1:9") as worker:
        eventually(lambda: "_ALL_BROKERS_DOWN" in worker.told(), "the log names the error")
        eventually(lambda: worker.is_live, "the worker is alive")
        assert not worker.is_ready
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(PATIENCE) == 0
