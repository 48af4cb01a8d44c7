"""What matches the user's patterns is out of every text before anybody is shown it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pipeline import good_answers, running
from rag_eval_otel import Config, Evaluation, Passage, Sample, record_answer, record_question
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.explicit import record_retrieval
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.redaction import Redactor, redactor
from rag_eval_otel.testing import FakeJudge

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
    )
    clean = redactor((CARD, "(?i)ada")).sample(sample)
    assert clean == Sample(
        question=SHOWN,
        contexts=[Passage(text=SHOWN, id="Ada", score=0.5), Passage(text="nothing")],
        answer=SHOWN,
        reference=SHOWN,
        relevant_ids={"Ada": 2.0},
    )
    assert Redactor().sample(sample) is sample


@pytest.mark.parametrize(
    ("value", "clean"),
    [
        ("is Ada", "is [redacted]"),
        (["Ada", "Bob"], ["[redacted]", "Bob"]),
        (json.dumps([{"content": "Ada", "id": "1"}]), '[{"content": "[redacted]", "id": "1"}]'),
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
        (("(",), r"redact \(RAG_EVAL_REDACT\): '\(' is no regular expression: missing \)"),
        (("a", "*"), "'\\*' is no regular expression: nothing to repeat"),
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
        return {"verdicts": [{**answer["verdicts"][0], "reason": text}]}
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
