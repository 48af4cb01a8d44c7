"""The doctor's findings on settings and notes, and the description of every cause."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_args

import pytest

from rag_eval_otel.config import Config
from rag_eval_otel.doctor.connections import Answer, Verdict, endpoint_of
from rag_eval_otel.doctor.findings import (
    CAUSES,
    Finding,
    Totals,
    cause_of,
    causes_text,
    from_answers,
    from_variables,
)
from rag_eval_otel.doctor.report import (
    Diagnosis,
    Run,
    as_data,
    as_text,
    diagnose,
    read_notes,
    resolved,
)
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.live.notes import Note, as_line
from rag_eval_otel.sinks.instruments import DropReason
from rag_eval_otel.types import ErrorReason, HoldStatus, Reason, SkipReason

ROOT = Path(__file__).parents[2]
SOURCES = [
    *sorted((ROOT / "rag_eval_otel" / "doctor").glob("*.py")),
    ROOT / "rag_eval_otel" / "live" / "notes.py",
]
QUIET = {
    "OTEL_TRACES_EXPORTER": "console",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_LOGS_EXPORTER": "none",
}


def note(**known: Any) -> Note:
    """Return the note of a healthy pipeline with a scored turn, except for what is ``known``."""
    usual: dict[str, Any] = {
        "pid": 1,
        "program": "app.py",
        "ended": True,
        "provider": "sdk.TracerProvider",
        "sees_spans": True,
        "sampler": "ParentBased{root:AlwaysOnSampler,x}",
        "processors": ["BatchSpanProcessor"],
        "spans": {"openinference": 3},
        "counts": {"turn": {"scored": 1}, "source": {"openinference": 3}},
        "judge": "lexical",
        "embedder": "hashing",
    }
    return Note(**{**usual, **known})


def counted(**kinds: Any) -> Note:
    """Return the note of a pipeline with these counts."""
    return note(counts=kinds)


def silent(**known: Any) -> Note:
    """Return the note of a pipeline that has captured nothing."""
    return note(**{"counts": {}, "spans": {}, **known})


def run(*notes: Note, status: int = 0, **known: Any) -> Run:
    """Return a run with these notes."""
    return Run(command=("app",), status=status, notes=notes, **known)


def levels(findings: Iterable[Finding]) -> dict[str, str]:
    """Return the levels of ``findings`` by their names, without the offline judge's."""
    return {one.cause.id: one.level for one in findings if one.cause.id != "judge-lexical"}


def found_in(program: Run) -> dict[str, str]:
    """Return the levels of the findings on ``program`` by their names."""
    return levels(diagnose(program, timeout=5, environ=QUIET).findings)


def test_a_healthy_run_has_no_finding() -> None:
    """A program that attaches, reads, scores and exports has no finding."""
    assert found_in(run(note())) == {}


