"""How an answer is split into sentences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.metrics.groundedness import sentences_of


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        (
            "It costs 3.50 euros, e.g. at Dr. Lee's. Yes.",
            ["It costs 3.50 euros, e.g. at Dr. Lee's.", "Yes."],
        ),
        ("Am 3. Mai war es so. Dann nicht.", ["Am 3. Mai war es so.", "Dann nicht."]),
        ('He said "no." She left.', ['He said "no."', "She left."]),
        ("- One thing\n- Another\n\n1. A third", ["One thing", "Another", "A third"]),
        ("第一句。第二句！第三句", ["第一句。", "第二句！", "第三句"]),  # noqa: RUF001  # Chinese
        ("पहला वाक्य। दूसरा वाक्य।", ["पहला वाक्य।", "दूसरा वाक्य।"]),
        ("جملة أولى؟ جملة ثانية.", ["جملة أولى؟", "جملة ثانية."]),
        ("One... two. ***", ["One... two. ***"]),
        ("", []),
        (" \n ", []),
        ("!?", []),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    """Marks of many scripts end a sentence; abbreviations, numbers and ordinals do not."""
    assert sentences_of(text) == sentences


@given(st.lists(st.sampled_from(["One", "two", ". ", "! ", "\n", "。", "- ", "3", "\u0964", '"'])))
def test_no_word_is_lost(pieces: list[str]) -> None:
    """Whatever the text, its words are in the sentences, in order, and there are at most forty."""
    text = "".join(pieces)
    found = sentences_of(text)
    words = "".join(c for c in " ".join(found) if c.isalpha())
    assert words == "".join(c for c in text if c.isalpha())
    assert all(any(c.isalnum() for c in one) for one in found)


def test_a_long_answer_is_put_together() -> None:
    """Of more than forty sentences, neighbours are judged as one."""
    found = sentences_of(" ".join(f"Sentence number {i} is here." for i in range(100)))
    assert len(found) == 34
    assert found[0].count("Sentence") == 3
