"""The typed questions: what their replies accept, what they show, and which may travel together."""

import math
import re
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import questions
from properties import json_values
from rag_eval_otel.judge import tasks as kinds
from rag_eval_otel.judge.codec import compose, prompt_text
from rag_eval_otel.metrics import METRICS
from scoring import GOOD, spoilt
from scoring import task_of as task

Q, A, C = "Why?", "Because.", ("One.", "Two.")

STATEMENTS = questions.statements(Q, A)
JUDGED = questions.judged_statements(Q, A, C)


ALL: dict[str, kinds.Kind[Any]] = {
    kind.prompt: kind
    for one in (*vars(kinds).values(), METRICS["rubric"]().asks)
    for kind in (one if isinstance(one, tuple) else (one,))
    if isinstance(kind, kinds.Kind)
}
every = pytest.mark.parametrize("kind", ALL.values(), ids=lambda kind: kind.prompt)


def own(name: str, *inputs: str) -> kinds.Task[Any]:
    kind = kinds.Kind(
        prompt=f"custom_{name}", reply=kinds.Rating, inputs=inputs, instructions="Is it?"
    )
    return kind.task(dict.fromkeys(inputs, A))


def test_a_text_of_the_users_own_is_seen_by_nobody_else() -> None:
    """Nobody knows whether it gives the right answer away."""
    shown = own("x", "answer", "gold")
    assert not kinds.may_share(shown, STATEMENTS)
    assert not kinds.may_share(shown, own("y", "answer"))
    assert kinds.may_share(shown, own("y", "answer", "gold"))
    assert kinds.may_share(own("x", "answer"), STATEMENTS)


@pytest.mark.parametrize("name", ["statements", "questions", "sub_questions", "intent", "context"])
def test_a_name_of_ours_says_nothing_of_the_users_text(name: str) -> None:
    """What is called intent in a metric of somebody's own need not come from the question."""
    assert own("x", name).shows == {name}
    assert not kinds.may_share(own("x", name), STATEMENTS)


def test_contexts_one_by_one_share_a_request() -> None:
    """Of all names that stands for two texts, the context alone is one of a list."""
    shown = {"question": Q, "answer": A}
    one, other = (kinds.USEFUL_FOR_ANSWER.task({**shown, "context": c}) for c in C)
    assert kinds.may_share(one, other)
    assert kinds.may_share(one, JUDGED)
    assert not kinds.may_share(one, questions.statements("Another question?", A))


SHOWN: dict[str, Any] = {"question": Q, "answer": A}
GIVEN: dict[str, Any] = {"inputs": SHOWN, "outputs": {"statements": ["It is so.", "Thänks."]}}


def test_tasks_with_other_examples_are_other_questions() -> None:
    """Examples are part of a question; two that differ in them alone travel apart."""
    taught = kinds.STATEMENTS.task(SHOWN, examples=[GIVEN])
    assert taught != STATEMENTS
    assert not kinds.may_share(taught, STATEMENTS)
    assert kinds.may_share(taught, JUDGED)
    assert taught == kinds.STATEMENTS.task(SHOWN, examples=[GIVEN])
    assert hash(taught) == hash(kinds.STATEMENTS.task(SHOWN, examples=[GIVEN]))


@pytest.mark.parametrize(
    ("inputs", "outputs", "fits"),
    [
        ({"answer": A}, {}, True),
        ({}, {}, False),
        ({**SHOWN, "contexts": C}, {}, False),
        (SHOWN, {"index": 1}, False),
        (SHOWN, {"rating": A}, False),
    ],
)
def test_an_example_fits_its_question(inputs: Any, outputs: Any, *, fits: bool) -> None:
    """It has texts of the question's names, and members of a valid reply alone."""
    one = {"inputs": inputs, "outputs": {"rating": 1, **outputs}}
    assert (kinds.example_of(kinds.DIRECT_RELEVANCY, one) is not None) == fits


@pytest.mark.parametrize(
    ("levels", "schema"),
    [
        ((1, 2.0), "{'enum': [1, 2], 'type': 'integer'}"),
        ((0.0, 0.5), "{'enum': [0, 0.5], 'type': 'number'}"),
    ],
)
def test_levels_in_a_schema(levels: tuple[float, ...], schema: str) -> None:
    """Whole numbers have no point, for a judge writes what it is shown."""
    found = kinds.grade_on(*levels).model_json_schema()["properties"]["rating"]
    assert str({name: found[name] for name in ("enum", "type")}) == schema


JSON = json_values("inputs", "outputs", "question", "answer", "statements")


@given(JSON | st.fixed_dictionaries({"inputs": JSON, "outputs": JSON}))
def test_whatever_is_given_as_an_example(given_example: Any) -> None:
    """It can be shown, or it is none: nothing is raised."""
    assert isinstance(kinds.example_of(kinds.STATEMENTS, given_example), kinds.Example | None)


