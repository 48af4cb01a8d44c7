"""Metrics of the user: a question in own words, a function, a rubric."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from rag_eval_otel import aevaluate
from rag_eval_otel import metrics as m
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.codec import compose
from rag_eval_otel.metrics.custom import parse_levels
from rag_eval_otel.testing.fakes import FakeJudge
from rag_eval_otel.tools import evaluate_dataset
from rag_eval_otel.types import Evaluation, Sample, Score
from scoring import FULL, evaluated, score_of, script
from support import SAMPLE

KIND = "Is the answer kind?"


def kindness(**parameters: Any) -> m.LLMMetric:
    return m.LLMMetric(**{"name": "kindness", "instructions": KIND, **parameters})


def replied(reply: object, **parameters: Any) -> Score:
    return score_of(kindness(**parameters), FakeJudge(script(custom_kindness=reply)))


@pytest.mark.parametrize(
    ("parameters", "value", "expected", "normalized"),
    [
        ({}, 0.25, 0.25, None),
        ({}, 1, 1, None),
        ({"bounds": (1, 5)}, 2, 2, 0.25),
        ({"bounds": [-1, 1]}, 0.5, 0.5, 0.75),
        ({"outputs": {"score": int}, "bounds": (0, 10)}, 7, 7, 0.7),
        ({"outputs": {"score": int}, "bounds": (0, 10)}, 7.0, 7, 0.7),
        ({"outputs": {"score": bool}}, True, 1, None),
        ({"outputs": {"score": bool}}, False, 0, None),
        ({"outputs": {"score": [0, 0.5, 1]}}, 0.5, 0.5, None),
        ({"outputs": {"score": [1, 3, 5]}, "bounds": (0, 1)}, 3, 3, 0.5),
        ({"outputs": {"score": (-1, 1)}}, 1, 1, 1),
    ],
)
def test_the_output_that_is_the_score(
    parameters: dict[str, Any], value: object, expected: float, normalized: float | None
) -> None:
    """A number within bounds, a bool or one of a list; brought to [0, 1] where it is not there."""
    score = replied({"score": value}, **parameters)
    assert (score.value, score.status) == (expected, "ok")
    assert score.normalized == (normalized and pytest.approx(normalized))
    assert score.detail == {"score": value}


@pytest.mark.parametrize(
    ("parameters", "value"),
    [
        *(({}, bad) for bad in (1.01, -0.01, "1", None, True, [1], float("nan"), 10**400)),
        *(({"outputs": {"score": int}}, bad) for bad in (0.5, 2, "1", True, None, 10**400)),
        *(({"outputs": {"score": bool}}, bad) for bad in (1, 0, "true", None)),
        *(({"outputs": {"score": [1, 3]}}, bad) for bad in (2, "3", True, None)),
    ],
)
def test_what_is_not_of_its_type_is_asked_again(parameters: dict[str, Any], value: object) -> None:
    """Off the bounds, of another type or null: asked again, then undefined."""
    judge = FakeJudge(script(custom_kindness={"score": value}))
    score = score_of(kindness(**parameters), judge)
    assert (score.value, score.status, score.reason) == (None, "undefined", "unparsable")
    assert len(judge.requests) == 2


OUTPUTS = {"score": float, "tone": ["warm", "cold"], "why": str, "words": int, "sure": bool}
REPLY = {"score": 0.5, "tone": "warm", "why": "It thanks.", "words": 3, "sure": True}


@pytest.mark.parametrize(
    ("name", "value"),
    [("tone", "hot"), ("tone", None), ("why", 1), ("words", 1.5), ("words", "3"), ("sure", 1)],
)
def test_every_output_is_checked(name: str, value: object) -> None:
    """An output beside the score that is of another type spoils the reply."""
    assert replied({**REPLY, name: value}, outputs=OUTPUTS).reason == "unparsable"
    assert replied({k: v for k, v in REPLY.items() if k != name}, outputs=OUTPUTS).value is None


def test_what_the_judge_is_sent() -> None:
    """Instructions under the metric's heading, the bounds in words, the inputs in their tags."""
    metric = kindness(inputs=("answer", "house_style"), bounds=(1, 5))
    judge = FakeJudge(script(custom_kindness={"score": 3}))
    score_of(metric, judge, extra={"house_style": "Say please.", "other": "nowhere"})
    request = compose(judge.requests[0])
    assert f"# custom_kindness\n{KIND}\n`score` is a number from 1 to 5." in request.user
    assert "house_style]\nSay please.\n" in request.user
    assert FULL.question not in request.user
    assert "nowhere" not in request.user
    assert request.schema["required"] == ["custom_kindness"]


