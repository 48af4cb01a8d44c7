"""The notes of a program's processes, added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rag_eval_otel import semconv
from rag_eval_otel.doctor.notes import ExportNote, PipelineNote, ProcessNote, ProviderNote


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What all processes together have seen.

    ``turns`` by outcome and reason; ``sources`` are the spans by the dialect they were read in, and
    the turns that came from the callback; ``released`` the spans by the status they left with.
    """

    providers: Sequence[ProviderNote]
    pipelines: Sequence[PipelineNote]
    exports: Sequence[ExportNote]
    turns: Mapping[str, int]
    sources: Mapping[str, int]
    released: Mapping[str, int]
    failures: Mapping[str, int]
    handlers: int
    langchain_runs: int

    @property
    def scored(self) -> int:
        """How many turns have scores."""
        return sum(n for key, n in self.turns.items() if key.partition(" ")[0] == "scored")

    @property
    def waiting(self) -> int:
        """How many spans were waiting for their scores at the end."""
        return sum(one.held for one in self.pipelines)

    @property
    def spans(self) -> int:
        """How many spans have ended that the program or its instrumentations made."""
        return sum(self.scopes().values())

    def scopes(self) -> Mapping[str, int]:
        """Return these spans by the scope that made them."""
        found = _added(one.scopes for one in self.providers)
        return {scope: n for scope, n in found.items() if scope != semconv.SCOPE}


def totals_of(processes: Sequence[ProcessNote]) -> Totals:
    """Add up what ``processes`` have noted."""
    pipelines = [one for process in processes for one in process.pipelines]

    def counted(kind: str) -> Mapping[str, int]:
        return _added(one.counts.get(kind, {}) for one in pipelines)

    return Totals(
        providers=[one for process in processes for one in process.providers],
        pipelines=pipelines,
        exports=_exports(one for process in processes for one in process.exports),
        turns=counted("turn"),
        sources=counted("source"),
        released=counted("released"),
        failures=counted("failure"),
        handlers=sum(process.handlers for process in processes),
        langchain_runs=sum(process.langchain_runs for process in processes),
    )


def _added(counts: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)


def _exports(notes: Iterable[ExportNote]) -> list[ExportNote]:
    succeeded: Counter[tuple[str, str, str]] = Counter()
    failed: Counter[tuple[str, str, str]] = Counter()
    for note in notes:
        key = (note.signal, note.protocol, note.endpoint)
        succeeded[key] += note.succeeded
        failed[key] += note.failed
    return [
        ExportNote(
            signal=key[0],
            protocol=key[1],
            endpoint=key[2],
            succeeded=succeeded[key],
            failed=failed[key],
        )
        for key in succeeded
    ]
