"""The notes of a program's pipelines: read from their files, and added up."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rag_eval_otel import semconv
from rag_eval_otel.live.notes import Note

_REPEATED = "skipped duplicate"


def read_notes(folder: Path) -> list[Note]:
    """Return the notes in ``folder``, in the order in which they were last written."""
    files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    return [Note(**json.loads(path.read_text(encoding="utf-8"))) for path in files]


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What all pipelines together have seen.

    ``turns`` by outcome and reason, each once; ``repeated`` are second records of the same turns.
    ``sources`` are the spans by the dialect they were read in, and the turns that came from the
    callback; ``released`` the spans by the status they left with. ``spans`` have ended, by the
    scope that made them: those of the program and its instrumentations. ``own`` are ours.
    """

    turns: Mapping[str, int]
    repeated: int
    sources: Mapping[str, int]
    released: Mapping[str, int]
    failures: Mapping[str, int]
    spans: Mapping[str, int]
    own: int
    understood: Mapping[str, int]
    waiting: int

    @property
    def scored(self) -> int:
        """How many turns have scores."""
        return sum(n for key, n in self.turns.items() if key.partition(" ")[0] == "scored")


def totals_of(notes: Sequence[Note]) -> Totals:
    """Add up what ``notes`` tell."""
    turns = _counted("turn", notes)
    spans = _added(note.spans for note in notes)
    dialects = _added(note.dialects for note in notes)
    return Totals(
        turns={key: n for key, n in turns.items() if key != _REPEATED},
        repeated=turns.get(_REPEATED, 0),
        sources=_counted("source", notes),
        released=_counted("released", notes),
        failures=_counted("failure", notes),
        spans={scope: n for scope, n in spans.items() if scope != semconv.SCOPE},
        own=spans.get(semconv.SCOPE, 0),
        understood={name: n for name, n in dialects.items() if name != "none"},
        waiting=sum(note.held for note in notes),
    )


def _counted(kind: str, notes: Iterable[Note]) -> Mapping[str, int]:
    return _added(note.counts.get(kind, {}) for note in notes)


def _added(counts: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)
