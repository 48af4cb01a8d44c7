"""An agent of Agno that OpenInference traces."""

from collections.abc import Callable
from typing import Any

import pytest

from e2e import agents as common
from e2e.agents import test_a_turn_is_scored  # noqa: F401
from e2e.watched import Watched, instrumented

agno_agent = pytest.importorskip("agno.agent")
agno_openai = pytest.importorskip("agno.models.openai")
instrumentation = pytest.importorskip("openinference.instrumentation.agno")


def trace(watch: Watched) -> Any:
    return instrumented(instrumentation.AgnoInstrumentor(), tracer_provider=watch.provider)


def agent(url: str, found: Callable[[str], object]) -> Any:
    model = agno_openai.OpenAIChat(id=common.MODEL, base_url=url, api_key="app")
    return agno_agent.Agent(name="Helper", model=model, telemetry=False, tools=[common.tool(found)])


def program(url: str, found: Callable[[str], object]) -> Callable[[str], object]:
    helper = agent(url, found)
    return lambda question: helper.run(question).content


def test_a_streamed_turn_is_scored(watch: Watched, url: str) -> None:
    """A streamed answer is scored as a whole."""
    helper = agent(url, common.joined)

    def ask(question: str) -> str:
        pieces = helper.run(question, stream=True)
        return "".join(str(getattr(piece, "content", None) or "") for piece in pieces)

    common.assert_each_scored(watch, ask)
