"""Agents of LangGraph: those that decide, wait for people, and work in teams."""

import operator
from typing import Annotated, Any, Literal

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnablePassthrough
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode, create_react_agent, tools_condition
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from .kit import V1, Config, Truth, app, turn
from .langchain_kit import (
    ask_agent,
    call,
    documents,
    in_a_row,
    lcel,
    lines,
    model,
    retriever,
    search_tool,
    store,
    text_of,
)
from .langgraph_rag import HOUSE, NOISE, PETS, TRASH, GradeDocuments

HACKING = "Reward hacking happens when an agent exploits flaws in the reward function."
TYPES = "Reward hacking can be sorted into two types: goal misspecification, and reward tampering."
VIDEO = "Video generation adds temporal consistency to the demands on a model of images."
HALLUCINATION = "Hallucination is output that is fabricated and not grounded in context or facts."


def agentic_graph(llm: Any, retriever_tool: Any, method: str = "function_calling") -> Any:
    """The graph: query or respond, retrieve, grade, rewrite or generate."""

    def generate_query_or_respond(state: MessagesState) -> dict[str, Any]:
        return {"messages": [llm.bind_tools([retriever_tool]).invoke(state["messages"])]}

    def grade_documents(state: MessagesState) -> Literal["generate_answer", "rewrite_question"]:
        question, context = text_of(state["messages"][0]), text_of(state["messages"][-1])
        prompt = f"Is this document relevant?\n\n{context}\n\nUser question: {question}\nyes or no:"
        grader = llm.with_structured_output(GradeDocuments, method=method)
        score = grader.invoke([{"role": "user", "content": prompt}]).binary_score
        return "generate_answer" if score == "yes" else "rewrite_question"

    def rewrite_question(state: MessagesState) -> dict[str, Any]:
        prompt = f"Look at the intent and improve this question: {text_of(state['messages'][0])}"
        return {"messages": [HumanMessage(text_of(llm.invoke([("user", prompt)])))]}

    def generate_answer(state: MessagesState) -> dict[str, Any]:
        question, context = text_of(state["messages"][0]), text_of(state["messages"][-1])
        prompt = f"Answer the question by the context.\nQuestion: {question}\nContext: {context}"
        return {"messages": [llm.invoke([{"role": "user", "content": prompt}])]}

    workflow = StateGraph(MessagesState).add_node("retrieve", ToolNode([retriever_tool]))
    for node in (generate_query_or_respond, rewrite_question, generate_answer):
        workflow.add_node(node)
    first, goes_on = "generate_query_or_respond", {"tools": "retrieve", END: END}
    workflow.add_edge(START, first).add_conditional_edges(first, tools_condition, goes_on)
    workflow.add_conditional_edges("retrieve", grade_documents)
    return workflow.add_edge("rewrite_question", first).compile()


def blog_tool() -> Any:
    return search_tool("retrieve_blog_posts", HACKING, TYPES, VIDEO, HALLUCINATION, k=2)


ASK_TYPES = "What does the blog say about types of reward hacking?"
TWO_TYPES = "It names two: misspecification of the environment or goal, and reward tampering."


@turn(ASK_TYPES, (TYPES, HACKING), TWO_TYPES)
def agentic_rag_graph(config: Config, question: str, answer: str) -> None:
    """LangGraph tutorial: agentic RAG, documents graded as relevant."""
    search = call("retrieve_blog_posts", query="types of reward hacking")
    graph = agentic_graph(model(search, {"binary_score": "yes"}, answer), blog_tool())
    for chunk in graph.stream({"messages": [{"role": "user", "content": question}]}, config):
        for update in chunk.values():
            update["messages"][-1].pretty_repr()


@turn(
    ASK_TYPES,
    (TYPES, HACKING),
    TWO_TYPES,
    also=({"contexts": (VIDEO, HALLUCINATION, TYPES, HACKING)},),
)
def agentic_rag_graph_with_rewrite(config: Config, question: str, answer: str) -> None:
    """LangGraph tutorial: agentic RAG, the question rewritten and asked again."""
    llm = model(
        call("retrieve_blog_posts", query="models: image, output"),
        {"binary_score": "no"},
        "Which types of reward hacking are described?",
        call("retrieve_blog_posts", query="reward hacking types"),
        {"binary_score": "yes"},
        answer,
    )
    graph = agentic_graph(llm, blog_tool(), method="json_schema")
    graph.invoke({"messages": [("user", question)]}, config)


