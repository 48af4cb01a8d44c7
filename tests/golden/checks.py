"""What a golden case states beside its number, found in our scores."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pytest

from golden.cases import Case
from golden.policy import policy_of
from golden.run import Outcome
from rag_eval_otel.metrics.relevancy import band
from rag_eval_otel.types import Score

Check: TypeAlias = "Callable[[Any, Outcome, Case], bool]"

TOLERANCE = 1e-9
_PARTS = {
    "reverse_generation_score": "reverse",
    "direct_score": "direct",
    "decomposition_score": "decomposition",
    "intent_match_score": "intent",
}


def assert_the_peers_number(case: Case, outcome: Outcome) -> None:
    if case["expected"] is None:
        assert outcome.value is None, outcome
    else:
        assert outcome.value == pytest.approx(case["expected"], rel=0, abs=TOLERANCE), outcome
    wrong = differences(case, outcome)
    assert not wrong, f"{wrong}: {outcome}"


def assert_in_order(case: Case, outcome: Outcome) -> None:
    assert str(outcome)
    assert all(map(_is_in_order, outcome.scores)), outcome
    assert policy_of(case) in {None, str(outcome)}


def _is_in_order(score: Score) -> bool:
    if score.status == "ok":
        return score.value is not None and math.isfinite(score.value)
    return score.value is None and score.reason not in {None, "internal"}


def differences(case: Case, outcome: Outcome) -> list[str]:
    stated = {**case, "final_ratings": case["judge"].get("final_ratings")}
    return [
        f"{name}: {stated[name]!r}"
        for name, agrees in CHECKS.items()
        if stated.get(name) is not None and not agrees(stated[name], outcome, case)
    ]


def close(one: object, other: object) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other) <= TOLERANCE
    return one == other


def _only(outcome: Outcome) -> Score:
    return outcome.scores[0]


def _label(stated: bool, outcome: Outcome, case: Case) -> bool:  # noqa: FBT001  # of a case
    return _only(outcome).label == ("pass" if stated else "fail")


def _each(stated: list[float | None], outcome: Outcome, case: Case) -> bool:
    return close(stated, [score.value for score in outcome.scores])


def _statuses(stated: list[str], outcome: Outcome, case: Case) -> bool:
    return [status == "evaluated" for status in stated] == [
        s.status == "ok" for s in outcome.scores
    ]


def _components(stated: Mapping[str, float], outcome: Outcome, case: Case) -> bool:
    return close({_PARTS[name]: v for name, v in stated.items()}, _only(outcome).detail["parts"])


def _detail(name: str) -> Check:
    def check(stated: object, outcome: Outcome, case: Case) -> bool:
        return close(stated, _only(outcome).detail.get(name))

    return check


def _counted(read: Callable[[list[int]], int]) -> Check:
    def check(stated: int, outcome: Outcome, case: Case) -> bool:
        return stated == read(_only(outcome).detail["addressed"])

    return check


def _band(stated: str, outcome: Outcome, case: Case) -> bool:
    low = re.search(r">=\s*([.\d]+)", stated)
    return _only(outcome).explanation == band(float(low[1]) if low else 0.0)


def _ratings(stated: list[float | None], outcome: Outcome, case: Case) -> bool:
    return close([r for r in stated if r is not None], _only(outcome).detail.get("ratings", []))


def _results(stated: list[Mapping[str, Any] | None], outcome: Outcome, case: Case) -> bool:
    names = case["params"]["outputs"]
    wanted = [None if one is None else {name: one[name] for name in names} for one in stated]
    found = [None if score.value is None else dict(score.detail) for score in outcome.scores]
    return close(wanted, found)


CHECKS: Mapping[str, Check] = {
    "passing": _label,
    "invalid_result": lambda stated, outcome, _: stated == (_only(outcome).status != "ok"),
    "individual_scores": _each,
    "statuses": _statuses,
    "expected_results": _results,
    "final_ratings": _ratings,
    "components": _components,
    "coverage": _detail("coverage"),
    "sub_questions": _detail("sub_questions"),
    "addressed": _counted(sum),
    "total_sub_questions": _counted(len),
    "generated_questions": _detail("questions"),
    "similarity_scores": _detail("similarities"),
    "explanation_band": _band,
}
