"""At the edges we say what our policy says, and never a number that was made up."""

from typing import Any

import pytest

from golden.cases import GOLDEN_CORE, GOLDEN_EDGE, Case, golden_cases
from golden.checks import assert_in_order
from golden.policy import RECOMMENDED, is_about
from golden.run import outcome_of

ABSENT = pytest.mark.skipif(
    not GOLDEN_EDGE.exists(), reason="the golden cases (../shared/golden) are not here"
)


def parameters() -> list[Any]:
    """Return each edge case under its id."""
    cases = golden_cases(GOLDEN_EDGE) if GOLDEN_EDGE.exists() else [{"id": "absent"}]
    return [pytest.param(case, id=case["id"]) for case in cases]


@ABSENT
@pytest.mark.parametrize("case", parameters())
def test_edge_case(case: Case) -> None:
    """An edge case gives a number or a reason, the one of our policy where it names one."""
    fused, single = (
        outcome_of(case, share_requests=share_requests) for share_requests in (True, False)
    )
    assert_in_order(case, fused)
    assert str(fused) == str(single)


@ABSENT
def test_no_policy_is_out_of_date() -> None:
    """Every entry of the policy is about a case."""
    cases = [case for path in (GOLDEN_CORE, GOLDEN_EDGE) for case in golden_cases(path)]
    assert not [key for key in RECOMMENDED if not any(is_about(key, case) for case in cases)]
