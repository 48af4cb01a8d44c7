"""The typed questions: what their replies accept, and which may travel together."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import questions
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge import tasks as kinds
from rag_eval_otel.judge.tasks import (
    Kind,
    Rating,
    Task,
    check_examples,
    example_of,
    may_share,
)

Q, A, C = "Why?", "Because.", ("One.", "Two.")

STATEMENTS = questions.statements(Q, A)
VERDICTS = questions.verdicts(C, ["It is so."])
JUDGED = questions.judged_statements(Q, A, C)


@pytest.mark.parametrize("value", [0, 1, 2, 1.0, -0.0])
def test_a_rating_on_the_scale(value: float) -> None:
    """A rating may be written as 1 or as 1.0."""
    assert Rating.model_validate({"rating": value}).rating == value


def test_one_name_stands_for_one_text() -> None:
    """Tasks about different texts of the same name do not share a request."""
    assert not may_share(STATEMENTS, questions.statements(Q, "Another answer."))
    assert not may_share(VERDICTS, questions.verdicts(C, ["Something else."]))


def own(name: str, *inputs: str) -> Task[Any]:
    kind = Kind(prompt=f"custom_{name}", reply=Rating, inputs=inputs, instructions="Is it?")
    return kind.task(dict.fromkeys(inputs, A))


def test_a_text_of_the_users_own_is_seen_by_nobody_else() -> None:
    """Nobody knows whether it gives the right answer away."""
    shown = own("x", "answer", "gold")
    assert not may_share(shown, STATEMENTS)
    assert not may_share(shown, own("y", "answer"))
    assert may_share(shown, own("y", "answer", "gold"))
    assert may_share(own("x", "answer"), STATEMENTS)


@pytest.mark.parametrize("name", ["statements", "questions", "sub_questions", "intent", "context"])
def test_a_name_of_ours_says_nothing_of_the_users_text(name: str) -> None:
    """What is called intent in a metric of somebody's own need not come from the question."""
    assert own("x", name).shows == {name}
    assert not may_share(own("x", name), STATEMENTS)


def test_contexts_one_by_one_share_a_request() -> None:
    """Of all names that stands for two texts, the context alone is one of a list."""
    shown = {"question": Q, "answer": A}
    one, other = (kinds.USEFUL_FOR_ANSWER.task({**shown, "context": c}) for c in C)
    assert may_share(one, other)
    assert may_share(one, JUDGED)
    assert not may_share(one, questions.statements("Another question?", A))


SHOWN: dict[str, Any] = {"question": Q, "answer": A}
GIVEN: dict[str, Any] = {"inputs": SHOWN, "outputs": {"statements": ["It is so.", "Thänks."]}}


def test_an_example_is_kept_as_it_was_given() -> None:
    """Inputs in the order of the kind, the reply as JSON, letters as they are."""
    example = example_of(kinds.STATEMENTS, {**GIVEN, "inputs": {"answer": A, "question": Q}})
    assert example is not None
    assert example.inputs == (("question", Q), ("answer", A))
    assert example.outputs == '{"statements": ["It is so.", "Thänks."]}'


def test_tasks_with_other_examples_are_other_questions() -> None:
    """Examples are part of a question; two that differ in them alone travel apart."""
    taught = kinds.STATEMENTS.task(SHOWN, examples=[GIVEN])
    assert taught != STATEMENTS
    assert not may_share(taught, STATEMENTS)
    assert may_share(taught, JUDGED)
    assert taught == kinds.STATEMENTS.task(SHOWN, examples=[GIVEN])
    assert hash(taught) == hash(kinds.STATEMENTS.task(SHOWN, examples=[GIVEN]))


def test_an_example_that_fits_nothing_is_refused_with_the_forms() -> None:
    """The error counts the example and says the form for each question of the metric."""
    check_examples("m", [GIVEN], [kinds.STATEMENTS, kinds.VERDICTS])
    with pytest.raises(ConfigError) as refused:
        check_examples("m", [GIVEN, {"inputs": SHOWN}], [kinds.STATEMENTS, kinds.VERDICTS])
    assert str(refused.value) == (
        "examples[1] of m must be {'inputs': ..., 'outputs': ...} with "
        "inputs ['question', 'answer'] with outputs ['statements']; or "
        "inputs ['contexts', 'statements'] with outputs ['verdicts']"
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["inputs", "outputs", "question", "answer", "statements"]),
            inner,
            max_size=3,
        )
    ),
)


@given(JSON | st.fixed_dictionaries({"inputs": JSON, "outputs": JSON}))
def test_whatever_is_given_as_an_example(given_example: Any) -> None:
    """It can be shown, or it is none: nothing raises."""
    example = example_of(kinds.STATEMENTS, given_example)
    if example is not None:
        assert set(dict(example.inputs)) <= {"question", "answer"}
