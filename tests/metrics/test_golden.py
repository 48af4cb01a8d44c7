"""The metrics reproduce the numbers that their models among the peers were seen to give.

To run other cases of the same form:
``RAG_EVAL_GOLDEN=FILE_OR_DIRECTORY pytest tests/metrics/test_golden.py``.
"""

import os
from pathlib import Path

import pytest

from golden.cases import GOLDEN_CORE, GOLDEN_EDGE, Case, golden_cases
from golden.checks import RECOMMENDED, assert_in_order, assert_the_peers_number, is_about
from golden.run import outcome_of

GIVEN = os.environ.get("RAG_EVAL_GOLDEN")
PATHS = [Path(GIVEN)] if GIVEN else [path for path in (GOLDEN_CORE, GOLDEN_EDGE) if path.exists()]
CASES = [case for path in PATHS for case in golden_cases(path)]
needs_cases = pytest.mark.skipif(not CASES, reason="the golden cases are not here")


@needs_cases
@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in CASES])
def test_case(case: Case) -> None:
    """A core case gives the peer's number and what is stated beside it, fused or not.

    At the edges (class ``edge`` or ``defect``) the peers differ among themselves, and our answer is
    chosen on purpose: a finite number, a status with its reason, or an error that refuses the
    input; the one that our policy names, where it names one.
    """
    fused, single = (outcome_of(case, share_requests=shares) for shares in (True, False))
    assert str(fused) == str(single)
    for outcome in (fused, single):
        if case.get("class", "core") == "core":
            assert_the_peers_number(case, outcome)
        else:
            assert_in_order(case, outcome)


@needs_cases
@pytest.mark.skipif(GIVEN is not None, reason="the policy is about our own cases")
def test_no_policy_is_out_of_date() -> None:
    """Every entry of the policy is about a case."""
    assert not [key for key in RECOMMENDED if not any(is_about(key, case) for case in CASES)]
