"""Any LangChain chat model as a judge."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from langchain import chat_models
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda

import questions
from apps.fakes import ScriptedChat
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.langchain import LangChainJudge, named_judge
from rag_eval_otel.judge.tasks import Rating, Statements, Task
from rag_eval_otel.types import Replies, Usage
from support import GOOD, good_parts

Q, A, C = "Why?", "Because.", ("One.", "Two.")
CONTEXT = questions.context_relevance(Q, C, voice=1)
GROUP: list[Task[Any]] = [CONTEXT, questions.statements(Q, A)]


def good_message(messages: Sequence[BaseMessage]) -> AIMessage:
    body = {"messages": [{"content": message.content} for message in messages]}
    return AIMessage(json.dumps(good_parts(body)))


class Bare(BaseChatModel):
    """A chat model that returns a message as it is given, but in the application's event loop."""

    message: AIMessage

    @property
    def _llm_type(self) -> str:
        return "bare"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.message)])

    async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
        raise AssertionError


class Named(Bare):
    """A chat model that says what it is called."""

    model_name: str = "m-1"


def asked(llm: Runnable[Any, Any], *group: Task[Any], **options: Any) -> Replies:
    return asyncio.run(LangChainJudge(llm, **options).reply(group or (CONTEXT,)))


def test_any_chat_model_answers() -> None:
    """It answers all tasks in one call, which is counted."""
    calls: list[Sequence[BaseMessage]] = []

    def reply(messages: Sequence[BaseMessage]) -> AIMessage:
        calls.append(messages)
        return good_message(messages)

    replies = asked(ScriptedChat(reply=reply), *GROUP)
    assert replies.parts == (Rating(rating=2), Statements.model_validate(GOOD["statements"]))
    assert [message.type for message in calls[0]] == ["system", "human"]
    asked_for = sum(len(str(message.content).split()) for message in calls[0])
    said = len(str(good_message(calls[0]).content).split())
    assert replies.usage == Usage(judge_requests=1, prompt_tokens=asked_for, completion_tokens=said)


RATED = '{"rating": 1}'


@pytest.mark.parametrize(
    "content",
    [
        RATED,
        [RATED],
        [{"type": "text", "text": RATED}],
        [{"type": "reasoning", "reasoning": "Hm."}, {"type": "text", "text": RATED}],
        ['{"rating"', {"type": "text", "text": ": 1}"}],
        f'<think>{{"rating": 2}}?</think>{RATED}',
        [{"type": "refusal", "text": None}, {"type": "text", "text": RATED}],
    ],
)
def test_a_message_may_come_in_blocks(content: Any) -> None:
    """Text in blocks is put together; thoughts and other blocks are passed over."""
    replies = asked(Bare(message=AIMessage(content)))
    assert (replies.parts, replies.usage) == ((Rating(rating=1),), Usage(judge_requests=1))


@pytest.mark.parametrize(
    ("llm", "options", "metadata", "asked_as", "answered_as"),
    [
        (Named, {}, {}, "m-1", "m-1"),
        (Named, {}, {"model_name": "m-1-2026"}, "m-1", "m-1-2026"),
        (Named, {}, {"model_name": 7}, "m-1", "m-1"),
        (Named, {"model": "mine"}, {}, "mine", "mine"),
        (Bare, {}, {}, "Bare", "Bare"),
    ],
)
def test_a_model_has_a_name(
    llm: type[Bare],
    options: dict[str, str],
    metadata: dict[str, Any],
    asked_as: str,
    answered_as: str,
) -> None:
    """The name is the one that answered, else the one given, else the model's own, or its class."""
    model = llm(message=AIMessage(RATED, response_metadata=metadata))
    judge = LangChainJudge(model, **options)
    assert (judge.model, repr(judge)) == (asked_as, f"LangChainJudge({asked_as!r})")
    assert asked(model, **options).model == answered_as


def test_a_runnable_that_ends_in_a_model() -> None:
    """A model with retries, or with a parser behind it, is a judge, too."""
    llm = Bare(message=AIMessage(RATED))
    for judge in (llm.with_retry(), llm.bind(stop=["x"]), llm | StrOutputParser()):
        assert asked(judge).parts == (Rating(rating=1),)


class Recorder(BaseCallbackHandler):
    """Counts what LangChain starts."""

    def __init__(self) -> None:
        self.models: list[Any] = []

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        self.models.append(args)


def test_the_callbacks_of_the_application_do_not_see_the_judge() -> None:
    """A judge that is called within a chain of the application does not take part in its run."""
    recorder = Recorder()
    judge = LangChainJudge(ScriptedChat(reply=good_message))
    app = ScriptedChat(reply=lambda _: AIMessage("hello"))

    async def chain(_: object) -> Replies:
        await app.ainvoke("hi")
        return await judge.reply([CONTEXT])

    run = RunnableLambda(chain).ainvoke("go", config={"callbacks": [recorder]})
    assert asyncio.run(run).parts == (Rating(rating=2),)
    assert len(recorder.models) == 1


def test_langchain_makes_a_model_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a temperature of 0."""

    def make(name: str, **options: Any) -> BaseChatModel:
        return Named(message=AIMessage(RATED), model_name=f"{name} {options}")

    monkeypatch.setattr(chat_models, "init_chat_model", make)
    assert named_judge("openai:m").model == "openai:m {'temperature': 0.0}"


@pytest.mark.parametrize(("name", "told"), [("groq:m", "langchain.groq"), ("xyzzy:m", "provider")])
def test_a_model_that_langchain_cannot_make(name: str, told: str) -> None:
    """The error names the package that is missing, or the provider that LangChain does not know."""
    with pytest.raises(ConfigError, match=rf"langchain/{name} could not be made: .*{told}"):
        named_judge(name)
