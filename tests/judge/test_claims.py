"""What the offline judge reads off a text: words, sentences, claims, and what backs them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.judge.lexical import (
    MAX_CHARACTERS,
    Passages,
    claims_of,
    evades,
    keys_of,
    sentences,
    terms,
    within_limit,
)

LEAVE = (
    "A full-time employee gets 27 days of paid leave each year. "
    "Unused days lapse on 31 March. "
    "The form is signed by Oda Brandvik."
)

ODD = st.text(st.characters(exclude_categories=()), max_size=200)
"""Text of any code points, lone surrogates among them."""

PROSE = st.lists(
    st.sampled_from(
        [
            *("the", "not", "27", "one", "Ada", "don't", "1,200.50", "forty-five", "employee"),
            *(";", ".", "?", "\n", "-", "[1]", "Dr.", "µ", "été", "नमस्ते", "雨が降る", "วันลา"),
        ]
    ),
    max_size=40,
).map(" ".join)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One came. Two went! Three?", ["One came.", "Two went!", "Three?"]),
        ("It rains; we stay.", ["It rains", "we stay."]),
        ("She paid 3.5 euros, e.g. in cash.", ["She paid 3.5 euros, e.g. in cash."]),
        ("They are:\n1. Ephesus\n- Smyrna", ["They are:", "Ephesus", "Smyrna"]),
        ("It is red [1]. It is [^2] round.", ["It is red  .", "It is   round."]),
        ("雨が降る。傘を持つ。", ["雨が降る。", "傘を持つ。"]),
        ("कार्यालय बंद है। कल खुलेगा।", ["कार्यालय बंद है।", "कल खुलेगा।"]),
        ("  \n ... \n", []),
        ("", []),
    ],
)
def test_text_falls_into_sentences(text: str, expected: list[str]) -> None:
    """Sentences end at the marks of any script, semicolons and lines, but not within numbers."""
    assert sentences(text) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("employee", "employees"),
        ("require", "requiring"),
        ("$1,250.50", "1250.50 dollars"),
        ("five days", "5 days"),
        ("007", "7"),
        ("٢٧ days", "27 days"),
        ("don't", "do not"),
        ("don’t", "don't"),  # noqa: RUF001
        ("ﬁnance", "finance"),
    ],
)
def test_spellings_of_one_thing_agree(one: str, other: str) -> None:
    """Forms of a word, and numbers in any script, are compared by what they mean."""
    assert keys_of(one) <= keys_of(other) or keys_of(other) <= keys_of(one)


@pytest.mark.parametrize(
    ("one", "other"), [("27", "28"), ("1.5", "15"), ("10:30", "10:45"), ("in 1945", "in 1954")]
)
def test_different_numbers_stay_different(one: str, other: str) -> None:
    """A number has no forms: it is equal or not."""
    assert keys_of(one) != keys_of(other)


def test_words_of_any_script_are_whole() -> None:
    """Vowel signs belong to their word; scripts without spaces are compared by pairs."""
    assert [term.text for term in terms("नमस्ते दुनिया")] == ["नमस्ते", "दुनिया"]
    assert [term.text for term in terms("วันลา")] == ["วั", "ัน", "นล", "ลา"]
    assert [term.text for term in terms("雨が降る。 2 days")] == [
        "雨が",
        "が降",
        "降る",
        "2",
        "days",
    ]


def test_reading_stops_at_the_limit() -> None:
    """However much is handed in, only so many characters are read."""
    text = "word " * MAX_CHARACTERS
    assert sum(map(len, within_limit([text, text]))) == MAX_CHARACTERS
    assert len(terms(text)) == MAX_CHARACTERS // 5
    assert len(terms("\ufdfa" * MAX_CHARACTERS)) < MAX_CHARACTERS


@given(ODD | PROSE)
def test_any_text_can_be_read(text: str) -> None:
    """No text makes the tools raise, and every sentence, term and claim has something in it."""
    assert all(map(str.strip, sentences(text)))
    assert all(term.key for term in terms(text))
    assert all(map(str.strip, claims_of(text, question=text)))
    assert not evades(text) or len(claims_of(text)) <= 1  # a mere question back


@pytest.mark.parametrize(
    ("answer", "claims"),
    [
        ("I don't know the fee, but the form is on page 3.", ["the form is on page 3."]),
        ("The form is late, but it counts.", ["The form is late, but it counts."]),
        ("I’m sorry, but I cannot answer that.", []),  # noqa: RUF001
        ("The answer is: 1879", ["1879"]),
        ("Based on the provided document, leave lapses.", ["leave lapses."]),
        ("According to the handbook leave lapses.", ["leave lapses."]),
        ("Leave lapses. It does. The office closes on Friday evening.", None),
        ("What is it you need to know about the shop in Ghent and its opening hours?", None),
    ],
)
def test_what_an_answer_claims(answer: str, claims: list[str] | None) -> None:
    """A clause that only evades is left out; what says little goes with its neighbour."""
    found = claims_of(answer)
    if claims is None:
        assert " ".join(found) == answer
        assert len(found) < len(sentences(answer)) or len(found) == 1
    else:
        assert found == claims


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ("The form is signed by Oda Brandvik.", "The form is signed by Oda Holm."),
        (
            "A full-time employee gets 27 days of paid leave each year.",
            "A full-time employee gets 29 days of paid leave each year.",
        ),
        ("Unused days lapse on 31 March.", "Unused days never lapse on 31 March."),
        ("Unused days lapse on 31 March.", "Employee forms lapse on 31 March."),
        ("paid leave each year", "year leave each paid"),
    ],
)
def test_what_backs_a_claim_less(better: str, worse: str) -> None:
    """A missing word, number or negation, words of several sentences, or in another order."""
    passages = Passages([LEAVE])
    assert passages.probability(better) == pytest.approx(1)
    assert passages.probability(worse) < passages.probability(better)
