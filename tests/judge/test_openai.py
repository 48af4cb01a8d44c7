"""The OpenAI judge: the real client in front of a scripted server."""

import asyncio
import gzip
import json
import math
import re
import socket
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from typing import Any, TypeVar

import openai
import pytest

import questions
from openai_server import HttpReply, ScriptedOpenAI
from rag_eval_otel import errors
from rag_eval_otel.embed import OpenAIEmbedder
from rag_eval_otel.evaluation import aevaluate
from rag_eval_otel.judge.openai import OpenAIClient, OpenAIJudge, SchemaMode, usage_of
from rag_eval_otel.judge.tasks import Rating, Reply, Statements, Task
from rag_eval_otel.metrics import metric
from rag_eval_otel.metrics.base import Metric
from rag_eval_otel.providers import PROVIDERS
from rag_eval_otel.types import Replies, Sample, Score, Usage
from support import GOOD, good_parts, in_turn, names_asked, text_asked

NAN = float("nan")
CACHED = {"prompt_tokens_details": {"cached_tokens": 99}}
T = TypeVar("T", bound=errors.JudgeError)

Q, A, C = "Why?", "Because.", ("One.", "Two.")
SAMPLE = Sample(
    question="Who wrote it?", contexts=["Lee wrote it."], answer="Lee.", reference="Lee wrote it."
)
CONTEXT = questions.context_relevance(Q, C, voice=1)
GROUNDED = questions.groundedness(A, C, voice=1)
GROUP: list[Task[Any]] = [CONTEXT, questions.statements(Q, A), GROUNDED]


def judge_of(server: ScriptedOpenAI, model: str = "gpt-x", **options: Any) -> OpenAIJudge:
    options = {"api_key": "sk-secret", "retries": 0, **options}
    return OpenAIJudge(model, base_url=server.base_url, **options)


def asked(
    reply: Callable[[dict[str, Any]], object], *group: Task[Any], **options: Any
) -> tuple[Replies, list[dict[str, Any]]]:
    with ScriptedOpenAI(reply) as server:
        replies = asyncio.run(judge_of(server, **options).reply(group or (CONTEXT,)))
        return replies, [request.body for request in server.requests]


def refused(message: object, status: int = 400) -> HttpReply:
    return HttpReply(status=status, body={"error": {"message": message}})


def completion(message: object, **more: object) -> HttpReply:
    other = {"index": 1, "message": {"content": "{}"}}
    return HttpReply(body={"choices": [{"index": 0, "message": message, **more}, other]})


def failing(
    reply: object, kind: type[errors.JudgeError], **options: Any
) -> tuple[errors.JudgeError, int]:
    with ScriptedOpenAI(lambda _: reply) as server:
        with pytest.raises(kind) as failure:
            asyncio.run(judge_of(server, **options).reply([CONTEXT]))
        return failure.value, len(server.requests)


def test_several_tasks_take_one_request() -> None:
    """It is held to a strict schema, at temperature 0; the replies have the order of the tasks."""
    replies, (body,) = asked(good_parts, *GROUP)
    assert [type(part) for part in replies.parts] == [Rating, Statements, Rating]
    assert replies.model == "gpt-x-2026-01-01"
    assert replies.usage.judge_requests == 1
    assert replies.usage.prompt_tokens > 100
    assert body["temperature"] == 0
    assert "logprobs" not in body
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


def test_a_missing_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named, and OpenAI's key is not sent in its place; local servers need none."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    for provider in ("anthropic", "mistral"):
        variable = PROVIDERS[provider].keys[0]
        monkeypatch.delenv(variable, raising=False)
        error, requests = failing(GOOD, errors.JudgeAuthError, api_key=None, provider=provider)
        assert (str(error), requests) == (f"no key: set {variable}, or pass api_key", 0)
    for local in ("ollama", "vllm"):
        asked(good_parts, api_key=None, provider=local)


def test_a_key_is_never_shown() -> None:
    """Printing names the model only; an error says that a character of the key is wrong."""
    assert repr(OpenAIJudge("gpt-x", api_key="sk-secret")) == "OpenAIJudge('gpt-x')"
    assert repr(OpenAIEmbedder("small", api_key="sk-secret")) == "OpenAIEmbedder('small')"
    error, requests = failing(GOOD, errors.JudgeRequestError, api_key="sk-s\N{EN DASH}ecret")
    assert "stray character" in str(error)
    assert "ecret" not in "".join(traceback.format_exception(error))
    assert requests == 0


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


