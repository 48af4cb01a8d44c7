"""The how-to pages on query analysis: the retrieval query differs from the user's input."""

from __future__ import annotations

import json
from operator import itemgetter
from typing import Any, Literal

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.output_parsers.openai_tools import PydanticToolsParser
from langchain_core.prompts import ChatPromptTemplate, FewShotChatMessagePromptTemplate
from langchain_core.runnables import (
    RunnableBranch,
    RunnableLambda,
    RunnablePassthrough,
    chain,
)
from pydantic import BaseModel, Field

from .kit import Config, Truth, app
from .langchain_kit import model, store, text_of

CHECK_IN = "Check-in is from 15:00; late arrivals after 22:00 use the key box, code 4711."
PARKING = "The car park is behind the house and costs 9 euros a night."
BREAKFAST = "Breakfast is served from 7 to 10, on Sundays until 11."
BIKES = "Bicycles can be hired at the desk for 15 euros a day, helmets included."
HOTEL = (CHECK_IN, PARKING, BREAKFAST, BIKES)


def lines(docs: list[Document]) -> str:
    return "\n".join(d.page_content for d in docs)


LATE = "We'll be there around midnight, ok?"


@app(
    Truth(question=LATE, contexts=(CHECK_IN,), answer="Yes: the key box has the code 4711."),
    page="Query rewriting: rewrite-retrieve-read",
)
def rewrite_retrieve_read(config: Config) -> None:
    rewriter = (
        ChatPromptTemplate.from_template("Give a better search query for: {x} Answer:")
        | model("late arrivals check-in key box")
        | StrOutputParser()
    )
    rag = (
        {
            "context": {"x": RunnablePassthrough()}
            | rewriter
            | store(*HOTEL).as_retriever(search_kwargs={"k": 1})
            | lines,
            "question": RunnablePassthrough(),
        }
        | ChatPromptTemplate.from_template("<context>{context}</context>\nQuestion: {question}")
        | model("Yes: the key box has the code 4711.")
        | StrOutputParser()
    )
    rag.invoke(LATE, config)


@app(
    Truth(
        question=LATE, contexts=(CHECK_IN,), answer="That is fine, use the key box with code 4711."
    ),
    page="HyDE: retrieve by a hypothetical document",
)
def hypothetical_document(config: Config) -> None:
    hyde = (
        ChatPromptTemplate.from_template("Please write a passage that answers: {question}")
        | model("Guests with late arrivals after ten can check in by a key box.")
        | StrOutputParser()
    )
    retrieval = hyde | store(*HOTEL).as_retriever(search_kwargs={"k": 1})

    @chain
    def desk(question: str) -> str:
        docs = retrieval.invoke({"question": question})
        prompt = f"Answer the following question based on this context:\n\n{docs[0].page_content}\n\nQuestion: {question}"
        return str(model("That is fine, use the key box with code 4711.").invoke(prompt).content)

    desk.invoke(LATE, config)


STAY = "What do parking and a bicycle cost?"


class SubQuery(BaseModel):
    """Search over the hotel's pages."""

    sub_query: str = Field(description="A very specific query.")


@app(
    Truth(
        question=STAY,
        contexts=(PARKING, BIKES),
        answer="Parking is 9 euros a night, a bicycle 15 euros a day.",
    ),
    page="How to do query decomposition, with several searches",
)
def query_decomposition(config: Config) -> None:
    from .langchain_kit import calls

    llm = model(
        calls(
            ("SubQuery", {"sub_query": "car park costs"}),
            ("SubQuery", {"sub_query": "bicycle hire"}),
        )
    )
    analyzer = (
        ChatPromptTemplate.from_messages([("system", "Decompose."), ("human", "{question}")])
        | llm.bind_tools([SubQuery])
        | PydanticToolsParser(tools=[SubQuery])
    )
    retriever = store(*HOTEL).as_retriever(search_kwargs={"k": 1})

    def search(queries: list[SubQuery]) -> list[Document]:
        return [doc for docs in retriever.batch([q.sub_query for q in queries]) for doc in docs]

    answer = (
        RunnablePassthrough.assign(context=analyzer | search | lines)
        | ChatPromptTemplate.from_template("{context}\n---\n{question}")
        | model("Parking is 9 euros a night, a bicycle 15 euros a day.")
    )
    answer.invoke({"question": STAY}, config)


