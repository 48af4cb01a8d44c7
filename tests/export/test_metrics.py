"""Scores, turns, costs and the state of the evaluator in OpenTelemetry instruments."""

import asyncio
import inspect
import re
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from endpoints import measurement, report
from rag_eval_otel import semconv
from rag_eval_otel.errors import JudgeTransportError
from rag_eval_otel.export.metrics import InstrumentSink, outcome_of
from rag_eval_otel.judge.endpoint import Endpoint, Limits
from rag_eval_otel.types import Evaluation, Feedback, Sampling, Score, Usage

OK = Score(name="faithfulness", value=1, label="pass", version="v", explanation="x" * 2000)
UNDEFINED = Score(name="faithfulness", status="undefined", reason="no_claims")
FAILED = Score(name="context_relevance", status="error", reason="timeout")
NORMAL = Score(name="correctness", value=4, normalized=0.75, label="pass")


def test_outcomes_of_turns() -> None:
    """A turn is scored if any metric was; otherwise it failed or is unscored."""

    def outcome(*scores: Score) -> tuple[str, str | None]:
        return outcome_of(Evaluation(scores=scores))

    assert outcome(OK) == ("scored", None)
    assert outcome(OK, FAILED) == ("scored", "timeout")
    assert outcome(UNDEFINED, FAILED) == ("error", "timeout")
    assert outcome(UNDEFINED) == ("unscored", "no_claims")


def recorded(evaluation: Evaluation) -> dict[str, Any]:
    reader = InMemoryMetricReader()
    InstrumentSink(MeterProvider([reader]))(evaluation)
    data = reader.get_metrics_data()
    assert data is not None
    found = data.resource_metrics[0].scope_metrics[0].metrics
    return {metric.name: list(metric.data.data_points) for metric in found}


def test_requests_tokens_and_money_are_counted() -> None:
    """They are counted by judge, money by metric, too; unused instruments have no point."""
    usage = Usage(judge_requests=4, prompt_tokens=100, completion_tokens=9, embedding_requests=1)
    paid = (replace(OK, cost=0.25), NORMAL)
    points = recorded(Evaluation(scores=paid, judge="m", usage=usage, lag=0.5, currency="EUR"))
    (money,) = points["rag.evaluation.judge.cost"]
    assert money.value == 0.25
    assert dict(money.attributes) == {
        "gen_ai.evaluation.name": OK.name,
        "rag.evaluation.judge": "m",
        "rag.evaluation.currency": "EUR",
    }
    assert [p.value for p in points["rag.evaluation.judge.calls"]] == [4]
    tokens = points["rag.evaluation.judge.tokens"]
    assert {p.attributes["token_type"]: p.value for p in tokens} == {"input": 100, "output": 9}
    assert [p.value for p in points["rag.evaluation.embedding.calls"]] == [1]
    assert points["rag.evaluation.lag"][0].sum == 0.5
    bare = recorded(Evaluation(scores=(UNDEFINED, Score(name="x", value=0.5))))
    assert "rag.evaluation.judge.calls" not in bare
    assert "rag.evaluation.lag" not in bare
    assert dict(bare["rag.evaluation.score"][0].attributes) == {"gen_ai.evaluation.name": "x"}


def test_histograms_have_one_scale() -> None:
    """The buckets cover [0, 1], or 10 ms to a minute; normalized scores are recorded."""
    zero = Score(name="rubric", value=1, normalized=0.0)
    of = recorded(Evaluation(scores=(OK, NORMAL, zero)))
    points = of["rag.evaluation.score"]
    seconds = of["rag.evaluation.duration"][0].explicit_bounds
    assert seconds == (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
    sums = {p.attributes["gen_ai.evaluation.name"]: p.sum for p in points}
    assert sums == {"faithfulness": 1.0, "correctness": 0.75, "rubric": 0.0}


def test_the_names_of_judges_are_limited() -> None:
    """After 100 names, others share a series; long names are cut."""
    reader = InMemoryMetricReader()
    sink = InstrumentSink(MeterProvider([reader]))
    judges = [f"{number} " + "x" * 1000 for number in range(150)]
    for judge in judges:
        sink(Evaluation(scores=(OK,), judge=judge))
    found = {name for _, name, _ in points(reader)["rag.evaluation.score"]}
    assert found == {*(name[:128] for name in judges[:100]), "other"}


class Queue:
    """A number of waiting spans, of 100 bytes each."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    @property
    def size(self) -> int:
        return 100 * self.length


def points(reader: InMemoryMetricReader) -> dict[str, dict[tuple[Any, ...], Any]]:
    """Return the value of each point (a histogram's count) by instrument and attribute values."""
    data = reader.get_metrics_data()
    metrics = data.resource_metrics[0].scope_metrics[0].metrics if data else ()
    return {
        metric.name: {
            tuple((point.attributes or {}).values()): getattr(point, "value", None)
            if hasattr(point, "value")
            else point.count
            for point in metric.data.data_points
        }
        for metric in metrics
    }


def test_the_numbers_of_all_pipelines_of_a_provider_are_added() -> None:
    """The pipelines share the gauges of held spans, their bytes, and pending turns."""
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader])
    sinks = [InstrumentSink(meters) for _ in range(2)]
    for sink, queue in zip(sinks, [Queue(3), Queue(4)], strict=True):
        sink.watch(queue)
        sink.found(2)
        sink.turn("scored")
        sink.turn("dropped", "shutdown", turns=0)
    found = points(reader)
    assert found["rag.evaluation.held"] == {(): 7}
    assert found["rag.evaluation.held_bytes"] == {(): 700}
    assert found["rag.evaluation.captured"] == {(): 4}
    assert found["rag.evaluation.turns"] == {("scored",): 2}
    assert found["rag.evaluation.pending"] == {(): 2}


