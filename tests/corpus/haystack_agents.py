"""Agents and tools: functions, components, pipelines and agents as tools."""

from typing import Annotated, Any

from haystack import Document, Pipeline, component
from haystack.components.agents import Agent
from haystack.components.builders import ChatPromptBuilder, PromptBuilder
from haystack.components.retrievers import InMemoryBM25Retriever
from haystack.dataclasses import ChatMessage
from haystack.tools import ComponentTool, PipelineTool, Tool, create_tool_from_function, tool

from .haystack_kit import Models, answered, served, store, turn, wired
from .kit import Config, Truth, app
from .scripted import Call

LIBRARY = (
    "Books can be kept for four weeks and renewed twice.",
    "The reading room closes at 22:00; on Sundays at 18:00.",
    "A library card costs 12 euros a year, and nothing for pupils.",
)


def ask(models: Models, question: str, *tools: Any, system_prompt: str | None = None) -> str:
    """Return the answer of an agent with ``tools``."""
    agent = Agent(chat_generator=models.chat(), tools=list(tools), system_prompt=system_prompt)
    return agent.run(messages=[ChatMessage.from_user(question)])["messages"][-1].text or ""


@turn("How long may I keep a book?", (LIBRARY[0], LIBRARY[1]), "Four weeks, and renew it twice.")
def function_tool(config: Config, question: str, answer: str) -> str:
    """Haystack, agents: a function with the tool decorator that searches."""
    retriever = InMemoryBM25Retriever(store(*LIBRARY), top_k=2)

    @tool
    def search_handbook(query: Annotated[str, "what to look for"]) -> str:
        """Search the library's handbook."""
        found = retriever.run(query=query)["documents"]
        return "\n\n".join(document.content or "" for document in found)

    search = Call("search_handbook", {"query": "books kept weeks renewed, reading room"})
    with served(("kept for four weeks", answer), ("", search)) as models:
        return ask(models, question, search_handbook, system_prompt="Use the tools.")


def _listed(documents: list[Document]) -> str:
    return "\n".join(f"File Content for {d.id[:6]}\n\n {d.content}" for d in documents)


@turn(
    "Was kostet die library card, und wann closes the reading room?",
    (LIBRARY[2], LIBRARY[1]),
    "12 Euro im Jahr; er schließt um 22 Uhr.",
)
def component_tool(config: Config, question: str, answer: str) -> str:
    """Haystack tutorial 45: a retriever as ComponentTool, documents made a string."""
    handbook = ComponentTool(
        component=InMemoryBM25Retriever(store(*LIBRARY), top_k=2),
        name="handbook",
        description="The library's handbook",
        outputs_to_string={"source": "documents", "handler": _listed},
    )
    search = Call("handbook", {"query": "library card costs euros reading room closes"})
    with served(("12 euros", answer), ("", search)) as models:
        return ask(models, question, handbook)


def _retrieval_tool() -> PipelineTool:
    template = (
        "Supporting documents:\n{%- for doc in documents %}\n"
        "Document [{{ loop.index }}] :\n{{ doc.content }}\n{% endfor -%}"
    )
    pipeline = wired(
        {
            "doc_retriever": InMemoryBM25Retriever(store(*LIBRARY), top_k=2),
            "builder": PromptBuilder(template, required_variables="*"),
        },
        "doc_retriever.documents > builder.documents",
    )
    return PipelineTool(
        pipeline=pipeline,
        name="retrieval_tool",
        description="A tool for fetching information about the library.",
        input_mapping={"query": ["doc_retriever.query"]},
        output_mapping={"builder.prompt": "retrieval_output"},
    )


@turn(
    "When does the reading room close on Sundays?",
    (LIBRARY[1], LIBRARY[0]),
    "At 18:00 on Sundays.",
    not_on_spans=(),
)
def pipeline_tool(config: Config, question: str, answer: str) -> str:
    """Haystack tutorial 48: conversational RAG, an agent in a pipeline with a PipelineTool."""
    search = Call("retrieval_tool", {"query": "reading room closes Sundays, books"})
    with served(("Document [1]", answer), ("", search)) as models:
        about = "Answer grounded in supporting documents."
        agent = Agent(chat_generator=models.chat(), tools=[_retrieval_tool()], system_prompt=about)
        pipe = Pipeline()
        pipe.add_component("agent", agent)
        result = pipe.run({"agent": {"messages": [ChatMessage.from_user(question)]}})
        return result["agent"]["messages"][-1].text


PEOPLE = tuple(
    f"My name is {name} and I live in {city}."
    for name, city in (("Jean", "Paris"), ("Mark", "Berlin"), ("Giorgio", "Rome"))
)
RAG_TEMPLATE = (
    "Answer the questions based on the given context.\n\nContext:\n"
    "{% for document in documents %}\n    {{ document.content }}\n{% endfor %}\n"
    "Question: {{ question }}\nAnswer:"
)


