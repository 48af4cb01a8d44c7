"""Agents of `create_agent` with tools of many names, results and effects."""

from __future__ import annotations

import ast
import json
import operator
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import StructuredTool, create_retriever_tool, tool
from pydantic import BaseModel

from .kit import SPANS, Config, Truth, app
from .langchain_kit import KeywordRetriever, call, calls, documents, model, store

V1 = ("langchain>=1",)

HOURS = "Support hours: the desk is staffed from 8 to 18 on working days, emergencies are taken at any time."
VPN = """VPN access

Install the client from the portal and sign in with your badge number.

If the client asks for a token, press the button on your key fob."""
PRINTER = "Printers on the second floor hold jobs for two hours; release them with your badge."


# --- a tool whose name says nothing about retrieval --------------------------------------------------


@app(
    Truth(
        question="The VPN wants a token. Where do I get one?",
        contexts=(VPN, HOURS),
        answer="Press the button on your key fob.",
    ),
    page="create_agent with a tool called `handbook` around a retriever",
    needs=V1,
)
def tool_called_handbook(config: Config) -> None:
    from langchain.agents import create_agent

    retriever = store(HOURS, VPN).as_retriever()

    @tool
    def handbook(topic: str) -> str:
        """The company's handbook."""
        return "\n\n".join(d.page_content for d in retriever.invoke(topic))

    llm = model(call("handbook", topic="VPN token"), "Press the button on your key fob.")
    create_agent(llm, [handbook], system_prompt="You are the IT desk.").invoke(
        {"messages": [HumanMessage("The VPN wants a token. Where do I get one?")]}, config
    )


@app(
    Truth(
        question="Can I print on two?",
        contexts=(PRINTER,),
        answer="Yes; release the job with your badge within two hours.",
    ),
    page="create_agent with a tool that searches a vector store, name without a hint, one document",
    needs=V1,
)
def tool_called_ask_company(config: Config) -> None:
    from langchain.agents import create_agent

    db = store(HOURS, VPN, PRINTER)

    @tool
    def ask_company(about: str) -> str:
        """Ask the company."""
        return db.similarity_search(about, k=1)[0].page_content

    llm = model(
        call("ask_company", about="printers floor badge"),
        "Yes; release the job with your badge within two hours.",
    )
    create_agent(llm, [ask_company]).invoke({"messages": [("user", "Can I print on two?")]}, config)


# --- what tools return ----------------------------------------------------------------------------------

KAYAK = "Kayaks: 14 euros an hour, deposit 50 euros, children only with an adult."
SUP = "Stand-up boards: 10 euros an hour, no deposit."
CANOE = "Canoes: 45 euros a day for three people, life vests included."


@app(
    Truth(
        question="What's a kayak and what's a board?",
        contexts=(SUP, KAYAK),
        answer="14 and 10 euros an hour.",
    ),
    page="create_agent with a search tool that returns a JSON text",
    needs=V1,
)
def search_tool_returning_json(config: Config) -> None:
    from langchain.agents import create_agent

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

    llm = model(call("search_price_list", query="kayaks boards"), "14 and 10 euros an hour.")
    create_agent(llm, [search_price_list]).invoke(
        {"messages": [{"role": "user", "content": "What's a kayak and what's a board?"}]}, config
    )


@app(
    Truth(
        question="Are life vests included with canoes?",
        contexts=(CANOE, KAYAK),
        answer="Yes, with canoes they are.",
    ),
    page="create_agent with a search tool that returns a list of dicts",
    needs=(*V1, "python>=3.11"),
)
async def search_tool_returning_dicts(config: Config) -> None:
    from langchain.agents import create_agent

    boats = KeywordRetriever(documents=documents(KAYAK, SUP, CANOE, source="boats.md"), k=2)

    @tool
    async def document_search(query: str) -> list[dict[str, Any]]:
        """Search documents."""
        found = await boats.ainvoke(query)
        return [{"content": d.page_content, "source": d.metadata["source"]} for d in found]

    llm = model(
        call("document_search", query="life vests included canoes, with an adult"),
        "Yes, with canoes they are.",
    )
    await create_agent(llm, [document_search]).ainvoke(
        {"messages": [("human", "Are life vests included with canoes?")]}, config
    )


