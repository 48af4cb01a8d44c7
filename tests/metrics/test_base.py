"""What holds for every metric: its bounds, its refusals, its examples, its version."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties import examples
from rag_eval_otel import metrics as m
from rag_eval_otel.errors import ConfigError, JudgeTransportError
from rag_eval_otel.evaluation import definition_of
from rag_eval_otel.judge.codec import compose
from rag_eval_otel.judge.tasks import Kind
from rag_eval_otel.metrics.base import Metric, kinds_of
from rag_eval_otel.testing.fakes import FakeJudge
from rag_eval_otel.types import Score
from scoring import (
    DOWN,
    FULL,
    GOOD,
    AnyJudge,
    evaluated,
    score_of,
    script,
    shown,
    spoilt,
    task_of,
    told,
)

JUDGED = sorted(name for name, make in m.METRICS.items() if kinds_of(make()))
UNJUDGED = sorted(set(m.METRICS) - set(JUDGED))

BOUNDS: Mapping[str, tuple[float, float]] = {
    "answer_relevancy": (-1, 1),
    "semantic_similarity": (-1, 1),
    "answer_correctness": (-0.25, 1),
    "correctness": (1, 5),
    "rubric": (1, 5),
}
"""Where the range is not [0, 1]."""

each = pytest.mark.parametrize("name", m.METRICS)
judged = pytest.mark.parametrize("name", JUDGED)
SEEDS = st.integers(0, 10**9)


def example(kind: Kind[Any]) -> dict[str, Any]:
    task = task_of(kind)
    inputs = {name: list(t) if isinstance(t, tuple) else t for name, t in task.inputs}
    return {"inputs": inputs, "outputs": GOOD[kind.prompt](task)}


@each
@examples(20)
@given(seed=SEEDS, failures=st.sampled_from([0.0, 0.3]))
def test_a_number_is_within_bounds_fused_or_not(name: str, seed: int, failures: float) -> None:
    """Whatever valid replies come, a number is finite, in range, and the same if not fused."""
    one = m.METRICS[name]()
    score = score_of(one, AnyJudge(seed, failures=failures))
    low, high = BOUNDS.get(name, (0, 1))
    assert score.reason != "internal", score.detail
    assert score.value is None or low <= score.value <= high
    assert score.normalized is None or 0 <= score.normalized <= 1
    assert (score.value is None) == (score.status != "ok")
    apart = score_of(one, AnyJudge(seed, failures=failures), share_requests=False)
    assert told(apart) == told(score)
    assert apart.detail == score.detail


@pytest.mark.parametrize("name", m.METRIC_SETS)
@examples(10)
@given(seed=SEEDS, failures=st.sampled_from([0.0, 0.2]))
def test_a_set_has_the_scores_of_its_metrics(name: str, seed: int, failures: float) -> None:
    """Alone or together, fused or not: equal replies give equal scores."""
    together = evaluated([name], AnyJudge(seed, failures=failures)).scores
    apart = evaluated([name], AnyJudge(seed, failures=failures), share_requests=False).scores
    alone = [score_of(m, AnyJudge(seed, failures=failures)) for m in m.METRIC_SETS[name]()]
    assert [told(s) for s in together] == [told(s) for s in apart] == [told(s) for s in alone]


@pytest.mark.parametrize(
    "name", sorted(set(m.METRICS) - {"context_precision", "context_utilization"})
)
@examples(10)
@given(seed=SEEDS, data=st.data())
def test_the_order_of_contexts_does_not_count(name: str, seed: int, data: st.DataObject) -> None:
    """Apart from the metrics of rank, the arithmetic does not look at the order of contexts."""
    order = data.draw(st.permutations(FULL.contexts))
    other = score_of(m.METRICS[name](), AnyJudge(seed), contexts=order)
    assert told(other) == told(score_of(m.METRICS[name](), AnyJudge(seed)))


MISSING: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "question": ("missing_question", ("",)),
    "answer": ("empty_answer", (" \n",)),
    "contexts": ("no_context", ([], ["", " "])),
    "reference": ("missing_reference", (None, " ")),
    "retrieved_ids": ("no_context", ([],)),
    "relevant_ids": ("missing_reference", ([],)),
    "rubric": ("missing_rubric", ({},)),
}
OPTIONAL = {
    ("question", "faithfulness"),
    ("question", "statement_faithfulness"),
    ("question", "answer_accuracy"),
    ("question", "answer_correctness"),
    ("reference", "answer_exact_match"),
    ("answer", "answer_exact_match"),
    ("relevant_ids", "id_context_precision"),
    *((field, name) for field in MISSING for name in ("rubric", "instance_rubric")),
}


@each
def test_what_is_missing_is_named(name: str) -> None:
    """Without a text it needs, a metric gives 0 or nothing, says why, and asks no judge in vain."""
    metric: Any = m.METRICS[name]()
    for field, (reason, values) in MISSING.items():
        for value in values:
            judge = FakeJudge(script())
            score = score_of(metric, judge, **{field: value})
            if field in metric.needs and (field, name) not in OPTIONAL:
                assert score.reason == reason
                assert field not in metric.blank or score.value == metric.blank[field]
                assert score.value in {None, 0.0, 1.0 if name == "correctness" else 0.0}
                assert judge.requests == []


@each
@pytest.mark.parametrize("error", [DOWN, None], ids=["down", "nonsense"])
def test_a_judge_that_fails_gives_no_number(name: str, error: JudgeTransportError | None) -> None:
    """An outage is an error, nonsense is undefined; neither is ever a number."""
    judge = FakeJudge(lambda _: error)
    score = score_of(m.METRICS[name](), judge)
    if name in UNJUDGED:
        assert (score.status, judge.requests) == ("ok", [])
    else:
        reason = ("error", "transport") if error else ("undefined", "unparsable")
        assert (score.value, score.status, score.reason) == (None, *reason)


@pytest.mark.parametrize("name", sorted(set(JUDGED) - {"multi_method_relevancy"}))
def test_a_reply_off_the_scale_is_asked_again_and_is_no_number(name: str) -> None:
    """Off the scale, a boolean, a string, null, no number at all: asked twice, then undefined."""
    kinds = kinds_of(m.METRICS[name]())
    refused = [
        (kind.prompt, bad) for kind in kinds for bad in spoilt(GOOD[kind.prompt](task_of(kind)))
    ]
    for prompt, reply in refused:
        judge = FakeJudge(script(**{prompt: reply}))
        score = score_of(m.METRICS[name](), judge)
        asked = [task for one in judge.requests for task in one if task.prompt == prompt]
        if name == "answer_accuracy":  # the other judge's rating is left
            assert score.reason == "partial"
        else:
            assert (score.value, score.status, score.reason) == (None, "undefined", "unparsable")
        assert [bool(task.complaint) for task in asked].count(True) == len(asked) / 2


@each
def test_the_threshold_labels(name: str) -> None:
    """What reaches the threshold passes, or what stays below it; without it there is no label."""
    make: Any = m.METRICS[name]
    value = score_of(make()).value
    assert value is not None
    labels = [score_of(make(threshold=t)).label for t in (None, value, math.nextafter(value, 9))]
    of_both = ["pass", "fail"] if make().direction == "high" else ["fail", "pass"]
    assert labels == [None, *of_both]


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("context_relevance", "judges", 3),
        ("context_relevance", "rating", "logprob"),
        ("correctness", "rating", "mean"),
        ("rubric", "rating", ""),
        ("statement_context_relevance", "rule", "share"),
        ("semantic_similarity", "mode", "manhattan"),
        ("faithfulness", "form", None),
    ],
)
def test_an_unknown_choice_is_refused(name: str, option: str, value: object) -> None:
    """A misspelt choice is an error that names the choices, not another measurement."""
    with pytest.raises(ConfigError, match=rf"^{option} of \w+ must be one of \(.*\), not "):
        m.metric(name, **{option: value})


@each
def test_an_unknown_option_is_refused(name: str) -> None:
    """The error names the metric and the option."""
    with pytest.raises(ConfigError, match=rf"the metric '{name}' cannot be made: .*'colour'"):
        m.metric(name, colour="red")


@judged
def test_examples_are_shown_as_they_were_given(name: str) -> None:
    """An example of each kind of question a metric puts is in its prompt, and in no other."""
    make: Any = m.METRICS[name]
    given = [example(kind) for kind in kinds_of(make())]
    judge = FakeJudge(script())
    assert score_of(make(examples=given), judge, share_requests=False).status == "ok"
    tasks = [task for request in judge.requests for task in request]
    assert tasks
    for task in tasks:
        assert len(task.examples) >= 1
        for one in task.examples:
            sent = compose([task]).user
            assert all(f"<{name}>" in sent for name, _ in one.inputs)
            assert sent.index("<example>") < sent.index("</example>") < sent.index("CODE is")


SPOILS: tuple[Any, ...] = (
    *(lambda _, other=other: other for other in ({}, "text", None)),
    lambda one: {"inputs": one["inputs"]},
    lambda one: {"outputs": one["outputs"]},
    *(lambda one, bad=bad: {**one, "inputs": bad} for bad in ({}, "text")),
    lambda one: {**one, "inputs": {**one["inputs"], "other": "text"}},
    *(lambda one, x=x: {**one, "inputs": dict.fromkeys(one["inputs"], x)} for x in (5, [5])),
    *(lambda one, bad=bad: {**one, "outputs": bad} for bad in ({}, None)),
    lambda one: {**one, "outputs": {**one["outputs"], "confidence": 1}},
    lambda one: {**one, "outputs": next(spoilt({"a": one["outputs"]}), {"a": {}})["a"]},
)


@judged
def test_an_example_of_another_form_is_refused(name: str) -> None:
    """What could not be shown is said at once, with the form that an example has."""
    make: Any = m.METRICS[name]
    good = example(kinds_of(make())[0])
    form = rf"^examples\[1\] of {name} must be {{'inputs': ..., 'outputs': ...}} with inputs \["
    for spoil in SPOILS:
        with pytest.raises(ConfigError, match=form):
            make(examples=[good, spoil(good)])


def version(metric: Metric, *, model: str = "m", share_requests: bool = True) -> str:
    options = {"share_requests": share_requests, "reasons": False, "history": False}
    return f"{definition_of(metric, **options)}/{model}"


@each
def test_a_version_is_that_of_the_definition(name: str) -> None:
    """Equal metrics have one version; a label does not change it, a name not its hash."""
    make: Any = m.METRICS[name]
    assert version(make()) == version(make())
    assert version(make(threshold=0.123)) == version(make())
    assert version(make(name="x")).partition("/")[2] == version(make()).partition("/")[2]
    assert version(make(), model="n") != version(make())
    assert version(make(), share_requests=False) != version(make())


@judged
def test_examples_are_part_of_the_version(name: str) -> None:
    """A judge that is shown examples measures something else."""
    make: Any = m.METRICS[name]
    assert version(make(examples=[example(kinds_of(make())[0])])) != version(make())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (m.AnswerRelevancy(), m.AnswerRelevancy(strictness=4)),
        (m.MultiMethodRelevancy(), m.MultiMethodRelevancy(weights={"direct": 1})),
        (m.metric("context_relevance"), m.metric("context_relevance", judges=2)),
        (m.StatementContextRelevance(), m.StatementContextRelevance(rule="proportion")),
        (m.AnswerCorrectness(), m.AnswerCorrectness(weights=(1, 0))),
        (m.SemanticSimilarity(), m.SemanticSimilarity(mode="euclidean")),
        *(
            (m.SemanticSimilarity(rule="threshold"), other)
            for other in [m.SemanticSimilarity(rule="threshold", threshold=0.9)]
        ),
        (m.Rubric(), m.Rubric(levels={0: "No.", 1: "Yes."})),
        (m.Guideline(), m.Guideline(guidelines="Be brief.")),
        (m.metric("hit_rate"), m.metric("hit_rate", k=3)),
        (
            m.LLMMetric(name="a", instructions="Is it kind?"),
            m.LLMMetric(name="a", instructions="Is it kind?", bounds=(0, 2)),
        ),
    ],
)
def test_parameters_are_part_of_the_version(one: Metric, other: Metric) -> None:
    """Whatever changes the number changes the version."""
    assert version(one) != version(other)


DUAL = {
    "context_relevance": (0, 1, 2),
    "response_groundedness": (0, 1, 2),
    "answer_accuracy": (0, 2, 4),
}
dual = pytest.mark.parametrize("name", DUAL)


def rated(name: str, *ratings: object, **texts: Any) -> tuple[Score, FakeJudge]:
    def answer(task: Any) -> object:
        rating = ratings[task.kind.voice - 1]
        at_level = isinstance(rating, int) and 0 <= rating <= 2 and rating is not True
        return {"rating": DUAL[name][rating]} if at_level else rating  # type: ignore[index]

    judge = FakeJudge(answer)
    return score_of(m.metric(name, judges=2), judge, **texts), judge


@dual
@pytest.mark.parametrize(("ratings", "value"), [((2, 2), 1.0), ((2, 1), 0.75), ((0, 2), 0.5)])
def test_the_mean_of_two_judges(name: str, ratings: tuple[int, int], value: float) -> None:
    """The score is the mean rating over the highest; the disagreement has the same scale.

    The explanation has the reasons of the judges that gave one.
    """
    first, second = ({"rating": DUAL[name][rating]} for rating in ratings)
    assert rated(name, {**first, "reason": "Half."}, second)[0].explanation == "Half."
    score, judge = rated(name, *ratings)
    assert (score.value, score.reason, len(judge.requests)) == (value, None, 2)
    assert score.explanation is None
    assert score.detail == {
        "ratings": [DUAL[name][rating] for rating in ratings],
        "rated": "integer",
        "judges_used": 2,
        "disagreement": abs(ratings[0] - ratings[1]) / 2,
    }


@dual
@pytest.mark.parametrize("bad", [None, DOWN, *({"rating": r} for r in (3, -1, True, "2", 40))])
def test_one_judge_is_enough(name: str, bad: object) -> None:
    """Whichever judge gives no valid rating, the other's counts, with a remark."""
    for ratings in ((bad, 2), (2, bad)):
        score, _ = rated(name, *ratings)
        assert (score.value, score.reason, score.detail["judges_used"]) == (1.0, "partial", 1)


