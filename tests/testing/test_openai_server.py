"""The scripted OpenAI server, with the real client of the `openai` package in front of it."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

import openai
import pytest
import requests

from rag_eval_otel.testing import HttpReply, ManualClock, ScriptedOpenAI

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from openai.types import CreateEmbeddingResponse
    from openai.types.chat import ChatCompletion

SCHEMA: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "verdict",
        "strict": True,
        "schema": {"type": "object", "properties": {"ok": {"type": "boolean"}}},
    },
}
ERROR = {"error": {"message": "no", "type": "server_error", "param": None, "code": None}}


def call(
    server: ScriptedOpenAI, use: Callable[[openai.AsyncOpenAI], Awaitable[Any]], **options: Any
) -> Any:
    """The result of one use of a client for this server; it does not retry unless told to."""

    async def run() -> Any:
        settings = {"max_retries": 0, "timeout": 10.0, **options}
        async with openai.AsyncOpenAI(
            api_key="sk-secret", base_url=server.base_url, **settings
        ) as client:
            return await use(client)

    return asyncio.run(run())


def ask(client: openai.AsyncOpenAI, **options: Any) -> Awaitable[ChatCompletion]:
    """One chat request."""
    messages: Any = [
        {"role": "system", "content": "You judge."},
        {"role": "user", "content": [{"type": "text", "text": "Is it so?"}]},
    ]
    return client.chat.completions.create(model="m", messages=messages, **options)


def embed(client: openai.AsyncOpenAI, **options: Any) -> Awaitable[CreateEmbeddingResponse]:
    """One embeddings request for two texts."""
    return client.embeddings.create(model="e", input=["a b", "abcd"], **options)


def lengths(text: str) -> list[float]:
    """A vector one can check by eye."""
    return [float(len(text)), 0.1]


def unpacked(vector: list[float] | str) -> list[float]:
    """The numbers of a vector that the client left packed, as it does when asked for base64."""
    if isinstance(vector, str):
        return list(struct.unpack("<2f", base64.b64decode(vector)))
    return vector


def test_text_reply() -> None:
    """A text becomes the assistant's message, with usage counted in words."""
    with ScriptedOpenAI(lambda _: "yes it is") as server:
        reply = call(server, ask)
    assert reply.choices[0].message.content == "yes it is"
    assert reply.model == "m-2026-01-01"
    usage = reply.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (5, 3, 8)


@pytest.mark.parametrize("said", [{"ok": True}, [1, "two"]])
def test_schema_reply(said: object) -> None:
    """A dict or list becomes JSON content, and the script sees the schema it was asked for."""
    seen = []

    def reply(body: dict[str, Any]) -> object:
        seen.append(body["response_format"])
        return said

    with ScriptedOpenAI(reply, answered_model="judge-9") as server:
        got = call(server, lambda client: ask(client, response_format=SCHEMA))
    assert json.loads(got.choices[0].message.content) == said
    assert (got.model, seen) == ("judge-9", [SCHEMA])


@pytest.mark.parametrize(
    ("supported", "refused"),
    [
        ("json_schema", []),
        ("json_object", ["json_schema"]),
        ("none", ["json_object", "json_schema"]),
    ],
)
def test_unsupported_formats_are_refused(supported: Any, refused: list[str]) -> None:
    """A format beyond the server's means is a 400 that names the parameter."""
    formats: list[Any] = [{"type": "text"}, {"type": "json_object"}, SCHEMA]
    outcomes: dict[str, object] = {}

    async def ask_each(client: openai.AsyncOpenAI) -> None:
        asked = [ask(client, response_format=form) for form in formats]
        replies = await asyncio.gather(*asked, return_exceptions=True)
        outcomes.update({form["type"]: r for form, r in zip(formats, replies, strict=True)})

    with ScriptedOpenAI(lambda _: "{}", supports_schema=supported) as server:
        call(server, ask_each)
    errors = {k: v for k, v in outcomes.items() if isinstance(v, openai.BadRequestError)}
    assert {name: error.param for name, error in errors.items()} == dict.fromkeys(
        refused, "response_format"
    )
    assert len(outcomes) == len(formats)


