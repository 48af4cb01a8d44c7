"""A plain function as a metric."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import numpy as np
import pytest

from rag_eval_otel import aevaluate
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics import FunctionMetric, resolve_metrics, with_thresholds
from rag_eval_otel.tools import evaluate_dataset
from rag_eval_otel.types import Evaluation, Sample, Score
from support import SAMPLE


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
        FunctionMetric(function=cites, name="cites_much", threshold=0.2),
        FunctionMetric(function=cites, name="cites_any", threshold=None),
        FunctionMetric(function=partial(below, limit=5), name="below_five"),
        FunctionMetric(function=lambda _: np.float32(0.5), name="half"),
    ]
    found = {s.name: (s.value, s.label) for s in measured(*metrics).scores}
    assert found == {
        "cites_much": (0.25, "pass"),
        "cites_any": (0.25, None),
        "below_five": (0.0, "fail"),
        "half": (0.5, "pass"),
    }
    assert measured(partial(below, limit=500))["below"].value == 1.0


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
    configured = with_thresholds(resolve_metrics([function]), {function.__name__: threshold})
    for metric in (FunctionMetric(function=function, threshold=threshold), *configured):
        score = measured(metric)[function.__name__]
        assert (score.label, score.threshold) == (label, by)
    for unset in (FunctionMetric(function=graded), FunctionMetric(function=graded, threshold=None)):
        assert (measured(unset)["graded"].label, unset.threshold) in {(None, 0.5), (None, None)}


def bad(returned: object) -> FunctionMetric:
    return FunctionMetric(function=lambda _: returned, name="bad")  # type: ignore[arg-type]


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


@pytest.mark.parametrize("function", [raises, raises_later])
def test_a_function_that_raises(function: Callable[[Sample], Any]) -> None:
    """Its score is an error that names the exception; the other metrics are not disturbed."""
    evaluation = measured(function, is_short)
    score = evaluation[function.__name__]
    assert (score.status, score.reason) == ("error", "internal")
    assert score.detail["error"] in {"ZeroDivisionError", "KeyError"}
    assert evaluation["is_short"].value == 1.0


def test_a_function_that_never_returns() -> None:
    """A thread that hangs, and a coroutine that does, are given up, in a dataset too."""
    go_on = threading.Event()

    def hangs(_: Sample) -> bool:
        return go_on.wait(60)

    async def waits(_: Sample) -> bool:
        await asyncio.Event().wait()
        return True

    metrics = [
        FunctionMetric(function=hangs, timeout=0.05),
        FunctionMetric(function=waits, timeout=0.05),
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
    metrics = [FunctionMetric(function=lambda _: barrier.wait(10) >= 0, name=n) for n in "ab"]
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
        resolve_metrics([metric])


def test_the_source_is_in_the_version() -> None:
    """A function that is written anew is another measurement; the same one is the same."""
    first, again = measured(is_short), measured(is_short)
    assert first["is_short"].version == again["is_short"].version
    same_name = FunctionMetric(function=cites, name="is_short")
    assert measured(same_name)["is_short"].version != first["is_short"].version
    made: dict[str, Any] = {}
    exec("def is_short(sample): return True", made)  # noqa: S102
    assert measured(made["is_short"])["is_short"].value == 1.0


def weighing(weight: Any) -> Callable[[Sample], float]:
    def inner(_: Sample) -> float:
        return float(weight)

    return inner


def with_default(weight: float) -> Callable[[Sample], float]:
    def inner(_: Sample, by: float = weight, *, and_by: float = weight) -> float:
        return by * and_by

    return inner


def decorated(weight: float) -> Callable[[Sample], float]:
    inner = weighing(weight)

    @wraps(inner)
    def outer(sample: Sample) -> float:
        return inner(sample)

    return outer


def weigh(_: Sample, weight: float, more: object = None) -> float:
    return weight


class Revised:
    """An object that is called, with a revision."""

    def __init__(self, revision: object) -> None:
        self.revision = revision

    def __call__(self, _: Sample) -> float:
        return 1.0

    def method(self, _: Sample) -> float:
        return 1.0


@dataclass
class Weighted:
    """A dataclass that is called."""

    weight: float

    def __call__(self, _: Sample) -> float:
        return self.weight


def compiled(weight: float) -> Any:
    made: dict[str, Any] = {}
    exec(f"def f(sample): return {weight}", made)  # noqa: S102
    return made["f"]


@pytest.mark.parametrize(
    "make",
    [
        weighing,
        with_default,
        decorated,
        compiled,
        Revised,
        Weighted,
        lambda weight: Revised(weight).method,
        lambda weight: Weighted(weight).__call__,
        lambda weight: partial(weigh, weight=weight),
        lambda weight: partial(weigh, weight=1, more={"of": [weight]}),
        lambda weight: partial(partial(weigh, weight=1), more=weighing(weight)),
        lambda weight: weighing((weight, "a")),
        lambda weight: (lambda _: 0.3) if weight == 0.3 else (lambda _: 0.9),
    ],
)
def test_what_a_function_is_bound_to_is_in_the_version(make: Callable[[float], Any]) -> None:
    """Another weight is another measurement; the same weight, bound anew, is the same."""
    first, again, other = (
        measured(FunctionMetric(function=make(weight), name="weighed"))["weighed"].version
        for weight in (0.3, 0.3, 0.9)
    )
    assert first == again
    assert first != other


def test_a_function_that_holds_itself() -> None:
    """Circles end, and sets and mappings count in any order."""

    def again(sample: Sample, depth: int = 0) -> float:
        return again(sample, depth + 1) if depth < 2 else 1.0

    circle: list[object] = [again]
    circle.append(circle)
    assert measured(FunctionMetric(function=again, name="again"))["again"].value == 1.0
    first, other = (
        FunctionMetric(function=partial(weigh, weight=1, more=more), name="weighed").source
        for more in ({"a": {1, 2}, "b": circle}, {"b": circle, "a": {2, 1}})
    )
    assert first == other


def test_a_function_whose_variables_are_set_later() -> None:
    """A helper that is defined below the metric is no part of its version, and no error."""

    def metric(_: Sample) -> float:
        return later()

    made = FunctionMetric(function=metric, name="early")

    def later() -> float:
        return 0.5

    assert measured(made)["early"].value == 0.5
