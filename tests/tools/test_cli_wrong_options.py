"""Options about sampling, budgets and prices that cannot be used: status 2 and the way out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rag_eval_otel.tools.cli import main

ROW = {"question": "When?", "contexts": ["In 1879."], "answer": "In 1879.", "score": 0.5}


def status_of(command: list[str]) -> int:
    """Return the exit status of the command, also if its options do not parse."""
    try:
        return main(command)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else -1


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """Return the path of a file with one scored row."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--versions any", "need a second file"),
        ("--json", "need a second file"),
        ("--worst many", "must be a whole number from 0 to 1000"),
        ("--metric nosuch", "--metric"),
    ],
)
def test_report_refuses(
    rows: str, options: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the option and what it takes."""
    assert status_of(["report", rows, *options.split()]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--max-requests", "--max-tokens"])
@pytest.mark.parametrize("value", ["-1", "nan", "1.5", "1k", "inf", ""])
def test_evaluate_refuses_a_wrong_budget(
    rows: str, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A budget of a run is a whole number."""
    assert status_of(["evaluate", rows, "--judge", "lexical", f"{option}={value}"]) == 2
    assert f"{option}: must be a whole number, 0 or more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("5 dollars/day", "a currency of three capitals"),
        ("5 USD/week", "periods: minute, hour, day"),
        ("-5 USD/day", "such as '5 USD/day"),
        ("nan USD/day", "such as '5 USD/day"),
        ("5 USD", "such as '5 USD/day"),
        ("0 USD/day", "a number above 0"),
        ("1.5 requests/day", "a whole number above 0"),
        ("1,000 requests/day", "numbers without a comma"),
        ("5 USD/day, 3 EUR/hour", "prices are in one currency, so use it"),
        ("5 USD/day, 3 USD/day", "keep one of them"),
    ],
)
def test_a_wrong_budget_in_the_environment_is_refused(
    rows: str,
    given: str,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The error names the variable, and has an example of each unit and period."""
    monkeypatch.setenv("RAG_EVAL_BUDGET", given)
    assert status_of(["evaluate", rows, "--judge", "lexical"]) == 2
    shown = capsys.readouterr().err
    assert "RAG_EVAL_BUDGET" in shown
    assert told in shown


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"REDIS": "redis://x"}, "no effect without a budget, such as"),
        ({"SAMPLE_RATE": "nan"}, "between 0 and 1"),
        ({"SAMPLE_RATE": "-0.1"}, "between 0 and 1"),
        ({"SAMPLE_RATE": "10%"}, "between 0 and 1"),
        ({"SAMPLE_RATE": "none.json"}, "none.json"),
        ({"CASCADE": "lexicl"}, "did you mean"),
        ({"MAX_TEXT_CHARS": "-5"}, "a whole number at least 100"),
    ],
)
def test_wrong_sampling_in_the_environment_is_refused(
    rows: str,
    variables: dict[str, str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each option has an error with its range, and one for a combination without effect."""
    for name, value in variables.items():
        monkeypatch.setenv(f"RAG_EVAL_{name}", value)
    assert status_of(["evaluate", rows, "--judge", "lexical"]) == 2
    shown = capsys.readouterr().err
    assert f"RAG_EVAL_{next(iter(variables))}" in shown
    assert told in shown


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ('{"models": {"m": {"input": -1}}}', "'m' must have input, and may have output and"),
        ('{"models": {"m": {"input": NaN}}}', "numbers from 0, not {'input': nan}"),
        ('{"models": {"m": {"input": "1 USD"}}}', "numbers from 0, not {'input': '1 USD'}"),
        ('{"models": {"m": {"inptu": 1}}}', "'m' must have input, and may have output and"),
        ('{"models": {"m": {"output": 1}}}', "'m' must have input, and may have output and"),
        ('{"models": {"m": 1}}', "'m' must have input, and may have output and"),
        ('{"modles": {}}', "must be JSON, {"),
        ("[1, 2]", "must be JSON, {"),
        ("[1", "must be JSON"),
        ('{"models": {}, "currency": "dollars"}', "three capitals, such as USD"),
        (None, "No such file"),
    ],
)
def test_wrong_prices_are_refused(
    rows: str,
    table: str | None,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The error names the file, shows the form of a table, and says what is wrong."""
    file = tmp_path / "prices.json"
    if table is not None:
        file.write_text(table, encoding="utf-8")
    assert status_of(["evaluate", rows, "--judge", "lexical", "--prices", str(file)]) == 2
    shown = capsys.readouterr().err
    assert str(file) in shown
    assert '{"models": {NAME: {"input": X, "output": Y}}}' in shown
    assert told in shown