@pytest.mark.parametrize(
    "options", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}]
)
def test_embeddings(options: dict[str, Any]) -> None:
    """Vectors come in order, in the client's own default coding and in both that it may ask for."""
    with ScriptedOpenAI(str, lengths) as server:
        reply = call(server, lambda client: embed(client, **options))
        asked = server.requests[0].body["encoding_format"]
    assert asked == options.get("encoding_format", "base64")
    vectors = [unpacked(item.embedding) for item in reply.data]
    assert vectors == [pytest.approx([3.0, 0.1]), pytest.approx([4.0, 0.1])]
    assert (reply.usage.prompt_tokens, reply.model) == (3, "e-2026-01-01")


def test_one_text_may_be_embedded_bare() -> None:
    """An input that is a text, not a list, gives one vector."""
    with ScriptedOpenAI(str, lengths) as server:
        reply = call(server, lambda client: client.embeddings.create(model="e", input="abcd"))
    assert [item.embedding for item in reply.data] == [pytest.approx([4.0, 0.1])]


def test_embeddings_may_fail() -> None:
    """An `HttpReply` from the embedding script answers the whole request."""
    with (
        ScriptedOpenAI(str, lambda _: HttpReply(status=500, body=ERROR)) as server,
        pytest.raises(openai.InternalServerError),
    ):
        call(server, embed)


def test_server_without_embeddings() -> None:
    """Without an embedding script, the path is not there."""
    with ScriptedOpenAI(str) as server, pytest.raises(openai.NotFoundError):
        call(server, embed)


def test_rate_limit_then_success() -> None:
    """A client that is told to come back does so, after the time it was told."""
    replies = iter([HttpReply(status=429, headers={"Retry-After": "0.2"}, body=ERROR), "fine"])
    with ScriptedOpenAI(lambda _: next(replies)) as server:
        reply = call(server, ask, max_retries=1)
        first, second = server.requests
    assert reply.choices[0].message.content == "fine"
    assert second.at - first.at >= 0.2


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, openai.AuthenticationError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
    ],
)
def test_scripted_errors(status: int, error: type[openai.APIStatusError]) -> None:
    """An error status reaches the client as its own kind of exception, message and all."""
    with (
        ScriptedOpenAI(lambda _: HttpReply(status=status, body=ERROR)) as server,
        pytest.raises(error, match="no") as caught,
    ):
        call(server, ask)
    assert caught.value.status_code == status


def test_garbage_body() -> None:
    """Bytes that are no JSON reach the client as they are."""
    garbage = HttpReply(body=b"\xff\x00{nonsense")
    with (
        ScriptedOpenAI(lambda _: garbage) as server,
        pytest.raises(ValueError, match=r"decode|JSON"),
    ):
        call(server, ask)


def test_cut_off_body() -> None:
    """A promised length that never comes is a broken connection to the client."""
    cut = HttpReply(headers={"Content-Length": "1000"}, body='{"id": "chat')
    with (
        ScriptedOpenAI(lambda _: cut) as server,
        pytest.raises(openai.APIConnectionError) as caught,
    ):
        call(server, ask)
    assert not isinstance(caught.value, openai.APITimeoutError)


def test_slow_reply_times_out() -> None:
    """A reply slower than the client's patience is a timeout, and stopping does not wait for it."""
    began = time.monotonic()
    with (
        ScriptedOpenAI(lambda _: HttpReply(body={}, delay=60.0)) as server,
        pytest.raises(openai.APITimeoutError),
    ):
        call(server, ask, timeout=0.2)
    assert time.monotonic() - began < 5


@pytest.mark.slow
def test_latency_is_added_to_every_answer() -> None:
    """Chat and embeddings each have a latency of their own."""
    with ScriptedOpenAI(lambda _: "x", lengths, latency=0.2) as server:
        began = time.monotonic()
        call(server, ask)
        assert time.monotonic() - began >= 0.2
    with (
        ScriptedOpenAI(str, lengths, embed_latency=60.0) as server,
        pytest.raises(openai.APITimeoutError),
    ):
        call(server, embed, timeout=0.2)


