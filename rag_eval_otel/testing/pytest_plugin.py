"""The pytest plugin: the fixture ``rag_eval``, its options, and the report of a session.

Pytest imports this module at each start, so it imports nothing but pytest and the standard library.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from rag_eval_otel.testing.assertions import RagEval

# The names of JUnit properties: ``rag_eval.<metric>`` and ``rag_eval.<metric>.at_least``; the
# latter ends in ``.at_most`` if low scores are good.
PREFIX, AT_LEAST, AT_MOST = "rag_eval.", ".at_least", ".at_most"


def number(value: float | None) -> str:
    """Return a score with three digits, or ``-`` if there is none."""
    return "-" if value is None else f"{value:.3f}"


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


class Asserted(NamedTuple):
    """A score that a test asserted. ``value`` is None if the metric gave no score."""

    test: str
    metric: str
    value: float | None
    bound: float
    sign: int
    """1, or -1 if low scores are good."""

    @property
    def passed(self) -> bool:
        """Whether the score is as good as the bound, with a tolerance for rounding."""
        return self.value is not None and self.sign * (self.value - self.bound) + 1e-9 >= 0


class SessionReport:
    """Prints the scores of the session, which it reads from JUnit properties of test reports."""

    def __init__(self) -> None:
        self._properties: dict[str, list[tuple[str, object]]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        own = [(n, v) for n, v in report.user_properties if n.startswith(PREFIX)]
        if own and report.when == "call":
            self._properties[report.nodeid] = own

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._properties:
            return
        from rag_eval_otel.untrusted import visible  # noqa: PLC0415

        scores = [s for test, own in self._properties.items() for s in _asserted(test, own)]
        properties = [each for own in self._properties.values() for each in own]
        judges = sorted({str(value) for name, value in properties if name == f"{PREFIX}judge"})
        tokens = sum(
            value
            for name, value in properties
            if name == f"{PREFIX}tokens" and isinstance(value, int)
        )
        terminalreporter.section(f"scores: judge {', '.join(judges) or '-'}, {tokens} tokens")
        failures = [
            f"{each.test}: {each.metric} {number(each.value)},"
            f" at {'least' if each.sign > 0 else 'most'} {each.bound:g}"
            for each in scores
            if not each.passed
        ]
        for line in (*_table(scores), *failures):
            terminalreporter.write_line(visible(line))


def _asserted(test: str, properties: list[tuple[str, object]]) -> Iterator[Asserted]:
    """Yield the scores in ``properties``, where the bound of a score comes directly after it."""
    score: object = None
    for name, value in properties:
        if name.endswith((AT_LEAST, AT_MOST)) and isinstance(value, float):
            metric, _, bound = name.removeprefix(PREFIX).rpartition(".")
            found = score if isinstance(score, float) else None
            yield Asserted(test, metric, found, value, -1 if bound == "at_most" else 1)
        score = value


def _table(scores: list[Asserted]) -> Iterator[str]:
    """Yield a line for each metric with its counts, mean and worst score."""
    by_metric: dict[str, list[Asserted]] = {}
    for score in scores:
        by_metric.setdefault(score.metric, []).append(score)
    width = max(map(len, by_metric))
    yield f"{'metric':<{width}}  asserted  failed   mean   worst"
    for name, asserted in by_metric.items():
        values = [score.value for score in asserted if score.value is not None]
        mean = number(sum(values) / len(values) if values else None)
        failed = sum(not score.passed for score in asserted)
        sign = asserted[0].sign
        worst = number(min(values, key=lambda value: sign * value, default=None))
        yield f"{name:<{width}}  {len(asserted):>8}  {failed:>6}  {mean:>5}  {worst:>6}"