@pytest.mark.parametrize("taken", ["json_object", "text"])
def test_a_refused_format_gives_way(taken: str, caplog: pytest.LogCaptureFixture) -> None:
    """The judge asks for a weaker form, once, and the status is logged."""
    refusal = HttpReply(status=422, body=FASTAPI)

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
    refusals = ", ".join(["HTTP 422"] * (tries - 1))
    assert f"({refusals}); from now on: {taken}, temperature 0.0" in said
    assert "the user's text" not in said


def test_no_message_of_a_server_is_passed_on() -> None:
    """The error has the status, and which options of the request the message names."""
    error, _ = failing(HttpReply(status=422, body=FASTAPI), errors.JudgeRequestError)
    assert str(error) == "HTTP 422: the server refused the request"
    assert getattr(error, "named", None) == {"response_format"}
    message = HttpReply(status=400, body={"detail": "sk-secret is no key"})
    error, _ = failing(message, errors.JudgeRequestError)
    assert "sk-secret" not in f"{error!r} {error.__dict__} {error.__cause__}"


def test_a_refusal_of_one_text_changes_nothing() -> None:
    """A 400 that names no option is that request's own."""

    async def use(judge: OpenAIJudge) -> Replies:
        await judge.reply([CONTEXT])
        with pytest.raises(errors.JudgeRequestError):
            await judge.reply([CONTEXT])
        return await judge.reply([CONTEXT])

    reply = in_turn([{"rating": 1}, refused("content filter"), {"rating": 1}])
    with ScriptedOpenAI(reply) as server:
        replies = asyncio.run(use(judge_of(server)))
        formats = [request.body["response_format"]["type"] for request in server.requests]
    assert replies.parts == (Rating(rating=1),)
    assert formats == ["json_schema"] * 3


def reasoning(body: dict[str, Any]) -> object:
    if "temperature" in body:
        return refused("Unsupported value: 'temperature' does not support 0.0 with this model.")
    if "max_tokens" in body:
        return refused("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
    return good_parts(body)


@pytest.mark.parametrize(
    ("formats", "tries"), [("json_schema", 3), ("json_object", 4), ("none", 5)]
)
def test_a_reasoning_model_needs_no_option(formats: Any, tries: int) -> None:
    """What it refuses is left out or named otherwise, once."""

    async def use(judge: OpenAIJudge) -> list[int]:
        return [(await judge.reply([CONTEXT])).usage.judge_requests for _ in range(2)]

    with ScriptedOpenAI(reasoning, supports_schema=formats) as server:
        assert asyncio.run(use(judge_of(server, max_tokens=50))) == [tries, 1]
        assert server.requests[-1].body["max_completion_tokens"] == 50


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
    ("status", "kind", "told"),
    [
        (400, errors.JudgeRequestError, "the server refused the request"),
        (401, errors.JudgeAuthError, "the server refused the key; check OPENAI_API_KEY"),
        (403, errors.JudgeAuthError, "the server refused the key; check OPENAI_API_KEY"),
        (404, errors.JudgeRequestError, "check the name of the model and the address"),
        (408, errors.JudgeTimeoutError, "no reply in time"),
        (429, errors.JudgeRateLimitError, "too many requests"),
        (500, errors.JudgeTransportError, "the server has failed"),
    ],
)
def test_a_status_has_its_error(status: int, kind: type[errors.JudgeError], told: str) -> None:
    """The error says the status and, in short, what it means."""
    error, _ = failing(refused("no " * 1000, status), kind)
    assert (str(error), error.status) == (f"HTTP {status}: {told}", status)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "<html>Bad gateway</html>",
        b"\xff\xfe",
        "{}",
        '{"choices": null}',
        '{"choices": [{"message": null}]}',
        '{"error": {"message": "overloaded"}}',
    ],
)
def test_a_body_without_a_message_is_unparsable(body: str | bytes) -> None:
    """Whatever a gateway returns with status 200, it is an unparsable reply and no crash."""
    failing(HttpReply(body=body), errors.UnparsableReplyError)


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
    assert [type(part) for part in replies.parts] == [errors.UnparsableReplyError] * 3


