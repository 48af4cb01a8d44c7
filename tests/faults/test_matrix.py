"""The fault matrix itself: the page of its results."""

from faults.reliability import ROWS, page


def test_the_page_has_a_line_for_each_row_and_says_which_have_no_test() -> None:
    """Figures of all tests of a row stand in one cell; a failure is named."""
    passed = {"row": "1", "expected": "few", "test": "t", "outcome": "passed"}
    found = page(
        [
            {**passed, "measured": [["requests", "5"], ["probes", "1"]]},
            {**passed, "outcome": "failed", "test": "test_x", "measured": []},
        ]
    )
    assert (
        "| 1 | The judge refuses connections | few | requests: 5; probes: 1<br>**failed**: test_x |"
        in found
    )
    assert found.count("| no test |") == len(ROWS) - 1