CASES: dict[str, tuple[Run, dict[str, str]]] = {
    "nothing attached": (run(), {"nothing-attached": "problem"}),
    "interrupted": (run(note(), status=130, received=(2,)), {}),
    "killed with spans waiting": (
        run(note(held=2, ended=False), status=-9),
        {"program-failed": "problem", "killed": "warning"},
    ),
    "a worker that ends by os._exit": (run(note(), note(ended=False)), {"killed": "info"}),
    "a forked process that did nothing": (run(note(), silent(ended=False)), {}),
    "no-op provider": (
        run(silent(provider="trace.NoOpTracerProvider", sees_spans=False, processors=None)),
        {"provider-noop": "problem"},
    ),
    "provider of another SDK": (
        run(note(sees_spans=False, processors=None, provider="dd.Provider")),
        {"provider-foreign": "warning"},
    ),
    "a provider that was set too late": (
        run(silent(logged={"provider-late": ["Overriding"]})),
        {"provider-late": "problem"},
    ),
    "a sampler for some": (run(note(sampler="TraceIdRatioBased{0.1}")), {"sampler-ratio": "info"}),
    "a sampler for none": (
        run(silent(sampler="TraceIdRatioBased{0.0}")),
        {"sampler-off": "problem"},
    ),
    "no exporter": (run(note(processors=[])), {"no-exporter": "warning"}),
    "no spans": (run(silent()), {"no-spans": "problem"}),
    "LangChain without spans": (
        run(silent(has_langchain=True, spans={"http": 1})),
        {"callback-missing": "problem"},
    ),
    "LangChain, traced by an instrumentation": (
        run(note(counts={"source": {"openinference": 3}}, has_langchain=True)),
        {"no-turns": "problem"},
    ),
    "spans of an unknown instrumentation": (
        run(silent(spans={"http": 3})),
        {"no-dialect": "problem"},
    ),
    "spans that left early": (
        run(counted(turn={"scored": 1}, released={"timeout": 1})),
        {"unscored-spans": "warning"},
    ),
    "internal errors": (
        run(counted(turn={"scored": 1}, failure={"sink": 1})),
        {"internal-errors": "problem"},
    ),
    "exports that fail": (
        run(note(logged={"export-failing": ["Failed to export traces", "Failed to export logs"]})),
        {"export-failing": "problem"},
    ),
    "a score that is missing": (
        run(counted(turn={"scored timeout": 1})),
        {"server-slow": "warning"},
    ),
    "scores without a value": (
        run(counted(turn={"undefined no_claims": 1})),
        {"scores-undefined": "warning"},
    ),
    "a key that is wrong": (
        run(counted(turn={"error unauthorized": 1})),
        {"key-refused": "problem"},
    ),
}


@pytest.mark.parametrize(("program", "expected"), CASES.values(), ids=CASES.keys())
def test_findings_on_a_program(program: Run, expected: dict[str, str]) -> None:
    """A program's notes lead to their cause, without the consequences of this cause."""
    assert found_in(program) == expected


@pytest.mark.parametrize(
    ("turns", "level"),
    [({"skipped redacted": 3}, "problem"), ({"skipped redacted": 3, "scored": 1}, "warning")],
)
def test_a_refusal_is_a_problem_where_nothing_is_scored(turns: dict[str, int], level: str) -> None:
    """A refusal is a warning beside scored turns, and a problem without any."""
    assert found_in(run(counted(turn=turns))) == {"turns-redacted": level}


def test_a_turn_is_counted_once() -> None:
    """Second records of the same turns are not counted as turns."""
    program = run(counted(turn={"scored": 3, "skipped duplicate": 3}))
    totals = Totals(notes=program.notes)
    assert (totals.turns, totals.scored, totals.repeated) == ({"scored": 3}, 3, 3)
    assert found_in(program) == {"turns-duplicate": "info"}


@pytest.mark.parametrize(
    ("name", "value", "cause"),
    [
        ("OTEL_SDK_DISABLED", "True", "sdk-disabled"),
        ("OTEL_TRACES_SAMPLER", "parentbased_always_off", "sampler-off"),
        ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "4096", "attribute-limit"),
        ("TRACELOOP_TRACE_CONTENT", "false", "content-hidden"),
        ("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "a, rag_eval_otel", "instrumentor-disabled"),
        ("OTEL_TRACES_EXPORTER", "pigeon", "exporter-missing"),
        ("OTEL_TRACES_EXPORTER", "none", "traces-not-exported"),
    ],
)
def test_findings_on_a_variable(name: str, value: str, cause: str) -> None:
    """A variable that prevents scoring is named with its value."""
    (finding,) = from_variables({**QUIET, name: value})
    assert finding.cause.id == cause
    assert name in finding.seen


@pytest.mark.parametrize(
    ("argument", "expected"),
    [("0", ["sampler-off"]), ("0.5", ["sampler-ratio"]), ("1", []), ("much", ["sampler-ratio"])],
)
def test_a_sampler_with_an_argument(argument: str, expected: list[str]) -> None:
    """A ratio of 0 drops all; a ratio of 1 is no finding."""
    sampler = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": argument}
    assert [one.cause.id for one in from_variables({**QUIET, **sampler})] == expected


