"""Forking with spans held: each process exports its own, once."""

from __future__ import annotations

import os

import pytest

from pipeline import SOURCES, GatedJudge, Source, running, statuses

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


@SOURCES
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_fork_with_held_spans(protocol: str, source: Source) -> None:
    """The parent's held spans leave from the parent only; the child's own turns are scored too."""
    judge = GatedJudge()
    with running(protocol=protocol, judge=judge, source=source) as app:
        parents = app.run_turns(20)
        judge.asked.result(10)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                judge.open()
                app.run_turns(3)
                status = 0 if app.handle.flush(10) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        judge.open()
        assert app.handle.flush(10)
        children = [parents[0].replace(" 0", f" {number}") for number in range(20, 23)]
        spans = app.arrived([*parents, *children], wait=True)
    assert statuses(spans) == {"scored": 23}
