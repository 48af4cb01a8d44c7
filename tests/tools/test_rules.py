"""The rules follow the target, and their evidence is an e-value while the target is met."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.semconv import SCORE_BOUNDS
from rag_eval_otel.tools.cli import main
from rag_eval_otel.tools.rules import TIMES, WINDOWS, Target, render

ROOT = Path(__file__).parents[2]

TARGETS = st.builds(
    Target,
    slo=st.floats(0.5, 0.9999),
    tau=st.sampled_from(SCORE_BOUNDS),
    every=st.integers(100, 10**9),
    interval=st.sampled_from(["500ms", "1s", "30s", "5m", "1h"]),
)


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
        ({"slo": math.nan}, "--slo must be between"),
        ({"tau": 0.33}, r"--tau must be a bound of the score histogram \(0.05, 0.1, .* not 0.33"),
        ({"every": 1.0}, "--every must be a number of scores above 1"),
        ({"every": math.inf}, "--every must be a number of scores above 1"),
        ({"interval": "soon"}, "--interval must be a time such as 30s or 1m, not 'soon'"),
        ({"traces": "http://a/\nb"}, "--traces must be an address without blanks"),
        ({"traces": "http://a/{{ $labels.x }}"}, "--traces must be an address"),
        ({"traces": "http://a/{name}"}, "without braces but {service} and {metric}"),
        ({"traces": ""}, "--traces must be an address"),
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
    (group,) = yaml.safe_load(render(Target(time_scale=60)))["groups"]
    assert group["interval"] == "1s"
    windows = {window: seconds for rule in quick for window, seconds in _windows_of(rule)}
    assert windows == {"5m": "5", "30m": "30", "1h": "60", "2h": "120", "6h": "360"} | {
        "1d": "1440",
        "3d": "4320",
    }
    assert {rule["for"] for rule in quick if "for" in rule} == {"5s", "10s", "15s"}
    assert not re.search(r"\[\d+[mhd]\]|offset \d+[mhd]\b", render(Target(time_scale=60)))
    assert "--time-scale 60`" in render(Target(time_scale=60))


def _windows_of(rule: dict[str, Any]) -> list[tuple[str, str]]:
    name = rule.get("record", "").partition("rag_evaluation:count:increase")[2]
    return [
        (name, seconds) for seconds in re.findall(r"score_count\[(\d+)s\]", rule["expr"]) if name
    ]


def test_evaluator_is_not_absent_when_prometheus_starts() -> None:
    """The alert waits for 15 minutes, and asks for no past that Prometheus has not seen."""
    (rule,) = [one for one in rules_of(Target()) if one.get("alert") == "RagEvaluatorAbsent"]
    assert rule["for"] == "15m"
    assert "absent_over_time" not in rule["expr"]
