"""Test doubles and assertions for applications, imported on first use: pytest starts faster."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rag_eval_otel.testing.assertions import RagEval
    from rag_eval_otel.testing.fakes import FakeEmbedder, FakeJudge

__all__ = ["FakeEmbedder", "FakeJudge", "RagEval"]


if not TYPE_CHECKING:  # with this function, a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = "assertions" if name == "RagEval" else "fakes"
        return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
