"""An agent of AG2 with its own telemetry."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from e2e import agents as common
from e2e.watched import Watched

ag2 = pytest.importorskip("ag2")
config = pytest.importorskip("ag2.config")
telemetry = pytest.importorskip("ag2.middleware.builtin.telemetry")
httpx2 = pytest.importorskip("httpx2")


def program(
    watch: Watched, url: str, found: Callable[[str], object], **options: Any
) -> Callable[[str], Any]:
    def search_docs(query: str) -> str:
        """Search the handbook."""
        return str(found(query))

    async def answer(question: str) -> object:
        async with httpx2.AsyncClient() as client:
            agent = ag2.Agent(
                "helper",
                "Answer from the handbook.",
                config=config.OpenAIConfig(
                    common.MODEL, api_key="app", base_url=url, http_client=client
                ),
                tools=[search_docs],
                middleware=[
                    telemetry.TelemetryMiddleware(tracer_provider=watch.provider, **options)
                ],
            )
            return (await agent.ask(question)).body

    return answer


@common.EACH_RETURN
def test_a_turn_is_scored(watch: Watched, url: str, found: Callable[[str], object]) -> None:
    """For each form of tool result, question, documents and answer are those of the turn."""
    common.assert_each_scored(watch, program(watch, url, found))


def test_a_truncated_result_is_refused(watch: Watched, url: str) -> None:
    """AG2 truncates long tool results on spans, so the turn is refused."""
    ask = program(watch, url, common.joined, max_tool_result_chars=60)
    run = watch.run(lambda: asyncio.run(ask(common.ASKED[0])))
    assert run.outcomes == {("skipped", "truncated"): 1}
