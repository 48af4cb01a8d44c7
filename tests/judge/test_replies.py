"""What counts as a reply: every number in its bounds, nothing guessed."""

import json
import math
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from rag_eval_otel.judge import tasks as kinds
from rag_eval_otel.judge.tasks import (
    Accuracy,
    FivePoint,
    Kind,
    Rating,
    Reply,
    TwoMarks,
    UnitRating,
    grade_on,
)
from scoring import GOOD, spoilt

KINDS: list[Kind[Any]] = [
    kind
    for one in vars(kinds).values()
    for kind in (one if isinstance(one, tuple) else (one,))
    if isinstance(kind, Kind)
]


def good(kind: Kind[Any]) -> dict[str, object]:
    lists = {"contexts", "statements", "sentences", "questions", "sub_questions"}
    shown = {name: ["One.", "Two."] if name in lists else "One." for name in kind.inputs}
    reply = GOOD[kind.prompt](kind.task(shown))
    assert isinstance(reply, dict)
    return reply


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.prompt)
def test_every_number_is_checked(kind: Kind[Any]) -> None:
    """Off the scale, a boolean for a number, a number for a boolean, a string, null: refused."""
    reply = good(kind)
    assert isinstance(kind.reply.model_validate(reply), kind.reply)
    for bad in spoilt(reply):
        with pytest.raises(ValidationError):
            kind.reply.model_validate(bad)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.prompt)
def test_every_member_is_required(kind: Kind[Any]) -> None:
    """All but a reason must be there, and lists and texts must be lists and texts."""
    reply = good(kind)
    for name in reply:
        if name == "reason":
            continue
        for bad in ({k: v for k, v in reply.items() if k != name}, {**reply, name: None}):
            with pytest.raises(ValidationError):
                kind.reply.model_validate(bad)


@pytest.mark.parametrize(
    ("reply", "low", "high"), [(UnitRating, 0, 1), (FivePoint, 1, 5)], ids=["unit", "five"]
)
def test_both_ends_are_on_the_scale(reply: type[Reply], low: float, high: float) -> None:
    """The ends of a continuous scale count, what is a hair beyond does not."""
    for rating in (low, high, (low + high) / 2, math.nextafter(low, 9), math.nextafter(high, 0)):
        assert reply.model_validate({"rating": rating}).model_dump()["rating"] == rating
    for rating in (math.nextafter(low, -9), math.nextafter(high, 9)):
        with pytest.raises(ValidationError, match="must be from"):
            reply.model_validate({"rating": rating})


def test_a_refusal_quotes_little() -> None:
    """What a judge is told of its reply does not grow with the reply."""
    for reply in (Rating, TwoMarks, UnitRating):
        (name, *_) = reply.model_fields
        with pytest.raises(ValidationError) as refused:
            reply.model_validate({name: "7" * 10_000, "sufficiency": 1})
        assert max(len(error["msg"]) for error in refused.value.errors()) < 120


@pytest.mark.parametrize("number", [10**400, -(10**400), 10**4000])
def test_an_integer_too_large_for_a_float(number: int) -> None:
    """JSON's integers know no bounds; ours do."""
    for reply in (Rating, Accuracy, UnitRating, FivePoint, grade_on(0, 1)):
        with pytest.raises(ValidationError):
            reply.model_validate({"rating": number})


@pytest.mark.parametrize(
    ("levels", "schema"),
    [
        ((0, 0.5, 1), {"type": "number", "enum": [0, 0.5, 1]}),
        ((1.0, 2.0), {"type": "integer", "enum": [1, 2]}),
    ],
)
def test_the_schema_lists_the_levels(levels: tuple[float, ...], schema: dict[str, Any]) -> None:
    """A server that keeps to the schema cannot leave the scale."""
    rating = grade_on(*levels).model_json_schema()["properties"]["rating"]
    assert {key: rating[key] for key in schema} == schema
    assert json.loads(json.dumps(rating["enum"])) == schema["enum"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.prompt)
def test_a_kinds_reply_forbids_nothing_but_says_so(kind: Kind[Any]) -> None:
    """The schema allows no further member, since servers want that; a reply with one is read."""
    assert issubclass(kind.reply, BaseModel)
    assert kind.reply.model_json_schema()["additionalProperties"] is False
    assert kind.reply.model_validate({**good(kind), "confidence": 1})
