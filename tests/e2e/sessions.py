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

NOX = [sys.executable, "-m", "nox"]
AT_ONCE = 3


def run(session: str, arguments: list[str]) -> tuple[int, str, str]:
    """Run a session; return its exit status, its output and a line about it."""
    began = time.monotonic()
    done = subprocess.run(
        [*NOX, "--session", session, "--", *arguments],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    is_skipped = f"Session {session} skipped" in done.stdout
    result = "failed" if done.returncode else "skipped" if is_skipped else "success"
    line = f"nox > * {session}: {result}, took {time.monotonic() - began:.0f} seconds"
    return done.returncode, done.stdout, line


def main(arguments: list[str]) -> int:
    """Run all sessions, print what each prints, and then a list of all."""
    listed = subprocess.run([*NOX, "--list", "--json"], check=True, capture_output=True, text=True)
    names = [str(one["session"]) for one in json.loads(listed.stdout)]
    names.sort(key=lambda name: name not in {"mlflow", "phoenix"})  # the longest first
    lines, statuses = [], set[int]()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for future in as_completed([pool.submit(run, name, arguments) for name in names]):
            status, output, line = future.result()
            sys.stdout.write(output)
            sys.stdout.flush()
            lines.append(line)
            statuses.add(status)
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if any(statuses) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
