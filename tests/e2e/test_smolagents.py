"""Agents of smolagents that OpenInference traces: answers by tool call or by code."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from e2e import agents as common
from e2e.watched import Watched, instrumented

smolagents = pytest.importorskip("smolagents")
instrumentation = pytest.importorskip("openinference.instrumentation.smolagents")


def trace(watch: Watched) -> Any:
    instrumentor = instrumentation.SmolagentsInstrumentor()
    return instrumented(instrumentor, tracer_provider=watch.provider)


def numbered(question: str) -> str:
    """Return pages in the form of the documentation's retrieval tool."""
    pages = enumerate(common.pages(question))
    found = "".join(f"\n\n===== Document {n} =====\n{text}" for n, text in pages)
    return f"\nRetrieved documents:\n{found}"


FOUND = (common.pages, common.joined, common.in_json, numbered)


def tool(found: Callable[[str], object]) -> Any:
    class Search(smolagents.Tool):  # type: ignore[misc,name-defined]
        """Search the handbook."""

        name = common.SEARCH
        description = "Search the handbook."
        inputs = {"query": {"type": "string", "description": "What to search for."}}  # noqa: RUF012
        output_type = "any"

        def forward(self, query: str) -> Any:
            return found(query)

    return Search()


def in_code(body: Mapping[str, Any]) -> str:
    said = common.said({**body, "tools": [{"name": common.SEARCH}]})
    if isinstance(said, str):
        return f"Thought: done.\n<code>\nfinal_answer({json.dumps(said)})\n</code>"
    return f'Thought: search.\n<code>\nprint({said[0]}(query="{said[1]["query"]}"))\n</code>'


def ask(agent: type[Any], url: str, found: Callable[[str], object]) -> Callable[[str], str]:
    def answer(question: str) -> str:
        model = smolagents.OpenAIModel(model_id=common.MODEL, api_base=url, api_key="app")
        return str(agent(tools=[tool(found)], model=model, verbosity_level=0).run(question))

    return answer


@pytest.mark.parametrize("found", FOUND, ids=lambda found: found.__name__)
@pytest.mark.parametrize("kind", ["ToolCallingAgent", "CodeAgent"])
def test_an_agent_is_scored(watch: Watched, kind: str, found: Callable[[str], object]) -> None:
    """The answer is the argument of the last tool call, or of the last line of code."""
    with common.model(in_code if kind == "CodeAgent" else None) as url:
        common.assert_each_scored(watch, ask(getattr(smolagents, kind), url, found))
