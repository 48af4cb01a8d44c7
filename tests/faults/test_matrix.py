"""The fault matrix itself: its tests, and the page of their results."""

import ast
from collections.abc import Iterator
from pathlib import Path

from faults.reliability import ROWS

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


def test_the_page_in_the_documentation_has_each_row_with_its_result() -> None:
    """After a change of the rows, ``make faults`` writes the page again."""
    written = PAGE.read_text(encoding="utf-8")
    missing = [row for row, fault in ROWS.items() if f"| {row} | {fault} | " not in written]
    assert not missing, "run make faults"
    assert written.count("\n| ") == len(ROWS) + 1
    assert "no test" not in written
    assert "**failed**" not in written
    assert "**skipped**" not in written
