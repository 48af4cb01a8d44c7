"""The typed questions: what their replies accept, and which may travel together."""

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rag_eval_otel.judge import tasks
from rag_eval_otel.judge.tasks import (
    JudgedStatements,
    Rating,
    Reply,
    ReverseQuestion,
    Statements,
    Task,
    Verdict,
    may_share,
)

Q, A, C = "Why?", "Because.", ("One.", "Two.")

REVERSE = tasks.reverse_question(A, draw=0)
STATEMENTS = tasks.statements(Q, A)
VERDICTS = tasks.verdicts(C, ["It is so."])
JUDGED = tasks.judged_statements(Q, A, C)
RELEVANT = [tasks.context_relevance(Q, C, voice=voice) for voice in (1, 2)]
GROUNDED = [tasks.groundedness(A, C, voice=voice) for voice in (1, 2)]
EVERY: list[Task[Any]] = [REVERSE, STATEMENTS, VERDICTS, JUDGED, *RELEVANT, *GROUNDED]


@pytest.mark.parametrize("value", [0, 1, 2, 1.0, -0.0])
def test_a_rating_on_the_scale(value: float) -> None:
    """A rating may be written as 1 or as 1.0."""
    assert Rating.model_validate({"rating": value}).rating == value


@pytest.mark.parametrize(
    "value",
    [True, False, "2", "2/2", None, 3, -1, 0.5, 1.9999, 1e999, float("nan"), 10**30, [2], {}],
)
def test_a_rating_off_the_scale_is_refused(value: object) -> None:
    """Nothing is rounded, cut, or read out of a text: the judge is asked again."""
    with pytest.raises(ValidationError):
        Rating.model_validate({"rating": value})


@pytest.mark.parametrize("value", [2, -1, True, "1", None, 0.5])
@pytest.mark.parametrize(
    ("reply", "rest", "field"),
    [
        (ReverseQuestion, {"question": "Why?"}, "noncommittal"),
        (Verdict, {"index": 1}, "verdict"),
    ],
)
def test_a_flag_is_0_or_1(
    reply: type[Reply], rest: dict[str, object], field: str, value: object
) -> None:
    """A verdict of -1 or 2 is no verdict, though it is true in Python."""
    with pytest.raises(ValidationError):
        reply.model_validate({**rest, field: value})


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        (Statements, {"statements": None}),
        (Statements, {"statements": "one"}),
        (Statements, {"statements": [1]}),
        (Statements, {}),
        (Statements, []),
        (Verdict, {"index": "1", "verdict": 1}),
        (Verdict, {"index": True, "verdict": 1}),
        (JudgedStatements, {"statements": ["text"]}),
        (ReverseQuestion, {"question": 1, "noncommittal": 0}),
    ],
)
def test_a_reply_of_the_wrong_shape_is_refused(reply: type[Reply], value: object) -> None:
    """What a judge returns is checked down to each member's type."""
    with pytest.raises(ValidationError):
        reply.model_validate(value)


def test_what_a_judge_adds_is_passed_over() -> None:
    """A member that was not asked for does not spoil the reply; a reason may be missing."""
    assert Rating.model_validate({"rating": 2, "confidence": 0.9}) == Rating(rating=2)


def test_equal_tasks_are_one_question() -> None:
    """Two metrics that ask the same get the same answer."""
    assert hash(tasks.statements(Q, A)) == hash(STATEMENTS)
    assert tasks.verdicts(list(C), ["It is so."]) == VERDICTS
    assert tasks.verdicts(C, ["It is so."], draw=1) != VERDICTS


def test_a_task_shows_its_texts() -> None:
    """An offline judge reads the texts from the task itself, one or several."""
    assert (VERDICTS.texts("contexts"), VERDICTS.text("contexts")) == (C, "One.\nTwo.")
    assert (REVERSE.texts("answer"), REVERSE.text("answer")) == ((A,), A)


@pytest.mark.parametrize("other", [task for task in EVERY if task is not REVERSE])
def test_a_reverse_question_travels_alone(other: Task[Any]) -> None:
    """Whoever writes the question must not have seen it, nor the contexts."""
    assert not may_share(REVERSE, other)
    assert not may_share(other, REVERSE)


def test_drawings_travel_together() -> None:
    """Repeated drawings of one question from one judge may share a request."""
    assert may_share(REVERSE, tasks.reverse_question(A, draw=1))


@pytest.mark.parametrize("voices", [RELEVANT, GROUNDED])
def test_two_voices_never_travel_together(voices: list[Task[Rating]]) -> None:
    """The two judges of a dual metric are independent only if neither sees the other's answer."""
    assert not may_share(voices[0], voices[1])
    assert not may_share(voices[1], voices[0])


def test_voices_of_different_metrics_may_share() -> None:
    """A request may hold one voice of each dual metric."""
    assert may_share(RELEVANT[0], GROUNDED[1])


def test_one_name_stands_for_one_text() -> None:
    """Tasks about different texts of the same name do not share a request."""
    assert not may_share(STATEMENTS, tasks.statements(Q, "Another answer."))
    assert not may_share(VERDICTS, tasks.verdicts(C, ["Something else."]))


@given(st.permutations(EVERY))
def test_sharing_does_not_depend_on_the_order(order: list[Task[Any]]) -> None:
    """Whether two tasks may share a request is the same from both sides."""
    assert all(may_share(one, two) == may_share(two, one) for one, two in combinations(order, 2))
