"""Judges and embedders by name: address, authentication and reply, by the real client library."""

import asyncio
import logging
import re
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.runnables import RunnableLambda

import questions
from e2e.providers import USED_IN, USED_OUT, VECTOR, Providers, serving
from rag_eval_otel import aevaluate
from rag_eval_otel import config as options_module
from rag_eval_otel.config import Config
from rag_eval_otel.embed import HashingEmbedder, OpenAIEmbedder
from rag_eval_otel.errors import ConfigError, JudgeUnavailableError
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.judge.openai import OpenAIJudge
from rag_eval_otel.judge.tasks import Rating, Task
from rag_eval_otel.judge.usage import deadline_after, scope
from rag_eval_otel.models import (
    build_embedder,
    build_live_models,
    build_plain_judge,
    chosen_max_text_chars,
    chosen_models,
)
from rag_eval_otel.providers import PROVIDERS, Provider
from rag_eval_otel.types import Replies
from support import SAMPLE, install

CONTEXT = questions.context_relevance("Why?", ("One.",), voice=1)

BEARER = ("authorization", "Bearer sk-app")
AZURE = "/openai/deployments/m/{}"
PATHS: dict[str, tuple[str, str, tuple[str, str]]] = {
    "openai/m": ("/v1", "/v1/{}", BEARER),
    "azure/m": ("", AZURE, ("api-key", "sk-app")),
    "ollama/m": ("", "/v1/{}", BEARER),
    "vllm/m": ("", "/v1/{}", BEARER),
    "anthropic/m": ("", "/v1/{}", BEARER),
    "google/m": ("", "/v1beta/openai/{}", BEARER),
    "mistral/m": ("", "/v1/{}", BEARER),
}
"""For each name the address given after the host, the path that is asked, and the key's header."""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in PROVIDERS.values():
        for name in (*provider.keys, *provider.addresses):
            monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[Providers]:
    with serving() as found:
        yield found


def asked(name: str, **options: Any) -> Replies:
    provider, _, model = name.partition("/")
    return asyncio.run(OpenAIJudge(model, provider=provider, **options).reply([CONTEXT]))


@pytest.mark.parametrize("name", PATHS)
def test_a_judge_and_an_embedder_by_name(name: str, server: Providers) -> None:
    """Requests go to the provider's paths with its key; replies are read and counted."""
    address, path, (header, key) = PATHS[name]
    options: Any = {"base_url": server.url + address, "api_key": "sk-app"}
    replies = asked(name, **options)
    assert (replies.parts, replies.model) == ((Rating(rating=1),), "m-2026-01-01")
    used = (replies.usage.prompt_tokens, replies.usage.completion_tokens)
    assert used == (USED_IN, USED_OUT)
    provider, _, model = name.partition("/")
    kinds = ["chat/completions"]
    if provider != "anthropic":  # it has no embeddings
        embedder = OpenAIEmbedder(model, provider=provider, **options)
        assert asyncio.run(embedder.embed(["a", "b"])).shape == (2, len(VECTOR))
        kinds.append("embeddings")
    assert [request.path for request in server.requests] == [path.format(kind) for kind in kinds]
    assert {(r.headers[header], r.body["model"]) for r in server.requests} == {(key, "m")}