@app()
def agentic_rag_graph_greeting(config: Config) -> None:
    """LangGraph tutorial: agentic RAG that answers a greeting without retrieval."""
    llm = model("Hello! What would you like to know about the blog?")
    agentic_graph(llm, blog_tool()).invoke({"messages": [("user", "hello!")]}, config)


FERRY = "The ferry to the island leaves at ten and at four from the northern pier."
HOSTEL = "The hostel on the island has forty beds and is closed in January."
FERRY_QUERY, FERRY_REPLY = "When does the ferry leave?", "It leaves at ten and at four."
HOSTEL_QUERY, HOSTEL_REPLY = "How many beds has the hostel?", "The hostel has forty beds."
FERRY_ASKED, HOSTEL_ASKED = (
    Truth(FERRY_QUERY, (FERRY,), FERRY_REPLY),
    Truth(HOSTEL_QUERY, (HOSTEL,), HOSTEL_REPLY),
)


def engine(text: str, reply: str) -> Any:
    shown = {"context": retriever(text), "question": RunnablePassthrough()}
    prompt = "Context: {context}\nQuestion: {question}"
    return shown | lcel(prompt, model(lambda messages: reply))


@turn(
    "When does the ferry leave, and how many beds has the hostel?",
    (FERRY, HOSTEL),
    "The ferry leaves at ten and at four; the hostel has forty beds.",
    also=({"contexts": (FERRY_REPLY, HOSTEL_REPLY)},),
    optional=(FERRY_ASKED, HOSTEL_ASKED),
    needs=V1,
)
def agent_with_two_engines(config: Config, question: str, answer: str) -> Any:
    """create_agent with two tools, each a RAG chain with a prompt and a model of its own."""
    ferries, hostels = engine(FERRY, FERRY_REPLY), engine(HOSTEL, HOSTEL_REPLY)

    @tool
    def search_ferries(query: str) -> str:
        """Search the timetable of the ferries."""
        return str(ferries.invoke(query))

    @tool
    def search_hostels(query: str) -> str:
        """Search the hostels."""
        return str(hostels.invoke(query))

    both = call("search_ferries", query=FERRY_QUERY), call("search_hostels", query=HOSTEL_QUERY)
    found = ask_agent(config, question, [search_ferries, search_hostels], *both, answer)
    return text_of(found["messages"][-1])


class Review(TypedDict):
    customer: str
    pages: list[str]
    draft: str
    final: str


def reviewed(config: Config, number: int, question: str, draft: str, edited: str) -> None:
    rules, llm = retriever(*HOUSE, k=1), model(draft)

    def gather(state: Review) -> dict[str, Any]:
        return {"pages": [d.page_content for d in rules.invoke(state["customer"])]}

    def compose(state: Review) -> dict[str, Any]:
        pages = "\n".join(state["pages"])
        return {"draft": text_of(llm.invoke(f"Rules: {pages}\nTenant: {state['customer']}"))}

    def approve(state: Review) -> Command[Any]:
        decision = interrupt({"draft": state["draft"]})
        return Command(goto=END, update={"final": decision.get("edited") or state["draft"]})

    graph = in_a_row(Review, gather, compose, approve, checkpointer=InMemorySaver())
    thread = {**config, "configurable": {"thread_id": f"t-{number}"}}
    graph.invoke({"customer": question}, thread)
    graph.invoke(Command(resume={"edited": edited}), thread)


@turn("Can I use the drill on Sunday?", (NOISE,), "No, Sundays are quiet all day.")
def draft_approved(config: Config, question: str, answer: str) -> None:
    """LangGraph: human in the loop, a draft approved by interrupt and resume."""
    reviewed(config, 1, question, answer, "")


@turn(
    "Can I use the drill on Sunday?",
    (NOISE,),
    "No, and not after 22 hours either.",
    also=({"answer": "No, Sundays are for rest."},),
)
def draft_edited_by_a_person(config: Config, question: str, answer: str) -> None:
    """LangGraph: human in the loop, a draft edited by a person."""
    reviewed(config, 2, question, "No, Sundays are for rest.", answer)


class Consent(TypedDict):
    question: str
    hits: list[Document]
    answer: str


@turn("What about paper bins?", (TRASH,), "In even weeks.")
def interrupted_between_retrieval_and_generation(
    config: Config, question: str, answer: str
) -> None:
    """LangGraph: interrupt between retrieval and generation."""
    rules, llm = retriever(*HOUSE, k=1), model(answer)

    def retrieve(state: Consent) -> dict[str, Any]:
        return {"hits": rules.invoke(state["question"])}

    def generate(state: Consent) -> dict[str, Any]:
        if not interrupt("Shall these be used?"):
            return {"answer": "Not used."}
        told = [("system", lines(state["hits"])), ("user", state["question"])]
        return {"answer": text_of(llm.invoke(told))}

    graph = in_a_row(Consent, retrieve, generate, checkpointer=InMemorySaver())
    thread = {**config, "configurable": {"thread_id": "t-3"}}
    graph.invoke({"question": question}, thread)
    graph.invoke(Command(resume=True), thread)


