"""The offline judge tells good turns from bad ones, on labelled rows of several domains."""

import asyncio
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "benchmarks" / "data")]

import make  # noqa: E402  # found by the line above
import offline_judge as benchmark  # noqa: E402  # same

OURS = sorted((ROOT / "benchmarks" / "data").glob("*.jsonl"))
LEAST = {"context_relevance": 0.96, "faithfulness": 0.93, "answer_relevancy": 0.82}
"""Below what the invented sets give: one row of theirs is up to 0.07."""
LEAST_ON_SHARED = {"context_relevance": 0.99, "faithfulness": 0.97, "answer_relevancy": 0.75}


def missed(path: Path, least: Mapping[str, float]) -> dict[str, float]:
    """Return the AUROC of those metrics that do not reach ``least`` on the rows of ``path``."""
    rows = benchmark.read(path)
    samples = [benchmark.sample_of(row) for row in rows]
    scores = asyncio.run(benchmark.measured(samples, list(least)))
    found = {
        metric: benchmark.auroc_of(rows, benchmark.LABELS[metric], [s[metric] for s in scores])
        for metric in least
    }
    return {metric: figure for metric, figure in found.items() if not figure >= least[metric]}


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_good_turns_score_above_bad_ones(path: Path) -> None:
    """On every invented domain, each score tells what it is about."""
    assert not missed(path, LEAST)


@pytest.mark.skipif(not benchmark.SHARED.exists(), reason="the shared data is not there")
def test_real_questions_are_judged_well() -> None:
    """On questions that people asked, the scores reach what is promised."""
    assert not missed(benchmark.SHARED, LEAST_ON_SHARED)


def test_the_auroc_is_the_chance_to_be_above() -> None:
    """A tie counts half; without one of the two sides there is none."""
    assert benchmark.auroc([1.0, 0.5], [0.5, 0.0]) == pytest.approx(0.875)
    assert math.isnan(benchmark.auroc([], [1.0]))


def test_rows_may_lack_labels_and_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A label that no row has gets no line; null answers and single contexts are read."""
    rows = [
        {"question": "Who sings?", "contexts": "Larks sing.", "answer": "Ada", "faithful": False},
        {"question": "What do larks do?", "contexts": ["Larks sing."], "faithful": True,
         "answer": "Larks sing."},
        {"question": "Who sings?", "answer": None},
    ]  # fmt: skip
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    benchmark.main([path])
    printed = capsys.readouterr().out
    assert "faithfulness" in printed
    assert "words contained" in printed
    assert "answer_relevancy" not in printed


def test_the_sets_are_what_the_generator_makes() -> None:
    """The rows beside a text of facts are those that `make.py` makes of it."""
    for path in OURS:
        text = path.with_suffix(".txt").read_text(encoding="utf-8")
        assert benchmark.read(path) == list(make.rows(list(make.facts(text))))