@pytest.mark.slow
def test_sixty_four_requests_at_once() -> None:
    """Sixty-four requests are all in flight together, or the barrier in the script would break."""
    barrier = threading.Barrier(64)

    def reply(body: dict[str, Any]) -> str:
        barrier.wait(10)
        return str(body["seed"])

    async def flood(client: openai.AsyncOpenAI) -> list[ChatCompletion]:
        return await asyncio.gather(*(ask(client, seed=n) for n in range(64)))

    with ScriptedOpenAI(reply) as server:
        replies = call(server, flood)
    assert [r.choices[0].message.content for r in replies] == [str(n) for n in range(64)]


def test_stop_cuts_requests_in_flight() -> None:
    """Stopping closes the connections of requests that wait for their answer."""
    asked = threading.Event()
    outcome: list[BaseException] = []

    def reply(_: dict[str, Any]) -> HttpReply:
        asked.set()
        return HttpReply(body="late", delay=60.0)

    def client() -> None:
        with pytest.raises(openai.APIConnectionError) as caught:
            call(server, ask, timeout=30.0)
        outcome.append(caught.value)

    server = ScriptedOpenAI(reply).start()
    thread = threading.Thread(target=client)
    thread.start()
    assert asked.wait(10)
    began = time.monotonic()
    server.stop()
    thread.join(10)
    assert time.monotonic() - began < 2
    assert len(outcome) == 1


def test_stop_closes_idle_connections() -> None:
    """A connection kept alive after its answer ends with the server."""
    with ScriptedOpenAI(str) as server:
        host, port = server.base_url.removeprefix("http://").removesuffix("/v1").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
        connection.request("POST", "/v1/nowhere", "{}")
        connection.getresponse().read()
        stream = connection.sock
    assert stream.recv(1) == b""
    connection.close()


def test_stop_needs_no_start_and_may_come_twice() -> None:
    """A server that never ran, and one that has stopped, can be stopped."""
    idle = ScriptedOpenAI(str)
    idle.stop()
    with ScriptedOpenAI(str) as server:
        pass
    server.stop()
    assert server.requests == idle.requests == []


def test_requests_are_recorded_without_the_key() -> None:
    """Path, body, headers and time are kept; the API key is not."""
    clock = ManualClock(10.0)
    with ScriptedOpenAI(lambda _: "x", lengths, clock=clock) as server:
        call(server, ask)
        clock.advance(5)
        call(server, embed)
        chat, vectors = server.requests
    assert (chat.path, chat.at, chat.body["model"]) == ("/v1/chat/completions", 10.0, "m")
    assert (vectors.path, vectors.at) == ("/v1/embeddings", 15.0)
    assert chat.headers["authorization"] == "***"
    assert "sk-secret" not in repr([chat, vectors])


def test_the_key_is_kept_when_asked_for() -> None:
    """A test of authentication may see the header as it came."""
    with ScriptedOpenAI(lambda _: "x", secrets="keep") as server:
        call(server, ask)
        assert server.requests[0].headers["authorization"] == "Bearer sk-secret"


def test_requests_that_make_no_sense() -> None:
    """No JSON is 400, no such path 404, no length 411, all on loopback HTTP."""
    with ScriptedOpenAI(str) as server, requests.Session() as session:
        chat = f"{server.base_url}/chat/completions"
        statuses = [
            session.post(chat, data=b"{").status_code,
            session.post(f"{server.base_url}/moderations?x=1", json={}).status_code,
            session.post(chat, data=iter([b"{}"])).status_code,
        ]
    assert statuses == [400, 404, 411]


def test_a_scripts_own_mistake_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    """An exception in the script breaks the connection, and its traceback goes to stderr."""

    def reply(_: dict[str, Any]) -> object:
        msg = "a mistake in the script"
        raise LookupError(msg)

    with ScriptedOpenAI(reply) as server, pytest.raises(openai.APIConnectionError):
        call(server, ask)
    assert "a mistake in the script" in capfd.readouterr().err
