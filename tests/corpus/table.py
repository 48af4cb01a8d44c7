"""Write the corpus's verdicts into docs/instrumentations.md.

    CORPUS_VERDICTS=/tmp/verdicts nox -s callback openinference traceloop langfuse genai ...
    PYTHONPATH=tests python -m corpus.table /tmp/verdicts

Each file of the folder is `<frameworks>--<way of capture>.json`, as `corpus.run --json` writes it.
"""

import json
import sys
from collections import Counter
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "instrumentations.md"
BEGIN, END = "<!-- corpus: begin -->", "<!-- corpus: end -->"
KINDS = ("exact", "refused", "off span", "wrong", "false positive", "unknowable")


def row(path: Path) -> str:
    frameworks, _, via = path.stem.partition("--")
    rows = json.loads(path.read_text(encoding="utf-8"))
    counts = Counter(one["verdict"] for one in rows)
    knowable = sum(counts[kind] for kind in KINDS[:-1])
    share = f"{counts['exact'] / knowable:.0%}" if knowable else "-"
    bad = counts["wrong"] + counts["false positive"]
    refused = counts["refused"] + counts["off span"]
    cells = (counts["exact"], refused, bad, counts["unknowable"])
    name = frameworks.replace("+", ", ")
    return f"| {name} | {via} | {' | '.join(map(str, cells))} | {share} |"


def table(folder: Path) -> str:
    head = (
        "| applications | way of capture | exact | refused | wrong | not recorded | exact of the rest |\n"
        "|---|---|--:|--:|--:|--:|--:|\n"
    )
    return head + "\n".join(map(row, sorted(folder.glob("*--*.json"))))


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(Path(sys.argv[1]))}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
