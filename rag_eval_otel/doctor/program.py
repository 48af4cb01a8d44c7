"""What was found by running a program."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rag_eval_otel.doctor.causes import Finding, found
from rag_eval_otel.doctor.launch import Ran
from rag_eval_otel.doctor.reasons import cause_of
from rag_eval_otel.doctor.totals import Totals, totals_of
from rag_eval_otel.live.notes import Note, listed

_ROOT = re.compile(r"(?:ParentBased\{root:)?(AlwaysOff|TraceIdRatioBased\{([0-9.e+-]+))")

_SILENT: Final = frozenset({"no-spans", "no-turns", "no-dialect", "callback-missing"})
_EXPLAINS: Final[Mapping[str, frozenset[str]]] = {
    "program-failed": _SILENT | {"nothing-attached"},
    "sdk-disabled": _SILENT | {"provider-foreign", "provider-noop", "no-exporter"},
    "sampler-off": _SILENT,
    "provider-noop": _SILENT | {"provider-foreign"},
    "provider-late": _SILENT | {"no-exporter"},
    "exporter-missing": frozenset({"nothing-attached"}),
    "config-invalid": frozenset({"nothing-attached"}),
    "traces-not-exported": frozenset({"no-exporter"}),
}
"""What needs no mention beside what explains it."""


def without_explained(findings: Sequence[Finding]) -> list[Finding]:
    """Leave out what others explain, and what was found twice."""
    names = {one.cause.id for one in findings}
    explained = frozenset[str]().union(*(_EXPLAINS.get(name, frozenset()) for name in names))
    kept = {(one.cause.id, one.seen): one for one in findings if one.cause.id not in explained}
    return list(kept.values())


def of_run(ran: Ran) -> Iterator[Finding]:
    """Yield what the run of a program tells."""
    if ran.failed:
        yield found("program-failed", ending(ran))
    if not ran.notes:
        yield found("nothing-attached", f"{ran.command[0]} has ended, and no pipeline has reported")
        return
    totals = totals_of(ran.notes)
    for note in ran.notes:
        yield from _of_pipeline(note)
    yield from _of_silence(ran.notes, totals)
    yield from _of_turns(totals)


def ending(ran: Ran) -> str:
    """Say how the program ended."""
    if ran.status >= 0:
        return f"exit status {ran.status}"
    return f"ended by {signal.Signals(-ran.status).name}"


def _of_pipeline(note: Note) -> Iterator[Finding]:
    if not note.ended and (note.spans or note.held):
        ended = sum(note.spans.values())
        seen = f"{note.program}, process {note.pid}: {note.held} turns were waiting for scores"
        yield found(
            "killed",
            f"{seen}, {ended} spans had ended",
            level="warning" if note.held else None,
        )
    for cause, lines in note.logged.items():
        yield from (found(cause, line) for line in lines)
    if "NoOp" in note.provider:
        yield found("provider-noop", f"the tracer provider is {note.provider}")
    elif not note.sees_spans:
        yield found("provider-foreign", f"the tracer provider is {note.provider}")
    if note.processors is not None and not note.processors:
        yield found("no-exporter", f"{note.provider} has no span processor")
    yield from _of_sampler(note)


def _of_sampler(note: Note) -> Iterator[Finding]:
    root = _ROOT.match(note.sampler)
    if root is None:
        return
    if root[1] == "AlwaysOff" or float(root[2]) == 0:
        if not note.spans:
            yield found("sampler-off", f"{note.provider} with {note.sampler}: no span recorded")
    elif float(root[2]) < 1:
        yield found("sampler-ratio", f"{note.provider} with {note.sampler}")


def _of_silence(notes: Sequence[Note], totals: Totals) -> Iterator[Finding]:
    """Yield why nothing was captured, if nothing was."""
    if totals.turns or totals.waiting:
        return
    spans = sum(totals.spans.values())
    if totals.own or totals.understood or totals.sources:
        ours = {"rag_eval_otel": totals.own} if totals.own else {}
        yield found("no-turns", f"spans by {listed({**totals.spans, **ours})}")
    elif any(note.has_langchain for note in notes):
        others = f"; {spans} spans, by {listed(totals.spans)}" if spans else ""
        yield found(
            "callback-missing", f"LangChain is in use, and no run of it is recorded{others}"
        )
    elif spans:
        yield found("no-dialect", f"{spans} spans, by {listed(totals.spans)}")
    else:
        yield found("no-spans", "no span has ended on the provider that is attached")


def _of_turns(totals: Totals) -> Iterator[Finding]:
    for key, count in sorted(totals.turns.items()):
        outcome, _, reason = key.partition(" ")
        if not reason:
            continue
        seen = f"{count} turns {outcome}: {reason}"
        cause = cause_of(outcome, reason)
        if outcome == "scored":
            yield found(cause, f"{count} turns lack a score: {reason}", level="warning")
        elif outcome in {"skipped", "dropped"} and not totals.scored:
            yield found(cause, seen, level="problem")
        else:
            yield found(cause, seen)
    if totals.repeated:
        yield found("turns-duplicate", f"{totals.repeated} second records of the same turns")
    early = {s: n for s, n in totals.released.items() if s in {"timeout", "flushed"}}
    if early:
        yield found("unscored-spans", listed(early))
    if totals.failures:
        yield found("internal-errors", listed(totals.failures))
