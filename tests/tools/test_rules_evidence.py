"""The evidence keeps its rate of false alarms, and detects bad answers."""

from __future__ import annotations

import re

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from rag_eval_otel.tools.rules import Target, render

EVERY, RUNS = 2000, 500
MINUTES = {"30m": 30, "1h": 60, "2h": 120, "6h": 360, "1d": 1440, "3d": 4320}
TARGET = Target(slo=0.9, every=EVERY)


def records() -> list[tuple[int, float, float, float]]:
    groups = yaml.safe_load(render(TARGET))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    found = []
    for rule in rules:
        if rule.get("record") == "rag_evaluation:bad_log10_evalue":
            if_bad, if_good = map(float, re.findall(r"\* (-?[0-9.]+)", rule["expr"]))
            less = float(rule["expr"].split()[-1])
            found.append((MINUTES[rule["labels"]["window"]], if_bad, if_good, less))
    return found


def first_alarms(share: float, scores: int, per_minute: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(20)
    steps = scores // per_minute
    bad = np.cumsum(rng.binomial(per_minute, share, (RUNS, steps)), axis=1)
    bad = np.pad(bad, ((0, 0), (1, 0)))
    now = np.arange(1, steps + 1)
    most = np.full((RUNS, steps), -np.inf)
    for window, if_bad, if_good, less in records():
        start = np.maximum(now - window, 0)
        found, count = bad[:, now] - bad[:, start], (now - start) * per_minute
        most = np.maximum(most, found * if_bad + (count - found) * if_good - less)
    paged = most > np.log10(EVERY)
    return np.where(paged.any(axis=1), (paged.argmax(axis=1) + 1.0) * per_minute, np.inf)


@pytest.mark.slow
@pytest.mark.parametrize("per_minute", [1, 10])
def test_the_rate_of_false_alarms_is_bounded(per_minute: int) -> None:
    """With as many bad answers as allowed, n scores raise a page with probability n / every."""
    for scores in (200, 1000):
        share = np.mean(first_alarms(TARGET.allowed, scores, per_minute) <= scores)
        assert share <= scores / EVERY


@pytest.mark.parametrize(("share", "within"), [(0.2, 400), (0.3, 120), (1.0, 20)])
def test_bad_answers_raise_a_page_soon(share: float, within: int) -> None:
    """Half of all services have a page within a given number of scores."""
    assert np.median(first_alarms(share, 1000, per_minute=1)) <= within