def test_no_instrument_is_named_like_a_namespace_of_others() -> None:
    """Backends that nest names, such as Elasticsearch, cannot store a value at such a name."""
    source = inspect.getsource(semconv)
    part = source[source.index("# Instruments\n") : source.index("SCORE_BOUNDS")]
    names = re.findall(r'^[A-Z_]+: Final = "(rag\.[a-z0-9_.]+)"', part, flags=re.MULTILINE)
    assert len(names) > 30
    assert [one for one in names if any(other.startswith(f"{one}.") for other in names)] == []


def test_requests_and_the_breaker_of_an_endpoint_are_reported() -> None:
    """Attempts have their outcome, what is not sent its reason, and the breaker its state."""
    reader = InMemoryMetricReader()
    sink = InstrumentSink(MeterProvider([reader]))
    limits = Limits(retries=0, failures=2, concurrency=16, patience=0.1)
    endpoint = Endpoint("judge m", limits, draw=lambda: 0.5)
    sink.watch(Queue(0), [measurement(endpoint)])
    assert points(reader)["rag.evaluation.endpoint.breaker"] == {("judge m",): 0}

    async def ask(error: Exception | None) -> None:
        async def send() -> str:
            if error is not None:
                raise error
            return "fine"

        await endpoint.call(send)

    async def ask_all() -> None:
        await ask(None)
        for _ in range(3):
            with pytest.raises(JudgeTransportError):
                await ask(JudgeTransportError("refused"))

    with pytest.raises(Exception, match="not asked"):
        asyncio.run(ask_all())
    found = points(reader)
    ok, failed = ("judge m", "ok"), ("judge m", "transport")
    assert found["rag.evaluation.endpoint.attempts"] == {ok: 1, failed: 2}
    assert found["rag.evaluation.endpoint.duration"] == {ok: 1, failed: 2}
    assert found["rag.evaluation.endpoint.not_sent"] == {("judge m", "circuit_open"): 1}
    assert found["rag.evaluation.endpoint.breaker"] == {("judge m",): 1}


@pytest.mark.parametrize("pipelines", [1, 3])
def test_a_request_is_counted_once_for_all_pipelines_that_share_a_judge(pipelines: int) -> None:
    """Pipelines with one judge, beside each other or in turn, count a request once."""
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader])
    endpoint = Endpoint("judge m", Limits(concurrency=16))
    kept = []
    for _ in range(pipelines):
        sink = InstrumentSink(meters)
        sink.watch(Queue(0), [measurement(endpoint), measurement(endpoint)])  # of a cascade
        kept.append(sink)
    report(endpoint, "ok", not_sent="circuit_open")
    found = points(reader)
    assert found["rag.evaluation.endpoint.attempts"] == {("judge m", "ok"): 1}
    assert found["rag.evaluation.endpoint.duration"] == {("judge m", "ok"): 1}
    assert found["rag.evaluation.endpoint.not_sent"] == {("judge m", "circuit_open"): 1}


def test_feedback_and_spans_are_counted() -> None:
    """By outcome or status; in a judged sample, with the weight of each score."""
    reader = InMemoryMetricReader()
    sink = InstrumentSink(MeterProvider([reader]))
    sink.feedback(Feedback(trace_id=1, name="rating", score=1), "joined")
    sink.feedback(None, "refused")
    for _ in range(2):
        sink.released("scored")
        sink.found(3)
        sink.turn("skipped", "no_answer", turns=2)
        sink.turn("scored", turns=0)
        sink.omitted(5)
    judged = Sampling(probability=0.25)
    sink(Evaluation(scores=(replace(OK, value=0.625),), judge="m", sampling=judged))
    found = {name.removeprefix("rag.evaluation."): p for name, p in points(reader).items()}
    assert {frozenset(key): n for key, n in found["feedback.received"].items()} == {
        frozenset({"joined", "rating", "pass"}): 1,
        frozenset({"refused"}): 1,
    }
    assert found["turns"] == {("skipped", "no_answer"): 4, ("scored", "pass"): 1}
    assert [sum(found[name].values()) for name in ("released", "captured")] == [2, 6]
    assert sum(found["attributes.omitted"].values()) == 10
    assert [*found["weighted.score"].values(), *found["weighted.count"].values()] == [2.5, 4]
