"""The tutorials, ways of running, and applications without a turn."""

import asyncio
import contextlib
import gc
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from typing import Any

from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.documents import Document
from langchain_core.example_selectors import SemanticSimilarityExampleSelector
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import (
    ChatPromptTemplate,
    FewShotChatMessagePromptTemplate,
    MessagesPlaceholder,
    PromptTemplate,
)
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.tools import tool
from langchain_core.vectorstores import InMemoryVectorStore
from pydantic import BaseModel
from typing_extensions import TypedDict

from .kit import SPANS, V1, Config, Truth, app, turn
from .langchain_kit import (
    KeywordRetriever,
    Scripted,
    Words,
    ask_agent,
    call,
    classic,
    create_agent,
    documents,
    in_a_row,
    joined,
    lcel,
    lines,
    model,
    retriever,
    search_tool,
    store,
)

REPORT = (
    "The first quarter was quiet. Sales of lamps rose by a tenth, those of shades fell.",
    "In the second quarter the shop in Ghent closed for repairs, and opened again in June.",
)


class Person(BaseModel):
    """A person in a text."""

    name: str
    height_in_metres: float


@app()
def extraction(config: Config) -> None:
    """LangChain tutorial: extraction with structured output."""
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Extract what is asked for."), ("human", "{text}")]
    )
    llm = model(Person(name="Alan", height_in_metres=1.83))
    (prompt | llm.with_structured_output(Person)).invoke({"text": "Alan is six feet tall."}, config)


@app()
def few_shot_examples_from_a_store(config: Config) -> None:
    """How to use few-shot examples, chosen from a vector store."""
    pairs = (("happy", "sad"), ("tall", "short"), ("sunny", "gloomy"))
    selector = SemanticSimilarityExampleSelector.from_examples(
        [{"input": one, "output": other} for one, other in pairs], Words(), InMemoryVectorStore, k=1
    )
    shots = FewShotChatMessagePromptTemplate(
        input_variables=["input"],
        example_selector=selector,
        example_prompt=ChatPromptTemplate.from_messages([("human", "{input}"), ("ai", "{output}")]),
    )
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Give the antonym."), shots, ("human", "{input}")]
    )
    (prompt | model("small") | StrOutputParser()).invoke({"input": "tall"}, config)


@app()
def related_articles_without_a_model(config: Config) -> None:
    """A retriever that feeds a list on a page, and no model."""
    teasers = retriever(*REPORT, k=1) | (lambda docs: [{"teaser": d.page_content} for d in docs])
    (itemgetter("article") | teasers).invoke({"article": "Sales of lamps"}, config)


@app(needs=V1)
def personal_assistant(config: Config) -> None:
    """create_agent with tools that act: a calendar and mail."""

    @tool
    def get_available_time_slots(attendees: list[str], date: str) -> list[str]:
        """Check the calendar for available times."""
        return ["09:00", "14:00", "16:00"]

    @tool
    def send_email(to: list[str], subject: str, body: str) -> str:
        """Send an email."""
        return f"Email sent to {', '.join(to)} - Subject: {subject}"

    look = call("get_available_time_slots", attendees=["team"], date="2026-03-02")
    send = call("send_email", to=["team@example.org"], subject="Review", body="Monday at 14:00?")
    tools, done = [get_available_time_slots, send_email], "I have proposed Monday at 14:00."
    ask_agent(config, "Set up the design review for Monday, please.", tools, look, send, done)


MILE = "A nautical mile is 1,852 metres."
KNOT = "A knot is one nautical mile per hour; the name comes from the knots in the log line."
FATHOM = "A fathom is six feet, the span of two arms, and measures the depth of water."
CABLE = "A cable is a tenth of a nautical mile."
SEA = (MILE, KNOT, FATHOM, CABLE)
ASKED = {
    "How long is a nautical mile?": ((MILE, KNOT), "It is 1,852 metres long."),
    "What is a fathom for?": ((FATHOM,), "It measures the depth of water."),
    "Where does the name of the knot come from?": ((KNOT,), "From the knots in the log line."),
}
THREE = [Truth(question, contexts, answer) for question, (contexts, answer) in ASKED.items()]


def sailor(llm: Any = None, finder: Any = None) -> Runnable[Any, str]:
    llm = llm or model({question: answer for question, (_, answer) in ASKED.items()})
    finder = finder or KeywordRetriever(documents=documents(*SEA), k=2)
    narrow = finder | (lambda docs: docs if "mile" in docs[0].page_content[:16] else docs[:1])
    prompt = lcel("Log book:\n{entries}\n\nQuestion: {question}", llm)
    return {"entries": narrow | lines, "question": RunnablePassthrough()} | prompt


