"""A plain LCEL RAG chain with 18 callback events, whose parts cost next to nothing."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import BaseCallbackHandler, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableParallel, RunnablePassthrough

EVENTS = 18
CONTEXTS = [f"Page {i}. " + "Kites are made of sails and spars. " * 17 for i in range(4)]
ANSWER = "It was founded in 1987 in a boathouse by a sailmaker. " * 5


class Shelf(BaseRetriever):
    """Finds the same four pages every time."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        del query, run_manager
        return [Document(page_content=text) for text in CONTEXTS]


class Parrot(BaseChatModel):
    """Gives the same answer every time, and the question, so that no turn is like another."""

    @property
    def _llm_type(self) -> str:
        return "parrot"

    def _generate(self, messages: list[BaseMessage], *_args: Any, **_kwargs: Any) -> ChatResult:
        message = AIMessage(
            f"{ANSWER} {messages[-1].content}",
            usage_metadata={"input_tokens": 600, "output_tokens": 60, "total_tokens": 660},
        )
        return ChatResult(generations=[ChatGeneration(message=message)])


def chain() -> Runnable[str, str]:
    """Return the chain."""
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Answer from these pages.\n\n{context}"), ("human", "{question}")]
    )
    context = Shelf() | (lambda documents: "\n\n".join(d.page_content for d in documents))
    found = RunnableParallel({"context": context, "question": RunnablePassthrough()})
    return found | prompt | Parrot() | StrOutputParser()


class EventCounter(BaseCallbackHandler):
    """Counts events."""

    events = 0

    def _count(self, *_args: Any, **_kwargs: Any) -> None:
        self.events += 1

    on_chain_start = on_chain_end = on_retriever_start = on_retriever_end = _count
    on_chat_model_start = on_llm_end = _count


def check_events() -> None:
    """Stop if the chain is not the one whose cost is known."""
    counter = EventCounter()
    chain().invoke("How many?", {"callbacks": [counter]})
    assert counter.events == EVENTS, counter.events
