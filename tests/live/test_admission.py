"""Sampling of turns: by rate, by rules, always on errors, and in a cascade of two judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pipeline import SOURCES, Source, good_answers, running, statuses, turn, turns_counted
from rag_eval_otel import LexicalJudge
from rag_eval_otel.capture.turns import Turn
from rag_eval_otel.live.scorer import Admission, facts_of, sampling_point
from rag_eval_otel.sampling import SamplingRule
from rag_eval_otel.testing import FakeJudge
from rag_eval_otel.types import Evaluation, Label, Sampling, Score

PROBABILITY = "rag.evaluation.sampling.probability"


def named_judge() -> FakeJudge:
    return FakeJudge(good_answers, model="paid")


def offline_evaluation(label: Label | None) -> Evaluation:
    scores = () if label is None else (Score(name="f", value=0.5, label=label),)
    return Evaluation(scores=scores, judge="lexical")


@pytest.mark.parametrize(("label", "probability"), [("pass", 0.1), ("fail", 0.4), (None, 0.4)])
def test_a_cascade_chooses_more_of_what_looks_bad(label: Label | None, probability: float) -> None:
    """The offline label decides on the probability; no turn has less than the plain rate."""
    admission = Admission(sample_rate=0.1, has_cascade=True)
    offline = offline_evaluation(label)
    for trace_id in range(300):
        drawn = admission.draw(trace_id)
        assert isinstance(drawn, Sampling)
        point, found = sampling_point(trace_id), admission.judged(trace_id, drawn, offline=offline)
        if point >= probability:
            assert found is None
        else:
            assert found == Sampling(probability=probability, is_targeted=point >= 0.1)


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("probability", [0.0, 0.02, 0.3, 1.0])
def test_the_uniform_part_is_what_the_rate_alone_would_have_chosen(
    rate: float, probability: float
) -> None:
    """A chosen turn is targeted unless the rate has chosen it, too."""
    rules = [SamplingRule(match={"tier": "gold"}, rate=probability)]
    admission = Admission(sample_rate=rate, rules=rules)
    for trace_id in range(500):
        tier = "gold" if trace_id % 2 else "free"
        found = admission.draw(trace_id, lambda tier=tier: {"tier": (tier,)})  # type: ignore[misc]
        if isinstance(found, Sampling):
            assert found.is_targeted == (sampling_point(trace_id) >= rate)
            assert found.probability == (probability if trace_id % 2 else rate)


def turn_with(metadata: Mapping[str, Any], *, error: str | None = None) -> Turn:
    plain = turn()
    return replace(
        plain,
        path=(replace(plain.path[0], metadata=metadata),),
        retrievers=(replace(plain.retrievers[0], error=error),),
    )


def test_facts_about_a_turn() -> None:
    """Rules see attributes, metadata, the route, the models, failed steps and feedback."""
    found = turn_with({"tenant": "acme", "ls_model_name": "gpt-x"}, error="Timeout")
    attributes: list[Mapping[str, Any]] = [
        {"gen_ai.request.model": "o3", "rag.feedback.user.label": "fail"},
        {"rag.feedback.expert.label": "pass"},
        {"http.route": "/chat/{id}", "url.path": "/chat/7"},
    ]
    facts = facts_of(found, attributes)
    assert facts["metadata.tenant"] == ["acme"]
    assert facts["gen_ai.request.model"] == ["o3"]
    assert facts["route"] == ("/chat/{id}", "/chat/7")
    assert facts["model"] == ("o3", "gpt-x")
    assert facts["error"] == (True,)
    assert facts["feedback"] == ("bad",)


@SOURCES
def test_a_cascade_scores_all_turns_offline_and_a_sample_with_the_judge(source: Source) -> None:
    """Each turn is counted once; its span has offline scores, and in the sample both judges'."""
    judge, evaluations = named_judge(), list[Evaluation]()
    options: dict[str, Any] = {
        "judge": judge,
        "cascade": LexicalJudge(),
        "sinks": [evaluations.append],
    }
    with running(sample_rate=0.25, source=source, **options) as app:
        names = app.run_turns(40)
        assert app.handle.flush()
        app.stop()
        spans = app.arrived(names, wait=True)
        assert statuses(spans) == {"scored": 40}
        assert turns_counted(app.receiver) == {("scored", None): 40}
        by_judge = Counter(span.attributes["rag.evaluation.judge"] for span in spans)
        assert set(by_judge) == {"paid", "lexical"}
        for span in spans:
            found = span.attributes
            assert "rag.evaluation.offline.faithfulness.score" in found
            version = found["rag.evaluation.offline.faithfulness.version"]
            assert str(version).split("/")[-1].startswith("lexical")
            is_judged = found["rag.evaluation.judge"] == "paid"
            assert ("rag.evaluation.faithfulness.score" in found) == is_judged
            assert found[PROBABILITY] in ({0.25, 0.5} if is_judged else {1.0})
        assert not [event for event in app.receiver.logs() if "drift" in event.event_name]
        events = Counter(
            (event.attributes["rag.evaluation.judge"], event.attributes[PROBABILITY] == 1.0)
            for event in app.receiver.logs()
            if event.attributes.get("gen_ai.evaluation.name") == "faithfulness"
        )
        assert events == {("lexical", True): 40, ("paid", False): by_judge["paid"]}
    assert len(evaluations) == 40


def test_the_budget_of_a_cascade_limits_the_judge_alone() -> None:
    """Over the limit, the offline scores remain; the turn is counted once, with the reason."""
    options: dict[str, Any] = {"judge": named_judge(), "cascade": LexicalJudge()}
    with running(budget="1 turns/minute", **options) as app:
        names = app.run_turns(3)
        assert app.handle.flush()
        app.stop()
        spans = app.arrived(names)
        assert turns_counted(app.receiver) == {("scored", None): 1, ("scored", "budget"): 2}
        reasons = Counter(span.attributes.get("rag.evaluation.reason") for span in spans)
    assert reasons == {None: 1, "budget": 2}
