"""What our policy makes of the cases in which the peers differ, or are wrong."""

from __future__ import annotations

from collections.abc import Mapping

from golden.cases import Case

RECOMMENDED: Mapping[str, str] = {
    "ac-11": "undefined: no_claims",
    "ac-12": "0.15",
    "ac-13": "0.15",
    "ac-14": "undefined: no_claims",
    "ac-18": "undefined: unparsable",
    "ac-19": "0 (empty_answer)",
    "ac-20": "undefined: zero_vector",
    "acc-07": "1 (partial)",
    "acc-08": "undefined: unparsable",
    "acc-sc-answer-equals-reference": "0.5",
    "acc-sc-empty-answer": "0 (empty_answer)",
    "acc-sc-empty-reference": "undefined: missing_reference",
    "agg-hs-03": "no mean (rows: undefined: missing_input; undefined: missing_input)",
    "agg-ragas-03": "no mean (rows: undefined: missing_input; undefined: missing_input)",
    "agg-ragas-04": "no mean (rows: none)",
    "ar-05": "0 (noncommittal)",
    "ar-08": "0.9 (partial)",
    "ar-09": "undefined: no_questions",
    "ar-10": "0.9 (partial)",
    "ar-11": "0.9 (partial)",
    "ar-14": "undefined: unparsable",
    "ar-15": "0 (noncommittal)",
    "ar-16": "0 (empty_answer)",
    "ar-17": "undefined: missing_question",
    "ar-18": "undefined: unparsable",
    "ar-21": "0.9 (partial)",
    "cp-11": "undefined: judge_incomplete",
    "cp-14": "undefined: no_context",
    "cp-15": "undefined: judge_incomplete",
    "cp-16": "undefined: missing_reference",
    "cr-07": "1 (partial)",
    "cr-08": "undefined: unparsable",
    "cr-sc-blank-contexts": "0 (no_context)",
    "cr-sc-blank-question": "0 (missing_question)",
    "cr-sc-context-equals-question": "0.5",
    "cr-sc-context-inside-question": "0.5",
    "cr-sc-empty-question": "0 (missing_question)",
    "cr-sc-no-contexts": "0 (no_context)",
    "cu-11": "undefined: judge_incomplete",
    "cu-14": "undefined: no_context",
    "cu-15": "undefined: judge_incomplete",
    "cu-16": "undefined: empty_answer",
    "fa-06": "undefined: no_claims",
    "fa-07": "undefined: judge_incomplete",
    "fa-10": "undefined: unparsable",
    "fa-12": "undefined: empty_answer",
    "fa-13": "0 (no_context)",
    "fa-14": "1",
    "fa-15": "0 (no_context)",
    "fa-16": "undefined: unparsable",
    "fa-17": "undefined: unparsable",
    "fa-19": "undefined: unparsable",
    "hcr-10": "undefined: unparsable",
    "hcr-14": "error: transport",
    "hfa-05": "undefined: no_claims",
    "hfa-14": "undefined: unparsable",
    "hfa-15": "undefined: unparsable",
    "hfa-18": "undefined: unparsable",
    "hfa-20": "undefined: empty_answer",
    "hfa-21": "0 (no_context)",
    "idp-03": "undefined: no_context",
    "idr-05": "undefined: missing_reference",
    "irub-02": "undefined: missing_rubric",
    "irub-03": "undefined: unparsable",
    "irub-05": "0",
    "irub-08": "undefined: unparsable",
    "licr-15": "0 (no_context)",
    "lif-10": "undefined: unparsable",
    "lif-14": "0 (no_context)",
    "lir-10": "undefined: unparsable",
    "lir-14": "0 (no_context)",
    "lis-06": "undefined: zero_vector",
    "mmc-06": "1 (partial)",
    "mmc-07": "1 (partial)",
    "mmq-05": "undefined: no_questions",
    "mmq-10": "0.75",
    "mmr-09": "undefined: no_questions",
    "mmr-10": "undefined: no_questions",
    "mmr-19": "error: transport",
    "rec-06": "undefined: no_claims",
    "rec-07": "undefined: unparsable",
    "rec-08": "undefined: unparsable",
    "rec-10": "0 (no_context)",
    "rec-11": "undefined: missing_reference",
    "rec-12": "undefined: unparsable",
    "rg-08": "undefined: unparsable",
    "rg-sc-answer-equals-context": "0.5",
    "rg-sc-answer-inside-context": "0.5",
    "rg-sc-blank-answer": "0 (empty_answer)",
    "rg-sc-blank-contexts": "0 (no_context)",
    "rg-sc-empty-answer": "0 (empty_answer)",
    "rg-sc-no-contexts": "0 (no_context)",
    "rg-sc-one-letter-answer": "0.5",
    "rub-04": "undefined: unparsable",
    "rub-05": "undefined: unparsable",
    "rub-11": "undefined: unparsable",
    "rub-13": "undefined: unparsable",
    "sas-bi-06": "undefined: zero_vector",
    "sim-07": "undefined: zero_vector",
}
"""Where the peers differ among themselves, or are wrong: what our policy makes of a case.

By the beginning of the case's id; the outcomes are spelled as `Outcome` spells them.
"""


def policy_of(case: Case) -> str | None:
    """Return the outcome that our policy names for a case, if any."""
    found = (key for key in RECOMMENDED if is_about(key, case))
    return next((RECOMMENDED[key] for key in found), None)


def is_about(key: str, case: Case) -> bool:
    """Tell whether an entry of `RECOMMENDED` is about a case."""
    return f"{case['id']}-".startswith(f"{key}-")
