"""A progress bar on stderr: tqdm's, else rich's, else a plain count."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Literal, TextIO, TypeAlias

Progress = Literal["auto", "on", "off"]
"""``auto``: on where stderr is a terminal."""

Advance: TypeAlias = Callable[[], object]

_TITLE = "evaluating"


def progress_bar(
    total: int, mode: Progress, *, stream: TextIO | None = None
) -> AbstractContextManager[Advance]:
    """Return a context in which each call of what it gives moves a bar of ``total`` by one."""
    out = stream or sys.stderr
    if mode == "off" or (mode == "auto" and not out.isatty()):
        return _none()
    if find_spec("tqdm"):
        return _tqdm(total, out)
    return _rich(total, out) if find_spec("rich") else _plain(total, out)


@contextmanager
def _none() -> Iterator[Advance]:
    yield lambda: None


@contextmanager
def _tqdm(total: int, stream: TextIO) -> Iterator[Advance]:
    tqdm = import_module("tqdm").tqdm
    with tqdm(total=total, desc=_TITLE, unit="row", file=stream) as bar:
        yield bar.update


@contextmanager
def _rich(total: int, stream: TextIO) -> Iterator[Advance]:
    console = import_module("rich.console").Console(file=stream)
    with import_module("rich.progress").Progress(console=console) as bar:
        task = bar.add_task(_TITLE, total=total)
        yield lambda: bar.advance(task)


@contextmanager
def _plain(total: int, stream: TextIO) -> Iterator[Advance]:
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        stream.write(f"\r{_TITLE}: {done}/{total}")
        stream.flush()

    yield advance
    stream.write("\n")