def test_a_failure_of_another_signal_is_a_warning() -> None:
    """If traces arrive, failing metrics are a warning; so is a dead default endpoint."""
    over = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://here", "OTEL_EXPORTER_OTLP_PROTOCOL": "http"}
    traces, metrics = endpoint_of("traces", "http", over), endpoint_of("metrics", "http", over)
    late = [Answer(endpoint=traces, verdict="ok"), Answer(endpoint=metrics, verdict="timeout")]
    assert levels(from_answers(late)) == {"otlp-timeout": "warning"}
    nowhere = Answer(endpoint=endpoint_of("traces", "grpc", {}), verdict="refused")
    assert levels(from_answers([nowhere])) == {"otlp-unset": "warning"}


def test_options_that_leave_nothing_to_score() -> None:
    """A sample rate of 0 and a budget of 0 are problems."""
    for name in ("RAG_EVAL_SAMPLE_RATE", "RAG_EVAL_MAX_TURNS_PER_MINUTE"):
        assert diagnose(timeout=5, environ={**QUIET, name: "0"}).status == 1


@pytest.mark.parametrize(
    ("known", "asked"),
    [
        ({"judge": "an object, Mine"}, ["embedder"]),
        ({"judge": "openai/m", "judge_key": "code"}, ["embedder"]),
        ({"embedder": "an object, Mine"}, ["judge"]),
    ],
)
def test_a_judge_in_the_program_s_code_is_not_asked(
    known: dict[str, str], asked: list[str]
) -> None:
    """A judge, an embedder or a key that the program's code sets cannot be tried."""
    found = diagnose(run(note(**known)), timeout=5, environ=QUIET)
    assert [reply.part for reply in found.replies] == asked
    assert ("judge-untried" in levels(found.findings)) is ("judge" not in asked)


@pytest.mark.parametrize(("logged", "asked"), [({}, 0), ({"export-failing": ["Failed"]}, 1)])
def test_the_default_endpoint_is_asked_if_exports_failed(
    logged: dict[str, list[str]], asked: int
) -> None:
    """Without a variable the default endpoint is only tried if the program's exports failed."""
    environ = {**QUIET, "OTEL_TRACES_EXPORTER": "otlp"}
    found = diagnose(run(note(logged=logged)), timeout=5, environ=environ)
    assert len(found.answers) == asked
    assert ("PROBLEM export-failing" in as_text(found)) is bool(logged)


def test_the_status_is_the_program_s_failure_first() -> None:
    """The exit status is 3 if the program failed, whatever the findings are."""
    for status, expected in ((1, 3), (0, 0)):
        program = run(status=status)
        found = Diagnosis(versions={}, run=program)
        assert found.status == expected


