"""How well the offline judge tells good turns from bad ones: AUROC against labelled rows.

``python benchmarks/offline_judge.py [FILE ...]``

A row is a JSON object with `question`, `contexts` (a list), `answer` (may be null) and the labels
`context_relevant`, `faithful`, `answer_relevant` (true, false; null or absent: not labelled). The
AUROC is the chance that a row labelled true scores above one labelled false, a tie counting half. A
score that is undefined, such as the faithfulness of a refusal, counts as 0, the lowest. Below the
metrics of a label stand two baselines on the same rows: the share of words contained, and the
cosine of character trigrams. Nothing but the package is needed; without a file it reads
``../shared/data/ares_nq_600.jsonl`` and what is in ``benchmarks/data``.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.evaluation import evaluate
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.types import Passage, Sample

Row: TypeAlias = Mapping[str, Any]

HERE = Path(__file__).resolve().parent
SHARED = HERE.parent.parent / "shared" / "data" / "ares_nq_600.jsonl"

LABELS = {
    "context_relevance": "context_relevant",
    "statement_context_relevance": "context_relevant",
    "context_relevancy_rubric": "context_relevant",
    "faithfulness": "faithful",
    "statement_faithfulness": "faithful",
    "response_groundedness": "faithful",
    "response_supported": "faithful",
    "answer_relevancy": "answer_relevant",
    "direct_relevancy": "answer_relevant",
    "multi_method_relevancy": "answer_relevant",
    "answer_relevancy_rubric": "answer_relevant",
}
"""A metric, and the label it is measured against."""


def read(path: Path) -> list[Row]:
    """Return the rows of a JSON Lines file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def sample_of(row: Row) -> Sample:
    """Return the turn of ``row``; its contexts may be one text."""
    contexts = row.get("contexts") or ()
    texts = [contexts] if isinstance(contexts, str) else contexts
    return Sample(
        question=row.get("question") or "",
        answer=row.get("answer") or "",
        contexts=tuple(Passage(text=text) for text in texts),
    )


async def measured(
    samples: Sequence[Sample], metrics: Sequence[str] = tuple(LABELS)
) -> list[dict[str, float | None]]:
    """Return the offline scores of each of ``samples``, by metric."""
    judge, embedder = LexicalJudge(), HashingEmbedder()
    found = []
    for sample in samples:
        evaluation = await evaluate(sample, metrics, judge=judge, embedder=embedder)
        found.append({score.name: score.value for score in evaluation.scores})
    return found


def auroc(good: Sequence[float], bad: Sequence[float]) -> float:
    """Return the chance that one of ``good`` is above one of ``bad``; NaN where one is empty."""
    if not good or not bad:
        return math.nan
    wins = sum((a > b) + (a == b) / 2 for a in good for b in bad)
    return wins / (len(good) * len(bad))


# --- the baselines --------------------------------------------------------------------------------


def words(text: str) -> list[str]:
    """Return the words of ``text``, in small letters."""
    return re.findall(r"\w+", text.casefold())


def contained(one: str, other: str) -> float:
    """Return the share of the words of ``one`` that ``other`` has."""
    wanted = set(words(one))
    return len(wanted & set(words(other))) / len(wanted) if wanted else 0.0


def trigrams(one: str, other: str) -> float:
    """Return the cosine of the character trigrams of two texts."""
    a, b = _trigrams(one), _trigrams(other)
    norms = math.hypot(*a.values()) * math.hypot(*b.values())
    return sum(n * b[gram] for gram, n in a.items()) / norms if norms else 0.0


def _trigrams(text: str) -> Counter[str]:
    text = f" {text.casefold()} "
    return Counter(text[i : i + 3] for i in range(len(text) - 2))


BASELINES = {"words contained": contained, "trigram cosine": trigrams}


def compared(sample: Sample, label: str) -> tuple[str, str]:
    """Return the two texts that a baseline for ``label`` compares."""
    contexts = "\n".join(sample.context_texts)
    if label == "context_relevant":
        return sample.question, contexts
    return sample.answer, sample.question if label == "answer_relevant" else contexts


# --- the table ------------------------------------------------------------------------------------


def auroc_of(rows: Sequence[Row], label: str, values: Sequence[float | None]) -> float:
    """Return the AUROC of ``values`` against ``label``; what is undefined counts as 0."""
    marked = [(row.get(label), value or 0.0) for row, value in zip(rows, values, strict=True)]
    good = [value for mark, value in marked if mark is True]
    bad = [value for mark, value in marked if mark is False]
    return auroc(good, bad)


def line(name: str, rows: Sequence[Row], values: Sequence[float | None], *, label: str) -> str:
    """Return one line of the table: counts, the AUROC, and that of each of two random halves."""
    marks = [row.get(label) for row in rows]
    undefined = sum(
        value is None for mark, value in zip(marks, values, strict=True) if mark is not None
    )
    order = random.Random(1).sample(range(len(rows)), len(rows))  # the same halves
    halves = [order[: len(rows) // 2], order[len(rows) // 2 :]]
    figures = [
        auroc_of([rows[i] for i in some], label, [values[i] for i in some])
        for some in (range(len(rows)), *halves)
    ]
    counts = f"{marks.count(True):5}{marks.count(False):5}{undefined:7}"
    return f"{name:30}{counts}" + "".join(f"{figure:9.3f}" for figure in figures)


def table(rows: Sequence[Row]) -> list[str]:
    """Return the lines for ``rows``: the metrics, then the baselines, for each label there is."""
    samples = [sample_of(row) for row in rows]
    scores = asyncio.run(measured(samples))
    lines = []
    for label in dict.fromkeys(LABELS.values()):
        if not {True, False} <= {row.get(label) for row in rows}:
            continue
        for metric in (metric for metric, of in LABELS.items() if of == label):
            lines += [line(metric, rows, [score[metric] for score in scores], label=label)]
        for name, of in BASELINES.items():
            values = [of(*compared(sample, label)) for sample in samples]
            lines += [line(f"  {name}", rows, values, label=label)]
    return lines


def main(paths: Sequence[Path]) -> None:
    """Print a table for each file."""
    for path in paths:
        rows = read(path)
        print(f"\n{path.name}: {len(rows)} rows")
        print(f"{'':30}{'good':>5}{'bad':>5}{'undef.':>7}{'AUROC':>9}{'one half':>9}{'other':>9}")
        print("\n".join(table(rows)))


if __name__ == "__main__":
    given = [Path(name) for name in sys.argv[1:]]
    ours = sorted((HERE / "data").glob("*.jsonl"))
    main(given or [*([SHARED] if SHARED.exists() else []), *ours])
