"""Run the user's program, check its settings, and report the problems as text or JSON."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from textwrap import fill
from types import FrameType
from typing import Any, Final, Literal

from rag_eval_otel import semconv
from rag_eval_otel.config import Config
from rag_eval_otel.doctor import findings as rules
from rag_eval_otel.doctor.connections import (
    PARTS,
    Answer,
    Part,
    Reply,
    check_connections,
    otlp_endpoints,
)
from rag_eval_otel.doctor.findings import Finding, Totals, finding, without_consequences
from rag_eval_otel.environment import DOCTOR
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.live.notes import Note, listed
from rag_eval_otel.providers import parts_of
from rag_eval_otel.runtime.installed import OURS, versions

_WIDTH: Final = 100
_INDENT: Final = 12
_SHELL: Final = 128  # a shell's exit status of a command that signal n ended is 128 + n

# --- the program ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of the user's program by ``rag-eval-otel doctor``.

    ``status`` is the exit status of the program. If a signal ended the program, ``status`` is minus
    the number of the signal. ``received`` are the signals that the doctor itself received and that
    ask a process to end. ``notes`` are the reports that scoring pipelines in the program wrote.
    """

    command: Sequence[str]
    status: int
    received: Sequence[int] = ()
    notes: Sequence[Note] = ()

    @property
    def failed(self) -> bool:
        """Whether the program failed.

        A program has not failed if it was ended by a signal that the doctor received as well.
        """
        asked = {0, *(-n for n in self.received), *(_SHELL + n for n in self.received)}
        return self.status not in asked

    @property
    def ending(self) -> str:
        if self.status >= 0:
            return f"exit status {self.status}"
        return f"ended by {signal.Signals(-self.status).name}"


def run_program(command: Sequence[str]) -> Run:
    """Run the user's program ``command`` to its end, and return its status and its reports.

    Signals that ask the doctor to end are passed on to the program. Raises `ConfigError` if the
    program cannot be started.
    """
    arguments = resolved(command)
    # Processes that outlive the program may still write to the folder.
    with tempfile.TemporaryDirectory(prefix="rag-eval-doctor-", ignore_cleanup_errors=True) as name:
        try:
            status, received = _wait_for(arguments, {**os.environ, DOCTOR: name})
        except OSError as error:
            msg = f"{command[0]!r} cannot be started: {error.strerror or error}"
            raise ConfigError(msg) from error
        notes = read_notes(Path(name))
    return Run(command=command, status=status, received=received, notes=notes)


def resolved(command: Sequence[str]) -> list[str]:
    """Return ``command`` with the full path of the program that it names.

    If the program is a Python script, the path of this process's Python interpreter is put before
    the script. If there is no such program, raise `ConfigError`.
    """
    name, *arguments = command
    if name.endswith((".py", ".pyz")) and Path(name).is_file():
        return [sys.executable, name, *arguments]
    found = shutil.which(name)
    if found is None and name in {"python", "python3"}:
        found = sys.executable
    if found is None:
        msg = f"there is no command {name!r}; try: doctor -- python {' '.join(command)}"
        raise ConfigError(msg)
    return [found, *arguments]


def _wait_for(arguments: Sequence[str], environ: Mapping[str, str]) -> tuple[int, list[int]]:
    """Run the program, and return its exit status and the signals that were passed on to it."""
    received: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if child is not None and not (number == signal.SIGINT and is_from_terminal()):
            child.send_signal(number)

    names = ("SIGINT", "SIGTERM", "SIGHUP")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    handlers = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        child = subprocess.Popen(arguments, env=environ)  # noqa: S603  # the user's own command
        for number in received:  # received before the program was started
            child.send_signal(number)
        return child.wait(), received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def is_from_terminal() -> bool:
    """Return True if this process runs in the foreground of a terminal.

    The terminal then sends the signal of ^C to the user's program as well, so the doctor must not
    pass the signal on to the program.
    """
    if not hasattr(os, "tcgetpgrp"):  # Windows sends ^C to all processes of the console
        return True
    terminals = [fd for fd in (0, 1, 2) if os.isatty(fd)]
    return any(os.tcgetpgrp(fd) == os.getpgrp() for fd in terminals)


def read_notes(folder: Path) -> list[Note]:
    """Read the reports that the pipelines of a program wrote to ``folder``, the oldest first."""
    paths = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    return [Note(**json.loads(path.read_text(encoding="utf-8"))) for path in paths]


