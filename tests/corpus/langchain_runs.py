"""The tutorials, ways of running, and applications without a turn."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from typing import Any

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
from langchain_core.tools import create_retriever_tool, tool
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.graph import START, StateGraph
from pydantic import BaseModel
from typing_extensions import TypedDict

from .kit import NOWHERE, SPANS, V1, Config, Truth, app, turn
from .langchain_kit import (
    KeywordRetriever,
    Words,
    call,
    calls,
    classic,
    create_agent,
    documents,
    model,
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
    examples = [
        {"input": "happy", "output": "sad"},
        {"input": "tall", "output": "short"},
        {"input": "sunny", "output": "gloomy"},
    ]
    selector = SemanticSimilarityExampleSelector.from_examples(
        examples, Words(), InMemoryVectorStore, k=1
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
    chain = (
        itemgetter("article")
        | store(*REPORT).as_retriever(search_kwargs={"k": 1})
        | (lambda docs: [{"teaser": d.page_content[:20]} for d in docs])
    )
    chain.invoke({"article": "Sales of lamps"}, config)


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

    llm = model(
        calls(("get_available_time_slots", {"attendees": ["team"], "date": "2026-03-02"})),
        calls(
            (
                "send_email",
                {"to": ["team@example.org"], "subject": "Review", "body": "Monday at 14:00?"},
            )
        ),
        "I have proposed Monday at 14:00.",
    )
    create_agent(llm, [get_available_time_slots, send_email]).invoke(
        {"messages": [("user", "Set up the design review for Monday, please.")]}, config
    )


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


def sailor(llm: Any = None, retriever: Any = None) -> Runnable[Any, str]:
    llm = llm or model({question: answer for question, (_, answer) in ASKED.items()})
    retriever = retriever or KeywordRetriever(documents=documents(*SEA), k=2)
    narrow = retriever | (lambda docs: docs if "mile" in docs[0].page_content[:16] else docs[:1])
    prompt = ChatPromptTemplate.from_template("Log book:\n{entries}\n\nQuestion: {question}")
    return (
        {
            "entries": narrow | (lambda docs: "\n".join(d.page_content for d in docs)),
            "question": RunnablePassthrough(),
        }
        | prompt
        | llm
        | StrOutputParser()
    )


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
    chain = sailor(retriever=DownRetriever(documents=documents(MILE)))
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


@turn("fathom", (FATHOM, MILE), "Six feet.", not_on_spans=NOWHERE)
def plain_functions(config: Config, question: str, answer: str) -> None:
    """Plain functions with a retriever and a model, without any chain."""
    docs = store(FATHOM, MILE).as_retriever().invoke(question, config)
    text = "\n".join(d.page_content for d in docs)
    model(answer).invoke([("system", text), ("human", question)], config)


PLANNING = """Component One: Planning

A complicated task usually involves many steps. An agent needs to know what they are and plan ahead.

Task decomposition. Chain of thought has become a standard prompting technique for enhancing model
performance on complex tasks. The model is instructed to "think step by step" to use more test-time
computation and to decompose hard tasks into smaller and simpler steps."""
TREES = """Tree of Thoughts extends chain of thought by exploring multiple reasoning possibilities at
each step. It first decomposes the task into several thought steps and generates multiple thoughts per
step, creating a tree structure. The search process can be breadth-first or depth-first."""
MEMORY = """Component Two: Memory

Short-term memory: all the in-context learning is short-term memory of the model to learn.
Long-term memory: the capability to retain and recall information over extended periods, often by an
external vector store and fast retrieval."""
TOOLS = """Component Three: Tool Use

