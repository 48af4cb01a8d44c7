"""The fault matrix itself: its tests, and the page of their results."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from faults.reliability import ROWS, page

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "dev" / "reliability.md"


def marked() -> Iterator[tuple[str, str]]:
    for path in FOLDER.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                for call in node.decorator_list:
                    if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("mark.fault"):
                        yield str(ast.literal_eval(call.args[0])), node.name


def test_each_row_has_a_test() -> None:
    """A row without a test, or a test of an unknown row, would be missing on the page."""
    assert {row for row, _ in marked()} == set(ROWS)


def test_the_names_of_tests_have_the_number_of_their_row() -> None:
    """``pytest -k test_fault_07`` runs the tests of row 7."""
    named = [(row, re.match(r"test_fault_(\d+)_", name), name) for row, name in marked()]
    wrong = [
        name
        for row, found, name in named
        if row.isdigit() and (not found or found[1] != f"{row:0>2}")
    ]
    assert not wrong


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


def test_the_page_in_the_documentation_has_each_row_with_its_result() -> None:
    """After a change of the rows, ``make faults`` writes the page again."""
    written = PAGE.read_text(encoding="utf-8")
    missing = [row for row, fault in ROWS.items() if f"| {row} | {fault} | " not in written]
    assert not missing, "run make faults"
    assert written.count("\n| ") == len(ROWS) + 1
    assert "no test" not in written
    assert "**failed**" not in written
    assert "**skipped**" not in written


def test_the_page_in_the_documentation_names_no_path_of_a_machine() -> None:
    """Figures may quote what a test has seen, and no folder of the machine that ran it."""
    assert not re.findall(r"/(?:home|root|tmp|work|Users|var|opt)/", PAGE.read_text("utf-8"))
