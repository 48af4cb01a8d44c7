"""What was found by running a program."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rag_eval_otel.doctor.causes import Finding, found
from rag_eval_otel.doctor.launch import Ran
from rag_eval_otel.doctor.notes import ProcessNote, ProviderNote
from rag_eval_otel.doctor.reasons import cause_of
from rag_eval_otel.doctor.totals import Totals, totals_of

_ROOT = re.compile(r"(?:ParentBased\{root:)?(AlwaysOff|TraceIdRatioBased\{([0-9.e+-]+))")

_SILENT: Final = frozenset(
    {"no-spans", "no-turns", "no-dialect", "nothing-seen", "attached-by-doctor"}
)
_EXPLAINS: Final[Mapping[str, frozenset[str]]] = {
    "sdk-disabled": _SILENT | {"provider-foreign", "provider-noop", "no-otlp-exporter"},
    "attach-failed": _SILENT,
    "sampler-off": _SILENT - {"attached-by-doctor"},
    "provider-noop": _SILENT | {"provider-foreign"},
    "provider-unwatched": frozenset({"no-spans", "no-turns", "no-dialect", "attached-by-doctor"}),
    "provider-unset": frozenset({"no-otlp-exporter"}),
    "nothing-seen": frozenset({"no-otlp-exporter"}),
    "callback-missing": frozenset({"attached-by-doctor"}),
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
    for stranger in dict.fromkeys((one.executable, one.error) for one in ran.strangers):
        yield found("not-installed-there", ": ".join(stranger))
    if not ran.processes:
        if not ran.strangers:
            yield found("program-unseen", f"no note of {ran.command[0]} or of what it starts")
        return
    totals = totals_of(ran.processes)
    yield from _of_processes(ran.processes, totals)
    yield from _of_providers(ran.processes, totals)
    yield from _of_attaching(ran.processes, totals)
    yield from _of_silence(ran.processes, totals)
    yield from _of_turns(totals)
    yield from _of_exports(totals)


def ending(ran: Ran) -> str:
    """Say how the program ended."""
    if ran.status >= 0:
        return f"exit status {ran.status}"
    return f"ended by {signal.Signals(-ran.status).name}"


def _of_processes(processes: Sequence[ProcessNote], totals: Totals) -> Iterator[Finding]:
    for one in processes:
        place = f"{one.program}, process {one.pid}"
        if one.ended is None and (one.providers or one.pipelines):
            yield found("killed", f"{place}: {_waiting(one)}")
        elif one.ended == "os._exit" and _may_have_lost(one):
            yield found(
                "hard-exit", f"{place}: {_waiting(one)}", level=None if totals.turns else "problem"
            )
        for failure in one.failures:
            yield found("attach-failed", failure)
        if one.ignored_options:
            seen = f"{one.program}: {one.ignored_options} calls with other options than the first"
            yield found("options-ignored", seen)


def _waiting(process: ProcessNote) -> str:
    held = sum(pipeline.held for pipeline in process.pipelines)
    ended = sum(provider.spans for provider in process.providers)
    return f"{held} spans were waiting for scores, {ended} had ended"


def _may_have_lost(process: ProcessNote) -> bool:
    """Tell whether spans were waiting, or had ended and no exporter of ours has seen them."""
    if any(pipeline.held for pipeline in process.pipelines):
        return True
    exported = any(one.signal == "traces" and one.succeeded for one in process.exports)
    return not exported and any(provider.spans for provider in process.providers)


def _of_providers(processes: Sequence[ProcessNote], totals: Totals) -> Iterator[Finding]:
    for name in dict.fromkeys(one.global_provider for one in processes):
        if "NoOp" in name:
            yield found("provider-noop", f"the global tracer provider is {name}")
    for name in dict.fromkeys(name for one in processes for name in one.refused_providers):
        yield found("provider-late", f"a {name} was refused as the global tracer provider")
    for provider in totals.providers:
        yield from _of_sampler(provider)
        spans = {name: n for name, n in provider.dialects.items() if name != "none"}
        if spans and not provider.is_attached:
            kind = "the global provider" if provider.is_global else "a provider that is not global"
            yield found("provider-unwatched", f"{kind}, {provider.type}: {listed(spans)}")


def _of_sampler(provider: ProviderNote) -> Iterator[Finding]:
    root = _ROOT.match(provider.sampler)
    if root is None:
        return
    if root[1] == "AlwaysOff" or float(root[2]) == 0:
        if not provider.spans:
            yield found("sampler-off", f"{provider.type} with {provider.sampler}: no span recorded")
    elif float(root[2]) < 1:
        yield found("sampler-ratio", f"{provider.type} with {provider.sampler}")


def _of_attaching(processes: Sequence[ProcessNote], totals: Totals) -> Iterator[Finding]:
    by_program = [one for one in totals.pipelines if one.by == "program"]
    if totals.pipelines and not by_program and not totals.handlers:
        yield found(
            "attached-by-doctor", "the program has called neither instrument() nor a handler"
        )
    if by_program and not totals.handlers and totals.sources.get("callback"):
        seen = f"{totals.sources['callback']} turns came from the doctor's own callback"
        yield found("callback-missing", seen)
    if any(not one.sees_spans for one in totals.pipelines):
        names = sorted({one.global_provider for one in processes if one.pipelines})
        yield found("provider-foreign", f"the tracer provider is {', '.join(names)}")


def _of_silence(processes: Sequence[ProcessNote], totals: Totals) -> Iterator[Finding]:
    """Yield why nothing was captured, if nothing was."""
    if totals.turns or totals.sources.get("callback") or totals.waiting:
        return
    tracers = sorted({name for one in processes for name in one.tracers})
    is_bare = not (totals.providers or totals.pipelines or totals.langchain_runs)
    if is_bare and tracers:
        yield found("provider-unset", f"no provider was set; tracers of {', '.join(tracers)}")
    elif is_bare:
        handlers = "; a handler was made, and no run reported to it" if totals.handlers else ""
        yield found("nothing-seen", f"no provider, no LangChain run{handlers}")
    elif not totals.spans and not totals.langchain_runs:
        yield found("no-spans", f"{len(totals.providers)} providers, no span")
    elif totals.langchain_runs or totals.sources:
        seen = listed({**totals.sources, "LangChain calls": totals.langchain_runs})
        yield found("no-turns", seen)
    else:
        yield found("no-dialect", f"{totals.spans} spans, by {listed(totals.scopes())}")


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
    early = {s: n for s, n in totals.released.items() if s in {"timeout", "flushed"}}
    if early:
        yield found("unscored-spans", listed(early))
    if totals.failures:
        yield found("internal-errors", listed(totals.failures))


def _of_exports(totals: Totals) -> Iterator[Finding]:
    for one in totals.exports:
        if one.failed:
            seen = f"{one.failed} of {one.failed + one.succeeded} exports"
            yield found(
                "export-failing", f"{seen} of {one.signal} to {one.endpoint} over {one.protocol}"
            )
    if not any(one.signal == "traces" for one in totals.exports):
        yield found("no-otlp-exporter", "no export of spans over OTLP")


def listed(counts: Mapping[str, int]) -> str:
    """Return ``counts`` as words, the largest first."""
    most = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name or 'no name'} {count}" for name, count in most)
