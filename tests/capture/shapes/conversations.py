"""Several turns in one trace: in a row, side by side, in threads, and with a memory."""

import contextvars
import threading
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from kit import GROUNDED, Chat, Pages, joined, rag
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableBranch, RunnableLambda
from registry import Truth, shape, span

MOON = ["The moon is 384,000 km away.", "The moon has no air."]
MARS = ["Mars has two moons, Phobos and Deimos.", "Mars is red with rust."]
SKY = Pages(found={"mars": MARS, "moon": MOON, "far": MOON})
FAR, FAR_ANSWER = "How far away is the moon?", "The moon is 384,000 km away from us."
RED, RED_ANSWER = "Why is Mars red?", "Mars is red because it is full of rust."
MODEL = Chat(rules={f"Question: {FAR}": FAR_ANSWER, f"Question: {RED}": RED_ANSWER})
FAR_TRUTH, RED_TRUTH = Truth(FAR, MOON, FAR_ANSWER), Truth(RED, MARS, RED_ANSWER)


@shape(FAR_TRUTH, RED_TRUTH)
def batch_below_span() -> None:
    """Two questions in one batch."""
    with span("batch"):
        rag(SKY, MODEL).batch([FAR, RED])


@shape(FAR_TRUTH, RED_TRUTH)
def in_threads() -> None:
    """Two questions, each in a thread with a copy of the context."""
    with span("request"):
        threads = [
            threading.Thread(
                target=contextvars.copy_context().run, args=(rag(SKY, MODEL).invoke, q)
            )
            for q in (FAR, RED)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@shape(FAR_TRUTH, RED_TRUTH)
def two_plain_functions() -> None:
    """Two turns of plain calls below one span."""
    with span("session"):
        for question in (FAR, RED):
            context = joined(SKY.invoke(question))
            MODEL.invoke(GROUNDED.format(context=context, question=question))


def _with_history(model: Chat) -> Callable[[str, list[BaseMessage]], str]:
    condense = ChatPromptTemplate.from_messages(
        [MessagesPlaceholder("history"), ("human", "Stand-alone form of: {input}")]
    )
    answer = ChatPromptTemplate.from_messages(
        [
            ("system", "Answer from:\n{context}"),
            MessagesPlaceholder("history"),
            ("human", "{input}"),
        ]
    )
    query = RunnableBranch(
        (itemgetter("history"), condense | model | StrOutputParser()), itemgetter("input")
    )
    found: dict[str, Any] = {
        "context": query | SKY | joined,
        "history": itemgetter("history"),
        "input": itemgetter("input"),
    }
    chain = found | answer | model | StrOutputParser()
    return lambda text, history: chain.invoke({"input": text, "history": history})


@shape(
    FAR_TRUTH,
    Truth("And does it have air?", MOON, "No, there is no air on it at all."),
    Truth("What about Mars?", MARS, "Mars is red with rust and has two moons."),
)
def three_turns_with_history() -> None:
    """A conversation: each prompt repeats what was asked and answered before."""
    model = Chat(
        rules={
            "Stand-alone form of: What about Mars?": "Does Mars have air?",
            "Stand-alone form of: And": "Does the moon have air?",
            "What about Mars?": "Mars is red with rust and has two moons.",
            "And does it have air?": "No, there is no air on it at all.",
            FAR: FAR_ANSWER,
        }
    )
    history: list[BaseMessage] = []
    turn = _with_history(model)
    with span("conversation"):
        for text in (FAR, "And does it have air?", "What about Mars?"):
            said = turn(text, history)
            history += [HumanMessage(text), AIMessage(said)]


@shape(Truth("Thanks! And Mars?", MARS, "Mars is red with rust and has two moons."))
def history_holds_old_passages() -> None:
    """An old message quotes a passage that was found again now, and dropped by code."""
    model = Chat(rules={"Thanks! And Mars?": "Mars is red with rust and has two moons."})
    pages = Pages(found={"mars": [*MARS, MOON[0]]})
    prompt = ChatPromptTemplate.from_messages(
        [("human", FAR), ("ai", MOON[0]), ("human", "{context}\n\n{question}")]
    )
    first_two = RunnableLambda(lambda found: joined(found[:2]))
    chain = {"context": pages | first_two, "question": RunnableLambda(str)} | prompt | model
    (chain | StrOutputParser()).invoke("Thanks! And Mars?")
