"""What kind of thing a question asks for, and an answer gives."""

import pytest
from hypothesis import given as generated
from hypothesis import strategies as st

from rag_eval_otel.judge.text_forms import given, is_sentence, told
from rag_eval_otel.judge.text_kinds import FEATURES, asked, read
from rag_eval_otel.judge.text_questions import agreement, features, similarity

ODD = st.text(st.characters(exclude_categories=()), max_size=120)


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("Who designed it?", "person"),
        ("To whom is it sent?", "person"),
        ("where does it end", "place"),
        ("Until when is it open?", "time"),
        ("In which year was it built?", "time"),
        ("How long does it take?", "span"),
        ("How many days of leave are there?", "span"),
        ("How many eggs are there?", "count"),
        ("What is the maximum width of a bat?", "count"),
        ("What is the minimum age requirement?", "span"),
        ("How much does it cost?", "money"),
        ("What was the amount of money paid?", "money"),
        ("What percentage of them voted?", "share"),
        ("What is the name of the actor who sings?", "person"),
        ("What is the name of the horse?", "title"),
        ("What is the horse called?", "title"),
        ("What are the names of the two cities?", "place"),
        ("What is the purpose of the list?", "aim"),
        ("What is the list used for?", "aim"),
        ("Why is it red?", "reason"),
        ("What is the reason for it?", "reason"),
        ("How is it paid?", "manner"),
        ("What is the significance of it?", "clause"),
        ("What was the band planning?", "thing"),
        ("What does the company own?", "thing"),
        ("What about it?", "clause"),
        ("Is it red?", "polar"),
        ("May the libero serve?", "polar"),
        ("Before he moved, what did he do?", "thing"),
        ('What song is "Where are you now?" on?', "title"),
        ("Really?", "thing"),
        ("Wie lange gilt die Garantie?", "span"),
        ("Was braucht man dafür?", "thing"),
        ("Was ist der Preis?", "thing"),
        ("Ist der Keller offen?", "polar"),
        ("Qui dirige l'équipe ?", "person"),
        ("Qu'est-ce qui est obligatoire ?", "thing"),
        ("¿Dónde está la estación?", "place"),
        ("It is red.", None),
        ("I know who did it.", None),
        ("?", None),
        ("", None),
    ],
)
def test_a_question_asks_for_a_kind(question: str, kind: str | None) -> None:
    """The question word tells, and after "what" the noun; other texts ask for nothing."""
    assert asked(question) == kind


def test_what_is_asked_about_is_the_rest() -> None:
    """The question word is no part of what a question is about."""
    assert read("How long is the warranty?")[1].split() == ["is", "the", "warranty?"]
    assert read("It is red.")[1] == "It is red."


def test_a_long_text_is_a_question_if_it_begins_as_one() -> None:
    """A question mark somewhere in pages of text does not make them a question."""
    pages = "It rains. Does it? " * 100
    assert asked(pages) is None
    assert asked(f"Who asks? {pages}") == "person"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("1879", "time"),
        ("12th century", "time"),
        ("Later in 2013.", "time"),
        ("8:30", "time"),
        ("When it rains.", "time"),
        ("40 seconds", "span"),
        ("Twice", "span"),
        ("3-1", "count"),
        ("$4.00", "money"),
        ("A shilling.", "thing"),
        ("51.9%", "share"),
        ("Danny Elfman", "person"),
        ("Queen Victoria of England", "person"),
        ("written by Ada Lund", "person"),
        ("Atlanta, Georgia", "place"),
        ("London Liverpool Street Station", "place"),
        ("The Merivale Dome", "title"),
        ("Ape And Man Of The North", "place"),
        ("Mary Had A Little Lamb Today", "title"),
        ("Alternative rock", "thing"),
        ("Angora wool from rabbits and Chiengora from dogs", "clause"),
        ("Einen Ausweis", "thing"),
        ("butane", "thing"),
        ("", "thing"),
    ],
)
def test_an_answer_has_a_form(answer: str, kind: str) -> None:
    """Figures, capitals and small words tell what a few words give."""
    assert given(answer)[0] == kind


@pytest.mark.parametrize(
    ("text", "yes"),
    [
        ("The desk is in Ghent.", True),
        ("It ends on the market square.", True),
        ("The pump works at 15 bar.", True),
        ("Der Ausweis kostet 18 Euro.", True),
        ("Le grand bassin mesure 25 mètres.", True),
        ("On the market square in Leeds.", False),
        ("A wood block of oak.", False),
        ("Because it had become unsafe.", False),
        ("Ghent", False),
    ],
)
def test_a_sentence_has_a_verb(text: str, *, yes: bool) -> None:
    """What seems to have a verb tells more than what was asked for."""
    assert is_sentence(text) is yes


def test_likeness_of_questions() -> None:
    """The same question is 1, another of the same kind less, one on nothing alike 0."""
    question = "How long is the warranty?"
    assert similarity(question, question) == pytest.approx(1)
    assert 0 < similarity(question, "How long is the trip?") < 0.5
    assert similarity(question, "Is Ada here?") == 0
    assert agreement("How many are there?", "money") > agreement("Who is there?", "money")


def test_kinds_differ() -> None:
    """No two kinds have the same features."""
    assert len({tuple(sorted(one.items())) for one in FEATURES.values()}) == len(FEATURES)


@generated(ODD, ODD)
def test_any_text_has_a_kind(question: str, answer: str) -> None:
    """No text makes them raise; shares stay shares."""
    assert told(answer)
    kind = given(answer)[0]
    assert 0 <= agreement(question, kind) <= 1
    assert 0 <= similarity(question, answer) <= 1
    assert all(weight > 0 for part in features(question) for weight in part.values())
