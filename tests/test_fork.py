"""Forking with spans held: each process exports its own, once."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from pipeline import GatedJudge, running

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_fork_with_held_spans(protocol: str) -> None:
    """The parent's held spans leave from the parent only; the child's own turns are scored too."""
    judge = GatedJudge()
    with running(protocol=protocol, judge=judge) as app:
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
        spans = app.receiver.wait_for_spans(23)
    assert Counter(span.span_id for span in spans).most_common(1)[0][1] == 1
    assert set(parents) <= {span.span_id for span in spans}
    assert {span.attributes["rag.evaluation.status"] for span in spans} == {"scored"}
