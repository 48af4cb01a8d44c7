"""Agents of `create_agent`, and the tools that they search with."""

import ast
import json
import operator
from typing import Annotated, Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.tools import InjectedToolCallId, StructuredTool, create_retriever_tool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent
from langgraph.types import Command
from pydantic import BaseModel

from .kit import SPANS, V1, Config, app, turn
from .langchain_kit import Words, call, calls, create_agent, lcel, model, store, text_of

KAYAK = "Kayaks: 14 euros an hour, deposit 50 euros, children only with an adult."
SUP = "Stand-up boards: 10 euros an hour, no deposit."
CANOE = "Canoes: 45 euros a day for three people, life vests included."


@turn("What's a kayak and what's a board?", (SUP, KAYAK), "14 and 10 euros an hour.", needs=V1)
def search_tool_returning_json(config: Config, question: str, answer: str) -> None:
    """create_agent with a search tool that returns a JSON text."""
    boats = store(
        *[
            Document(t, metadata={"title": t.partition(":")[0], "page": i})
            for i, t in enumerate((KAYAK, SUP, CANOE))
        ]
    )

    @tool
    def search_price_list(query: str, limit: int = 2) -> str:
        """Search the price list."""
        hits = boats.similarity_search_with_score(query, k=limit)
        return json.dumps(
            {
                "results": [
                    {"title": d.metadata["title"], "text": d.page_content, "score": round(s, 2)}
                    for d, s in hits
                ],
                "total": len(hits),
            }
        )

    llm = model(call("search_price_list", query="kayaks boards"), answer)
    create_agent(llm, [search_price_list]).invoke(
        {"messages": [{"role": "user", "content": question}]}, config
    )


@turn("How much is a board?", (SUP, KAYAK), "10 euros an hour, without a deposit.", needs=V1)
def search_tool_returning_documents(config: Config, question: str, answer: str) -> None:
    """create_agent with a search tool that returns documents as they are."""
    db = store(KAYAK, SUP, CANOE)

    def search(query: str) -> list[Document]:
        """Search the boat house's documents."""
        return db.similarity_search(query, k=2)

    find = StructuredTool.from_function(search)
    llm = model(call("search", query="boards deposit"), answer)
    create_agent(llm, [find]).invoke({"messages": [("user", question)]}, config)


@tool
def calculator(expression: str) -> str:
    """Compute an expression such as `3 * 14`."""
    known = {ast.Mult: operator.mul, ast.Add: operator.add, ast.Sub: operator.sub}

    def value(node: ast.AST) -> float:
        if isinstance(node, ast.BinOp):
            return known[type(node.op)](value(node.left), value(node.right))
        assert isinstance(node, ast.Constant)
        return node.value

    return str(value(ast.parse(expression, mode="eval").body))


@app(needs=V1)
def calculator_only(config: Config) -> None:
    """create_agent with a calculator only."""
    llm = model(call("calculator", expression="17 * 23"), "It is 391.")
    create_agent(llm, [calculator]).invoke({"messages": [("user", "17 times 23?")]}, config)


STOCK_NOTE = "Reorder note: when fewer than 20 cartons of paper are left, order 60 from Hellmann."


@turn(
    "Do we need to order paper?",
    (STOCK_NOTE,),
    "Yes: 12 cartons are left, so order 60 from Hellmann.",
    also=({"contexts": ("[{'item': 'paper', 'cartons': 12}]", STOCK_NOTE)},),
    needs=V1,
)
def sql_and_retriever_in_parallel(config: Config, question: str, answer: str) -> None:
    """create_agent with an SQL tool and a retriever tool called in parallel."""

    @tool
    def run_sql(statement: str) -> str:
        """Run an SQL statement against the warehouse's database."""
        return str([{"item": "paper", "cartons": 12}])

    notes = create_retriever_tool(
        store(STOCK_NOTE).as_retriever(), "search_notes", "Search the storekeeper's notes."
    )
    llm = model(
        calls(
            ("run_sql", {"statement": "SELECT item, cartons FROM stock WHERE item = 'paper'"}),
            ("search_notes", {"query": "reorder paper cartons"}),
            text="I'll look at the stock and at the notes.",
        ),
        answer,
    )
    agent = create_agent(llm, tools=[run_sql, notes])
    for _ in agent.stream(
        {"messages": [("user", question)]}, config, stream_mode=["updates", "messages"]
    ):
        pass


TRAIL = "The gorge trail is closed after rain, since stones fall."
TICKET = "A day ticket for the lift costs 31 euros, 19 with a guest card."


class Advice(BaseModel):
    """What to tell the guest."""

    answer: str
    price: float


@turn(
    "How much is the lift with a guest card?",
    (TICKET,),
    "19 euros with a guest card.",
    also=({"answer": '{"answer": "19 euros with a guest card.", "price": 19.0}'},),
    needs=V1,
)
def agent_with_response_format(config: Config, question: str, answer: str) -> None:
    """Structured output: create_agent with `response_format` and a retriever tool."""
    lifts = create_retriever_tool(store(TICKET).as_retriever(), "search_tickets", "On tickets.")
    llm = model(
        call("search_tickets", query="day ticket lift guest card"),
        call("Advice", answer=answer, price=19.0),
    )
    agent = create_agent(llm, [lifts], response_format=Advice)
    result = agent.invoke({"messages": [HumanMessage(question)]}, config)
    assert result["structured_response"].price == 19.0


@turn(
    "My mail is ana@example.org. Is the gorge open after rain?",
    (TRAIL,),
    "No, it is closed after rain.",
    also=({"question": "My mail is [REDACTED_EMAIL]. Is the gorge open after rain?"},),
    needs=V1,
)
def agent_with_builtin_middleware(config: Config, question: str, answer: str) -> None:
    """Built-in middleware: PIIMiddleware and ToolCallLimitMiddleware around a retriever tool."""
    from langchain.agents.middleware import PIIMiddleware, ToolCallLimitMiddleware

    trails = create_retriever_tool(store(TRAIL).as_retriever(), "trails", "State of the trails.")
    llm = model(call("trails", query="gorge rain"), answer)
    agent = create_agent(
        llm, [trails], middleware=[PIIMiddleware("email"), ToolCallLimitMiddleware(run_limit=3)]
    )
    agent.invoke({"messages": [("user", question)]}, config)


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
    return lcel("Leaflets:\n{leaflets}\n\nGuest: {guest}", llm)


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
