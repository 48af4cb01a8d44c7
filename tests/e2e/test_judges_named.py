"""Judges with LangChain's provider packages, each with a server of its protocol."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import questions
from e2e.providers import USED_IN, USED_OUT, Providers, serving
from rag_eval_otel.config import Config
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.models import build_plain_judge
from rag_eval_otel.judge.tasks import Rating
from rag_eval_otel.types import Replies, Usage

CONTEXT = questions.context_relevance("Why?", ("One.",), voice=1)
USED = Usage(judge_requests=1, prompt_tokens=USED_IN, completion_tokens=USED_OUT)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture
def providers() -> Iterator[Providers]:
    with serving() as found:
        yield found


def asked(judge: Any, **options: Any) -> Replies:
    return asyncio.run(build_plain_judge(Config(judge=judge, **options)).reply([CONTEXT]))


def test_bedrock(providers: Providers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Converse receives a signed request with the temperature 0."""
    pytest.importorskip("langchain_aws")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id-app")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", providers.url)
    replies = asked("bedrock/anthropic.claude-x")
    assert replies.parts == (Rating(rating=1),)
    assert (replies.model, replies.usage) == ("anthropic.claude-x", USED)
    (request,) = providers.requests
    assert request.path == "/model/anthropic.claude-x/converse"
    assert "Credential=id-app/" in request.headers["authorization"]
    assert request.body["inferenceConfig"] == {"temperature": 0.0}


def test_bedrock_without_a_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """The missing region is an error before the first request."""
    pytest.importorskip("langchain_aws")
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="region"):
        build_plain_judge(Config(judge="bedrock/amazon.nova"))


PACKAGES = {
    "langchain_anthropic.ChatAnthropic": ("", "/v1/messages"),
    "langchain_google_genai.ChatGoogleGenerativeAI": ("", "/models/m:generateContent"),
    "langchain_mistralai.ChatMistralAI": ("/v1", "/chat/completions"),
    "langchain_ollama.ChatOllama": ("", "/api/chat"),
    "langchain_openai.ChatOpenAI": ("/v1", "/chat/completions"),
}
"""By the class of a model: the path of its base URL, and the end of the path of its requests."""


@pytest.mark.parametrize("name", PACKAGES)
def test_a_chat_model(name: str, providers: Providers) -> None:
    """A model of another package sends requests of its own protocol, with its own key."""
    package, _, kind = name.partition(".")
    base, path = PACKAGES[name]
    key = {} if package == "langchain_ollama" else {"api_key": "sk-app"}
    model = getattr(pytest.importorskip(package), kind)
    replies = asked(model(model="m", base_url=f"{providers.url}{base}", **key))
    assert (replies.parts, replies.usage) == ((Rating(rating=1),), USED)
    (request,) = providers.requests
    assert request.path.endswith(path)
    sent = [request.headers.get(one) for one in ("authorization", "x-api-key", "x-goog-api-key")]
    assert not key or {"sk-app", "Bearer sk-app"} & set(sent)


def test_any_provider_of_langchain_by_name(
    providers: Providers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``langchain/openai:m`` makes a chat model of langchain-openai, with the temperature 0."""
    pytest.importorskip("langchain_openai")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-app")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{providers.url}/v1")
    replies = asked("langchain/openai:m")
    assert (replies.parts, replies.usage) == ((Rating(rating=1),), USED)
    (request,) = providers.requests
    assert request.headers["authorization"] == "Bearer sk-app"
    assert request.body["temperature"] == 0.0