@app(*THREE)
def batch_of_three(config: Config) -> None:
    """How to run in batches: `batch` with a limit on concurrency."""
    sailor().batch(list(ASKED), {**config, "max_concurrency": 2})


@app(*THREE)
async def async_batch_as_completed(config: Config) -> None:
    """How to run in batches: `abatch_as_completed`."""
    async for _ in sailor().abatch_as_completed(list(ASKED), config):
        pass


@app(*THREE)
def threads_of_its_own(config: Config) -> None:
    """A thread pool of the application's own."""
    chain = sailor()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda question: chain.invoke(question, config), ASKED))


@app(THREE[1])
async def streamed_events(config: Config) -> None:
    """How to stream: `astream_events`."""
    async for _ in sailor().astream_events("What is a fathom for?", config, version="v2"):
        pass


@app()
def stream_given_up(config: Config) -> None:
    """A stream that the caller gives up after two words."""
    stream = sailor().stream("How long is a nautical mile?", config)
    for _ in range(2):
        next(stream)
    stream.close()


@app()
def stream_dropped(config: Config) -> None:
    """A stream that nobody closes but the garbage collector."""
    gc.freeze()  # the collection need not look at what was there before
    next(sailor().stream("How long is a nautical mile?", config))
    gc.collect()


class Stalling(Scripted):
    """A chat model that does not answer."""

    asked: Any

    async def _agenerate(self, *_args: Any, **_options: Any) -> Any:
        self.asked.set()
        await asyncio.Event().wait()


@app()
async def task_cancelled(config: Config) -> None:
    """A task that is cancelled while it waits for the model, whose run never ends."""
    llm = Stalling(script=None, asked=asyncio.Event())
    waiting = asyncio.create_task(sailor(llm).ainvoke("What is a fathom for?", config))
    await llm.asked.wait()
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting


@app(THREE[1])
def chain_in_a_function(config: Config) -> None:
    """A function that calls a chain, and does not pass its config on."""
    chain = sailor()
    outer = RunnableLambda(lambda question: {"answer": chain.invoke(question), "echo": question})
    outer.invoke("What is a fathom for?", config)


@app()
async def async_stream_given_up(config: Config) -> None:
    """An asynchronous stream that the caller gives up."""
    stream = sailor().astream("What is a fathom for?", config)
    async for _ in stream:
        break
    await stream.aclose()


@app()
def model_fails(config: Config) -> None:
    """The model fails."""
    with contextlib.suppress(TimeoutError):
        sailor(model(TimeoutError("no answer in 30 s"))).invoke("What is a fathom for?", config)


class DownRetriever(KeywordRetriever):
    """Its database is down."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        message = "no route to host"
        raise ConnectionError(message)


@app()
def retriever_fails(config: Config) -> None:
    """The retriever fails."""
    chain = sailor(finder=DownRetriever(documents=documents(MILE)))
    with contextlib.suppress(ConnectionError):
        chain.invoke("What is a fathom for?", config)


@app(THREE[1])
def fallback_to_another_model(config: Config) -> None:
    """How to add fallbacks: to another model, after the first has failed."""
    first = model(ConnectionError("rate limit"), model_name="scripted-large")
    second = model("It measures the depth of water.", model_name="scripted-small")
    sailor(first.with_fallbacks([second])).invoke("What is a fathom for?", config)


@app(optional=[Truth("What is a fathom for?", (FATHOM,), "Sorry, the answer is not valid.")])
def parser_fails_and_chain_falls_back(config: Config) -> None:
    """A fallback of the whole chain after its parser failed."""

    def strict(text: str) -> str:
        if "metre" not in text:
            message = "no metres in it"
            raise ValueError(message)
        return text

    apology = RunnableLambda(lambda _: "Sorry, the answer is not valid.")
    (sailor() | strict).with_fallbacks([apology]).invoke("What is a fathom for?", config)


@app(THREE[0], THREE[1])
def two_chains_in_parallel(config: Config) -> None:
    """How to invoke runnables in parallel: two chains with retrievers of their own."""
    questions = list(ASKED)
    both = RunnableParallel(
        length=(lambda _: questions[0]) | sailor().with_config(run_name="length"),
        depth=(lambda _: questions[1]) | sailor().with_config(run_name="depth"),
    )
    both.invoke("Compare a nautical mile and a fathom.", config)


PLANNING = """Component One: Planning

