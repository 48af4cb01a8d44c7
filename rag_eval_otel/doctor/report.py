"""A diagnosis as text for people, and as plain data for machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from textwrap import fill
from typing import Any

from rag_eval_otel.doctor.causes import Finding
from rag_eval_otel.doctor.diagnosis import Diagnosis
from rag_eval_otel.doctor.launch import Ran
from rag_eval_otel.doctor.program import ending
from rag_eval_otel.doctor.reach import Reached
from rag_eval_otel.doctor.totals import Totals, totals_of
from rag_eval_otel.live.notes import Note, listed
from rag_eval_otel.runtime.installed import OURS

_WIDTH = 100
_INDENT = 12


def as_text(diagnosis: Diagnosis) -> str:
    """Return the report, ending in a line break."""
    rows = [*_installed(diagnosis.versions), *_reached(diagnosis.reached)]
    if diagnosis.ran is not None:
        rows += _ran(diagnosis.ran)
    findings = [line for one in diagnosis.findings for line in ("", *_finding(one))]
    return "\n".join([*(_row(*row) for row in rows), *findings, "", _sum(diagnosis), ""])


def _row(name: str, text: str) -> str:
    head = f"{name:<{_INDENT}}"
    return fill(text, _WIDTH, initial_indent=head, subsequent_indent=" " * _INDENT)


def _installed(versions: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    ours = [name for name in ("python", *OURS) if name in versions]
    yield "installed", ", ".join(f"{name} {versions[name]}" for name in ours)
    others = [f"{name} {version}" for name, version in versions.items() if name not in ours]
    yield "beside it", ", ".join(others) or "no instrumentation that is known"


def _reached(reached: Reached) -> Iterator[tuple[str, str]]:
    for reply in reached.replies:
        yield reply.part, f"{reply.name}: {reply.told} ({reply.seconds:.1f} s)"
    for answer in reached.answers:
        target = answer.target
        yield target.signal, f"{target.endpoint} over {target.protocol}: {answer.told}"


def _ran(ran: Ran) -> Iterator[tuple[str, str]]:
    yield "program", f"{' '.join(ran.command[:3])}: {ending(ran)}"
    for note in ran.notes:
        yield "pipeline", _pipeline(note)
    if ran.notes:
        totals = totals_of(ran.notes)
        ours = {"rag_eval_otel": totals.own} if totals.own else {}
        yield "spans", listed({**totals.spans, **ours}) or "none"
        yield "read", listed(totals.sources) or "nothing"
        yield "turns", _turns(totals)


def _pipeline(note: Note) -> str:
    sampler = note.sampler.removeprefix("ParentBased{root:").partition(",")[0]
    parts = (
        f"{note.program}, process {note.pid}",
        ", ".join(filter(None, [note.provider, sampler, *(note.processors or ())])),
        f"judge {note.judge}, {note.embedder}",
    )
    return "; ".join(parts)


def _turns(totals: Totals) -> str:
    told = f"{sum(totals.turns.values())}: {listed(totals.turns) or 'none'}"
    return f"{told}; recorded a second time: {totals.repeated}" if totals.repeated else told


def _finding(finding: Finding) -> Iterator[str]:
    yield f"{finding.level.upper()} {finding.cause.id}"
    for name, text in (
        ("seen", finding.seen),
        ("why", finding.cause.why),
        ("do", finding.cause.fix),
    ):
        yield _row(f"  {name}", text)


def _sum(diagnosis: Diagnosis) -> str:
    levels = [one.level for one in diagnosis.findings]
    problems, warnings = levels.count("problem"), levels.count("warning")
    return f"problems: {problems}, warnings: {warnings}"


def as_data(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the report as JSON can hold it; no key or header is in it."""
    return {
        "status": diagnosis.status,
        "versions": dict(diagnosis.versions),
        "judge_and_embedder": [
            {
                "part": reply.part,
                "name": reply.name,
                "ok": reply.error is None,
                "told": reply.told,
                "seconds": round(reply.seconds, 3),
            }
            for reply in diagnosis.reached.replies
        ],
        "otlp": [
            {
                "signal": answer.target.signal,
                "protocol": answer.target.protocol,
                "endpoint": answer.target.endpoint,
                "source": answer.target.source,
                "verdict": answer.verdict,
                "told": answer.told,
                "hint": answer.hint,
            }
            for answer in diagnosis.reached.answers
        ],
        "program": None if diagnosis.ran is None else _program(diagnosis.ran),
        "findings": [
            {
                "id": one.cause.id,
                "level": one.level,
                "seen": one.seen,
                "why": one.cause.why,
                "fix": one.cause.fix,
            }
            for one in diagnosis.findings
        ],
    }


def _program(ran: Ran) -> dict[str, Any]:
    totals = totals_of(ran.notes)
    return {
        "status": ran.status,
        "failed": ran.failed,
        "turns": dict(totals.turns),
        "scored": totals.scored,
        "repeated": totals.repeated,
        "sources": dict(totals.sources),
        "released": dict(totals.released),
        "spans": dict(totals.spans),
        "pipelines": [asdict(one) for one in ran.notes],
    }
