"""The HTTP client below the ``openai`` client: aiohttp if it is installed, else the default one."""

import asyncio
import gc
import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import openai
import pytest

from openai_server import HttpReply, ScriptedOpenAI
from rag_eval_otel.errors import (
    JudgeError,
    JudgeTimeoutError,
    JudgeTransportError,
    UnparsableReplyError,
)
from rag_eval_otel.judge.openai import OpenAIClient
from rag_eval_otel.providers import PROVIDERS

REQUEST: tuple[str, dict[str, Any]] = ("/chat/completions", {"model": "m", "messages": []})


@pytest.fixture(params=["aiohttp", "default"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    def not_installed(**_: object) -> None:
        raise RuntimeError

    name: str = request.param
    if name == "default":
        monkeypatch.setattr(openai, "DefaultAioHttpClient", not_installed)
    elif not find_spec("aiohttp"):
        pytest.skip("aiohttp is not installed")
    return name


def client_of(url: str, timeout: float = 30) -> OpenAIClient:
    kind, key = PROVIDERS["openai"], "sk-secret"
    return OpenAIClient(kind, client=None, base_url=url, api_key=key, timeout=timeout, retries=0)


def sent(reply: Callable[[dict[str, Any]], object], *, times: int = 1, timeout: float = 30) -> Any:
    async def use(url: str) -> list[Any]:
        client = client_of(url, timeout)
        return [await client.post(*REQUEST) for _ in range(times)]

    with ScriptedOpenAI(reply) as server:
        return asyncio.run(use(server.base_url))


def test_requests_are_answered(transport: str) -> None:
    """Several requests of one event loop, and then of another one, get their replies."""
    for _ in range(2):
        replies = sent(lambda _: "yes", times=3)
        assert [one["choices"][0]["message"]["content"] for one in replies] == ["yes"] * 3


@pytest.mark.usefixtures("transport")
def test_texts_follow_no_redirect() -> None:
    """A server that names another address gets an error; nothing is sent there."""
    with ScriptedOpenAI(lambda _: "yes") as other:
        elsewhere = {"location": f"{other.base_url}/chat/completions"}
        with pytest.raises(JudgeError):
            sent(lambda _: HttpReply(status=307, headers=elsewhere))
        assert not other.requests


@pytest.mark.slow
@pytest.mark.usefixtures("transport")
@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (HttpReply(status=500), JudgeTransportError),
        (HttpReply(delay=60), JudgeTimeoutError),
        (HttpReply(body='{"choices"', headers={"Content-Length": "1000"}), JudgeTransportError),
        (HttpReply(body="x" * 1_000_001), UnparsableReplyError),
    ],
)
def test_failures_have_their_kind(reply: HttpReply, kind: type[JudgeError]) -> None:
    """An error, a reply that does not come, one that breaks off, and one that is too large."""
    with pytest.raises(kind):
        sent(lambda _: reply, timeout=0.5 if reply.delay else 30)


@pytest.mark.usefixtures("transport")
def test_a_refused_connection_is_not_a_timeout() -> None:
    """The client for aiohttp reports it as one; the message names the server instead."""
    with ScriptedOpenAI(lambda _: "") as server:
        url = server.base_url
    client = client_of(url)
    with pytest.raises(JudgeTransportError, match=r"127\.0\.0\.1:\d+: Connection error"):
        asyncio.run(client.post(*REQUEST))


@pytest.mark.usefixtures("transport")
def test_certificates_that_cannot_be_read_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which variables to check."""
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/bundle.pem")
    client = client_of("http://127.0.0.1:9")
    with pytest.raises(
        JudgeTransportError, match=r"check SSL_CERT_FILE and SSL_CERT_DIR: .*No such"
    ):
        asyncio.run(client.open())


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.usefixtures("transport")
def test_a_forked_child_that_deletes_the_client_does_not_disturb_its_parent() -> None:
    """Both have the selector of the parent's loop, in which the open connection must stay."""
    loop = asyncio.new_event_loop()
    with ScriptedOpenAI(lambda _: "yes") as server:
        client = client_of(server.base_url)
        loop.run_until_complete(client.post(*REQUEST))
        child = os.fork()
        if child == 0:
            del client
            gc.collect()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert loop.run_until_complete(client.post(*REQUEST))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