def test_a_client_of_the_users_own_is_used() -> None:
    """An Azure client, or one with a proxy, takes the place of all options, and stays open."""

    async def use(base_url: str) -> bool:
        async with openai.AsyncOpenAI(api_key="sk-own", base_url=base_url) as client:
            await OpenAIJudge("gpt-x", client=client).reply([CONTEXT])
            return client.is_closed()

    with ScriptedOpenAI(good_parts) as server:
        assert asyncio.run(use(server.base_url)) is False
        assert server.requests[0].headers["authorization"] == "Bearer sk-own"


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        (None, None),
        ({}, None),
        ({"usage": {"prompt_tokens": "7", "completion_tokens": None, "total_tokens": NAN}}, None),
        ({"usage": {"prompt_tokens": -7}}, None),
        ({"usage": {"prompt_tokens": 0, "total_tokens": 0}, "data": []}, None),
        ({"usage": {"prompt_tokens": 1}}, Usage(prompt_tokens=1)),
        ({"usage": {"completion_tokens": 3, "total_tokens": 2}}, Usage(completion_tokens=3)),
        (
            {"usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 20, **CACHED}},
            Usage(prompt_tokens=10, cached_tokens=10, completion_tokens=10),
        ),
        ({"usage": {"prompt_tokens": 6}, "data": 0}, Usage(embedding_tokens=6)),
    ],
)
def test_the_usage_in_a_reply(body: object, usage: Usage | None) -> None:
    """Thoughts may be in the total alone; a cache has at most the prompt; nonsense is not 0."""
    assert usage_of(body) == usage


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"temperature": -0.1}, "temperature must be None or 0 to 2, not -0.1"),
        ({"temperature": 2.1}, "temperature must be None or 0 to 2, not 2.1"),
        ({"timeout": 0}, "timeout must be above 0, retries at least 0"),
        ({"retries": -1}, "timeout must be above 0, retries at least 0"),
        ({"provider": "azure"}, "azure/... needs base_url or AZURE_OPENAI_ENDPOINT"),
    ],
)
def test_options_off_their_scale(options: dict[str, Any], told: str) -> None:
    """They are refused with the scale, whose ends are allowed."""
    with pytest.raises(errors.ConfigError, match=told):
        OpenAIJudge("m", **options)
    for temperature in (0, 2):
        limits = OpenAIJudge("m", timeout=0.1, retries=0, temperature=temperature).endpoint.limits
        assert (limits.timeout, limits.retries) == (0.1, 0)


@pytest.mark.parametrize("options", [{}, {"max_tokens": 9}])
def test_texts_that_are_too_long_are_not_sent_again(options: dict[str, Any]) -> None:
    """Not without an option that the message names, either, unless it is a limit of ours."""
    words = "the context length is exceeded by max_tokens and response_format"
    error, requests = failing(refused(words), errors.JudgeTooLongError, **options)
    assert str(error) == "HTTP 400: the texts are too long for the model"
    assert requests == (1 if options else 2)


def limit_sent(body: Mapping[str, Any]) -> object:
    return body.get("max_tokens", body.get("max_completion_tokens"))


