"""Thresholds and the overall label as configuration: options, files, commands, spans and events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rag_eval_otel.config import Config
from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.evaluation import aevaluate
from rag_eval_otel.export.attributes import score_attributes
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.judge.replies import Useful, Verdict
from rag_eval_otel.live.scorer import build_measurement
from rag_eval_otel.metrics import Correctness, with_thresholds
from rag_eval_otel.thresholds import read_thresholds, written_thresholds
from rag_eval_otel.tools.cli import main
from rag_eval_otel.tools.dataset import evaluate_dataset
from rag_eval_otel.tools.rules import Target, render
from rag_eval_otel.types import Ending, Evaluation, Sample, Score

SAMPLE = Sample(
    question="How many days of leave are there?",
    contexts=["There are 27 days of leave."],
    answer="There are 27 days of leave in summer.",
)


def scored(**options: Any) -> Evaluation:
    return asyncio.run(build_measurement(Config(**options)).of(SAMPLE))


def write(folder: Path, text: str) -> Path:
    path = folder / "thresholds.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_threshold_decides_the_label_and_nothing_else() -> None:
    """The same value passes or fails; the version, which says what was measured, stays."""
    low, high = (scored(thresholds={"faithfulness": value}) for value in (0.1, 1.0))
    assert low["faithfulness"].value == high["faithfulness"].value
    assert [one["faithfulness"].label for one in (low, high)] == ["pass", "fail"]
    assert [one["faithfulness"].threshold for one in (low, high)] == [0.1, 1.0]
    assert low["faithfulness"].version == high["faithfulness"].version
    assert [low.label, high.label] == ["pass", "fail"]


def test_the_threshold_stands_on_the_span() -> None:
    """Beside the score, as a float; a score without a threshold has none."""
    scores = (
        Score(name="mrr", value=1.0, label="pass", threshold=1),
        Score(name="ndcg", value=1.0),
    )
    found = score_attributes(Ending(evaluation=Evaluation(scores=scores)))
    assert found["rag.evaluation.mrr.threshold"] == 1.0
    assert isinstance(found["rag.evaluation.mrr.threshold"], float)
    assert "rag.evaluation.ndcg.threshold" not in found


@pytest.mark.parametrize(
    "given",
    [
        lambda _: {"faithfulness": 0.8, "mrr": 1},
        lambda _: "faithfulness = 0.8, mrr=1,",
        lambda folder: write(folder, "[thresholds]\nfaithfulness = 0.8\nmrr = 1\n"),
        lambda folder: str(write(folder, "[thresholds]\nfaithfulness = 0.8\nmrr = 1\n")),
    ],
    ids=["dict", "text", "path", "path as text"],
)
def test_thresholds_are_read_in_every_form(given: Callable[[Path], object], tmp_path: Path) -> None:
    """A mapping, pairs, and a file come to the same."""
    config = Config(thresholds=given(tmp_path))
    assert config.thresholds == {"faithfulness": 0.8, "mrr": 1.0}


@pytest.mark.parametrize(
    "given",
    [0.8, ["faithfulness"], {"mrr": "high"}, {"mrr": True}, {"mrr": float("nan")}, "mrr", "mrr=x",
     {"mrr": None}, "mrr=inf"],
)  # fmt: skip
def test_what_is_no_threshold_is_refused(given: object) -> None:
    """The error names the option and what it should be."""
    with pytest.raises(ConfigError, match=r"thresholds \(RAG_EVAL_THRESHOLDS\)"):
        Config(thresholds=given)


@pytest.mark.parametrize(
    "text",
    ["faithfulness = 0.8", "[thresholds", "[thresholds]\nmrr = 'x'", "[other]\nmrr = 1", "",
     "[thresholds]\nmrr = 1\n[more]\n", "thresholds = 3"],
)  # fmt: skip
def test_a_broken_file_is_refused_by_name(text: str, tmp_path: Path) -> None:
    """Whatever is wrong with it, the error says which file."""
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=r"thresholds\.toml"):
        Config(thresholds=str(path))
    with pytest.raises(ConfigError, match=r"nowhere\.toml cannot be read"):
        read_thresholds(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    ("thresholds", "told"),
    [
        ({"faithfulnes": 0.8}, "did you mean faithfulness"),
        ({"mrr": 0.8}, "not measured"),
        ({"faithfulness": 1.5}, "must be from 0 to 1, not 1.5"),
        ({"faithfulness": -0.1}, "must be from 0 to 1"),
    ],
)
def test_a_threshold_must_fit_a_metric_that_is_measured(
    thresholds: dict[str, float], told: str
) -> None:
    """Live, in a dataset run: before anything is asked."""
    with pytest.raises(ConfigError, match=told):
        build_measurement(Config(thresholds=thresholds))
    with pytest.raises(ConfigError, match=told):
        evaluate_dataset(
            [SAMPLE], judge=LexicalJudge(), embedder=HashingEmbedder(), thresholds=thresholds
        )


def test_the_range_of_a_threshold_is_that_of_the_metric() -> None:
    """Grades from 1 to 5 pass from one of these; a metric without a threshold takes none."""
    (graded,) = with_thresholds([Correctness()], {"correctness": 3})
    assert isinstance(graded, Correctness)
    assert graded.threshold == 3
    with pytest.raises(ConfigError, match="from 1 to 5"):
        with_thresholds([Correctness()], {"correctness": 0.8})

    class Own:
        name = "own"

    with pytest.raises(ConfigError, match="no threshold that could be set"):
        with_thresholds([Own()], {"own": 0.8})  # type: ignore[list-item]  # that is the point


def test_the_offline_label_goes_by_what_tells_good_from_bad() -> None:
    """A metric whose label says little does not spoil it; metrics without a judge count."""
    thresholds = {"answer_relevancy": 1.0}
    assert scored(thresholds=thresholds).label == "pass"
    assert scored(thresholds=thresholds, metrics=("answer_relevancy",)).label == "fail"
    found = asyncio.run(
        aevaluate(
            Sample(question="?", retrieved_ids=["a"], relevant_ids=["b"]),
            ["context_relevance", "hit_rate"],
            judge=LexicalJudge(),
            embedder=HashingEmbedder(),
        )
    )
    assert found.label_metrics is not None
    assert "hit_rate" in found.label_metrics


def test_the_overall_label_goes_by_the_metrics_that_are_named() -> None:
    """Those alone; one that is not measured is refused."""
    failing = {"faithfulness": 1.0}
    assert scored(thresholds=failing, label_metrics=("faithfulness",)).label == "fail"
    assert scored(thresholds=failing, label_metrics=("context_relevance",)).label == "pass"
    with pytest.raises(ConfigError, match="overall label of 'mrr', which is not measured"):
        scored(label_metrics=("mrr",))
    with pytest.raises(ConfigError, match="label_metrics must be a sequence of names"):
        Config(label_metrics="faithfulness")  # type: ignore[arg-type]  # that is the point


def test_scores_from_a_cache_are_labelled_anew(tmp_path: Path) -> None:
    """Another threshold asks for nothing, and changes the labels."""
    cache = tmp_path / "scores.cache"
    labels = [
        evaluate_dataset(
            [SAMPLE],
            ["faithfulness"],
            judge=LexicalJudge(),
            embedder=HashingEmbedder(),
            cache=cache,
            thresholds={"faithfulness": threshold},
        )
        .rows[0]
        .evaluation.label
        for threshold in (0.1, 1.0)
    ]
    assert labels == ["pass", "fail"]


def number(_: Sample) -> float:
    return 0.6


class Own:
    """A metric of one's own, with a threshold that it does not label by."""

    name, threshold, needs, asks = "own", 0.9, frozenset[str](), ()

    async def measure(self, *_: object) -> Score:
        return Score(name="own", value=0.6, label="pass")


