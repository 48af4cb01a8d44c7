"""Chains made of RAG chains: side by side, one after the other, routed, wrapped."""

import threading
from operator import itemgetter
from typing import Any

from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.messages import BaseMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import (
    Runnable,
    RunnableConfig,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from langchain_core.runnables.history import RunnableWithMessageHistory

from . import company
from .app import Handlers, Truth, app, config
from .company import FOUNDER, HISTORY, RETURNS
from .compat import quietly
from .fakes import KeywordRetriever, ScriptedChat
from .lcel import FOUNDED, SPARS
from .parts import handbook, join, rag

REFUND = Truth(question=company.REFUND, contexts=(RETURNS,), answer="You have 45 days. [Returns]")
SAILMAKER = Truth(
    question=company.SAILMAKER,
    contexts=(FOUNDER, HISTORY),
    answer="The sailmaker Ada Lindqvist did. [Founder; History]",
)
QUESTIONS = [company.FOUNDED, company.REFUND, company.SPARS]


@app(SPARS, REFUND)
def parallel_rag(callbacks: Handlers) -> object:
    """Two RAG chains side by side, each taking its own question out of one input."""
    chain = RunnableParallel(
        a=itemgetter("a") | rag(KeywordRetriever()), b=itemgetter("b") | rag(KeywordRetriever())
    )
    return chain.invoke({"a": company.SPARS, "b": company.REFUND}, config(callbacks))


@app(FOUNDED)
def lambda_no_config(callbacks: Handlers) -> object:
    """A function calls the chain without passing its config on."""
    chain = rag()

    def outer(question: str) -> dict[str, str]:
        return {"answer": chain.invoke(question), "echo": question}

    return RunnableLambda(outer).invoke(company.FOUNDED, config(callbacks))


@app(FOUNDED, SAILMAKER)
def with_msg_history(callbacks: Handlers) -> object:
    """Two turns of a chat; the second prompt holds the first question and answer too."""
    settings: RunnableConfig = {**config(callbacks), "configurable": {"session_id": "s-1"}}
    with quietly():
        history = InMemoryChatMessageHistory()
        chat = RunnableWithMessageHistory(
            _chat_chain(),
            lambda _session_id: history,
            input_messages_key="question",
            history_messages_key="history",
        )
    return [
        chat.invoke({"question": question}, settings)
        for question in (company.FOUNDED, company.SAILMAKER)
    ]


@app(SPARS)
def double_delivery(callbacks: Handlers) -> object:
    """The same handlers bound to the chain and passed to it: root events come twice."""
    chain = rag().with_config(callbacks=list(callbacks))
    return chain.invoke(company.SPARS, config(callbacks))


@app(FOUNDED)
def thread_no_context(callbacks: Handlers) -> object:
    """A bare thread, which inherits no context, with the callbacks passed inside it."""
    answers: list[str] = []
    thread = threading.Thread(
        target=lambda: answers.append(rag().invoke(company.FOUNDED, config(callbacks)))
    )
    thread.start()
    thread.join()
    return answers


def _chat_chain() -> Runnable[dict[str, Any], BaseMessage]:
    prompt = ChatPromptTemplate.from_messages(
        [
            ("system", "Answer from these pages only.\n\n{context}"),
            ("placeholder", "{history}"),
            ("human", "{question}"),
        ]
    )
    context = itemgetter("question") | handbook() | join
    return RunnablePassthrough.assign(context=context) | prompt | ScriptedChat()
