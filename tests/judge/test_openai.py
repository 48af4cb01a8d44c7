"""The OpenAI judge: the real client in front of a scripted server."""

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

import openai
import pytest

import questions
from openai_server import HttpReply, ScriptedOpenAI
from rag_eval_otel.errors import (
    JudgeAuthError,
    JudgeError,
    JudgeRateLimitError,
    JudgeRequestError,
    JudgeTimeoutError,
    JudgeTransportError,
    UnparsableReplyError,
)
from rag_eval_otel.judge.openai import OpenAIJudge, SchemaMode
from rag_eval_otel.judge.tasks import Rating, Reply, Statements, Task
from rag_eval_otel.types import Replies
from support import GOOD, good_parts, in_turn, names_asked, text_asked

Q, A, C = "Why?", "Because.", ("One.", "Two.")
CONTEXT = questions.context_relevance(Q, C, voice=1)
GROUNDED = questions.groundedness(A, C, voice=1)
GROUP: list[Task[Any]] = [CONTEXT, questions.statements(Q, A), GROUNDED]
SUPPORT = ["json_schema", "json_object", "none"]


def judge_of(server: ScriptedOpenAI, **options: Any) -> OpenAIJudge:
    return OpenAIJudge(
        "gpt-x", base_url=server.base_url, **{"api_key": "sk-secret", "retries": 0, **options}
    )


def asked(
    reply: Callable[[dict[str, Any]], object], *group: Task[Any], **options: Any
) -> tuple[Replies, list[dict[str, Any]]]:
    with ScriptedOpenAI(reply) as server:
        replies = asyncio.run(judge_of(server, **options).reply(group or (CONTEXT,)))
        return replies, [request.body for request in server.requests]


def failing(reply: object, kind: type[JudgeError], **options: Any) -> tuple[JudgeError, int]:
    with ScriptedOpenAI(lambda _: reply) as server:
        with pytest.raises(kind) as failure:
            asyncio.run(judge_of(server, **options).reply([CONTEXT]))
        return failure.value, len(server.requests)


def test_several_tasks_take_one_request() -> None:
    """The replies come in the order of the tasks, with the model that answered and what it took."""
    replies, requests = asked(good_parts, *GROUP)
    assert [type(part) for part in replies.parts] == [Rating, Statements, Rating]
    assert len(requests) == 1
    assert replies.model == "gpt-x-2026-01-01"
    assert replies.usage.judge_requests == 1
    assert replies.usage.prompt_tokens > 100
    assert replies.usage.completion_tokens > 5


def test_the_request_is_strict_and_cold() -> None:
    """The reply is held to a strict schema of exactly these tasks, at temperature 0."""
    _, (body,) = asked(good_parts, *GROUP)
    assert body["temperature"] == 0
    assert body["response_format"]["json_schema"]["strict"] is True
    assert names_asked(body) == ["context_relevance_1", "statements", "groundedness_1"]
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert "JSON Schema" not in text_asked(body)


@pytest.mark.parametrize("mode", ["json_object", "text"])
def test_without_a_schema_the_prompt_has_it(mode: SchemaMode) -> None:
    """A server that is not given a schema finds it in the prompt."""
    _, (body,) = asked(good_parts, *GROUP, schema_mode=mode)
    assert (body.get("response_format") or {"type": "text"})["type"] == mode
    assert '"required":["context_relevance_1","statements","groundedness_1"]' in text_asked(body)


def test_a_key_is_never_shown() -> None:
    """Printing a judge names its model only."""
    assert repr(OpenAIJudge("gpt-x", api_key="sk-secret")) == "OpenAIJudge('gpt-x')"


def test_a_key_with_a_stray_character() -> None:
    """It is the request that is wrong, not the reply; and the key is not told."""
    error, requests = failing(GOOD, JudgeRequestError, api_key="sk-s\N{EN DASH}ecret")
    assert "stray character" in str(error)
    assert "ecret" not in "".join(traceback.format_exception(error))
    assert requests == 0


def without_temperature(body: dict[str, Any]) -> object:
    if "temperature" in body:
        error = {"message": "Unsupported value: 'temperature' does not support 0.0"}
        return HttpReply(status=400, body={"error": error})
    return good_parts(body)


