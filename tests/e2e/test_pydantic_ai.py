"""An agent of Pydantic AI with each version of its own instrumentation and both APIs."""

from collections.abc import Callable
from typing import Any

import pytest

from e2e import agents as common
from e2e.watched import Watched

openai = pytest.importorskip("openai")
pydantic_ai = pytest.importorskip("pydantic_ai")
models = pytest.importorskip("pydantic_ai.models.openai")
providers = pytest.importorskip("pydantic_ai.providers.openai")
VERSIONS = (2, 3, 4, 5, 6)


async def answer(agent: Any, question: str) -> object:
    return (await agent.run(question)).output


async def streamed(agent: Any, question: str) -> object:
    async with agent.run_stream(question) as run:
        return await run.get_output()


def program(
    watch: Watched,
    url: str,
    found: Callable[[str], object],
    *,
    api: str = "chat",
    run: Callable[[Any, str], Any] = answer,
    **options: Any,
) -> Callable[[str], Any]:
    kind = {"chat": models.OpenAIChatModel, "responses": models.OpenAIResponsesModel}[api]

    async def ask(question: str) -> object:
        async with openai.AsyncOpenAI(base_url=url, api_key="app") as client:
            made = pydantic_ai.Agent(
                kind(common.MODEL, provider=providers.OpenAIProvider(openai_client=client)),
                tools=[common.tool(found)],
                instructions="Answer from the handbook.",
            )
            made.instrument = pydantic_ai.InstrumentationSettings(
                tracer_provider=watch.provider, **options
            )
            return await run(made, question)

    return ask


@common.EACH_RETURN
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_turn_is_scored(
    watch: Watched, url: str, found: Callable[[str], object], api: str
) -> None:
    """For each form of tool result, question, documents and answer are those of the turn."""
    common.assert_each_scored(watch, program(watch, url, found, api=api))


@pytest.mark.filterwarnings("ignore:Instrumentation format versions")
@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_is_read(watch: Watched, url: str, version: int) -> None:
    """Versions of the instrumentation use different names of attributes and spans."""
    common.assert_each_scored(watch, program(watch, url, common.records, version=version))


def test_a_streamed_turn_is_scored(watch: Watched, url: str) -> None:
    """A streamed answer is scored as a whole."""
    common.assert_each_scored(watch, program(watch, url, common.pages, run=streamed))


def test_without_content_nothing_is_scored(watch: Watched, url: str) -> None:
    """Without content nothing is scored."""
    asked = program(watch, url, common.pages, include_content=False)
    common.assert_nothing_scored(watch, asked)
