"""An agent of Google's ADK with its own tracing and content on spans."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.trace import set_tracer_provider

from e2e import agents as common
from e2e.agents import test_a_turn_is_scored  # noqa: F401
from e2e.watched import Watched

adk = pytest.importorskip("google.adk.agents")
runners = pytest.importorskip("google.adk.runners")
lite = pytest.importorskip("google.adk.models.lite_llm")
types = pytest.importorskip("google.genai.types")
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of ADK and LiteLLM
SETTINGS = {
    "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "span_only",
}


@contextmanager
def trace(watch: Watched) -> Iterator[None]:
    """Trace with the two settings that record content, to the global provider."""
    with pytest.MonkeyPatch.context() as patch:
        set_tracer_provider(watch.provider)
        for name, setting in SETTINGS.items():
            patch.setenv(name, setting)
        yield


def program(url: str, found: Callable[[str], object]) -> Callable[[str], Any]:
    async def answer(question: str) -> str:
        agent = adk.LlmAgent(
            name="helper",
            instruction="Answer from the handbook.",
            tools=[common.tool(found)],
            model=lite.LiteLlm(model=f"openai/{common.MODEL}", api_base=url, api_key="app"),
        )
        runner = runners.InMemoryRunner(agent=agent, app_name="app")
        session = await runner.session_service.create_session(app_name="app", user_id="u")
        asked = types.Content(role="user", parts=[types.Part(text=question)])
        said = ""
        async for event in runner.run_async(user_id="u", session_id=session.id, new_message=asked):
            if event.is_final_response() and event.content:
                said = event.content.parts[0].text
        return said

    return answer


def test_a_dict_as_adk_expects_it_is_read(watch: Watched, url: str) -> None:
    """The pages are in a field of the tool's result."""
    asked = program(url, lambda question: {"results": common.pages(question)})
    common.assert_each_scored(watch, asked)


def test_without_the_settings_the_turn_is_refused(
    watch: Watched, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default ADK's spans lack the conventions' text attributes, so the turn is refused."""
    for name in SETTINGS:
        monkeypatch.delenv(name)
    common.assert_nothing_scored(watch, program(url, common.pages))
