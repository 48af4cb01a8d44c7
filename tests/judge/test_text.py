"""What the offline judge reads off a text: sentences and terms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.judge.text import (
    MAX_CHARACTERS,
    content,
    keys,
    number_of,
    sentences,
    stem,
    terms,
    within_limit,
)

ODD = st.text(st.characters(exclude_categories=()), max_size=200)
"""Text of any code points, lone surrogates among them."""

PROSE = st.lists(
    st.sampled_from(
        [
            *("the", "not", "27", "one", "Ada", "don't", "1,200.50", "forty-five", "employee"),
            *(";", ".", "?", "\n", "-", "[1]", "Dr.", "µ", "été"),
        ]
    ),
    max_size=40,
).map(" ".join)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One came. Two went! Three?", ["One came.", "Two went!", "Three?"]),
        ("It rains; we stay.", ["It rains", "we stay."]),
        ("Dr. Ada Lin paid 3.5 euros.", ["Dr. Ada Lin paid 3.5 euros."]),
        ("Bring food, e.g. bread. Then eat.", ["Bring food, e.g. bread.", "Then eat."]),
        ("They are:\n1. Ephesus\n- Smyrna", ["They are:", "Ephesus", "Smyrna"]),
        ("It is red [1]. It is [^2] round.", ["It is red  .", "It is   round."]),
        ('He said "no." She left.', ['He said "no."', "She left."]),
        ("雨が降る。傘を持つ。", ["雨が降る。", "傘を持つ。"]),
        ("  \n ... \n", []),
        ("", []),
    ],
)
def test_text_falls_into_sentences(text: str, expected: list[str]) -> None:
    """Sentences end at marks, semicolons and lines, but not after abbreviations and numbers."""
    assert sentences(text) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("employee", "employees"),
        ("carry", "carried"),
        ("stop", "stopped"),
        ("call", "called"),
        ("require", "requiring"),
        ("process", "processes"),
        ("day", "days"),
    ],
)
def test_forms_of_a_word_have_one_stem(one: str, other: str) -> None:
    """Plural, past and the like do not hide that two words are the same."""
    assert stem(one) == stem(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("45 days", "forty-five days"),
        ("$1,250.50", "1250.5 dollars"),
        ("54%", "54 percent"),
        ("3rd", "three"),
        ("2,5", "2.5"),
        ("007", "7"),
        ("Anna's team", "anna team"),
        ("l’usine", "usine"),  # noqa: RUF001
        ("the 12th century", "the twelfth century"),
        ("fünfmal", "5"),
        ("the U.S. Senate", "the US senate"),
    ],
)
def test_spellings_of_one_thing_agree(one: str, other: str) -> None:
    """Numbers, amounts and possessives are compared by what they mean."""
    assert keys(one) == keys(other)


@pytest.mark.parametrize(("one", "other"), [("27", "28"), ("1.5", "15"), ("10:30", "10:45")])
def test_different_numbers_stay_different(one: str, other: str) -> None:
    """A number has no forms: it is equal or not."""
    assert number_of(one) != number_of(other)


def test_a_name_with_dots_is_one_name() -> None:
    """A file or a domain is not its parts, nor another that begins alike; an end is an end."""
    assert keys("Settings are in tarn.toml.") == {"set", "are", "in", "tarn.toml"}
    assert keys("numpy.linalg.norm") != keys("numpy.linalg.solve")
    assert [term.kind for term in terms("Read tarn.toml, e.g. at 3.5")] == (
        ["word", "name", "stop", "stop", "number"]
    )


def test_kinds_are_told_apart() -> None:
    """Numbers, names, words, short words and stop words count differently."""
    found = {term.text: term.kind for term in terms("The car of Oda and NASA weighs 27 kilos")}
    assert found == {
        "The": "stop",
        "car": "short",
        "of": "stop",
        "Oda": "name",
        "and": "stop",
        "NASA": "name",
        "weighs": "word",
        "27": "number",
        "kilos": "word",
    }


def test_capitals_tell_nothing_where_most_words_have_them() -> None:
    """In a title, or in German, a capital does not make a name."""
    assert {term.kind for term in terms("Ordnung Treue Sauberkeit Bleiben Pflicht")} == {"word"}


def test_words_without_content_count_where_there_is_nothing_else() -> None:
    """A text of stop words alone is compared by these."""
    assert [term.text for term in content(terms("It is what it"))] == ["It", "is", "what", "it"]


def test_reading_stops_at_the_limit() -> None:
    """However much is handed in, only so many characters are read."""
    text = "word " * MAX_CHARACTERS
    assert sum(map(len, within_limit([text, text]))) == MAX_CHARACTERS
    assert len(terms(text)) == MAX_CHARACTERS // 5
    assert len(terms("\ufdfa" * MAX_CHARACTERS)) < MAX_CHARACTERS


@given(ODD | PROSE)
def test_any_text_can_be_read(text: str) -> None:
    """No text makes the tools raise, and every sentence and term has something to compare."""
    for sentence in sentences(text):
        assert sentence.strip()
    assert all(term.key for term in terms(text))


@pytest.mark.parametrize(
    ("text", "negated"),
    [
        ("Dogs may not come in, but cats may.", {"come"}),
        ("No claims are paid because the form is late.", {"claims", "paid"}),
        ("Never more than 4 dollars, and not only on Sundays.", set()),
        ("Smoking is forbidden here.", {"forbidden"}),
        ("Smoking is not forbidden here.", set()),
        ("Das Haus ist nicht offen.", {"offen"}),
    ],
)
def test_a_negation_reaches_to_the_end_of_its_clause(text: str, negated: set[str]) -> None:
    """Words after a negation are marked; not in the next clause, and not where it sets a limit."""
    assert {term.text for term in terms(text) if term.is_negated} == negated
