"""Processes that end: the scores of their last turns reach a backend before.

LangSmith's own client sends them over HTTP, because it is installed with LangChain.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter

import pytest

from e2e.recorded import KEY, PROJECT, LangSmith, serving
from processes import stage

TURNS = 3
SCRIPT = """
import os, signal, time
from multiprocessing import get_context
from served import turn

def turns():
    for _ in range({turns}):
        turn()

{end}
"""
ENDINGS = {
    "falls off the end": "turns()",
    "SIGTERM": "turns(); os.kill(os.getpid(), signal.SIGTERM); time.sleep(600)",
    "a child of multiprocessing": (
        "child = get_context('fork').Process(target=turns); child.start(); child.join()"
    ),
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="needs fork and signals of POSIX"),
]


@pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS.keys())
def test_scores_reach_a_backend_though_the_process_ends(end: str) -> None:
    """Each once, and on the spans that were exported."""
    with stage() as run, serving(LangSmith()) as service:
        status, _, errors = run.run(
            SCRIPT.format(turns=TURNS, end=end),
            RAG_EVAL_BACKENDS="langsmith",
            LANGSMITH_ENDPOINT=service.url,
            LANGSMITH_API_KEY=KEY,
            LANGSMITH_PROJECT=PROJECT,
            NO_PROXY="127.0.0.1,localhost",
        )
        spans = {span.span_id: span.attributes for span in run.spans()}
    assert status == (-signal.SIGTERM if "SIGTERM" in end else 0), errors
    assert len(spans) == TURNS
    found = Counter(
        (int(one["run_id"][-17:].replace("-", ""), 16), one["key"], one["score"])
        for one in service.stored.values()
        if "score" in one
    )
    assert found == Counter(
        (span, name.split(".")[2], value)
        for span, attributes in spans.items()
        for name, value in attributes.items()
        if name.endswith(".score")
    )
    assert len(found) >= TURNS
