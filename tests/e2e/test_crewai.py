"""A crew of CrewAI that OpenInference traces, its model's client too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e import agents as common
from e2e.watched import Watched, watched

crewai = pytest.importorskip("crewai")
crewai_tools = pytest.importorskip("crewai.tools")
instrumentation = pytest.importorskip("openinference.instrumentation.crewai")
openai = pytest.importorskip("openinference.instrumentation.openai")
pytestmark = pytest.mark.filterwarnings("ignore")  # CrewAI warns of its own parts
BEFORE = "Answer this from the handbook: "


@pytest.fixture(scope="module")
def watch() -> Iterator[Watched]:
    """A provider that OpenInference writes to."""
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


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The scripted model."""
    with common.model() as found:
        yield found


def helper(url: str, found: Callable[[str], object] = common.joined) -> Any:
    """Return an agent with a tool that searches."""

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
    """Whatever the tool returns, question, documents and answer are those of the turn."""
    team = crew(helper(url, found), "Answer this question: {question}")
    common.assert_each_scored(watch, lambda text: team.kickoff(inputs={"question": text}).raw)


def test_a_crew_without_inputs_is_asked_by_its_task(watch: Watched, url: str) -> None:
    """The question is the description of the task, not what CrewAI tells the model around it."""

    def ask(question: str) -> str:
        return crew(helper(url), BEFORE + question).kickoff().raw

    common.assert_each_scored(watch, ask, before=BEFORE)


def test_an_agent_alone_is_scored(watch: Watched, url: str) -> None:
    """The question is what the agent was asked."""
    agent = helper(url)
    common.assert_each_scored(watch, lambda question: agent.kickoff(question).raw)