@pytest.mark.parametrize(
    ("inputs", "texts", "reason"),
    [
        (("answer",), {"answer": " "}, "empty_answer"),
        (("question",), {"question": ""}, "missing_question"),
        (("contexts",), {"contexts": [" "]}, "no_context"),
        (("reference",), {"reference": None}, "missing_reference"),
        (("house_style",), {}, "missing_input"),
        (("house_style",), {"extra": {"house_style": " "}}, "missing_input"),
        (("answer", "house_style"), {}, "missing_input"),
    ],
)
def test_a_missing_input(inputs: tuple[str, ...], texts: dict[str, Any], reason: str) -> None:
    """What the sample lacks is named, and nobody is asked."""
    judge = FakeJudge(script())
    score = score_of(kindness(inputs=inputs), judge, **texts)
    assert (score.value, score.status, score.reason) == (None, "undefined", reason)
    assert score.detail == {"missing": [inputs[-1]]}
    assert judge.requests == []


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"name": "My metric"}, "'My metric' can't be a name here; use a-z, 0-9 and _"),
        ({"name": "2nd"}, "'2nd' can't be a name"),
        *(
            ({"inputs": (name,)}, f"'{name}' can't be a name")
            for name in ("context", "example", "Answer")
        ),
        ({"inputs": "answer"}, r"kindness needs .* inputs, as in \('answer',\)"),
        ({"inputs": ()}, "kindness needs instructions and inputs"),
        ({"instructions": " "}, "kindness needs instructions"),
        *(
            ({"outputs": {"score": float, name: str}}, f"'{name}' can't be a name")
            for name in ("copy", "json", "schema", "model_dump", "model_config", "_x", "a-b", "")
        ),
        ({"outputs": ["score"]}, "outputs must map names to types, as {'score': float}"),
        ({"outputs": {"score": float, 5: str}}, "5 can't be a name"),
        ({"value": "kind"}, "value='kind' must be an output: score"),
        ({"outputs": {}}, "value='score' must be an output"),
        *(
            ({"outputs": {"score": kind}}, "output 'score' must be bool, int, float or a")
            for kind in (str, ["a", "b"], [1], [], [True, False], [[1], [2]], "float", 1)
        ),
        ({"outputs": {"score": float, "why": list}}, "bool, int, float, str or a list of values"),
        *(
            ({"bounds": bounds}, "bounds must be two numbers, low < high")
            for bounds in ((1, 0), (1, 1), (0, 1, 2), (0, float("inf")), (float("nan"), 1))
        ),
        (
            {"examples": [{"inputs": {"answer": "a"}, "outputs": {"score": 3}}]},
            r"examples\[0\] of kindness must be .* with inputs \['question', 'answer'\] with outp",
        ),
    ],
    ids=repr,
)
def test_what_cannot_be_asked_is_refused(parameters: dict[str, Any], told: str) -> None:
    """Names, types, bounds and examples are checked when the metric is made."""
    with pytest.raises(ConfigError, match=told):
        kindness(**parameters)


def is_short(sample: Sample) -> bool:
    return len(sample.answer) < 100


async def cites(sample: Sample) -> float:
    await asyncio.sleep(0)
    return 0.25


def graded(sample: Sample) -> Score:
    return Score(name="any", value=4, normalized=0.75, explanation="good")


def below(sample: Sample, limit: int) -> bool:
    return len(sample.answer) < limit


def measured(*metrics: Any, **options: Any) -> Evaluation:
    return asyncio.run(aevaluate(SAMPLE, metrics, judge="lexical", embedder="hashing", **options))


def test_functions_among_metrics() -> None:
    """A bool, a number, a score of its own, and an async function, beside a metric by name."""
    evaluation = measured(is_short, cites, graded, "faithfulness")
    found = [(s.name, s.value, s.label, s.normalized) for s in evaluation.scores[:3]]
    assert found == [
        ("is_short", 1.0, "pass", None),
        ("cites", 0.25, "fail", None),
        ("graded", 4.0, None, 0.75),
    ]
    assert evaluation["graded"].explanation == "good"
    assert evaluation["faithfulness"].status == "ok"


def test_another_name_and_threshold() -> None:
    """`FunctionMetric` sets what a function cannot say itself, as of a partial or a lambda."""
    metrics = [
        m.FunctionMetric(function=cites, name="cites_much", threshold=0.2),
        m.FunctionMetric(function=cites, name="cites_any", threshold=None),
        m.FunctionMetric(function=partial(below, limit=5), name="below_five"),
        m.FunctionMetric(function=lambda _: np.float32(0.5), name="half"),
        partial(below, limit=500),
    ]
    found = {s.name: (s.value, s.label) for s in measured(*metrics).scores}
    assert found == {
        "cites_much": (0.25, "pass"),
        "cites_any": (0.25, None),
        "below_five": (0.0, "fail"),
        "half": (0.5, "pass"),
        "below": (1.0, "pass"),
    }


