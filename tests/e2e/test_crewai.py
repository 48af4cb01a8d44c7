"""A crew of CrewAI and its model's client, traced by OpenInference."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from e2e import agents as common
from e2e.agents import test_a_turn_is_scored  # noqa: F401
from e2e.watched import Watched, instrumented

crewai = pytest.importorskip("crewai")
crewai_tools = pytest.importorskip("crewai.tools")
instrumentation = pytest.importorskip("openinference.instrumentation.crewai")
openai = pytest.importorskip("openinference.instrumentation.openai")
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of CrewAI
BEFORE = "Answer this from the handbook: "


@contextmanager
def trace(watch: Watched) -> Iterator[None]:
    options = {"tracer_provider": watch.provider, "skip_dep_check": True}
    both = (instrumentation.CrewAIInstrumentor(), openai.OpenAIInstrumentor())
    with pytest.MonkeyPatch.context() as patch, instrumented(*both, **options):
        patch.setenv("CREWAI_DISABLE_TELEMETRY", "true")
        yield


def helper(url: str, found: Callable[[str], object] = common.joined) -> Any:
    return crewai.Agent(
        role="Helper",
        goal="Answer questions",
        backstory="Knows the handbook.",
        tools=[crewai_tools.tool("search_docs")(common.tool(found))],
        llm=crewai.LLM(model=common.MODEL, base_url=url, api_key="app"),
    )


def crew(agent: Any, description: str) -> Any:
    task = crewai.Task(description=description, expected_output="A short answer", agent=agent)
    return crewai.Crew(agents=[agent], tasks=[task])


def program(url: str, found: Callable[[str], object]) -> Callable[[str], object]:
    team = crew(helper(url, found), "Answer this question: {question}")
    return lambda text: team.kickoff(inputs={"question": text}).raw


def test_question_of_a_crew_without_inputs_is_its_task(watch: Watched, url: str) -> None:
    """The question is the task's description, not the prompt that CrewAI builds from it."""

    def ask(question: str) -> str:
        return crew(helper(url), BEFORE + question).kickoff().raw

    common.assert_each_scored(watch, ask, before=BEFORE)


def test_an_agent_alone_is_scored(watch: Watched, url: str) -> None:
    """The question is the agent's input."""
    agent = helper(url)
    common.assert_each_scored(watch, lambda question: agent.kickoff(question).raw)
