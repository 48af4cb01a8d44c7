"""The pytest plugin: the fixture ``rag_eval`` and its option.

Pytest imports this module at each start, so it imports nothing but pytest and the standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rag_eval_otel.testing.assertions import RagEval


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rag-eval-otel", "scores of RAG answers")
    group.addoption(
        "--rag-eval-judge",
        metavar="lexical|PROVIDER/MODEL",
        help="the judge of the fixture rag_eval (default: RAG_EVAL_JUDGE, else lexical, offline)",
    )


@pytest.fixture
def rag_eval(request: pytest.FixtureRequest) -> RagEval:
    """Assert scores of RAG answers: ``rag_eval.assert_scores(sample, faithfulness=0.8)``."""
    from rag_eval_otel.testing.assertions import RagEval  # noqa: PLC0415

    properties = request.node.user_properties
    return RagEval(
        judge=request.config.getoption("--rag-eval-judge"),
        record=lambda name, value: properties.append((f"rag_eval.{name}", value)),
    )
