"""Agents of `create_agent`, and the tools that they search with."""

import ast
import json
import operator
from functools import partial
from typing import Annotated, Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent
from langgraph.types import Command
from pydantic import BaseModel

from . import kit
from .kit import V1, Config, app
from .langchain_kit import (
    ask_agent,
    call,
    calls,
    create_agent,
    joined,
    lcel,
    model,
    retriever,
    search_tool,
    store,
)

turn = partial(kit.turn, needs=V1)
KAYAK = "Kayaks: 14 euros an hour, deposit 50 euros, children only with an adult."
SUP = "Stand-up boards: 10 euros an hour, no deposit."
CANOE = "Canoes: 45 euros a day for three people, life vests included."


@turn("What's a kayak and what's a board?", (SUP, KAYAK), "14 and 10 euros an hour.")
def search_tool_returning_json(config: Config, question: str, answer: str) -> None:
    """create_agent with a search tool that returns a JSON text."""
    prices = (KAYAK, SUP, CANOE)
    boats = store(*(Document(t, metadata={"title": t.partition(":")[0]}) for t in prices))

    @tool
    def search_price_list(query: str, limit: int = 2) -> str:
        """Search the price list."""
        hits = boats.similarity_search_with_score(query, k=limit)
        found = [{**d.metadata, "text": d.page_content, "score": round(s, 2)} for d, s in hits]
        return json.dumps({"results": found, "total": len(hits)})

    search = call("search_price_list", query="kayaks boards")
    ask_agent(config, question, [search_price_list], search, answer)


@turn("How much is a board?", (SUP, KAYAK), "10 euros an hour, without a deposit.")
def search_tool_returning_documents(config: Config, question: str, answer: str) -> None:
    """create_agent with a search tool that returns documents as they are."""
    db = store(KAYAK, SUP, CANOE)

    def search(query: str) -> list[Document]:
        """Search the boat house's documents."""
        return db.similarity_search(query, k=2)

    find = StructuredTool.from_function(search)
    ask_agent(config, question, [find], call("search", query="boards deposit"), answer)


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
    product = call("calculator", expression="17 * 23")
    ask_agent(config, "17 times 23?", [calculator], product, "It is 391.")


STOCK_NOTE = "Reorder note: when fewer than 20 cartons of paper are left, order 60 from Hellmann."


@turn(
    "Do we need to order paper?",
    (STOCK_NOTE,),
    "Yes: 12 cartons are left, so order 60 from Hellmann.",
    also=({"contexts": ("[{'item': 'paper', 'cartons': 12}]", STOCK_NOTE)},),
)
def sql_and_retriever_in_parallel(config: Config, question: str, answer: str) -> None:
    """create_agent with an SQL tool and a retriever tool called in parallel."""

    @tool
    def run_sql(statement: str) -> str:
        """Run an SQL statement against the warehouse's database."""
        return str([{"item": "paper", "cartons": 12}])

    both = calls(
        ("run_sql", {"statement": "SELECT item, cartons FROM stock WHERE item = 'paper'"}),
        ("search_notes", {"query": "reorder paper cartons"}),
        text="I'll look at the stock and at the notes.",
    )
    agent = create_agent(model(both, answer), [run_sql, search_tool("search_notes", STOCK_NOTE)])
    asked = {"messages": [("user", question)]}
    for _ in agent.stream(asked, config, stream_mode=["updates", "messages"]):
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
)
def agent_with_response_format(config: Config, question: str, answer: str) -> None:
    """Structured output: create_agent with `response_format` and a retriever tool."""
    search = call("search_tickets", query="day ticket lift guest card")
    advice = call("Advice", answer=answer, price=19.0)
    tools = [search_tool("search_tickets", TICKET)]
    result = ask_agent(config, question, tools, search, advice, response_format=Advice)
    assert result["structured_response"].price == 19.0


@turn(
    "My mail is ana@example.org. Is the gorge open after rain?",
    (TRAIL,),
    "No, it is closed after rain.",
    also=({"question": "My mail is [REDACTED_EMAIL]. Is the gorge open after rain?"},),
)
def agent_with_builtin_middleware(config: Config, question: str, answer: str) -> None:
    """Built-in middleware: PIIMiddleware and ToolCallLimitMiddleware around a retriever tool."""
    from langchain.agents.middleware import PIIMiddleware, ToolCallLimitMiddleware

    tools, middleware = [search_tool("trails", TRAIL)], [PIIMiddleware("email")]
    middleware.append(ToolCallLimitMiddleware(run_limit=3))
    search = call("trails", query="gorge rain")
    ask_agent(config, question, tools, search, answer, middleware=middleware)


MILL = """The mill

Built in 1764 and moved here stone by stone in 1987. The wheel turns on Sundays at three.

Visitors may help to grind; bring a bag for the flour."""
FORGE = """The forge

The smith works from May to September. Nails can be made by children from eight years on.

Sparks fly: no synthetic clothes."""
INN = """The inn

Soup, bread and cider. The room upstairs can be rented for 40 people."""
MUSEUM = (MILL, FORGE, INN)


