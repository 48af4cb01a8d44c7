"""An agent of Pydantic AI with each version of its own instrumentation and both APIs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from e2e import agents as common
from e2e.watched import Watched, watched

openai = pytest.importorskip("openai")
pydantic_ai = pytest.importorskip("pydantic_ai")
models = pytest.importorskip("pydantic_ai.models.openai")
providers = pytest.importorskip("pydantic_ai.providers.openai")
VERSIONS = (2, 3, 4, 5, 6)


@pytest.fixture(scope="module")
def watch() -> Iterator[Watched]:
    with watched() as found:
        yield found


@asynccontextmanager
async def agent(
    watch: Watched, url: str, found: Callable[[str], object], *, api: str = "chat", **options: Any
) -> AsyncIterator[Any]:
    """Return an agent with a search tool."""

    def search_docs(query: str) -> Any:
        """Search the handbook."""
        return found(query)

    kind = {"chat": models.OpenAIChatModel, "responses": models.OpenAIResponsesModel}[api]
    async with openai.AsyncOpenAI(base_url=url, api_key="app") as client:
        made = pydantic_ai.Agent(
            kind(common.MODEL, provider=providers.OpenAIProvider(openai_client=client)),
            tools=[search_docs],
            instructions="Answer from the handbook.",
        )
        made.instrument = pydantic_ai.InstrumentationSettings(
            tracer_provider=watch.provider, **options
        )
        yield made


@pytest.mark.parametrize("found", common.RETURNS, ids=lambda found: found.__name__)
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_turn_is_scored(
    watch: Watched, url: str, found: Callable[[str], object], api: str
) -> None:
    """For each form of tool result, question, documents and answer are those of the turn."""

    async def ask(question: str) -> object:
        async with agent(watch, url, found, api=api) as helper:
            return (await helper.run(question)).output

    common.assert_each_awaited(watch, ask)


@pytest.mark.filterwarnings("ignore:Instrumentation format versions")
@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_is_read(watch: Watched, url: str, version: int) -> None:
    """Versions of the instrumentation use different names of attributes and spans."""

    async def ask(question: str) -> object:
        async with agent(watch, url, common.records, version=version) as helper:
            return (await helper.run(question)).output

    common.assert_each_awaited(watch, ask)


def test_a_streamed_turn_is_scored(watch: Watched, url: str) -> None:
    """A streamed answer is scored as a whole."""

    async def ask(question: str) -> object:
        made = agent(watch, url, common.pages)
        async with made as helper, helper.run_stream(question) as run:
            return await run.get_output()

    common.assert_each_awaited(watch, ask)


def test_without_content_nothing_is_scored(watch: Watched, url: str) -> None:
    """Without content nothing is scored."""

    async def ask() -> None:
        async with agent(watch, url, common.pages, include_content=False) as helper:
            await helper.run(common.ASKED[0])

    run = watch.run(lambda: asyncio.run(ask()))
    assert not run.truths
    assert {outcome for outcome, _ in run.outcomes} <= {"skipped"}
