"""The length of the OpenAI judge's replies: the limit of tokens, and the largest size."""

import asyncio
import gzip
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

import questions
from openai_server import HttpReply, ScriptedOpenAI
from rag_eval_otel.embed import OpenAIEmbedder
from rag_eval_otel.errors import UnparsableReplyError
from rag_eval_otel.evaluation import aevaluate
from rag_eval_otel.judge.openai import OpenAIJudge
from rag_eval_otel.judge.tasks import Kind, Rating, Task, most_tokens
from support import SAMPLE, good_parts

CONTEXT = questions.context_relevance(SAMPLE.question, SAMPLE.context_texts, voice=1)
GROUP: list[Task[Any]] = [
    CONTEXT,
    questions.statements(SAMPLE.question, SAMPLE.answer),
    questions.groundedness(SAMPLE.answer, SAMPLE.context_texts, voice=1),
]


def limits_sent(requests: Sequence[Any]) -> list[object]:
    bodies = [request.body if hasattr(request, "body") else request for request in requests]
    return [body.get("max_tokens", body.get("max_completion_tokens")) for body in bodies]


@pytest.mark.parametrize(
    ("model", "options", "limit"),
    [
        ("gpt-4o-mini", {}, 3 * 1024 + len(SAMPLE.answer.encode())),
        ("vllm-model", {"max_tokens": 77}, 77),
        ("o3-mini", {}, None),
        ("gpt-5-nano", {}, None),
        ("gemini-2.5-flash", {}, None),
        ("Qwen/Qwen3-8B", {}, None),
        ("claude-sonnet-4-5", {"extra_body": {"thinking": {"type": "enabled"}}}, None),
        ("m", {"extra_body": {"max_completion_tokens": 5}}, 5),
    ],
)
def test_the_tasks_limit_the_reply(model: str, options: dict[str, Any], limit: int | None) -> None:
    """Three questions, one of which repeats the answer; models with thoughts get no limit."""
    with ScriptedOpenAI(good_parts) as server:
        judge = OpenAIJudge(model, base_url=server.base_url, api_key="sk-secret", **options)
        asyncio.run(judge.reply(GROUP))
        assert limits_sent(server.requests) == [limit]


def test_a_reply_that_is_cut_off_at_our_limit_ends_the_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A model whose thoughts count is asked again without a limit, and scores."""

    def reply(body: dict[str, Any]) -> object:
        if limits_sent([body]) == [None]:
            return good_parts(body)
        choice = {"index": 0, "message": {"content": ""}, "finish_reason": "length"}
        return HttpReply(body={"choices": [choice]})

    with ScriptedOpenAI(reply) as server, caplog.at_level("WARNING"):
        judge = OpenAIJudge("deployment", base_url=server.base_url, api_key="sk-secret")
        for _ in range(2):
            found = asyncio.run(
                aevaluate(SAMPLE, ["faithfulness"], judge=judge, embedder="hashing")
            )
            assert found.scores[0].status == "ok"
        limits = limits_sent(server.requests)
    assert limits[0] is not None
    assert set(limits[1:]) == {None}
    assert caplog.text.count("a reply of the judge openai/deployment at http://127.0.0.1:") == 1


@pytest.mark.parametrize(
    ("refusal", "names"),
    [
        (
            "The maximum context length is 4096, but you requested 5096 (1096 in the completion)",
            ["max_tokens", None],
        ),
        (
            "max_tokens is too large: 9000. This model supports at most 4096 completion tokens.",
            ["max_tokens", "max_completion_tokens", None],
        ),
    ],
)
def test_a_refused_limit_of_ours_is_left_out(refusal: str, names: list[str | None]) -> None:
    """A model with a small context gets the request without a limit, from then on."""

    def reply(body: dict[str, Any]) -> object:
        if limits_sent([body]) == [None]:
            return good_parts(body)
        return HttpReply(status=400, body={"error": {"message": refusal}})

    with ScriptedOpenAI(reply) as server:
        judge = OpenAIJudge("m", base_url=server.base_url, api_key="sk-secret")
        for _ in range(2):
            assert asyncio.run(judge.reply([CONTEXT])).parts == (Rating(rating=2),)
        sent = [next((k for k in r.body if k.startswith("max_")), None) for r in server.requests]
    assert sent == [*names, None]


def test_more_texts_and_reasons_allow_longer_replies() -> None:
    """Each judged text counts, reasons triple the limit, and prompts of users have none."""
    verdicts = questions.verdicts(["One."], ["A.", "B."])
    assert most_tokens([verdicts]) == 1024 + 2 * 64
    assert most_tokens([replace(verdicts, reasons="on")]) == 3 * (1024 + 2 * 64)
    assert most_tokens([questions.statements("Q", "x" * 100_000)]) == 16_384
    own = Kind(prompt="mine", reply=Rating, inputs=("answer",), instructions="Rate it.")
    assert most_tokens([verdicts, own.task({"answer": "A"})]) is None


@contextmanager
def endless(head: str, chunk: bytes) -> Iterator[tuple[str, list[int]]]:
    sent = [0]
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError), closing(listening.accept()[0]) as connection:
            connection.recv(65536)
            connection.sendall(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode())
            while sent[0] < 500_000_000:
                connection.sendall(chunk)
                sent[0] += len(chunk)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1", sent
    finally:
        listening.close()
        thread.join(60)


CHUNK = b" " * 65536


@pytest.mark.parametrize(
    ("head", "chunk"),
    [
        ("Content-Type: application/json", CHUNK),
        ("Transfer-Encoding: chunked", b"10000\r\n" + CHUNK + b"\r\n"),
        ("Content-Length: 50000000", CHUNK),
        ("Content-Encoding: gzip", gzip.compress(b"x" * 10_000_000)),
    ],
    ids=["no length", "chunked", "length", "gzip"],
)
def test_a_reply_without_end_is_refused_while_it_comes(head: str, chunk: bytes) -> None:
    """About a megabyte is read, however the server sends it; the reply is unusable."""
    with endless(head, chunk) as (address, sent):
        judge = OpenAIJudge("m", base_url=address, api_key="sk-secret", retries=3)
        with pytest.raises(UnparsableReplyError, match="larger than"):
            asyncio.run(judge.reply([CONTEXT]))
        state = judge.endpoint.state
    assert sent[0] < 30_000_000, "the rest is in the buffers of the sockets"
    assert (state.attempts, state.retries) == ({"unparsable": 1}, 0)


def test_embeddings_may_be_larger_by_the_number_of_texts() -> None:
    """A vector of many numbers for each of many texts is read; one for one text is not."""
    vector = [0.123456789] * 30_000
    with ScriptedOpenAI(good_parts, lambda _: vector) as server:
        embedder = OpenAIEmbedder("m", base_url=server.base_url, api_key="sk-secret")
        rows = asyncio.run(embedder.embed([str(i) for i in range(20)]))
        assert rows.shape == (20, 30_000)
    with endless("Content-Type: application/json", CHUNK) as (address, _):
        embedder = OpenAIEmbedder("m", base_url=address, api_key="sk-secret")
        with pytest.raises(UnparsableReplyError, match="larger than 1,256,000 bytes"):
            asyncio.run(embedder.embed(["a"]))
