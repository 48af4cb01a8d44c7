"""`replay` prints the samples of recorded traces, and `verdict` compares them with the truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from replay import load, main, replay
from verdicts import verdict

ASKED, TOLD = "When was it founded?", "It was founded in 1949, says the book."
PAGE = "The house was founded in 1949."
TRUTH = {"question": ASKED, "contexts": [PAGE], "answer": TOLD}


def raw(number: int, parent: int | None, *, at: int, kind: str, **values: str) -> dict[str, Any]:
    """Build a recorded span; its values are attributes, with ``_`` for dots."""
    attributes = {name.replace("_", "."): value for name, value in values.items()}
    return {
        "name": kind.lower(),
        "trace_id": "0a",
        "span_id": f"{number:04x}",
        "parent_span_id": None if parent is None else f"{parent:04x}",
        "parent_is_remote": False,
        "start_time_unix_nano": at,
        "end_time_unix_nano": 100 - at,
        "status": {"code": "OK", "description": None},
        "attributes": {"openinference.span.kind": kind, **attributes},
        "dropped_attributes": 0,
        "events": [],
        "scope": {"name": "somebody"},
    }


def write(folder: Path, *, ended: tuple[int, ...] = (2, 3, 1), **changes: Any) -> Path:
    """Write a recording of one turn, of whose spans those that ``ended`` did so."""
    found = raw(2, 1, at=10, kind="RETRIEVER", input_value=ASKED)
    found["end_time_unix_nano"] = 20
    found["attributes"]["retrieval.documents.0.document.content"] = PAGE
    call = raw(3, 1, at=30, kind="LLM")
    call["attributes"]["llm.input_messages.0.message.role"] = "user"
    call["attributes"]["llm.input_messages.0.message.content"] = f"{PAGE}\n{ASKED}"
    call["attributes"]["llm.output_messages.0.message.content"] = TOLD
    root = raw(1, None, at=1, kind="CHAIN", input_value=ASKED, output_value=TOLD)
    spans = {2: found, 3: call, 1: root}
    starts = [{"op": "start", "span_id": f"{n:04x}", "t": n, "name": "x"} for n in (1, 2, 3)]
    ends = [{"op": "end", "span_id": f"{n:04x}", "t": 90} for n in ended]
    data = {
        "instrumentation": "somebody",
        "app": "rag",
        "env": {},
        "expected": [TRUTH],
        "spans": [spans[n] for n in ended],
        "processor_sequence": [*starts, *ends],
        "never_ended": [{"span_id": f"{n:04x}", "name": "x"} for n in spans if n not in ended],
        "logs": [],
        **changes,
    }
    path = folder / "somebody__rag.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As JSON it is a line for each file, with the samples in it."""
    write(tmp_path)
    assert main(["--json", str(tmp_path)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {
        "file": "somebody__rag.json",
        "instrumentation": "somebody",
        "app": "rag",
        "samples": [{**TRUTH, "status": "ok", "reason": None}],
    }


def test_a_refusal_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without its root a turn can't be trusted."""
    path = write(tmp_path, ended=(2, 3))
    main(["--json", str(path)])
    (sample,) = json.loads(capsys.readouterr().out)["samples"]
    assert sample == {
        "question": None,
        "contexts": None,
        "answer": None,
        "status": "skipped",
        "reason": "partial",
    }


def test_nothing_at_all_has_a_reason(tmp_path: Path) -> None:
    """A trace in which nobody retrieves is refused for that."""
    path = write(tmp_path, ended=(), processor_sequence=[])
    (outcome,) = replay(load(path).calls)
    assert outcome.result == "no_retrieval"


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ([TRUTH], "exact"),
        ([{"question": ASKED}], "exact"),
        ([TRUTH, TRUTH], "incomplete"),
        ([{**TRUTH, "contexts": []}], "wrong"),
        ([], "wrong"),
        (None, "unstated"),
    ],
)
def test_verdicts(tmp_path: Path, expected: Any, said: str) -> None:
    """What is found is compared with what is stated, and what is not stated is not compared."""
    recording = load(write(tmp_path, expected=expected))
    assert verdict(recording, replay(recording.calls)) == said


def test_verdicts_on_refusals(tmp_path: Path) -> None:
    """A refusal is right where there is nothing, and safe where there is something."""
    for expected, said in (([TRUTH], "refused"), ([], "none")):
        recording = load(write(tmp_path, ended=(2, 3), expected=expected))
        assert verdict(recording, replay(recording.calls)) == said


def test_logs_and_errors_are_read(tmp_path: Path) -> None:
    """Log records belong to the span they were written in, and a status may be an error."""
    failed = raw(1, None, at=1, kind="CHAIN")
    failed["status"] = {"code": "ERROR", "description": "it broke"}
    log = {"span_id": "0001", "event_name": "gen_ai.choice", "body": {"a": 1}, "attributes": None}
    path = write(tmp_path, spans=[failed], logs=[log], env={"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": 9})
    (span,) = load(path).spans
    assert (span.error, span.value_limit) == ("it broke", 9)
    assert [(one.event, one.body, one.attributes) for one in span.logs] == [
        ("gen_ai.choice", {"a": 1}, {})
    ]
