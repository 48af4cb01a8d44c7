"""Agents made of agents: supervisors, handoffs, routers, planners, agents as tools."""

from __future__ import annotations

import operator
from typing import Annotated, Any, Literal

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_core.tools import InjectedToolCallId, create_retriever_tool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode, create_react_agent
from langgraph.types import Command, Send
from pydantic import BaseModel
from typing_extensions import TypedDict

from .kit import Config, Truth, app
from .langchain_kit import call, model, store, text_of

V1 = ("langchain>=1",)

VISA = "Citizens of the EU need no visa for stays of up to 90 days."
BAGGAGE = "One bag of 23 kg is free; a bicycle costs 60 euros and must be booked two days ahead."
MEALS = "Vegan meals are ordered up to 24 hours before departure."
REFUND = "Refunds of cancelled flights are paid within seven days to the card that was charged."


def guide(*texts: str, name: str = "search_guide") -> Any:
    retriever = store(*texts).as_retriever(search_kwargs={"k": 1})
    return create_retriever_tool(retriever, name, "Search the travel guide.")


# --- handoffs ---------------------------------------------------------------------------------------------


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


@app(
    Truth(
        question=BIKE,
        contexts=(BAGGAGE,),
        answer="60 euros, and please book it two days ahead.",
    ),
    page="LangGraph multi-agent: handoff from a front desk to a specialist (swarm)",
)
def handoff_to_a_specialist(config: Config) -> None:
    desk_llm = model(call("transfer_to_baggage"))
    baggage_llm = model(
        call("search_guide", query="bicycle costs"),
        "60 euros, and please book it two days ahead.",
    )
    desk = create_react_agent(desk_llm, [handoff("baggage")], prompt="Front desk.", name="desk")
    baggage = create_react_agent(baggage_llm, [guide(BAGGAGE, MEALS)], name="baggage")
    team = StateGraph(MessagesState)
    team.add_node("desk", desk, destinations=("baggage",))
    team.add_node("baggage", baggage)
    team.add_edge(START, "desk")
    team.compile().invoke({"messages": [("user", BIKE)]}, config)


# --- supervisor -----------------------------------------------------------------------------------------


class Next(TypedDict):
    """Who acts next."""

    next: Literal["researcher", "writer", "FINISH"]


MEAL = "Write me a line on vegan meals."


@app(
    Truth(
        question=MEAL,
        contexts=(MEALS,),
        answer="Vegan meals: order them a day before you fly!",
        also=({"contexts": (f"Found: {MEALS}",)},),
    ),
    optional=[Truth(question=MEAL, contexts=(MEALS,), answer=f"Found: {MEALS}")],
    page="LangGraph multi-agent supervisor: a router with structured output, two workers",
)
def supervisor_with_two_workers(config: Config) -> None:
    chief = model({"next": "researcher"}, {"next": "writer"}, {"next": "FINISH"})
    research_llm = model(call("search_guide", query="vegan meals"), f"Found: {MEALS}")
    writer_llm = model("Vegan meals: order them a day before you fly!")
    researcher = create_react_agent(research_llm, [guide(MEALS, VISA)])

    def supervisor(state: MessagesState) -> Command[Any]:
        asked = [SystemMessage("Who acts next?"), *state["messages"]]
        goto = chief.with_structured_output(Next).invoke(asked)["next"]
        return Command(goto=END if goto == "FINISH" else goto)

    def research(state: MessagesState) -> Command[Any]:
        last = researcher.invoke({"messages": state["messages"]})["messages"][-1]
        told = HumanMessage(text_of(last), name="researcher")
        return Command(goto="supervisor", update={"messages": [told]})

    def write(state: MessagesState) -> Command[Any]:
        line = writer_llm.invoke([SystemMessage("You write."), *state["messages"]])
        told = AIMessage(text_of(line), name="writer")
        return Command(goto="supervisor", update={"messages": [told]})

    graph = StateGraph(MessagesState)
    graph.add_node("supervisor", supervisor, destinations=("researcher", "writer", END))
    graph.add_node("researcher", research)
    graph.add_node("writer", write)
    graph.add_edge(START, "supervisor")
    graph.compile().invoke({"messages": [("user", MEAL)]}, config)


@app(
    Truth(
        question="I cancelled my flight. When is the money back?",
        contexts=(REFUND,),
        answer="It is on your card within a week.",
        also=({"contexts": ("Refunds take seven days at most.",)},),
    ),
    optional=[
        Truth(
            question="refund of a cancelled flight",
            contexts=(REFUND,),
            answer="Refunds take seven days at most.",
        )
    ],
    page="LangChain 1.x multi-agent: subagents as tools",
    needs=V1,
)
def subagent_as_a_tool(config: Config) -> None:
    from langchain.agents import create_agent

    inner = create_agent(
        model(call("search_guide", query="refunds flights"), "Refunds take seven days at most."),
        [guide(REFUND, BAGGAGE)],
    )

    @tool
    def refunds_expert(request: str) -> str:
        """Ask the expert on refunds."""
        return text_of(inner.invoke({"messages": [HumanMessage(request)]})["messages"][-1])

    main = create_agent(
        model(
            call("refunds_expert", request="refund of a cancelled flight"),
            "It is on your card within a week.",
        ),
        [refunds_expert],
        system_prompt="You are the airline's assistant.",
    )
    question = "I cancelled my flight. When is the money back?"
    main.invoke({"messages": [HumanMessage(question)]}, config)


