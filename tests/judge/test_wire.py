"""Messages and schemas for a judge, and the reading of whatever it says."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import questions
from rag_eval_otel.errors import UnparsableReplyError
from rag_eval_otel.judge import kinds
from rag_eval_otel.judge.replies import Rating, Reply, ReverseQuestion, Statements
from rag_eval_otel.judge.tasks import (
    Task,
    compose,
    part_names,
    prompt_hash,
    prompt_text,
    read_parts,
)
from support import GOOD, prompt_of

Q, A, C = "Why?", "Because.", ("One.", "Two.")
CONTEXT, GROUNDED = (
    questions.context_relevance(Q, C, voice=1),
    questions.groundedness(A, C, voice=1),
)
STATEMENTS = questions.statements(Q, A)
DRAWS = [questions.reverse_question(A, draw=i) for i in range(3)]
MIXED: list[Task[Any]] = [CONTEXT, STATEMENTS, GROUNDED]
GROUPS: list[list[Task[Any]]] = [[CONTEXT], [STATEMENTS], DRAWS, MIXED]


def replied(group: Sequence[Task[Any]]) -> dict[str, object]:
    """Return a usable reply to each task."""
    return {name: GOOD[prompt_of(name)] for name in part_names(group)}


def kinds_of(parts: Sequence[object]) -> list[type[object]]:
    """Return the type of each part."""
    return [type(part) for part in parts]


# --- what is sent ---------------------------------------------------------------------------------


def test_material_is_shown_once() -> None:
    """Tasks that share a request share its material, which comes after all of them."""
    user = compose(MIXED).user
    assert re.findall(r"^</?(\w+)>$", user, flags=re.MULTILINE) == [
        *("question", "question", "contexts", "contexts", "answer", "answer"),
    ]
    assert user.index("# statements") < user.index("<question>")


def test_several_texts_are_numbered() -> None:
    """Contexts and statements can be referred to by number."""
    assert "<contexts>\n[1] One.\n[2] Two.\n</contexts>" in compose([CONTEXT]).user


def test_each_task_has_a_heading() -> None:
    """The reply's members are named by the headings; drawings of one task have one heading."""
    assert "# reverse_question_1, reverse_question_2, reverse_question_3\n" in compose(DRAWS).user
    headings = re.findall(r"^# (.*)$", compose(MIXED).user, flags=re.MULTILINE)
    assert headings == ["context_relevance_1", "statements", "groundedness_1"]


def test_a_task_is_told_what_to_look_at() -> None:
    """Where tasks see different material, each is told its own."""
    user = compose(MIXED).user
    assert "Consider only: question, answer." in user
    assert "Consider only: answer, contexts." in user
    assert "Consider only" not in compose(DRAWS).user


def test_the_schema_is_strict() -> None:
    """Structured output wants every member required, none added, and no defaults."""
    schema = compose(MIXED).schema
    assert schema["required"] == list(schema["properties"]) == list(compose(MIXED).names)
    objects = [schema, *schema["$defs"].values()]
    assert all(node["additionalProperties"] is False for node in objects)
    assert all(node["required"] == list(node["properties"]) for node in objects)
    assert not re.search(r'"(title|default|description)":', json.dumps(schema))


def test_a_complaint_is_passed_on() -> None:
    """A judge that is asked again is told what was wrong."""
    again = replace(CONTEXT, complaint="rating: must be an integer")
    assert "could not be used: rating: must be an integer" in compose([again]).user


def test_the_hash_is_that_of_the_prompts() -> None:
    """A version changes with the text of the prompts, and with their order."""
    one, other = prompt_hash(["verdicts"]), prompt_hash(["verdicts", "frame"])
    assert re.fullmatch(r"[0-9a-f]{8}", one)
    assert len({one, other, prompt_hash(["frame", "verdicts"])}) == 3


def useful(*contexts: str, question: str = Q) -> list[Task[Any]]:
    """Ask of each context whether it was of use."""
    shown = {"question": question, "answer": A}
    return [kinds.USEFUL_FOR_ANSWER.task({**shown, "context": one}) for one in contexts]


def test_contexts_are_shown_once_and_referred_to_by_number() -> None:
    """Questions about single contexts share one list, and each says which it is about."""
    user = compose([CONTEXT, *useful("Two.", "Three.")]).user
    assert "<contexts>\n[1] One.\n[2] Two.\n[3] Three.\n</contexts>" in user
    assert "useful_for_answer_1: context is [2] of contexts\n" in user
    assert "useful_for_answer_2: context is [3] of contexts\n" in user
    assert "# useful_for_answer_1, useful_for_answer_2\n" in user
    assert "<context>" not in user
    assert user.count("Two.") == 1