@app(
    Truth(
        question="Can we eat at half past ten next Sunday?",
        contexts=(BREAKFAST, CHECK_IN),
        answer="Yes, breakfast is served until eleven on Sundays.",
    ),
    page="Step-back prompting: a general question is searched beside the one that was asked",
)
def step_back(config: Config) -> None:
    retriever = store(*HOTEL).as_retriever(search_kwargs={"k": 1})
    examples = FewShotChatMessagePromptTemplate(
        example_prompt=ChatPromptTemplate.from_messages([("human", "{input}"), ("ai", "{output}")]),
        examples=[{"input": "Is the pool open at 6?", "output": "When is the pool open?"}],
    )
    step_back_prompt = ChatPromptTemplate.from_messages(
        [("system", "Step back to a more generic question."), examples, ("user", "{question}")]
    )
    generic = step_back_prompt | model("Which times are there for check-in?") | StrOutputParser()
    response = ChatPromptTemplate.from_template(
        "# {normal_context}\n# {step_back_context}\n# Original Question: {question}\n# Answer:"
    )
    steps = (
        {
            "normal_context": RunnableLambda(lambda _: "breakfast Sundays") | retriever | lines,
            "step_back_context": generic | retriever | lines,
            "question": itemgetter("question"),
        }
        | response
        | model("Yes, breakfast is served until eleven on Sundays.")
        | StrOutputParser()
    )
    steps.invoke({"question": "Can we eat at half past ten next Sunday?"}, config)


def fused(ranked: list[list[Document]]) -> list[Document]:
    """Reciprocal rank fusion."""
    scores: dict[str, float] = {}
    by_text = {}
    for docs in ranked:
        for rank, doc in enumerate(docs):
            by_text[doc.page_content] = doc
            scores[doc.page_content] = scores.get(doc.page_content, 0.0) + 1 / (rank + 60)
    best = sorted(scores, key=lambda text: -scores[text])
    return [by_text[text] for text in best][:2]


@app(
    Truth(
        question="Is there a place for the car, and what does it cost?",
        contexts=(PARKING, BIKES),
        answer="There is a car park behind the house, 9 euros a night.",
    ),
    page="RAG fusion: several queries, reciprocal rank fusion",
)
def rag_fusion(config: Config) -> None:
    retriever = store(*HOTEL).as_retriever(search_kwargs={"k": 2})
    generate_queries = (
        ChatPromptTemplate.from_messages(
            [
                ("system", "You generate several search queries."),
                ("user", "Three queries for: {q}"),
            ]
        )
        | model("car park costs euros\nparking behind house euros\nhire a bicycle, euros")
        | StrOutputParser()
        | (lambda text: text.split("\n"))
    )
    fusion = generate_queries | retriever.map() | fused
    final = (
        {"context": fusion | lines, "q": itemgetter("q")}
        | ChatPromptTemplate.from_template("Context:\n{context}\n\nGuest: {q}")
        | model("There is a car park behind the house, 9 euros a night.")
        | StrOutputParser()
    )
    final.invoke({"q": "Is there a place for the car, and what does it cost?"}, config)


class Routed(BaseModel):
    """Where a question goes."""

    data_source: Literal["kitchen", "house"]


SOUP = "The soup of the day is leek and potato, without cream."
SPA = "The sauna is heated from four in the afternoon."


@app(
    Truth(
        question="Is there cream in the soup?",
        contexts=(SOUP,),
        answer="No, the soup is without cream.",
    ),
    page="How to route between sub-chains: structured output and a function",
)
def routed_by_structured_output(config: Config) -> None:
    llm = model({"data_source": "kitchen"}, "No, the soup is without cream.")
    retrievers = {
        "kitchen": store(SOUP, BREAKFAST).as_retriever(search_kwargs={"k": 1}),
        "house": store(SPA, CHECK_IN).as_retriever(search_kwargs={"k": 1}),
    }
    router = ChatPromptTemplate.from_template("Route: {question}") | llm.with_structured_output(
        Routed
    )

    def route(info: dict[str, Any]) -> Any:
        retriever = retrievers[info["route"].data_source]
        return (
            RunnablePassthrough.assign(context=itemgetter("question") | retriever | lines)
            | ChatPromptTemplate.from_template("{context}\n\n{question}")
            | llm
            | StrOutputParser()
        )

    whole = {"route": router, "question": itemgetter("question")} | RunnableLambda(route)
    whole.invoke({"question": "Is there cream in the soup?"}, config)


@app(
    Truth(
        question="When can I go to the sauna?",
        contexts=(SPA,),
        answer="From four in the afternoon.",
    ),
    page="RunnableBranch: smalltalk or retrieval",
)
def routed_by_branch(config: Config) -> None:
    llm = model("question", "From four in the afternoon.", "Nice to hear!")
    classify = ChatPromptTemplate.from_template("smalltalk or question? {input}") | llm
    retriever = store(SPA, SOUP).as_retriever(search_kwargs={"k": 1})
    answer = (
        RunnablePassthrough.assign(facts=itemgetter("input") | retriever | lines)
        | ChatPromptTemplate.from_template("{facts} // {input}")
        | llm
    )
    chat = ChatPromptTemplate.from_template("Be friendly: {input}") | llm
    branch = RunnableBranch((lambda x: "smalltalk" in text_of(x["topic"]), chat), answer)
    full = RunnablePassthrough.assign(topic=classify) | branch | StrOutputParser()
    full.invoke({"input": "When can I go to the sauna?"}, config)


