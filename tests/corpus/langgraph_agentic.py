"""LangGraph's agentic RAG: the model decides whether to retrieve, a grader how to go on."""

from typing import Any, Literal

from langchain_core.messages import HumanMessage
from langchain_core.tools import create_retriever_tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import BaseModel, Field

from .kit import Config, app, turn
from .langchain_kit import call, model, store, text_of

HACKING = (
    "Reward hacking happens when an agent exploits flaws in the reward function to get high rewards "
    "without learning the intended task."
)
TYPES = (
    "Reward hacking can be sorted into two types: environment or goal misspecification, and reward "
    "tampering, where the agent interferes with the reward mechanism itself."
)
VIDEO = "Video generation adds temporal consistency to the demands on a model of images."
HALLUCINATION = "Hallucination is output that is fabricated and not grounded in context or facts."


class GradeDocuments(BaseModel):
    """Grade documents using a binary score for relevance."""

    binary_score: str = Field(description="'yes' if relevant, or 'no' if not")


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
        prompt = (
            f"Look at the intent of this question and improve it: {text_of(state['messages'][0])}"
        )
        return {"messages": [HumanMessage(text_of(llm.invoke([("user", prompt)])))]}

    def generate_answer(state: MessagesState) -> dict[str, Any]:
        question, context = text_of(state["messages"][0]), text_of(state["messages"][-1])
        prompt = f"Answer the question by the context.\nQuestion: {question}\nContext: {context}"
        return {"messages": [llm.invoke([{"role": "user", "content": prompt}])]}

    workflow = StateGraph(MessagesState)
    workflow.add_node(generate_query_or_respond)
    workflow.add_node("retrieve", ToolNode([retriever_tool]))
    workflow.add_node(rewrite_question)
    workflow.add_node(generate_answer)
    workflow.add_edge(START, "generate_query_or_respond")
    workflow.add_conditional_edges(
        "generate_query_or_respond", tools_condition, {"tools": "retrieve", END: END}
    )
    workflow.add_conditional_edges("retrieve", grade_documents)
    workflow.add_edge("generate_answer", END)
    workflow.add_edge("rewrite_question", "generate_query_or_respond")
    return workflow.compile()


def blog_tool() -> Any:
    return create_retriever_tool(
        store(HACKING, TYPES, VIDEO, HALLUCINATION).as_retriever(search_kwargs={"k": 2}),
        "retrieve_blog_posts",
        "Search and return information about the blog's posts.",
    )


ASK_TYPES = "What does the blog say about types of reward hacking?"
TWO_TYPES = "It names two: misspecification of the environment or goal, and reward tampering."


@turn(ASK_TYPES, (TYPES, HACKING), TWO_TYPES)
def agentic_rag_graph(config: Config, question: str, answer: str) -> None:
    """LangGraph tutorial: agentic RAG, documents graded as relevant."""
    llm = model(
        call("retrieve_blog_posts", query="types of reward hacking"),
        {"binary_score": "yes"},
        answer,
    )
    graph = agentic_graph(llm, blog_tool())
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
