"""The option `sample_rate`: rates of turns by route, model, metadata and errors."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.sampling import SamplingRule, probability_of, rates_of

RULES = rates_of(
    [
        {"match": {"route": "/health*"}, "rate": 0},
        {"match": {"route": "/chat/*", "model": ["gpt-*", "o3"]}, "rate": 0.2},
        {"match": {"metadata.tier": 1, "beta": True}, "rate": 0.5},
        {"match": {"error": True, "route": "/spam"}, "rate": 0.1},
    ],
    where="sample_rate",
)


@pytest.mark.parametrize(
    ("facts", "rate"),
    [
        ({}, 0.05),
        ({"route": ("/healthz",)}, 0.0),
        ({"route": ("/chat/1",)}, 0.05),
        ({"route": ("/chat/1",), "model": ("gpt-5",)}, 0.2),
        ({"route": ("/", "/chat/1"), "model": ("o3",)}, 0.2),
        ({"metadata.tier": (1,), "beta": (True,)}, 0.5),
        ({"metadata.tier": (1,), "beta": (1,)}, 0.05),
        ({"metadata.tier": (1,), "beta": ([False, True],)}, 0.5),
        ({"error": (True,)}, 1.0),
        ({"error": (True,), "route": ("/healthz",)}, 1.0),
        ({"error": (False,)}, 0.05),
        ({"error": (True,), "route": ("/spam",)}, 0.1),
    ],
)
def test_the_first_rule_that_applies_gives_the_rate(facts: Any, rate: float) -> None:
    """All entries match; turns with errors are always taken unless a rule names them."""
    assert probability_of(facts, RULES, otherwise=0.05) == rate


@pytest.mark.parametrize(
    "route", ["/users/[id]", "/users/{id}", "/a?b=c", "/x.y+z", "/[!a]", "\\d", "", "two\nlines"]
)
def test_a_pattern_without_a_star_applies_to_itself_alone(route: str) -> None:
    """No character but the star is special, such as the brackets in routes of Next.js."""
    rule = SamplingRule(match={"route": route}, rate=1)
    assert rule.applies({"route": (route,)})
    assert not rule.applies({"route": (f"{route}x",)})
    assert SamplingRule(match={"route": f"{route}*"}, rate=1).applies({"route": (f"{route}x",)})


@given(st.text("ab*", max_size=8), st.text("ab", max_size=12))
def test_a_star_stands_for_any_characters(pattern: str, text: str) -> None:
    """Patterns apply as regular expressions in which each star is ``.*``."""
    expected = re.fullmatch(pattern.replace("*", ".*"), text) is not None
    assert SamplingRule(match={"route": pattern}, rate=1).applies({"route": (text,)}) == expected


def test_rules_come_from_a_file_or_json(tmp_path: Path) -> None:
    """A list of rules in code, as JSON and in a JSON file is the same."""
    text = '[{"match": {"route": "/chat"}, "rate": 0.5}]'
    path = tmp_path / "rules.json"
    path.write_text(text, encoding="utf-8")
    expected = (SamplingRule(match={"route": "/chat"}, rate=0.5),)
    for one in (text, path, str(path), [{"match": {"route": "/chat"}, "rate": 0.5}], expected):
        assert rates_of(one, where="x") == expected


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("nowhere.json", r"sample_rate must be a number between 0 and 1, or rules as a .json"),
        ("{", "or rules as a .json file or a JSON list"),
        ("[" * 100_000, "or rules as a .json file or a JSON list"),
        ({"rate": 1}, "or a list such as"),
        ("3", "must be a number between 0 and 1, not 3"),
        ([3], "rule 1: must have the keys match and rate"),
        ([{"rate": 1}, {"match": {"a": 1}, "rate": 1}], "only the last rule may have no match"),
        ([{"match": {"a": 1}, "rate": 2}], "rate must be a number between 0 and 1, not 2"),
        ([{"match": {"a": 1}, "rate": True}], "rate must be a number"),
        ([{"match": {"a": 1}, "rate": float("nan")}], "rate must be a number"),
        ([{"match": [], "rate": 1}], "match must map names to values"),
        ([{"match": {3: 1}, "rate": 1}], "match must map a name such as route to .* not 3 to 1"),
        ([{"match": {"a": None}, "rate": 1}], "a number, true, false or a list, not 'a' to None"),
        ([{"match": {"a": []}, "rate": 1}], "or a list, not 'a' to \\[\\]"),
    ],
)
def test_a_rule_that_cannot_be_used_is_named(given: Any, told: str) -> None:
    """The message says which rule is wrong, and what it must look like."""
    with pytest.raises(ConfigError, match=told) as refusal:
        rates_of(given, where="sample_rate")
    assert str(refusal.value).startswith("sample_rate")
