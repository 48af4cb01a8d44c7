"""An agent of AG2 with its own telemetry."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e import agents as common
from e2e.watched import Watched, watched

ag2 = pytest.importorskip("ag2")
config = pytest.importorskip("ag2.config")
telemetry = pytest.importorskip("ag2.middleware.builtin.telemetry")
httpx2 = pytest.importorskip("httpx2")


@pytest.fixture(scope="module")
def watch() -> Iterator[Watched]:
    with watched() as found:
        yield found


async def answer(
    watch: Watched, url: str, found: Callable[[str], object], *, question: str, **options: Any
) -> object:
    """Return the answer of an agent with a search tool."""

    def search_docs(query: str) -> str:
        """Search the handbook."""
        return str(found(query))

    async with httpx2.AsyncClient() as client:
        agent = ag2.Agent(
            "helper",
            "Answer from the handbook.",
            config=config.OpenAIConfig(
                common.MODEL, api_key="app", base_url=url, http_client=client
            ),
            tools=[search_docs],
            middleware=[telemetry.TelemetryMiddleware(tracer_provider=watch.provider, **options)],
        )
        return (await agent.ask(question)).body


@pytest.mark.parametrize("found", common.RETURNS, ids=lambda found: found.__name__)
def test_a_turn_is_scored(watch: Watched, url: str, found: Callable[[str], object]) -> None:
    """For each form of tool result, question, documents and answer are those of the turn."""
    common.assert_each_awaited(watch, lambda question: answer(watch, url, found, question=question))


def test_a_truncated_result_is_refused(watch: Watched, url: str) -> None:
    """AG2 truncates long tool results on spans, so the turn is refused."""

    async def ask() -> None:
        options: dict[str, Any] = {"question": common.ASKED[0], "max_tool_result_chars": 60}
        await answer(watch, url, common.joined, **options)

    run = watch.run(lambda: asyncio.run(ask()))
    assert run.outcomes == {("skipped", "truncated"): 1}
