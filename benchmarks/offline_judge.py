"""Quality of the offline judge on labelled rows: AUROC, pass rates and CPU.

``python benchmarks/offline_judge.py [FOLDER | FILE.jsonl ...]``

``FOLDER`` holds public sets, which are not committed. `labelled` describes how to get them, and
which rows were used to choose the judge's rules (``dev``) and which were not (``test``). Without
arguments, the invented sets of ``benchmarks/data`` are read. A row of a ``FILE`` is a JSON object
with `question`, `contexts` (a list), `answer` and the labels `context_relevant`, `faithful`,
`answer_relevant` (true, false; null or absent: not labelled).

- AUROC: the probability that a row labelled true scores above one labelled false. A tie counts
  half, an undefined score as 0. There are three baselines: containment (the share of a text's
  content words that the other has), the cosine of TF-IDF vectors, and BM25.
- The share of rows that pass, by the overall label and by each metric of the default set.
- The CPU of the default set for a turn with 495 words of context, made from the first rows.
- RAGChecker: the correlation (Pearson) of a metric's difference between two answers with people's.
"""

from __future__ import annotations

import asyncio
import math
import re
import sys
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import correlation, mean
from typing import TypeAlias

from labelled import Parts, Row, parts, rated_pairs, read

from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.evaluation import aevaluate
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.types import Evaluation, Passage, Sample

HERE = Path(__file__).resolve().parent
SHARED = HERE.parent.parent / "shared" / "data" / "ares_nq_600.jsonl"

LABELS = {
    "faithfulness": "faithful",
    "statement_faithfulness": "faithful",
    "response_groundedness": "faithful",
    "response_supported": "faithful",
    "context_relevance": "context_relevant",
    "statement_context_relevance": "context_relevant",
    "context_relevancy_rubric": "context_relevant",
    "answer_relevancy": "answer_relevant",
    "multi_method_relevancy": "answer_relevant",
    "direct_relevancy": "answer_relevant",
    "answer_relevancy_rubric": "answer_relevant",
}
"""The label that each metric is compared with."""
WORDS = 495
DEFAULT = ("answer_relevancy", "context_relevance", "faithfulness", "response_groundedness")
COMPARED = ("answer_correctness", "answer_accuracy")


def sample_of(row: Row) -> Sample:
    """Return the sample of ``row``, whose contexts may be one text."""
    contexts = row.get("contexts") or ()
    texts = [contexts] if isinstance(contexts, str) else contexts
    return Sample(
        question=row.get("question") or "",
        answer=row.get("answer") or "",
        contexts=tuple(Passage(text=text) for text in texts),
    )


async def measured(samples: Sequence[Sample], metrics: Sequence[str]) -> list[Evaluation]:
    """Return the offline scores of each of ``samples``."""
    judge, embedder = LexicalJudge(), HashingEmbedder()
    return [await aevaluate(sample, metrics, judge=judge, embedder=embedder) for sample in samples]


def auroc(good: Sequence[float], bad: Sequence[float]) -> float:
    """Return the probability that one of ``good`` exceeds one of ``bad``; NaN without values."""
    if not good or not bad:
        return math.nan
    bad = sorted(bad)
    wins = sum((bisect_left(bad, one) + bisect_right(bad, one)) / 2 for one in good)
    return wins / (len(good) * len(bad))


def auroc_of(rows: Sequence[Row], label: str, values: Sequence[float | None]) -> float:
    """Return the AUROC of ``values`` against ``label``; an undefined value counts as 0."""
    marked = [(row.get(label), value or 0.0) for row, value in zip(rows, values, strict=True)]
    good = [value for mark, value in marked if mark is True]
    bad = [value for mark, value in marked if mark is False]
    return auroc(good, bad)


# --- the baselines --------------------------------------------------------------------------------

_STOP = """
a about all also an and any are as at be been but by can could did do does each for from had has
have he her here his how i if in into is it its just many may me more most much must my no not of
on only or our out over shall she should so some such than that the their them then there these
they this those to under up us very was we were what when where which while who whom whose why
will with would you your
"""

