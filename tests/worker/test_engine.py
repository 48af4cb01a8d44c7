"""Turns of whole traces are found, scored once and named after their service, or say why not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from live import points_of
from rag_eval_otel.config import Config
from rag_eval_otel.drift.monitor import DriftOptions
from rag_eval_otel.export.metrics import Meters
from rag_eval_otel.types import Sample
from rag_eval_otel.worker.engine import Engine
from rag_eval_otel.worker.exporter import Exporter
from rag_eval_otel.worker.wire import located, parsed
from wires import FakeSender, attributes, content, request, span, turn

STATUS, REASON = "rag.evaluation.status", "rag.evaluation.reason"


def scored(
    *requests: bytes, services: tuple[str, ...] = (), value_limit: int | None = None, **options: Any
) -> tuple[Mapping[str, Any], dict[str, Any], list[Any]]:
    """Score ``requests``; return attributes by span name, turns, and points."""
    reader = InMemoryMetricReader()
    config = Config(**{"judge": "lexical", "drift": False, **options})
    sender = FakeSender()

    async def scene() -> Engine:
        meters = MeterProvider([reader])
        engine = Engine(
            config,
            Exporter(sender, Meters(meters)),
            max_bytes=2**26,
            services=services,
            value_limit=value_limit,
            meter_provider=meters,
        )
        for body in requests:
            await engine.score(body, 1)
        await engine.close(1.0)
        return engine

    engine = asyncio.run(scene())
    spans = [message for body in sender.sent for *_, message in located(parsed(body))]
    points = [
        (name, dict(p.attributes)) for name, found in points_of(reader).items() for p in found
    ]
    found = {message.name: attributes(message) for message in spans}
    return found, dict(engine.instruments.tally.stats().turns), points


def test_a_turn_is_scored_once_for_each_trace() -> None:
    """Two traces in one request are two turns."""
    other = turn(2)
    other[2].name = "other chain"
    found, turns, _ = scored(content(*turn(1), *other))
    assert turns == {"scored": 2}
    assert found["chain"][STATUS] == found["other chain"][STATUS] == "scored"


def test_spans_of_requests_to_a_judge_are_no_turn() -> None:
    """They pass as they came, in the trace of their turn or alone."""
    names = {"gen_ai__operation__name": "chat", "gen_ai__input__messages": "[]"}
    asked = [span(number, 9, parent=1, name="chat m", **names) for number in (1, 2)]
    found, turns, _ = scored(content(*turn(1)), content(*asked, scope="rag_eval_otel.judge"))
    assert turns == {"scored": 1}
    assert STATUS not in found["chat m"]


def test_a_trace_without_its_middle_is_partial() -> None:
    """A span of the turn has a parent in the same process that is missing."""
    spans = turn(1)
    spans[0].parent_span_id = spans[1].parent_span_id = b"lostspan"
    found, turns, _ = scored(content(*spans))
    assert turns in ({"skipped partial": 1}, {"skipped no_retrieval": 1})
    assert [values[STATUS] for values in found.values() if STATUS in values] == ["skipped"]


def below_another_service(spans: list[Span]) -> list[Span]:
    spans[2].parent_span_id, spans[2].flags = b"upstream", 0x301  # the parent is remote
    return spans


def with_two_of_one_id(spans: list[Span]) -> list[Span]:
    copy = Span()
    copy.CopyFrom(spans[0])
    copy.name = "another"
    return [*spans, copy]


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        (below_another_service, "scored"),
        (with_two_of_one_id, "skipped ambiguous"),
        (lambda spans: [*spans, spans[0]], "scored"),  # a sender may repeat a request
        (lambda spans: spans[1:], "skipped no_retrieval"),
    ],
)
def test_turns_that_are_not_plain(change: Callable[[list[Span]], list[Span]], outcome: str) -> None:
    """One that is whole is scored, and any other has its reason."""
    assert scored(content(*change(turn(1))))[1] == {outcome: 1}


def test_a_turn_that_the_application_has_scored_stays_as_it_is() -> None:
    """Whatever the status there."""
    spans = turn(1)
    spans[2].attributes.add(key=STATUS).value.string_value = "timeout"
    found, turns, _ = scored(content(*spans))
    assert found["chain"][STATUS] == "timeout"
    assert turns == {}


def test_spans_that_are_not_of_rag_are_not_counted() -> None:
    """They leave as they came."""
    found, turns, _ = scored(content(span(1, 1, http__route="/ask")))
    assert found == {"GET /": {"http.route": "/ask"}}
    assert turns == {}


def test_a_text_that_was_cut_is_not_scored() -> None:
    """The limit of the applications is not seen in what they send, so it is an option."""
    answer = "Paris is the capital of France, which is a country"
    whole = content(*turn(1, answer=answer))
    assert scored(whole)[1] == {"scored": 1}
    assert scored(whole, value_limit=len(answer))[1] == {"skipped truncated": 1}


@pytest.fixture
def few_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count five names apart, not a hundred."""
    monkeypatch.setattr("rag_eval_otel.export.metrics._MOST_NAMES", 5)