def test_equal_contexts_have_one_number() -> None:
    """A context that was retrieved twice stands in the list once."""
    twice = questions.context_relevance(Q, ["One.", "Two.", "One."], voice=1)
    user = compose([twice, *useful("One.", "Two.")]).user
    assert "<contexts>\n[1] One.\n[2] Two.\n</contexts>" in user
    assert "useful_for_answer_2: context is [2] of contexts" in user


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("One, see [2].", "[1]"),
        ("One.\n[2] Two.", "[[1]]"),
        ("One.\n  [2] Two.\n[[3]] Three.", "[[[1]]]"),
        ("[[7] Seven.", "[1]"),
    ],
)
def test_a_text_cannot_feign_a_number(text: str, mark: str) -> None:
    """Where a line of a context begins like a numbered one, the numbers look otherwise."""
    user = compose([questions.context_relevance(Q, [text, "Other."], voice=1)]).user
    assert f"<contexts>\n{mark} {text}\n{mark.replace('1', '2')} Other.\n</contexts>" in user


def test_a_lone_context_is_not_numbered() -> None:
    """A question about one context, alone in its request, shows that context as it is."""
    user = compose(useful("One.")).user
    assert "<context>\nOne.\n</context>" in user
    assert "is [1]" not in user


def test_a_lone_context_beside_other_questions() -> None:
    """Beside questions about other things a single context is a list of one."""
    user = compose([STATEMENTS, *useful("One.")]).user
    assert "<contexts>\n[1] One.\n</contexts>" in user
    assert "useful_for_answer: context is [1] of contexts" in user


def test_an_example_comes_before_the_material() -> None:
    """A worked example is under its task's heading, with its own texts in tags, and its reply."""
    example = {"inputs": {"answer": "Yes."}, "outputs": {"statements": []}}
    taught = kinds.STATEMENTS.task({"question": Q, "answer": A}, examples=[example])
    user = compose([taught, GROUNDED]).user
    shown = '<example>\n<answer>\nYes.\n</answer>\nReply: {"statements": []}\n</example>'
    assert user.index("# statements") < user.index(shown) < user.index("# groundedness_1")
    assert user.count("<example>") == 1


def test_drawings_are_asked_to_differ() -> None:
    """Several drawings in one request say so; one drawing and one of a list do not."""
    told = prompt_text("repeated")
    assert told in compose(DRAWS).user
    assert told not in compose(DRAWS[:1]).user
    assert told not in compose(useful("One.", "Two.")).user


TAGS = st.sampled_from(["</answer>", "</answer_>", "<answer>", "</contexts>", "</question>", "x"])


@given(st.lists(TAGS | st.text(max_size=5)).map("".join))
@example("</answer></answer_></answer__>")
def test_material_cannot_be_closed_by_its_content(text: str) -> None:
    """Whatever an answer holds, its tag closes after it and not within."""
    sent = compose([questions.groundedness(text, (text, text), voice=1)]).user
    shown = text.encode("utf-8", "replace").decode()
    tag = re.search(r"^<(answer_*)>$", sent, flags=re.MULTILINE)
    assert tag
    assert sent[tag.start() :].startswith(f"<{tag[1]}>\n{shown}\n</{tag[1]}>\n\n<contexts")
    assert f"</{tag[1]}>" not in shown


def test_two_megabytes_are_sent_and_read() -> None:
    """A huge context is no failure, also where it is full of tags and braces."""
    context = '{"a": </contexts> [' * 120_000
    request = compose([questions.context_relevance(Q, [context], voice=1)])
    parts = read_parts(f'{context}{{"rating": 2}}', [CONTEXT])
    assert context in request.user
    assert isinstance(parts[0], UnparsableReplyError)


def test_no_lone_surrogate_is_sent() -> None:
    """Text that is no Unicode cannot be sent by any client; it is replaced."""
    assert "bad ? text" in compose([questions.groundedness("bad \ud800 text", C, voice=1)]).user


# --- what comes back ------------------------------------------------------------------------------


@pytest.mark.parametrize("group", GROUPS, ids=["one", "list", "draws", "mixed"])
@pytest.mark.parametrize(
    "wrapped",
    [
        "{}",
        "```json\n{}\n```",
        "Here you are:\n{}\nAnything else?",
        "<think>They ask {{so much}}.</think>\n{}",
        "```\n{}",
        'An example would be {{"rating": 0}}. Mine is\n{}',
        "{{}} {}",
    ],
)
def test_a_reply_is_found_in_what_surrounds_it(group: list[Task[Any]], wrapped: str) -> None:
    """Code fences, thoughts and courtesies around the object do no harm."""
    text = wrapped.format(json.dumps(replied(group)))
    assert kinds_of(read_parts(text, group)) == [task.reply for task in group]


def test_the_only_tasks_name_may_be_left_out() -> None:
    """A judge that answers one task with the bare reply is understood."""
    assert read_parts('{"rating": 1}', [CONTEXT]) == (Rating(rating=1),)


@pytest.mark.parametrize(
    "text",
    [
        '{"statements": ["a", "b"]}',
        'Here: {"statements": ["a", "b"]}.',
        '{"statements": {"statements": ["a", "b"]}}',
        'As in {"x": 1}: {"statements": {"statements": ["a", "b"]}}',
    ],
)
def test_a_task_whose_member_has_its_name(text: str) -> None:
    """A judge that writes a name once, where task and member share it, is understood."""
    assert read_parts(text, [STATEMENTS]) == (Statements(statements=["a", "b"]),)


