"""Levels of a rubric of the user, and of a rubric of each sample."""

from typing import Any

import pytest

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.wire import compose
from rag_eval_otel.metrics import InstanceRubric, Rubric
from rag_eval_otel.metrics.custom import parse_levels
from rag_eval_otel.testing.fakes import FakeJudge
from scoring import evaluated, score_of, script

HALVES = {0: "Wrong.", 0.5: "Half right.", 1: "Right."}
RAGAS = {
    "score0_description": "Wrong.",
    "score0.5_description": "Half right.",
    "score1_description": "Right.",
}


def rated(rating: object, reason: str = "") -> FakeJudge:
    return FakeJudge(script(rubric={"rating": rating, "reason": reason}))


@pytest.mark.parametrize("levels", [HALVES, RAGAS, {"1": "c", "0": "a", ".5": "b"}])
@pytest.mark.parametrize("rating", [0, 0.5, 1, 1.0])
def test_the_level_chosen(levels: Any, rating: float) -> None:
    """Halves are levels like any other, and ragas' keys name them; the feedback is kept."""
    for score in (
        score_of(Rubric(levels=levels), rated(rating, "So.")),
        score_of(InstanceRubric(), rated(rating, "So."), rubric=levels),
    ):
        assert (score.value, score.normalized, score.explanation) == (rating, rating, "So.")
        assert score.label is None


@pytest.mark.parametrize("rating", [0.25, 2, -1, 0.50001, "1", True, None, float("nan")])
def test_a_number_that_is_no_level(rating: object) -> None:
    """What is not among the levels is asked again, then undefined; it is not rounded."""
    for metric in (Rubric(levels=HALVES), InstanceRubric()):
        judge = rated(rating)
        score = score_of(metric, judge, rubric=HALVES)
        assert (score.value, score.normalized, score.reason) == (None, None, "unparsable")
        assert len(judge.requests) == 2


def test_five_levels_by_default() -> None:
    """Without levels of one's own there are five, from 1 to 5."""
    score = score_of(Rubric(), rated(4))
    assert (score.value, score.normalized) == (4, 0.75)
    assert score_of(Rubric(), rated(4.5)).reason == "unparsable"


def test_the_rubric_is_shown_in_ascending_order() -> None:
    """The judge reads each level with what it means, from the lowest, and the schema lists them."""
    judge = rated(1)
    score_of(Rubric(levels={1: "Right.", 1234567.25: "Beyond.", 0.5: "Half."}), judge)
    (task,) = judge.requests[0]
    request = compose([task])
    assert "rubric]\n0.5: Half.\n1: Right.\n1234567.25: Beyond.\n[" in request.user
    assert '"enum": [0.5, 1, 1234567.25]' in str(request.schema).replace("'", '"')


@pytest.mark.parametrize(
    ("levels", "told"),
    [
        ({}, "a rubric needs at least one level"),
        ({1: "a", "1": "b"}, "each key of a rubric must name a number of its own"),
        ({"good": "a", "bad": "b"}, "must name a number"),
        ({"1 to 2": "a", "3": "b"}, "must name a number"),
        ({True: "a", False: "b"}, "must name a number"),
        ({float("nan"): "a", 1: "b"}, "must name a number"),
        ({float("inf"): "a", 1: "b"}, "must name a number"),
        ({0: "", 1: "b"}, "level 0 of a rubric must say what it means, not ''"),
        ({0: None, 1: "b"}, "must say what it means, not None"),
    ],
)
def test_a_rubric_that_cannot_be_used(levels: Any, told: str) -> None:
    """Levels are numbers, each once, at least one, each with a meaning."""
    with pytest.raises(ConfigError, match=told):
        Rubric(levels=levels)


@pytest.mark.parametrize(
    ("key", "level"),
    [
        (3, 3),
        (0.1, 0.1),
        (1e-05, 1e-05),
        (1e20, 1e20),
        ("score2_description", 2),
        ("-1", -1),
        (".5", 0.5),
        ("level 10:", 10),
    ],
)
def test_the_number_in_a_key(key: Any, level: float) -> None:
    """A key that is a number is that level; a text has one number in it."""
    assert parse_levels({key: "a", 99: "b"}) == {level: "a", 99: "b"}


def test_a_rubric_of_a_sample_that_cannot_be_used() -> None:
    """One sample's odd rubric is as good as none; what is wrong with it is in the detail."""
    scores = evaluated([InstanceRubric(), Rubric()], rubric={"good": "a"}).scores
    assert [(s.value, s.reason) for s in scores] == [(None, "missing_rubric"), (5, None)]
    assert "must name a number" in scores[0].detail["error"]


@pytest.mark.parametrize("make", [Rubric, InstanceRubric])
def test_what_is_shown(make: Any) -> None:
    """The judge sees what the sample has of the inputs, and nothing else."""
    judge = FakeJudge(script())
    score_of(make(inputs=("question", "contexts")), judge)
    score_of(make(), judge, reference=None, contexts=[" "])
    shown = [set(dict(task.inputs)) for request in judge.requests for task in request]
    assert shown == [{"question", "contexts", "rubric"}, {"question", "answer", "rubric"}]


@pytest.mark.parametrize("make", [Rubric, InstanceRubric])
@pytest.mark.parametrize("inputs", [(), ("anwser",), ("rubric",), "answer"])
def test_inputs_that_cannot_be_shown(make: Any, inputs: Any) -> None:
    """Inputs are fields of the sample, and at least one."""
    with pytest.raises(ConfigError, match="inputs must be some of question, contexts, answer, ref"):
        make(inputs=inputs)
