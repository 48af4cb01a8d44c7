"""The scorer: which turns are admitted, scores that are kept and shared, budgets, the log."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider

import steps
from live import ANSWER, CONTEXT, QUESTION, SCORED, SOURCES, Source, attached, good_answers
from rag_eval_otel import Config, Evaluation, LexicalJudge, Sample
from rag_eval_otel.capture.turns import Turn, find_turns
from rag_eval_otel.config import TURNS, Limit
from rag_eval_otel.errors import JudgeAuthError, JudgeTransportError
from rag_eval_otel.export.metrics import InstrumentSink
from rag_eval_otel.live.scorer import Admission, TurnScorer, facts_of, sampling_point
from rag_eval_otel.metrics.custom import Guideline
from rag_eval_otel.sampling import SamplingRule
from rag_eval_otel.testing import FakeEmbedder, FakeJudge
from rag_eval_otel.types import Label, Sampling, Score
from support import ManualClock

PROBABILITY = "rag.evaluation.sampling.probability"
SECRET = "Ada Lovelace, born 1815"
SAMPLE = Sample(question=f"Who is {SECRET}?", contexts=[f"{SECRET}."], answer=f"It is {SECRET}.")
METRICS = tuple(Guideline(guidelines=f"It is {name}.", name=name) for name in ("polite", "short"))


def turn(**root: Any) -> Turn:
    """Return the turn of a chain with a retrieval and a model; ``root`` are fields of the chain."""
    chain = replace(steps.chain("rag", asked=QUESTION, told=ANSWER), **root)
    search = steps.retriever("r", "rag", at=(2, 3), query=QUESTION, found=[CONTEXT])
    model = steps.llm("m", "rag", at=(4, 5), shown=[f"{CONTEXT}\n{QUESTION}"], said=ANSWER)
    (found,) = find_turns([chain, search, model])
    return found


# --- admission ------------------------------------------------------------------------------------


def test_turns_a_minute_are_limited() -> None:
    """So many turns in any minute are admitted; unused turns are not carried over."""
    clock = ManualClock()
    admission = Admission(limits=[Limit(amount=2, unit=TURNS, seconds=60)], clock=clock)

    def admitted(number: int) -> list[bool]:
        return [isinstance(admission.draw(1), Sampling) for _ in range(number)]

    assert admitted(1) == [True]
    clock.advance(30)
    assert admitted(2) == [True, False]
    clock.advance(31)
    assert admitted(2) == [True, False]
    clock.advance(3600)
    assert admitted(3) == [True, True, False]
    assert admission.draw(1) == "budget"


@pytest.mark.parametrize(("label", "probability"), [("pass", 0.1), ("fail", 0.4), (None, 0.4)])
def test_a_cascade_chooses_more_of_what_looks_bad(label: Label | None, probability: float) -> None:
    """The offline label decides on the probability; no turn has less than the plain rate."""
    admission = Admission(sample_rate=0.1, has_cascade=True)
    scores = () if label is None else (Score(name="f", value=0.5, label=label),)
    offline = Evaluation(scores=scores, judge="lexical")
    for trace_id in range(300):
        drawn = admission.draw(trace_id)
        assert isinstance(drawn, Sampling)
        point, found = sampling_point(trace_id), admission.judged(trace_id, drawn, offline=offline)
        expected = Sampling(probability=probability, is_targeted=point >= 0.1)
        assert found == (expected if point < probability else None)


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("probability", [0.0, 0.02, 0.3, 1.0])
def test_the_uniform_part_is_that_of_the_rate_alone(rate: float, probability: float) -> None:
    """A turn is chosen below its probability, and is targeted unless the rate has chosen it."""
    rules = [SamplingRule(match={"tier": "gold"}, rate=probability)]
    admission = Admission(sample_rate=rate, rules=rules)
    for trace_id in range(500):
        tier = "gold" if trace_id % 2 else "free"
        found = admission.draw(trace_id, lambda tier=tier: {"tier": (tier,)})  # type: ignore[misc]
        point, chosen = sampling_point(trace_id), probability if trace_id % 2 else rate
        expected = Sampling(probability=chosen, is_targeted=point >= rate)
        assert found == (expected if point < chosen else "sample_rate")


def test_a_rate_of_zero_is_off_after_errors_too() -> None:
    """Without rules, the facts are not even looked at."""
    assert Admission(sample_rate=0).draw(1, lambda: {"error": (True,)}) == "sample_rate"


def test_facts_about_a_turn() -> None:
    """Rules see attributes, metadata, the route, the models and failed steps."""
    found = turn()
    root = replace(found.path[0], metadata={"tenant": "acme", "ls_model_name": "gpt-x"})
    found = replace(found, path=(root,))
    assert facts_of(found, [])["error"] == (False,)
    found = replace(found, retrievers=(replace(found.retrievers[0], error="Timeout"),))
    attributes: list[Mapping[str, Any]] = [
        {"gen_ai.request.model": "o3", "rag.feedback.user.label": "fail"},
        {"http.route": "/chat/{id}", "url.path": "/chat/7"},
    ]
    facts = facts_of(found, attributes)
    assert facts["metadata.tenant"] == ["acme"]
    assert facts["gen_ai.request.model"] == ["o3"]
    assert facts["route"] == ("/chat/{id}", "/chat/7")
    assert facts["model"] == ("o3", "gpt-x")
    assert facts["error"] == (True,)
    assert facts["rag.feedback.user.label"] == ["fail"]


@SOURCES
def test_a_cascade_scores_all_turns_offline_and_a_sample_with_the_judge(source: Source) -> None:
    """Each turn is counted once; its span has offline scores, and in the sample both judges'."""
    evaluations = list[Evaluation]()
    judge = FakeJudge(good_answers, model="paid")
    with attached(
        judge=judge, cascade=LexicalJudge(), sample_rate=0.25, sinks=[evaluations.append]
    ) as app:
        app.turns(40, source)
        assert app.handle.flush()
        assert app.counted() == {SCORED: 40}
        spans, events = app.judged(), app.score_events()
    by_judge = Counter(span["rag.evaluation.judge"] for span in spans)
    assert set(by_judge) == {"paid", "lexical"}
    assert len(spans) == len(evaluations) == 40
    for span in spans:
        assert "rag.evaluation.offline.faithfulness.score" in span
        is_judged = span["rag.evaluation.judge"] == "paid"
        assert ("rag.evaluation.faithfulness.score" in span) == is_judged
        assert span[PROBABILITY] in ({0.25, 1.0} if is_judged else {1.0})
    assert (
        Counter(
            (event.attributes["rag.evaluation.judge"], event.attributes[PROBABILITY] == 1.0)
            for event in events
            if event.attributes["gen_ai.evaluation.name"] == "offline.faithfulness"
        )["lexical", True]
        == 40
    )