@pytest.mark.parametrize(
    ("model", "options", "limit"),
    [
        ("gpt-4o-mini", {}, 3 * 1024 + len(A)),
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
        asyncio.run(judge_of(server, model, **options).reply(GROUP))
        assert [limit_sent(request.body) for request in server.requests] == [limit]


def test_a_reply_cut_off_at_our_limit_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    """A model whose thoughts count is asked again without a limit, and scores."""

    def reply(body: dict[str, Any]) -> object:
        if limit_sent(body) is None:
            return good_parts(body)
        return completion({"content": ""}, finish_reason="length")

    with ScriptedOpenAI(reply) as server, caplog.at_level("WARNING"):
        judge = judge_of(server, "deployment")
        for _ in range(2):
            found = asyncio.run(
                aevaluate(SAMPLE, ["faithfulness"], judge=judge, embedder="hashing")
            )
            assert found.scores[0].status == "ok"
        limits = [limit_sent(request.body) for request in server.requests]
    assert limits[0] is not None
    assert set(limits[1:]) == {None}
    assert caplog.text.count("a reply of the judge openai/deployment at http://127.0.0.1:") == 1


@pytest.mark.parametrize(
    "refusal",
    [
        "The maximum context length is 4096, but you requested 5096 (1096 in the completion)",
        "max_tokens is too large: 9000. This model supports at most 4096 completion tokens.",
    ],
)
def test_a_refused_limit_of_ours_is_left_out(refusal: str) -> None:
    """A model with a small context gets the request without a limit, from then on."""

    def reply(body: dict[str, Any]) -> object:
        if limit_sent(body) is None:
            return good_parts(body)
        return refused(refusal)

    with ScriptedOpenAI(reply) as server:
        judge = judge_of(server)
        for _ in range(2):
            assert asyncio.run(judge.reply([CONTEXT])).parts == (Rating(rating=2),)
        sent = [next((k for k in r.body if k.startswith("max_")), None) for r in server.requests]
    assert sent == ["max_tokens", None, None]


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
        judge, outcomes = OpenAIJudge("m", base_url=address, api_key="sk-secret"), list[str]()
        judge.endpoint.observers.append(lambda outcome, _: outcomes.append(outcome))
        with pytest.raises(errors.UnparsableReplyError, match="larger than"):
            asyncio.run(judge.reply([CONTEXT]))
    assert sent[0] < 30_000_000, "the rest is in the buffers of the sockets"
    assert outcomes == ["unparsable"]


Probabilities = Mapping[str, float]


def with_logprobs(text: str, at_rating: Probabilities) -> HttpReply:
    likely = [{"token": token, "logprob": math.log(p)} for token, p in at_rating.items() if p > 0]
    tokens = re.findall(r" ?[A-Za-z_]+| ?\d|\s+|[^\w\s]", text)
    content = [
        {"token": token, "logprob": -0.1, "top_logprobs": likely if token.strip().isdigit() else []}
        for token in tokens
    ]
    return completion({"content": text}, logprobs={"content": content})


def answering(rating: int, at_rating: Probabilities, *, reason: str | None = None) -> Any:
    def answer(body: Mapping[str, Any]) -> HttpReply:
        schema = body["response_format"]["json_schema"]["schema"]
        talkative = {name: {"rating": rating, "reason": reason} for name in names_asked(body)}
        reply = in_form(schema, rating) if reason is None else talkative
        return with_logprobs(json.dumps(reply), at_rating)

    return answer


def in_form(schema: Mapping[str, Any], rating: int) -> object:
    if "properties" in schema:
        return {name: in_form(member, rating) for name, member in schema["properties"].items()}
    return "so" if schema["type"] == "string" else rating


def measured(
    one: Metric, answer: Any, *, explanations: bool = False
) -> tuple[Score, list[Mapping[str, Any]]]:
    options: Any = {"embedder": "hashing", "explanations": explanations}
    with ScriptedOpenAI(answer) as server:
        evaluation = asyncio.run(aevaluate(SAMPLE, [one], judge=judge_of(server), **options))
        return evaluation.scores[0], [request.body for request in server.requests]


@pytest.mark.parametrize("explanations", [False, True])
@pytest.mark.parametrize(
    ("name", "rating", "at_rating", "value"),
    [
        ("context_relevance", 2, {"2": 0.5, "1": 0.25, "0": 0.25}, 0.625),
        ("response_groundedness", 1, {"1": 0.6, " 1": 0.2, "2": 0.2}, 0.6),
        ("answer_accuracy", 4, {"4": 0.5, "2": 0.25, "3": 0.25}, 10 / 12),
        ("correctness", 4, {"4": 0.75, "5": 0.25, "9": 0.0}, 4.25),
        ("correctness", 4, {"4": 1.0}, 4.0),
        ("rubric", 5, {"5": 0.5, "4": 0.25, '"': 0.25}, 14 / 3),
    ],
)
def test_the_mean_under_the_judges_probabilities(
    name: str, rating: int, at_rating: Probabilities, value: float, *, explanations: bool
) -> None:
    """What the judge might have said counts by its probability; what is off the scale does not."""
    one = metric(name, rating="logprobs")
    score, requests = measured(one, answering(rating, at_rating), explanations=explanations)
    assert score.value == pytest.approx(value, abs=1e-12)
    assert (score.reason, score.detail["rated"]) == (None, "logprobs")
    assert all((r["logprobs"], r["top_logprobs"]) == (True, 20) for r in requests)


@pytest.mark.parametrize("most", [5, 0])
def test_a_server_that_refuses_so_many(most: int) -> None:
    """It is asked for fewer, then for none; what it refused is not tried again."""

    def answer(body: Mapping[str, Any]) -> object:
        if body.get("top_logprobs", 0) > most:
            return refused(f"top_logprobs must be at most {most}")
        return (
            answering(2, {"2": 0.5, "1": 0.5})(body)
            if most
            else {name: {"rating": 1} for name in names_asked(body)}
        )

    score, _ = measured(metric("context_relevance", rating="logprobs", judges=1), answer)
    assert (score.value, score.detail["rated"]) == (
        (0.75, "logprobs") if most else (0.5, "integer")
    )


BEFORE = '{"context_relevance_1": {"rating": '
NOTHING = [{"token": "2", "logprob": None}, {"token": None}, {"token": "1", "logprob": 0.5}]
BROKEN = (
    *(None, "none", {}, {"content": None}),
    *(
        {"content": tokens}
        for tokens in (
            [{}],
            [{"token": "{"}],
            [{"token": f"{BEFORE}2}}}}"}],
            [{"token": token} for token in (BEFORE, "2", "}}")],
            [{"token": token, "top_logprobs": NOTHING} for token in (BEFORE, "2", "}}")],
        )
    ),
)


@pytest.mark.parametrize("logprobs", BROKEN, ids=range(len(BROKEN)))
def test_broken_probabilities_are_none(logprobs: object) -> None:
    """Whatever a server sends in their place, the number replied counts."""

    def answer(body: Mapping[str, Any]) -> HttpReply:
        reply = {name: {"rating": 2} for name in names_asked(body)}
        return completion({"content": json.dumps(reply)}, logprobs=logprobs)

    score, _ = measured(metric("context_relevance", rating="logprobs", judges=1), answer)
    assert (score.value, score.reason) == (1.0, "no_logprobs")


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
    async def use(client: OpenAIClient) -> list[Any]:
        return [await client.post(*REQUEST) for _ in range(times)]

    with ScriptedOpenAI(reply) as server:
        client = client_of(server.base_url, timeout)
        asyncio.run(client.open())  # in another event loop
        replies = asyncio.run(use(client))
        assert len(client._clients) == 1  # noqa: SLF001
        return replies


def test_requests_are_answered(transport: str) -> None:
    """Several requests of one event loop, after those of another one, get their replies."""
    replies = sent(lambda _: "yes", times=3)
    assert [one["choices"][0]["message"]["content"] for one in replies] == ["yes"] * 3


@pytest.mark.usefixtures("transport")
def test_texts_follow_no_redirect() -> None:
    """A server that names another address gets an error; nothing is sent there."""
    with ScriptedOpenAI(lambda _: "yes") as other:
        elsewhere = {"location": f"{other.base_url}/chat/completions"}
        with pytest.raises(errors.JudgeError):
            sent(lambda _: HttpReply(status=307, headers=elsewhere))
        assert not other.requests


@pytest.mark.slow
@pytest.mark.usefixtures("transport")
@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (HttpReply(delay=60), errors.JudgeTimeoutError),
        (
            HttpReply(body='{"choices"', headers={"Content-Length": "1000"}),
            errors.JudgeTransportError,
        ),
        (HttpReply(body="x" * 1_000_001), errors.UnparsableReplyError),
    ],
)
def test_failures_have_their_kind(reply: HttpReply, kind: type[errors.JudgeError]) -> None:
    """A reply that does not come, one that breaks off, and one that is too large."""
    with pytest.raises(kind):
        sent(lambda _: reply, timeout=0.5 if reply.delay else 30)


@pytest.mark.usefixtures("transport")
def test_a_refused_connection_is_not_a_timeout() -> None:
    """The client for aiohttp reports it as one; the message names the server instead."""
    with ScriptedOpenAI(lambda _: "") as server:
        url = server.base_url
    client = client_of(url)
    with pytest.raises(errors.JudgeTransportError, match=r"127\.0\.0\.1:\d+: Connection error"):
        asyncio.run(client.post(*REQUEST))


@pytest.mark.usefixtures("transport")
def test_certificates_that_cannot_be_read_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which variables to check."""
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/bundle.pem")
    client = client_of("http://127.0.0.1:9")
    with pytest.raises(
        errors.JudgeTransportError, match=r"check SSL_CERT_FILE and SSL_CERT_DIR: .*No such"
    ):
        asyncio.run(client.open())
