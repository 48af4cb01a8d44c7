"""An agent of Agno that OpenInference traces, with a tool or with its own knowledge base."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e import agents as common
from e2e.watched import Watched, watched

agno_agent = pytest.importorskip("agno.agent")
agno_openai = pytest.importorskip("agno.models.openai")
instrumentation = pytest.importorskip("openinference.instrumentation.agno")


@pytest.fixture(scope="module")
def watch() -> Iterator[Watched]:
    """A provider for OpenInference."""
    instrumentor = instrumentation.AgnoInstrumentor()
    with watched() as found:
        instrumentor.instrument(tracer_provider=found.provider)
        yield found
        instrumentor.uninstrument()


def agent(url: str, **options: Any) -> Any:
    """Return an agent."""
    model = agno_openai.OpenAIChat(id=common.MODEL, base_url=url, api_key="app")
    return agno_agent.Agent(name="Helper", model=model, telemetry=False, **options)


def tool(found: Callable[[str], object]) -> Callable[[str], Any]:
    """Return a search tool."""

    def search_docs(query: str) -> Any:
        """Search the handbook."""
        return found(query)

    return search_docs


@pytest.mark.parametrize("found", common.RETURNS, ids=lambda found: found.__name__)
def test_a_turn_is_scored(watch: Watched, url: str, found: Callable[[str], object]) -> None:
    """For each form of tool result, question, documents and answer are those of the turn."""
    helper = agent(url, tools=[tool(found)])
    common.assert_each_scored(watch, lambda question: helper.run(question).content)


def test_a_streamed_turn_is_scored(watch: Watched, url: str) -> None:
    """A streamed answer is scored as a whole."""
    helper = agent(url, tools=[tool(common.joined)])

    def ask(question: str) -> str:
        pieces = helper.run(question, stream=True)
        return "".join(str(getattr(piece, "content", None) or "") for piece in pieces)

    common.assert_each_scored(watch, ask)
