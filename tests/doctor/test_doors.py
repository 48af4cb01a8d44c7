"""The doctor's parts inside a program: its doors, its hooks, and what it leaves alone."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from rag_eval_otel.doctor.doors import Doors
from rag_eval_otel.doctor.environment import NOTES_VARIABLE, keep_watching, with_bootstrap
from rag_eval_otel.doctor.imports import ImportHook
from rag_eval_otel.doctor.notes import read_notes
from rag_eval_otel.doctor.patches import after, before

NAME = "a_module_of_the_program"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Return where a module can be put, to be found by imports, and forgotten afterwards."""
    finders, path = list(sys.meta_path), list(sys.path)
    sys.path.insert(0, str(tmp_path))
    yield tmp_path
    sys.meta_path[:], sys.path[:] = finders, path
    sys.modules.pop(NAME, None)


def test_a_module_is_told_of_once_it_has_run(place: Path) -> None:
    """The callback comes after the module's own code, once, and the module keeps its loader."""
    (place / f"{NAME}.py").write_text("value = 1")
    told: list[tuple[str, int]] = []
    hook = ImportHook({NAME: lambda module: told.append((module.__name__, module.value))})
    hook.install()
    module = importlib.import_module(NAME)
    importlib.reload(module)
    assert told == [(NAME, 1)]
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert module.__spec__ is not None
    assert module.__spec__.loader is not None
    assert module.__spec__.loader.get_source(NAME) == "value = 1"  # type: ignore[attr-defined]


def test_a_module_that_is_there_later(place: Path) -> None:
    """A module that cannot be imported now is waited for."""
    told: list[ModuleType] = []
    ImportHook({NAME: told.append}).install()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(NAME)
    (place / f"{NAME}.py").touch()
    importlib.invalidate_caches()
    assert told == [] != [importlib.import_module(NAME)] == told


def test_a_module_that_is_there_already(place: Path) -> None:
    """A module that was imported before us is told of at once."""
    told: list[ModuleType] = []
    ImportHook({"json": told.append}).install()
    assert told == [json]


def test_looking_on_changes_nothing() -> None:
    """What is called gets its arguments and gives its result; who looks on gets both."""
    told: list[object] = []
    owner = SimpleNamespace(add=lambda one, *, other: one + other)
    before(owner, "add", lambda *args, **options: told.append((args, options)))
    after(owner, "add", lambda result, *_args, **_options: told.append(result))
    assert owner.add(1, other=2) == 3
    assert told == [((1,), {"other": 2}), 3]


def test_doors_leave_a_note(tmp_path: Path) -> None:
    """A process that never used tracing leaves where and how it ended; a gone folder is no harm."""
    Doors(str(tmp_path)).leave("exec")
    Doors(str(tmp_path / "gone")).leave("exit")
    ((note,), strangers) = read_notes(tmp_path)
    assert (note.pid, note.ended, note.executable) == (os.getpid(), "exec", sys.executable)
    assert (note.pipelines, note.providers, strangers) == ((), (), [])


def test_what_takes_our_place_is_watched() -> None:
    """A program that this one becomes has our folder first; one that we do not watch is let be."""
    ours = with_bootstrap("")
    watched = {NOTES_VARIABLE: "/notes", "PYTHONPATH": os.pathsep.join(["/other", ours, ""])}
    keep_watching(watched)
    assert watched["PYTHONPATH"].split(os.pathsep) == [ours, "/other", ""]
    alone = {"PYTHONPATH": "/other"}
    keep_watching(alone)
    assert alone == {"PYTHONPATH": "/other"}
