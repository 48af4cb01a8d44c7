"""A LangChain model as judge, beside an application with models of the same package.

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
from e2e.providers import VECTOR, Providers, serving
from rag_eval_otel.embed import LangChainEmbedder
from rag_eval_otel.judge.langchain import LangChainJudge
from rag_eval_otel.judge.tasks import Rating

CALLS, AT_ONCE = 500, 16
PATIENCE = 60.0  # seconds
CONTEXT = questions.context_relevance("Why?", ("One.",), voice=1)

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",  # warnings of the packages
    "ignore::ResourceWarning",  # they leave connections open when the loop ends
)


@pytest.fixture(scope="module")
def providers() -> Iterator[Providers]:
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.run_until_complete(made.shutdown_asyncgens())
    made.close()


def model(name: str, url: str) -> Any:
    """Return a model with default settings except for its address; none asks the network."""
    package, _, kind = name.partition(".")
    options: dict[str, Any] = {"model": "m", "base_url": url}
    if package == "langchain_openai":
        options |= {"api_key": "k", "base_url": f"{url}/v1"}
    elif package == "langchain_anthropic":
        options["api_key"] = "k"
    if kind == "OpenAIEmbeddings":
        options["check_embedding_ctx_length"] = False
    return getattr(pytest.importorskip(package), kind)(**options)


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
def test_no_call_of_a_chat_model_fails(
    name: str, same: str, providers: Providers, loop: asyncio.AbstractEventLoop
) -> None:
    """Of 500 calls each by application and judge none fails, with a shared model or two."""
    llm = model(name, providers.url)
    judge = LangChainJudge(llm if same == "same" else model(name, providers.url))
    answered, judged = _side_by_side(
        loop, lambda: llm.ainvoke("hi"), lambda: judge.reply([CONTEXT])
    )
    assert {type(answer).__name__ for answer in answered} == {"AIMessage"}
    assert [getattr(reply, "parts", reply) for reply in judged] == [(Rating(rating=1),)] * CALLS


@pytest.mark.parametrize("same", ["same", "another"])
@pytest.mark.parametrize(
    "name", ["langchain_openai.OpenAIEmbeddings", "langchain_ollama.OllamaEmbeddings"]
)
def test_no_call_of_embeddings_fails(
    name: str, same: str, providers: Providers, loop: asyncio.AbstractEventLoop
) -> None:
    """Of 500 embedding calls each by application and judge none fails."""
    embeddings = model(name, providers.url)
    embedder = LangChainEmbedder(embeddings if same == "same" else model(name, providers.url))
    answered, embedded = _side_by_side(
        loop, lambda: embeddings.aembed_documents(["a"]), lambda: embedder.embed(["a", "b"])
    )
    assert answered == [[VECTOR]] * CALLS
    assert [getattr(rows, "shape", rows) for rows in embedded] == [(2, len(VECTOR))] * CALLS