@app(
    Truth(
        question="How much is a board?",
        contexts=(SUP, KAYAK),
        answer="10 euros an hour, without a deposit.",
    ),
    page="create_agent with a search tool that returns documents as they are",
    needs=V1,
)
def search_tool_returning_documents(config: Config) -> None:
    from langchain.agents import create_agent

    db = store(KAYAK, SUP, CANOE)

    def search(query: str) -> list[Document]:
        """Search the boat house's documents."""
        return db.similarity_search(query, k=2)

    find = StructuredTool.from_function(search)
    llm = model(call("search", query="boards deposit"), "10 euros an hour, without a deposit.")
    create_agent(llm, [find]).invoke({"messages": [("user", "How much is a board?")]}, config)


# --- other tools beside retrieval --------------------------------------------------------------------------


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


@app(
    Truth(
        question="What do three hours of kayak cost me, with deposit?",
        contexts=(KAYAK,),
        answer="92 euros, of which 50 come back.",
    ),
    page="create_agent with a retriever tool and a calculator",
    needs=V1,
)
def retriever_and_calculator(config: Config) -> None:
    from langchain.agents import create_agent

    prices = create_retriever_tool(
        store(KAYAK, SUP, CANOE).as_retriever(search_kwargs={"k": 1}),
        "price_list",
        "Prices of all boats.",
    )
    llm = model(
        call("price_list", query="kayaks hour deposit"),
        call("calculator", expression="3 * 14 + 50"),
        "92 euros, of which 50 come back.",
    )
    create_agent(llm, [prices, calculator]).invoke(
        {"messages": [("user", "What do three hours of kayak cost me, with deposit?")]}, config
    )


@app(page="create_agent with a calculator only", needs=V1)
def calculator_only(config: Config) -> None:
    from langchain.agents import create_agent

    llm = model(call("calculator", expression="17 * 23"), "It is 391.")
    create_agent(llm, [calculator]).invoke({"messages": [("user", "17 times 23?")]}, config)


@app(page="LangChain quickstart: an agent with a weather tool", needs=V1)
def weather_agent(config: Config) -> None:
    from langchain.agents import create_agent

    def get_weather(city: str) -> str:
        """Get weather for a given city."""
        return f"It's always sunny in {city}!"

    llm = model(call("get_weather", city="Lisbon"), "Sunny, as always.")
    create_agent(llm, [get_weather], system_prompt="You are a helpful assistant").invoke(
        {"messages": [{"role": "user", "content": "what is the weather in Lisbon"}]}, config
    )


STOCK_NOTE = "Reorder note: when fewer than 20 cartons of paper are left, order 60 from Hellmann."


@app(
    Truth(
        question="Do we need to order paper?",
        contexts=(STOCK_NOTE,),
        answer="Yes: 12 cartons are left, so order 60 from Hellmann.",
        also=({"contexts": ("[{'item': 'paper', 'cartons': 12}]", STOCK_NOTE)},),
    ),
    page="create_agent with an SQL tool and a retriever tool called in parallel",
    needs=V1,
)
def sql_and_retriever_in_parallel(config: Config) -> None:
    from langchain.agents import create_agent

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
        "Yes: 12 cartons are left, so order 60 from Hellmann.",
    )
    agent = create_agent(llm, tools=[run_sql, notes])
    for _ in agent.stream(
        {"messages": [("user", "Do we need to order paper?")]},
        config,
        stream_mode=["updates", "messages"],
    ):
        pass


@app(page="create_agent with an SQL tool only", needs=V1)
def sql_agent(config: Config) -> None:
    from langchain.agents import create_agent

    @tool
    def sql_db_query(query: str) -> str:
        """Execute a query against the database and get back the result."""
        return "[('Rock', 130), ('Jazz', 41)]"

    @tool
    def sql_db_schema(table_names: str) -> str:
        """Return the schema of tables."""
        return "CREATE TABLE genre (name TEXT, tracks INTEGER)"

    llm = model(
        call("sql_db_schema", table_names="genre"),
        call("sql_db_query", query="SELECT name, tracks FROM genre ORDER BY tracks DESC LIMIT 5"),
        "Rock has most tracks, 130.",
    )
    create_agent(llm, [sql_db_query, sql_db_schema]).invoke(
        {"messages": [("user", "Which genre has most tracks?")]}, config
    )


# --- several retrieval tools, and structured responses ----------------------------------------------------

