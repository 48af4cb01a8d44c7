"""Count the samples captured from recorded traces, and write ``docs/instrumentations.md``.

``PYTHONPATH=tests python benchmarks/instrumentations.py FOLDER [--check]`` replays the recordings
in ``FOLDER``. The table stands between two marks; the rest of the page is written by hand.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from replay import load, replay, verdict

PAGE = Path(__file__).parents[1] / "docs" / "instrumentations.md"
BEGIN, END = "<!-- recordings: begin -->\n", "<!-- recordings: end -->"
WHY = {
    "abandoned": "the consumer of a stream stopped before its end",
    "ambiguous": "the trace has more than one possible reading",
    "error": "the application failed",
    "no_answer": "no text of an answer was captured: content is switched off, or in another trace",
    "no_contexts": "documents were retrieved, but their texts were not captured",
    "no_question": "no text of a question was captured",
    "no_retrieval": "no retrieval was recorded, only LLM calls",
    "partial": "spans are missing, or have not ended",
    "redacted": "the content was hidden on purpose, which is respected",
    "split": "the retrieval and the call of the model are in different traces",
    "truncated": "a limit of the SDK truncated or dropped the content",
}


def table(folder: Path) -> str:
    """Return the generated part of the page, for the recordings in ``folder``."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted(folder.glob("*.json")):
        recording = load(path)
        found = replay(recording.calls)
        said = verdict(recording, found)
        counts[recording.instrumentation][said] += 1
        if said == "refused":
            reasons[recording.instrumentation][min(str(one.result) for one in found)] += 1
    rows = [_row(name, counts[name], reasons[name]) for name in sorted(counts)]
    total = _row("**all**", _sum(counts.values()), _sum(reasons.values()))
    used = sorted(_sum(reasons.values()))
    columns = "| instrumentation | exact | refused | wrong | no turns | unstated |\n"
    rule = "|---|--:|---|--:|--:|--:|\n"
    why = "".join(f"- `{name}`: {WHY[name]}.\n" for name in used)
    return f"{columns}{rule}{''.join(rows)}{total}\nReasons:\n\n{why}"


def _sum(counters: Iterable[Counter[str]]) -> Counter[str]:
    return sum(counters, Counter[str]())


def _row(name: str, counts: Counter[str], reasons: Counter[str]) -> str:
    refused = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items())) or "0"
    wrong = counts["wrong"] + counts["incomplete"]
    numbers = (counts["exact"], refused, wrong, counts["none"], counts["unstated"])
    return f"| {name} | {' | '.join(map(str, numbers))} |\n"


def main() -> int:
    """Write the page, or check that it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="fail if the page is out of date")
    options = parser.parse_args()
    old = PAGE.read_text(encoding="utf-8")
    before, _, rest = old.partition(BEGIN)
    page = f"{before}{BEGIN}{table(options.folder)}{END}{rest.partition(END)[2]}"
    if options.check:
        return int(old != page)
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