A complicated task usually involves many steps. An agent needs to know what they are and plan ahead.

Task decomposition. Chain of thought is told to "think step by step" to decompose hard tasks into
smaller and simpler steps."""
TREES = """Tree of Thoughts extends chain of thought by exploring multiple reasoning possibilities at
each step. It first decomposes the task into several thought steps, creating a tree structure."""
MEMORY = """Component Two: Memory

Long-term memory: the capability to retain and recall information over extended periods, often by an
external vector store and fast retrieval."""
TOOLS = """Component Three: Tool Use

The agent learns to call external APIs for extra information that is missing from the weights."""
BLOG = [
    Document(text, metadata={"source": "https://blog.example.org/agents/", "start_index": i * 800})
    for i, text in enumerate((PLANNING, TREES, MEMORY, TOOLS))
]
WHAT = "What is task decomposition?"
DECOMPOSITION = "It breaks a hard task into smaller steps, for example by chain of thought."


def sources(found: list[Document]) -> str:
    return "\n\n".join(f"Source: {d.metadata}\nContent: {d.page_content}" for d in found)


def blog_tool(k: int) -> Any:
    vector_store = store(*BLOG)

    @tool(response_format="content_and_artifact")
    def retrieve_context(query: str) -> tuple[str, list[Document]]:
        """Retrieve information to help answer a query."""
        retrieved_docs = vector_store.similarity_search(query, k=k)
        return sources(retrieved_docs), retrieved_docs

    return retrieve_context


@turn(WHAT, (PLANNING, TREES), DECOMPOSITION, needs=V1)
def rag_agent_with_artifact(config: Config, question: str, answer: str) -> None:
    """LangChain 1.x tutorial: RAG agent with a retrieval tool that returns an artifact, streamed."""
    llm = model(call("retrieve_context", query="task decomposition steps"), answer)
    about = "You have access to a tool that retrieves context from a blog post."
    agent = create_agent(llm, [blog_tool(2)], system_prompt=about)
    asked = {"messages": [{"role": "user", "content": question}]}
    for step in agent.stream(asked, config, stream_mode="values"):
        step["messages"][-1].pretty_repr()


TWICE = (
    "What is the standard method for task decomposition?\n\n"
    "Once you get the answer, look up common extensions of that method."
)
STANDARD = "The standard method is chain of thought; a common extension is Tree of Thoughts."


@turn(TWICE, (PLANNING, TREES), STANDARD, needs=V1)
def rag_agent_that_searches_twice(config: Config, question: str, answer: str) -> None:
    """LangChain 1.x tutorial: RAG agent that searches twice."""
    queries = (
        "decompose complicated tasks into steps",
        "tree of thoughts extends chain of thought",
    )
    searches = [call("retrieve_context", query=query) for query in queries]
    ask_agent(config, question, [blog_tool(1)], *searches, answer)


@turn(
    "How does an agent remember things for long?",
    (TOOLS, MEMORY, PLANNING, TREES),
    "By an external vector store with fast retrieval.",
    not_on_spans=SPANS,
    needs=V1,
)
def two_step_chain_by_dynamic_prompt(config: Config, question: str, answer: str) -> None:
    """LangChain 1.x tutorial: two-step RAG chain with `dynamic_prompt`."""
    from langchain.agents.middleware import ModelRequest, dynamic_prompt

    vector_store = store(*BLOG)

    @dynamic_prompt
    def prompt_with_context(request: ModelRequest) -> str:
        """Inject context into state messages."""
        last_query = request.state["messages"][-1].text
        docs_content = joined(vector_store.similarity_search(last_query))
        return f"You are a helpful assistant. Use this context in your response:\n\n{docs_content}"

    agent = create_agent(model(answer), tools=[], middleware=[prompt_with_context])
    asked = {"messages": [{"role": "user", "content": question}]}
    for step in agent.stream(asked, config, stream_mode="values"):
        step["messages"][-1].pretty_repr()


PROMPT = PromptTemplate.from_template(
    "Use the retrieved pieces of context below to answer. If you do not know, say so.\n"
    "Question: {question}\nContext: {context}\nAnswer:"
)


class State(TypedDict):
    question: str
    context: list[Document]
    answer: str


@turn(WHAT, (PLANNING, TREES, TOOLS, MEMORY), DECOMPOSITION)
def retrieve_generate_graph(config: Config, question: str, answer: str) -> None:
    """LangChain 0.3 tutorial, part 1: retrieve-generate graph with `similarity_search`."""
    vector_store, llm = store(*BLOG), model(answer)

    def retrieve(state: State) -> dict[str, Any]:
        return {"context": vector_store.similarity_search(state["question"])}

    def generate(state: State) -> dict[str, Any]:
        shown = {"question": state["question"], "context": joined(state["context"])}
        return {"answer": llm.invoke(PROMPT.invoke(shown)).content}

    in_a_row(State, retrieve, generate).invoke({"question": question}, config)


@turn(WHAT, (PLANNING, TREES), DECOMPOSITION)
def lcel_rag_streamed(config: Config, question: str, answer: str) -> None:
    """LangChain 0.2 tutorial: LCEL chain with `retriever | format_docs`, streamed."""
    shown = {"context": retriever(*BLOG, k=2) | joined, "question": RunnablePassthrough()}
    for _chunk in (shown | lcel(PROMPT.template, model(answer))).stream(question, config):
        pass


@turn(WHAT, (PLANNING, TREES, TOOLS), DECOMPOSITION)
def retrieval_chain_of_the_tutorial(config: Config, question: str, answer: str) -> None:
    """LangChain 0.2 tutorial: the built-in `create_retrieval_chain`."""
    combine = classic("chains.combine_documents")
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Answer by the retrieved context.\n\n{context}"), ("human", "{input}")]
    )
    question_answer_chain = combine.create_stuff_documents_chain(model(answer), prompt)
    create = classic("chains").create_retrieval_chain
    create(retriever(*BLOG, k=3), question_answer_chain).invoke({"input": question}, config)


WAYS = "What are common ways of doing it?"
WAYS_ANSWER = "By prompting the model to think step by step, or by a tree of thoughts."


def after_history(system: str) -> ChatPromptTemplate:
    return ChatPromptTemplate.from_messages(
        [("system", system), MessagesPlaceholder("chat_history"), ("human", "{input}")]
    )


@app(Truth(WHAT, (PLANNING, TREES), DECOMPOSITION), Truth(WAYS, (TREES, PLANNING), WAYS_ANSWER))
def conversational_rag_of_the_tutorial(config: Config) -> None:
    """LangChain 0.2 tutorial: conversational RAG with a history-aware retriever."""
    chains, combine = classic("chains"), classic("chains.combine_documents")
    llm = model(DECOMPOSITION, "Common ways of tree structure thought steps", WAYS_ANSWER)
    alone = after_history("Reformulate the question so that it stands alone. Do not answer it.")
    aware = chains.create_history_aware_retriever(llm, retriever(*BLOG, k=2), alone)
    qa_prompt = after_history("Answer with the context.\n\n{context}")
    rag_chain = chains.create_retrieval_chain(
        aware, combine.create_stuff_documents_chain(llm, qa_prompt)
    )
    chat_history: list[Any] = []
    first = rag_chain.invoke({"input": WHAT, "chat_history": chat_history}, config)
    chat_history += [HumanMessage(WHAT), AIMessage(first["answer"])]
    rag_chain.invoke({"input": WAYS, "chat_history": chat_history}, config)


EXPLORED = "And how are multiple possibilities of reasoning explored at each step?"
AS_A_TREE = "As a tree of thoughts."


@app(Truth(WHAT, (PLANNING, TREES), DECOMPOSITION), Truth(EXPLORED, (TREES, PLANNING), AS_A_TREE))
def message_history(config: Config) -> None:
    """How to add message history: RunnableWithMessageHistory, two turns of one session."""
    llm, history = model(DECOMPOSITION, AS_A_TREE), InMemoryChatMessageHistory()
    shown = RunnablePassthrough.assign(context=itemgetter("input") | retriever(*BLOG, k=2) | joined)
    chat = RunnableWithMessageHistory(
        shown | after_history("Answer with the context.\n\n{context}") | llm,
        lambda _: history,
        input_messages_key="input",
        history_messages_key="chat_history",
    )
    for question in (WHAT, EXPLORED):
        chat.invoke({"input": question}, {**config, "configurable": {"session_id": "1"}})


@turn("What do agents call tools for?", (TOOLS, MEMORY), "To get what weights lack.", needs=V1)
def agent_with_retriever_tool(config: Config, question: str, answer: str) -> None:
    """LangChain tutorial: an agent with `create_retriever_tool`."""
    search = call("search_blog_post", query="agent call external APIs tool use")
    ask_agent(config, question, [search_tool("search_blog_post", *BLOG, k=2)], search, answer)
