"""LangChain models as judges: each by its provider's protocol, and beside an application.

The packages share one HTTP client between all models of a process. A judge that used the
asynchronous client in its own event loop made the application's calls fail.
"""

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import questions
from e2e.providers import USED_IN, USED_OUT, VECTOR, Providers, serving
from rag_eval_otel.config import Config
from rag_eval_otel.embed import LangChainEmbedder
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.langchain import LangChainJudge
from rag_eval_otel.judge.tasks import Rating
from rag_eval_otel.models import build_plain_judge
from rag_eval_otel.types import Replies, Usage

CALLS, AT_ONCE = 500, 16
PATIENCE = 60.0  # seconds
CONTEXT = questions.context_relevance("Why?", ("One.",), voice=1)
USED = Usage(judge_requests=1, prompt_tokens=USED_IN, completion_tokens=USED_OUT)

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",  # warnings of the packages
    "ignore::ResourceWarning",  # they leave connections open when the loop ends
)


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


PATHS = {
    "langchain_anthropic.ChatAnthropic": "/v1/messages",
    "langchain_google_genai.ChatGoogleGenerativeAI": "/models/m:generateContent",
    "langchain_mistralai.ChatMistralAI": "/chat/completions",
    "langchain_ollama.ChatOllama": "/api/chat",
    "langchain_openai.ChatOpenAI": "/chat/completions",
}
"""The end of the path of the requests, by the class of a model."""


@pytest.mark.parametrize("name", PATHS)
def test_a_chat_model(name: str, providers: Providers) -> None:
    """A model of another package sends requests of its own protocol, with its own key."""
    replies = asked(model(name, providers.url))
    assert (replies.parts, replies.usage) == ((Rating(rating=1),), USED)
    (request,) = providers.requests
    assert request.path.endswith(PATHS[name])
    sent = [request.headers.get(one) for one in ("authorization", "x-api-key", "x-goog-api-key")]
    is_keyless = name.startswith("langchain_ollama")
    assert is_keyless or {"sk-app", "Bearer sk-app"} & set(sent)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.run_until_complete(made.shutdown_asyncgens())
    made.close()


def model(name: str, url: str) -> Any:
    """Return a model with default settings except for its address; none asks the network."""
    package, _, kind = name.partition(".")
    key = {} if package == "langchain_ollama" else {"api_key": "sk-app"}
    base = f"{url}/v1" if package in {"langchain_openai", "langchain_mistralai"} else url
    made = getattr(pytest.importorskip(package), kind)
    return made(model="m", base_url=base, **key)


async def _many(call: Callable[[], Awaitable[object]]) -> list[object]:
    """Make 500 calls, 16 at once; return results and exceptions.

    One call without a reply after a minute is made once more: on one overloaded machine the HTTP
    client of an application waited forever for a reply that the server had sent.
    """
    slots = asyncio.Semaphore(AT_ONCE)
    repeats = [call]

    async def one() -> object:
        async with slots:
            try:
                return await asyncio.wait_for(call(), PATIENCE)
            except asyncio.TimeoutError:
                return await asyncio.wait_for(repeats.pop()(), PATIENCE)  # a second one fails

    return await asyncio.gather(*(one() for _ in range(CALLS)), return_exceptions=True)


def _side_by_side(
    loop: asyncio.AbstractEventLoop,
    application: Callable[[], Awaitable[object]],
    judge: Callable[[], Awaitable[object]],
) -> tuple[list[object], list[object]]:
    gc.collect()  # clients of earlier tests belong to this thread's loop, and are closed here
    judged: list[object] = []
    thread = threading.Thread(target=lambda: judged.extend(asyncio.run(_many(judge))))
    thread.start()
    answered = loop.run_until_complete(_many(application))
    thread.join()
    return answered, judged


@pytest.mark.parametrize("same", ["same", "another"])
@pytest.mark.parametrize(
    "name",
    [
        "langchain_openai.ChatOpenAI",
        "langchain_anthropic.ChatAnthropic",
        "langchain_ollama.ChatOllama",
    ],
)
def test_no_call_beside_an_application_fails(
    name: str, same: str, providers: Providers, loop: asyncio.AbstractEventLoop
) -> None:
    """Of 500 calls each by application and judge, with a shared model or two."""
    theirs = model(name, providers.url)
    judge = LangChainJudge(theirs if same == "same" else model(name, providers.url))
    answered, judged = _side_by_side(
        loop, lambda: theirs.ainvoke("hi"), lambda: judge.reply([CONTEXT])
    )
    assert {type(answer).__name__ for answer in answered} == {"AIMessage"}
    assert [getattr(reply, "parts", reply) for reply in judged] == [(Rating(rating=1),)] * CALLS


def test_an_embedder_beside_an_application(
    providers: Providers, loop: asyncio.AbstractEventLoop
) -> None:
    """Of 500 calls each, with a shared model."""
    theirs = model("langchain_ollama.OllamaEmbeddings", providers.url)
    embedder = LangChainEmbedder(theirs)
    answered, embedded = _side_by_side(
        loop, lambda: theirs.aembed_documents(["a"]), lambda: embedder.embed(["a", "b"])
    )
    assert answered == [[VECTOR]] * CALLS
    assert [getattr(rows, "shape", rows) for rows in embedded] == [(2, len(VECTOR))] * CALLS
