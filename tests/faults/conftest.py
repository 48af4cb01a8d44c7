"""The fault matrix: what each test of a fault records, and the invariants of all faults.

A test has the marker ``fault`` with the number of its row and the expected result, and records
figures with the fixture ``measured``::

    @pytest.mark.fault(1, expected="at most 5 failed requests before the breaker opens")
    def test_fault_01_the_judge_is_down(measured, check_invariants): ...
        measured("failed requests", 5)

``pytest tests/faults --faults-json FILE`` writes the results to FILE, and
``python tests/faults/reliability.py FILE ...`` makes docs/dev/reliability.md of such files.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from live import STATUS, App

_results: list[dict[str, Any]] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the file for the results."""
    parser.addoption("--faults-json", metavar="FILE", help="write the results of the fault matrix")


@pytest.fixture(autouse=True)
def _row(request: pytest.FixtureRequest) -> None:
    for marker in request.node.iter_markers("fault"):
        told = {"row": str(marker.args[0]), "expected": marker.kwargs["expected"]}
        request.node.user_properties.append(("fault", json.dumps(told)))


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str, object], None]:
    def record(name: str, value: object) -> None:
        request.node.user_properties.append(("measured", json.dumps([name, str(value)])))

    return record


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


@pytest.fixture
def check_invariants(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> Callable[..., None]:
    """Return a function that asserts the invariants of all faults after an `App` has drained.

    - ``turns``: the number of turns that the application has made (I2, the conservation law).
    - ``spans``: the number of spans that it has ended, each of which leaves exactly once.
    - ``secrets``: texts that no log line and no output may contain (I4).
    """

    def check(
        app: App, *, turns: int, spans: int | None = None, secrets: Sequence[str] = ()
    ) -> None:
        assert sum(app.counted().values()) == turns, app.counted()
        stats = app.handle.stats
        assert (stats.captured, stats.pending, stats.held) == (turns, 0, 0)
        exported = app.exported()
        ids = Counter((span.context.trace_id, span.context.span_id) for span in exported)
        assert set(ids.values()) <= {1}, "a span was exported twice"
        if spans is not None:
            assert len(exported) == spans
        for span in exported:
            _check_scores(span)
        out, err = capfd.readouterr()
        for secret in secrets:
            assert secret not in caplog.text + out + err

    return check


def _check_scores(span: ReadableSpan) -> None:
    """Assert that each score of ``span`` is a finite number, and no failed turn has one (I7)."""
    found = span.attributes or {}
    scores = {
        k: v for k, v in found.items() if k.startswith("rag.evaluation.") and k.endswith(".score")
    }
    assert all(isinstance(value, float) and math.isfinite(value) for value in scores.values())
    if found.get(STATUS) not in {"scored", "partial"}:
        assert not scores
