"""An agent of Strands with its own tracing: span events or attributes."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from opentelemetry.trace import set_tracer_provider

from e2e import agents as common
from e2e.watched import Watched

strands = pytest.importorskip("strands")
models = pytest.importorskip("strands.models.openai")
tracer = pytest.importorskip("strands.telemetry.tracer")
OPT_IN = "OTEL_SEMCONV_STABILITY_OPT_IN"
LATEST = "gen_ai_latest_experimental"


def trace(watch: Watched) -> Any:
    set_tracer_provider(watch.provider)
    return nullcontext()


def blocks(question: str) -> dict[str, Any]:
    return {"status": "success", "content": [{"text": text} for text in common.pages(question)]}


@pytest.mark.parametrize(
    "opt_in",
    ["", LATEST, f"{LATEST},gen_ai_span_attributes_only"],
    ids=["default", "latest", "attributes"],
)
@pytest.mark.parametrize(
    "found", [*common.RETURNS, blocks], ids=lambda found: getattr(found, "__name__", None)
)
def test_a_turn_is_scored(
    watch: Watched,
    url: str,
    found: Callable[[str], object],
    opt_in: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For each form of tool result, question, documents and answer are those of the turn."""
    monkeypatch.setenv(OPT_IN, opt_in)
    monkeypatch.setattr(tracer, "_tracer_instance", None)  # cached by Strands
    client = {"base_url": url, "api_key": "app"}

    def ask(question: str) -> str:
        agent = strands.Agent(
            model=models.OpenAIModel(client_args=client, model_id=common.MODEL),
            tools=[strands.tool(common.tool(found))],
            system_prompt="Answer from the handbook.",
            callback_handler=None,
        )
        return str(agent(question))

    common.assert_each_scored(watch, ask, end="\n")