def test_the_budget_of_a_cascade_limits_the_judge_alone() -> None:
    """Over the limit, the offline scores remain; the turn is counted once, with the reason."""
    with attached(cascade=LexicalJudge(), budget="1 turns/minute") as app:
        app.turns(3)
        assert app.handle.flush()
        assert app.counted() == {SCORED: 1, ("scored", "budget"): 2}
        reasons = Counter(span.get("rag.evaluation.reason") for span in app.judged())
    assert reasons == {None: 1, "budget": 2}


# --- budgets, and the log -------------------------------------------------------------------------


def scorer(budget: str, reply: object = None) -> TurnScorer:
    judge = FakeJudge(lambda _: {"passing": True} if reply is None else reply)
    options = Config(
        judge=judge, metrics=METRICS[:1], embedder=FakeEmbedder({}), drift=False, budget=budget
    )
    return TurnScorer(options, instruments=InstrumentSink(MeterProvider()))


def judged(by: TurnScorer, sample: Sample = SAMPLE) -> Evaluation | None:
    return asyncio.run(by._judged(sample, Sampling()))  # noqa: SLF001


def test_a_turn_in_the_middle_of_which_the_budget_ends_keeps_its_scores() -> None:
    """A turn all of whose requests were refused is skipped."""
    one = scorer("1 requests/day")
    first = judged(one)
    assert first is not None
    assert first.status == "scored"
    assert judged(one, Sample(question="Whom?", answer="A.")) is None


def test_what_was_paid_before_the_budget_ended_is_counted() -> None:
    """The turn has no score and is skipped, but its request was sent."""
    one, spent = scorer("1 requests/day", {"nonsense": True}), list[Evaluation]()
    one.instruments.count_cost = spent.append  # type: ignore[method-assign]
    assert judged(one) is None
    assert [each.usage.judge_requests for each in spent] == [1]


def test_offline_scoring_needs_no_budget() -> None:
    """The offline judge and embedder send no requests, so that no limit stops them."""
    with attached(judge="lexical", embedder="hashing", budget="1 requests/day") as app:
        for number in range(3):
            app.turn(number)
            app.handle.flush()
        assert app.counted()[SCORED] == sum(app.counted().values()) == 3


def lines_of(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [line for line in (each.getMessage() for each in caplog.records) if text in line]


def test_failing_scores_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each reason for failing scores is logged once a minute, however many turns it costs."""
    errors = [JudgeAuthError("HTTP 401: refused")] * 8 + [JudgeTransportError("reset")] * 99
    judge = FakeJudge(lambda _: errors.pop(0))
    with attached(judge=judge) as app, caplog.at_level(logging.WARNING, "rag_eval_otel"):
        for number in range(4):
            app.turn(number)
            app.handle.flush()
    first, second = lines_of(caplog, "scores are failing")
    assert "unauthorized" in first
    assert "transport" in second


@SOURCES
@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_what_a_sink_throws_costs_no_span(error: type[BaseException], source: Source) -> None:
    """The turn was counted before, its span leaves with its scores, and the next one is scored."""
    errors = [error()]

    def broken(_: Evaluation) -> None:
        if errors:
            raise errors.pop()

    with attached(sinks=[broken], hold_seconds=3600) as app:
        app.turns(1, source)
        assert app.handle.flush()
        app.turns(2, source)
        assert app.handle.flush()
        assert app.counted() == {SCORED: 3}
        assert app.statuses() == {"scored": 3, None: 6}
        assert app.each_left_once()


# --- the option `on_sample` -----------------------------------------------------------------------


@SOURCES
def test_a_function_gets_each_sample_before_it_is_scored(source: Source) -> None:
    """It is called with the sample of each turn; what it raises costs no score."""
    samples = list[Sample]()

    def fail(sample: Sample) -> None:
        samples.append(sample)
        raise ValueError(sample.question)

    with attached(on_sample=fail, raise_errors=False) as app:
        app.turns(2, source)
        assert app.handle.flush(60)
        assert app.counted() == {SCORED: 2}
        assert app.counted_by("rag.evaluation.internal_errors", "place") == {"sink": 2}
    assert len({sample.question for sample in samples}) == len(samples) == 2
