"""The public surface: what it is called, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rag_eval_otel
from rag_eval_otel import testing

HEAVY = {"grpc", "openai", "numpy", "pydantic", "langchain_core", "opentelemetry.sdk"}


def test_public_names_are_sorted_few_and_real() -> None:
    """Every name in ``__all__`` can be had, they are sorted, and at most 26."""
    assert rag_eval_otel.__all__ == sorted(rag_eval_otel.__all__)
    assert len(rag_eval_otel.__all__) <= 26
    for name in rag_eval_otel.__all__:
        assert getattr(rag_eval_otel, name).__name__ == name
        assert name in dir(rag_eval_otel)


def test_unknown_name_is_an_attribute_error() -> None:
    """A name that does not exist fails like in any module."""
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = rag_eval_otel.Nothing  # type: ignore[attr-defined]


def test_test_kit_names_are_real() -> None:
    """So can every name of the test kit."""
    for name in testing.__all__:
        assert getattr(testing, name).__name__ == name


def modules_after(code: str) -> set[str]:
    """Return the modules a fresh interpreter has loaded after ``code``."""
    done = subprocess.run(  # our own code
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_import_is_light() -> None:
    """Importing the package loads none of the heavy libraries."""
    assert not HEAVY & modules_after("import rag_eval_otel")


def test_first_handler_needs_neither_openai_nor_grpc() -> None:
    """A handler is built without importing the judge's client or an exporter."""
    code = "import rag_eval_otel; rag_eval_otel.RagEvalCallbackHandler(judge='openai/x')"
    assert not {"openai", "grpc"} & modules_after(code)