def test_calibrate_writes_what_the_other_commands_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The threshold that fits labels and is in rules; what has none is named."""
    rows = [{"faithfulness": i / 20, "faithfulness.human": int(i >= 14), "mrr": 1, "mrr.human": 1}
            for i in range(20)]  # fmt: skip
    labelled, found = tmp_path / "labelled.jsonl", tmp_path / "thresholds.toml"
    labelled.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert main(["calibrate", str(labelled), "--write", str(found)]) == 0
    assert "no threshold for mrr" in capsys.readouterr().err
    assert read_thresholds(found) == {"faithfulness": pytest.approx(0.675)}
    assert "chosen on 20 labelled rows" in found.read_text("utf-8")

    samples, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    samples.write_text(
        json.dumps({"question": "Who?", "contexts": ["Ada."], "answer": "Ada sings."}), "utf-8"
    )
    options = ["--metrics", "faithfulness,context_relevance", "--output", str(out)]
    options += ["--thresholds", str(found), "--threshold", "context_relevance=0"]
    assert main(["evaluate", str(samples), *options, "--label-metrics", "context_relevance"]) == 0
    row = json.loads(out.read_text("utf-8"))
    assert (row["scores"]["context_relevance"]["label"], row["label"]) == ("pass", "pass")
    capsys.readouterr()

    assert main(["rules", "--thresholds", str(found)]) == 0
    printed = capsys.readouterr().out
    assert 'le="0.65",gen_ai_evaluation_name="faithfulness"' in printed
    assert 'rag_evaluation_score_count{gen_ai_evaluation_name="faithfulness"}) * 0.675' in printed


def test_rules_take_other_scales_and_metrics_of_ones_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A grade of 4 of 5 is .75 of the histogram; only the metrics named wake anybody."""
    options = ["--threshold", "correctness=4", "--threshold", "own=0.33"]
    assert main(["rules", *options, "--label-metrics", "own,faithfulness"]) == 0
    printed = capsys.readouterr().out
    assert 'le="0.75",gen_ai_evaluation_name="correctness"' in printed
    assert 'le="0.35",gen_ai_evaluation_name="own"' in printed
    assert 'gen_ai_evaluation_name!~"own|faithfulness"' in printed
    assert "rules --slo 0.9 --tau 0.5 --every 100000 --threshold correctness=0.75" in printed
    usual = render(Target())
    assert 'rag_evaluation_judge="lexical",gen_ai_evaluation_name=~"' in usual
    assert "answer_relevancy" in usual
    assert "context_relevance|" not in usual


@pytest.mark.parametrize(("probability", "verdict"), [(0.0, 0), (0.49, 0), (0.5, 1), (1.0, 1)])
def test_a_verdict_may_carry_a_probability(probability: float, verdict: int) -> None:
    """From a half on it is a yes; one that is told as 0 or 1 is as likely as that."""
    graded = Verdict.graded(probability, index=1)
    assert (graded.verdict, graded.probability, graded.is_graded) == (verdict, probability, True)
    plain = Useful(verdict=1)
    assert (plain.probability, plain.is_graded) == (1.0, False)
    with pytest.raises(ValueError, match="must be from 0 to 1"):
        Verdict.graded(1.2, index=1)


def test_written_thresholds_can_be_read(tmp_path: Path) -> None:
    """Names of a user's own metrics may have spaces, dots and quotes."""
    names = ("faithfulness", "my metric", "faithfulness.full", 'the "best"')
    text = written_thresholds((name, 0.25, "why") for name in names)
    assert read_thresholds(write(tmp_path, text)) == dict.fromkeys(names, 0.25)
