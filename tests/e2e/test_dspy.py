"""Modules of DSPy that OpenInference traces: retrieval by a function, and an agent."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from apps import company
from e2e import agents as common
from e2e.watched import Watched, instrumented

dspy = pytest.importorskip("dspy")
instrumentation = pytest.importorskip("openinference.instrumentation.dspy")
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of DSPy and LiteLLM


def trace(watch: Watched) -> Any:
    options = {"tracer_provider": watch.provider, "skip_dep_check": True}
    return instrumented(instrumentation.DSPyInstrumentor(), **options)


@pytest.fixture(scope="module", autouse=True)
def configured() -> Iterator[None]:
    """The scripted model, configured to reply in DSPy's fields."""
    with common.model(said) as url:
        model = dspy.LM(f"openai/{common.MODEL}", api_base=url, api_key="app", cache=False)
        with dspy.context(lm=model):
            yield


def said(body: Mapping[str, Any]) -> str:
    """Return a reply with the fields of the signature."""
    system, *_, last = (str(message["content"]) for message in body["messages"])
    wanted = re.findall(r"`(\w+)` \(", system.partition("Your output fields are:")[2])
    asked = common.question_in(last)
    fields = {
        "reasoning": "The handbook says so.",
        "answer": company.answer(asked, last),
        "response": company.answer(asked, last),
        "next_thought": "Look it up.",
        "next_tool_name": "finish" if "observation_0" in last else common.SEARCH,
        "next_tool_args": "{}" if "observation_0" in last else f'{{"query": "{asked}"}}',
    }
    told = "".join(f"[[ ## {name} ## ]]\n{fields[name]}\n\n" for name in dict.fromkeys(wanted))
    return f"{told}[[ ## completed ## ]]"


def search_docs(query: str) -> list[str]:
    """Search the handbook."""
    return common.pages(query)


def module(respond: Any) -> Callable[[str], str]:
    """Return a module that searches with a function and answers with another module."""

    class Rag(dspy.Module):  # type: ignore[misc,name-defined]
        """The module of DSPy's tutorial."""

        def __init__(self) -> None:
            super().__init__()
            self.respond = respond

        def forward(self, question: str) -> Any:
            return self.respond(context=search_docs(question), question=question)

    made = Rag()
    return lambda question: made(question=question).response


@pytest.mark.parametrize("kind", ["ChainOfThought", "Predict"])
def test_a_module_with_its_contexts_as_arguments_is_scored(watch: Watched, kind: str) -> None:
    """No span records the search; the contexts come from the module's arguments."""
    respond = getattr(dspy, kind)("context: list[str], question -> response")
    common.assert_each_scored(watch, module(respond))


def test_an_agent_is_scored(watch: Watched) -> None:
    """The question comes from the agent's arguments, the documents from its tool's result."""
    agent = dspy.ReAct("question -> answer", tools=[search_docs])
    common.assert_each_scored(watch, lambda question: agent(question=question).answer)
