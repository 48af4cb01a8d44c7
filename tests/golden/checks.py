"""What a golden case states beside its number, found in our scores."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pytest

from golden.cases import Case
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


def _band(stated: str) -> str:
    low = re.search(r">=\s*([.\d]+)", stated)
    return band(float(low[1]) if low else 0.0)


def _results(stated: list[Mapping[str, Any] | None], outcome: Outcome, case: Case) -> bool:
    names = case["params"]["outputs"]
    wanted = [None if one is None else {name: one[name] for name in names} for one in stated]
    found = [None if score.value is None else dict(score.detail) for score in outcome.scores]
    return close(wanted, found)


def _detail(name: str, read: Callable[[Any], object] = lambda found: found) -> Check:
    return lambda stated, outcome, _: close(stated, read(_only(outcome).detail.get(name)))


CHECKS: Mapping[str, Check] = {
    "passing": lambda stated, out, _: _only(out).label == ("pass" if stated else "fail"),
    "invalid_result": lambda stated, out, _: stated == (_only(out).status != "ok"),
    "individual_scores": lambda stated, out, _: close(stated, [one.value for one in out.scores]),
    "statuses": lambda stated, out, _: (
        [status == "evaluated" for status in stated] == [one.status == "ok" for one in out.scores]
    ),
    "expected_results": _results,
    "final_ratings": lambda stated, out, _: close(
        [r for r in stated if r is not None], _only(out).detail.get("ratings", [])
    ),
    "components": lambda stated, out, _: close(
        {_PARTS[name]: value for name, value in stated.items()}, _only(out).detail["parts"]
    ),
    "coverage": _detail("coverage"),
    "sub_questions": _detail("sub_questions"),
    "addressed": _detail("addressed", sum),
    "total_sub_questions": _detail("addressed", len),
    "generated_questions": _detail("questions"),
    "similarity_scores": _detail("similarities"),
    "explanation_band": lambda stated, out, _: _only(out).explanation == _band(stated),
}

_OUTCOMES: Mapping[str, str] = {
    "undefined: no_claims": "ac-11 ac-14 fa-06 hfa-05 rec-06",
    "0.15": "ac-12 ac-13",
    "undefined: unparsable": (
        "ac-18 acc-08 ar-14 ar-18 cr-08 fa-10 fa-16 fa-17 fa-19 hcr-10 hfa-14 hfa-15 hfa-18 "
        "irub-03 irub-08 lif-10 lir-10 rec-07 rec-08 rec-12 rg-08 rub-04 rub-05 rub-11 rub-13"
    ),
    "0 (empty_answer)": "ac-19 acc-sc-empty-answer ar-16 rg-sc-blank-answer rg-sc-empty-answer",
    "undefined: zero_vector": "ac-20 lis-06 sas-bi-06 sim-07",
    "1 (partial)": "acc-07 cr-07 mmc-06 mmc-07",
    "0.5": (
        "acc-sc-answer-equals-reference cr-sc-context-equals-question "
        "cr-sc-context-inside-question rg-sc-answer-equals-context rg-sc-answer-inside-context "
        "rg-sc-one-letter-answer"
    ),
    "undefined: missing_reference": "acc-sc-empty-reference cp-16 idr-05 rec-11",
    "no mean (rows: undefined: missing_input; undefined: missing_input)": "agg-hs-03 agg-ragas-03",
    "no mean (rows: none)": "agg-ragas-04",
    "0 (noncommittal)": "ar-05 ar-15",
    "0.9 (partial)": "ar-08 ar-10 ar-11 ar-21",
    "undefined: no_questions": "ar-09 mmq-05 mmr-09 mmr-10",
    "undefined: missing_question": "ar-17",
    "undefined: judge_incomplete": "cp-11 cp-15 cu-11 cu-15 fa-07",
    "undefined: no_context": "cp-14 cu-14 idp-03",
    "0 (no_context)": (
        "cr-sc-blank-contexts cr-sc-no-contexts fa-13 fa-15 hfa-21 licr-15 lif-14 lir-14 rec-10 "
        "rg-sc-blank-contexts rg-sc-no-contexts"
    ),
    "0 (missing_question)": "cr-sc-blank-question cr-sc-empty-question",
    "undefined: empty_answer": "cu-16 fa-12 hfa-20",
    "1": "fa-14",
    "error: transport": "hcr-14 mmr-19",
    "undefined: missing_rubric": "irub-02",
    "0": "irub-05",
    "0.75": "mmq-10",
}
"""Outcomes, as `Outcome` spells them, each with the beginnings of the ids of its cases."""

RECOMMENDED = {key: outcome for outcome, keys in _OUTCOMES.items() for key in keys.split()}
"""Where the peers differ among themselves, or are wrong: what our policy makes of a case.

By the beginning of the case's id.
"""


def policy_of(case: Case) -> str | None:
    found = (key for key in RECOMMENDED if is_about(key, case))
    return next((RECOMMENDED[key] for key in found), None)


def is_about(key: str, case: Case) -> bool:
    return f"{case['id']}-".startswith(f"{key}-")
