"""An agent of the OpenAI Agents SDK that OpenInference traces: chat completions and responses."""

from collections.abc import Callable
from typing import Any

import pytest

from e2e import agents as common
from e2e.watched import Watched, instrumented

agents = pytest.importorskip("agents")
instrumentation = pytest.importorskip("openinference.instrumentation.openai_agents")
openai = pytest.importorskip("openai")


def trace(watch: Watched) -> Any:
    instrumentor = instrumentation.OpenAIAgentsInstrumentor()
    return instrumented(instrumentor, tracer_provider=watch.provider)


def program(
    url: str, found: Callable[[str], object], *, api: str = "chat", is_streamed: bool = False
) -> Callable[[str], Any]:
    models = {"chat": agents.OpenAIChatCompletionsModel, "responses": agents.OpenAIResponsesModel}

    async def ask(question: str) -> object:
        async with openai.AsyncOpenAI(base_url=url, api_key="app") as client:
            agent = agents.Agent(
                name="Helper",
                instructions="Answer from the handbook.",
                tools=[agents.function_tool(common.tool(found))],
                model=models[api](model=common.MODEL, openai_client=client),
            )
            if not is_streamed:
                return (await agents.Runner.run(agent, question)).final_output
            run = agents.Runner.run_streamed(agent, question)
            async for _ in run.stream_events():
                pass
            return run.final_output

    return ask


@common.EACH_RETURN
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_turn_is_scored(
    watch: Watched, url: str, found: Callable[[str], object], api: str
) -> None:
    """For each form of tool result, question, documents and answer are those of the turn."""
    common.assert_each_scored(watch, program(url, found, api=api))


def test_a_streamed_turn_is_scored(watch: Watched, url: str) -> None:
    """A streamed answer is scored as a whole."""
    common.assert_each_scored(watch, program(url, common.pages, is_streamed=True))