@pytest.mark.usefixtures("few_names")
def test_scores_are_counted_under_the_name_of_their_service() -> None:
    """After the most names, only those that the operator has named are counted apart."""
    requests = [content(*turn(n), service=f"service {n}") for n in range(1, 9)]
    _, _, points = scored(*requests, services=("service 8",), metrics=["faithfulness"])
    names = {values["service.name"] for name, values in points if name == "rag.evaluation.score"}
    assert names == {"other", "service 8", *(f"service {n}" for n in range(1, 5))}


def test_drift_is_watched_in_each_service() -> None:
    """The scores of one service do not hide those of another."""
    requests = [content(*turn(n), service=name) for n, name in enumerate(["shop", "bank"], 1)]
    targets = {"faithfulness": 0.5}
    _, _, points = scored(*requests, drift=DriftOptions(targets=targets), metrics=[*targets])
    streams = {
        values["service.name"]
        for name, values in points
        if name == "rag.evaluation.drift.log10_evidence"
    }
    assert streams == {"shop", "bank"}


def test_a_failure_in_reading_costs_scores_and_no_span(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure is counted, and the spans go on."""

    def fail(*_: object, **__: object) -> None:
        raise ValueError

    monkeypatch.setattr("rag_eval_otel.worker.engine.steps_in", fail)
    found, turns, _ = scored(content(*turn(1)), raise_errors=False)
    assert found.keys() == {"chain", "retriever", "llm"}
    assert turns == {}


async def test_a_turn_does_not_wait_for_places_of_turns_that_are_too_late() -> None:
    """Two judges' calls hang for longer than their turns are held; all others are scored."""

    async def metric(sample: Sample) -> float:
        await asyncio.sleep(1.0 if "hang" in sample.question else 0)
        return 1.0

    config = Config(judge="lexical", metrics=[metric], concurrency=2, hold_seconds=0.2)
    engine = Engine(config, Exporter(FakeSender(), Meters()), max_bytes=2**26)
    questions = ("hang 1?", "hang 2?", *("",) * 8)
    bodies = [content(*turn(n, question=text)) for n, text in enumerate(questions, start=1)]
    await asyncio.gather(*(engine.score(body, 3) for body in bodies))
    await engine.close(1.0)
    assert engine.instruments.tally.stats().released == {"timeout": 2, "scored": 8}


def seconds_for(turns: int) -> float:
    """Return the CPU time for a trace of ``turns`` turns, with a resource as large as that."""
    spans = []
    for number in range(turns):
        for at, each in enumerate(turn(1, question=f"What is the capital, {number}?")):
            each.span_id = (8 * number + at + 1).to_bytes(8, "big")
            each.parent_span_id = (8 * number + 3).to_bytes(8, "big") if at < 2 else b""
            spans.append(each)
    whole = request(*spans)
    for number in range(40 * turns):
        whole.resource_spans[0].resource.attributes.add(key=f"a{number}")
    began = time.process_time()
    options: dict[str, Any] = {"sample_rate": 0.5, "metrics": ["faithfulness"]}
    _, counts, _ = scored(bytes(whole.SerializeToString()), hold_seconds=60.0, **options)
    assert sum(counts.values()) == turns
    return time.process_time() - began


def test_the_time_for_a_request_grows_with_its_size() -> None:
    """Not with spans times attributes of the resource, or with turns times spans."""
    seconds_for(10)
    assert seconds_for(400) < 10 * seconds_for(100)  # 16 times if it were quadratic


@pytest.mark.usefixtures("few_names")
async def test_names_of_scopes_are_limited() -> None:
    """They come from outside, and are counted as long as the worker runs."""
    config = Config(judge="lexical", drift=False, metrics=["faithfulness"])
    engine = Engine(config, Exporter(FakeSender(), Meters()), max_bytes=2**26)
    for number in range(1, 9):
        await engine.score(content(*turn(number), scope=f"scope {number}" * 99), 3)
    await engine.close(1.0)
    names = engine.instruments.tally.stats().sources
    assert len(names) == 6
    assert max(map(len, names)) < 300
