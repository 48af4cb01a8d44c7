"""Log lines: they begin with the library, name judge and address, and quote nobody."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import rag_eval_otel
from live import attached
from rag_eval_otel import Evaluation, Sample, aevaluate
from rag_eval_otel.log import address_of, cause_of, log
from support import SAMPLE

SECRET = "Ada, born 1815"
PACKAGE = Path(rag_eval_otel.__file__).parent
WAYS_IN = {
    "log.py": "makes the logger",
    "tools/doctor.py": "reads the lines of the exporters",
    "worker/otlp.py": "filters the lines of its HTTP server",
}
"""The modules that may call ``logging.getLogger``, and why."""


def test_there_is_one_logger() -> None:
    """No module logs by a logger of its own, whose lines would not begin with the library."""
    lines = "debug|info|warning|error|critical|exception|log"
    called = re.compile(rf"\b(getLogger|warnings\.warn|basicConfig|logging\.({lines}))\(")
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if called.search(path.read_text(encoding="utf-8"))
    }
    assert found == WAYS_IN.keys()


def test_each_line_begins_with_the_library(caplog: pytest.LogCaptureFixture) -> None:
    """Also a line without arguments, and one whose text has a percent sign."""
    log.warning("100 %")
    log.warning("%d %%", 100)
    assert caplog.messages == ["rag_eval_otel: 100 %", "rag_eval_otel: 100 %"]
    assert {record.name for record in caplog.records} == {"rag_eval_otel"}


class MuteError(Exception):
    """An exception that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError(SECRET)

    __repr__ = __str__


def thrown(error: BaseException) -> None:
    raise error


def deep(calls: int = 700) -> None:
    if not calls:
        raise ValueError(SECRET)
    deep(calls - 1)


def endless() -> None:
    endless()


def executed() -> None:
    name = f"{SECRET}\n\u202e\ud800" + "x" * 10_000
    exec(compile(f"raise ValueError({SECRET!r})", name, "exec"), {})  # noqa: S102


def grouped() -> None:
    if sys.version_info < (3, 11):
        raise ValueError(SECRET)
    raise ExceptionGroup(SECRET, [ValueError(SECRET), MuteError()])  # noqa: F821


FAULTS: dict[str, Callable[[], object]] = {
    "plain": lambda: thrown(ValueError(SECRET)),
    "mute": lambda: thrown(MuteError(SECRET)),
    "by C code": lambda: json.loads(f"{{{SECRET}"),
    "stop": lambda: next(iter(())),
    "deep": deep,
    "endless": endless,
    "executed": executed,
    "grouped": grouped,
}
EACH_FAULT = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)


class OwnJudge:
    """A judge of a user that fails."""

    model = "own"

    def __init__(self, fault: Callable[[], object]) -> None:
        self.fault = fault

    async def reply(self, _: Sequence[object]) -> Any:
        self.fault()


def failing(fault: Callable[[], object]) -> Callable[[Sample], float]:
    def metric(_: Sample) -> float:
        fault()
        return 1.0

    return metric


@EACH_FAULT
def test_a_failing_metric(fault: Callable[[], object], caplog: pytest.LogCaptureFixture) -> None:
    """`evaluate` returns a score with an error; a line names the metric, and quotes nothing."""
    with caplog.at_level(logging.DEBUG, "rag_eval_otel"):
        found = asyncio.run(aevaluate(SAMPLE, [failing(fault)], judge="lexical"))
    assert [score.status for score in found.scores] == ["error"]
    (line,) = caplog.messages
    assert line.startswith("rag_eval_otel: failed in metric metric; the application is unaffected")
    assert line.isprintable()
    assert len(line) < 2_000
    assert SECRET not in caplog.text + str(found)


@EACH_FAULT
def test_a_failing_judge(fault: Callable[[], object], caplog: pytest.LogCaptureFixture) -> None:
    """Live, each turn has an outcome and its span; lines name the sink, and quote nothing."""

    class Broken:
        def __call__(self, _: Evaluation) -> None:
            fault()

    options: Any = {"judge": OwnJudge(fault), "sinks": [Broken()], "raise_errors": False}
    with (
        caplog.at_level(logging.DEBUG, "rag_eval_otel"),
        attached(metrics=["faithfulness"], **options) as app,
    ):
        app.turn()
        assert app.handle.flush()
        assert {outcome for outcome, _ in app.counted()} == {"error"}
        assert len(app.exported()) == 3
    assert [line for line in caplog.messages if "failed in sink Broken;" in line]
    assert all(line.startswith("rag_eval_otel: ") for line in caplog.messages)
    assert SECRET not in caplog.text


def test_a_function_that_redacts_fails(caplog: pytest.LogCaptureFixture) -> None:
    """The turn is not scored, and a line has the function, the class and the place."""

    def hide(text: str) -> str:
        raise ValueError(text)

    with attached(redact=hide, raise_errors=False) as app:
        app.turn()
        assert app.handle.flush()
        assert app.counted() == {("skipped", "redaction_error"): 1}
    (line,) = [one for one in caplog.messages if "redact:" in one]
    assert f"hide raised ValueError at {__file__}:" in line


def test_an_exception_without_a_traceback_is_named() -> None:
    """It may have been made and not raised."""
    assert cause_of(ValueError(SECRET)) == "ValueError at an unknown place"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://api.openai.com/v1", "https://api.openai.com/v1"),
        ("http://me:pass@there:8080/v1?api_key=sk-1#part", "http://there:8080/v1"),
        ("https://[::1]:4318/v1?x", "https://[::1]:4318/v1"),
        ("http://there:port/v1?api_key=sk-1", "an address that is no URL"),
        ("sk-1", "an unknown address"),
        ("", "an unknown address"),
        ("http://there/\nv1", "http://there/v1"),
    ],
)
def test_an_address_has_no_secrets(url: str, shown: str) -> None:
    """User, password, query and fragment are left out, and what is no URL altogether."""
    assert address_of(url) == shown
