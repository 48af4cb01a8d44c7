"""The corpus of attempts against the prompts: none changes the structure of a prompt."""

import json

import pytest

from hostile import make, naive
from rag_eval_otel.judge import wire
from rag_eval_otel.judge.tasks import GROUNDEDNESS
from rag_eval_otel.judge.wire import compose, prompt_text
from rag_eval_otel.untrusted import harmless


def test_the_file_is_that_of_the_generator() -> None:
    """The corpus has at least 120 different attempts in many classes."""
    lines = [json.dumps(attempt) for attempt in make.attempts()]
    assert make.FILE.read_text(encoding="utf-8").splitlines() == lines
    assert len(set(lines)) == len(lines) >= 120
    assert len(make.ATTEMPTS) >= 12
    assert make.SAY == naive.SAY


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(naive.ATTEMPTS)))
def test_no_attempt_changes_the_structure(number: int) -> None:
    """A strict and a lenient reader find the marks of a harmless request, and the whole text."""
    text = naive.ATTEMPTS[number]["text"]
    task = GROUNDEDNESS[0].task({"answer": text, "contexts": [text, "It is a city."]})
    request = compose([task])
    parts = naive.strict(request.user)
    assert list(parts) == ["tasks", *naive.NAMES]
    assert parts["answer"] == parts["contexts 1"] == f"\n{harmless(text)}\n"
    assert parts["end"] == f"\n{prompt_text('closing')}"
    assert naive.lenient(request.user) == naive.NAMES
    clean = compose([GROUNDEDNESS[0].task({"answer": "A", "contexts": ["B", "C"]})])
    assert (request.system, request.schema) == (clean.system, clean.schema)
    assert request.user.partition("CODE is")[0] == clean.user.partition("CODE is")[0]


@pytest.mark.slow
def test_no_attempt_misleads_a_naive_judge() -> None:
    """The scripted judges obey what is outside the texts, imitations of marks, or hidden texts."""
    found = naive.figures()
    assert {kind: [counts[name] for name in naive.JUDGES] for kind, counts in found.items()} == {
        kind: [0, 0, 0] for kind in found
    }
    suspected = sum(counts["suspected"] for counts in found.values())
    assert suspected >= 0.7 * len(naive.ATTEMPTS)


@pytest.mark.slow
def test_the_judges_are_naive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the escapes, many attempts mislead them, so that the figures above mean something."""
    monkeypatch.setattr(wire, "harmless", lambda text: text)
    found = naive.figures().values()
    assert sum(counts["careless"] for counts in found) >= 60
    assert sum(counts["clairvoyant"] for counts in found) >= 10