def test_the_second_judge_of_accuracy_sees_the_texts_exchanged() -> None:
    """It rates the reference against the answer, in a request of its own."""
    _, judge = rated("answer_accuracy", 1, 1)
    first = {"question": FULL.question, "answer": FULL.answer, "reference": FULL.reference}
    assert shown(judge) == [first, {**first, "answer": FULL.reference, "reference": FULL.answer}]


@pytest.mark.parametrize("answer", [":", "...", "Thought process:", "Solution:"])
def test_no_judge_sees_an_answer_without_content(answer: str) -> None:
    """Each metric that asks a judge gives the score of an empty answer."""
    judge = FakeJudge(script())
    scores = evaluated(list(m.METRICS), judge, answer=answer)
    texts = [text for texts in shown(judge) for text in texts.values()]
    assert all(
        answer != text and not (isinstance(text, tuple) and answer in text) for text in texts
    )
    of_nothing = evaluated(list(m.METRICS), answer="").scores
    for score, empty in zip(scores.scores, of_nothing, strict=True):
        if m.METRICS[score.name]().asks:  # type: ignore[attr-defined]
            assert (score.value, score.status) == (empty.value, empty.status)
    assert scores["answer_relevancy"].reason == "noncommittal"
    assert scores["faithfulness"].reason == "no_claims"
