"""What follows from what was seen, and that everything that may be found is described."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from rag_eval_otel.doctor.causes import CAUSES, Finding, causes_text
from rag_eval_otel.doctor.diagnosis import Diagnosis, diagnose
from rag_eval_otel.doctor.findings import of_answers, of_variables
from rag_eval_otel.doctor.launch import Ran, resolved
from rag_eval_otel.doctor.notes import (
    ExportNote,
    PipelineNote,
    ProcessNote,
    ProviderNote,
    Strange,
    read_notes,
    write_note,
)
from rag_eval_otel.doctor.otlp import Answer
from rag_eval_otel.doctor.program import of_run, without_explained
from rag_eval_otel.doctor.reach import Reached
from rag_eval_otel.doctor.reasons import cause_of
from rag_eval_otel.doctor.report import as_text
from rag_eval_otel.doctor.targets import target_of
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.sinks.instruments import DropReason
from rag_eval_otel.types import Reason, SkipReason

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "rag_eval_otel" / "doctor").glob("*.py"))
QUIET = {
    "OTEL_TRACES_EXPORTER": "console",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_LOGS_EXPORTER": "none",
}


def provider(**known: Any) -> ProviderNote:
    """Return the note of a healthy provider, except for what is ``known``."""
    usual: dict[str, Any] = {
        "type": "sdk.TracerProvider",
        "is_global": True,
        "is_attached": True,
        "sampler": "ParentBased{root:AlwaysOnSampler,x}",
        "spans": 3,
        "scopes": {"openinference": 3},
        "dialects": {"openinference": 3},
    }
    return ProviderNote(**{**usual, **known})


def pipeline(**known: Any) -> PipelineNote:
    """Return the note of a pipeline of the program that has scored a turn, except for ``known``."""
    usual: dict[str, Any] = {
        "by": "program",
        "sees_spans": True,
        "counts": {"turn": {"scored": 1}, "source": {"openinference": 3}},
        "held": 0,
        "judge": "lexical",
        "embedder": "hashing",
        "judge_base_url": None,
        "judge_key": "none",
    }
    return PipelineNote(**{**usual, **known})


def counted(**kinds: Any) -> PipelineNote:
    """Return the note of a pipeline with these counts."""
    return pipeline(counts=kinds)


def process(*parts: Any, **known: Any) -> ProcessNote:
    """Return the note of a process with these providers, pipelines and exports."""
    usual: dict[str, Any] = {
        "pid": 1,
        "parent": 0,
        "program": "app.py",
        "executable": "python",
        "ended": "exit",
        "providers": tuple(p for p in parts if isinstance(p, ProviderNote)),
        "pipelines": tuple(p for p in parts if isinstance(p, PipelineNote)),
        "exports": tuple(p for p in parts if isinstance(p, ExportNote)),
    }
    return ProcessNote(**{**usual, **known})


def export(succeeded: int = 1, failed: int = 0) -> ExportNote:
    """Return the note of an exporter of traces."""
    return ExportNote(
        signal="traces",
        protocol="http",
        endpoint="http://127.0.0.1:9/v1/traces",
        succeeded=succeeded,
        failed=failed,
    )


def run(*processes: ProcessNote, status: int = 0, **known: Any) -> Ran:
    """Return a run with these processes."""
    return Ran(command=("app",), status=status, processes=processes, **known)


def levels(findings: Iterable[Finding]) -> dict[str, str]:
    """Return the levels of ``findings`` by their names."""
    return {one.cause.id: one.level for one in without_explained(list(findings))}


def test_a_healthy_run_has_no_finding() -> None:
    """A program that attaches, reads, scores and exports."""
    assert levels(of_run(run(process(provider(), pipeline(), export())))) == {}


NO_EXPORT = {"no-otlp-exporter": "info"}
CASES: dict[str, tuple[Ran, dict[str, str]]] = {
    "unseen": (run(), {"program-unseen": "problem"}),
    "another python": (
        run(strangers=(Strange(executable="/usr/bin/python", error="ImportError: no"),)),
        {"not-installed-there": "problem"},
    ),
    "interrupted": (
        run(process(provider(), pipeline(), export()), status=130, interrupted=(2,)),
        {},
    ),
    "killed": (
        run(process(provider(), pipeline(held=2), export(), ended=None), status=-9),
        {"program-failed": "problem", "killed": "info"},
    ),
    "a hard exit with spans waiting": (
        run(process(provider(), pipeline(held=1), export(), ended="os._exit")),
        {"hard-exit": "warning"},
    ),
    "a hard exit before anything": (
        run(process(provider(), counted(source={"callback": 1}), ended="os._exit", handlers=1)),
        {"hard-exit": "problem", **NO_EXPORT},
    ),
    "no-op provider": (
        run(process(pipeline(counts={}), export(), global_provider="trace.NoOpTracerProvider")),
        {"provider-noop": "problem"},
    ),
    "provider of another make": (
        run(process(pipeline(sees_spans=False), export(), global_provider="dd.Provider")),
        {"provider-foreign": "warning"},
    ),
    "a second provider": (
        run(
            process(provider(is_global=False, is_attached=False), provider(), pipeline(), export())
        ),
        {"provider-unwatched": "problem"},
    ),
    "a sampler for some": (
        run(process(provider(sampler="TraceIdRatioBased{0.1}"), pipeline(), export())),
        {"sampler-ratio": "info"},
    ),
    "a sampler for none": (
        run(process(provider(sampler="TraceIdRatioBased{0.0}", spans=0, scopes={}), export())),
        {"sampler-off": "problem"},
    ),
    "no spans": (
        run(process(provider(spans=0, scopes={}, dialects={}), counted(), export())),
        {"no-spans": "problem"},
    ),
    "spans of nobody we know": (
        run(process(provider(dialects={"none": 3}), counted(), export())),
        {"no-dialect": "problem"},
    ),
    "LangChain without retrieval": (
        run(process(provider(), counted(), export(), langchain_runs=2, handlers=1)),
        {"no-turns": "problem"},
    ),
    "spans without a provider": (
        run(process(tracers=("openinference",), global_provider="ProxyTracerProvider")),
        {"provider-unset": "problem"},
    ),
    "a handler that no run reports to": (run(process(handlers=1)), {"nothing-seen": "problem"}),
    "early leavers": (
        run(process(provider(), counted(turn={"scored": 1}, released={"timeout": 1}), export())),
        {"unscored-spans": "warning"},
    ),
    "our own failures": (
        run(process(provider(), counted(turn={"scored": 1}, failure={"sink": 1}), export())),
        {"internal-errors": "problem"},
    ),
    "exports that fail": (
        run(process(provider(), pipeline(), export(failed=2))),
        {"export-failing": "problem"},
    ),
    "a score that is missing": (
        run(process(provider(), counted(turn={"scored timeout": 1}), export())),
        {"server-slow": "warning"},
    ),
    "scores without a value": (
        run(process(provider(), counted(turn={"undefined no_claims": 1}), export())),
        {"scores-undefined": "warning"},
    ),
    "a key that is wrong": (
        run(process(provider(), counted(turn={"error unauthorized": 1}), export())),
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
    found = levels(of_run(run(process(provider(), counted(turn=turns), export()))))
    assert found == {"turns-redacted": level}


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
    ("note", "asked"),
    [
        (pipeline(judge="an object, Mine"), ["embedder"]),
        (pipeline(judge="openai/m", judge_key="code"), ["embedder"]),
        (pipeline(embedder="an object, Mine"), ["judge"]),
    ],
)
def test_what_is_in_the_program_s_code_is_not_asked(note: PipelineNote, asked: list[str]) -> None:
    """An object, or a key, of the program's own cannot be tried from here, and that is said."""
    found = diagnose(QUIET, ran=run(process(provider(), note, export())), timeout=5)
    assert [reply.part for reply in found.reached.replies] == asked
    assert ("judge-untried" in levels(found.findings)) is ("judge" not in asked)


def test_an_endpoint_of_the_program_s_own_is_asked_if_it_failed() -> None:
    """Exports that failed lead to their endpoint, wherever the variables point."""
    ran = run(process(provider(), pipeline(), export(succeeded=0, failed=1)))
    found = diagnose({**QUIET, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ran=ran, timeout=2)
    (answer,) = found.reached.answers
    assert (answer.target.endpoint, answer.verdict) == ("http://127.0.0.1:9/v1/traces", "refused")
    assert levels(found.findings)["otlp-refused"] == "problem"
    text = as_text(found)
    assert "0 delivered, 1 failed" in text
    assert "PROBLEM export-failing" in text


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
    """What one process writes another reads; a folder that is gone stops nobody."""
    note = process(provider(), pipeline(), export(), refused_providers=("x",))
    write_note(tmp_path / "7-1.json", note)
    (tmp_path / "8.strange").write_text("/usr/bin/python\nImportError: no")
    write_note(tmp_path / "gone" / "9-1.json", note)
    assert read_notes(tmp_path) == (
        [note],
        [Strange(executable="/usr/bin/python", error="ImportError: no")],
    )


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