@app(
    Truth(
        question="Visa for a month?",
        contexts=(VISA,),
        answer="Up to 90 days you need none.",
        also=({"contexts": ("No visa is needed.",)},),
    ),
    optional=[Truth(question="visa for a month", contexts=(VISA,), answer="No visa is needed.")],
    page="How to convert runnables to tools: a RAG chain as a tool of an agent",
)
def rag_chain_as_a_tool(config: Config) -> None:
    chain = (
        {
            "passages": store(VISA, MEALS).as_retriever(search_kwargs={"k": 1})
            | (lambda docs: docs[0].page_content),
            "q": RunnablePassthrough(),
        }
        | ChatPromptTemplate.from_template("{passages}\n\n{q}")
        | model("No visa is needed.")
        | StrOutputParser()
    )

    @tool
    def visa_assistant(question: str) -> str:
        """Answer questions on visas."""
        return chain.invoke(question)

    llm = model(call("visa_assistant", question="visa for a month"), "Up to 90 days you need none.")
    create_react_agent(llm, [visa_assistant]).invoke(
        {"messages": [("user", "Visa for a month?")]}, config
    )


# --- router over several knowledge bases --------------------------------------------------------------------


class Routed(TypedDict):
    query: str
    routes: list[str]
    results: Annotated[list[str], operator.add]
    final_answer: str


@app(
    Truth(
        question="Can I bring a bicycle, and eat vegan?",
        contexts=(BAGGAGE, MEALS),
        answer="Yes to both: 60 euros for the bicycle, and order the meal a day ahead.",
        also=({"contexts": ("A bicycle is 60 euros.", "Order vegan meals a day ahead.")},),
    ),
    optional=[
        Truth(question="bicycle costs", contexts=(BAGGAGE,), answer="A bicycle is 60 euros."),
        Truth(question="vegan meals", contexts=(MEALS,), answer="Order vegan meals a day ahead."),
    ],
    page="LangChain 1.x multi-agent: a router over knowledge bases with an agent each, synthesized",
    needs=V1,
)
def router_over_knowledge_bases(config: Config) -> None:
    from langchain.agents import create_agent

    desks = {
        "baggage": (BAGGAGE, "bicycle costs", "A bicycle is 60 euros."),
        "meals": (MEALS, "vegan meals", "Order vegan meals a day ahead."),
    }

    def agent(name: str) -> Any:
        text, query, said = desks[name]
        return create_agent(
            model(call(f"search_{name}", query=query), said), [guide(text, name=f"search_{name}")]
        )

    agents = {name: agent(name) for name in desks}
    router = model("baggage, meals")
    final = model("Yes to both: 60 euros for the bicycle, and order the meal a day ahead.")

    def classify(state: Routed) -> dict[str, Any]:
        return {"routes": text_of(router.invoke(f"Route: {state['query']}")).split(", ")}

    def ask(state: dict[str, str]) -> dict[str, Any]:
        asked = {"messages": [HumanMessage(desks[state["desk"]][1])]}
        return {"results": [text_of(agents[state["desk"]].invoke(asked)["messages"][-1])]}

    def synthesize(state: Routed) -> dict[str, Any]:
        told = "\n".join(state["results"])
        prompt = f"Synthesize these results:\n{told}\nfor: {state['query']}"
        return {"final_answer": text_of(final.invoke(prompt))}

    graph = StateGraph(Routed)
    graph.add_node(classify)
    graph.add_node("ask", ask)
    graph.add_node(synthesize)
    graph.add_edge(START, "classify")
    graph.add_conditional_edges(
        "classify", lambda s: [Send("ask", {"desk": d}) for d in s["routes"]], ["ask"]
    )
    graph.add_edge("ask", "synthesize")
    graph.compile().invoke({"query": "Can I bring a bicycle, and eat vegan?"}, config)


# --- planners -------------------------------------------------------------------------------------------------


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


