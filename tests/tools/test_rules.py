"""The rules follow the target, and their evidence is an e-value while the target is met."""

import json
import re
from collections import Counter
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics.base import label_of
from rag_eval_otel.semconv import SCORE_BOUNDS
from rag_eval_otel.tools.cli import main
from rag_eval_otel.tools.rules import TIMES, WINDOWS, Target, render

ROOT = Path(__file__).parents[2]
TAUS = [round(bound, 2) for bound in SCORE_BOUNDS]

TARGETS = st.builds(
    Target,
    slo=st.floats(0.5, 0.9999),
    tau=st.sampled_from(TAUS),
    every=st.integers(100, 10**9),
    interval=st.sampled_from(["500ms", "1s", "30s", "5m", "1h"]),
)


@cache
def rules_of(target: Target) -> list[dict[str, Any]]:
    groups = yaml.safe_load(render(target))["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.mark.slow
@settings(max_examples=10)  # YAML is slow to read
@given(TARGETS)
def test_rules_follow_the_target(target: Target) -> None:
    """With as many bad answers as allowed, the mean likelihood ratio of an answer is 1.

    The threshold of the page is log10 of ``every``, and burn rates can be reached. Alerts on scores
    name metric, service and traces. A rule reads only earlier records of its group.
    """
    rules = rules_of(target)
    evidence = [r for r in rules if r.get("record") == "rag_evaluation:bad_log10_evalue"]
    assert len(evidence) == len(TIMES) * (len(WINDOWS) - 1)
    for rule in evidence:
        if_bad, if_good = map(float, re.findall(r"\* (-?[0-9.]+)", rule["expr"]))
        expected = target.allowed * 10**if_bad + (1 - target.allowed) * 10**if_good
        assert expected == pytest.approx(1, abs=1e-4)
    (page,) = [rule for rule in rules if rule.get("alert") == "RagAnswersGoBad"]
    threshold = float(page["expr"].rpartition(">")[2])
    assert 10**threshold == pytest.approx(target.every, rel=0.01)
    assert page["labels"]["severity"] == "page"
    tiers = [rule for rule in rules if rule.get("alert") == "RagBadAnswerBurn"]
    ratios = [float(tier["expr"].split(">")[1].split()[0]) for tier in tiers]
    assert len(tiers) == 4
    assert sorted(ratios, reverse=True) == ratios
    assert all(ratio <= 0.5 for ratio in ratios)
    assert max(ratios) >= min(14.4 * target.allowed, 0.5) - 1e-6
    for alert in [page, *tiers, *(r for r in rules if r.get("alert") == "RagScoreDrift")]:
        notes = alert["annotations"]
        assert "$labels.gen_ai_evaluation_name" in notes["summary"]
        assert "$labels.service_name" in notes["summary"]
        assert "$labels.service_name | urlquery" in notes["traces"]
    every = Counter(rule.get("record") for rule in rules)
    for group in yaml.safe_load(render(target))["groups"]:
        before: Counter[str | None] = Counter()
        for rule in group["rules"]:
            text = json.dumps({**rule, "record": None})
            for name in set(re.findall(r"rag_evaluation:[\w:]+", text)):
                assert before[name] == every[name] > 0, (name, rule)
            before[rule.get("record")] += 1


def test_a_bucket_counts_what_a_label_says() -> None:
    """A score at a threshold is above its bucket; where low scores are good, it fails."""
    for tau, parts in product(TAUS, range(1, 13)):
        for score in (number / parts for number in range(parts + 1)):
            is_below = score <= Target().bound(tau)
            assert label_of(score, tau) == ("fail" if is_below else "pass")
            assert label_of(score, tau, "low") == ("pass" if is_below else "fail")


def test_each_alert_says_what_to_do() -> None:
    """Each alert has a summary and a description, and the documentation lists it."""
    alerts = [rule for rule in rules_of(Target()) if "alert" in rule]
    assert len(alerts) > 15
    for alert in alerts:
        notes = alert["annotations"]
        assert len(notes.get("description", "")) > 60, alert["alert"]
        assert notes["summary"].strip() not in notes["description"]
    listed = (ROOT / "docs" / "alerting.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in listed.splitlines() if line.startswith("| `Rag")]
    assert {alert["alert"] for alert in alerts} == set(re.findall(r"`(Rag\w+)`", "".join(rows)))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"slo": 1.0}, "--slo must be between 0.5 and 0.9999, not 1.0"),
        ({"tau": 0.33}, "--tau must be one of 0.05, 0.1, .* not 0.33"),
        ({"every": 1.0}, "--every must be above 1"),
        ({"interval": "soon"}, "--interval must be a time such as 30s or 1m, not 'soon'"),
        ({"traces": "http://a/\nb"}, "--traces must be an address without blanks"),
        ({"traces": "http://a/{{ $labels.x }}"}, "--traces must be an address"),
        ({"traces": "http://a/{name}"}, "without braces but {service} and {metric}"),
    ],
)
def test_an_invalid_target_is_refused(options: dict[str, Any], told: str) -> None:
    """The error names the option and the allowed values."""
    with pytest.raises(ConfigError, match=told):
        Target(**options)


def test_command_prints_the_rules(capsys: pytest.CaptureFixture[str]) -> None:
    """The options of the command are those of the target."""
    url = "https://traces.example/{service}/{metric}"
    options = ["--slo", ".95", "--tau", ".4", "--every", "5000", "--interval", "30s"]
    assert main(["rules", *options, "--traces", url]) == 0
    target = Target(slo=0.95, tau=0.4, every=5000, interval="30s", traces=url)
    assert capsys.readouterr().out == render(target)


def test_time_scale_divides_all_times() -> None:
    """With 60, each window, wait and interval is a 60th; names of records and texts are equal."""
    usual, quick = rules_of(Target()), rules_of(Target(time_scale=60))
    assert [rule.get("record", rule.get("alert")) for rule in quick] == [
        rule.get("record", rule.get("alert")) for rule in usual
    ]
    text = render(Target(time_scale=60))
    assert re.findall(r"^ *interval: (.*)$", text, re.MULTILINE) == ["1s"]
    windows = re.findall(r"count:increase(\w+)\n.*\n.*score_count\[(\w+)\]", text)
    assert " ".join(seconds for _, seconds in windows) == "5s 30s 60s 120s 360s 1440s 4320s"
    assert [window for window, _ in windows] == [*WINDOWS]
    assert {rule["for"] for rule in quick if "for" in rule} == {"5s", "10s", "15s"}
    assert not re.search(r"\[\d+[mhd]\]|offset \d+[mhd]\b", text)
    assert "--time-scale 60`" in text


EVERY, RUNS = 2000, 500
MINUTES = {"30m": 30, "1h": 60, "2h": 120, "6h": 360, "1d": 1440, "3d": 4320}
TARGET = Target(slo=0.9, every=EVERY)


def records() -> list[tuple[int, float, float, float]]:
    found = []
    for rule in rules_of(TARGET):
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
