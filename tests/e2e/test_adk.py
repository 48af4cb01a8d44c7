"""An agent of Google's ADK with its own tracing and content on spans."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace

from e2e import agents as common
from e2e.watched import Watched, watched

adk = pytest.importorskip("google.adk.agents")
runners = pytest.importorskip("google.adk.runners")
lite = pytest.importorskip("google.adk.models.lite_llm")
types = pytest.importorskip("google.genai.types")
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of ADK and LiteLLM
SETTINGS = {
    "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "span_only",
}


@pytest.fixture(scope="module")
def watch() -> Iterator[Watched]:
    """The global provider for the agents' spans, with the two settings that record content."""
    with watched() as found, pytest.MonkeyPatch.context() as patch:
        trace.set_tracer_provider(found.provider)
        for name, setting in SETTINGS.items():
            patch.setenv(name, setting)
        yield found


async def answer(url: str, found: Callable[[str], object], question: str) -> str:
    """Return the answer of an agent with a search tool."""

    def search_docs(query: str) -> Any:
        """Search the handbook."""
        return found(query)

    agent = adk.LlmAgent(
        name="helper",
        instruction="Answer from the handbook.",
        tools=[search_docs],
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


def results(question: str) -> dict[str, Any]:
    """Return pages as a dict, as ADK expects."""
    return {"results": common.pages(question)}


@pytest.mark.parametrize("found", [*common.RETURNS, results], ids=lambda found: found.__name__)
def test_a_turn_is_scored(watch: Watched, url: str, found: Callable[[str], object]) -> None:
    """For each form of tool result, question, documents and answer are those of the turn."""
    common.assert_each_awaited(watch, lambda question: answer(url, found, question))


def test_without_the_settings_the_turn_is_refused(
    watch: Watched, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default ADK's spans lack the conventions' text attributes, so the turn is refused."""
    for name in SETTINGS:
        monkeypatch.delenv(name)
    run = watch.run(lambda: asyncio.run(answer(url, common.pages, common.ASKED[0])))
    assert not run.truths
    assert {outcome for outcome, _ in run.outcomes} <= {"skipped"}