Pairs: TypeAlias = Sequence[tuple[str, Sequence[str]]]
"""Pairs of a text to search for and the texts to search in."""


_STOPPED = frozenset(_STOP.split())


def words(text: str) -> list[str]:
    """Return the content words of ``text`` in lower case; all words if there are none."""
    found = re.findall(r"\w+", text.casefold())
    return [word for word in found if word not in _STOPPED] or found


def containment(pairs: Pairs) -> list[float]:
    """Return for each pair the share of the words that the texts contain."""
    return [_contained(set(words(one)), set(words("\n".join(others)))) for one, others in pairs]


def _contained(wanted: set[str], held: set[str]) -> float:
    return len(wanted & held) / len(wanted) if wanted else 0.0


def _rarity(pairs: Pairs) -> Callable[[str], float]:
    """Return a function that weighs a word by its document frequency."""
    texts = [text for _, others in pairs for text in dict.fromkeys(others)]
    counts = Counter(word for text in texts for word in set(words(text)))
    return lambda word: math.log(1 + (len(texts) - counts[word] + 0.5) / (counts[word] + 0.5))


def tf_idf(pairs: Pairs) -> list[float]:
    """Return for each pair the cosine of TF-IDF vectors."""
    rarity = _rarity(pairs)

    def vector(text: str) -> dict[str, float]:
        return {word: count * rarity(word) for word, count in Counter(words(text)).items()}

    return [_cosine(vector(one), vector("\n".join(others))) for one, others in pairs]