@every
def test_every_member_is_required_and_checked(kind: kinds.Kind[Any]) -> None:
    """Off the scale, of another type, null or missing: refused. Further members are not shown."""
    reply: Any = GOOD[kind.prompt](task(kind))
    for more in ({}, {"confidence": 1}):
        assert isinstance(kind.reply.model_validate({**reply, **more}), kind.reply)
    assert kind.reply.model_json_schema()["additionalProperties"] is False
    for bad in spoilt(reply):
        with pytest.raises(ValidationError):
            kind.reply.model_validate(bad)
    for name in reply.keys() - {"reason"}:
        for bad in ({k: v for k, v in reply.items() if k != name}, {**reply, name: None}):
            with pytest.raises(ValidationError):
                kind.reply.model_validate(bad)


@pytest.mark.parametrize(
    ("reply", "low", "high"),
    [(kinds.Rating, 0, 2), (kinds.UnitRating, 0, 1), (kinds.FivePoint, 1, 5)],
)
def test_both_ends_are_on_the_scale(reply: type[kinds.Reply], low: float, high: float) -> None:
    """The ends of a scale count, also as 2.0, and what is a hair beyond them does not."""
    inside = () if reply is kinds.Rating else (math.nextafter(low, 9), math.nextafter(high, 0))
    for rating in (low, float(high), (low + high) / 2, *inside):
        assert reply.model_validate({"rating": rating}).model_dump()["rating"] == rating
    for rating in (math.nextafter(low, -9), math.nextafter(high, 9)):
        with pytest.raises(ValidationError, match=r"must be from|should be 0, 1 or 2"):
            reply.model_validate({"rating": rating})
    yes, no = (kinds.Useful.graded(one).verdict for one in (0.5, math.nextafter(0.5, 0)))
    assert (yes, no) == (1, 0), "half of a probability is a yes"


def test_a_refusal_quotes_little() -> None:
    """What a judge is told of its reply does not grow with the reply."""
    for reply in (kinds.Rating, kinds.TwoMarks, kinds.UnitRating):
        (name, *_) = reply.model_fields
        with pytest.raises(ValidationError) as refused:
            reply.model_validate({name: "7" * 10_000, "sufficiency": 1})
        assert max(len(error["msg"]) for error in refused.value.errors()) < 120


@every
def test_a_prompt_is_short_and_names_its_members(kind: kinds.Kind[Any]) -> None:
    """Names in backticks are members of the reply or names of the material; the text is short."""
    text = prompt_text(kind.prompt)
    assert len(text) < 500
    schema = str(kind.reply.model_json_schema())
    for name in re.findall(r"`(\w+)`", text):
        assert name in kind.inputs or f"'{name}'" in schema, name


def test_the_reference_is_seen_by_no_question_that_does_not_show_it() -> None:
    """What knows the right answer never shares a request with what must judge without it."""
    for one, other in combinations(ALL.values(), 2):
        if ("reference" in one.inputs) != ("reference" in other.inputs):
            assert not kinds.may_share(task(one), task(other)), (one.prompt, other.prompt)


@pytest.mark.parametrize("name", ["rubric", "guideline", "reverse_question"])
def test_some_questions_travel_alone(name: str) -> None:
    """The user's rules may say what is right; a reverse question must not show the question."""
    one = task(ALL[name])
    assert not [k for k in ALL.values() if k.prompt != name and kinds.may_share(one, task(k))]


def test_the_rest_may_travel_together() -> None:
    """Without reference, rules and reverse questions, all first voices fit into one request."""
    shared = [
        task(kind)
        for kind in ALL.values()
        if not {"reference", "rubric", "guidelines"} & set(kind.inputs)
        and kind is not kinds.REVERSE_QUESTION
        and kind.voice != 2
    ]
    assert all(kinds.may_share(one, other) for one, other in combinations(shared, 2))
    request = compose(shared)
    assert set(request.schema["properties"]) == {task.prompt for task in shared}
    assert len({task.prompt for task in shared}) == len(shared)
    for name in ("question", "answer", "contexts", "statements", "sub_questions", "intent"):
        assert len(re.findall(rf"^\[\w+ {name}(?: 1)?\]$", request.user, flags=re.MULTILINE)) == 1


def test_more_texts_and_reasons_allow_longer_replies() -> None:
    """Each judged text counts, reasons triple the limit, and prompts of users have none."""
    verdicts = questions.verdicts(["One."], ["A.", "B."])
    assert kinds.most_tokens([verdicts]) == 1024 + 2 * 64
    assert kinds.most_tokens([replace(verdicts, reasons="on")]) == 3 * (1024 + 2 * 64)
    assert kinds.most_tokens([questions.statements("Q", "é" * 512)]) == 1024 + 1024
    assert kinds.most_tokens([questions.statements("Q", "x" * 100_000)]) == 16_384
    own = kinds.Kind(prompt="mine", reply=kinds.Rating, inputs=("answer",), instructions="Rate it.")
    assert kinds.most_tokens([verdicts, own.task({"answer": "A"})]) is None