@app(
    Truth(
        question=TRIP,
        contexts=(VISA, BAGGAGE),
        answer="No visa, and 60 euros for the bicycle.",
        also=({"contexts": ("None up to 90 days.", "60 euros, booked ahead.")},),
    ),
    optional=[
        Truth(question="Check the visa rules", contexts=(VISA,), answer="None up to 90 days."),
        Truth(
            question="Check the price of a bicycle",
            contexts=(BAGGAGE,),
            answer="60 euros, booked ahead.",
        ),
    ],
    page="LangGraph: plan-and-execute with a retrieval agent as the executor",
    needs=("python>=3.11",),
)
async def plan_and_execute(config: Config) -> None:
    planner = model(Plan(steps=["Check the visa rules", "Check the price of a bicycle"]))
    replanner = model(
        Act(steps=["Check the price of a bicycle"]),
        Act(response="No visa, and 60 euros for the bicycle."),
    )
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
    async for _ in flow.compile().astream({"input": TRIP}, config):
        pass


# --- the loop written by hand -----------------------------------------------------------------------------------


@app(
    Truth(
        question="How heavy may my bag be?",
        contexts=(BAGGAGE,),
        answer="23 kg.",
    ),
    Truth(
        question="And when do I order a vegan meal?",
        contexts=(MEALS,),
        answer="A day before departure at the latest.",
        also=({"contexts": (BAGGAGE, MEALS)},),
    ),
    page="LangGraph: a ReAct agent from scratch, with a checkpointer, two turns",
)
def agent_from_scratch_two_turns(config: Config) -> None:
    search = guide(BAGGAGE, MEALS, VISA)
    llm = model(
        call("search_guide", query="bag kg"),
        "23 kg.",
        call("search_guide", query="vegan meals"),
        "A day before departure at the latest.",
    ).bind_tools([search])

    def agent(state: MessagesState) -> dict[str, Any]:
        return {"messages": [llm.invoke([SystemMessage("Airline bot."), *state["messages"]])]}

    def should_continue(state: MessagesState) -> str:
        return "tools" if state["messages"][-1].tool_calls else END

    graph = StateGraph(MessagesState)
    graph.add_node(agent)
    graph.add_node("tools", ToolNode([search]))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", should_continue, ["tools", END])
    graph.add_edge("tools", "agent")
    compiled = graph.compile(checkpointer=InMemorySaver())
    thread = {**config, "configurable": {"thread_id": "passenger-9"}}
    compiled.invoke({"messages": [("user", "How heavy may my bag be?")]}, thread)
    compiled.invoke({"messages": [("user", "And when do I order a vegan meal?")]}, thread)


class Cart(MessagesState):
    context: list[Document]


@app(
    Truth(
        question="Is a refund paid in cash?",
        contexts=(REFUND,),
        answer="No, to your card.",
    ),
    page="LangGraph tutorial: conversational RAG graph, query_or_respond, tools, generate",
)
def query_or_respond_tools_generate(config: Config) -> None:
    vector_store = store(REFUND, MEALS, VISA)

    @tool(response_format="content_and_artifact")
    def retrieve(query: str) -> tuple[str, list[Document]]:
        """Retrieve information related to a query."""
        docs = vector_store.similarity_search(query, k=1)
        return "\n\n".join(f"Source: {d.metadata}\nContent: {d.page_content}" for d in docs), docs

    llm = model(call("retrieve", query="refunds paid"), "No, to your card.")

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
        {"messages": [{"role": "user", "content": "Is a refund paid in cash?"}]},
        config,
        stream_mode="values",
    ):
        pass


@app(page="LangGraph multi-agent: two writers debate, no retrieval")
def debate_without_retrieval(config: Config) -> None:
    llm = model("Trains are better.", "Planes are faster.", "Trains win.")

    def pro(state: MessagesState) -> dict[str, Any]:
        return {"messages": [llm.invoke([SystemMessage("Argue pro."), *state["messages"]])]}

    def con(state: MessagesState) -> dict[str, Any]:
        return {"messages": [llm.invoke([SystemMessage("Argue con."), *state["messages"]])]}

    def moderator(state: MessagesState) -> dict[str, Any]:
        return {"messages": [llm.invoke([*state["messages"], HumanMessage("Who won?")])]}

    graph = StateGraph(MessagesState).add_sequence([pro, con, moderator]).add_edge(START, "pro")
    graph.compile().invoke({"messages": [("user", "Trains or planes?")]}, config)


@app(page="LangGraph: evaluator-optimizer workflow without retrieval")
def evaluator_optimizer(config: Config) -> None:
    llm = model("A joke.", "not funny", "A better joke.", "funny")

    class Joke(TypedDict):
        topic: str
        joke: str
        grade: str

    def write(state: Joke) -> dict[str, Any]:
        return {"joke": text_of(llm.invoke(f"A joke about {state['topic']}"))}

    def evaluate(state: Joke) -> dict[str, Any]:
        return {"grade": text_of(llm.invoke(f"Grade: {state['joke']}"))}

    graph = StateGraph(Joke).add_sequence([write, evaluate]).add_edge(START, "write")
    graph.add_conditional_edges(
        "evaluate", lambda s: END if s["grade"] == "funny" else "write", [END, "write"]
    )
    graph.compile().invoke({"topic": "airports"}, config)
