"""Scores that are kept in memory, and used for a turn that comes again."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, fields, replace
from itertools import count
from typing import Any

import pytest

from live import attached
from pipeline import OnesEmbedder, good_judge
from rag_eval_otel import Config, Sample
from rag_eval_otel.config import limits_of
from rag_eval_otel.errors import JudgeTransportError
from rag_eval_otel.judge.budget import Budget
from rag_eval_otel.live.scorer import Evaluations, build_measurement
from rag_eval_otel.metrics.custom import Guideline
from rag_eval_otel.testing import FakeEmbedder, FakeJudge
from rag_eval_otel.types import Evaluation, Score, Usage

SECRET = "Ada Lovelace, born 1815"
SAMPLE = Sample(question=f"Who is {SECRET}?", contexts=[f"{SECRET}."], answer=f"It is {SECRET}.")
METRICS = tuple(Guideline(guidelines=f"It is {name}.", name=name) for name in ("polite", "short"))


def verdicts(*first: object) -> FakeJudge:
    """Return a judge with these replies one after the other, and then alternating verdicts."""
    replies, numbers = list(first), count()

    def reply(_: object) -> object:
        if replies:
            return replies.pop(0)
        return {"passing": next(numbers) % 2 == 0, "reason": SECRET}

    return FakeJudge(reply)


def config(judge: FakeJudge, **options: Any) -> Config:
    defaults = {"metrics": METRICS, "embedder": FakeEmbedder({}), "drift": False}
    return Config(judge=judge, **{**defaults, **options})


def evaluations(
    judge: FakeJudge, *, max_kept: int = 9, **options: Any
) -> tuple[Evaluations, Counter[str]]:
    counts = Counter[str]()
    measurement = replace(build_measurement(config(judge, **options)), share_requests=False)
    return Evaluations(
        measurement, max_kept=max_kept, count=lambda outcome: counts.update([outcome])
    ), counts


def evaluated(shared: Evaluations, sample: Sample = SAMPLE) -> Evaluation:
    found = asyncio.run(shared.of(sample))
    assert found is not None
    return found


def exported(evaluation: Evaluation) -> list[tuple[object, ...]]:
    names = [each.name for each in fields(Score) if each.name not in _NOT_EXPORTED]
    return [tuple(getattr(score, name) for name in names) for score in evaluation.scores]


_NOT_EXPORTED = {"usage", "cost", "detail", "explanation"}


def test_a_turn_that_comes_again_has_equal_scores_and_asks_nothing() -> None:
    """The judge would say something else, and is not asked."""
    judge = verdicts()
    shared, counts = evaluations(judge)
    first, second = evaluated(shared), evaluated(shared)
    assert exported(first) == exported(second)
    assert (first.judge, first.label_metrics) == (second.judge, second.label_metrics)
    assert len(judge.requests) == 2
    assert first.usage.judge_requests == 2
    assert second.usage == Usage()
    assert {score.cost for score in second.scores} == {None}
    assert counts == {"miss": 1, "hit": 1}


@dataclass(frozen=True)
class _Detailed:
    """A metric whose score has details."""

    name: str = "detailed"
    needs: frozenset[str] = frozenset({"question"})
    asks: tuple[Any, ...] = ()

    async def measure(self, *_: object) -> Score:
        return Score(name=self.name, value=1.0, detail={"said": SECRET, "truncated": 1})


@pytest.mark.parametrize("explanations", [True, False])
def test_texts_are_kept_in_memory_only_if_they_are_exported(explanations: Any) -> None:
    """Explanations and details may be long; the first evaluation has them, and a later one not."""
    shared, _ = evaluations(verdicts(), metrics=(_Detailed(),), explanations=explanations)
    first, second = (evaluated(shared).scores[0].detail for _ in range(2))
    assert first == {"said": SECRET, "truncated": 1}
    assert second == (first if explanations else {"truncated": 1})


def test_a_judge_that_changes_its_model_is_asked_again() -> None:
    """Its scores have another version."""
    judge = verdicts()
    shared, _ = evaluations(judge)
    first = evaluated(shared)
    judge.model = "another"
    assert evaluated(shared).scores[0].version != first.scores[0].version
    assert len(judge.requests) == 4


@pytest.mark.parametrize("reply", [JudgeTransportError("reset"), "nonsense"])
def test_a_turn_with_a_score_that_is_not_final_is_evaluated_again(reply: object) -> None:
    """A metric that failed or got no usable reply may have a score the next time."""
    shared, counts = evaluations(verdicts(reply, *([reply] * 3 if reply == "nonsense" else [])))
    first, second = evaluated(shared), evaluated(shared)
    assert [score.status for score in second.scores] == ["ok", "ok"]
    assert [score.status for score in first.scores] != ["ok", "ok"]
    assert counts == {"miss": 2}
    assert exported(evaluated(shared)) == exported(second)


def test_memory_is_bounded() -> None:
    """The turn that was used longest ago is dropped."""
    judge = verdicts()
    shared, _ = evaluations(judge, max_kept=2)
    for answer in ("a", "b", "a", "c", "a"):
        evaluated(shared, replace(SAMPLE, answer=answer))
    assert len(judge.requests) == 2 * 3
    evaluated(shared, replace(SAMPLE, answer="b"))
    assert len(judge.requests) == 2 * 4


def test_kept_scores_are_used_when_the_budget_is_spent() -> None:
    """They cost nothing; a turn that is not known is skipped."""
    judge = verdicts()
    budget = Budget(limits_of("2 requests/day", where="budget"))
    spending = Evaluations(replace(build_measurement(config(judge)), budget=budget), max_kept=9)
    first = evaluated(spending)
    assert budget.spent_limit is not None
    assert exported(first) == exported(evaluated(spending))
    assert asyncio.run(spending.of(replace(SAMPLE, answer="No."))) is None
    assert len(judge.requests) == 2


def test_the_pipeline_counts_what_it_looks_up() -> None:
    """An application that asks the same twice gets equal scores on both spans."""
    judge = good_judge()
    with attached(judge=judge, embedder=OnesEmbedder()) as app:
        for _ in range(2):
            app.turn()
            assert app.handle.flush(60)
        counts = app.counted_by("rag.evaluation.cache.lookups", "outcome")
    assert counts == {"miss": 1, "hit": 1}