@app(
    Truth("May I have a dog?", (PETS,), "With a permission in writing."),
    Truth("And a cat?", (PETS,), "Without any."),
)
def two_turns_of_one_thread(config: Config) -> None:
    """LangGraph: conversational RAG with a checkpointer, two turns of one thread."""
    rules, llm = retriever(*HOUSE, k=1), model("With a permission in writing.", "Without any.")

    def chatbot(state: MessagesState) -> dict[str, Any]:
        asked = " ".join(text_of(m) for m in state["messages"] if m.type == "human")
        told = lines(rules.invoke(asked + " dogs cats permission"))
        system = SystemMessage(f"You answer tenants.\nRules:\n{told}")
        return {"messages": [llm.invoke([system, *state["messages"]])]}

    graph = in_a_row(MessagesState, chatbot, checkpointer=InMemorySaver())
    thread = {**config, "configurable": {"thread_id": "tenant-4"}}
    for asked in ("May I have a dog?", "And a cat?"):
        graph.invoke({"messages": [("user", asked)]}, thread)


@app(
    Truth("Do dogs and cats disturb my quiet Sunday?", (NOISE, PETS), "Not if they keep quiet."),
    Truth("And do I need a permission for dogs?", (PETS, NOISE), "Yes, in writing."),
)
def scored_texts_in_two_turns(config: Config) -> None:
    """A collection of recipes: tools return texts with scores; the second finds the same ones."""
    rules = store(NOISE, PETS)

    @tool
    def house_policy(query: str) -> list[dict[str, Any]]:
        """Use this when the question is about the rules of the house."""
        found = rules.similarity_search_with_score(query, k=2)
        return [{"text": doc.page_content, "score": score} for doc, score in found]

    said = call("house_policy", query="quiet Sunday"), "Not if they keep quiet."
    said += call("house_policy", query="permission dogs"), "Yes, in writing."
    agent = create_react_agent(model(*said), [house_policy], checkpointer=InMemorySaver())
    thread = {**config, "configurable": {"thread_id": "tenant-5"}}
    for asked in (
        "Do dogs and cats disturb my quiet Sunday?",
        "And do I need a permission for dogs?",
    ):
        agent.invoke({"messages": [("user", asked)]}, thread)


class Answered(MessagesState):
    context: list[Document]


@turn("Do dogs need a lead?", (PETS,), "I am not sure, please ask the caretaker.")
def answer_replaced_by_a_check(config: Config, question: str, answer: str) -> None:
    """LangGraph: a check of groundedness after the answer, which replaces it."""
    rules, llm = retriever(*documents(*HOUSE), k=1), model("Yes, a short one.", "ungrounded")

    def rag(state: Answered) -> dict[str, Any]:
        found = rules.invoke(text_of(state["messages"][-1]))
        message = llm.invoke([SystemMessage(lines(found)), *state["messages"]])
        return {"messages": [message], "context": found}

    def check(state: Answered) -> dict[str, Any]:
        draft = state["messages"][-1]
        asked = f"Grounded?\n{lines(state['context'])}\n{text_of(draft)}"
        if text_of(llm.invoke(asked)) == "grounded":
            return {}
        return {"messages": [AIMessage(answer, id=draft.id)]}

    in_a_row(Answered, rag, check).invoke({"messages": [HumanMessage(question)]}, config)


VISA = "Citizens of the EU need no visa for stays of up to 90 days."
BAGGAGE = "One bag of 23 kg is free; a bicycle costs 60 euros and must be booked two days ahead."
MEALS = "Vegan meals are ordered up to 24 hours before departure."
REFUND = "Refunds of cancelled flights are paid within seven days to the card that was charged."


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


@turn(
    "I'd like to take my bicycle along. What does it cost?",
    (BAGGAGE,),
    "60 euros, and please book it two days ahead.",
)
def handoff_to_a_specialist(config: Config, question: str, answer: str) -> None:
    """LangGraph multi-agent: handoff from a front desk to a specialist (swarm)."""
    desk_llm = model(call("transfer_to_baggage"))
    baggage_llm = model(call("search_guide", query="bicycle costs"), answer)
    tools = [search_tool("search_guide", BAGGAGE, MEALS, k=1)]
    desk = create_react_agent(desk_llm, [handoff("baggage")], prompt="Front desk.", name="desk")
    team = StateGraph(MessagesState).add_node("desk", desk, destinations=("baggage",))
    team.add_node("baggage", create_react_agent(baggage_llm, tools, name="baggage"))
    team.add_edge(START, "desk").compile().invoke({"messages": [("user", question)]}, config)


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