# --- the diagnosis --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What ``rag-eval-otel doctor`` has found out, for its report.

    ``versions`` are the installed versions, ``replies`` the replies of judge and embedder,
    ``answers`` the results of test exports, and ``run`` the run of the user's program. ``findings``
    are the problems found, the worst first.
    """

    versions: Mapping[str, str]
    replies: Sequence[Reply] = ()
    answers: Sequence[Answer] = ()
    run: Run | None = None
    findings: Sequence[Finding] = ()

    @property
    def status(self) -> Literal[0, 1, 3]:
        """The exit status of the doctor: 0 no problem, 1 problems, 3 the program itself failed."""
        if self.run is not None and self.run.failed:
            return 3
        return 1 if any(one.level == "problem" for one in self.findings) else 0


def diagnose(
    run: Run | None = None, *, timeout: float, environ: Mapping[str, str] | None = None
) -> Diagnosis:
    """Check the settings, the connections and the run of the user's program for problems.

    If no program was run, ``run`` is None. ``timeout`` is the time limit of each connection in
    seconds. ``environ`` has the environment variables. The default is the environment of the
    process.
    """
    environ = os.environ if environ is None else environ
    findings = [*rules.from_variables(environ)]
    config: Config | None = None
    try:
        config = Config.from_env(environ)
    except ConfigError as error:
        findings.append(finding("config-invalid", str(error)))
    endpoints, parts = otlp_endpoints(environ), PARTS
    notes = run.notes if run is not None else ()
    if run is not None:
        if run.failed:
            findings.append(finding("program-failed", run.ending))
        findings += rules.from_notes(notes)
        if not any("export-failing" in note.logged for note in notes):
            # The program may not use the default endpoints.
            endpoints = [one for one in endpoints if one.source]
    if config is not None and notes:
        config, parts = _of_program(config, notes[-1])
    if config is not None:
        findings += rules.from_config(config, judge_is_asked="judge" in parts)
    replies, answers = check_connections(config, endpoints, parts=parts, timeout=timeout)
    findings += [*rules.from_replies(replies), *rules.from_answers(answers)]
    return Diagnosis(
        versions=notes[0].versions if notes else versions(),
        replies=replies,
        answers=answers,
        run=run,
        findings=without_consequences(findings),
    )


def _of_program(config: Config, note: Note) -> tuple[Config, tuple[Part, ...]]:
    """Return ``config`` with the judge and embedder of the user's program, as ``note`` names them.

    ``note`` is the report of a pipeline in the program. Also return whether the doctor can test the
    judge, the embedder or both. It cannot test a model that the code of the program created.
    """
    models: Mapping[Part, str] = {"judge": note.judge, "embedder": note.embedder}
    parts = tuple(
        part
        for part, model in models.items()
        if model in {"lexical", "hashing"} or (parts_of(model) and note.judge_key != "code")
    )
    asked: dict[str, Any] = {part: models[part] for part in parts}
    return replace(config, judge_base_url=note.judge_base_url, **asked), parts


# --- text and JSON --------------------------------------------------------------------------------


def as_text(diagnosis: Diagnosis) -> str:
    rows = [*_installed(diagnosis.versions), *_connections(diagnosis)]
    if diagnosis.run is not None:
        rows += _program(diagnosis.run)
    lines = [_row(name, text) for name, text in rows]
    for one in diagnosis.findings:
        lines += ["", f"{one.level.upper()} {one.cause.id}", _row("  seen", one.seen)]
        lines += [_row("  why", one.cause.why), _row("  do", one.cause.fix)]
    levels = [one.level for one in diagnosis.findings]
    total = f"problems: {levels.count('problem')}, warnings: {levels.count('warning')}"
    return "\n".join([*lines, "", total, ""])


def _row(name: str, text: str) -> str:
    head = f"{name:<{_INDENT}}"
    return fill(text, _WIDTH, initial_indent=head, subsequent_indent=" " * _INDENT)


def _installed(versions: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    ours = [name for name in ("python", *OURS) if name in versions]
    yield "installed", ", ".join(f"{name} {versions[name]}" for name in ours)
    others = [f"{name} {version}" for name, version in versions.items() if name not in ours]
    yield "beside it", ", ".join(others) or "no known instrumentation"


def _connections(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    for reply in diagnosis.replies:
        yield reply.part, f"{reply.name}: {reply.text} ({reply.seconds:.1f} s)"
    for answer in diagnosis.answers:
        endpoint = answer.endpoint
        yield endpoint.signal, f"{endpoint.url} over {endpoint.protocol}: {answer.text}"


def _program(run: Run) -> Iterator[tuple[str, str]]:
    yield "program", f"{' '.join(run.command[:3])}: {run.ending}"
    for note in run.notes:
        sampler = note.sampler.removeprefix("ParentBased{root:").partition(",")[0]
        provider = ", ".join(filter(None, [note.provider, sampler, *(note.processors or ())]))
        judge = f"judge {note.judge}, {note.embedder}"
        yield "pipeline", f"{note.program}, process {note.pid}; {provider}; {judge}"
    if run.notes:
        totals = Totals(notes=run.notes)
        yield "spans", listed(totals.spans) or "none"
        yield "read", listed(totals.of("source")) or "nothing"
        again = f"; recorded a second time: {totals.repeated}" if totals.repeated else ""
        pending = f"; pending: {totals.pending}" if totals.pending else ""
        turns = f"{sum(totals.turns.values())}: {listed(totals.turns) or 'none'}"
        yield "turns", f"{turns}{pending}{again}"


def as_data(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the report as a dict for JSON. The report contains no API key and no header."""
    return {
        "status": diagnosis.status,
        "versions": dict(diagnosis.versions),
        "judge_and_embedder": [
            {
                "part": reply.part,
                "name": reply.name,
                "ok": reply.error is None,
                "told": reply.text,
                "seconds": round(reply.seconds, 3),
            }
            for reply in diagnosis.replies
        ],
        "otlp": [
            {
                "signal": answer.endpoint.signal,
                "protocol": answer.endpoint.protocol,
                "endpoint": answer.endpoint.url,
                "source": answer.endpoint.source,
                "verdict": answer.verdict,
                "told": answer.text,
            }
            for answer in diagnosis.answers
        ],
        "program": _program_as_data(diagnosis.run) if diagnosis.run else None,
        "findings": [
            {**asdict(one.cause), "level": one.level, "seen": one.seen}
            for one in diagnosis.findings
        ],
    }


def _program_as_data(run: Run) -> dict[str, Any]:
    totals = Totals(notes=run.notes)
    return {
        "status": run.status,
        "failed": run.failed,
        "captured": totals.captured,
        "turns": totals.turns,
        "pending": totals.pending,
        "scored": totals.scored,
        "repeated": totals.repeated,
        "sources": totals.of("source"),
        "released": totals.of("released"),
        "spans": {scope: n for scope, n in totals.spans.items() if scope != semconv.SCOPE},
        "pipelines": [asdict(one) for one in run.notes],
    }