def _cosine(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    norms = math.hypot(*one.values()) * math.hypot(*other.values())
    return sum(n * other.get(word, 0.0) for word, n in one.items()) / norms if norms else 0.0


def bm25(pairs: Pairs) -> list[float]:
    """Return for each pair the BM25 of the best text, divided by the maximum possible."""
    rarity = _rarity(pairs)
    usual = mean([len(words(text)) for _, others in pairs for text in others] or [1])

    def weight(wanted: set[str], text: str) -> float:
        found = words(text)
        counts, scale = Counter(found), 1.2 * (0.25 + 0.75 * len(found) / usual)
        return sum(rarity(w) * counts[w] * 2.2 / (counts[w] + scale) for w in wanted)

    best = [
        max((weight(set(words(one)), text) for text in others), default=0.0)
        for one, others in pairs
    ]
    whole = [sum(map(rarity, set(words(one)))) for one, _ in pairs]
    return [found / all_ if all_ else 0.0 for found, all_ in zip(best, whole, strict=True)]


BASELINES = {"containment": containment, "TF-IDF": tf_idf, "BM25": bm25}


def compared(sample: Sample, label: str) -> tuple[str, Sequence[str]]:
    """Return the text and the texts that a baseline for ``label`` compares."""
    if label == "answer_relevant":
        return sample.question, [sample.answer]
    return sample.question if label == "context_relevant" else sample.answer, sample.context_texts


# --- the tables -----------------------------------------------------------------------------------


def _line(name: str, figures: Sequence[float]) -> str:
    cells = "".join(f"{figure:11.3f}" for figure in figures)
    return f"{name:30}{cells}{mean(figures):9.3f}"


def _metrics_for(rows: Sequence[Row]) -> list[str]:
    """Return the metrics that a label of ``rows`` is for, and the default set."""
    labels = {label for label in LABELS.values() if {True, False} <= {r.get(label) for r in rows}}
    return list(dict.fromkeys([*(m for m, of in LABELS.items() if of in labels), *DEFAULT]))


def table(sets: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return the table's lines for the sets of one part: AUROCs, then pass rates."""
    samples = {name: [sample_of(row) for row in rows] for name, rows in sets.items()}
    scores = {
        name: asyncio.run(measured(samples[name], _metrics_for(rows)))
        for name, rows in sets.items()
    }
    lines = []
    for label in dict.fromkeys(LABELS.values()):
        fit = [n for n, rows in sets.items() if {True, False} <= {r.get(label) for r in rows}]
        if not fit:
            continue
        lines += [f"{label + ': AUROC':30}" + "".join(f"{n[:10]:>11}" for n in fit) + "     mean"]
        for metric in (metric for metric, of in LABELS.items() if of == label):
            values = {name: [one[metric].value for one in scores[name]] for name in fit}
            lines += [_line(f"  {metric}", [auroc_of(sets[n], label, values[n]) for n in fit])]
        for told, baseline in BASELINES.items():
            found = {n: baseline([compared(s, label) for s in samples[n]]) for n in fit}
            lines += [_line(f"  ({told})", [auroc_of(sets[n], label, found[n]) for n in fit])]
    return [*lines, *_passes(sets, scores)]


def _passes(
    sets: Mapping[str, Sequence[Row]], scores: Mapping[str, Sequence[Evaluation]]
) -> list[str]:
    lines = [f"{'passes':30}{'rows':>7}{'overall':>9}" + "".join(f"{n[:16]:>18}" for n in DEFAULT)]
    for name, rows in sets.items():
        for label, mark in (("faithful", True), ("faithful", False)):
            found = [
                one for row, one in zip(rows, scores[name], strict=True) if row.get(label) is mark
            ]
            if found:
                told = f"  {name[:16]}, {'' if mark else 'not '}{label}"
                overall = mean(one.label == "pass" for one in found)
                shares = (mean(one[metric].label == "pass" for one in found) for metric in DEFAULT)
                cells = "".join(f"{share:18.2f}" for share in shares)
                lines += [f"{told:30}{len(found):7}{overall:9.2f}{cells}"]
    return lines


def correctness(pairs: Sequence[Row]) -> list[str]:
    """Return the correlation of score differences with people's, as lines of a table."""
    people = ("correctness_label", "completeness_label", "overall_label")
    answers = [
        Sample(question=pair["query"], answer=pair[model]["response"], reference=pair["gt_answer"])
        for pair in pairs
        for model in ("model1", "model2")
    ]
    scores = asyncio.run(measured(answers, COMPARED))
    lines = [f"{'RAGChecker: Pearson':30}" + "".join(f"{name:>20}" for name in people)]
    for metric in COMPARED:
        values = [one[metric].value or 0.0 for one in scores]
        differences = [b - a for a, b in zip(values[::2], values[1::2], strict=True)]
        figures = (correlation(differences, [pair[name] for pair in pairs]) for name in people)
        lines += [f"  {metric:28}" + "".join(f"{figure:20.3f}" for figure in figures)]
    return lines


def cpu(rows: Sequence[Row]) -> str:
    """Return the CPU of a turn with `WORDS` words of context, the minimum of four runs."""
    texts = [text for row in rows for text in sample_of(row).context_texts]
    words = " ".join(texts).split()[:WORDS]
    contexts = [" ".join(words[i : i + 100]) for i in range(0, len(words), 100)]
    passages = tuple(Passage(text=text) for text in contexts)
    turns = [replace(sample_of(row), contexts=passages) for row in rows[:50]]
    taken = []
    for _ in range(4):
        started = time.process_time()
        asyncio.run(measured(turns, DEFAULT))
        taken.append((time.process_time() - started) / len(turns))
    return f"{min(taken) * 1000:.0f} ms of CPU a turn, {len(words)} words of context"


def main(found: Parts, pairs: Sequence[Row] = ()) -> None:
    """Print the tables of each part, and those of the rated pairs."""
    for part, sets in found.items():
        told = ", ".join(f"{name} {len(rows):,}" for name, rows in sets.items())
        print(f"\n{part}: {told} rows", *table(sets), sep="\n")
        print(cpu(next(iter(sets.values()))))
    if pairs:
        print("", *correctness(pairs), sep="\n")


if __name__ == "__main__":
    given = [Path(name) for name in sys.argv[1:]] or [HERE / "data"]
    folders = [path for path in given if path.is_dir()]
    files = [path for path in given if not path.is_dir()]
    for folder in folders:
        main(parts(folder), rated_pairs(folder))
    if files:
        main({"own": {path.stem: read(path) for path in files}})
