"""What a process of the watched program leaves behind: one small file, written anew as it goes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Ended = Literal["exit", "os._exit", "exec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderNote:
    """A tracer provider of the SDK that was made, and the spans that have ended on it."""

    type: str
    is_global: bool
    is_attached: bool
    sampler: str
    spans: int
    scopes: Mapping[str, int]
    dialects: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineNote:
    """What `instrument` attached. ``counts`` are those of its tally, by kind and name.

    ``judge_key`` says where the judge's key is from, never what it is.
    """

    by: Literal["program", "doctor"]
    sees_spans: bool
    counts: Mapping[str, Mapping[str, int]]
    held: int
    judge: str
    embedder: str
    judge_base_url: str | None
    judge_key: Literal["variable", "code", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportNote:
    """How the exports of one OTLP exporter went."""

    signal: str
    protocol: str
    endpoint: str
    succeeded: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessNote:
    """One process, as of its last note; ``ended`` is None where it left no last word."""

    pid: int
    parent: int
    program: str
    executable: str
    ended: Ended | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    global_provider: str = ""
    providers: tuple[ProviderNote, ...] = ()
    pipelines: tuple[PipelineNote, ...] = ()
    exports: tuple[ExportNote, ...] = ()
    handlers: int = 0
    langchain_runs: int = 0
    refused_providers: tuple[str, ...] = ()
    tracers: tuple[str, ...] = ()
    ignored_options: int = 0
    failures: tuple[str, ...] = ()


def write_note(path: Path, note: ProcessNote) -> None:
    """Write ``note`` whole, or leave the last one; a folder that is gone is nobody's concern."""
    draft = path.with_suffix(".part")
    try:
        draft.write_text(json.dumps(asdict(note)), encoding="utf-8")
        draft.replace(path)
    except OSError:
        return


@dataclass(frozen=True, slots=True, kw_only=True)
class Strange:
    """A Python that could not import this library, and why."""

    executable: str
    error: str


def read_notes(folder: Path) -> tuple[list[ProcessNote], list[Strange]]:
    """Return the notes in ``folder``, in the order in which the processes began."""
    files = sorted(folder.glob("*.json"), key=lambda path: int(path.stem.partition("-")[2]))
    notes = [_process(json.loads(path.read_text(encoding="utf-8"))) for path in files]
    strangers = [
        Strange(executable=executable, error=error)
        for path in sorted(folder.glob("*.strange"))
        for executable, _, error in [path.read_text(encoding="utf-8").partition("\n")]
    ]
    return notes, strangers


def _process(data: dict[str, Any]) -> ProcessNote:
    kinds = {"providers": ProviderNote, "pipelines": PipelineNote, "exports": ExportNote}
    for name, kind in kinds.items():
        data[name] = tuple(kind(**one) for one in data.get(name, ()))
    for name in ("refused_providers", "tracers", "failures"):
        data[name] = tuple(data.get(name, ()))
    return ProcessNote(**data)
