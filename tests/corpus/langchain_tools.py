"""Retrieval tools in the forms that the tool pages show, and vector stores searched directly."""

from typing import Annotated, Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.tools import InjectedToolCallId, StructuredTool, create_retriever_tool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent
from langgraph.types import Command

from .kit import SPANS, V1, Config, app, turn
from .langchain_kit import Words, call, calls, create_agent, model, store, text_of

MILL = """The mill

Built in 1764 and moved here stone by stone in 1987. The wheel turns on Sundays at three.

Visitors may help to grind; bring a bag for the flour."""
FORGE = """The forge

The smith works from May to September. Nails can be made by children from eight years on.

Sparks fly: no synthetic clothes."""
INN = """The inn

Soup, bread and cider. The room upstairs can be rented for 40 people."""
MUSEUM = (MILL, FORGE, INN)


@turn("Can we rent a room for 30?", (INN,), "Yes, the one upstairs at the inn holds 40.")
def retriever_as_tool(config: Config, question: str, answer: str) -> None:
    """How to convert runnables to tools: `retriever.as_tool()`."""
    rooms = (
        store(*MUSEUM)
        .as_retriever(search_kwargs={"k": 1})
        .as_tool(name="rooms", description="On rooms and buildings.")
    )
    llm = model(calls(("rooms", {"__arg1": "room rented people"})), answer)
    agent = create_react_agent(llm, [rooms])
    agent.invoke({"messages": [("user", question)]}, config)


@turn("What should I wear at the forge?", (FORGE, MILL), "Nothing synthetic.", needs=V1)
def tool_with_text_blocks(config: Config, question: str, answer: str) -> None:
    """Tools of a server by MCP: a result of several text blocks."""
    db = store(*MUSEUM)

    def search_docs(query: str) -> tuple[list[dict[str, str]], None]:
        """Search the museum's documents."""
        found = db.similarity_search(query, k=2)
        return [{"type": "text", "text": d.page_content} for d in found], None

    remote = StructuredTool.from_function(search_docs, response_format="content_and_artifact")
    llm = model(call("search_docs", query="forge clothes sparks"), answer)
    create_agent(llm, [remote]).invoke({"messages": [("user", question)]}, config)


