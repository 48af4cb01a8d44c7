"""The kinds of question and their prompts: complete, consistent, and who may see what."""

import re
from itertools import combinations
from typing import Any

import pytest

from rag_eval_otel.judge import tasks as kinds
from rag_eval_otel.judge.tasks import Kind, Task, may_share
from rag_eval_otel.judge.wire import compose, prompt_text, reply_schema
from rag_eval_otel.metrics import METRICS

ALL: dict[str, Kind[Any]] = {
    kind.prompt: kind
    for one in (*vars(kinds).values(), METRICS["rubric"]().asks)
    for kind in (one if isinstance(one, tuple) else (one,))
    if isinstance(kind, Kind)
}
LISTS = {
    "contexts": ["C1.", "C2."],
    "statements": ["S1."],
    "sentences": ["S1."],
    "questions": ["Q1?"],
}
TEXTS: dict[str, Any] = {
    **LISTS,
    "question": "Q?",
    "answer": "A.",
    "reference": "R.",
    "context": "C1.",
    "sub_questions": ["Q1?"],
    "intent": "I.",
    "guidelines": "G.",
    "rubric": "0: No.\n1: Yes.",
}
every = pytest.mark.parametrize("kind", ALL.values(), ids=lambda kind: kind.prompt)


def task(kind: Kind[Any]) -> Task[Any]:
    return kind.task(TEXTS)


@every
def test_a_prompt_is_short_and_names_its_members(kind: Kind[Any]) -> None:
    """Names in backticks are members of the reply or names of the material; the text is short."""
    text = prompt_text(kind.prompt)
    assert len(text) < 500
    schema = str(kind.reply.model_json_schema())
    for name in re.findall(r"`(\w+)`", text):
        assert name in kind.inputs or f"'{name}'" in schema, name


@every
def test_what_a_judge_has_to_decide_is_named(kind: Kind[Any]) -> None:
    """Each number of a reply with several members is named in the prompt, with its meaning."""
    text = prompt_text(kind.prompt)
    assert [
        name for name in numbers_in(reply_schema(kind.reply, reasons=False)) if name not in text
    ] == []


def numbers_in(schema: dict[str, Any]) -> list[str]:
    members = schema.get("properties", {}) or schema.get("items", {}).get("properties", {})
    below = [name for one in members.values() for name in numbers_in(one)]
    plain = {"integer", "number", "boolean"}
    return below + [f"`{name}`" for name, one in members.items() if one.get("type") in plain]


PAIRS = list(combinations(ALL.values(), 2))


def test_the_reference_is_seen_by_no_question_that_does_not_show_it() -> None:
    """What knows the right answer never shares a request with what must judge without it."""
    for one, other in PAIRS:
        if ("reference" in one.inputs) != ("reference" in other.inputs):
            assert not may_share(task(one), task(other)), (one.prompt, other.prompt)


@pytest.mark.parametrize("name", ["rubric", "guidelines"])
def test_rules_of_the_users_are_seen_by_no_other_question(name: str) -> None:
    """A rubric may say what the right answer is; so may a guideline."""
    (kind,) = (kind for kind in ALL.values() if name in kind.inputs)
    assert not [k.prompt for k in ALL.values() if k is not kind and may_share(task(kind), task(k))]


def test_a_reverse_question_is_drawn_from_the_answer_alone() -> None:
    """Nothing that shows question or contexts may be in the same request."""
    for other in ALL.values():
        if other is not kinds.REVERSE_QUESTION:
            assert not may_share(task(kinds.REVERSE_QUESTION), task(other))


@pytest.mark.parametrize(
    "voices", [kinds.CONTEXT_RELEVANCE, kinds.GROUNDEDNESS, kinds.ACCURACY], ids=str
)
def test_two_voices_are_two_requests(voices: tuple[Kind[Any], ...]) -> None:
    """Two judges that are to be independent do not answer in one reply."""
    one, other = voices
    assert not may_share(task(one), task(other))
    assert (one.voice, other.voice) == (1, 2)
    assert prompt_text(one.prompt) != prompt_text(other.prompt)
    assert one.family == other.family


def test_the_rest_may_travel_together() -> None:
    """Without reference, rules and reverse questions, all first voices fit into one request."""
    shared = [
        task(kind)
        for kind in ALL.values()
        if not {"reference", "rubric", "guidelines"} & set(kind.inputs)
        and kind is not kinds.REVERSE_QUESTION
        and kind.voice != 2
    ]
    assert all(may_share(one, other) for one, other in combinations(shared, 2))
    request = compose(shared)
    assert set(request.schema["properties"]) == {task.prompt for task in shared}
    assert len({task.prompt for task in shared}) == len(shared)
    for name in ("question", "answer", "contexts", "statements", "sub_questions", "intent"):
        assert len(re.findall(rf"^\[\w+ {name}(?: 1)?\]$", request.user, flags=re.MULTILINE)) == 1