The agent learns to call external APIs for extra information that is missing from the weights, such as
current information, code execution capability and access to proprietary information sources."""
BLOG = [
    Document(text, metadata={"source": "https://blog.example.org/agents/", "start_index": i * 800})
    for i, text in enumerate((PLANNING, TREES, MEMORY, TOOLS))
]
WHAT = "What is task decomposition?"
DECOMPOSITION = (
    "Task decomposition breaks a hard task into smaller and simpler steps, for example by chain of "
    "thought, where the model is told to think step by step."
)


@turn(WHAT, (PLANNING, TREES), DECOMPOSITION, needs=V1)
def rag_agent_with_artifact(config: Config, question: str, answer: str) -> None:
    """LangChain 1.x tutorial: RAG agent with a retrieval tool that returns an artifact, streamed."""
    vector_store = store(*BLOG)

    @tool(response_format="content_and_artifact")
    def retrieve_context(query: str) -> tuple[str, list[Document]]:
        """Retrieve information to help answer a query."""
        retrieved_docs = vector_store.similarity_search(query, k=2)
        serialized = "\n\n".join(
            f"Source: {doc.metadata}\nContent: {doc.page_content}" for doc in retrieved_docs
        )
        return serialized, retrieved_docs

    llm = model(call("retrieve_context", query="task decomposition steps"), answer)
    agent = create_agent(
        llm,
        [retrieve_context],
        system_prompt="You have access to a tool that retrieves context from a blog post.",
    )
    for step in agent.stream(
        {"messages": [{"role": "user", "content": question}]}, config, stream_mode="values"
    ):
        step["messages"][-1].pretty_repr()


TWICE = (
    "What is the standard method for task decomposition?\n\n"
    "Once you get the answer, look up common extensions of that method."
)
STANDARD = (
    "The standard method is chain of thought. A common extension is Tree of Thoughts, which explores "
    "several reasoning possibilities at each step."
)


@turn(TWICE, (PLANNING, TREES), STANDARD, needs=V1)
def rag_agent_that_searches_twice(config: Config, question: str, answer: str) -> None:
    """LangChain 1.x tutorial: RAG agent that searches twice."""
    vector_store = store(*BLOG)

    @tool(response_format="content_and_artifact")
    def retrieve_context(query: str) -> tuple[str, list[Document]]:
        """Retrieve information to help answer a query."""
        found = vector_store.similarity_search(query, k=1)
        return "\n\n".join(f"Source: {d.metadata}\nContent: {d.page_content}" for d in found), found

    llm = model(
        call("retrieve_context", query="standard technique to decompose complex tasks"),
        call("retrieve_context", query="tree of thoughts extends chain of thought"),
        answer,
    )
    agent = create_agent(llm, tools=[retrieve_context])
    agent.invoke({"messages": [{"role": "user", "content": question}]}, config)


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
        retrieved_docs = vector_store.similarity_search(last_query)
        docs_content = "\n\n".join(doc.page_content for doc in retrieved_docs)
        return f"You are a helpful assistant. Use this context in your response:\n\n{docs_content}"

    agent = create_agent(model(answer), tools=[], middleware=[prompt_with_context])
    for step in agent.stream(
        {"messages": [{"role": "user", "content": question}]}, config, stream_mode="values"
    ):
        step["messages"][-1].pretty_repr()


PROMPT = PromptTemplate.from_template(
    "You are an assistant for question-answering tasks. Use the retrieved pieces of context below to "
    "answer. If you do not know, say so. Three sentences at most.\n"
    "Question: {question}\nContext: {context}\nAnswer:"
)


@turn(WHAT, (PLANNING, TREES, TOOLS, MEMORY), DECOMPOSITION)
def retrieve_generate_graph(config: Config) -> None:
    """LangChain 0.3 tutorial, part 1: retrieve-generate graph with `similarity_search`."""
    vector_store = store(*BLOG)
    llm = model(DECOMPOSITION)

    class State(TypedDict):
        question: str
        context: list[Document]
        answer: str

    def retrieve(state: State) -> dict[str, Any]:
        return {"context": vector_store.similarity_search(state["question"])}

    def generate(state: State) -> dict[str, Any]:
        docs_content = "\n\n".join(doc.page_content for doc in state["context"])
        messages = PROMPT.invoke({"question": state["question"], "context": docs_content})
        return {"answer": llm.invoke(messages).content}

    builder = StateGraph(State).add_sequence([retrieve, generate])
    builder.add_edge(START, "retrieve")
    builder.compile().invoke({"question": WHAT}, config)


def format_docs(docs: list[Document]) -> str:
    return "\n\n".join(doc.page_content for doc in docs)


@turn(WHAT, (PLANNING, TREES), DECOMPOSITION)
def lcel_rag_streamed(config: Config, question: str, answer: str) -> None:
    """LangChain 0.2 tutorial: LCEL chain with `retriever | format_docs`, streamed."""
    retriever = store(*BLOG).as_retriever(search_kwargs={"k": 2})
    prompt = ChatPromptTemplate.from_messages([("human", PROMPT.template)])
    rag_chain = (
        {"context": retriever | format_docs, "question": RunnablePassthrough()}
        | prompt
        | model(answer)
        | StrOutputParser()
    )
    for _chunk in rag_chain.stream(question, config):
        pass


@turn(WHAT, (PLANNING, TREES, TOOLS), DECOMPOSITION)
def retrieval_chain_of_the_tutorial(config: Config, question: str, answer: str) -> None:
    """LangChain 0.2 tutorial: the built-in `create_retrieval_chain`."""
    combine = classic("chains.combine_documents")
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Answer by the retrieved context.\n\n{context}"), ("human", "{input}")]
    )
    question_answer_chain = combine.create_stuff_documents_chain(model(answer), prompt)
    rag_chain = classic("chains").create_retrieval_chain(
        store(*BLOG).as_retriever(search_kwargs={"k": 3}), question_answer_chain
    )
    rag_chain.invoke({"input": question}, config)


WAYS = "What are common ways of doing it?"
WAYS_ANSWER = "By prompting the model to think step by step, or by a tree of thoughts."


@app(Truth(WHAT, (PLANNING, TREES), DECOMPOSITION), Truth(WAYS, (TREES, PLANNING), WAYS_ANSWER))
def conversational_rag_of_the_tutorial(config: Config) -> None:
    """LangChain 0.2 tutorial: conversational RAG with a history-aware retriever."""
    chains, combine = classic("chains"), classic("chains.combine_documents")
    llm = model(DECOMPOSITION, "Common ways of tree structure thought steps", WAYS_ANSWER)
    contextualize = ChatPromptTemplate.from_messages(
        [
            ("system", "Reformulate the question so that it stands alone. Do not answer it."),
            MessagesPlaceholder("chat_history"),
            ("human", "{input}"),
        ]
    )
    retriever = chains.create_history_aware_retriever(
        llm, store(*BLOG).as_retriever(search_kwargs={"k": 2}), contextualize
    )
    qa_prompt = ChatPromptTemplate.from_messages(
        [
            ("system", "Answer with the context.\n\n{context}"),
            MessagesPlaceholder("chat_history"),
            ("human", "{input}"),
        ]
    )
    rag_chain = chains.create_retrieval_chain(
        retriever, combine.create_stuff_documents_chain(llm, qa_prompt)
    )
    chat_history: list[Any] = []
    first = rag_chain.invoke({"input": WHAT, "chat_history": chat_history}, config)
    chat_history += [HumanMessage(WHAT), AIMessage(first["answer"])]
    rag_chain.invoke({"input": WAYS, "chat_history": chat_history}, config)


@turn(
    "What do agents use tools for?",
    (TOOLS, PLANNING),
    "To get information that is missing from their weights.",
    needs=V1,
)
def agent_with_retriever_tool(config: Config, question: str, answer: str) -> None:
    """LangChain tutorial: an agent with `create_retriever_tool`."""
    blog_search = create_retriever_tool(
        store(*BLOG).as_retriever(search_kwargs={"k": 2}),
        "search_blog_post",
        "Search and return excerpts of the post on agents.",
    )
    llm = model(call("search_blog_post", query="agent call external APIs tool use"), answer)
    agent = create_agent(llm, [blog_search])
    agent.invoke({"messages": [("user", question)]}, config)
