"""What a question asks for and is about, and whether an answer or a context gives it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.judge.lexical import (
    coverage,
    features,
    read,
    relevancy,
    reverse_questions,
    similarity,
)

ODD = st.text(st.characters(exclude_categories=()), max_size=120)


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("Who designed it?", "name"),
        ("To whom is it sent?", "name"),
        ("where does it end", "place"),
        ("Until when is it open?", "time"),
        ("In which year was it built?", "time"),
        ("How long does it take?", "amount"),
        ("How many eggs are there?", "amount"),
        ("What is the maximum width of a bat?", "amount"),
        ("How much does it cost?", "amount"),
        ("What is the name of the actor who sings?", "name"),
        ("What is a bat made of?", "thing"),
        ("Why is it red?", "said"),
        ("Is it red?", "polar"),
        ("What about Ulm?", "any"),
        ("Wer singt?", "name"),
        ("Was kostet das?", "amount"),
        ("Où est la gare ?", "place"),
        ("¿Cuándo abre?", "time"),
        ("Red?", "thing"),
        ("It is red.", None),
        ("", None),
    ],
)
def test_a_question_asks_for_a_kind(question: str, kind: str | None) -> None:
    """The question word tells, and after "what" the noun; other texts ask for nothing."""
    assert read(question)[0] == kind


def test_a_context_is_rated_by_the_words_of_the_question() -> None:
    """The more of the question stands there the better, more so with the kind asked for."""
    question = "When does the office open on Friday?"
    texts = (
        "The office opens on Friday at 8:30.",
        "The office opens on Friday.",
        "The office has 3 doors.",
        "Larks sing.",
    )
    found = [coverage(question, text) for text in texts]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.75
    assert found[-1] == 0
    assert coverage("Is it so?", "It is so.") > 0.5


@given(ODD, ODD)
def test_any_text_can_be_rated(question: str, answer: str) -> None:
    """No text makes them raise; shares stay shares, and features have a length of 1."""
    assert len(reverse_questions(answer)) in {0, 3}
    for one in (similarity, relevancy, coverage):
        assert 0 <= one(question, answer) <= 1
    squares = sum(weight**2 for weight in features(question).values())
    assert squares == pytest.approx(1) or not features(question)