TRAIL = "The gorge trail is closed after rain, since stones fall."
HUT = "The hut has 24 beds and opens in June; dogs sleep in the shed."
TICKET = "A day ticket for the lift costs 31 euros, 19 with a guest card."


@app(
    Truth(
        question="We have a dog. Hut and lift: what should we know?",
        contexts=(HUT, TICKET),
        answer="Dogs sleep in the shed, and the lift is 31 euros a day.",
    ),
    page="create_agent with two retriever tools called one after the other",
    needs=(*V1, "python>=3.11"),
)
async def two_retriever_tools(config: Config) -> None:
    from langchain.agents import create_agent

    huts = create_retriever_tool(
        store(HUT, TRAIL).as_retriever(search_kwargs={"k": 1}), "hut_guide", "On huts and trails."
    )
    lifts = create_retriever_tool(
        store(TICKET).as_retriever(), "lift_guide", "On lifts and tickets."
    )
    llm = model(
        call("hut_guide", query="hut beds dogs"),
        call("lift_guide", query="day ticket lift"),
        "Dogs sleep in the shed, and the lift is 31 euros a day.",
    )
    agent = create_agent(llm, [huts, lifts])
    question = "We have a dog. Hut and lift: what should we know?"
    async for _ in agent.astream({"messages": [("user", question)]}, config):
        pass


class Advice(BaseModel):
    """What to tell the guest."""

    answer: str
    price: float


@app(
    Truth(
        question="How much is the lift with a guest card?",
        contexts=(TICKET,),
        answer="19 euros with a guest card.",
        also=({"answer": '{"answer": "19 euros with a guest card.", "price": 19.0}'},),
    ),
    page="Structured output: create_agent with `response_format` and a retriever tool",
    needs=V1,
)
def agent_with_response_format(config: Config) -> None:
    from langchain.agents import create_agent

    lifts = create_retriever_tool(store(TICKET).as_retriever(), "search_tickets", "On tickets.")
    llm = model(
        call("search_tickets", query="day ticket lift guest card"),
        call("Advice", answer="19 euros with a guest card.", price=19.0),
    )
    agent = create_agent(llm, [lifts], response_format=Advice)
    result = agent.invoke(
        {"messages": [HumanMessage("How much is the lift with a guest card?")]}, config
    )
    assert result["structured_response"].price == 19.0


# --- middleware -----------------------------------------------------------------------------------------------


@app(
    Truth(
        question="My mail is ana@example.org. Is the gorge open after rain?",
        contexts=(TRAIL,),
        answer="No, it is closed after rain.",
        also=({"question": "My mail is [REDACTED_EMAIL]. Is the gorge open after rain?"},),
    ),
    page="Built-in middleware: PIIMiddleware and ToolCallLimitMiddleware around a retriever tool",
    needs=V1,
)
def agent_with_builtin_middleware(config: Config) -> None:
    from langchain.agents import create_agent
    from langchain.agents.middleware import PIIMiddleware, ToolCallLimitMiddleware

    trails = create_retriever_tool(store(TRAIL).as_retriever(), "trails", "State of the trails.")
    llm = model(call("trails", query="gorge rain"), "No, it is closed after rain.")
    agent = create_agent(
        llm,
        [trails],
        middleware=[PIIMiddleware("email"), ToolCallLimitMiddleware(run_limit=3)],
    )
    question = "My mail is ana@example.org. Is the gorge open after rain?"
    agent.invoke({"messages": [("user", question)]}, config)


@app(
    Truth(
        question="Is the shed for dogs only?",
        contexts=(HUT,),
        answer="Yes, people have 24 beds in the hut.",
    ),
    page="Custom middleware: `wrap_model_call` that puts found documents in the system message",
    not_on_spans=SPANS,
    needs=V1,
)
def agent_with_wrap_model_call(config: Config) -> None:
    from langchain.agents import create_agent
    from langchain.agents.middleware import wrap_model_call

    db = store(HUT, TRAIL)

    @wrap_model_call
    def with_guide(request: Any, handler: Any) -> Any:
        found = db.similarity_search(request.messages[-1].text, k=1)
        guide = "\n".join(f"* {d.page_content}" for d in found)
        return handler(request.override(system_message=SystemMessage(f"Guide:\n{guide}")))

    agent = create_agent(
        model("Yes, people have 24 beds in the hut."), tools=[], middleware=[with_guide]
    )
    agent.invoke({"messages": [("user", "Is the shed for dogs only?")]}, config)
