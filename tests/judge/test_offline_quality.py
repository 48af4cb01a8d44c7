"""The offline judge tells good turns from bad ones, on labelled rows of several domains."""

import asyncio
import json
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
        metric: benchmark.auroc_of(
            rows, benchmark.LABELS[metric], [one[metric].value for one in scores]
        )
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


def write(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, whose folders need not be there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_public_sets_are_read_from_a_folder(tmp_path: Path) -> None:
    """The files of each set are found wherever they are; what is missing is left out."""
    qa = {"question": "Who?", "knowledge": "Ada sings.", "right_answer": "Ada"}
    write(
        tmp_path / "HaluEval" / "qa_one-turn_data.json",
        json.dumps(qa | {"hallucinated_answer": "Oda"}),
    )
    write(
        tmp_path / "begin" / "wow" / "begin_test_wow.tsv",
        "knowledge\tmessage\tresponse\tbegin_label\n"
        "Ada sings.\tWho?\tAda.\tFully attributable\nAda sings.\tWho?\tHi.\tGeneric\n",
    )
    write(
        tmp_path / "FaithDial" / "audit" / "gold_wow.csv",
        "Knowledge,History,Response,Label\nAda sings.,Who?,Oda,Hallucination\n",
    )
    write(
        tmp_path / "WikiQA-dev.tsv",
        "QuestionID\tQuestion\tSentence\tLabel\nQ1\twho?\tAda.\t1\nQ2\twho?\tOda.\t0\n",
    )
    found = benchmark.parts(tmp_path)
    assert {part: sorted(sets) for part, sets in found.items()} == {
        "dev": ["FaithDial", "HaluEval", "WikiQA"],
        "test": ["BEGIN"],
    }
    assert [row["faithful"] for row in found["dev"]["HaluEval"]] == [True, False]
    assert [row["faithful"] for row in found["test"]["BEGIN"]] == [True]
    assert [row["faithful"] for row in found["dev"]["FaithDial"]] == [False]
    assert [row["answer"] for row in found["dev"]["WikiQA"]] == ["Ada."]
    assert benchmark.rated_pairs(tmp_path) == []


def test_correctness_is_compared_with_people(capsys: pytest.CaptureFixture[str]) -> None:
    """The difference of two answers' scores goes with what people say of the two."""
    pairs = [
        {
            "query": "Who sings?",
            "gt_answer": "Ada sings in Ulm.",
            "model1": {"response": one},
            "model2": {"response": other},
            **dict.fromkeys(("correctness_label", "completeness_label", "overall_label"), label),
        }
        for one, other, label in (("Oda", "Ada in Ulm", 2), ("Ada in Ulm", "Oda", -2))
    ]
    benchmark.main({}, pairs)
    figures = capsys.readouterr().out.splitlines()[-1].split()[1:]
    assert [float(figure) for figure in figures] == pytest.approx([1, 1, 1])


def test_the_sets_are_what_the_generator_makes() -> None:
    """The rows beside a text of facts are those that `make.py` makes of it."""
    for path in OURS:
        text = path.with_suffix(".txt").read_text(encoding="utf-8")
        assert benchmark.read(path) == list(make.rows(list(make.facts(text))))
