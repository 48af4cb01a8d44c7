"""The fault matrix: what each test of a fault records, and the invariants of all faults.

A test has the marker ``fault`` with the number of its row and the expected result, and records
figures with the fixture ``row``, as in ``row.measured("failed requests", 5)``.

``pytest tests/faults --faults-json FILE`` writes the results to FILE, and
``python tests/faults/reliability.py FILE ...`` makes docs/dev/reliability.md of such files.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from live import Row

_results: list[dict[str, Any]] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults-json", metavar="FILE", help="write the results of the fault matrix")


@pytest.fixture(autouse=True)
def _row(request: pytest.FixtureRequest) -> None:
    for marker in request.node.iter_markers("fault"):
        told = {"row": str(marker.args[0]), "expected": marker.kwargs["expected"]}
        request.node.user_properties.append(("fault", json.dumps(told)))


@pytest.fixture
def row(
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> Row:
    return Row(request.node.user_properties, lambda: "".join([caplog.text, *capfd.readouterr()]))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the row, the expectation and the figures of a test that has ended."""
    if report.when != "call" and not report.skipped:
        return
    told = [(name, json.loads(str(value))) for name, value in report.user_properties]
    figures = [value for name, value in told if name == "measured"]
    for row in (value for name, value in told if name == "fault"):
        test, outcome = report.nodeid.rpartition("::")[2], report.outcome
        _results.append({**row, "test": test, "outcome": outcome, "measured": figures})


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the results to the file that ``--faults-json`` names."""
    path = session.config.getoption("--faults-json", default=None)
    if path and not hasattr(session.config, "workerinput"):
        Path(path).write_text(json.dumps(_results, indent=1), encoding="utf-8")