@pytest.mark.parametrize("name", [name for name in PATHS if name != "openai/m"])
def test_providers_variables(name: str, server: Providers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Key and address come from the provider's own variables, never from OpenAI's."""
    provider = PROVIDERS[name.partition("/")[0]]
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv(provider.keys[-1], "sk-app")
    if provider.addresses:
        monkeypatch.setenv(provider.addresses[0], server.url)
    options = {} if provider.addresses else {"base_url": server.url}
    assert asked(name, **options).parts == (Rating(rating=1),)
    header, key = PATHS[name][2]
    assert server.requests[0].headers[header] == key
    assert "sk-openai" not in str(server.requests[0].headers)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        (None, "http://127.0.0.1:11434/v1"),
        ("gpu:11434", "http://gpu:11434/v1"),
        ("0.0.0.0:11434", "http://127.0.0.1:11434/v1"),
        ("https://gpu/", "https://gpu/v1"),
        ("https://gpu/ollama/v1", "https://gpu/ollama/v1"),
    ],
)
def test_addresses_as_people_write_them(given: str | None, url: str) -> None:
    """Scheme and path are filled in, as in the variable OLLAMA_HOST."""
    assert PROVIDERS["ollama"].address(given) == url


def test_options_of_the_request(server: Providers) -> None:
    """Temperature, seed, length, format, further fields and Azure's newer path are right."""
    options: dict[str, Any] = {
        "temperature": 0.5,
        "seed": 7,
        "max_tokens": 99,
        "extra_body": {"reasoning_effort": "low"},
    }
    url, key = server.url, "sk-app"
    for name in ("vllm/m", "mistral/m", "azure/m"):
        asked(name, base_url=url, api_key=key, **options)
    vllm, mistral, azure = (request.body for request in server.requests)
    for body in (vllm, mistral, azure):
        assert (body["temperature"], body["reasoning_effort"]) == (0.5, "low")
    assert (vllm["seed"], vllm["max_tokens"]) == (7, 99)
    assert (mistral["random_seed"], "seed" in mistral) == (7, False)
    assert (azure["max_completion_tokens"], "max_tokens" in azure) == (99, False)
    asked("azure/m", base_url=f"{url}/openai/v1", api_key=key)
    assert server.requests[-1].path == "/openai/v1/chat/completions"
    asked("anthropic/m", base_url=url, api_key=key)  # which ignores a response format
    anthropic = server.requests[-1].body
    assert "response_format" not in anthropic
    assert '"required"' in anthropic["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("opnai/gpt-x", "openai/gpt-x"),
        ("openai:gpt-x", "openai/gpt-x"),
        ("gemini/gemini-pro", "google/gemini-pro"),
        ("gpt-4o-mini", "openai/gpt-4o-mini"),
        ("claude-x", "anthropic/claude-x"),
        ("lexcal", "lexical"),
        ("ollama", "ollama/<model>"),
        ("langchian/groq:m", "langchain/groq:m"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(wrong: str, right: str) -> None:
    """The error proposes a name that works."""
    with pytest.raises(ConfigError, match=rf"did you mean '{right}'\?"):
        Config(judge=wrong)


def test_providers_without_embeddings() -> None:
    """A provider that embeds nothing is not offered."""
    for name in ("anthropic/m", "bedrock/m", "langchain/openai:m", "local/m"):
        with pytest.raises(ConfigError, match="embedder"):
            Config(embedder=name)


@pytest.mark.parametrize(
    ("options", "address", "embedder", "is_said"),
    [
        ({"judge": "openai/m"}, "", "openai/text-embedding-3-small", False),
        ({"judge": "openai/m"}, "http://here", "hashing", True),
        ({"judge": "anthropic/m"}, "", "hashing", True),
        ({"judge": "openai/m", "embedder": "hashing"}, "http://here", "hashing", False),
        ({"judge": "lexical"}, "http://here", "hashing", False),
        ({"judge": "local/m"}, "", "hashing", False),
    ],
)
def test_the_offline_embedder_is_said(
    options: dict[str, Any],
    address: str,
    embedder: str,
    is_said: object,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server of one's own may embed nothing: then the offline embedder does, and that is said."""
    options_module._warn_of_hashing.cache_clear()  # noqa: SLF001
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            environ = {"OPENAI_BASE_URL": address}
            assert Config.from_env(environ, **options).embedder == embedder
    assert caplog.text.count("no embedder is named") == int(bool(is_said)), "once"


def test_a_sample_by_name(server: Providers, monkeypatch: pytest.MonkeyPatch) -> None:
    """`evaluate` takes a name; the same name is made once."""
    monkeypatch.setenv("VLLM_BASE_URL", server.url)

    async def several() -> None:
        for _ in range(3):
            evaluation = await aevaluate(SAMPLE, ["context_relevance"], judge="vllm/m")
            assert evaluation.judge == "m-2026-01-01"

    asyncio.run(several())
    first, _ = chosen_models("vllm/m", None)
    assert chosen_models("vllm/m", None)[0] is first
    assert asyncio.run(aevaluate(SAMPLE, ["default"])).judge == "lexical"


@pytest.mark.parametrize(
    ("given", "variable", "limit"), [(100, "5000", 100), (None, "150", 150), (None, "", 100_000)]
)
def test_a_limit_is_an_argument_or_a_variable(
    given: int | None, variable: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without either, texts have 100,000 characters; what is no limit is refused."""
    monkeypatch.setenv("RAG_EVAL_MAX_TEXT_CHARS", variable)
    assert chosen_max_text_chars(given) == limit
    with pytest.raises(ConfigError, match=r"max_text_chars .*a whole number at least 100"):
        chosen_max_text_chars(0)


MODULE = """
from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.judge.lexical import LexicalJudge


def judge(model):
    found = LexicalJudge()
    found.model = f"acme/{model}"
    return found


def embedder(model):
    return HashingEmbedder(dimensions=int(model))
"""
ENTRIES = """[rag_eval_otel.judges]
acme = acme_models:judge
lexical = acme_models:judge
openai = acme_models:judge
[rag_eval_otel.embedders]
acme = acme_models:embedder
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(monkeypatch, tmp_path, "acme_models", MODULE, ENTRIES)
    yield
    sys.modules.pop("acme_models", None)


@pytest.mark.usefixtures("installed")
def test_a_provider_of_another_package() -> None:
    """Its functions get the model's name; its names are listed, too."""
    config = Config(judge="acme/j", embedder="acme/7")
    assert build_plain_judge(config).model == "acme/j"
    assert asyncio.run(build_embedder(config).embed(["a"])).shape == (1, 7)
    judge, embedder = chosen_models("acme/j", "acme/7")
    assert (judge.model, type(embedder)) == ("acme/j", HashingEmbedder)
    with pytest.raises(ConfigError, match=r"'acme/<model>'.*did you mean 'acme/j'\?"):
        Config(judge="acm/j")
    assert Config.from_env({}, judge="acme/j").embedder == "hashing"


@pytest.mark.usefixtures("installed")
def test_our_own_providers_stay_ours() -> None:
    """A package cannot replace a judge of ours, and a provider needs a model."""
    assert isinstance(build_plain_judge(Config(judge="lexical")), LexicalJudge)
    assert isinstance(build_plain_judge(Config(judge="openai/m")), OpenAIJudge)
    with pytest.raises(ConfigError, match="did you mean 'acme/<model>'"):
        Config(judge="acme")


SNIPPETS = re.findall(
    r"(?<!-->\n)```python\n(.*?)```",  # complete examples are run by tests/test_docs.py
    (Path(__file__).parents[1] / "docs" / "judges.md").read_text(encoding="utf-8"),
    flags=re.DOTALL,
)


@pytest.mark.parametrize("snippet", SNIPPETS[1:], ids=range(1, len(SNIPPETS)))
def test_the_snippets_of_the_page(
    snippet: str,
    server: Providers,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each snippet of docs/judges.md scores its row; a local server stands for the provider."""
    for package in ("langchain_anthropic", "bedrock", "local/"):
        if package in snippet:
            pytest.skip("its package is not installed here")
    monkeypatch.setattr(Provider, "address", lambda *_: f"{server.url}/v1")
    for provider in PROVIDERS.values():
        monkeypatch.setenv(provider.keys[0] if provider.keys else "OPENAI_API_KEY", "sk-app")
    exec(SNIPPETS[0] + snippet, {})  # noqa: S102
    assert "1 row, " in capsys.readouterr().out
    assert "lexical" in snippet or server.requests


class Talker:
    """A judge and embedder of a user; each call raises ``error``, if there is one."""

    model = "talker"
    revision = 7

    def __init__(self, error: Exception | None = None) -> None:
        self.calls = 0
        self.error = error

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        self.calls += 1
        if self.error:
            raise self.error
        return Replies(parts=tuple(Rating(rating=2) for _ in tasks), model="talker-1")

    async def embed(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        await self.reply([])
        return np.ones((len(texts), 3))


def calls_during_an_outage(config: Config, talker: Talker) -> tuple[int, int]:
    async def ask(call: Callable[[], Awaitable[object]]) -> int:
        before = talker.calls
        for i in range(30):
            with (
                scope(deadline=deadline_after(60 if i < 5 else 0.3)),
                suppress(RuntimeError, JudgeUnavailableError),
            ):
                await call()
        return talker.calls - before

    async def both() -> tuple[int, int]:
        judge, embedder = build_live_models(config)
        return await ask(lambda: judge.reply([CONTEXT])), await ask(lambda: embedder.embed(["a"]))

    return asyncio.run(both())


def test_judges_and_embedders_of_users_have_a_breaker() -> None:
    """Each costs five failed calls; a call of a LangChain model is one attempt."""
    talker = Talker(RuntimeError("down"))
    config = Config(judge=talker, embedder=talker)
    assert calls_during_an_outage(config, talker) == (5, 5)
    talker = Talker()

    def fail(_: object) -> str:
        talker.calls += 1
        raise RuntimeError

    embeddings = DeterministicFakeEmbedding(size=3)
    config = Config(judge=RunnableLambda(fail), embedder=embeddings)
    assert calls_during_an_outage(config, talker) == (5, 0)


def test_a_protected_judge_looks_like_the_judge() -> None:
    """Its name and revision are in the versions of scores."""
    for held, patience in ((0, 99), (5, 15), (16, 16), (100, 99)):
        options: dict[str, Any] = {"hold_seconds": held, "evaluation_timeout": 99, "concurrency": 3}
        judge, embedder = build_live_models(Config(judge=Talker(), embedder=Talker(), **options))
        limits = judge.endpoint.limits  # type: ignore[attr-defined]
        assert (limits.retries, limits.concurrency, limits.patience) == (0, 12, patience)
    assert (judge.model, getattr(judge, "revision", None)) == ("talker", 7)
    assert getattr(judge, "label_metrics", "none") is None
    assert getattr(embedder, "model", None) == "talker"
    assert "Talker" in repr(judge)
    assert asyncio.run(judge.reply([CONTEXT])).parts == (Rating(rating=2),)
    assert asyncio.run(embedder.embed(["a", "b"])).shape == (2, 3)
