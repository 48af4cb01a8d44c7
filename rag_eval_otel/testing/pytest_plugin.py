"""The pytest plugin: the fixture ``rag_eval``, its options, and the report of a session.

Pytest imports this module at each start, so it imports nothing but pytest and the standard library.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rag_eval_otel.testing.assertions import RagEval

# The names of JUnit properties: ``rag_eval.<metric>`` and ``rag_eval.<metric>.at_least``; the
# latter ends in ``.at_most`` if low scores are good.
PREFIX, AT_LEAST, AT_MOST = "rag_eval.", ".at_least", ".at_most"
ROUNDING = 1e-9


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rag-eval-otel", "scores of RAG answers")
    group.addoption(
        "--rag-eval-judge",
        metavar="lexical|PROVIDER/MODEL",
        help="the judge of the fixture rag_eval (default: RAG_EVAL_JUDGE, else lexical, offline)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SessionReport(), "rag_eval_report")


@pytest.fixture
def rag_eval(request: pytest.FixtureRequest) -> RagEval:
    """Assert scores of RAG answers: ``rag_eval.assert_scores(sample, faithfulness=0.8)``."""
    from rag_eval_otel.testing.assertions import RagEval  # noqa: PLC0415

    properties = request.node.user_properties
    return RagEval(
        judge=request.config.getoption("--rag-eval-judge"),
        record=lambda name, value: properties.append((f"{PREFIX}{name}", value)),
    )


class SessionReport:
    """Prints the scores of the session, which it reads from JUnit properties of test reports."""

    def __init__(self) -> None:
        self._properties: dict[str, list[tuple[str, object]]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        own = [(n, v) for n, v in report.user_properties if n.startswith(PREFIX)]
        if own and report.when == "call":
            self._properties[report.nodeid] = own

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        properties = [each for own in self._properties.values() for each in own]
        if not properties:
            return
        judges = sorted({str(value) for name, value in properties if name == f"{PREFIX}judge"})
        counts = [value for name, value in properties if name == f"{PREFIX}tokens"]
        tokens = sum(count for count in counts if isinstance(count, int))
        terminalreporter.section(f"scores: judge {', '.join(judges) or '-'}, {tokens} tokens")
        for line in _table(properties):
            terminalreporter.write_line(line)


def _table(properties: list[tuple[str, object]]) -> Iterator[str]:
    """Yield a line for each metric; the bound of a score comes directly after it."""
    by_metric: dict[str, list[tuple[float | None, float]]] = {}  # a distance below 0 has failed
    score: object = None
    for name, value in properties:
        if name.endswith((AT_LEAST, AT_MOST)) and isinstance(value, float):
            metric, _, bound = name.removeprefix(PREFIX).rpartition(".")
            number = score if isinstance(score, float) else None
            distance = -1.0 if number is None else number - value
            sign = -1 if number is not None and bound == "at_most" else 1
            by_metric.setdefault(metric, []).append((number, sign * distance))
        score = value
    width = max(map(len, by_metric), default=0)
    yield f"{'metric':<{width}}  asserted  failed   mean"
    for name, rows in by_metric.items():
        scores = [number for number, _ in rows if number is not None]
        mean = f"{sum(scores) / len(scores):.3f}" if scores else "-"
        failed = sum(distance < -ROUNDING for _, distance in rows)
        yield f"{name:<{width}}  {len(rows):>8}  {failed:>6}  {mean:>5}"
