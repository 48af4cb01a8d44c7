"""The metrics of retrieval, from ids alone."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics import metric
from rag_eval_otel.metrics.base import Metric
from rag_eval_otel.metrics.ranking import RANKING
from rag_eval_otel.types import Passage, Sample, Score
from scoring import score_of

RANKED = [row.name for row in RANKING if not row.name.startswith("id_")]
ALL = RANKING


def ranked(
    metric: Metric, retrieved: Sequence[object], relevant: Sequence[object] | Mapping[Any, float]
) -> Score:
    return score_of(metric, sample=Sample(retrieved_ids=retrieved, relevant_ids=relevant))


def value(
    metric: Metric, retrieved: Sequence[object], relevant: Sequence[object] | Mapping[Any, float]
) -> float:
    found = ranked(metric, retrieved, relevant).value
    assert found is not None
    return found


def discount(*ranks: int) -> float:
    return sum(1 / math.log2(rank + 1) for rank in ranks)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (metric("hit_rate", k=1), 0),
        (metric("mrr_of_all"), (1 / 2 + 1 / 4) / 2),
        (metric("mrr", k=1), 0),
        (metric("retrieval_precision", k=2), 1 / 2),
        (metric("retrieval_precision", k=8), 2 / 8),
        (metric("retrieval_recall", k=2), 1 / 3),
        (metric("average_precision", k=3), (1 / 2) / 3),
        (metric("ndcg", k=2), discount(2) / discount(1, 2)),
        (metric("ndcg_exponential"), discount(2, 4) / discount(1, 2, 3)),
        (metric("id_context_precision"), 2 / 4),
        (metric("id_context_recall"), 2 / 3),
    ],
    ids=repr,
)
def test_definitions(metric: Metric, expected: float) -> None:
    """Two of three relevant documents, at ranks 2 and 4 of 4."""
    assert value(metric, ["x", "a", "y", "b"], ["a", "b", "c"]) == pytest.approx(expected)


def test_graded_gains() -> None:
    """The gain is the grade, or two to the grade less one, over that of the ideal ranking."""
    grades = {"a": 3.0, "b": 1.0, "c": 0.0}
    got, ideal = 1 / 1 + 3 / math.log2(3), 3 / 1 + 1 / math.log2(3)
    assert value(metric("ndcg"), ["b", "a"], grades) == pytest.approx(got / ideal)
    got, ideal = 1 / 1 + 7 / math.log2(3), 7 / 1 + 1 / math.log2(3)
    assert value(metric("ndcg_exponential"), ["b", "a"], grades) == pytest.approx(got / ideal)


@pytest.mark.parametrize("name", ["ndcg", "ndcg_exponential"])
@pytest.mark.parametrize("top", [5e-324, 1e-9, 1023.0, 1e5, 1.7e308])
def test_extreme_grades(name: str, top: float) -> None:
    """Grades beyond what a float can add up or raise give the ratio all the same."""
    assert value(metric(name), ["a", "b"], {"a": top, "b": top}) == 1
    worst = value(metric(name), ["x", "a"], {"a": top, "b": 0})
    assert worst == pytest.approx(1 / math.log2(3))


@pytest.mark.parametrize("metric", ALL, ids=repr)
def test_a_grade_of_zero_is_not_relevant(metric: Metric) -> None:
    """A document that was graded 0 counts as any other that is not relevant."""
    graded = ranked(metric, ["x", "a", "b"], {"a": 1, "x": 0})
    assert graded.value == pytest.approx(value(metric, ["x", "a", "b"], ["a"]))
    nothing = ranked(metric, ["x"], {"x": 0})
    if metric.name == "id_context_precision":
        assert nothing.value == 0
    else:
        assert (nothing.value, nothing.reason) == (None, "missing_reference")


@pytest.mark.parametrize(
    ("metric", "empty", "unknown"),
    [
        *(
            (metric(name), (0.0, "ok", "no_context"), (None, "undefined", "missing_reference"))
            for name in RANKED
            if name != "retrieval_precision"
        ),
        (
            metric("retrieval_precision"),
            (None, "undefined", "no_context"),
            (None, "undefined", "missing_reference"),
        ),
        (metric("id_context_precision"), (None, "undefined", "no_context"), (0.0, "ok", None)),
        (
            metric("id_context_recall"),
            (0.0, "ok", "no_context"),
            (None, "undefined", "missing_reference"),
        ),
    ],
    ids=repr,
)
def test_nothing_retrieved_and_nothing_known(
    metric: Metric, empty: tuple[object, ...], unknown: tuple[object, ...]
) -> None:
    """Nothing retrieved is 0 where the definition allows; nothing known to be relevant is not."""
    nothing, anything = ranked(metric, [], ["a"]), ranked(metric, ["a"], [])
    assert (nothing.value, nothing.status, nothing.reason) == empty
    assert (anything.value, anything.status, anything.reason) == unknown


@pytest.mark.parametrize("name", RANKED)
@pytest.mark.parametrize("k", [0, -1])
def test_k_is_at_least_one(name: str, k: int) -> None:
    """A cut before the first rank leaves nothing to measure."""
    with pytest.raises(ConfigError, match=f"k must be at least 1, or None for all, not {k}"):
        metric(name, k=k)


def test_ids_of_any_type_and_of_the_contexts() -> None:
    """Numbers and strings are the same id; without retrieved ids those of the contexts count."""
    assert value(metric("mrr"), [3, 1], ["1"]) == 0.5
    sample = Sample(
        contexts=[Passage(text="x", id="3"), Passage(text="y", id="1")], relevant_ids=[1]
    )
    assert score_of(metric("mrr"), sample=sample).value == 0.5
    partly = Sample(contexts=[Passage(text="x"), Passage(text="y", id="1")], relevant_ids=[1])
    assert score_of(metric("mrr"), sample=partly).reason == "no_context"


IDS = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8)
UNIQUE = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True)
GRADES = st.dictionaries(
    st.sampled_from("abcdefgh"), st.floats(0, 1e308) | st.integers(0, 5), min_size=1
)
K = st.none() | st.integers(1, 9)


def at(k: int | None) -> list[Metric]:
    return [metric(name, k=k) for name in RANKED]


@pytest.mark.slow
@given(IDS, IDS | GRADES, K)
def test_bounds(retrieved: list[str], relevant: Any, k: int | None) -> None:
    """Every score is in [0, 1], however often an id is named, or there is none."""
    for one in [*ALL, *at(k)]:
        score = ranked(one, retrieved, relevant)
        assert score.reason != "internal"
        assert score.value is None or 0 <= score.value <= 1


@pytest.mark.slow
@given(UNIQUE, UNIQUE, st.data())
def test_doubles_count_once(retrieved: list[str], relevant: list[str], data: st.DataObject) -> None:
    """An id that is named twice as relevant, or retrieved again later, brings nothing more."""
    again = data.draw(st.lists(st.sampled_from(relevant), max_size=3))
    later = data.draw(st.lists(st.sampled_from(retrieved), max_size=3))
    for row in ALL:
        once = value(row, retrieved, relevant)
        assert value(row, retrieved, relevant + again) == once
        assert value(row, retrieved + later, relevant) == pytest.approx(once)


@given(UNIQUE, K)
def test_a_perfect_ranking_is_one(relevant: list[str], k: int | None) -> None:
    """All that is relevant, and nothing else before it, is the best there is."""
    for row in (
        *(metric(name, k=k) for name in ("mrr", "ndcg", "hit_rate")),
        metric("average_precision"),
        metric("retrieval_recall"),
    ):
        assert value(row, [*relevant, "x", "y"], relevant) == 1
