"""What matches the user's patterns is out of every text before anybody is shown it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import good_answers, running
from rag_eval_otel import Config, Evaluation, Passage, Sample, record_answer, record_question
from rag_eval_otel.cli import main
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.live.recorded import record_retrieval
from rag_eval_otel.redaction import Redactor, redactor
from rag_eval_otel.testing import FakeJudge, ScriptedOpenAI
from support import good_parts

CARD = r"\b\d{4}-\d{4}\b"
SAID = "My card is 1234-5678, and my name is Ada."
SHOWN = "My card is [redacted], and my name is [redacted]."


def test_all_texts_of_a_sample() -> None:
    """Question, contexts, answer and reference lose what matches; the rest stays as it is."""
    sample = Sample(
        question=SAID,
        contexts=[Passage(text=SAID, id="Ada", score=0.5), Passage(text="nothing")],
        answer=SAID,
        reference=SAID,
        relevant_ids={"Ada": 2.0},
        extra={"Ada": SAID},
    )
    clean = redactor((CARD, "(?i)ada")).sample(sample)
    assert clean == Sample(
        question=SHOWN,
        contexts=[Passage(text=SHOWN, id="Ada", score=0.5), Passage(text="nothing")],
        answer=SHOWN,
        reference=SHOWN,
        relevant_ids={"Ada": 2.0},
        extra={"Ada": SHOWN},
    )
    assert Redactor().sample(sample) is sample


@pytest.mark.parametrize(
    ("value", "clean"),
    [
        ("is Ada", "is [redacted]"),
        (["Ada", "Bob"], ["[redacted]", "Bob"]),
        (json.dumps([{"content": "Ada", "id": "1"}]), '[{"content": "[redacted]", "id": "1"}]'),
        (json.dumps({"Ada": "Bob"}), '{"[redacted]": "Bob"}'),
        ("[Ada", "[[redacted]"),
        ("[" * 10_000 + "Ada", "[" * 10_000 + "[redacted]"),
        (True, True),
        (7, 7),
    ],
)
def test_values_of_attributes(value: object, clean: object) -> None:
    """Texts, lists of them and JSON of them are looked through; numbers are no texts."""
    assert redactor(("Ada",)).value(value) == clean


@pytest.mark.parametrize(
    ("patterns", "told"),
    [
        (("(",), r"redact \(RAG_EVAL_REDACT\): '\(' is not a regular expression: missing \)"),
        (("a", "*"), "'\\*' is not a regular expression: nothing to repeat"),
        (("a*",), "'a\\*' matches the empty text"),
        (("a|",), "matches the empty text"),
        ((r"\b",), "matches the empty text"),
        ("abc", "redact must be a sequence of regular expressions, not 'abc'"),
        (5, "redact must be a sequence of regular expressions, not 5"),
        ((5,), "takes regular expressions as str, not 5"),
    ],
)
def test_a_bad_pattern_is_told_at_the_start(patterns: Any, told: str) -> None:
    """Nobody finds out later that nothing was redacted."""
    with pytest.raises(ConfigError, match=told):
        Config(redact=patterns)


class NotingEmbedder:
    """Gives every text the same direction, and notes it."""

    def __init__(self) -> None:
        """Start with none."""
        self.texts: list[str] = []

    async def embed(self, texts: Sequence[str]) -> Any:
        """Return ones."""
        self.texts += texts
        return np.ones((len(texts), 3))


class NotingSink:
    """Keeps what it is told."""

    def __init__(self) -> None:
        """Start with none."""
        self.told: list[Evaluation] = []

    def emit(self, evaluation: Evaluation) -> None:
        """Keep it."""
        self.told.append(evaluation)


def quoting(task: Task[Any]) -> object:
    """Answer as a content judge would, with a reason that quotes all it was shown."""
    answer: Any = good_answers(task)
    text = str(task)
    if "reason" in answer:
        return {**answer, "reason": text}
    if "verdicts" in answer:
        return {"verdicts": [{**one, "reason": text} for one in answer["verdicts"]]}
    return answer


def test_nobody_sees_what_is_redacted() -> None:
    """Judge, embedder and sinks see the texts without it, and so does who reads explanations."""
    judge, embedder, sink = FakeJudge(quoting), NotingEmbedder(), NotingSink()
    options = {"judge": judge, "embedder": embedder, "sinks": [sink], "explanations": "on"}
    with running(redact=(CARD, "Ada"), **options) as app:
        with app.tracer.start_as_current_span("ask"):
            record_question(f"Question: {SAID}")
            record_retrieval("q", [f"Context: {SAID}"])
            record_answer(f"Answer: {SAID}")
        app.stop()
        exported = str([app.receiver.spans(), app.receiver.logs()])
    (evaluation,) = sink.told
    explained = [score.explanation for score in evaluation.scores if score.explanation]
    assert any("[redacted]" in text for text in explained)
    assert "explanation" in exported
    for seen in (str(judge.requests), str(embedder.texts), str(sink.told), exported):
        assert "[redacted]" in seen
        assert not any(text in seen for text in ("1234-5678", "Ada"))


def test_datasets_are_redacted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line reads the same variable; its judge sees no more than the one of traces."""
    data, output = tmp_path / "data.jsonl", tmp_path / "scores.jsonl"
    data.write_text(json.dumps({"question": SAID, "contexts": [SAID], "answer": SAID}) + "\n")
    monkeypatch.setenv("RAG_EVAL_REDACT", f"{CARD}\nAda")
    with ScriptedOpenAI(good_parts) as server:
        monkeypatch.setenv("RAG_EVAL_JUDGE_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
        options = ["--judge", "openai/m", "--embedder", "hashing", "--metrics", "faithfulness"]
        assert main(["evaluate", str(data), "--output", str(output), *options]) == 0
        asked = str([request.body for request in server.requests])
    assert "[redacted]" in asked
    assert not any(text in asked for text in ("1234-5678", "Ada"))
