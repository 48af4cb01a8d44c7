"""LangChain applications in whose spans it is hard, or impossible, to see the answer.

The other modules follow published pages; these combine plain calls, graders, other searches and
unusual names. Recordings of them are read by `tests/capture/test_trace.py`.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from opentelemetry import trace

from .kit import Config, Truth, app
from .langchain_kit import KeywordRetriever, documents, joined, lcel, model

TEA = "How long should green tea steep?"
PAGES = ("Green tea steeps two minutes at 75 degrees.", "Black tea takes four minutes.")
ANSWER = "Green tea should steep for two minutes, at 75 degrees."
FRENCH = "Le thé vert infuse deux minutes, à 75 degrés."
GRADE = "The answer is grounded in the passages, and complete."
JOKE = "Why did the tea leave? It was steeped."
COCOA = "How hot is cocoa served?"
COCOA_PAGES = ("Cocoa is served at 60 degrees.", "Hot milk makes the best cocoa.")
WARM = "Cocoa is served at 60 degrees, with hot milk."
TRUTH, WARM_TRUTH = Truth(TEA, PAGES, ANSWER), Truth(COCOA, COCOA_PAGES, WARM)
GROUNDED = "Answer from the context.\n\n{context}\n\nQuestion: {question}"
REPLIES = {
    "Translate": FRENCH,
    "Is it grounded": GRADE,
    "Rewrite": "green tea steeping time",
    "joke": JOKE,
    f"Question: {COCOA}": WARM,
    "Question:": ANSWER,
}


def shelf(*texts: str, k: int = 2) -> BaseRetriever:
    return KeywordRetriever(documents=documents(*texts), k=k)


SHOP = shelf(*PAGES, *COCOA_PAGES)


@contextmanager
def span(name: str) -> Iterator[None]:
    """Run the block under a span of the application's own."""
    with trace.get_tracer("app").start_as_current_span(name):
        yield


def rag(retriever: Runnable[Any, Any], llm: Any, template: str = GROUNDED) -> Runnable[Any, str]:
    return {"context": retriever, "question": RunnablePassthrough()} | lcel(template, llm)


def by_plain_calls(
    config: Config, *, question: str = TEA, query: str = "", answer: str = ""
) -> str:
    """Search and generate without a chain; return the context."""
    llm = model({"Question:": answer} if answer else REPLIES)
    context = joined(SHOP.invoke(query or question, config))
    llm.invoke(GROUNDED.format(context=context, question=question), config)
    return context


@app(TRUTH)
def plain_calls_graded(config: Config) -> None:
    """Plain calls below one span: the last of them grades."""
    with span("handle_request"):
        context = by_plain_calls(config)
        model(REPLIES).invoke(f"Is it grounded?\n{context}\nAsked: {TEA}\nAnswer: {ANSWER}", config)


@app(Truth(TEA, PAGES, "Two minutes."))
def plain_calls_graded_at_length(config: Config) -> None:
    """Plain calls below one span: the answer is shorter than the grade after it."""
    with span("handle_request"):
        context = by_plain_calls(config, answer="Two minutes.")
        model(REPLIES).invoke(f"Is it grounded?\n{context}\nAnswer: Two minutes.", config)


@app(Truth(TEA, PAGES, FRENCH))
def plain_calls_translated(config: Config) -> None:
    """Plain calls below one span: the last of them translates."""
    with span("handle_request"):
        by_plain_calls(config)
        model(REPLIES).invoke(f"Translate to French: {ANSWER}", config)


@app(TRUTH)
def plain_calls_with_a_rewrite(config: Config) -> None:
    """Plain calls below one span: the search is for a rewritten question."""
    with span("handle_request"):
        query = model(REPLIES).invoke(f"Rewrite as a search query: {TEA}", config).content
        by_plain_calls(config, query=str(query))


@app(TRUTH, WARM_TRUTH)
def two_turns_of_plain_calls(config: Config) -> None:
    """Two turns of plain calls below one span."""
    with span("session"):
        for question in (TEA, COCOA):
            by_plain_calls(config, question=question)


def _own_names(config: Config, check: str, verdict: str) -> None:
    llm = model({"Ist das belegt": verdict, "Frage:": ANSWER})
    chain = (
        RunnablePassthrough.assign(treffer=itemgetter("frage") | SHOP | joined)
        | RunnablePassthrough.assign(antwort=lcel("{treffer}\n\nFrage: {frage}", llm))
        | RunnablePassthrough.assign(urteil=lcel(f"Ist das belegt? {check}", llm))
    )
    chain.invoke({"frage": TEA}, config)


