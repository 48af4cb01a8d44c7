"""An agent of the OpenAI Agents SDK that OpenInference traces: chat completions and responses."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e import agents as common
from e2e.watched import Watched, watched

agents = pytest.importorskip("agents")
instrumentation = pytest.importorskip("openinference.instrumentation.openai_agents")
openai = pytest.importorskip("openai")


@pytest.fixture(scope="module")
def watch() -> Iterator[Watched]:
    """A provider for OpenInference."""
    instrumentor = instrumentation.OpenAIAgentsInstrumentor()
    with watched() as found:
        instrumentor.instrument(tracer_provider=found.provider)
        yield found
        instrumentor.uninstrument()


def agent(client: Any, found: Callable[[str], object], *, api: str = "chat") -> Any:
    """Return an agent with a search tool."""

    def search_docs(query: str) -> Any:
        """Search the handbook."""
        return found(query)

    models = {"chat": agents.OpenAIChatCompletionsModel, "responses": agents.OpenAIResponsesModel}
    return agents.Agent(
        name="Helper",
        instructions="Answer from the handbook.",
        tools=[agents.function_tool(search_docs)],
        model=models[api](model=common.MODEL, openai_client=client),
    )


@pytest.mark.parametrize("found", common.RETURNS, ids=lambda found: found.__name__)
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_turn_is_scored(
    watch: Watched, url: str, found: Callable[[str], object], api: str
) -> None:
    """For each form of tool result, question, documents and answer are those of the turn."""

    async def ask(question: str) -> object:
        async with openai.AsyncOpenAI(base_url=url, api_key="app") as client:
            run = await agents.Runner.run(agent(client, found, api=api), question)
        return run.final_output

    common.assert_each_awaited(watch, ask)


def test_a_streamed_turn_is_scored(watch: Watched, url: str) -> None:
    """A streamed answer is scored as a whole."""

    async def ask(question: str) -> object:
        async with openai.AsyncOpenAI(base_url=url, api_key="app") as client:
            run = agents.Runner.run_streamed(agent(client, common.pages), question)
            async for _ in run.stream_events():
                pass
        return run.final_output

    common.assert_each_awaited(watch, ask)
