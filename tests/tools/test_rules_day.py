"""A day of good answers raises no page; a day with a third of bad answers does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from e2e.programs import checked, program
from tools.day import Traffic, scenario, series_of, traffic

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
RULES = ROOT / "collector" / "prometheus" / "rules.yaml"
THIRD = 1 / 3


@pytest.fixture(scope="module")
def rows() -> Traffic:
    """Score the labelled rows of all invented sets, offline with default options."""
    files = sorted((ROOT / "benchmarks" / "data").glob("*.jsonl"))
    texts = [path.read_text(encoding="utf-8") for path in files]
    return traffic(json.loads(line) for text in texts for line in text.splitlines())


@pytest.mark.parametrize("bad", [0.0, THIRD], ids=["healthy", "a third made up"])
def test_only_a_day_of_bad_answers_raises_a_page(rows: Traffic, bad: float, tmp_path: Path) -> None:
    """The shipped rules run on the counts of the real instruments."""
    text = scenario(series_of(rows.day(bad)), rules=str(RULES), pages=bad > 0)
    (tmp_path / "day.yaml").write_text(text, encoding="utf-8")
    told = checked([program("promtool"), "test", "rules", str(tmp_path / "day.yaml")])
    assert "SUCCESS" in told


def test_the_gateway_keeps_failed_turns(rows: Traffic) -> None:
    """Besides errors and a random share, the gateway keeps failed turns only: few on a good day."""
    gateway = yaml.safe_load((ROOT / "collector" / "gateway.yaml").read_text(encoding="utf-8"))
    policies = {one["name"]: one for one in gateway["processors"]["tail_sampling"]["policies"]}
    assert set(policies) == {"errors", "failed", "rest"}
    assert policies["failed"]["string_attribute"] == {
        "key": "rag.evaluation.label",
        "values": ["fail"],
    }
    kept = {bad: [one.label for one in rows.day(bad)].count("fail") for bad in (0.0, THIRD)}
    turns = len(rows.day(0))
    assert kept[0.0] / turns <= 0.10
    assert THIRD * 0.8 <= kept[THIRD] / turns <= THIRD * 1.3
