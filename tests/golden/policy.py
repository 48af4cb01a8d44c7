"""What our policy makes of the cases in which the peers differ, or are wrong."""

from __future__ import annotations

from collections.abc import Mapping

from golden.cases import Case

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