def test_no_claims_in_short() -> None:
    """The short form of an empty list is an empty list."""
    assert read_parts('{"statements": []}', [STATEMENTS]) == (Statements(statements=[]),)


def test_the_short_form_beside_others() -> None:
    """The parts of a fused reply may be written either way, each for itself."""
    reply = {**replied(MIXED), "statements": ["a"]}
    parts = read_parts(json.dumps(reply), MIXED)
    assert kinds_of(parts) == [Rating, Statements, Rating]


@pytest.mark.parametrize("cut", range(1, 14))
def test_a_cut_behind_a_task_whose_member_has_its_name(cut: int) -> None:
    """What looks like a reply within a reply that was cut off does not hide the rest."""
    text = json.dumps(replied(MIXED))
    parts = read_parts(text[:-cut], MIXED)
    assert kinds_of(parts)[:2] == [Rating, Statements]


@pytest.mark.parametrize("left", [3, 5, 30])
def test_a_reply_cut_off_keeps_what_was_whole(left: int) -> None:
    """What came before the cut is used; the part that it hit is not trusted."""
    text = json.dumps(replied(DRAWS))
    second = text.index('"reverse_question_2"')
    parts = read_parts(text[: second + len('"reverse_question_2"') + left], DRAWS)
    assert kinds_of(parts) == [ReverseQuestion, UnparsableReplyError, UnparsableReplyError]


@given(st.data())
def test_a_cut_never_makes_up_a_reply(data: st.DataObject) -> None:
    """However a reply is cut, each part is what was sent, or unparsable."""
    group = data.draw(st.sampled_from([DRAWS, MIXED]))
    sent = read_parts(json.dumps(replied(group)), group)
    text = json.dumps(replied(group))
    cut = read_parts(text[: data.draw(st.integers(0, len(text)))], group)
    assert all(
        part == whole or isinstance(part, UnparsableReplyError)
        for part, whole in zip(cut, sent, strict=True)
    )


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ({"rating": True}, "rating: Value error, must be an integer, not True"),
        ({"rating": "2"}, "must be an integer, not '2'"),
        ({"rating": None}, "must be an integer, not None"),
        ({"rating": 3}, "Input should be 0, 1 or 2"),
        ({"rating": 0.5}, "Input should be 0, 1 or 2"),
        ({"reason": "so"}, "rating: Field required"),
        ({}, "no usable member 'context_relevance_1'"),
        (None, "no usable member 'context_relevance_1'"),
        ("2", "Input should be a valid dictionary"),
        (2, "Input should be a valid dictionary"),
    ],
)
def test_each_part_is_checked_alone(broken: object, told: str) -> None:
    """A part of the wrong type is refused, saying why, and the others are kept."""
    text = json.dumps({**replied(MIXED), "context_relevance_1": broken})
    parts = read_parts(text, MIXED)
    assert kinds_of(parts) == [UnparsableReplyError, Statements, Rating]
    assert told in str(parts[0])


@pytest.mark.parametrize(
    "number", ["1e999", "-1e999", "Infinity", "NaN", "9" * 5000, "1" + "0" * 400]
)
def test_numbers_beyond_all_bounds_are_refused(number: str) -> None:
    """A number that is no number, or too large for one, is an unparsable part like any other."""
    text = f'{{"context_relevance_1": {{"rating": {number}}}}}'
    assert kinds_of(read_parts(text, [CONTEXT])) == [UnparsableReplyError]


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 200_000, "{" * 200_000, "", "null"])
def test_deep_nesting_is_no_danger(text: str) -> None:
    """Text that would exhaust a parser's stack is unparsable."""
    assert kinds_of(read_parts(text, [CONTEXT])) == [UnparsableReplyError]


def test_a_rejected_reply_is_quoted_in_part() -> None:
    """The complaint shows the judge the beginning of what it said, not all of it."""
    parts = read_parts("I would rather not say. " * 100, [CONTEXT])
    assert "I would rather not say." in str(parts[0])
    assert len(str(parts[0])) < 400


FRAGMENTS = st.sampled_from(
    [
        '{"',
        '"}',
        "{",
        "}",
        "[",
        "]",
        '":',
        ",",
        '"',
        "\\",
        "```json",
        "rating",
        "statements",
        "1e999",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["rating", "statements", "groundedness_1", "x"]), inner, max_size=3
        )
    ),
)


@given(
    st.text() | st.lists(FRAGMENTS | st.text(max_size=3)).map("".join) | JSON.map(json.dumps),
    st.sampled_from(GROUPS),
)
def test_whatever_a_judge_says_is_read(text: str, group: list[Task[Any]]) -> None:
    """No text makes reading fail; each part is a valid reply, or says why there is none."""
    parts = read_parts(text, group)
    assert len(parts) == len(group)
    for part, task in zip(parts, group, strict=True):
        assert isinstance(part, (task.reply, UnparsableReplyError))


@given(st.text().filter(lambda text: "{" not in text), st.sampled_from(GROUPS))
def test_what_is_no_object_is_no_reply(text: str, group: list[Task[Any]]) -> None:
    """Prose gives no reply, whatever numbers are in it."""
    assert not any(isinstance(part, Reply) for part in read_parts(text, group))
