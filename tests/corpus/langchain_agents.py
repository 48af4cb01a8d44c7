"""Agents of `create_agent` with tools of many names, results and effects."""

import ast
import json
import operator

from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from langchain_core.tools import StructuredTool, create_retriever_tool, tool
from pydantic import BaseModel

from .kit import V1, Config, app, turn
from .langchain_kit import call, calls, create_agent, model, store

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
