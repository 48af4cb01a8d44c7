"""Ways of running: batches, streams, events, threads, errors, abandoned streams."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough

from .kit import NOWHERE, Config, Truth, app, turn
from .langchain_kit import KeywordRetriever, documents, model, store

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
