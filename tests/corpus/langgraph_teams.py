"""Agents made of agents: supervisors, handoffs, routers, planners, agents as tools."""

import operator
from typing import Annotated, Any

from langchain_core.documents import Document
from langchain_core.messages import SystemMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, create_retriever_tool, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode, create_react_agent
from langgraph.types import Command
from pydantic import BaseModel
from typing_extensions import TypedDict

from .kit import Config, Truth, turn
from .langchain_kit import call, model, store, text_of

VISA = "Citizens of the EU need no visa for stays of up to 90 days."
BAGGAGE = "One bag of 23 kg is free; a bicycle costs 60 euros and must be booked two days ahead."
MEALS = "Vegan meals are ordered up to 24 hours before departure."
REFUND = "Refunds of cancelled flights are paid within seven days to the card that was charged."


def guide(*texts: str, name: str = "search_guide") -> Any:
    retriever = store(*texts).as_retriever(search_kwargs={"k": 1})
    return create_retriever_tool(retriever, name, "Search the travel guide.")


def handoff(agent: str) -> Any:
    @tool(f"transfer_to_{agent}")
    def transfer(
        state: Annotated[dict[str, Any], InjectedState],
        tool_call_id: Annotated[str, InjectedToolCallId],
    ) -> Command[Any]:
        """Hand the conversation over."""
        told = ToolMessage(f"Transferred to {agent}", name=agent, tool_call_id=tool_call_id)
        return Command(
            goto=agent, graph=Command.PARENT, update={"messages": [*state["messages"], told]}
        )

    return transfer


BIKE = "I'd like to take my bicycle along. What does it cost?"


@turn(BIKE, (BAGGAGE,), "60 euros, and please book it two days ahead.")
def handoff_to_a_specialist(config: Config, question: str, answer: str) -> None:
    """LangGraph multi-agent: handoff from a front desk to a specialist (swarm)."""
    desk_llm = model(call("transfer_to_baggage"))
    baggage_llm = model(call("search_guide", query="bicycle costs"), answer)
    desk = create_react_agent(desk_llm, [handoff("baggage")], prompt="Front desk.", name="desk")
    baggage = create_react_agent(baggage_llm, [guide(BAGGAGE, MEALS)], name="baggage")
    team = StateGraph(MessagesState)
    team.add_node("desk", desk, destinations=("baggage",))
    team.add_node("baggage", baggage)
    team.add_edge(START, "desk")
    team.compile().invoke({"messages": [("user", question)]}, config)


class Plan(BaseModel):
    """Steps to follow, in order."""

    steps: list[str]


class Act(BaseModel):
    """Respond to the user, or go on with a plan."""

    response: str = ""
    steps: list[str] = []


class PlanExecute(TypedDict):
    input: str
    plan: list[str]
    past_steps: Annotated[list[tuple[str, str]], operator.add]
    response: str


TRIP = "What do I need for two months in Lisbon with a bicycle?"


@turn(
    TRIP,
    (VISA, BAGGAGE),
    "No visa, and 60 euros for the bicycle.",
    also=({"contexts": ("None up to 90 days.", "60 euros, booked ahead.")},),
    optional=[
        Truth("Check the visa rules", (VISA,), "None up to 90 days."),
        Truth("Check the price of a bicycle", (BAGGAGE,), "60 euros, booked ahead."),
    ],
    needs=("python>=3.11",),
)
async def plan_and_execute(config: Config, question: str, answer: str) -> None:
    """LangGraph: plan-and-execute with a retrieval agent as the executor."""
    planner = model(Plan(steps=["Check the visa rules", "Check the price of a bicycle"]))
    replanner = model(Act(steps=["Check the price of a bicycle"]), Act(response=answer))
    executor = create_react_agent(
        model(
            call("search_guide", query="visa EU days"),
            "None up to 90 days.",
            call("search_guide", query="bicycle costs euros"),
            "60 euros, booked ahead.",
        ),
        [guide(VISA, BAGGAGE, MEALS)],
    )

    async def plan_step(state: PlanExecute) -> dict[str, Any]:
        made = await planner.with_structured_output(Plan).ainvoke(f"Plan: {state['input']}")
        return {"plan": made.steps}

    async def execute_step(state: PlanExecute) -> dict[str, Any]:
        step = state["plan"][0]
        result = await executor.ainvoke({"messages": [("user", step)]})
        return {"past_steps": [(step, text_of(result["messages"][-1]))]}

    async def replan_step(state: PlanExecute) -> dict[str, Any]:
        prompt = (
            f"Objective: {state['input']}\nDone so far: {state['past_steps']}\nGo on or respond."
        )
        act = await replanner.with_structured_output(Act).ainvoke(prompt)
        return {"response": act.response} if act.response else {"plan": act.steps}

    flow = StateGraph(PlanExecute)
    flow.add_node("planner", plan_step)
    flow.add_node("agent", execute_step)
    flow.add_node("replan", replan_step)
    flow.add_edge(START, "planner")
    flow.add_edge("planner", "agent")
    flow.add_edge("agent", "replan")
    flow.add_conditional_edges("replan", lambda s: END if s.get("response") else "agent")
    async for _ in flow.compile().astream({"input": question}, config):
        pass


class Cart(MessagesState):
    context: list[Document]


@turn("Is a refund paid in cash?", (REFUND,), "No, to your card.")
def query_or_respond_tools_generate(config: Config, question: str, answer: str) -> None:
    """LangGraph tutorial: conversational RAG graph, query_or_respond, tools, generate."""
    vector_store = store(REFUND, MEALS, VISA)

    @tool(response_format="content_and_artifact")
    def retrieve(query: str) -> tuple[str, list[Document]]:
        """Retrieve information related to a query."""
        docs = vector_store.similarity_search(query, k=1)
        return "\n\n".join(f"Source: {d.metadata}\nContent: {d.page_content}" for d in docs), docs

    llm = model(call("retrieve", query="refunds paid"), answer)

    def query_or_respond(state: Cart) -> dict[str, Any]:
        return {"messages": [llm.bind_tools([retrieve]).invoke(state["messages"])]}

    def generate(state: Cart) -> dict[str, Any]:
        recent = [m for m in state["messages"] if m.type == "tool"]
        system = SystemMessage("Answer by:\n\n" + "\n\n".join(text_of(m) for m in recent))
        talk = [m for m in state["messages"] if m.type == "human"]
        context = [d for m in recent for d in m.artifact]
        return {"messages": [llm.invoke([system, *talk])], "context": context}

    def needs_tools(state: Cart) -> str:
        return "tools" if state["messages"][-1].tool_calls else END

    graph = StateGraph(Cart)
    graph.add_node(query_or_respond)
    graph.add_node("tools", ToolNode([retrieve]))
    graph.add_node(generate)
    graph.add_edge(START, "query_or_respond")
    graph.add_conditional_edges("query_or_respond", needs_tools, {END: END, "tools": "tools"})
    graph.add_edge("tools", "generate")
    graph.add_edge("generate", END)
    for _ in graph.compile().stream(
        {"messages": [{"role": "user", "content": question}]}, config, stream_mode="values"
    ):
        pass
