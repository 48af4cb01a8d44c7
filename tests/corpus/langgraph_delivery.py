"""Graphs and agents in which a step within the turn looks like a turn of its own."""

from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_core.tools import tool

from .kit import V1, Config, Truth, turn
from .langchain_kit import call, create_agent, model, store, text_of

FERRY = "The ferry to the island leaves at ten and at four from the northern pier."
HOSTEL = "The hostel on the island has forty beds and is closed in January."
FERRY_QUERY, FERRY_REPLY = "When does the ferry leave?", "It leaves at ten and at four."
HOSTEL_QUERY, HOSTEL_REPLY = "How many beds has the hostel?", "The hostel has forty beds."
TRIP = "When does the ferry leave, and how many beds has the hostel?"
TRIP_PLAN = "The ferry leaves at ten and at four; the hostel has forty beds."


def engine(text: str, reply: str) -> Any:
    retriever = store(text).as_retriever()
    prompt = ChatPromptTemplate.from_template("Context: {context}\nQuestion: {question}")
    shown = {"context": retriever, "question": RunnablePassthrough()}
    return shown | prompt | model(lambda messages: reply) | StrOutputParser()


@turn(
    TRIP,
    (FERRY, HOSTEL),
    TRIP_PLAN,
    also=({"contexts": (FERRY_REPLY, HOSTEL_REPLY)},),
    optional=(
        Truth(FERRY_QUERY, (FERRY,), FERRY_REPLY),
        Truth(HOSTEL_QUERY, (HOSTEL,), HOSTEL_REPLY),
    ),
    needs=V1,
)
def agent_with_two_engines(config: Config, question: str, answer: str) -> Any:
    """create_agent with two tools, each a RAG chain with a prompt and a model of its own."""
    ferries = engine(FERRY, FERRY_REPLY)
    hostels = engine(HOSTEL, HOSTEL_REPLY)

    @tool
    def search_ferries(query: str) -> str:
        """Search the timetable of the ferries."""
        return str(ferries.invoke(query))

    @tool
    def search_hostels(query: str) -> str:
        """Search the hostels."""
        return str(hostels.invoke(query))

    llm = model(
        call("search_ferries", query=FERRY_QUERY),
        call("search_hostels", query=HOSTEL_QUERY),
        answer,
    )
    asked = {"messages": [HumanMessage(question)]}
    found = create_agent(llm, [search_ferries, search_hostels]).invoke(asked, config)
    return text_of(found["messages"][-1])
