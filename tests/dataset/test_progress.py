"""The progress bar: whose it is, and where it is shown."""

from __future__ import annotations

import io
import sys
from importlib.machinery import ModuleSpec

import pytest

from rag_eval_otel.dataset import progress
from rag_eval_otel.dataset.progress import Progress, progress_bar


class Terminal(io.StringIO):
    """A stream that takes itself for a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def shown(mode: Progress, stream: io.StringIO) -> str:
    """Return what a bar of three steps has written."""
    with progress_bar(3, mode, stream=stream) as advance:
        for _ in range(3):
            advance()
    return stream.getvalue()


@pytest.mark.parametrize(
    ("mode", "stream"), [("off", Terminal()), ("auto", io.StringIO())], ids=["off", "no terminal"]
)
def test_no_bar(mode: Progress, stream: io.StringIO) -> None:
    """Nothing is written where it was not asked for, or where nobody would see it move."""
    assert not shown(mode, stream)


def only(name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``name`` be the one bar that is installed."""

    def find(module: str) -> ModuleSpec | None:
        return ModuleSpec(module, None) if module == name else None

    monkeypatch.setattr(progress, "find_spec", find)


@pytest.mark.parametrize(
    ("library", "told"), [("tqdm", "3/3"), ("rich", "evaluating"), (None, "evaluating: 3/3\n")]
)
def test_a_bar(library: str | None, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tqdm's where it is installed, else rich's, else a plain count."""
    only(library, monkeypatch)
    assert told in shown("on", io.StringIO())


def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default it is shown on a terminal, which stderr is meant to be."""
    only(None, monkeypatch)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar(1, "auto") as advance:
        advance()
    assert terminal.getvalue() == "\revaluating: 1/1\n"
