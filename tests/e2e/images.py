"""Render the pictures of the README: ``PYTHONPATH=tests python -m e2e.images docs/images``.

Chromium takes screenshots of what the demo prints, of a page that the report writes, and of
a page that compares two runs.
"""

import html
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from e2e.programs import program
from rag_eval_otel.tools.cli import main
from score_files import falling, jsonl, page_of, row

STYLE = "margin:0;padding:16px;background:#14181d;color:#e6e9ec;"
STYLE += "font:15px/1.4 'DejaVu Sans Mono';white-space:pre-wrap"
COLOURS = {"pass": "#5ec26a", "fail": "#ff7b72"}


def render(folder: Path) -> list[Path]:
    """Write the pictures to ``folder`` and return their paths."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        trace, page = scratch / "trace.html", scratch / "page.html"
        trace.write_text(f'<body style="{STYLE}">{_trace()}', encoding="utf-8")
        steady = falling(3000, at=3000, seed=1)
        values = enumerate(zip(falling(3000, at=2200), steady, strict=True))
        page_of(jsonl(scratch / "scores.jsonl", [_turn(i, *pair) for i, pair in values]))
        return [
            _screenshot(trace, folder / "trace.png", size="1180,500"),
            _screenshot(page, folder / "report.png", size="1100,1150"),
            _screenshot(_comparison(scratch), folder / "compare.png", size="1100,1500"),
        ]


def _turn(i: int, faithful: float, relevant: float) -> dict[str, Any]:
    """Return the scores of a turn, 300 a day."""
    scores = {"faithfulness": faithful, "answer_relevancy": relevant}
    labels = {name: "pass" if value >= 0.5 else "fail" for name, value in scores.items()}
    cells = {n: {"value": v, "label": labels[n], "threshold": 0.5} for n, v in scores.items()}
    cause = "unsupported" if faithful < 0.5 else "off_topic" if relevant < 0.5 else None
    told = {"outcome": "answered", "cause": cause, "label": "fail" if cause else "pass"}
    return row(i, **cells) | told | {"time": 1_793_491_200 + 288 * i}


def _trace() -> str:
    """Return what the demo prints of turns that fail as HTML, with its labels in colour."""
    done = subprocess.run(
        [sys.executable, "-m", "rag_eval_otel", "demo"], capture_output=True, text=True, check=True
    )
    found = html.escape(done.stdout.split("\n\n")[0])
    for label, colour in COLOURS.items():
        shown = f'<b style="color:{colour}">{label}</b>'
        found = re.sub(rf"^{label}", shown, found, flags=re.MULTILINE)
    return re.sub(r"\[.*\]", rf'<span style="color:{COLOURS["fail"]}">\g<0></span>', found)


def _comparison(folder: Path) -> Path:
    """Write the page of two runs over 200 questions, of which the later one is a little worse."""
    topics = ("a ticket", "the guided tour", "the audio guide", "a locker", "parking")
    before, after = (falling(200, at=at, seed=seed) for seed, at in ((1, 200), (2, 130)))
    files = []
    for name, values, noise in (("before", before, 0.0), ("after", after, 0.3)):
        rows = [
            row(i, faithfulness={"value": (1 - noise) * old + noise * new, "label": "pass"})
            | {"question": f"What does {topics[i % 5]} cost in room {i}?"}
            | {"answer": f"It costs {i % 12 + (3 if noise and new < 0.5 else 0)} euros."}
            for i, (old, new) in enumerate(zip(before, values, strict=True))
        ]
        files.append(str(jsonl(folder / f"{name}.jsonl", rows)))
    page = folder / "compare.html"
    main(["report", *files, "--output", str(page), "--worst", "4"])
    text = page.read_text(encoding="utf-8").replace(f"{folder}/", "")
    page.write_text(text, encoding="utf-8")
    return page


def _screenshot(page: Path, picture: Path, *, size: str) -> Path:
    light = "--blink-settings=preferredColorScheme=1"
    shown = ("--hide-scrollbars", f"--window-size={size}", light, f"--screenshot={picture}")
    browse(page.as_uri(), page.parent, *shown)
    return picture


def browse(url: str, folder: Path, *options: str) -> tuple[str, list[str]]:
    """Open ``url`` in headless Chromium; return its output and the page's console."""
    done = subprocess.run(
        [
            *(program("chromium"), "--headless", "--no-sandbox", "--disable-gpu"),
            *("--disable-dev-shm-usage", f"--user-data-dir={folder / 'profile'}"),
            *("--enable-logging=stderr", "--window-size=1100,2400", *options, url),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


if __name__ == "__main__":
    for written in render(Path(sys.argv[1])):
        print(written)  # noqa: T201  # for people