def own_label(_: Sample) -> Score:
    return Score(name="any", value=4, label="fail")


def own_threshold(_: Sample) -> Score:
    return Score(name="any", value=4, threshold=4.5, label="fail")


def undefined(_: Sample) -> Score:
    return Score(name="any", status="undefined", reason="no_context")


@pytest.mark.parametrize(
    ("function", "threshold", "label", "by"),
    [
        (graded, 3, "pass", 3),
        (graded, 4.5, "fail", 4.5),
        (own_label, 3, "fail", None),
        (own_threshold, 3, "fail", 4.5),
        (undefined, 3, None, None),
    ],
)
def test_a_threshold_that_was_set_labels_a_score(
    function: Any, threshold: float, label: str | None, by: float | None
) -> None:
    """Set on the metric or in a configuration, it labels a `Score` that has no label of its own."""
    configured = m.with_thresholds(m.resolve_metrics([function]), {function.__name__: threshold})
    for metric in (m.FunctionMetric(function=function, threshold=threshold), *configured):
        score = measured(metric)[function.__name__]
        assert (score.label, score.threshold) == (label, by)
    for unset in (
        m.FunctionMetric(function=graded),
        m.FunctionMetric(function=graded, threshold=None),
    ):
        assert (measured(unset)["graded"].label, unset.threshold) in {(None, 0.5), (None, None)}


def bad(returned: object) -> m.FunctionMetric:
    return m.FunctionMetric(function=lambda _: returned, name="bad")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (10**400, "a int"),
        ("0.5", "a str"),
        (None, "a NoneType"),
        ([0.5], "a list"),
        ({"score": 1}, "a dict"),
    ],
)
def test_what_is_no_number(returned: object, told: str) -> None:
    """NaN, a string or nothing is an error that says what came, and not what it said."""
    score = measured(bad(returned))["bad"]
    assert (score.value, score.status, score.reason) == (None, "error", "internal")
    assert told in score.detail["error"]
    assert "0.5" not in score.detail["error"]


def raises(sample: Sample) -> float:
    raise ZeroDivisionError(sample.answer)


async def raises_later(sample: Sample) -> float:
    await asyncio.sleep(0)
    raise KeyError(sample.answer)


def test_a_function_that_raises() -> None:
    """Its score is an error that names the exception; the other metrics are not disturbed."""
    *failed, short = measured(raises, raises_later, is_short).scores
    assert {(score.status, score.reason) for score in failed} == {("error", "internal")}
    assert [score.detail["error"] for score in failed] == ["ZeroDivisionError", "KeyError"]
    assert short.value == 1.0


def test_a_function_that_never_returns() -> None:
    """A thread that hangs, and a coroutine that does, are given up, in a dataset too."""
    go_on = threading.Event()

    def hangs(_: Sample) -> bool:
        return go_on.wait(60)

    async def waits(_: Sample) -> bool:
        await asyncio.Event().wait()
        return True

    metrics = [
        m.FunctionMetric(function=hangs, timeout=0.05),
        m.FunctionMetric(function=waits, timeout=0.05),
        is_short,
    ]
    report = evaluate_dataset([SAMPLE] * 6, metrics, judge="lexical", embedder="hashing")
    go_on.set()
    for row in report.rows:
        assert [score.reason for score in row.scores] == ["timeout", "timeout", None]
        assert "no result within 0.05 s" in row.scores[0].detail["error"]


def test_blocking_functions_run_beside_each_other() -> None:
    """Two functions that wait for each other both return: neither holds the loop."""
    barrier = threading.Barrier(2)
    metrics = [m.FunctionMetric(function=lambda _: barrier.wait(10) >= 0, name=n) for n in "ab"]
    assert [score.value for score in measured(*metrics).scores] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        (lambda _: 1.0, "use def"),
        (lambda: 1.0, "use def"),
        (below, "must take one argument"),
        (dict, "is a class"),
    ],
)
def test_what_is_no_metric_function(metric: Any, told: str) -> None:
    """It is refused before anything is asked, with the way out."""
    with pytest.raises(ConfigError, match=told):
        m.resolve_metrics([metric])


class Revised:
    """An object that is called, with a revision."""

    def __init__(self, revision: object) -> None:
        self.revision = revision

    def __call__(self, _: Sample) -> float:
        return 1.0


def low(_: Sample) -> float:
    return 0.3


def high(_: Sample) -> float:
    return 0.9