@pytest.mark.parametrize(("supported", "tries"), [*zip(SUPPORT, [2, 3, 4], strict=True)])
def test_a_refused_temperature_is_left_out(supported: Any, tries: int) -> None:
    """A model that accepts only its own temperature is asked again without one, and then always."""

    async def use(judge: OpenAIJudge) -> list[Replies]:
        return [await judge.reply([CONTEXT]) for _ in range(2)]

    with ScriptedOpenAI(without_temperature, supports_schema=supported) as server:
        replies = asyncio.run(use(judge_of(server)))
    assert [one.usage.judge_requests for one in replies] == [tries, 1]


@pytest.mark.parametrize(
    "message", ["unknown model", "temperature is wrong", "response_format is wrong", ""]
)
def test_a_request_that_is_refused_for_good(message: str) -> None:
    """What can't be left out, or is refused without it too, ends as a bad request."""
    error, requests = failing(HttpReply(status=400, body={"error": message}), JudgeRequestError)
    assert error.reason == "bad_request"
    assert requests <= 4


FASTAPI = {
    "detail": [
        {
            "type": "extra_forbidden",
            "loc": ["body", "response_format"],
            "msg": "Extra inputs are not permitted",
            "input": "the user's text",
        }
    ]
}
ODD_REFUSALS: list[Any] = [
    HttpReply(status=422, body=FASTAPI),
    HttpReply(status=400, body={"detail": "Bad request"}),
    HttpReply(status=400, body={"message": "unbekanntes Feld"}),
    HttpReply(status=422, body="no"),
    HttpReply(status=400),
]


@pytest.mark.parametrize("refusal", ODD_REFUSALS)
@pytest.mark.parametrize("taken", ["json_object", "text"])
def test_a_format_refused_in_any_words(
    refusal: HttpReply, taken: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a 400 or 422 says, the format gives way, once, and the status is logged."""

    def reply(body: dict[str, Any]) -> object:
        wanted = (body.get("response_format") or {"type": "text"})["type"]
        if wanted == "json_schema" or (wanted == "json_object" and taken == "text"):
            return refusal
        return good_parts(body)

    async def use(judge: OpenAIJudge) -> list[Replies]:
        return [await judge.reply(GROUP) for _ in range(2)]

    with ScriptedOpenAI(reply) as server:
        first, second = asyncio.run(use(judge_of(server)))
    assert all(isinstance(part, Reply) for part in (*first.parts, *second.parts))
    tries = 2 if taken == "json_object" else 3
    assert [first.usage.judge_requests, second.usage.judge_requests] == [tries, 1]
    (said,) = [record.getMessage() for record in caplog.records if record.name == "rag_eval_otel"]
    assert f"HTTP {refusal.status}" in said
    assert "the user's text" not in said


def test_no_message_of_a_server_is_passed_on() -> None:
    """The error has the status, and which options of the request the message names."""
    error, _ = failing(HttpReply(status=422, body=FASTAPI), JudgeRequestError)
    assert str(error) == "HTTP 422: the server refused the request"
    assert getattr(error, "named", None) == {"response_format"}
    message = HttpReply(status=400, body={"detail": "sk-secret is no key"})
    error, _ = failing(message, JudgeRequestError)
    assert "sk-secret" not in f"{error!r} {error.__dict__} {error.__cause__}"


def test_a_refusal_of_one_text_changes_nothing() -> None:
    """Once a format was taken, a 400 that does not name it is that request's own."""

    async def use(judge: OpenAIJudge) -> Replies:
        await judge.reply([CONTEXT])
        with pytest.raises(JudgeRequestError):
            await judge.reply([CONTEXT])
        return await judge.reply([CONTEXT])

    refused = HttpReply(status=400, body={"error": {"message": "content filter"}})
    reply = in_turn([{"rating": 1}, refused, {"rating": 1}])
    with ScriptedOpenAI(reply) as server:
        replies = asyncio.run(use(judge_of(server)))
        formats = [request.body["response_format"]["type"] for request in server.requests]
    assert replies.parts == (Rating(rating=1),)
    assert formats == ["json_schema"] * 3


def test_a_model_that_refuses_everything_is_not_asked_thrice_for_ever() -> None:
    """After some refusals in all formats, one request tells as much as three."""

    async def use(judge: OpenAIJudge) -> None:
        for _ in range(10):
            with pytest.raises(JudgeRequestError):
                await judge.reply([CONTEXT])

    with ScriptedOpenAI(lambda _: HttpReply(status=400, body={"error": "no model"})) as server:
        asyncio.run(use(judge_of(server)))
        assert len(server.requests) == 3 * 3 + 7


def reasoning(body: dict[str, Any]) -> object:
    if "temperature" in body:
        said = "Unsupported value: 'temperature' does not support 0.0 with this model."
        return HttpReply(status=400, body={"error": {"message": said}})
    if "max_tokens" in body:
        said = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
        return HttpReply(status=400, body={"error": {"message": said}})
    return good_parts(body)


def test_a_reasoning_model_needs_no_option() -> None:
    """What it refuses is left out or named otherwise, once."""

    async def use(judge: OpenAIJudge) -> list[int]:
        return [(await judge.reply([CONTEXT])).usage.judge_requests for _ in range(2)]

    with ScriptedOpenAI(reasoning) as server:
        assert asyncio.run(use(judge_of(server, max_tokens=50))) == [3, 1]
        body = server.requests[-1].body
    assert (body["max_completion_tokens"], body["response_format"]["type"]) == (50, "json_schema")


@pytest.mark.parametrize(
    "content",
    [
        '<think>Is it {"rating": 2}? No.</think>{"rating": 1}',
        'Is it {"rating": 2}? No.</think>{"rating": 1}',
        [{"type": "thinking", "thinking": "2?"}, {"type": "text", "text": '{"rating": 1}'}],
    ],
)
def test_thoughts_are_no_reply(content: object) -> None:
    """What a model thinks aloud is passed over, in tags or in blocks of their own."""
    replies, _ = asked(lambda _: completion({"content": content}))
    assert replies.parts == (Rating(rating=1),)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, JudgeRequestError),
        (401, JudgeAuthError),
        (403, JudgeAuthError),
        (404, JudgeRequestError),
        (408, JudgeTimeoutError),
        (422, JudgeRequestError),
        (429, JudgeRateLimitError),
        (500, JudgeTransportError),
        (503, JudgeTransportError),
    ],
)
def test_a_status_has_its_error(status: int, kind: type[JudgeError]) -> None:
    """The error says the status and, in short, what the server said."""
    body = {"error": {"message": "no " * 1000}}
    error, _ = failing(HttpReply(status=status, body=body), kind)
    assert str(error).startswith(f"HTTP {status}: ")
    assert len(str(error)) < 250


