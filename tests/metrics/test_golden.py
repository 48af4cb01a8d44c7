"""The metrics reproduce the numbers that their models among the peers were seen to give.

To run other cases of the same form:
``RAG_EVAL_GOLDEN=FILE_OR_DIRECTORY pytest tests/metrics/test_golden.py``.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from golden.cases import GOLDEN_CORE, Case, golden_cases
from golden.checks import assert_in_order, assert_the_peers_number
from golden.run import outcome_of


def parameters() -> list[Any]:
    """Return each case under its id, or the reason why there are none."""
    path = Path(os.environ.get("RAG_EVAL_GOLDEN") or GOLDEN_CORE)
    if not path.exists() and "RAG_EVAL_GOLDEN" not in os.environ:
        reason = "the golden cases (../shared/golden/core.json) are not here"
        return [pytest.param({}, id="absent", marks=pytest.mark.skip(reason=reason))]
    return [pytest.param(case, id=case["id"]) for case in golden_cases(path)]


@pytest.mark.parametrize("case", parameters())
def test_case(case: Case) -> None:
    """A core case gives the peer's number and what is stated beside it, fused or not.

    At the edges (class ``edge`` or ``defect``) the peers differ among themselves, and our answer is
    chosen on purpose: a finite number, a status with its reason, or an error that refuses the
    input; the one that our policy names, where it names one.
    """
    for share_requests in (True, False):
        outcome = outcome_of(case, share_requests=share_requests)
        if case.get("class", "core") == "core":
            assert_the_peers_number(case, outcome)
        else:
            assert_in_order(case, outcome)
