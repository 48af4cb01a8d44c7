"""Tool-calling agents."""

from langchain_core.messages import HumanMessage
from langchain_core.tools import create_retriever_tool, tool

from . import company
from .app import Handlers, Truth, app, config
from .company import FOUNDER, HISTORY, PRODUCTS
from .compat import make_agent
from .fakes import KeywordRetriever, ScriptedChat
from .parts import rag
from .replies import calling

HANDBOOK = Truth(
    question=company.HANDBOOK,
    contexts=(HISTORY, FOUNDER, PRODUCTS),
    answer="A company of 1987 with kites, refunds and repairs. [History; Founder; Products]",
)


@app(HANDBOOK)
def agent_retriever_tools(callbacks: Handlers) -> object:
    """The agent searches twice; one page is found by both searches."""
    search = create_retriever_tool(KeywordRetriever(), "search_handbook", "Search the handbook.")
    script = calling("search_handbook", {"query": company.FOUNDED}, {"query": company.TOWING})
    agent = make_agent(ScriptedChat(reply=script), [search])
    return agent.invoke({"messages": [HumanMessage(company.HANDBOOK)]}, config(callbacks))


@app(HANDBOOK)
def rag_as_tool(callbacks: Handlers) -> object:
    """The tool is itself a RAG chain; its turns are steps of the agent's one, not samples.

    The pages are in the prompts of the inner chain, whose answers are in the agent's prompt.
    """

    @tool
    def ask_handbook(question: str) -> str:
        """Ask the handbook."""
        return rag(KeywordRetriever()).invoke(question)

    script = calling("ask_handbook", {"question": company.FOUNDED}, {"question": company.TOWING})
    agent = make_agent(ScriptedChat(reply=script), [ask_handbook])
    return agent.invoke({"messages": [HumanMessage(company.HANDBOOK)]}, config(callbacks))


@app()
def agent_non_rag(callbacks: Handlers) -> object:
    """The agent calls a tool that retrieves nothing."""

    @tool
    def plus(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    agent = make_agent(ScriptedChat(reply=calling("plus", {"a": 1987, "b": 45})), [plus])
    return agent.invoke({"messages": [HumanMessage(company.SUM)]}, config(callbacks))
