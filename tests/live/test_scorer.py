"""The scorer: which turns are admitted, how each ends, budgets, the log, and missing searches."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import RunnableLambda
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.trace import Span, SpanContext, TraceFlags, get_current_span

import steps
from live import (
    ANSWER,
    CONTEXT,
    QUESTION,
    SCORED,
    SOURCES,
    STATUS,
    App,
    Source,
    answered,
    attached,
    generated,
    good_answers,
    remote,
    retrieved,
)
from plain_views import View
from rag_eval_otel import Config, Evaluation, LexicalJudge, Sample
from rag_eval_otel.capture.turns import Turn, find_turns
from rag_eval_otel.config import TURNS, Limit
from rag_eval_otel.errors import JudgeAuthError, JudgeTransportError
from rag_eval_otel.export.metrics import InstrumentSink
from rag_eval_otel.live.scorer import (
    Admission,
    TurnJob,
    TurnScorer,
    attributes_around,
    facts_of,
    sampling_point,
)
from rag_eval_otel.metrics.custom import Guideline
from rag_eval_otel.runtime.threads import BackgroundEvaluator
from rag_eval_otel.sampling import SamplingRule
from rag_eval_otel.testing import FakeEmbedder, FakeJudge
from rag_eval_otel.types import UNTOUCHED, Ending, Feedback, Label, Sampling, Score, SpanRef
from runs import run_chain
from support import ManualClock

PROBABILITY = "rag.evaluation.sampling.probability"
REASON, OUTCOME = "rag.evaluation.reason", "rag.evaluation.outcome"
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
    names = ("gen_ai.evaluation.name", "rag.evaluation.judge", PROBABILITY)
    found = [tuple(map(event.attributes.get, names)) for event in events]
    assert found.count(("offline.faithfulness", "lexical", 1.0)) == 40


def test_the_budget_of_a_cascade_limits_the_judge_alone() -> None:
    """Over the limit, the offline scores remain; the turn is counted once, with the reason."""
    with attached(cascade=LexicalJudge(), budget="1 turns/minute") as app:
        app.turns(3)
        assert app.handle.flush()
        assert app.counted() == {SCORED: 1, ("scored", "budget"): 2}
        reasons = Counter(span.get("rag.evaluation.reason") for span in app.judged())
    assert reasons == {None: 1, "budget": 2}


# --- budgets, and the log -------------------------------------------------------------------------


def scorer(
    budget: str | None = None, reply: object = None, *, room: int = 9, **options: Any
) -> TurnScorer:
    judge = FakeJudge(lambda _: {"passing": True} if reply is None else reply)
    usual: Any = {"metrics": METRICS[:1], "embedder": FakeEmbedder({}), "drift": False}
    parts: Any = {
        "sinks": options.pop("sinks", ()),
        "evaluator": BackgroundEvaluator(capacity=room),
    }
    config = Config(judge=judge, budget=budget, **usual, **options)
    return TurnScorer(config, instruments=InstrumentSink(MeterProvider()), **parts)


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


# --- one turn, from its sampling to its ending ----------------------------------------------------

SPAN = SpanContext(7, 8, is_remote=False, trace_flags=TraceFlags(1))


def ended(
    by: TurnScorer, span: SpanContext = SPAN, *, of: Turn | None = None, **more: Any
) -> Ending:
    """Do a job as the evaluator does it, and return the ending with which its span leaves."""
    endings = list[Ending]()
    done = time.time_ns() - 2 * 10**9
    of = of or turn()
    job = TurnJob(scorer=by, turn=of, span=span, ended=done, release=endings.append, **more)
    if job.begin():
        asyncio.run(job.run())
    (ending,) = endings
    return ending


def counts(by: TurnScorer) -> Mapping[str, int]:
    return by.instruments.tally.stats().turns


def test_the_ending_of_a_scored_turn() -> None:
    """It has the scores, how the turn was sampled, what people said, and counts of searches."""
    emitted = list[Evaluation]()
    by = scorer(sample_rate=1.0, sinks=[emitted.append], metadata_keys=["tenant"])
    said = Feedback(trace_id=7, span_id=8, score=1.0)
    by.feedback.take(said, "ids", is_expected=True)
    of = turn(metadata={"tenant": "acme"})
    of = replace(of, calls=(replace(of.calls[0], response_id="r-1"),))
    ending = ended(by, of=of, about={"by": "hand"}, is_missed=True)
    (evaluation,) = emitted
    assert ending == Ending(
        "scored", None, evaluation, contexts="retrieval", feedback=(said,), searches=(1, 0, 0)
    )
    assert evaluation.span == SpanRef(trace_id=7, span_id=8)
    assert evaluation.lag is not None
    assert 2 <= evaluation.lag < 60
    answered = {"gen_ai.response.id": "r-1"}
    assert evaluation.about == {"rag.metadata.tenant": "acme", **answered, "by": "hand"}
    assert evaluation.answer_length == len(ANSWER)
    assert (evaluation.sampling, evaluation.is_span_missed) == (Sampling(), True)
    assert counts(by) == {"scored span_missed": 1}
    assert by.instruments.tally.stats().sources == {"callback": 1}


def failing(text: str) -> str:
    raise ValueError(text)


@pytest.mark.parametrize(
    ("options", "of", "reason", "line"),
    [
        ({"sample_rate": 0.0}, turn(), "sample_rate", None),
        (
            {"redact": failing},
            turn(),
            "redaction_error",
            "rag_eval_otel: a RAG turn is not scored: redaction_error;",
        ),
        ({}, turn(error="Timeout"), "error", "rag_eval_otel: a RAG turn is not scored: error;"),
    ],
)
def test_a_turn_that_is_not_scored_says_why(
    options: dict[str, Any], of: Turn, reason: Any, line: str | None, caplog: Any
) -> None:
    """On its span, in the counter, in `Handle.explain`, and in the log if nobody wanted it so."""
    by = scorer(**options)
    said = Feedback(trace_id=7, span_id=8, score=0.0)
    by.feedback.take(said, "ids", is_expected=True)
    searches = None if line is None else (1, 0, 0)
    assert ended(by, of=of) == Ending("skipped", reason, feedback=(said,), searches=searches)
    assert counts(by) == {f"skipped {reason}": 1}
    assert [text.partition(",")[0] for text in by.explanations[7]] == ["'rag' is skipped"]
    assert [text.partition(" docs")[0] for text in lines_of(caplog, "not scored")] == [line] * bool(
        line
    )


def test_a_span_that_is_recorded_but_not_sampled_stays_as_it_is() -> None:
    """Nobody sees it; its turn is counted, and costs no request."""
    by, span = scorer(), SpanContext(7, 8, is_remote=False, trace_flags=TraceFlags(0))
    assert ended(by, span) == UNTOUCHED
    assert counts(by) == {"skipped not_sampled": 1}
    assert ended(by, SpanContext(0, 0, is_remote=False)).status == "scored"  # LangChain only


@pytest.mark.parametrize("why", ["overload", "shutdown", "error"])
def test_a_turn_is_counted_once_however_often_it_ends(why: Any) -> None:
    """The first ending counts; who comes later releases the span with it, too."""
    by, endings = scorer(), list[Ending]()
    job = TurnJob(scorer=by, turn=turn(), span=SPAN, ended=0, release=endings.append)
    job.give_up(why)
    job.give_up(why)
    asyncio.run(job.run())
    assert endings[:2] == [Ending(why)] * 2
    assert counts(by) == {"error internal" if why == "error" else f"dropped {why}": 1}


@pytest.mark.parametrize(
    ("name", "known", "number"),
    [
        ("x" * 201, 999, 1000),
        ("x" * 200, 1000, 1),
        ("RunnableSequence", 0, 0),
        ("haystack.pipeline.run", 0, 0),
    ],
)
def test_names_of_steps_that_retrieve(name: str, known: int, number: int) -> None:
    """They are cut, and bounded in number; a name that all chains of a framework have is none."""
    by = scorer(room=0)
    by.retrieving.update(map(str, range(known)))
    by.submit(TurnJob(scorer=by, turn=turn(name=name), span=SPAN, ended=0))
    assert counts(by) == {"dropped overload": 1}
    assert len(by.retrieving) == number
    assert ("x" * 200 in by.retrieving) == (number > 0)


def test_sinks() -> None:
    """What a sink lacks is not called; a flush that fails is said, and the end comes once."""
    calls = list[object]()

    class Buffer:
        def __call__(self, evaluation: Evaluation) -> None:
            calls.append(evaluation.status)

        def flush(self, timeout: float) -> bool | None:
            calls.append(timeout)
            return None if timeout > 1 else False

        def close(self) -> None:
            calls.append("closed")

    assert not scorer().delivers
    by = scorer(sinks=[lambda _: None, Buffer()])
    assert by.delivers
    ended(by)
    assert [by.flush(2.0), by.flush(1.0)] == [True, False]
    by.close()
    by.close()
    assert calls == ["scored", 2.0, 1.0, "closed"]


def test_attributes_around_a_turn() -> None:
    """Those of its own spans, and of at most a hundred others that have a route."""
    found = turn()
    own = {found.anchor.id: View(attributes={"tenant": "acme"}), 5: View(attributes={"a": 1})}
    routed = {n: View(attributes={"http.route": f"/{n}"}) for n in range(10, 200)}
    around = list(attributes_around(found, {**own, **routed}))
    assert around == [{"tenant": "acme"}, *({"http.route": f"/{n}"} for n in range(10, 110))]


@pytest.mark.parametrize(("budget", "left"), [("4 requests/day", 0.75), ("2 USD/day", 1.0)])
def test_the_share_of_a_budget_that_is_left(budget: str, left: float) -> None:
    """Of requests and of money, after one request for nothing."""
    by = scorer(
        budget,
        prices={"models": {key: {"input": 0, "output": 0} for key in ("fake", "FakeEmbedder")}},
    )
    ended(by)
    assert by._observe_left() == [Observation(left, {"limit": budget})]  # noqa: SLF001


def test_a_judge_whose_replies_are_useless_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """The log says so once a minute; the ending says why there is no score."""
    by = scorer(reply={"nonsense": 1})
    assert [(each.status, each.reason) for each in (ended(by), ended(by))] == [
        ("unscored", "unparsable")
    ] * 2
    (line,) = lines_of(caplog, "no metric can use what it says (unparsable)")
    assert "the judge fake answers" in line


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


# --- answers without a search ---------------------------------------------------------------------


def chat(app: App, said: str, parent: Span | None = None) -> None:
    """Answer in a chain as that of `App.turn`, without a search."""
    chain = app.chain(1, parent)
    app.generate(1, chain)
    chain.set_attribute("output.value", said)
    chain.end()


def chat_by_runs(app: App, said: str) -> None:
    model = FakeListChatModel(responses=[said])
    callbacks: list[BaseCallbackHandler] = [app.handle.callback]
    chain = RunnableLambda(lambda question: model.invoke(question).content)
    chain.invoke("Hello?", {"callbacks": callbacks, "run_name": "chain"})


def by_runs(app: App) -> None:
    run_chain(app.handle.callback, "chain")


@pytest.mark.parametrize(("turn", "talk"), [(App.turn, chat), (by_runs, chat_by_runs)])
def test_no_retrieval_says_so(
    turn: Callable[[App], object], talk: Callable[[App, str], None]
) -> None:
    """Only where the same step has retrieved before, the span has status, reason and outcome."""
    with attached() as app:
        talk(app, "Nothing is known here.")
        assert app.handle.flush(60)
        turn(app)
        assert app.handle.flush(60)
        talk(app, "It opens at nine.")
        talk(app, "I don't know, the documents do not say.")
        assert app.handle.flush(60)
        told = [dict(span.attributes or {}) for span in app.exported()]
        found = [(t[STATUS], t.get(REASON), t[OUTCOME]) for t in told if STATUS in t]
        assert found == [
            ("scored", None, "answered"),
            ("skipped", "no_retrieval", "answered"),
            ("skipped", "no_retrieval", "declined"),
        ]
        assert app.counted() == {("scored", None): 1, ("skipped", "no_retrieval"): 3}
        assert app.each_left_once()


def test_each_answer_has_its_own_outcome() -> None:
    """Two answers without a search are two; none is told in a trace that has a turn."""
    with attached() as app:
        app.turn()
        assert app.handle.flush(60)
        with app.within("web") as web:
            for said in ("It opens at nine.", "I don't know, the documents do not say."):
                chat(app, said, web)
        around = get_current_span(remote(1))
        app.turn(1, around)
        assert app.handle.flush(60)
        chat(app, "It opens at nine.", around)
        assert app.handle.flush(60)
        told = [dict(span.attributes or {}) for span in app.exported()]
        found = [(t[STATUS], t.get(OUTCOME)) for t in told if STATUS in t]
        outcomes = [("skipped", "answered"), ("skipped", "declined")]
        assert sorted(found) == [("scored", "answered")] * 2 + outcomes
        assert app.counted() == {("scored", None): 2, ("skipped", "no_retrieval"): 3}


@pytest.mark.parametrize(
    ("part", "ending"),
    [
        ("input", Ending("skipped", "no_retrieval", contexts="none", outcome="answered")),
        ("documents", Ending("skipped", "no_answer")),
    ],
)
def test_what_is_recorded_without_a_turn(part: Any, ending: Ending) -> None:
    """All spans of its trace that wait for scores say why there are none."""
    by, said = scorer(), ANSWER if part == "input" else None
    step = replace(steps.chain("rag", asked=QUESTION, told=said), recorded=frozenset({part}))
    assert by.refuse_steps([step], 7) == {None: ending}
    assert counts(by) == {f"skipped {ending.reason}": 1}


def test_a_search_in_a_trace_of_its_own() -> None:
    """The trace of a chain that gave its retriever no parent says where the documents came from."""
    with attached() as app:
        chain = app.chain()
        app.step("LLM", chain, **generated(2)).end()
        app.retrieve(1, None)
        app.generate(1, chain)
        chain.end()
        assert app.handle.flush(60)
        assert app.counted() == {("skipped", "split"): 1}


@pytest.mark.parametrize(
    ("queries", "counts"),
    [(["a b"], (1, 0, 0)), (["a b", "A  B", "c"], (3, 1, 0)), (["a b", ""], (2, 0, 1))],
)
def test_searches_are_counted(queries: list[str], counts: tuple[int, int, int]) -> None:
    """The span has how many searches there were, how many repeat one, and how many were empty."""
    with attached() as app:
        chain = app.step("CHAIN", None, **answered(1))
        for query in queries:
            documents: dict[str, Any] = retrieved(1) if query else {"output.value": "[]"}
            app.step("RETRIEVER", chain, **{**documents, "input.value": query or "none"}).end()
        app.generate(1, chain)
        chain.end()
        assert app.handle.flush(60)
        (told,) = app.judged()
        names = [f"rag.evaluation.retrieval.{name}" for name in ("searches", "repeated", "empty")]
        assert tuple(told[name] for name in names) == counts
