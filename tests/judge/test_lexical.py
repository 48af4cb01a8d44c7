"""The offline judge: what it says to each task, and that it says it for any text."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.errors import UnparsableReplyError
from rag_eval_otel.judge import tasks
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.judge.tasks import Rating, Reply, ReverseQuestion, Statements, Task, Verdicts
from rag_eval_otel.judge.text import sentences, terms
from rag_eval_otel.types import Usage

QUESTION = "How many days of paid leave does an employee get?"
CONTEXTS = (
    "An employee gets 27 days of paid leave each year. Unused days lapse on 31 March.",
    "Flights are booked by the travel desk. The desk is open until 18:00.",
)
GOOD = "An employee gets 27 days of paid leave each year."
WRONG = "An employee gets 30 days of paid leave each year."

ODD = st.text(st.characters(exclude_categories=()), max_size=120)
TEXT = ODD | st.sampled_from([QUESTION, *CONTEXTS, GOOD, WRONG, "I don't know.", "Yes.", "?", ""])


def reply(task: Task[Any]) -> Any:
    """Return the judge's answer to ``task``."""
    return asyncio.run(LexicalJudge().reply([task])).parts[0]


def claims(answer: str) -> list[str]:
    """Return the claims the judge finds in ``answer``."""
    found: Statements = reply(tasks.statements(QUESTION, answer))
    return found.statements


def verdicts(*statements: str, contexts: tuple[str, ...] = CONTEXTS) -> list[int]:
    """Return the judge's verdict on each of ``statements``."""
    found: Verdicts = reply(tasks.verdicts(contexts, statements))
    return [verdict.verdict for verdict in found.verdicts]


def every_task(question: str, answer: str, contexts: tuple[str, ...]) -> list[Task[Any]]:
    """Return one task of every type."""
    return [
        *(tasks.reverse_question(answer, draw=draw) for draw in range(4)),
        tasks.statements(question, answer),
        tasks.verdicts(contexts, [answer, question]),
        tasks.judged_statements(question, answer, contexts),
        *(tasks.context_relevance(question, contexts, voice=voice) for voice in (1, 2)),
        *(tasks.groundedness(answer, contexts, voice=voice) for voice in (1, 2)),
    ]


def test_a_request_costs_nothing() -> None:
    """The reply names the lexical judge and counts no request."""
    replies = asyncio.run(LexicalJudge().reply([tasks.statements(QUESTION, GOOD)]))
    assert (replies.model, replies.usage) == ("lexical", Usage())


def test_an_unknown_task_is_declined() -> None:
    """A task of the user's own gets an error that names it, and leaves the others alone."""
    own = Task(prompt="own", reply=Reply, inputs=(), shows=frozenset())
    first, second = asyncio.run(LexicalJudge().reply([own, tasks.statements(QUESTION, GOOD)])).parts
    assert isinstance(first, UnparsableReplyError)
    assert "cannot answer 'own'" in str(first)
    assert isinstance(second, Statements)


def test_claims_are_the_sentences_that_say_something() -> None:
    """Greetings, questions and phrases around the answer are no claims."""
    answer = (
        "Hello! According to the handbook, leave is 27 days; it lapses in March. Anything else?"
    )
    assert claims(answer) == ["leave is 27 days", "it lapses in March."]


@pytest.mark.parametrize(
    "answer",
    [
        "I don't know.",
        "I’m sorry, but I cannot answer that.",  # noqa: RUF001
        "This is not mentioned in the context.",
        "The provided documents do not contain that. Please contact the people team.",
        "As an AI, I have no view on leave.",
        "I am unable to help with leave.",
        "There is no information on leave. Is there anything else?",
        "Unfortunately, I don't have enough information to answer.",
        "The documents only mention travel, and it isn't stated in the text.",
        "Je suis désolé, je ne sais pas.",
        "Das weiß ich leider nicht.",
        "Dazu kann ich nichts sagen.",
        "Lo siento, no puedo responder.",
        "I'm ready to answer your questions.",
    ],
)
def test_an_evasive_answer_is_noncommittal_and_claims_nothing(answer: str) -> None:
    """A refusal has no claims, whatever its words."""
    assert claims(answer) == []
    assert reply(tasks.reverse_question(answer, draw=0)).noncommittal == 1


@pytest.mark.parametrize(
    "answer",
    [
        "Damage by lightning is not covered by the warranty.",
        "The warranty does not include lightning.",
        "Sorry, the shop is closed on Sundays.",
        "I don't know the exact fee. The form is on page 3.",
        "Please hand in the form within 2 hours.",
        "You can contact the desk until 18:00.",
        "Yes.",
        "12",
    ],
)
def test_a_negative_or_short_answer_is_not_evasive(answer: str) -> None:
    """Saying no, apologising, or telling whom to ask can be an answer."""
    assert reply(tasks.reverse_question(answer, draw=0)).noncommittal == 0


@pytest.mark.parametrize(
    ("statement", "verdict"),
    [
        (GOOD, 1),
        ("Employees get twenty-seven days of paid leave.", 1),
        (WRONG, 0),
        ("An employee does not get paid leave.", 0),
        ("Flights are booked by the team lead.", 0),
        ("Pets are welcome on Fridays.", 0),
        ("", 0),
    ],
)
def test_a_claim_needs_its_words_in_the_contexts(statement: str, verdict: int) -> None:
    """A claim is backed where its words, numbers and names stand together, not negated."""
    assert verdicts(statement) == [verdict]


def test_words_scattered_over_the_contexts_back_nothing() -> None:
    """A claim put together from pieces of many contexts is not in any of them."""
    contexts = ("The red bus stops here.", "The old mayor lives there.", "Green tea is served.")
    assert verdicts("The mayor serves tea here on the red bus.", contexts=contexts) == [0]