def _rag_tool(models: Models) -> Tool:
    messages = [ChatMessage.from_system(RAG_TEMPLATE)]
    pipe = wired(
        {
            "retriever": InMemoryBM25Retriever(store(*PEOPLE), top_k=1),
            "prompt_builder": ChatPromptBuilder(messages, required_variables="*"),
            "llm": models.chat(),
        },
        "retriever > prompt_builder.documents, prompt_builder.prompt > llm.messages",
    )

    def rag_pipeline_func(query: str) -> dict[str, Any]:
        asked = {"retriever": {"query": query}, "prompt_builder": {"question": query}}
        return {"reply": answered(pipe, **asked)}

    query = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    about = "Get information about where people live"
    return Tool(
        name="rag_pipeline_tool", description=about, parameters=query, function=rag_pipeline_func
    )


WEATHER = {"Berlin": {"weather": "mostly sunny", "temperature": 7, "unit": "celsius"}}


def get_weather(city: Annotated[str, "the city"] = "Berlin") -> dict[str, Any]:
    """Get the current weather for a location."""
    return WEATHER[city]


LIVES = "Mark lives in Berlin, it says."


@turn(
    "Can you tell me where Mark lives?",
    (PEOPLE[1],),
    "Yes: Mark lives in Berlin.",
    also=({"contexts": (LIVES,)},),
    optional=(Truth("Where does Mark live?", (PEOPLE[1],), LIVES),),
)
def rag_as_a_tool(config: Config, question: str, answer: str) -> str:
    """Haystack tutorial 40: a chat application with function calling, RAG as a tool."""
    search = Call("rag_pipeline_tool", {"query": "Where does Mark live?"})
    rules = (("based on the given context", LIVES), ("it says", answer), ("", search))
    with served(*rules) as models:
        tools = [_rag_tool(models), create_tool_from_function(get_weather)]
        return ask(models, question, *tools, system_prompt="Use the tools.")


@app()
def weather_tool(config: Config) -> str:
    """Haystack tutorial 40: a weather function as a tool."""
    look = Call("get_weather", {"city": "Berlin"})
    with served(("mostly sunny", "It is mostly sunny in Berlin."), ("", look)) as models:
        weather = create_tool_from_function(get_weather)
        return ask(models, "What is the weather in Berlin?", weather)


NURSING = (
    "Florence Nightingale opened the first secular nursing school in London in 1860.",
    "Nightingale's diagrams showed that most soldiers died of preventable diseases.",
)


@component
class SerperSearch:
    """A web search."""

    @component.output_types(documents=list[Document], links=list[str])
    def run(self, query: str) -> dict[str, Any]:
        """Search the web.

        :param query: What to search for.
        """
        about = {"link": "https://example.org"}
        documents = [Document(content=text, meta=about) for text in NURSING]
        return {"documents": documents, "links": ["https://example.org"]}


SCHOOL = "Nightingale opened a secular nursing school in 1860."


@turn(
    "Write one sentence on Nightingale's school.",
    NURSING,
    "In 1860 Nightingale opened the first secular nursing school.",
    also=({"contexts": (SCHOOL,)},),
    optional=(Truth("Nightingale's nursing school", NURSING, SCHOOL),),
)
def multi_agent(config: Config, question: str, answer: str) -> str:
    """Haystack tutorial 45: a multi-agent system, an agent as the tool of another."""
    topic = {"role": "user", "content": [{"text": "Nightingale's nursing school"}]}
    with served(
        ("You research & secular nursing", SCHOOL),
        ("You research", Call("web_search", {"query": "Nightingale school"})),
        ("school in 1860", answer),
        ("", Call("research", {"messages": [topic]})),
    ) as models:
        researcher = Agent(
            chat_generator=models.chat(),
            system_prompt="You research.",
            tools=[ComponentTool(component=SerperSearch(), name="web_search")],
        )
        research = ComponentTool(
            component=researcher,
            name="research",
            description="Researches a topic",
            outputs_to_string={"source": "last_message", "handler": lambda message: message.text},
        )
        return ask(models, question, research, system_prompt="You write.")


@turn("Может ли школьник получить card, и сколько она costs?", (LIBRARY[2],), "Да, бесплатно.")
async def awaited_agent(config: Config, question: str, answer: str) -> str:
    """Haystack, agents: run_async with a function tool that returns a list."""

    def find_rules(words: list[str]) -> list[str]:
        """Find rules of the library that have one of the words."""
        return [text for text in LIBRARY if any(word in text for word in words)]

    search = Call("find_rules", {"words": ["card"]})
    with served(("nothing for pupils", answer), ("", search)) as models:
        agent = Agent(chat_generator=models.chat(), tools=[create_tool_from_function(find_rules)])
        result = await agent.run_async(messages=[ChatMessage.from_user(question)])
        return result["last_message"].text