def test_commands_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script is run by this Python, as is a missing `python`; other commands must exist."""
    script = tmp_path / "app.py"
    script.touch()
    monkeypatch.setenv("PATH", "")
    assert resolved([str(script), "x"])[1:] == [str(script), "x"]
    assert resolved(["python", "-V"])[0] == resolved([str(script)])[0]
    with pytest.raises(ConfigError, match="no command 'uvicorn'; try"):
        resolved(["uvicorn"])


def test_pending_turns_are_shown() -> None:
    """Turns that were found and have no outcome are pending, in all forms of the report."""
    one = note(captured=3, counts={"turn": {"scored": 1}}, ended=False)
    found = diagnose(run(one), timeout=5, environ=QUIET)
    assert found_in(run(one))["killed"] == "warning"
    assert "turns: scored 1, pending 2." in as_line(one)
    assert "1: scored 1; pending: 2" in " ".join(as_text(found).split())
    assert [as_data(found)["program"][name] for name in ("captured", "pending")] == [3, 2]


def test_a_part_that_blocked_is_not_an_error_of_this_library() -> None:
    """The finding names the part."""
    failures = {"blocked metric toxicity": 1}
    program = run(counted(turn={"scored": 1}, source={"openinference": 1}, failure=failures))
    found = diagnose(program, timeout=5, environ=QUIET).findings
    assert levels(found) == {"part-blocked": "problem"}
    assert "blocked metric toxicity 1" in [one.seen for one in found]


def test_notes_come_back(tmp_path: Path) -> None:
    """The doctor reads the file of a process and shows it; so does the line for people."""
    one = note(logged={"record-lost": ["record_answer() has no effect"]})
    (tmp_path / "7-0.json").write_text(json.dumps(asdict(one)))
    (tmp_path / "8-0.part").write_text("{")
    assert read_notes(tmp_path) == [one]
    found = Diagnosis(versions={}, run=run(one))
    text = " ".join(as_text(found).split())
    assert "sdk.TracerProvider, AlwaysOnSampler, BatchSpanProcessor; judge lexical" in text
    assert "turns: scored 1." in as_line(one)


# --- the page -------------------------------------------------------------------------------------


def test_every_reason_has_a_cause() -> None:
    """Every reason of a turn leads to a described cause."""
    for outcome, reasons in (("skipped", SkipReason), ("dropped", DropReason), ("error", Reason)):
        assert {cause_of(outcome, reason) for reason in get_args(reasons)} <= set(CAUSES)


def test_every_failure_has_a_cause_of_its_own() -> None:
    """Of a failed score, the doctor does not say that the judge answered."""
    assert {cause_of("error", reason) for reason in get_args(ErrorReason)} <= set(CAUSES) - {
        "scores-undefined"
    }


def test_the_page_lists_statuses_and_reasons() -> None:
    """``docs/doctor.md`` names each status and reason, the cause of each, and existing options.

    Apart from the options, the meaning of a status is only in the document.
    """
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    section = page.partition("## Statuses and reasons")[2].partition("\n## ")[0]
    statuses, _, reasons = section.partition("| reason |")
    assert set(re.findall(r"^\| `(\w+)` \|", statuses, re.MULTILINE)) == set(get_args(HoldStatus))
    meanings = "".join(re.findall(r"^\| `\w+` \|(.*)", statuses, re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", meanings)) <= {field.name for field in fields(Config)}
    of_turns = next(row for row in reasons.splitlines() if "| `turns-` and the reason |" in row)
    listed = set(re.findall(r"`(\w+)`", of_turns))
    assert listed == {*get_args(SkipReason), *get_args(DropReason)}
    assert {cause_of("skipped", reason) for reason in listed} <= set(CAUSES)
    assert set(get_args(Reason)) <= set(re.findall(r"`(\w+)`", reasons))
    for reason in get_args(Reason):
        row = next(row for row in reasons.splitlines() if f"`{reason}`" in row)
        assert reason == "partial" or cause_of("error", reason) in row or "turns-" in row


def test_every_cause_is_used() -> None:
    """Every described cause is used: the code names it, or a reason leads to it."""
    named = {f"otlp-{verdict}" for verdict in get_args(Verdict)}
    named |= set(re.findall(r'"([a-z]+(?:-[a-z]+)*)"', "".join(p.read_text() for p in SOURCES)))
    for outcome, reasons in (("skipped", SkipReason), ("dropped", DropReason)):
        named |= {cause_of(outcome, reason) for reason in get_args(reasons)}
    assert set(CAUSES) <= named


def test_every_cause_is_read_from_the_text() -> None:
    """Each entry of ``causes.md`` is a cause with a reason and a fix."""
    assert len(CAUSES) == causes_text().count("\n- `")
    assert all(cause.why and cause.fix for cause in CAUSES.values())


def test_the_page_shows_the_causes() -> None:
    """``docs/doctor.md`` ends with ``causes.md``, word for word."""
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    assert page.endswith(f"\n{causes_text()}"), "copy rag_eval_otel/doctor/causes.md to its end"
