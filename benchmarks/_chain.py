"""A plain LCEL RAG chain with 18 callback events and components of negligible cost."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import BaseCallbackHandler, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableParallel, RunnablePassthrough

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

EVENTS = 18
CONTEXTS = [f"Page {i}. " + "Kites are made of sails and spars. " * 17 for i in range(4)]
ANSWER = "It was founded in 1987 in a boathouse by a sailmaker. " * 5


class Shelf(BaseRetriever):
    """Returns the same four pages for every query."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        del query, run_manager
        return [Document(page_content=text) for text in CONTEXTS]


class Parrot(BaseChatModel):
    """Replies with a constant answer and the question, so that all turns differ."""

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
    """Return the chain: retriever, prompt, model and parser."""
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Answer from these pages.\n\n{context}"), ("human", "{question}")]
    )
    context = Shelf() | (lambda documents: "\n\n".join(d.page_content for d in documents))
    found = RunnableParallel({"context": context, "question": RunnablePassthrough()})
    return found | prompt | Parrot() | StrOutputParser()


class Floor(BaseCallbackHandler):
    """A minimal RAG tracer: it keeps the texts and makes one span for each turn."""

    run_inline = True  # otherwise asynchronous LangChain runs every event on a thread

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._kept: dict[Any, list[Any]] = {}
        self._root: dict[Any, Any] = {}

    def _start(self, _serialized: Any, given: Any, *, run_id: Any, **event: Any) -> None:
        parent = event.get("parent_run_id")
        root = self._root[run_id] = self._root.get(parent, run_id)
        self._kept.setdefault(root, []).append((event.get("name"), time.time_ns(), given))

    def _end(self, result: Any, *, run_id: Any, **_: Any) -> None:
        root = self._root.pop(run_id)
        self._kept[root].append((time.time_ns(), result))
        if root == run_id:
            kept = self._kept.pop(root)
            span = self._tracer.start_span("turn", start_time=kept[0][1])
            span.set_attribute("question", str(kept[0][2]))
            span.set_attribute("answer", str(result))
            span.end()

    on_chain_start = on_retriever_start = on_chat_model_start = _start
    on_chain_end = on_retriever_end = on_llm_end = _end


class EventCounter(BaseCallbackHandler):
    """Counts events."""

    events = 0

    def _count(self, *_args: Any, **_kwargs: Any) -> None:
        self.events += 1

    on_chain_start = on_chain_end = on_retriever_start = on_retriever_end = _count
    on_chat_model_start = on_llm_end = _count


def check_events() -> None:
    """Assert that the chain has exactly `EVENTS` callback events."""
    counter = EventCounter()
    chain().invoke("How many?", {"callbacks": [counter]})
    assert counter.events == EVENTS, counter.events