@app(page="RunnableBranch: smalltalk or retrieval, the branch without retrieval")
def routed_to_smalltalk(config: Config) -> None:
    llm = model("smalltalk", "Nice to hear!")
    classify = ChatPromptTemplate.from_template("smalltalk or question? {input}") | llm
    chat = ChatPromptTemplate.from_template("Be friendly: {input}") | llm
    branch = RunnableBranch((lambda x: "smalltalk" in text_of(x["topic"]), chat), chat)
    full = RunnablePassthrough.assign(topic=classify) | branch | StrOutputParser()
    full.invoke({"input": "I love your garden."}, config)


TIER = "Der Hund des Hauses heißt Bruno und liegt gern vor dem Kamin."
KATZE = "Die Katze darf nicht in die Küche."


@app(
    Truth(
        question="What is the dog called?",
        contexts=(TIER,),
        answer="The dog is called Bruno.",
    ),
    page="Cross-lingual RAG: the question is translated, and so is the answer",
)
def translated_there_and_back(config: Config) -> None:
    to_german = (
        ChatPromptTemplate.from_template("Translate to German: {text}")
        | model("Wie heißt der Hund des Hauses?")
        | StrOutputParser()
    )
    to_english = (
        ChatPromptTemplate.from_template("Translate to English: {text}")
        | model("The dog is called Bruno.")
        | StrOutputParser()
    )
    haus = store(TIER, KATZE).as_retriever(search_kwargs={"k": 1})
    deutsch = (
        {"kontext": haus | lines, "frage": RunnablePassthrough()}
        | ChatPromptTemplate.from_template("Kontext: {kontext}\nFrage: {frage}")
        | model("Der Hund heißt Bruno.")
        | StrOutputParser()
    )
    whole = (
        {"text": RunnablePassthrough()}
        | to_german
        | deutsch
        | {"text": RunnablePassthrough()}
        | to_english
    )
    whole.invoke("What is the dog called?", config)


@app(
    Truth(
        question="And for the bicycles?",
        contexts=(BIKES,),
        answer="15 euros a day, and the helmet is included.",
    ),
    page="How to handle cases where no query is generated; a conversation in the input",
)
def follow_up_condensed_by_hand(config: Config) -> None:
    history = [
        HumanMessage("What does the car park cost?"),
        AIMessage("9 euros a night."),
        HumanMessage("And for the bicycles?"),
    ]
    llm = model("How can bicycles be hired?", "15 euros a day, and the helmet is included.")
    retriever = store(*HOTEL).as_retriever(search_kwargs={"k": 1})

    def condense(messages: list[Any]) -> str:
        if len(messages) == 1:
            return text_of(messages[0])
        transcript = "\n".join(f"{m.type}: {text_of(m)}" for m in messages)
        return text_of(llm.invoke(f"Make the last question stand alone.\n{transcript}"))

    def respond(inputs: dict[str, Any]) -> AIMessage:
        system = ("system", f"House information: {lines(inputs['docs'])}")
        return llm.invoke([system, *inputs["messages"]])

    bot = {
        "docs": RunnableLambda(condense) | retriever,
        "messages": RunnablePassthrough(),
    } | RunnableLambda(respond)
    bot.invoke(history, config)


class Filters(BaseModel):
    """What to look for."""

    text: str
    max_price: int | None = None


@app(
    Truth(
        question="Anything below ten euros around the house?",
        contexts=(PARKING,),
        answer="Only the car park.",
    ),
    page="How to construct filters for query analysis, structured output by JSON schema",
)
def filters_by_json_schema(config: Config) -> None:
    shop = store(Document(PARKING, metadata={"price": 9}), Document(BIKES, metadata={"price": 15}))
    llm = model({"text": "house", "max_price": 10}, "Only the car park.")
    structured = llm.with_structured_output(Filters, method="json_schema")

    @chain
    def ask(request: dict[str, str]) -> str:
        wanted = structured.invoke(f"Extract filters as JSON: {request['ask']}")
        retriever = shop.as_retriever(
            search_kwargs={"filter": lambda d: d.metadata["price"] < wanted.max_price}
        )
        found = [{"offer": d.page_content} for d in retriever.invoke(wanted.text)]
        return text_of(llm.invoke(f"Offers: {json.dumps(found)}\nCustomer: {request['ask']}"))

    ask.invoke({"ask": "Anything below ten euros around the house?"}, config)