@pytest.mark.parametrize(
    "make", [Revised, lambda revision: partial(Revised(revision)), {0.3: low, 0.9: high}.get]
)
def test_source_and_revision_of_a_function_are_in_the_version(make: Callable[[float], Any]) -> None:
    """Another source or revision is another measurement; the same, made anew, is the same."""
    first, again, other = (
        measured(m.FunctionMetric(function=make(weight), name="weighed"))["weighed"].version
        for weight in (0.3, 0.3, 0.9)
    )
    assert first == again
    assert first != other


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
        score_of(m.Rubric(levels=levels), rated(rating, "So.")),
        score_of(m.InstanceRubric(), rated(rating, "So."), rubric=levels),
    ):
        assert (score.value, score.normalized, score.explanation) == (rating, rating, "So.")
        assert score.label is None


@pytest.mark.parametrize("rating", [0.25, 2, -1, 0.50001, "1", True, None, float("nan")])
def test_a_number_that_is_no_level(rating: object) -> None:
    """What is not among the levels is asked again, then undefined; it is not rounded."""
    for metric in (m.Rubric(levels=HALVES), m.InstanceRubric()):
        judge = rated(rating)
        score = score_of(metric, judge, rubric=HALVES)
        assert (score.value, score.normalized, score.reason) == (None, None, "unparsable")
        assert len(judge.requests) == 2


def test_the_rubric_is_shown_in_ascending_order() -> None:
    """The judge reads each level with what it means, from the lowest, and the schema lists them."""
    judge = rated(1)
    score_of(m.Rubric(levels={1: "Right.", 1234567.25: "Beyond.", 0.5: "Half."}), judge)
    (task,) = judge.requests[0]
    request = compose([task])
    assert "rubric]\n0.5: Half.\n1: Right.\n1234567.25: Beyond.\n[" in request.user
    assert '"enum": [0.5, 1, 1234567.25]' in str(request.schema).replace("'", '"')


@pytest.mark.parametrize(
    ("levels", "told"),
    [
        ({}, "a rubric needs at least one level"),
        ({1: "a", "1": "b"}, "each key of a rubric must name a number of its own"),
        *(
            ({key: "a", 7: "b"}, "must name a number")
            for key in ("good", "1 to 2", True, float("nan"), float("inf"))
        ),
        ({0: "", 1: "b"}, "level 0 of a rubric must say what it means, not ''"),
        ({0: None, 1: "b"}, "must say what it means, not None"),
    ],
)
def test_a_rubric_that_cannot_be_used(levels: Any, told: str) -> None:
    """Levels are numbers, each once, at least one, each with a meaning."""
    with pytest.raises(ConfigError, match=told):
        m.Rubric(levels=levels)


def test_the_number_in_a_key() -> None:
    """A key that is a number is that level; a text has one number in it."""
    texts = {"score2_description": 2, "-1": -1, ".5": 0.5, "level 10:": 10}
    for key, level in {**{n: n for n in (3, 0.1, 1e-05, 1e20)}, **texts}.items():
        assert parse_levels({key: "a", 99: "b"}) == {level: "a", 99: "b"}


def test_a_rubric_of_a_sample_that_cannot_be_used() -> None:
    """One sample's odd rubric is as good as none; what is wrong with it is in the detail."""
    scores = evaluated([m.InstanceRubric(), m.Rubric()], rubric={"good": "a"}).scores
    assert [(s.value, s.reason) for s in scores] == [(None, "missing_rubric"), (5, None)]
    assert "must name a number" in scores[0].detail["error"]


@pytest.mark.parametrize("make", [m.Rubric, m.InstanceRubric])
def test_what_is_shown(make: Any) -> None:
    """The judge sees what the sample has of the inputs, and nothing else."""
    judge = FakeJudge(script())
    score_of(make(inputs=("question", "contexts")), judge)
    score_of(make(), judge, reference=None, contexts=[" "])
    shown = [set(dict(task.inputs)) for request in judge.requests for task in request]
    assert shown == [{"question", "contexts", "rubric"}, {"question", "answer", "rubric"}]


@pytest.mark.parametrize("make", [m.Rubric, m.InstanceRubric])
@pytest.mark.parametrize("inputs", [(), ("anwser",), ("rubric",), "answer"])
def test_inputs_that_cannot_be_shown(make: Any, inputs: Any) -> None:
    """Inputs are fields of the sample, and at least one."""
    with pytest.raises(ConfigError, match="inputs must be some of question, contexts, answer, ref"):
        make(inputs=inputs)


@pytest.mark.parametrize("passing", [True, False])
def test_a_guideline(passing: bool) -> None:  # noqa: FBT001
    """It is kept or not, with the judge's reason; there must be something to keep."""
    judge = FakeJudge(script(guideline={"passing": passing, "reason": "So."}))
    score = score_of(m.Guideline(guidelines="Be brief."), judge)
    assert (score.value, score.explanation) == (int(passing), "So.")
    with pytest.raises(ConfigError, match="guidelines must say what is asked of the answer"):
        m.Guideline(guidelines=" \n")
