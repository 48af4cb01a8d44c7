"""Run the sessions of `noxfile.py`, three at a time, as most wait for servers and downloads.

    python tests/e2e/sessions.py [ARGUMENTS OF PYTEST]

The output of a session is printed as a whole when the session ends. The exit status is 1 if a
session fails.
"""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

NOX = [sys.executable, "-m", "nox"]
AT_ONCE = 3


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The exit status and the output of a session that took so many ``seconds``."""

    session: str
    status: int
    output: str
    seconds: float

    @property
    def line(self) -> str:
        is_skipped = f"Session {self.session} skipped" in self.output
        result = "failed" if self.status else "skipped" if is_skipped else "success"
        return f"nox > * {self.session}: {result}, took {self.seconds:.0f} seconds"


def sessions() -> list[str]:
    listed = subprocess.run([*NOX, "--list", "--json"], check=True, capture_output=True, text=True)
    found: list[dict[str, Any]] = json.loads(listed.stdout)
    return [one["session"] for one in found]


def run(session: str, arguments: list[str]) -> Outcome:
    began = time.monotonic()
    done = subprocess.run(
        [*NOX, "--session", session, "--", *arguments],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    seconds = time.monotonic() - began
    return Outcome(session=session, status=done.returncode, output=done.stdout, seconds=seconds)


def main(arguments: list[str]) -> int:
    """Run all sessions, print what each prints, and then a list of all."""
    lines, status = [], 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for future in as_completed([pool.submit(run, name, arguments) for name in sessions()]):
            outcome = future.result()
            sys.stdout.write(outcome.output)
            sys.stdout.flush()
            lines.append(outcome.line)
            status = status or outcome.status
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if status else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
