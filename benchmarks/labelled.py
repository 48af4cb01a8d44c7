"""Readers of labelled sets that are not committed: rows with human or constructed labels.

Clone these repositories into one folder (only the named files are read, at any depth)::

    git clone https://github.com/RUCAIBox/HaluEval            # qa_one-turn_data, qa_multi-turn_data
    git clone https://github.com/google/BEGIN-dataset         # begin_dev_*.tsv, begin_test_wow.tsv
    git clone https://github.com/McGill-NLP/FaithDial         # data-audit/*/*.csv
    git clone https://github.com/yizhongw/WikiQA-Selection    # WikiQA-dev.tsv, WikiQA-test.tsv
    git clone https://github.com/amazon-science/RAGChecker    # human_labeled_data.json

and add your own ``*.jsonl`` with rows as in `Row`. Missing sets are skipped.

The part ``dev`` of each set, and the invented sets of ``benchmarks/data``, were used to choose the
rules of the offline judge. The part ``test`` was measured afterwards. RAGChecker has no parts and
was used to choose.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

Row: TypeAlias = Mapping[str, Any]
"""``question``, ``contexts`` (texts), ``answer``, and labels ``context_relevant``, ``faithful``,
``answer_relevant``: true, false, or null if unlabelled."""

Parts: TypeAlias = dict[str, dict[str, list[Row]]]

_HALUEVAL_DEV = 250  # the questions of HaluEval in the part ``dev``
_CELLS = 4  # in a row of FaithDial: passage, question, answer, label


def read(path: Path) -> list[Row]:
    """Return the rows of a JSON Lines file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def parts(folder: Path) -> Parts:
    """Return the rows of the sets in ``folder``, by part and name of the set."""
    found: Parts = {
        "dev": {
            "HaluEval": [row for row in _halueval(folder) if row["id"] < _HALUEVAL_DEV],
            "BEGIN": list(_begin(folder, "begin_dev_*.tsv")),
            "FaithDial": list(_faithdial(folder, lambda name: "wow" in name)),
            "WikiQA": _wikiqa(folder, "WikiQA-dev.tsv"),
        },
        "test": {
            "HaluEval": [row for row in _halueval(folder) if row["id"] >= _HALUEVAL_DEV],
            "BEGIN": list(_begin(folder, "begin_test_wow.tsv")),
            "FaithDial": list(_faithdial(folder, lambda name: "wow" not in name)),
            "WikiQA": _wikiqa(folder, "WikiQA-test.tsv"),
        },
        "own": {path.stem: read(path) for path in sorted(folder.glob("*.jsonl"))},
    }
    full = {part: {name: rows for name, rows in of.items() if rows} for part, of in found.items()}
    return {part: of for part, of in full.items() if of}


def rated_pairs(folder: Path) -> list[Row]:
    """Return RAGChecker's pairs of answers with people's comparisons."""
    paths = sorted(folder.rglob("human_labeled_data.json"))
    return json.loads(paths[0].read_text(encoding="utf-8")) if paths else []


def _halueval(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a right answer and two invented answers for each question."""
    for turns in ("one", "multi"):
        for path in sorted(folder.rglob(f"qa_{turns}-turn_data.json")):
            for number, row in enumerate(read(path)):
                of = {"id": number, "question": row["question"], "contexts": [row["knowledge"]]}
                if turns == "one":
                    yield of | {"answer": row["right_answer"], "faithful": True}
                yield of | {"answer": row["hallucinated_answer"], "faithful": False}


def _table(path: Path, *, delimiter: str) -> Iterable[dict[str, str]]:
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file, delimiter=delimiter, quoting=quoting)


def _begin(folder: Path, pattern: str) -> Iterator[Row]:
    seen = set()
    for path in sorted(folder.rglob(pattern)):
        for row in _table(path, delimiter="\t"):
            key = (row["knowledge"], row["response"])
            if row["begin_label"] != "Generic" and key not in seen:
                seen.add(key)
                yield {
                    "question": row["message"] or "",
                    "contexts": [row["knowledge"]],
                    "answer": row["response"],
                    "faithful": row["begin_label"].startswith("Fully"),
                }


def _faithdial(folder: Path, is_wanted: Callable[[str], bool]) -> Iterator[Row]:
    seen = set()
    for path in sorted(folder.glob("FaithDial/**/*.csv")):
        for row in _table(path, delimiter=",") if is_wanted(path.name) else ():
            knowledge, question, answer, label = list(row.values())[:_CELLS]
            is_labelled = label and "generic" not in label.lower()
            key = (knowledge, answer)
            if is_labelled and knowledge.strip() and answer.strip() and key not in seen:
                seen.add(key)
                faithful = "halluc" not in label.lower()
                yield {
                    "question": question,
                    "contexts": [knowledge],
                    "answer": answer,
                    "faithful": faithful,
                }


def _wikiqa(folder: Path, name: str) -> list[Row]:
    """Return the sentences of the questions that have an answering sentence."""
    rows = [
        {
            "id": row["QuestionID"],
            "question": row["Question"],
            "contexts": [row["Sentence"]],
            "answer": row["Sentence"],
            "answer_relevant": row["Label"] == "1",
            "context_relevant": row["Label"] == "1",
        }
        for path in sorted(folder.rglob(name))[:1]
        for row in _table(path, delimiter="\t")
    ]
    answered = {row["id"] for row in rows if row["answer_relevant"]}
    return [row for row in rows if row["id"] in answered]
