"""A crew of CrewAI and its model's client, traced by OpenInference."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e import agents as common
from e2e.watched import Watched, watched

crewai = pytest.importorskip("crewai")
crewai_tools = pytest.importorskip("crewai.tools")
instrumentation = pytest.importorskip("openinference.instrumentation.crewai")
openai = pytest.importorskip("openinference.instrumentation.openai")
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of CrewAI
BEFORE = "Answer this from the handbook: "


@pytest.fixture(scope="module")
def watch() -> Iterator[Watched]:
    """A provider for OpenInference."""
    patch = pytest.MonkeyPatch()
    patch.setenv("CREWAI_DISABLE_TELEMETRY", "true")
    instrumentors = [instrumentation.CrewAIInstrumentor(), openai.OpenAIInstrumentor()]
    with watched() as found:
        for one in instrumentors:
            one.instrument(tracer_provider=found.provider, skip_dep_check=True)
        yield found
        for one in reversed(instrumentors):
            one.uninstrument()
    patch.undo()


def helper(url: str, found: Callable[[str], object] = common.joined) -> Any:
    """Return an agent with a search tool."""

    @crewai_tools.tool("search_docs")
    def search_docs(query: str) -> Any:
        """Search the handbook."""
        return found(query)

    return crewai.Agent(
        role="Helper",
        goal="Answer questions",
        backstory="Knows the handbook.",
        tools=[search_docs],
        llm=crewai.LLM(model=common.MODEL, base_url=url, api_key="app"),
    )


def crew(agent: Any, description: str) -> Any:
    """Return a crew with one task."""
    task = crewai.Task(description=description, expected_output="A short answer", agent=agent)
    return crewai.Crew(agents=[agent], tasks=[task])


@pytest.mark.parametrize("found", common.RETURNS, ids=lambda found: found.__name__)
def test_a_crew_with_inputs_is_scored(
    watch: Watched, url: str, found: Callable[[str], object]
) -> None:
    """For each form of tool result, question, documents and answer are those of the turn."""
    team = crew(helper(url, found), "Answer this question: {question}")
    common.assert_each_scored(watch, lambda text: team.kickoff(inputs={"question": text}).raw)


def test_question_of_a_crew_without_inputs_is_its_task(watch: Watched, url: str) -> None:
    """The question is the task's description, not the prompt that CrewAI builds from it."""

    def ask(question: str) -> str:
        return crew(helper(url), BEFORE + question).kickoff().raw

    common.assert_each_scored(watch, ask, before=BEFORE)


def test_an_agent_alone_is_scored(watch: Watched, url: str) -> None:
    """The question is the agent's input."""
    agent = helper(url)
    common.assert_each_scored(watch, lambda question: agent.kickoff(question).raw)
