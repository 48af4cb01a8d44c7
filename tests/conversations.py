"""Two conversations of four turns each, which take turns, and a chain that holds them.

A message of one conversation in the history of the other shows, as no text is in both.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig, RunnableLambda

Messages: TypeAlias = list[tuple[str, str]]
Ask: TypeAlias = Callable[[str, Messages], str]

TOPICS = {
    "bridge": ("Who built the bridge?", "And in which year?", "What colour?", "Is it long?"),
    "tower": ("Who built the tower?", "How high is it?", "And since when?", "Was it painted?"),
}
KINDS = ("plain", "rewritten", "tools", "system", "streamed")
"""Without a step that rewrites the question, or with one; what else the messages have."""
REPHRASE = "Rephrase the question."


def alone(topic: str, question: str) -> str:
    return f"Regarding the {topic}: {question}"


def answered(topic: str, question: str) -> str:
    return f"Reply {TOPICS[topic].index(question) + 1} about the {topic}."


def turns_of(ask: Ask) -> Iterator[tuple[str, str, Messages]]:
    """Ask all questions; yield each with its answer and the messages before it."""
    histories: dict[str, Messages] = {topic: [] for topic in TOPICS}
    for number in range(4):
        for topic, history in histories.items():
            question, before = TOPICS[topic][number], list(history)
            answer = ask(question, before).strip()
            assert answer == answered(topic, question)
            yield question, answer, before
            history += [("user", question), ("assistant", answer)]


def reply_to(text: str) -> str:
    """Return what a model says to a prompt: an answer, or the last question made to stand alone."""
    found = {question: topic for topic, asked in TOPICS.items() for question in asked}
    question = max(found, key=text.rfind)
    made = alone if REPHRASE in text else answered
    return made(found[question], question)


def said(messages: list[BaseMessage]) -> AIMessage:
    return AIMessage(reply_to("\n".join(str(message.content) for message in messages)))


class Shelf(BaseRetriever):
    """Finds one page, which has its query."""

    def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        return [Document(f"This page was found by its words: {query}")]


def _earlier(history: Messages, kind: str) -> list[BaseMessage]:
    messages: list[BaseMessage] = []
    for number, (role, text) in enumerate(history):
        messages.append(HumanMessage(text) if role == "user" else AIMessage(text))
        if kind == "tools" and role == "user":
            call = {"name": "search", "args": {"query": text}, "id": f"call-{number}"}
            messages.append(AIMessage("", tool_calls=[call]))
            messages.append(ToolMessage("A page.", tool_call_id=f"call-{number}"))
    return messages


def chain(model: BaseChatModel, kind: str, config: RunnableConfig) -> Ask:
    """Return an application of LangChain that answers from a page, after the messages before."""
    system = [("system", "You are helpful.")] if kind == "system" else []
    rephrase, use = (
        ChatPromptTemplate.from_messages(
            [*system, ("system", told), MessagesPlaceholder("earlier"), ("user", "{question}")]
        )
        | model
        | StrOutputParser()
        for told in (REPHRASE, "Use this: {context}")
    )

    def answer(question: str, earlier: list[BaseMessage]) -> str:
        shown = {"question": question, "earlier": earlier}
        query = rephrase.invoke(shown) if kind == "rewritten" else question
        shown["context"] = Shelf().invoke(query)[0].page_content
        return "".join(use.stream(shown)) if kind == "streamed" else use.invoke(shown)

    def ask(question: str, history: Messages) -> str:
        earlier = _earlier(history, kind)
        run = RunnableLambda(lambda asked: answer(asked, earlier)).with_config(run_name="chat")
        return run.invoke(question, config)

    return ask