def test_a_verdict_tells_what_was_missing() -> None:
    """The reason names the words that were not found."""
    assert "30" in reply(tasks.verdicts(CONTEXTS, [WRONG])).verdicts[0].reason


def test_claims_and_verdicts_come_together() -> None:
    """Judged in one step, every claim carries its verdict; the question's words are given."""
    answer = f"{GOOD} Parrots are free. Parrots are free."
    judged = reply(tasks.judged_statements(QUESTION, answer, CONTEXTS)).statements
    assert [(one.statement, one.verdict) for one in judged] == [
        (GOOD, 1),
        ("Parrots are free.", 0),
        ("Parrots are free.", 0),
    ]
    asked = tasks.judged_statements("Who books a zeppelin?", "The desk books a zeppelin.", CONTEXTS)
    assert reply(asked).statements[0].verdict == 1


@pytest.mark.parametrize("voice", [1, 2])
@pytest.mark.parametrize(
    ("question", "rating"),
    [
        (QUESTION, 2),
        ("Which parrots sing best at dawn?", 0),
        ("", 0),
    ],
)
def test_contexts_are_relevant_that_hold_what_is_asked_about(
    question: str, rating: int, voice: int
) -> None:
    """Both voices rate by how much of the question the contexts hold."""
    assert reply(tasks.context_relevance(question, CONTEXTS, voice=voice)).rating == rating


def test_the_voices_on_relevance_are_two() -> None:
    """Words far apart in one context satisfy the first voice more than the second."""
    filler = "It rains. " * 5
    context = f"Larks sing. {filler} Owls sleep. {filler} Doves nest."
    ratings = [
        reply(tasks.context_relevance("larks owls doves sing sleep", [context], voice=v)).rating
        for v in (1, 2)
    ]
    assert ratings[0] >= ratings[1]
    halves = ("larks bring many tidings", "owls bring other tidings at night")
    one, two = (
        reply(tasks.context_relevance("larks owls herons tidings", halves, voice=v)).rating
        for v in (1, 2)
    )
    assert (one, two) == (1, 1)


@pytest.mark.parametrize(
    ("answer", "ratings"),
    [
        (GOOD, [2, 2]),
        (f"{GOOD} Parrots live in the attic and sing.", [1, 1]),
        ("Parrots live in the attic and sing.", [0, 0]),
        ("I don't know.", [0, 0]),
    ],
)
def test_groundedness_is_rated_by_words_and_by_claims(answer: str, ratings: list[int]) -> None:
    """All, some or nothing of the answer is backed."""
    found: list[Rating] = [
        reply(tasks.groundedness(answer, CONTEXTS, voice=voice)) for voice in (1, 2)
    ]
    assert [one.rating for one in found] == ratings


@pytest.mark.parametrize(
    ("answer", "lead"),
    [
        ("Because the rain came.", "Why"),
        ("24 April 2017", "When"),
        ("In 1945.", "When"),
        ("54 percent", "What percentage"),
        ("$300,000", "How much"),
        ("It takes 12 days.", "How many"),
        ("At the Rockstar offices.", "Where"),
        ("George Wythe", "Who"),
        ("A wood block.", "What"),
    ],
)
def test_a_reverse_question_begins_as_the_answer_suggests(answer: str, lead: str) -> None:
    """The form of an answer tells what kind of question it answers."""
    assert reply(tasks.reverse_question(answer, draw=2)).question.startswith(f"{lead} ")


def test_the_drawings_differ() -> None:
    """Each drawing looks at the answer in its own way; after the last comes the first again."""
    answer = "The yearly paid leave is 27 days. Unused days lapse."
    found: list[ReverseQuestion] = [
        reply(tasks.reverse_question(answer, draw=draw)) for draw in range(4)
    ]
    assert [one.question for one in found] == [
        "How many: The yearly paid leave is 27 days?",
        "What is The yearly paid leave?",
        "How many yearly paid leave days Unused days lapse?",
        "How many: The yearly paid leave is 27 days?",
    ]


@given(TEXT, TEXT, st.lists(TEXT, max_size=3).map(tuple))
def test_every_task_is_answered_for_any_text(
    question: str, answer: str, contexts: tuple[str, ...]
) -> None:
    """Replies fit their task's model, and are the same every time."""
    asked = every_task(question, answer, contexts)
    first, again = (asyncio.run(LexicalJudge().reply(asked)).parts for _ in range(2))
    assert first == again
    for task, part in zip(asked, first, strict=True):
        assert isinstance(part, task.reply)
        assert task.reply.model_validate(part.model_dump()) == part


@given(st.lists(TEXT, max_size=5), st.lists(TEXT, max_size=3).map(tuple))
def test_every_statement_gets_its_verdict(statements: list[str], contexts: tuple[str, ...]) -> None:
    """There is one verdict per statement, numbered from 1 in their order."""
    found: Verdicts = reply(tasks.verdicts(contexts, statements))
    assert [verdict.index for verdict in found.verdicts] == list(range(1, len(statements) + 1))


@given(TEXT, TEXT)
def test_what_is_copied_from_a_context_is_backed(text: str, other: str) -> None:
    """Every sentence of a context that has a word follows from the contexts."""
    copied = [sentence for sentence in sentences(text) if terms(sentence)]
    assert all(verdicts(*copied, contexts=(other, text)))


def test_large_texts_are_answered() -> None:
    """Megabytes of text take bounded work: what is beyond the limit is not read."""
    large = "Word is not other. " * 110_000
    for task in every_task(large, large, (large, large)):
        assert isinstance(reply(task), task.reply)
