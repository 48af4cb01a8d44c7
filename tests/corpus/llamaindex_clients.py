"""Applications that call the model with a real client over HTTP."""

from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.tools import FunctionTool

from .kit import Config, turn
from .llamaindex_kit import index
from .scripted import Call, openai_server

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


@turn(
    "When does line 1 sail from Harstad to Bergen?",
    (FERRIES[0], FERRIES[1]),
    "Line 1 sails every second day at eight in the morning.",
    needs=OPENAI_LIKE,
)
def query_over_http(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, OpenAI-compatible models: OpenAILike in a query engine."""
    said = answer
    with openai_server(("", said)) as server:
        engine = index(*FERRIES).as_query_engine(llm=_llm(server.base_url), similarity_top_k=2)
        return str(engine.query(question))


@turn(
    "When do bookings of cars close?",
    (FERRIES[1],),
    "One hour before the ship sails.",
    needs=OPENAI_LIKE,
)
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
    not_on_spans=("llamaindex_native",),
    needs=OPENAI_LIKE,
)
async def agent_over_http(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, agents: FunctionAgent with OpenAILike, two tool calls in one reply."""
    retriever = index(*FERRIES).as_retriever(similarity_top_k=1)

    async def search_timetable(query: str) -> str:
        """Search the timetable."""
        found = await retriever.aretrieve(query)
        return found[0].get_content()

    calls = [
        Call("search_timetable", {"query": "dogs travel free of charge"}),
        Call("search_timetable", {"query": "Line 1 sails from Harstad"}),
    ]
    with openai_server(("on a leash", answer), ("", calls)) as server:
        tool = FunctionTool.from_defaults(async_fn=search_timetable)
        agent = FunctionAgent(tools=[tool], llm=_llm(server.base_url))
        return str(await agent.run(question))