TO_CHECK = ("Check the visa rules", "Check the price of a bicycle")
CHECKED = ("None up to 90 days.", "60 euros, booked ahead.")


@turn(
    "What do I need for two months in Lisbon with a bicycle?",
    (VISA, BAGGAGE),
    "No visa, and 60 euros for the bicycle.",
    also=({"contexts": CHECKED},),
    optional=map(Truth, TO_CHECK, ((VISA,), (BAGGAGE,)), CHECKED),
    needs=("python>=3.11",),
)
async def plan_and_execute(config: Config, question: str, answer: str) -> None:
    """LangGraph: plan-and-execute with a retrieval agent as the executor."""
    planner = model(Plan(steps=list(TO_CHECK))).with_structured_output(Plan)
    acts = model(Act(steps=[TO_CHECK[1]]), Act(response=answer))
    replanner = acts.with_structured_output(Act)
    searches = [call("search_guide", query=q) for q in ("visa EU days", "bicycle costs euros")]
    llm = model(searches[0], CHECKED[0], searches[1], CHECKED[1])
    tools = [search_tool("search_guide", VISA, BAGGAGE, MEALS, k=1)]
    executor = create_react_agent(llm, tools)

    async def plan_step(state: PlanExecute) -> dict[str, Any]:
        return {"plan": (await planner.ainvoke(f"Plan: {state['input']}")).steps}

    async def execute_step(state: PlanExecute) -> dict[str, Any]:
        step = state["plan"][0]
        result = await executor.ainvoke({"messages": [("user", step)]})
        return {"past_steps": [(step, text_of(result["messages"][-1]))]}

    async def replan_step(state: PlanExecute) -> dict[str, Any]:
        done = f"Objective: {state['input']}\nDone so far: {state['past_steps']}"
        act = await replanner.ainvoke(f"{done}\nGo on or respond.")
        return {"response": act.response} if act.response else {"plan": act.steps}

    flow = StateGraph(PlanExecute)
    for name, node in (("planner", plan_step), ("agent", execute_step), ("replan", replan_step)):
        flow.add_node(name, node)
    flow.add_edge(START, "planner").add_edge("planner", "agent").add_edge("agent", "replan")
    flow.add_conditional_edges("replan", lambda s: END if s.get("response") else "agent")
    async for _ in flow.compile().astream({"input": question}, config):
        pass


@turn("Is a refund paid in cash?", (REFUND,), "No, to your card.")
def query_or_respond_tools_generate(config: Config, question: str, answer: str) -> None:
    """LangGraph tutorial: conversational RAG graph, query_or_respond, tools, generate."""
    vector_store = store(REFUND, MEALS, VISA)

    @tool(response_format="content_and_artifact")
    def retrieve(query: str) -> tuple[str, list[Document]]:
        """Retrieve information related to a query."""
        docs = vector_store.similarity_search(query, k=1)
        return f"Source: {docs[0].metadata}\nContent: {docs[0].page_content}", docs

    llm = model(call("retrieve", query="refunds paid"), answer)

    def query_or_respond(state: Answered) -> dict[str, Any]:
        return {"messages": [llm.bind_tools([retrieve]).invoke(state["messages"])]}

    def generate(state: Answered) -> dict[str, Any]:
        recent = [m for m in state["messages"] if m.type == "tool"]
        system = SystemMessage("Answer by:\n\n" + "\n\n".join(text_of(m) for m in recent))
        talk = [m for m in state["messages"] if m.type == "human"]
        context = [d for m in recent for d in m.artifact]
        return {"messages": [llm.invoke([system, *talk])], "context": context}

    def needs_tools(state: Answered) -> str:
        return "tools" if state["messages"][-1].tool_calls else END

    graph = StateGraph(Answered).add_node(query_or_respond).add_node(generate)
    graph.add_node("tools", ToolNode([retrieve])).add_edge(START, "query_or_respond")
    graph.add_conditional_edges("query_or_respond", needs_tools, {END: END, "tools": "tools"})
    asked = {"messages": [{"role": "user", "content": question}]}
    running = graph.add_edge("tools", "generate").compile()
    for _ in running.stream(asked, config, stream_mode="values"):
        pass