@app(TRUTH)
def own_names_and_a_grade(config: Config) -> None:
    """Keys that nobody else uses, for the answer and for its grade."""
    _own_names(config, "{treffer}\n{antwort}", GRADE)


@app(TRUTH)
def own_names_and_a_verdict(config: Config) -> None:
    """Keys that nobody else uses; the grade is one word."""
    _own_names(config, "{antwort}", "ja")


def _structured(config: Config, **fields: Any) -> None:
    chain = ChatPromptTemplate.from_template(GROUNDED) | model(json.dumps(fields))
    with span("ask"):
        found = joined(SHOP.invoke(TEA, config))
        (chain | JsonOutputParser()).invoke({"context": found, "question": TEA}, config)


@app(TRUTH)
def structured_answer_and_sources(config: Config) -> None:
    """JSON whose field of the answer has a usual name, and others beside it."""
    _structured(config, answer=ANSWER, sources=["tea.md"])


@app(TRUTH)
def structured_answer_alone(config: Config) -> None:
    """JSON whose only field is named after the answer."""
    _structured(config, answer_based_on_content=ANSWER)


@app(TRUTH)
def structured_in_unusual_fields(config: Config) -> None:
    """JSON that does not show which of its fields is the answer."""
    _structured(config, analysis="Both pages speak of tea.", verdict_for_user=ANSWER)


@app(TRUTH)
def stream_read_late(config: Config) -> None:
    """A stream is begun, left standing while a joke is told, and then read to its end."""
    llm = model(REPLIES)
    stream = rag(SHOP | joined, llm).stream(TEA, config)
    next(stream)
    llm.invoke("Tell me a joke", config)
    "".join(stream)


@app(TRUTH)
def small_talk_beside(config: Config) -> None:
    """A span holds a request with a search and two that only chat."""
    llm = model(REPLIES)
    with span("session"):
        lcel("Tell me a joke about {x}", llm).invoke({"x": "tea"}, config)
        rag(SHOP | joined, llm).invoke(TEA, config)
        lcel("Another joke about {x}", llm).invoke({"x": "kettles"}, config)


@app(TRUTH)
def graded_beside(config: Config) -> None:
    """A span holds a request with a search, and a call that grades its answer."""
    with span("request"):
        answer = rag(SHOP | joined, model(REPLIES)).invoke(TEA, config)
        lcel("Is it supported? {a}", model("yes")).invoke({"a": answer}, config)


@app(TRUTH)
def missed_the_cache(config: Config) -> None:
    """The cache is a retriever, too, and holds nothing."""
    cache = shelf("Coffee is roasted.")

    def look(question: str, config: Config) -> str:
        cached = cache.invoke(question, config)
        return (
            joined(cached)
            if cached
            else rag(SHOP | joined, model(REPLIES)).invoke(question, config)
        )

    RunnableLambda(look).invoke(TEA, config)


@app()
def sources_looked_up_after(config: Config) -> None:
    """A model answers from memory; its sources are searched afterwards."""
    memory = model("Two minutes are enough for green tea, I think.")
    chain = RunnablePassthrough.assign(
        answer=lcel("From memory: {question}", memory)
    ) | RunnablePassthrough.assign(sources=itemgetter("answer") | SHOP)
    chain.invoke({"question": TEA}, config)


@app()
def found_and_thrown_away(config: Config) -> None:
    """A retriever whose result is not used, before a classification."""
    log = RunnableLambda(lambda asked: SHOP.invoke(asked["text"]) and asked)
    text = "My green tea is cold, I want my money back"
    (log | lcel("Classify: {text}", model("complaint"))).invoke({"text": text}, config)


CLEAN = "Clean the pot of tea with water alone."
FIRST_TWO = RunnableLambda(lambda found: joined(found[:2]))
THREE = shelf(*PAGES, CLEAN, k=3) | FIRST_TWO


@app(TRUTH)
def old_message_quotes_a_dropped_passage(config: Config) -> None:
    """An old message quotes a passage that was found again now, and dropped by code."""
    prompt = ChatPromptTemplate.from_messages(
        [("human", "Any advice?"), ("ai", CLEAN), ("human", GROUNDED)]
    )
    chain = {"context": THREE, "question": RunnablePassthrough()} | prompt | model(REPLIES)
    (chain | StrOutputParser()).invoke(TEA, config)


@app(TRUTH)
def example_in_the_prompt(config: Config) -> None:
    """The prompt shows an example, and code drops a passage that was found."""
    example = "Example context: White tea takes five minutes.\nExample answer: Five minutes."
    rag(THREE, model(REPLIES), f"{example}\n\n{GROUNDED}").invoke(TEA, config)
