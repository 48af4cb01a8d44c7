"""Methods that are called in forked children."""

from __future__ import annotations

import gc
import os

import pytest

from parallel import in_child
from processes import ran
from rag_eval_otel.runtime import fork

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


class Counted:
    """An object with a method that is called in forked children."""

    calls = 0

    def __init__(self) -> None:
        fork.call_in_child(self.call)

    def call(self) -> None:
        Counted.calls += 1


@pytest.mark.slow
def test_objects_that_are_gone_leave_nothing_for_forks() -> None:
    """Each evaluation makes judges and embedders; their callbacks do not pile up."""
    gc.collect()
    before = len(fork._methods)  # noqa: SLF001
    kept = Counted()
    for _ in range(100):
        Counted()
    gc.collect()
    assert len(fork._methods) == before + 1  # noqa: SLF001
    assert in_child(lambda: Counted.calls == 1)
    assert kept.calls == 0


KEPT = """
from rag_eval_otel.runtime.fork import call_in_child

class Kept:
    def __init__(self):
        call_in_child(self.call)

    def call(self):
        pass

kept = Kept()
"""


def test_an_object_that_lives_until_the_exit_prints_nothing() -> None:
    """The order in which Python deletes objects and modules at its exit does not matter."""
    done = ran(KEPT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
