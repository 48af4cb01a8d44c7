"""Agents: tools called twice, at once, or not at all; agents that lead others."""

from typing import Any

from kit import Chat, Pages, ask, call, joined
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import create_retriever_tool, tool
from langgraph.checkpoint.memory import MemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from registry import Truth, shape

RENT = ["Bikes are rented for 12 euros a day.", "Helmets are lent for free."]
HOURS = ["The station opens at seven.", "It closes at eight in the evening."]
BIKES = Pages(found={"bike": RENT, "open": HOURS, "hour": HOURS})
BOTH = "What does a bike cost, and when are you open?"
BOTH_ANSWER = "A bike is 12 euros a day, and we are open from seven to eight."
search_pages = create_retriever_tool(BIKES, "search_pages", "Search the pages of the station.")


@tool
def calculator(expression: str) -> str:
    """Calculate."""
    return str(sum(map(int, expression.split("+"))))


@tool
def look_into_handbook(topic: str) -> str:
    """Look a topic up in the handbook."""
    found = BIKES.invoke(topic)
    return "\n".join(f"({n}) {page.page_content}" for n, page in enumerate(found, 1))


def talk(agent: Any, *said: str, **config: Any) -> Any:
    """Ask ``agent``, as the user."""
    return agent.invoke(
        {"messages": [HumanMessage(text) for text in said]}, {"configurable": config}
    )


@shape()
def only_calculates() -> None:
    """There is a search tool, but only the calculator is used."""
    model = Chat(
        rules={"\n42": "Together that makes 42 euros.", "": call(calculator={"expression": "40+2"})}
    )
    talk(create_agent(model, [search_pages, calculator]), "What is 40+2?")


@shape(
    Truth("What does a bike cost?", RENT, "A bike costs 12 euros a day."),
    Truth("And when are you open?", HOURS, "We are open from seven to eight."),
)
def remembers_two_turns() -> None:
    """Two turns of one conversation: the second prompt holds the first turn's passages."""
    model = Chat(
        rules={
            "opens at seven": "We are open from seven to eight.",
            "when are you open": call(search_pages={"query": "opening hours"}),
            "12 euros": "A bike costs 12 euros a day.",
            "": call(search_pages={"query": "bike price"}),
        }
    )
    agent = create_agent(model, [search_pages], checkpointer=MemorySaver())
    talk(agent, "What does a bike cost?", thread_id="1")
    talk(agent, "And when are you open?", thread_id="1")


@shape(Truth("What does a bike cost?", RENT, "A bike costs 12 euros a day."))
def thanks_after_turn() -> None:
    """After a turn with a search the user says thanks: that is no RAG."""
    model = Chat(
        rules={
            "Thanks": "You are welcome, enjoy the ride!",
            "12 euros": "A bike costs 12 euros a day.",
            "": call(search_pages={"query": "bike price"}),
        }
    )
    agent = create_agent(model, [search_pages], checkpointer=MemorySaver())
    talk(agent, "What does a bike cost?", thread_id="1")
    talk(agent, "Thanks a lot!", thread_id="1")


@shape(Truth("Tell me in short what a bike costs.", RENT, "12 euros a day."))
def supervised() -> None:
    """A supervisor sends the question to an agent that searches, and then to one that shortens."""
    long = "Renting a bike costs 12 euros for each day, and the helmet comes for free."
    model = Chat(
        rules={
            "Supervise": "researcher",
            "Shorten": "12 euros a day.",
            "12 euros": long,
            "": call(search_pages={"query": "bike price"}),
        }
    )
    researcher = create_agent(model, [search_pages], name="researcher")

    def supervise(state: MessagesState) -> dict[str, Any]:
        ask(model, "Supervise: {m}").invoke({"m": state["messages"][-1].content})
        return {}

    def research(state: MessagesState) -> dict[str, Any]:
        return {"messages": researcher.invoke({"messages": state["messages"]})["messages"][-1:]}

    def shorten(state: MessagesState) -> dict[str, Any]:
        short = ask(model, "Shorten: {m}").invoke({"m": state["messages"][-1].content})
        return {"messages": [AIMessage(short)]}

    graph = StateGraph(MessagesState)
    for node in (supervise, research, shorten):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "supervise")
    graph.add_edge("supervise", "research")
    graph.add_edge("research", "shorten")
    graph.add_edge("shorten", END)
    talk(graph.compile(), "Tell me in short what a bike costs.")


@shape(Truth(BOTH, [*RENT, *HOURS], BOTH_ANSWER))
def leads_two_experts() -> None:
    """Each tool is an agent with a search of its own."""
    prices = Chat(
        rules={"12 euros": "A bike is 12 euros a day.", "": call(search_pages={"query": "bike"})}
    )
    hours = Chat(
        rules={"seven": "Open from seven to eight.", "": call(search_pages={"query": "hours"})}
    )
    one, two = create_agent(prices, [search_pages]), create_agent(hours, [search_pages])

    @tool
    def price_expert(request: str) -> str:
        """Ask the expert for prices."""
        return str(talk(one, request)["messages"][-1].content)

    @tool
    def hours_expert(request: str) -> str:
        """Ask the expert for opening hours."""
        return str(talk(two, request)["messages"][-1].content)

    leader = Chat(
        rules={
            "Open from seven": BOTH_ANSWER,
            "": call(
                price_expert={"request": "What is a bike a day?"},
                hours_expert={"request": "When do you open?"},
            ),
        }
    )
    talk(create_agent(leader, [price_expert, hours_expert]), BOTH)


@shape(Truth("What does a bike cost?", RENT, "A bike costs 12 euros a day."))
def failed_search_repeated() -> None:
    """The first search fails, which the agent is told; the second succeeds."""
    broken = Pages(found={"bicycle": ConnectionError("no index"), "": RENT})

    @tool
    def search(query: str) -> str:
        """Search."""
        try:
            return joined(broken.invoke(query))
        except ConnectionError:
            return "Error: try again with another word."

    model = Chat(
        rules={
            "12 euros": "A bike costs 12 euros a day.",
            "try again": call(search={"query": "bike"}),
            "": call(search={"query": "bicycle"}),
        }
    )
    talk(create_agent(model, [search]), "What does a bike cost?")