@kit.turn("Can we rent a room for 30?", (INN,), "Yes, the one upstairs at the inn holds 40.")
def retriever_as_tool(config: Config, question: str, answer: str) -> None:
    """How to convert runnables to tools: `retriever.as_tool()`."""
    rooms = retriever(*MUSEUM, k=1).as_tool(name="rooms", description="On rooms and buildings.")
    llm = model(calls(("rooms", {"__arg1": "room rented people"})), answer)
    create_react_agent(llm, [rooms]).invoke({"messages": [("user", question)]}, config)


@turn("What should I wear at the forge?", (FORGE, MILL), "Nothing synthetic.")
def tool_with_text_blocks(config: Config, question: str, answer: str) -> None:
    """Tools of a server by MCP: a result of several text blocks."""
    db = store(*MUSEUM)

    def search_docs(query: str) -> tuple[list[dict[str, str]], None]:
        """Search the museum's documents."""
        found = db.similarity_search(query, k=2)
        return [{"type": "text", "text": d.page_content} for d in found], None

    remote = StructuredTool.from_function(search_docs, response_format="content_and_artifact")
    ask_agent(config, question, [remote], call("search_docs", query="forge clothes sparks"), answer)


@turn("What is there to eat?", (INN,), "Soup and bread, and cider with it.")
def tool_returning_a_command(config: Config, question: str, answer: str) -> None:
    """A tool that returns a ToolMessage of its own, inside a Command that updates the state."""
    db = store(*MUSEUM)

    @tool
    def look_around(wish: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Look for places that suit a wish."""
        docs = db.similarity_search(wish, k=1)
        message = ToolMessage(docs[0].page_content, artifact=docs, tool_call_id=tool_call_id)
        return Command(update={"messages": [message]})

    ask_agent(config, question, [look_around], call("look_around", wish="soup, bread"), answer)


@turn("When was the mill moved?", (MILL,), "In 1987, stone by stone.")
def approval_before_the_search(config: Config, question: str, answer: str) -> None:
    """Human in the loop middleware: the retrieval tool needs an approval."""
    from langchain.agents.middleware import HumanInTheLoopMiddleware

    agent = create_agent(
        model(call("search_archive", query="mill moved 1987"), answer),
        [search_tool("search_archive", *MUSEUM, k=1)],
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"search_archive": True})],
        checkpointer=InMemorySaver(),
    )
    thread = {**config, "configurable": {"thread_id": "m-1"}}
    agent.invoke({"messages": [HumanMessage(question)]}, thread)
    agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), thread)


@turn("May I help to grind?", (MILL,), "Yes, and bring a bag for the flour.")
def reply_with_reasoning(config: Config, question: str, answer: str) -> None:
    """A reply of several content blocks: reasoning, then text."""
    thought = {"type": "reasoning", "reasoning": "The leaflet on the mill says so."}
    thoughtful = AIMessage([thought, {"type": "text", "text": answer}])
    search = call("find_leaflet", query="help grind flour")
    ask_agent(config, question, [search_tool("find_leaflet", *MUSEUM, k=1)], search, thoughtful)


@turn(
    "Is there a dragon?",
    (),
    "The leaflets say nothing of one.",
    also=({"contexts": ("No documents found.",)},),
)
def tool_finds_nothing(config: Config, question: str, answer: str) -> None:
    """A retrieval tool that says that it has found nothing."""
    of_dragons = {"filter": lambda d: "dragon" in d.page_content}
    leaflets = store(*MUSEUM).as_retriever(search_kwargs=of_dragons)

    @tool
    def search_leaflets(query: str) -> str:
        """Search the leaflets."""
        return joined(leaflets.invoke(query)) or "No documents found."

    ask_agent(config, question, [search_leaflets], call("search_leaflets", query="dragon"), answer)


def guide(llm: Any) -> Any:
    return lcel("Leaflets:\n{leaflets}\n\nGuest: {guest}", llm)


@kit.turn("Where are sparks?", (FORGE, INN), "At the forge.")
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

    both = calls(("python_repl", {"code": "print(fib(6))"}), ("current_time", {}))
    told = "1, 1, 2, 3, 5, 8; it is half past nine."
    ask_agent(
        config, "Six Fibonacci numbers, and the time?", [python_repl, current_time], both, told
    )


@turn(
    "Is the museum open on Monday, and what does the mill do on Sundays?",
    (MILL,),
    "Closed on Mondays; on Sundays the wheel turns at three.",
    also=({"contexts": ('{"monday": "closed"}', MILL)},),
)
def opening_hours_beside_retrieval(config: Config, question: str, answer: str) -> None:
    """A retrieval tool beside one that reads opening hours from an API."""

    @tool
    def get_opening_hours(day: str) -> str:
        """Return opening hours."""
        return '{"monday": "closed"}'

    hours = call("get_opening_hours", day="monday")
    search = call("search_leaflets", query="mill wheel Sundays")
    tools = [get_opening_hours, search_tool("search_leaflets", *MUSEUM, k=1)]
    ask_agent(config, question, tools, hours, search, answer)
