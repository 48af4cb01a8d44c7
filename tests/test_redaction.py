"""What matches the user's patterns is out of every text before anybody is shown it."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from live import attached, good_answers
from rag_eval_otel import Config, Evaluation, Passage, Sample, record_answer, record_question
from rag_eval_otel.errors import ConfigError, RedactionError
from rag_eval_otel.evaluation import measurement_of
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.live.recorded import record_retrieval
from rag_eval_otel.testing import FakeJudge
from rag_eval_otel.tools.dataset import Run
from rag_eval_otel.tools.read import open_dataset
from rag_eval_otel.tools.rows import Row
from rag_eval_otel.untrusted import Redactor, redactor
from support import hide

CARD = r"\b\d{4}-\d{4}\b"
SAID = "My card is 1234-5678, and my name is Ada."
SHOWN = "My card is [redacted], and my name is [redacted]."


def test_all_texts_of_a_sample() -> None:
    """Question, contexts, answer and reference lose what matches; the rest stays as it is."""

    def of(text: str) -> Sample:
        return Sample(
            question=text,
            contexts=[Passage(text=text, id="Ada", score=0.5), Passage(text="nothing")],
            answer=text,
            reference=text,
            relevant_ids={"Ada": 2.0},
            extra={"Ada": text},
        )

    assert redactor(hide(CARD, "(?i)ada")).sample(of(SAID)) == of(SHOWN)
    assert Redactor().sample(sample := of(SAID)) is sample


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
        (4111, "[redacted]"),
        ([1, 4111], ["1", "[redacted]"]),
        ((0.5, 0.25), [0.5, 0.25]),
        (json.dumps({"Ada": 5, "n": [1, None, True]}), '{"[redacted]": 5, "n": [1, null, true]}'),
    ],
)
def test_values_of_attributes(value: object, clean: object) -> None:
    """Texts, lists and JSON are looked through; a number that is hidden becomes a text."""
    assert redactor(hide("Ada", "4111")).value(value) == clean


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("emails", "must be a function .* or its place as 'package.module:function'"),
        ("email", "'email' is no function"),
        ("textwrap:absent", "not 'textwrap:absent'"),
        ("sys:version", "'sys:version' is no function"),
        (["email"], "not \\['email'\\]"),
        (5, "not 5"),
    ],
)
def test_what_is_no_function_is_refused_at_the_start(function: Any, told: str) -> None:
    """Nobody finds out later that nothing was redacted."""
    with pytest.raises(ConfigError, match=told):
        Config(redact=function)


class NotingEmbedder:
    """Gives every text the same direction, and notes it."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def embed(self, texts: Sequence[str]) -> Any:
        self.texts += texts
        return np.ones((len(texts), 3))


def quoting(task: Task[Any]) -> object:
    answer: Any = good_answers(task)
    text = str(task)
    if "reason" in answer:
        return {**answer, "reason": text}
    if "verdicts" in answer:
        return {"verdicts": [{**one, "reason": text} for one in answer["verdicts"]]}
    return answer


def test_nobody_sees_what_is_redacted() -> None:
    """Judge, embedder and sinks see the texts without it, and so does who reads explanations."""
    judge, embedder, told = FakeJudge(quoting), NotingEmbedder(), list[Evaluation]()
    options = {"judge": judge, "embedder": embedder, "sinks": [told.append], "explanations": True}
    with attached(redact=hide(CARD, "Ada"), **options) as app:
        with app.within():
            record_question(f"Question: {SAID}")
            record_retrieval("q", [f"Context: {SAID}"])
            record_answer(f"Answer: {SAID}")
        assert app.handle.flush()
        exported = app.exported_texts()
    (evaluation,) = told
    explained = [score.explanation for score in evaluation.scores if score.explanation]
    assert any("[redacted]" in text for text in explained)
    assert "explanation" in exported
    for seen in (str(judge.requests), str(embedder.texts), str(told), exported):
        assert "[redacted]" in seen
        assert not any(text in seen for text in ("1234-5678", "Ada"))


def broken(text: str) -> str:
    raise KeyError(text)


@pytest.mark.parametrize("rule", [broken, lambda _: None, lambda text: text.encode()])
def test_a_function_that_fails_lets_no_text_out(rule: Any) -> None:
    """The error names the function or the type, and not the text."""
    with pytest.raises(RedactionError) as caught:
        redactor(rule).text("secret")
    assert "secret" not in str(caught.value)
    with pytest.raises(RedactionError):
        redactor(rule).sample(Sample(question="secret"))


def test_a_row_whose_redaction_fails_is_not_judged(tmp_path: Path) -> None:
    """Its scores have failed with the reason; the other rows are scored."""

    def fussy(text: str) -> str:
        return broken(text) if "secret" in text else text

    judge = FakeJudge(good_answers)
    measurement = measurement_of(["response_groundedness"], judge=judge, embedder=NotingEmbedder())
    measurement = replace(measurement, redactor=redactor(fussy))
    data = [{"question": q, "answer": "A b.", "contexts": ["C"]} for q in ("open", "secret")]

    async def rows() -> list[Row]:
        run = Run(measurement=measurement)
        return [row async for row in run.rows(open_dataset(data))]

    found = asyncio.run(rows())
    assert [row["response_groundedness"].reason for row in found] == [None, "redaction_error"]
    assert found[1].sample == Sample()
    assert "secret" not in str(judge.requests)