def test_an_address_with_a_password_is_not_shown() -> None:
    """Nobody listens there, which is a transport error, as without a password."""
    judge = OpenAIJudge("m", base_url="http://user:secret@127.0.0.1:9/v1", api_key="k", retries=0)
    with pytest.raises(JudgeTransportError) as error:
        asyncio.run(judge.reply([CONTEXT]))
    assert "secret" not in f"{error.value} {judge!r} {judge.endpoint.title}"


def completion(message: object, **more: object) -> HttpReply:
    return HttpReply(body={"choices": [{"index": 0, "message": message}], **more})


@pytest.mark.parametrize(
    "body",
    [
        "",
        "<html>Bad gateway</html>",
        "[]",
        "null",
        b"\xff\xfe",
        "{}",
        '{"choices": []}',
        '{"choices": null}',
        '{"choices": [{}]}',
        '{"choices": [{"message": null}]}',
        '{"error": {"message": "overloaded"}}',
    ],
)
def test_a_body_without_a_message_is_unparsable(body: str | bytes) -> None:
    """Whatever a gateway returns with status 200, it is an unparsable reply and no crash."""
    error, _ = failing(HttpReply(body=body), UnparsableReplyError)
    assert error.reason == "unparsable"


@pytest.mark.parametrize(
    "message",
    [
        {"content": None, "refusal": "I can't help with that."},
        {"content": None},
        {"content": ""},
        {"content": "I'd say 2."},
        {"content": {"rating": "?"}},
        {"content": [{"type": "text", "text": "2"}]},
    ],
)
def test_a_message_without_a_reply_is_unparsable(message: dict[str, object]) -> None:
    """A refusal, prose or nothing fails the parts, which may then be asked again."""
    replies, _ = asked(lambda _: completion(message), *GROUP)
    assert [type(part) for part in replies.parts] == [UnparsableReplyError] * 3


def test_a_client_of_the_users_own_is_used() -> None:
    """An Azure client, or one with a proxy, takes the place of all options, and stays open."""

    async def use(base_url: str) -> bool:
        async with openai.AsyncOpenAI(api_key="sk-own", base_url=base_url) as client:
            await OpenAIJudge("gpt-x", client=client).reply([CONTEXT])
            return client.is_closed()

    with ScriptedOpenAI(good_parts, secrets="keep") as server:
        assert asyncio.run(use(server.base_url)) is False
        assert server.requests[0].headers["authorization"] == "Bearer sk-own"
