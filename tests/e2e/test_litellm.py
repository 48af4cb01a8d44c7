"""An application that calls LiteLLM, traced by OpenInference, with its own search."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from e2e import agents as common
from e2e.watched import Watched, instrumented
from rag_eval_otel import record_question, record_retrieval

litellm = pytest.importorskip("litellm")
instrumentation = pytest.importorskip("openinference.instrumentation.litellm")
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of LiteLLM
TOOL = {
    "type": "function",
    "function": {
        "name": common.SEARCH,
        "description": "Search the handbook.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
    },
}


def trace(watch: Watched) -> Any:
    return instrumented(instrumentation.LiteLLMInstrumentor(), tracer_provider=watch.provider)


@pytest.fixture(scope="module")
def complete(url: str) -> Callable[..., Any]:
    def ask(messages: list[Any], **options: Any) -> Any:
        model = {"model": f"openai/{common.MODEL}", "api_base": url, "api_key": "app"}
        return litellm.completion(messages=messages, **model, **options).choices[0].message

    return ask


def test_a_loop_over_tools_is_scored(watch: Watched, complete: Callable[..., Any]) -> None:
    """The documents come from the tool message of a tool whose name says that it searches."""
    tracer = watch.provider.get_tracer("app")

    def ask(question: str) -> str:
        messages: list[Any] = [{"role": "user", "content": question}]
        with tracer.start_as_current_span("answer"):
            wanted = complete(messages, tools=[TOOL])
            call = wanted.tool_calls[0]
            found = common.joined(json.loads(call.function.arguments)["query"])
            shown = {"role": "tool", "tool_call_id": call.id, "content": found}
            messages += [wanted.model_dump(), shown]
            return str(complete(messages, tools=[TOOL]).content)

    common.assert_each_scored(watch, ask)


def test_recorded_question_and_retrieval_are_scored(
    watch: Watched, complete: Callable[..., Any]
) -> None:
    """Two `record_*()` calls of the application record a search that no span records."""
    tracer = watch.provider.get_tracer("app")

    def ask(question: str) -> str:
        with tracer.start_as_current_span("answer"):
            pages = common.pages(question)
            record_question(question)
            record_retrieval(question, pages)
            asked = "\n\n".join([*pages, question])
            return str(complete([{"role": "user", "content": asked}]).content)

    common.assert_each_scored(watch, ask)
