"""Agents that search with tools, chat engines, and clients over HTTP."""

import json
from typing import Any

from llama_index.core.agent.workflow import AgentStream, FunctionAgent, ReActAgent
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.chat_engine import CondenseQuestionChatEngine, ContextChatEngine
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.tools import FunctionTool, QueryEngineTool, RetrieverTool, ToolMetadata
from llama_index.core.workflow import Context
from pydantic import BaseModel

from .kit import Config, Truth, app, turn
from .llamaindex_kit import ChatModel, CompletionModel, index
from .scripted import Call, openai_server

NATIVE = ("llamaindex_native",)
"""For `not_on_spans`: of a streamed reply it records the start of a `repr`, cut at 200 letters."""
REPORT = (
    "Revenue of Halden Paper rose to 212 million crowns in 2023, from 187 million in 2022.",
    "Halden Paper employed 640 people at the end of 2023.",
    "Halden Paper closed its mill in Moss in 2021.",
)
REVENUE = "Revenue in 2023 was 212 million crowns."


MORE = (
    "Halden Paper had a revenue of 212 million crowns in 2023, which is 25 million more than in"
    " the year before."
)


@turn(
    "What was the revenue of Halden Paper in 2023?",
    (REPORT[0], REPORT[1]),
    MORE,
    also=({"contexts": (REVENUE,)},),
    optional=(Truth("revenue of Halden Paper 2023", (REPORT[0], REPORT[1]), REVENUE),),
    not_on_spans=NATIVE,
)
async def query_engine_as_tool(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, agents: FunctionAgent with a QueryEngineTool."""
    llm = ChatModel(
        ("Context information is below", REVENUE),
        (REVENUE, answer),
        ("", Call("halden", {"input": "revenue of Halden Paper 2023"})),
    )
    engine = index(*REPORT).as_query_engine(llm=llm, similarity_top_k=2)
    about = ToolMetadata(name="halden", description="The report of Halden Paper")
    tool = QueryEngineTool(query_engine=engine, metadata=about)
    agent = FunctionAgent(tools=[tool], llm=llm, system_prompt="You are an analyst.")
    return str(await agent.run(question))


FAQ = {
    "opening": "The pool is open from 7 to 21, on Sundays from 9 to 18.",
    "towels": "Towels can be hired at the desk for 3 francs.",
}


def lookup_faq(topics: list[str]) -> list[str]:
    """Return the entries of the pool's FAQ for the topics opening and towels."""
    return [FAQ[topic] for topic in topics]


@turn(
    "Wann ist das Bad offen, und gibt es Handtücher?",
    (FAQ["opening"], FAQ["towels"]),
    "Von 7 bis 21 Uhr, sonntags von 9 bis 18; Handtücher kosten 3 Franken.",
)
async def plain_function_tool(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, agents: a plain Python function as a tool, without any retriever."""
    look = Call("lookup_faq", {"topics": ["opening", "towels"]})
    llm, tool = ChatModel(("3 francs", answer), ("", look)), FunctionTool.from_defaults(lookup_faq)
    return str(await FunctionAgent(tools=[tool], llm=llm, streaming=False).run(question))


MOSS, WHEN_MOSS = "Yes, the mill in Moss, in 2021.", "When did Halden Paper close a mill?"
CLOSED_MOSS = (
    "Yes, Halden Paper closed one of its mills: the one in Moss, in 2021, two years before the"
    " period of the report."
)


@turn(
    "Did Halden Paper close a mill?",
    (REPORT[2], REPORT[1]),
    CLOSED_MOSS,
    also=({"contexts": (MOSS,)},),
    optional=(Truth(WHEN_MOSS, (REPORT[2], REPORT[1]), MOSS),),
    not_on_spans=NATIVE,
)
async def react_agent(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, agents: ReActAgent over query engine tools."""
    action = (
        "Thought: The current language of the user is: English. I need to use a tool.\n"
        f"Action: halden_report\nAction Input: {json.dumps({'input': WHEN_MOSS})}\n"
    )
    done = "Thought: I can answer without using any more tools. I'll use the user's language.\n"
    llm = CompletionModel(
        ("Context information is below", MOSS),
        ("Observation: Yes, the mill", f"{done}Answer: {answer}"),
        ("", action),
    )
    tool = QueryEngineTool.from_defaults(
        index(*REPORT).as_query_engine(llm=llm, similarity_top_k=2),
        name="halden_report",
        description="Information about Halden Paper. Ask in plain words.",
    )
    handler = ReActAgent(tools=[tool], llm=llm).run(question)
    async for event in handler.stream_events():
        assert not isinstance(event, AgentStream) or event.response is not None
    return str(await handler)


STAFF = (
    "Halden Paper employs 640 people (end of 2023). As for its mills, I only know that the one in"
    " Moss was closed in 2021."
)


@turn(
    "Tell me about the staff of Halden Paper and its mills.",
    (REPORT[1], REPORT[2]),
    STAFF,
    not_on_spans=NATIVE,
)
async def retriever_tools(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, retriever tools: RetrieverTool in a FunctionAgent."""
    llm = ChatModel(
        ("640 people & Moss", answer),
        ("640 people", Call("notes", {"input": "Halden Paper closed mill Moss 2021"})),
        ("", Call("notes", {"input": "people that Halden Paper employed end of 2023"})),
    )
    retriever = index(*REPORT).as_retriever(similarity_top_k=1)
    make, about = RetrieverTool.from_defaults, "Retrieves notes about Halden Paper."
    tool = make(retriever=retriever, name="notes", description=about)
    return str(await FunctionAgent(tools=[tool], llm=llm).run(question))


class Answer(BaseModel):
    """An answer with its source."""

    text: str
    year: int


CLOSED = {"text": "The mill in Moss was closed.", "year": 2021}


MILL = "The mill in Moss was closed in 2021."


@turn(
    "Which mill was closed, and when?",
    (REPORT[2],),
    json.dumps(CLOSED),
    also=({"answer": MILL}, {"answer": json.dumps(CLOSED, separators=(",", ":"))}),
)
async def structured_agent(config: Config, question: str) -> Any:
    """LlamaIndex, agents with structured output: output_cls."""
    retriever = index(*REPORT).as_retriever(similarity_top_k=1)

    def search(query: str) -> str:
        """Search the notes."""
        return retriever.retrieve(query)[0].get_content()

    llm = ChatModel(
        ("according to the provided schema", Call("Answer", CLOSED)),
        ("closed its mill", MILL),
        ("", Call("search", {"query": "closed mill"})),
    )
    response = await FunctionAgent(tools=[search], llm=llm, output_cls=Answer).run(question)
    return json.dumps(response.structured_response)


SUNDAY = (
    "On Sundays the pool is open from 9 to 18, which is two hours later in the morning than on"
    " other days."
)


@turn("When is the pool open on Sundays?", (FAQ["opening"],), SUNDAY, not_on_spans=NATIVE)
async def agent_with_memory(config: Config, question: str, answer: str) -> list[str]:
    """LlamaIndex, agents: maintaining state, a Context over several runs."""

    def search_faq(word: str) -> str:
        """Search the pool's FAQ for a word."""
        return FAQ["opening"] if word == "open" else ""

    look = Call("search_faq", {"word": "open"})
    thanked = ("Thank you", "You are welcome!")
    llm = ChatModel(thanked, ("on Sundays from 9 to 18", answer), ("", look))
    agent = FunctionAgent(tools=[search_faq], llm=llm)
    context, asked = Context(agent), (question, "Thank you!")
    return [str(await agent.run(message, ctx=context)) for message in asked]


def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


@app()
async def calculator_agent(config: Config) -> str:
    """LlamaIndex, starter tutorial: a FunctionAgent with a calculator tool."""
    product = Call("multiply", {"a": 1234, "b": 4567})
    llm = ChatModel(("5635678", "The product of 1234 and 4567 is 5,635,678."), ("", product))
    agent = FunctionAgent(tools=[multiply], llm=llm, system_prompt="You can multiply numbers.")
    return str(await agent.run("What is 1234 * 4567?"))


TRAILS = (
    "The Juniper trail is 8 km long, easy, and starts at the old sawmill.",
    "The Raven trail is 14 km long and steep; ropes help on the last kilometre.",
    "The hut on the Raven trail serves soup from May to October.",
)


OF_RAVEN = (
    Truth("How long is the Raven trail?", (TRAILS[1], TRAILS[2]), "It is 14 km long, and steep."),
    Truth("Is there anything to eat on it?", (TRAILS[2], TRAILS[1]), "Yes, the hut serves soup."),
)


@app(*OF_RAVEN)
def condense_plus_context(config: Config) -> list[str]:
    """LlamaIndex, chat engine: condense plus context mode."""
    length, food = OF_RAVEN
    llm = ChatModel(
        ("Standalone question", "Does the hut on the Raven trail serve food like soup?"),
        ("anything to eat", food.answer),
        ("", length.answer),
    )
    chat_engine = index(*TRAILS).as_chat_engine(
        chat_mode="condense_plus_context",
        memory=ChatMemoryBuffer.from_defaults(token_limit=3900),
        llm=llm,
        context_prompt=(
            "You are a chatbot, able to talk about hiking trails.\n"
            "Here are the relevant documents for the context:\n{context_str}"
            "\nInstruction: Use the previous chat history, or the context above, to help the user."
        ),
        similarity_top_k=2,
    )
    return [str(chat_engine.chat(one.question)) for one in OF_RAVEN]


ALONE = "How long is the Juniper trail?"
OF_JUNIPER = (
    Truth("Where does the Juniper trail start?", (TRAILS[0],), "At the old sawmill."),
    Truth("And how long is it?", (TRAILS[0],), "It is 8 km long.", also=({"question": ALONE},)),
)


@app(*OF_JUNIPER)
def condense_question(config: Config) -> list[str]:
    """LlamaIndex, chat engine: condense question mode."""
    start, length = OF_JUNIPER
    llm = ChatModel(
        ("<Standalone question> & And how long", ALONE),
        ("<Standalone question>", start.question),
        ("How long", length.answer),
        ("", start.answer),
    )
    query_engine = index(*TRAILS).as_query_engine(llm=llm, similarity_top_k=1)
    chat_engine = CondenseQuestionChatEngine.from_defaults(query_engine=query_engine, llm=llm)
    return [str(chat_engine.chat(one.question)) for one in OF_JUNIPER]


@turn("Which trail is steep, where do ropes help?", (TRAILS[1], TRAILS[2]), "The Raven trail is.")
def streamed_context_chat(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, chat engine: stream_chat and response_gen, after earlier messages."""
    said = (MessageRole.USER, "Hello, I want to walk."), (MessageRole.ASSISTANT, "With pleasure!")
    chat_engine = ContextChatEngine.from_defaults(
        retriever=index(*TRAILS).as_retriever(similarity_top_k=2),
        llm=ChatModel(("", answer)),
        chat_history=[ChatMessage(role=role, content=text) for role, text in said],
    )
    return "".join(chat_engine.stream_chat(question).response_gen)


@turn("What is served in the hut on the trail?", (TRAILS[2],), "Soup, from May to October.")
async def streamed_and_awaited_chat(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, chat engine: astream_chat with async_response_gen."""
    options = {"llm": ChatModel(("", answer)), "similarity_top_k": 1}
    chat_engine = index(*TRAILS).as_chat_engine(chat_mode="condense_plus_context", **options)
    streaming = await chat_engine.astream_chat(question)
    return "".join([token async for token in streaming.async_response_gen()])


OPENAI_LIKE = ("llama-index-llms-openai-like",)
FERRIES = (
    "Line 1 sails from Harstad to Bergen every second day, at 08:00.",
    "Line 2 takes cars; bookings close one hour before it sails.",
    "Dogs travel free of charge on all lines, on a leash.",
)


def _llm(url: str) -> Any:
    from llama_index.llms.openai_like import OpenAILike

    return OpenAILike(
        model="qwen-3",
        api_base=url,
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=8192,
    )


@turn("When does line 1 sail?", (FERRIES[0], FERRIES[1]), "Every second day.", needs=OPENAI_LIKE)
def query_over_http(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, OpenAI-compatible models: OpenAILike in a query engine."""
    with openai_server(("", answer)) as server:
        engine = index(*FERRIES).as_query_engine(llm=_llm(server.base_url), similarity_top_k=2)
        return str(engine.query(question))


@turn("When do bookings of cars close?", (FERRIES[1],), "One hour before.", needs=OPENAI_LIKE)
def chat_stream_over_http(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, streaming with OpenAILike: a chat engine, its tokens read one by one."""
    with openai_server(("", answer)) as server:
        chat_engine = index(*FERRIES).as_chat_engine(
            chat_mode="context", llm=_llm(server.base_url), similarity_top_k=1
        )
        response = chat_engine.stream_chat(question)
        return "".join(response.response_gen)


@turn(
    "Reisen Hunde kostenlos, und wann fährt Linie 1?",
    (FERRIES[2], FERRIES[0]),
    "Hunde reisen an der Leine kostenlos; Linie 1 fährt jeden zweiten Tag um acht Uhr ab Harstad.",
    not_on_spans=NATIVE,
    needs=OPENAI_LIKE,
)
async def agent_over_http(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, agents: FunctionAgent with OpenAILike, two tool calls in one reply."""
    retriever = index(*FERRIES).as_retriever(similarity_top_k=1)

    async def search_timetable(query: str) -> str:
        """Search the timetable."""
        return (await retriever.aretrieve(query))[0].get_content()

    queries = ("dogs travel free of charge", "Line 1 sails from Harstad")
    calls = [Call("search_timetable", {"query": query}) for query in queries]
    with openai_server(("on a leash", answer), ("", calls)) as server:
        tool = FunctionTool.from_defaults(async_fn=search_timetable)
        agent = FunctionAgent(tools=[tool], llm=_llm(server.base_url))
        return str(await agent.run(question))
