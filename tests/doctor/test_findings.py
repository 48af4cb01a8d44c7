"""What follows from what was seen, and that everything that may be found is described."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from rag_eval_otel.doctor.causes import CAUSES, Finding, causes_text
from rag_eval_otel.doctor.diagnosis import Diagnosis, diagnose
from rag_eval_otel.doctor.findings import of_answers, of_variables
from rag_eval_otel.doctor.launch import Ran, resolved
from rag_eval_otel.doctor.otlp import Answer
from rag_eval_otel.doctor.program import of_run, without_explained
from rag_eval_otel.doctor.reach import Reached
from rag_eval_otel.doctor.reasons import cause_of
from rag_eval_otel.doctor.report import as_text
from rag_eval_otel.doctor.targets import target_of
from rag_eval_otel.doctor.totals import read_notes, totals_of
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.live.notes import Note, as_line
from rag_eval_otel.sinks.instruments import DropReason
from rag_eval_otel.types import Reason, SkipReason

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
        "parent": 0,
        "program": "app.py",
        "executable": "python",
        "ended": True,
        "provider": "sdk.TracerProvider",
        "sees_spans": True,
        "sampler": "ParentBased{root:AlwaysOnSampler,x}",
        "processors": ["BatchSpanProcessor"],
        "spans": {"openinference": 3},
        "dialects": {"openinference": 3},
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
    return note(**{"counts": {}, "spans": {}, "dialects": {}, **known})


def run(*notes: Note, status: int = 0, **known: Any) -> Ran:
    """Return a run with these notes."""
    return Ran(command=("app",), status=status, notes=notes, **known)


def levels(findings: Iterable[Finding]) -> dict[str, str]:
    """Return the levels of ``findings`` by their names."""
    return {one.cause.id: one.level for one in without_explained(list(findings))}


def test_a_healthy_run_has_no_finding() -> None:
    """A program that attaches, reads, scores and exports."""
    assert levels(of_run(run(note()))) == {}


CASES: dict[str, tuple[Ran, dict[str, str]]] = {
    "nothing attached": (run(), {"nothing-attached": "problem"}),
    "interrupted": (run(note(), status=130, interrupted=(2,)), {}),
    "killed with spans waiting": (
        run(note(held=2, ended=False), status=-9),
        {"program-failed": "problem", "killed": "warning"},
    ),
    "a worker that ends past Python": (run(note(), note(ended=False)), {"killed": "info"}),
    "a forked process that did nothing": (run(note(), silent(ended=False)), {}),
    "no-op provider": (
        run(silent(provider="trace.NoOpTracerProvider", sees_spans=False, processors=None)),
        {"provider-noop": "problem"},
    ),
    "provider of another make": (
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
    "nobody to export": (run(note(processors=[])), {"no-exporter": "warning"}),
    "no spans": (run(silent()), {"no-spans": "problem"}),
    "LangChain, and no span of it": (
        run(silent(has_langchain=True, spans={"http": 1}, dialects={"none": 1})),
        {"callback-missing": "problem"},
    ),
    "LangChain, traced by an instrumentation": (
        run(note(counts={"source": {"openinference": 3}}, has_langchain=True)),
        {"no-turns": "problem"},
    ),
    "spans of nobody we know": (
        run(silent(spans={"http": 3}, dialects={"none": 3})),
        {"no-dialect": "problem"},
    ),
    "early leavers": (
        run(counted(turn={"scored": 1}, released={"timeout": 1})),
        {"unscored-spans": "warning"},
    ),
    "our own failures": (
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


@pytest.mark.parametrize(("ran", "expected"), CASES.values(), ids=CASES.keys())
def test_what_follows_from_a_run(ran: Ran, expected: dict[str, str]) -> None:
    """What is seen leads to its cause, and to no other that this one explains."""
    assert levels(of_run(ran)) == expected


@pytest.mark.parametrize(
    ("turns", "level"),
    [({"skipped redacted": 3}, "problem"), ({"skipped redacted": 3, "scored": 1}, "warning")],
)
def test_a_refusal_is_a_problem_where_nothing_is_scored(turns: dict[str, int], level: str) -> None:
    """Refusals beside scores are to be known; without any score they are what is wrong."""
    found = levels(of_run(run(counted(turn=turns))))
    assert found == {"turns-redacted": level}


def test_a_turn_is_counted_once() -> None:
    """Second records of the same turns are no turns of their own, and no problem."""
    ran = run(counted(turn={"scored": 3, "skipped duplicate": 3}))
    totals = totals_of(ran.notes)
    assert (totals.turns, totals.scored, totals.repeated) == ({"scored": 3}, 3, 3)
    assert levels(of_run(ran)) == {"turns-duplicate": "info"}


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
def test_what_follows_from_a_variable(name: str, value: str, cause: str) -> None:
    """A variable that stands in the way is named with its value."""
    (finding,) = of_variables({**QUIET, name: value})
    assert finding.cause.id == cause
    assert name in finding.seen


@pytest.mark.parametrize(
    ("argument", "expected"),
    [("0", ["sampler-off"]), ("0.5", ["sampler-ratio"]), ("1", []), ("much", ["sampler-ratio"])],
)
def test_a_sampler_with_an_argument(argument: str, expected: list[str]) -> None:
    """A share of none is none; one of all is no finding."""
    sampler = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": argument}
    assert [one.cause.id for one in of_variables({**QUIET, **sampler})] == expected


def test_a_protocol_that_follows_from_the_port() -> None:
    """Where port 4318 alone says HTTP, others speak gRPC; the hint is told with what fails."""
    target = target_of("traces", "http", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://here:4318"})
    (guess,) = of_answers([Answer(target=target, verdict="ok")])
    assert (guess.cause.id, guess.level) == ("otlp-protocol-unset", "info")
    named = replace(target, named_protocol=True)
    assert list(of_answers([Answer(target=named, verdict="ok")])) == []
    (wrong,) = of_answers([Answer(target=named, verdict="protocol", told="no", hint="grpc would")])
    assert wrong.seen.endswith("over http: no; grpc would")


def test_what_other_signals_meet_alone_is_a_warning() -> None:
    """Traces arrive; that metrics do not is a lesser evil. The default endpoint is no problem."""
    over = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://here", "OTEL_EXPORTER_OTLP_PROTOCOL": "http"}
    traces, metrics = (target_of(one, "http", over) for one in ("traces", "metrics"))
    late = [Answer(target=traces, verdict="ok"), Answer(target=metrics, verdict="timeout")]
    assert levels(of_answers(late)) == {"otlp-timeout": "warning"}
    nowhere = Answer(target=target_of("traces", "grpc", {}), verdict="refused")
    assert levels(of_answers([nowhere])) == {"otlp-unset": "warning"}


def test_options_that_leave_nothing_to_score() -> None:
    """A share of nothing, and a budget of nothing, are problems."""
    for name in ("RAG_EVAL_SAMPLE_RATE", "RAG_EVAL_MAX_TURNS_PER_MINUTE"):
        assert diagnose({**QUIET, name: "0"}, timeout=5).status == 1


@pytest.mark.parametrize(
    ("known", "asked"),
    [
        ({"judge": "an object, Mine"}, ["embedder"]),
        ({"judge": "openai/m", "judge_key": "code"}, ["embedder"]),
        ({"embedder": "an object, Mine"}, ["judge"]),
    ],
)
def test_what_is_in_the_program_s_code_is_not_asked(
    known: dict[str, str], asked: list[str]
) -> None:
    """An object, or a key, of the program's own cannot be tried from here, and that is said."""
    found = diagnose(QUIET, ran=run(note(**known)), timeout=5)
    assert [reply.part for reply in found.reached.replies] == asked
    assert ("judge-untried" in levels(found.findings)) is ("judge" not in asked)


