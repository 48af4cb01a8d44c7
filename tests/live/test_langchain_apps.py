"""The apps run, and what they state as truth agrees with what a plain handler sees of them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import LLMResult
from pydantic import BaseModel

from apps import APPS, App, Truth
from apps.company import PAGES, cited

RUNNABLE = [pytest.param(app, id=app.name) for app in APPS if not app.skip]
FAILING = {
    *("err_retriever", "err_llm", "err_parser"),
    *("astream_abandoned", "astream_cancelled", "ainvoke_cancelled"),
}
CASES = [
    pytest.param(app, truth, id=f"{app.name}-{number}")
    for app in APPS
    if not app.skip
    for number, truth in enumerate(app.truths)
]


@dataclass
class Call:
    """A request to a model: the prompt, and what came back."""

    prompt: str
    reply: str = ""


@dataclass(eq=False)
class Recorder(BaseCallbackHandler):
    """Records the texts that pass by."""

    calls: dict[UUID, Call] = field(default_factory=dict)
    retrieved: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        **kwargs: Any,
    ) -> None:
        """Record a prompt of messages."""
        del serialized, kwargs
        self.calls[run_id] = Call("\n".join(str(m.content) for m in messages[0]))

    def on_llm_start(
        self, serialized: dict[str, Any], prompts: list[str], *, run_id: UUID, **kwargs: Any
    ) -> None:
        """Record a prompt of text."""
        del serialized, kwargs
        self.calls[run_id] = Call(prompts[0])

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Record a reply, which may be the arguments of a tool call."""
        del kwargs
        generation = response.generations[0][0]
        message = getattr(generation, "message", AIMessage(generation.text))
        called = json.dumps([c["args"] for c in message.tool_calls], ensure_ascii=False)
        self.calls[run_id].reply = generation.text or called

    def on_retriever_end(self, documents: Sequence[Document], **kwargs: Any) -> None:
        """Record what was retrieved."""
        del kwargs
        self.retrieved += [document.page_content for document in documents]

    def on_chain_start(self, serialized: dict[str, Any], inputs: Any, **kwargs: Any) -> None:
        """Record the input of a chain."""
        del serialized, kwargs
        self.inputs += _texts(inputs)

    def on_chain_end(self, outputs: Any, **kwargs: Any) -> None:
        """Record the output of a chain, and its input, which a stream tells only here."""
        self.outputs += _texts(outputs)
        self.inputs += _texts(kwargs.get("inputs"))

    def on_chain_error(self, error: BaseException, **kwargs: Any) -> None:
        """Record the error of a chain."""
        del kwargs
        self.errors.append(error)

    def sight(self, truth: Truth) -> str:
        """Give what the writer of the answer saw: its prompt, or that of what it was told."""
        calls = list(self.calls.values())
        writer = next(call for call in calls if truth.answer in call.reply)
        if all(context in writer.prompt for context in truth.contexts):
            return writer.prompt
        return "\n".join(c.prompt for c in calls if c.reply and c.reply in writer.prompt)


def _texts(value: Any) -> Iterator[str]:
    """Give the texts in a value, however deep."""
    match value:
        case str():
            yield value
        case BaseMessage():
            yield str(value.content)
        case BaseModel():
            yield from _texts(value.model_dump())
        case dict():
            yield from _texts(list(value.values()))
        case list() | tuple():
            for item in value:
                yield from _texts(item)


def _seen_by(app: App) -> Recorder:
    recorder = Recorder()
    app.run([recorder])
    return recorder


@pytest.mark.parametrize("app", RUNNABLE)
def test_it_runs(app: App) -> None:
    """Every app runs, and fails only if it is meant to."""
    assert bool(_seen_by(app).errors) == (app.name in FAILING)


@pytest.mark.parametrize(("app", "truth"), CASES)
def test_the_question_was_asked(app: App, truth: Truth) -> None:
    """The question went into some chain."""
    assert truth.question in _seen_by(app).inputs


@pytest.mark.parametrize(("app", "truth"), CASES)
def test_the_contexts_were_retrieved(app: App, truth: Truth) -> None:
    """Every context came out of some retriever."""
    assert set(truth.contexts) <= set(_seen_by(app).retrieved)


@pytest.mark.parametrize(("app", "truth"), CASES)
def test_the_answer_was_written_from_the_contexts(app: App, truth: Truth) -> None:
    """The writer of the answer saw all the contexts, in their order, and no other page."""
    sight = _seen_by(app).sight(truth)
    positions = [sight.find(context) for context in truth.contexts]

    assert -1 not in positions
    assert positions == sorted(positions)
    assert not [page for page in PAGES if page in sight and page not in truth.contexts]


@pytest.mark.parametrize(("app", "truth"), CASES)
def test_the_answer_came_out(app: App, truth: Truth) -> None:
    """The answer is what some chain gave, and cites the contexts and nothing else."""
    assert truth.answer in _seen_by(app).outputs
    assert cited(truth.answer) == cited("\n".join(truth.contexts))


def test_names_are_unique() -> None:
    """No two apps have one name."""
    names = [app.name for app in APPS]

    assert len(names) == len(set(names))
