"""Runs of `rag-eval-otel backfill`, of which the first is killed when it has written something."""

import subprocess
import sys
from collections.abc import Callable

from e2e.programs import eventually
from rag_eval_otel.tools.cli import main

MAIN = "import sys; from rag_eval_otel.tools.cli import main; sys.exit(main())"


def kill_in_the_middle(source: str, written: Callable[[], int], *, turns: int) -> None:
    command = [sys.executable, "-c", MAIN, "backfill", source, "--yes"]
    with subprocess.Popen(command) as process:
        eventually(lambda: written() > 0, "a first score", 300)
        process.kill()
    assert 0 < written() < turns


def backfill(source: str) -> None:
    assert main(["backfill", source, "--since", "1d", "--yes"]) == 0
