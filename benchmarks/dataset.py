"""Rows per second and peak memory of evaluating a file with 1,000 and with 10,000 rows.

The command line runs in a separate process, with the offline judge. Then the larger run is killed
(-9) when a third of its scores are cached, and resumed.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common import setting

SIZES = (1_000, 10_000)
FORMATS = ("jsonl", "csv", "parquet")
METRICS = ("context_relevance", "statement_faithfulness", "response_groundedness")
CHILD = """
import resource, sys
from rag_eval_otel.tools.cli import main
status = main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
sys.exit(status)
"""
FACT = "Rain falls on the town in spring, and the river {i} rises by {i} centimetres in a day."


def write_rows(path: Path, count: int) -> Path:
    """Write ``count`` rows with four contexts each."""
    with path.open("w", encoding="utf-8") as file:
        for i in range(count):
            contexts = [FACT.format(i=i + j) for j in range(4)]
            row = {"question": f"How far does the river {i} rise?", "contexts": contexts}
            file.write(json.dumps({**row, "answer": FACT.format(i=i)}) + "\n")
    return path


def command(data: Path, output: Path) -> list[str]:
    """Return the command that evaluates ``data`` into ``output``."""
    arguments = ["evaluate", str(data), "--metrics", ",".join(METRICS), "--output", str(output)]
    return [sys.executable, "-c", CHILD, *arguments]


def run(data: Path, output: Path) -> tuple[float, float]:
    """Evaluate ``data`` into ``output``; return seconds and peak memory in MB."""
    started = time.perf_counter()
    done = subprocess.run(command(data, output), capture_output=True, text=True, check=True)
    return time.perf_counter() - started, int(done.stderr.split()[-1]) / 1024


def kept(cache: Path) -> int:
    """Return the number of scores in the cache of a running evaluation."""
    try:
        with sqlite3.connect(f"file:{cache}?mode=ro", uri=True) as database:
            found: int = database.execute("SELECT count(*) FROM scores").fetchone()[0]
    except sqlite3.OperationalError:  # the file or table does not exist yet
        return 0
    return found


def kill_at(scores: int, data: Path, output: Path) -> int:
    """Kill a run when its cache has ``scores`` scores; return the number of cached scores."""
    cache = output.with_name(f"{output.name}.cache")
    process = subprocess.Popen(
        command(data, output), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while kept(cache) < scores:
        assert process.poll() is None, "the run ended before it was killed"
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return kept(cache)


def main() -> None:
    """Print the figures of each format, and of the killed and resumed run."""
    print(setting("rag-eval-otel", "pyarrow"))
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        files = {n: write_rows(base / f"data_{n}.jsonl", n) for n in SIZES}
        for form in FORMATS:
            measured = {n: run(files[n], base / f"scores_{n}.{form}") for n in SIZES}
            (_, small), (seconds, large) = measured.values()
            rate = (SIZES[1] - SIZES[0]) / (seconds - measured[SIZES[0]][0])
            print(
                f"{form:8} {rate:6.0f} rows/s; peak {small:.0f} MB at {SIZES[0]:,},"
                f" {large:.0f} MB at {SIZES[1]:,} rows: ratio {large / small:.3f}"
            )
        output = base / "killed.jsonl"
        before = kill_at(SIZES[1] * len(METRICS) // 3, files[SIZES[1]], output)
        seconds, _ = run(files[SIZES[1]], output)
        rows = [json.loads(line)["row"] for line in output.read_text().splitlines()]
        same = output.read_bytes() == (base / f"scores_{SIZES[1]}.jsonl").read_bytes()
        print(
            f"killed with {before:,} cached scores; resumed in {seconds:.1f} s:"
            f" {len(rows):,} rows, {len(rows) - len(set(rows))} twice,"
            f" {SIZES[1] - len(set(rows))} missing, same bytes as the uninterrupted run: {same}"
        )


if __name__ == "__main__":
    os.environ.setdefault("RAG_EVAL_JUDGE", "lexical")
    main()
