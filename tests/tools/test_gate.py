"""The gate of a release: its power, its false alarms, and the reasons it gives."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.tools.compare import (
    Entry,
    Gate,
    GateCheck,
    GateResult,
    Pairs,
    difference_verdict,
)
from rag_eval_otel.tools.rows import Row
from rag_eval_otel.tools.stats import Summary
from rag_eval_otel.types import Evaluation, Label, Sample, Score
from score_files import jsonl
from support import benchmark

ROOT = Path(__file__).parents[2]


SIMULATION = benchmark("gate")
"""The script whose figures the docs quote."""


@pytest.mark.slow
def test_a_regression_fails_and_an_unchanged_run_passes() -> None:
    """A fall by 0.1 over 200 rows fails in at least 95 of 100 seeds, no fall in at most 2."""
    worse, unchanged = SIMULATION.simulated(100)
    assert worse >= 95
    assert unchanged <= 2


def test_the_docs_have_the_rows_that_are_needed() -> None:
    """The table in the docs is the one that the script prints."""
    assert SIMULATION.table() in (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=30))
def test_a_run_that_is_nowhere_lower_passes(values: list[float]) -> None:
    """A run with no lower score in any row passes at every level."""
    assert difference_verdict(paired(values, values), drop=0, level=0.4).passed
    assert difference_verdict(paired([v + 0.1 for v in values], values), drop=0, level=0.4).passed


def scored(value: float | None) -> Score:
    failed: dict[str, Any] = {"status": "undefined", "reason": "no_claims"}
    return Score(name="m", value=value, **({} if value is not None else failed))


def paired(here: Sequence[float | None], there: Sequence[float | None]) -> Pairs:
    return Pairs(
        name="m",
        pairs=[
            (Entry(i, "", scored(a)), Entry(i, "", scored(b)))
            for i, (a, b) in enumerate(zip(here, there, strict=True))
        ],
    )


@pytest.mark.parametrize(("rows", "passes"), [(2, True), (6, True), (7, False), (50, False)])
def test_few_rows_prove_nothing(rows: int, passes: bool) -> None:  # noqa: FBT001
    """Equal falls have no spread, but with six rows their direction may be chance (1 in 64)."""
    pairs = paired([0.5] * rows, [0.9] * rows)
    assert difference_verdict(pairs, drop=0, level=0.01).passed is passes


def test_a_drop_may_be_tolerated() -> None:
    """A fall by .1 passes if .2 is tolerated, and fails if .05 is."""
    pairs = paired([0.8, 0.7] * 20, [0.9, 0.8] * 20)
    assert difference_verdict(pairs, drop=0.2, level=0.01).passed
    found = difference_verdict(pairs, drop=0.05, level=0.01)
    assert not found.passed
    assert found.condition == "m no worse by more than 0.05"


def test_a_rise_is_worse_if_low_scores_are_good() -> None:
    """The test of a difference has two sides, and each metric one of them."""
    rise = paired([0.9] * 20, [0.5] * 20)
    assert difference_verdict(rise, drop=0, level=0.01).passed
    assert not difference_verdict(rise, drop=0, level=0.01, is_low=True).passed
    assert difference_verdict(rise, drop=0.5, level=0.01, is_low=True).passed
    fall = paired([0.5] * 20, [0.9] * 20)
    assert difference_verdict(fall, drop=0, level=0.01, is_low=True).passed


@pytest.mark.parametrize(
    ("lost", "gained", "passes"), [(9, 0, True), (10, 0, False), (10, 3, True)]
)
def test_lost_scores_fail_too(lost: int, gained: int, passes: bool) -> None:  # noqa: FBT001
    """Answers that became empty have no faithfulness, and so no lower one."""
    here = [None] * lost + [1.0] * gained + [1.0] * 100
    there = [1.0] * lost + [None] * gained + [1.0] * 100
    found = difference_verdict(paired(here, there), drop=0, level=0.01)
    assert found.passed is passes
    assert f"rows with a score only in the baseline: {lost}, only in this run" in " ".join(
        found.why
    )


def row(index: int, value: float | None, label: Label | None = "pass", **fields: Any) -> Row:
    status = "undefined" if value is None else "ok"
    fields = {"status": status, "reason": "no_claims" if value is None else None, **fields}
    score = Score(name="m", value=value, label=label, version="1", **fields)
    sample = Sample(question=f"Question {index}?", answer=str(value))
    return Row(index=index, sample=sample, evaluation=Evaluation(scores=(score,)))


def checked(gate: Gate, rows: Sequence[Row]) -> GateResult:
    check, summary = GateCheck(gate, {"m": (0, 1)}), Summary(["m"])
    for one in rows:
        summary.add(one.evaluation)
        check.add(one)
    return check.result(summary.totals())


def baseline(path: Path, values: Sequence[float | None], **fields: Any) -> Path:
    return jsonl(path, [row(i, value, **fields).to_dict() for i, value in enumerate(values)])


def test_means_and_pass_rates_are_what_was_measured() -> None:
    """The mean decides, and a remark says whether other rows may give another result."""
    rows = [row(i, v, "pass" if v >= 0.5 else "fail") for i, v in enumerate([0.4, 0.6, 0.8])]
    result = checked(Gate(means={"m": 0.6}, pass_rate=0.7), [*rows, row(3, None, None)])
    mean, rate = result.verdicts
    assert (mean.passed, mean.found, mean.rows) == (True, pytest.approx(0.6), 3)
    assert mean.why[0] == "1 row without a score: not counted"
    assert "the interval contains 0.6" in mean.why[1]
    assert (rate.passed, rate.found, rate.rows) == (False, pytest.approx(2 / 3), 3)
    assert rate.why[0] == "1 row without a label: not counted"
    assert not result.passed
    text = repr(result).splitlines()
    assert text[0] == "gate: failed, 1 of 2 conditions not met"
    assert [line.split()[-1] for line in text[1:4]] == ["result", "pass", "FAIL"]
    assert json.loads(json.dumps(result.to_dict()))["conditions"][1]["kind"] == "pass rate"


def test_rounding_fails_no_mean() -> None:
    """A mean that equals the bound passes, although the sum of its floats may be a little less."""
    values = [0.7, 0.9, 0.1, 0.2, 0.3]
    result = checked(Gate(means={"m": sum(values) / 5}), [row(i, v) for i, v in enumerate(values)])
    assert result.passed


@pytest.mark.parametrize("rows", [[], [row(0, None, None)]])
def test_nothing_measured_passes_no_gate(rows: list[Row], tmp_path: Path) -> None:
    """Without rows, or without a score, each condition fails."""
    path = baseline(tmp_path / "scores.jsonl", [0.5])
    gate = Gate(means={"m": 0.0}, pass_rate=0.0, no_worse={"m": 0.0}, baseline=path)
    result = checked(gate, rows)
    assert [one.passed for one in result.verdicts] == [False] * 3
    assert [one.found for one in result.verdicts] == [None] * 3


def test_answers_may_differ_from_the_baseline(tmp_path: Path) -> None:
    """Rows are paired by question in any order; other rows are counted, and do not count."""
    path = baseline(tmp_path / "scores.jsonl", [0.9] * 40)
    gate = Gate(no_worse={"m": 0.0}, baseline=str(path))
    rows = [row(i, 0.5 + i / 1000) for i in range(10, 50)]
    result = checked(gate, rows[::-1])
    (verdict,) = result.verdicts
    assert (verdict.passed, verdict.rows) == (False, 30)
    assert verdict.found == pytest.approx(0.5245 - 0.9)
    assert "rows only in the baseline: 10, only in this run: 10" in verdict.why[-1]


def test_the_level_is_shared_by_all_comparisons(tmp_path: Path) -> None:
    """Seven lower rows are enough for one metric at 1 %, but not for each of two metrics."""
    rows = [row(i, 0.5) for i in range(7)]
    other = Score(name="n", value=1.0, version="1")
    both = [replace(one, evaluation=Evaluation(scores=(one["m"], other))) for one in rows]
    path = jsonl(tmp_path / "scores.jsonl", [one.to_dict() for one in both])
    for names, passes in ((["m"], False), (["m", "n"], True)):
        gate = Gate(no_worse=dict.fromkeys(names, 0.0), baseline=path)
        check, summary = GateCheck(gate, {"m": (0, 1), "n": (0, 1)}), Summary(["m", "n"])
        for one in both:
            low = Score(name="m", value=0.1, version="1")
            check.add(replace(one, evaluation=Evaluation(scores=(low, other))))
        assert check.result(summary.totals()).passed is passes


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, r"there is no baseline .*evaluate --output"),
        ("", "has no scores"),
        ('{"question": "q", "answer": "a"}\n', "has no scores; .*Found: question, answer"),
        ('{"row": 0, "scores": {"other": 1}}\n', "has no scores of m; it has other"),
        ("{", "is not JSON"),
    ],
)
def test_a_baseline_that_cannot_be_used(content: str | None, told: str, tmp_path: Path) -> None:
    """It is refused before a judge is asked."""
    path = tmp_path / "scores.jsonl"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=told):
        GateCheck(Gate(no_worse={"m": 0.0}, baseline=path), {"m": (0, 1)})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"level": 0.0}, "level must be above 0"),
        ({"pass_rate": 1.5}, "pass rate must be from 0 to 1, not 1.5"),
        ({"no_worse": {"m": -0.1}, "baseline": Path("x")}, "must be 0 or more"),
        ({"no_worse": {"m": 0.1}}, "need each other"),
    ],
)
def test_conditions_out_of_range_are_refused(options: dict[str, Any], told: str) -> None:
    """Each message says what is allowed."""
    with pytest.raises(ConfigError, match=told):
        Gate(**options)


def test_an_unknown_metric_is_refused() -> None:
    """A condition on a misspelt name would never fail."""
    with pytest.raises(ConfigError, match=r"names mm, .* metrics that are measured: m$"):
        GateCheck(Gate(means={"mm": 0.5}), {"m": (0, 1)})