@pytest.mark.parametrize(("logged", "asked"), [({}, 0), ({"export-failing": ["Failed"]}, 1)])
def test_the_default_endpoint_is_asked_if_exports_failed(
    logged: dict[str, list[str]], asked: int
) -> None:
    """Without a variable the program may export elsewhere; a failed export may have gone there."""
    environ = {**QUIET, "OTEL_TRACES_EXPORTER": "otlp"}
    found = diagnose(environ, ran=run(note(logged=logged)), timeout=5)
    assert len(found.reached.answers) == asked
    assert ("PROBLEM export-failing" in as_text(found)) is bool(logged)


def test_the_status_is_the_program_s_failure_first() -> None:
    """3 says that the program failed, whatever else there is."""
    failed = Diagnosis(versions={}, reached=Reached(), ran=run(status=1))
    assert failed.status == 3
    assert Diagnosis(versions={}, reached=Reached(), ran=run()).status == 0


def test_commands_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script is run by our Python, so is `python` where there is none; others must be there."""
    script = tmp_path / "app.py"
    script.touch()
    monkeypatch.setenv("PATH", "")
    assert resolved([str(script), "x"])[1:] == [str(script), "x"]
    assert resolved(["python", "-V"])[0] == resolved([str(script)])[0]
    with pytest.raises(ConfigError, match="no command 'uvicorn'; try"):
        resolved(["uvicorn"])


def test_notes_come_back(tmp_path: Path) -> None:
    """What one process writes the doctor reads, and shows; a line for people says the same."""
    one = note(logged={"record-lost": ["record_answer() has no effect"]})
    (tmp_path / "7-0.json").write_text(json.dumps(asdict(one)))
    (tmp_path / "8-0.part").write_text("{")
    assert read_notes(tmp_path) == [one]
    text = " ".join(as_text(Diagnosis(versions={}, reached=Reached(), ran=run(one))).split())
    assert "sdk.TracerProvider, AlwaysOnSampler, BatchSpanProcessor; judge lexical" in text
    assert "turns: scored 1." in as_line(one)


# --- the page -------------------------------------------------------------------------------------


def test_every_reason_has_a_cause() -> None:
    """Whatever a turn is counted with leads to something that is described."""
    for outcome, reasons in (("skipped", SkipReason), ("dropped", DropReason), ("error", Reason)):
        assert {cause_of(outcome, reason) for reason in get_args(reasons)} <= set(CAUSES)


def test_no_cause_is_idle() -> None:
    """All that is described can be found: the code names it, or a reason leads to it."""
    named = set(re.findall(r'"([a-z]+(?:-[a-z]+)*)"', "".join(p.read_text() for p in SOURCES)))
    for outcome, reasons in (("skipped", SkipReason), ("dropped", DropReason)):
        named |= {cause_of(outcome, reason) for reason in get_args(reasons)}
    assert set(CAUSES) <= named


def test_every_cause_is_read_from_the_text() -> None:
    """Each heading of ``causes.md`` is a cause with a reason and a way out."""
    assert len(CAUSES) == causes_text().count("\n### ")
    assert all(cause.why and cause.fix for cause in CAUSES.values())


def test_the_page_shows_the_causes() -> None:
    """``docs/doctor.md`` ends with ``causes.md``, word for word."""
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    assert page.endswith(f"\n{causes_text()}"), "copy rag_eval_otel/doctor/causes.md to its end"