@turn("What is there to eat?", (INN,), "Soup and bread, and cider with it.", needs=V1)
def tool_returning_a_command(config: Config, question: str, answer: str) -> None:
    """A tool that returns a ToolMessage of its own, inside a Command that updates the state."""
    db = store(*MUSEUM)

    @tool
    def look_around(wish: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Look for places that suit a wish."""
        docs = db.similarity_search(wish, k=1)
        message = ToolMessage(docs[0].page_content, artifact=docs, tool_call_id=tool_call_id)
        return Command(update={"messages": [message]})

    llm = model(call("look_around", wish="soup, bread"), answer)
    create_agent(llm, [look_around]).invoke({"messages": [("user", question)]}, config)


@turn("When was the mill moved?", (MILL,), "In 1987, stone by stone.", needs=V1)
def approval_before_the_search(config: Config, question: str, answer: str) -> None:
    """Human in the loop middleware: the retrieval tool needs an approval."""
    from langchain.agents.middleware import HumanInTheLoopMiddleware

    archive = create_retriever_tool(
        store(*MUSEUM).as_retriever(search_kwargs={"k": 1}), "search_archive", "The archive."
    )
    llm = model(call("search_archive", query="mill moved 1987"), answer)
    agent = create_agent(
        llm,
        [archive],
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"search_archive": True})],
        checkpointer=InMemorySaver(),
    )
    thread = {**config, "configurable": {"thread_id": "m-1"}}
    agent.invoke({"messages": [HumanMessage(question)]}, thread)
    agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), thread)


@turn("May I help to grind?", (MILL,), "Yes, and bring a bag for the flour.", needs=V1)
def reply_with_reasoning(config: Config, question: str, answer: str) -> None:
    """A reply of several content blocks: reasoning, then text."""
    leaflets = create_retriever_tool(
        store(*MUSEUM).as_retriever(search_kwargs={"k": 1}), "find_leaflet", "Leaflets."
    )
    thoughtful = AIMessage(
        content=[
            {"type": "reasoning", "reasoning": "The leaflet on the mill says so."},
            {"type": "text", "text": answer},
        ]
    )
    llm = model(call("find_leaflet", query="help grind flour"), thoughtful)
    create_agent(llm, [leaflets]).invoke({"messages": [HumanMessage(question)]}, config)


@turn(
    "Is there a dragon?",
    (),
    "The leaflets say nothing of one.",
    also=({"contexts": ("No documents found.",)},),
    needs=V1,
)
def tool_finds_nothing(config: Config, question: str, answer: str) -> None:
    """A retrieval tool that says that it has found nothing."""
    retriever = store(*MUSEUM).as_retriever(
        search_kwargs={"filter": lambda d: "dragon" in d.page_content}
    )

    @tool
    def search_leaflets(query: str) -> str:
        """Search the leaflets."""
        found = retriever.invoke(query)
        return "\n\n".join(d.page_content for d in found) or "No documents found."

    llm = model(call("search_leaflets", query="dragon"), answer)
    create_agent(llm, [search_leaflets]).invoke({"messages": [HumanMessage(question)]}, config)


def guide(llm: Any) -> Any:
    return (
        ChatPromptTemplate.from_template("Leaflets:\n{leaflets}\n\nGuest: {guest}")
        | llm
        | StrOutputParser()
    )


@turn("Does the smith work in May?", (FORGE,), "From May on.", not_on_spans=SPANS)
async def asynchronous_similarity_search(config: Config, question: str, answer: str) -> None:
    """Vector stores: `asimilarity_search` in an asynchronous chain."""
    db = store(*MUSEUM)

    async def look(guest: str) -> dict[str, str]:
        found = await db.asimilarity_search(guest, k=1)
        return {"leaflets": found[0].page_content, "guest": guest}

    await (RunnableLambda(look) | guide(model(answer))).ainvoke(question, config)


@turn(
    "Who moved the mill stone by stone?",
    (MILL,),
    "That is not said, only when.",
    not_on_spans=SPANS,
)
def search_by_vector(config: Config, question: str, answer: str) -> None:
    """Vector stores: `similarity_search_by_vector` with an embedding of one's own."""
    db, embeddings = store(*MUSEUM), Words()

    def look(inputs: dict[str, str]) -> str:
        vector = embeddings.embed_query(inputs["guest"])
        return "\n".join(d.page_content for d in db.similarity_search_by_vector(vector, k=1))

    whole = RunnablePassthrough.assign(leaflets=look) | guide(model(answer))
    whole.invoke({"guest": question}, config)


@turn("Where are sparks?", (FORGE, INN), "At the forge.")
def marginal_relevance_in_a_tool(config: Config, question: str, answer: str) -> None:
    """Vector stores: `max_marginal_relevance_search` in a tool with an artifact."""
    db = store(FORGE, INN)

    @tool(response_format="content_and_artifact")
    def find_places(text: str) -> tuple[str, list[Document]]:
        """Find places."""
        docs = db.max_marginal_relevance_search(text, k=2, fetch_k=2)
        return "\n".join(f"{i}) {d.page_content}" for i, d in enumerate(docs, 1)), docs

    llm = model(call("find_places", text="sparks forge"), answer)
    create_react_agent(llm, [find_places]).invoke({"messages": [HumanMessage(question)]}, config)


@app(needs=V1)
def code_and_clock_agent(config: Config) -> None:
    """An agent that runs code and reads a clock."""

    @tool
    def python_repl(code: str) -> str:
        """Run Python code."""
        return "[1, 1, 2, 3, 5, 8]"

    @tool
    def current_time() -> str:
        """Return the time."""
        return "2026-05-04T09:30:00"

    llm = model(
        calls(("python_repl", {"code": "print(fib(6))"}), ("current_time", {})),
        "1, 1, 2, 3, 5, 8; it is half past nine.",
    )
    result = create_agent(llm, [python_repl, current_time]).invoke(
        {"messages": [HumanMessage("Six Fibonacci numbers, and the time?")]}, config
    )
    assert text_of(result["messages"][-1])


@turn(
    "Is the museum open on Monday, and what does the mill do on Sundays?",
    (MILL,),
    "Closed on Mondays; on Sundays the wheel turns at three.",
    also=({"contexts": ('{"monday": "closed"}', MILL)},),
    needs=V1,
)
def opening_hours_beside_retrieval(config: Config, question: str, answer: str) -> None:
    """A retrieval tool beside one that reads opening hours from an API."""

    @tool
    def get_opening_hours(day: str) -> str:
        """Return opening hours."""
        return '{"monday": "closed"}'

    leaflets = create_retriever_tool(
        store(*MUSEUM).as_retriever(search_kwargs={"k": 1}), "search_leaflets", "Leaflets."
    )
    llm = model(
        call("get_opening_hours", day="monday"),
        call("search_leaflets", query="mill wheel Sundays"),
        answer,
    )
    create_agent(llm, [get_opening_hours, leaflets]).invoke(
        {"messages": [HumanMessage(question)]}, config
    )
