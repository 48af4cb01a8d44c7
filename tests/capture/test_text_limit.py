"""Texts are cut once, where a span or a LangChain run enters; a cut text makes no sample."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from plain_views import View
from rag_eval_otel.capture.conventions import read
from rag_eval_otel.capture.sample import extract
from rag_eval_otel.capture.span import Copier
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.turns import find_turns
from rag_eval_otel.types import Passage, Sample, SkipReason

MOST = 100
WHOLE, LONG = "a" * MOST, "b" * (MOST + 1)


def test_a_longer_text_is_cut_one_character_later() -> None:
    """A text at the limit is whole; the length of a longer one shows that it is cut."""
    copier = Copier(MOST)
    assert copier.value({"a": WHOLE, "b": [WHOLE]}) == {"a": WHOLE, "b": [WHOLE]}
    assert not copier.is_cut
    assert copier.value(["c", "b" * 10_000]) == ["c", LONG]
    assert copier.is_cut


def test_the_texts_of_long_json_are_cut_by_themselves() -> None:
    """JSON may be longer than one text; above four times as much, it is cut, and not parsed."""
    copier = Copier(MOST)
    pages = [{"text": WHOLE, "id": 1}, {"text": WHOLE, "id": 2}]
    assert copier.value(json.dumps(pages)) == pages
    assert not copier.is_cut
    assert copier.value(json.dumps([LONG, LONG * 2])) == [LONG, LONG]
    assert copier.value(json.dumps(pages * 2)) == json.dumps(pages * 2)[: MOST + 1]
    assert copier.is_cut


QUESTION, PAGE, ANSWER = "Who?", "Ada wrote the notes on the engine.", "Ada did."


def by_spans(question: str, page: str, answer: str, **more: Any) -> list[Step]:
    messages = [{"role": "user", "content": f"{page} {question}"}]
    kinds: Mapping[str, Mapping[str, Any]] = {
        "CHAIN": {"input.value": question, "output.value": json.dumps({"answer": answer, **more})},
        "RETRIEVER": {"input.value": question, "retrieval.documents.0.document.content": page},
        "LLM": {
            "llm.input_messages.0.message.role": "user",
            "llm.input_messages.0.message.content": messages[0]["content"],
            "llm.output_messages.0.message.role": "assistant",
            "llm.output_messages.0.message.content": answer,
        },
    }
    return [
        read(
            View(
                attributes={"openinference.span.kind": kind, **values},
                scope="openinference.instrumentation.fake",
                span_id=number,
                parent_id=None if number == 1 else 1,
                start=number,
                end=10 if number == 1 else number,
            ),
            most=MOST,
        )
        for number, (kind, values) in enumerate(kinds.items(), start=1)
    ]


def result_of(steps: list[Step]) -> Sample | SkipReason:
    (turn,) = find_turns(steps, loss="possible")
    return extract(turn)


def test_whole_texts_make_a_sample() -> None:
    """Beside texts that are no part of the turn, such as an image, of any length."""
    sample = Sample(question=QUESTION, contexts=[Passage(text=PAGE)], answer=ANSWER)
    assert result_of(by_spans(QUESTION, PAGE, ANSWER)) == sample
    assert result_of(by_spans(QUESTION, PAGE, ANSWER, image=LONG)) == sample


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_turn_with_a_cut_text_is_refused(part: int) -> None:
    """Question, page or answer: half of it might make a wrong sample."""
    texts = [QUESTION, PAGE, ANSWER]
    texts[part] = f"{texts[part]} {LONG}"
    assert result_of(by_spans(*texts)) == "truncated"
