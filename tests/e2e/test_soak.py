"""Mixed traffic with outages of the judge and of the receiver, for 90 seconds."""

import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def test_no_span_and_no_turn_is_lost_or_doubled() -> None:
    """The soak checks numbers and ids of spans at both ends, and the counts of turns."""
    command = [sys.executable, str(SOAK), "--minutes", "1.5", "--rate", "30"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
