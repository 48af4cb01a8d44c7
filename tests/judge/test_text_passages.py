"""How far passages back a claim: places, numbers, negations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.judge.text import Passages, Support, content, sentences, terms

LEAVE = (
    "A full-time employee gets 27 days of paid leave each year. "
    "Unused days lapse on 31 March. "
    "The form is signed by Oda Brandvik."
)
DOGS = "Dogs may come to the office on Fridays."
CATS = "Cats may not come to the office."

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


def support(claim: str, *texts: str) -> Support:
    """Return how far ``texts`` back ``claim``."""
    return Passages(texts).support(content(terms(claim)))


def test_a_claim_from_neighbouring_sentences_is_backed() -> None:
    """What two sentences side by side say together is found in full."""
    found = support("An employee gets 27 days of leave, and unused days lapse on 31 March", LEAVE)
    assert found == Support(share=1.0)


def test_a_claim_spread_over_a_passage_counts_less() -> None:
    """Words from everywhere in a passage are no proof that it says the thing."""
    assert 0 < support("The employee leave form is by Oda Brandvik", LEAVE).share < 1


def test_a_claim_may_join_two_passages_but_not_more() -> None:
    """What is left over by the best place may stand in one other."""
    texts = ("The red house is old.", "The green garden is wide.", "The blue lake is deep.")
    two = support("The red house is old, the green garden is wide", *texts)
    three = support("red old house, green wide garden, blue deep lake", *texts)
    assert not two.missing
    assert {"red", "old", "house"} <= {term.text for term in three.missing}


@pytest.mark.parametrize(
    "claim",
    [
        "A full-time employee gets 29 days of paid leave each year.",
        "The form is signed by Oda Holm.",
    ],
)
def test_a_wrong_number_or_name_is_noticed(claim: str) -> None:
    """One exact term that is not there is told apart from a missing word."""
    assert support(claim, LEAVE).lacks_exact


@pytest.mark.parametrize(
    ("claim", "texts", "is_denied"),
    [
        ("Dogs may come to the office.", (DOGS,), False),
        ("Dogs may not come to the office.", (DOGS,), True),
        ("Cats may come to the office.", (CATS,), True),
        ("Cats may come to the office.", (f"{DOGS} {CATS}",), True),
        ("Cats may not come to the office.", (f"{DOGS} {CATS}",), False),
        ("Smoking is allowed.", ("Smoking is forbidden.",), True),
        ("Smoking is not allowed.", ("Smoking is forbidden.",), False),
    ],
)
def test_a_negation_on_one_side_denies(
    claim: str, texts: tuple[str, ...], *, is_denied: bool
) -> None:
    """What counts is the sentence nearest to the claim, not its neighbours."""
    assert support(claim, *texts).is_denied is is_denied


@pytest.mark.parametrize(
    ("claim", "is_backed"),
    [
        ("The late fee is 25 pounds.", True),
        ("The late fee is 840 pounds.", False),
        ("The warranty runs for 5 years.", True),
        ("840 pounds", True),
    ],
)
def test_a_number_must_stand_with_what_it_is_said_of(claim: str, *, is_backed: bool) -> None:
    """A number from the next sentence is none of this one's, unless that one goes on with it."""
    text = (
        "A late fee of 25 pounds is charged. The deposit is 840 pounds. The warranty is long."
        " It runs for 5 years."
    )
    assert support(claim, text).lacks_exact is not is_backed


def test_a_bare_number_is_looked_for_by_its_question() -> None:
    """What a number is said of may be told apart from it."""
    passages = Passages(["Each pack holds 28 tablets. The leaflet has 4 pages of text."])
    number = content(terms("4"))
    assert passages.support(number, about=terms("pages leaflet")).missing == ()
    assert passages.support(number, about=terms("tablets pack")).lacks_exact


def test_no_passages_back_nothing() -> None:
    """Without passages the share is 0 and every term is missing; an empty claim has none."""
    assert support("Leave lapses.").share == 0
    assert len(support("Leave lapses.").missing) == 2
    assert Passages(["Leave lapses."]).support([]) == Support(share=0.0)


@given(ODD | PROSE)
def test_the_share_is_a_share(text: str) -> None:
    """Whatever is read, the share is from 0 to 1."""
    assert 0 <= support(text, text).share <= 1 + 1e-9


@given(PROSE | ODD, PROSE | ODD)
def test_a_sentence_of_a_passage_is_backed_by_it(text: str, other: str) -> None:
    """What is copied from a context is found there in full, whatever else there is."""
    for sentence in sentences(text):
        found = support(sentence, other, text)
        assert not found.missing
        assert found.share == pytest.approx(1) or not terms(sentence)
