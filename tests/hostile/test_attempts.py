"""The corpus of attempts against the prompts: none changes the structure of a prompt."""

import pytest

from hostile import naive
from rag_eval_otel.judge import wire
from rag_eval_otel.judge.tasks import GROUNDEDNESS
from rag_eval_otel.judge.wire import compose, prompt_text
from rag_eval_otel.untrusted import harmless


def test_no_attempt_changes_the_structure() -> None:
    """A reader who knows the code finds the marks of a harmless request, and the whole text."""
    clean = compose([GROUNDEDNESS[0].task({"answer": "A", "contexts": ["B", "C"]})])
    for text in [attempt["text"] for attempt in naive.ATTEMPTS]:
        task = GROUNDEDNESS[0].task({"answer": text, "contexts": [text, "It is a city."]})
        request = compose([task])
        parts = naive.strict(request.user)
        assert list(parts) == ["tasks", *naive.NAMES]
        assert parts["answer"] == parts["contexts 1"] == f"\n{harmless(text)}\n"
        assert parts["end"] == f"\n{prompt_text('closing')}"
        assert (request.system, request.schema) == (clean.system, clean.schema)
        assert request.user.partition("CODE is")[0] == clean.user.partition("CODE is")[0]


def test_without_harmless_a_naive_judge_is_misled(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the corpus has what `harmless` takes away."""
    monkeypatch.setattr(wire, "harmless", lambda text: text)
    assert naive.misled()["clairvoyant"] >= 10
