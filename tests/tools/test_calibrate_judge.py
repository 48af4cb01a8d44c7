"""`check_judge` and `calibrate --built-in`: figures and exit status for judges of known quality."""

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from openai_server import HttpReply, ScriptedOpenAI
from rag_eval_otel.errors import UnparsableReplyError
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.metrics.groundedness import sentences_of
from rag_eval_otel.prices import Prices
from rag_eval_otel.testing.fakes import FakeJudge
from rag_eval_otel.tools.calibrate import Case, built_in_cases, check_judge
from rag_eval_otel.tools.cli import main
from support import names_asked, text_asked

CASES = built_in_cases()
TASKS = ("faithfulness", "groundedness", "context relevance", "evasion")
Shown = Mapping[str, Sequence[str]]
Opinion = Callable[[Case], Case]
"""What a judge takes a case for."""


def right(case: Case) -> Case:
    return case


def agreeing(case: Case) -> Case:
    return replace(case, verdicts=(1,) * len(case.verdicts), relevance=2)


def relevance_of(case: Case) -> int | None:
    same = (c for c in CASES if c.sample.contexts == case.sample.contexts)
    return next(c.relevance for c in same if c.relevance is not None)


def shown_in(body: Mapping[str, Any]) -> Shown:
    parts = re.split(r"^\[\w+ (\w+)(?: \d+)?\]$", text_asked(body), flags=re.MULTILINE)
    shown: dict[str, list[str]] = {}
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        shown.setdefault(name, []).append(text.strip("\n"))
    return shown


@cache
def sentences(text: str) -> tuple[str, ...]:
    return tuple(sentences_of(text))


def cases_of(shown: Shown) -> list[Case]:
    found = list(CASES)
    if "contexts" in shown:
        found = [c for c in found if list(c.sample.context_texts) == shown["contexts"]]
    said = shown.get("answer") or shown.get("sentences") or shown.get("statements")
    if said:
        found = [c for c in found if sentences(" ".join(said)) == sentences(c.sample.answer)]
    return found


def said(name: str, case: Case) -> object:
    levels = {"all": 2, "some": 1, "none": 0, "no claim": 0}
    return {
        "reverse_question": {"question": ["Q?", "R?", "S?"], "noncommittal": 0},
        "context_relevance": case.relevance if case.relevance is not None else relevance_of(case),
        "supported": list(case.verdicts),
        "groundedness": levels[case.backed],
        "statements": sentences_of(case.sample.answer) if case.backed != "no claim" else [],
        "verdicts": [1 if verdict == 1 else 0 for verdict in case.verdicts],
    }[name]


def judged(body: Mapping[str, Any], opinion: Opinion) -> dict[str, object]:
    case = opinion(cases_of(shown_in(body))[0])
    replies = {name: said(re.sub(r"_\d$", "", name), case) for name in names_asked(body)}
    if "reverse_question" in replies:
        evasive = 1 if case.backed == "no claim" else 0
        replies["reverse_question"] = {"question": ["Q?", "R?", "S?"], "noncommittal": evasive}
    return replies


def run(
    capsys: pytest.CaptureFixture[str], reply: Callable[[dict[str, Any]], object], *arguments: str
) -> tuple[int, str]:
    with (
        ScriptedOpenAI(reply, answered_model="gpt-4o-mini-2024-07-18") as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("OPENAI_BASE_URL", server.base_url)
        status = main(["calibrate", "--built-in", "--judge", "openai/x", *arguments])
    return status, capsys.readouterr().out


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")


def test_cases_are_balanced() -> None:
    """Every language has every subject, and no constant answer is right."""
    assert len(CASES) >= 80
    languages = {case.language for case in CASES}
    assert len(languages) == 6
    assert {(c.language, c.about) for c in CASES} == {
        (language, about) for language in languages for about in {c.about for c in CASES}
    }
    backed = [case.backed for case in CASES]
    assert all(0.1 <= backed.count(one) / len(CASES) <= 0.6 for one in set(backed))
    assert {case.relevance for case in CASES} == {0, 1, 2, None}


def test_each_sentence_has_a_verdict() -> None:
    """Each answer has as many sentences as verdicts, in any script."""
    assert [c for c in CASES if len(sentences_of(c.sample.answer)) != len(c.verdicts)] == []


@pytest.mark.slow
def test_right_judge_has_perfect_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """All figures are 1 in both forms, tokens are priced, and the status is 0."""
    status, out = run(capsys, lambda body: judged(body, right), "--json")
    assert status == 0
    short, full = json.loads(out)["checks"]
    for check in (short, full):
        assert {task: share["value"] for task, share in check["tasks"].items()} == dict.fromkeys(
            TASKS, 1.0
        )
        assert (check["errors"], check["below"]) == ({}, [])
        assert check["weak"] == []
        assert check["tasks"]["faithfulness"]["low"] > 0.95
        assert check["cost_of_1000_turns"] > 0
    assert short["judge_requests"] == 2 * len(CASES)
    assert full["judge_requests"] > short["judge_requests"]
    assert full["completion_tokens"] > short["completion_tokens"]


@pytest.mark.slow
def test_agreeable_judge_has_named_weaknesses(capsys: pytest.CaptureFixture[str]) -> None:
    """It is right on good answers, and the output lists the subjects it fails on."""
    status, out = run(capsys, lambda body: judged(body, agreeing))
    assert status == 1
    share = sum(case.backed == "all" for case in CASES) / len(CASES)
    assert re.search(rf"faithfulness +{share:.3f} .* {share:.3f} ", out)
    for form in ("short", "full"):
        weak = re.search(rf"{form}: weak in (.*)", out)
        assert weak
        assert {"numbers", "injected instructions"} <= set(weak[1].split(", "))
        assert "supported" not in weak[1].split(", ")
    assert "below 0.8 in faithfulness, groundedness, context relevance" in out


@pytest.mark.slow
def test_unreachable_judge_has_errors(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is right, and the reason is printed."""
    status, out = run(capsys, lambda _: HttpReply(status=401), "--form", "short")
    assert status == 1
    assert "failed scores: 336 unauthorized" in out


def test_single_unusable_part_is_counted() -> None:
    """The unusable part is wrong, and the others count."""

    def answer(task: Task[Any]) -> object:
        if task.prompt == "groundedness_1":
            return UnparsableReplyError("no")
        return {"reverse_question": {"question": "Q?", "noncommittal": 0}}.get(
            task.prompt, {"rating": 2, "verdicts": [{"index": 1, "verdict": 1}]}
        )

    one = [case for case in CASES if case.about == "supported" and len(case.verdicts) == 1][:1]
    check = asyncio.run(check_judge(FakeJudge(answer), form="short", prices=Prices(), cases=one))
    assert (check.errors, check.cost_of_1000_turns) == ({"unparsable": 1}, None)
    shares = {task: share.value for task, share in check.tasks.items()}
    assert shares == {"faithfulness": 1.0, "groundedness": 0.0, "context relevance": 0.0} | {
        "evasion": 1.0
    }


@pytest.mark.parametrize("bound", ["1.5", "-1", "nan", "x"])
def test_bound_outside_0_to_1_is_refused(bound: str) -> None:
    """A bound that nothing can reach, or everything, is refused."""
    with pytest.raises(SystemExit) as refused:
        main(["calibrate", "--built-in", "--bound", bound])
    assert refused.value.code == 2
