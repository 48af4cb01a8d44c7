"""The how-to pages on query analysis: the retrieval query differs from the user's input."""

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.output_parsers.openai_tools import PydanticToolsParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableBranch, RunnablePassthrough, chain
from pydantic import BaseModel, Field

from .kit import Config, app, turn
from .langchain_kit import model, store, text_of

CHECK_IN = "Check-in is from 15:00; late arrivals after 22:00 use the key box, code 4711."
PARKING = "The car park is behind the house and costs 9 euros a night."
BREAKFAST = "Breakfast is served from 7 to 10, on Sundays until 11."
BIKES = "Bicycles can be hired at the desk for 15 euros a day, helmets included."
HOTEL = (CHECK_IN, PARKING, BREAKFAST, BIKES)


def lines(docs: list[Document]) -> str:
    return "\n".join(d.page_content for d in docs)


LATE = "We'll be there around midnight, ok?"


@turn(LATE, (CHECK_IN,), "That is fine, use the key box with code 4711.")
def hypothetical_document(config: Config, answer: str) -> None:
    """HyDE: retrieve by a hypothetical document."""
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
        return str(model(answer).invoke(prompt).content)

    desk.invoke(LATE, config)


STAY = "What do parking and a bicycle cost?"


class SubQuery(BaseModel):
    """Search over the hotel's pages."""

    sub_query: str = Field(description="A very specific query.")


@turn(STAY, (PARKING, BIKES), "Parking is 9 euros a night, a bicycle 15 euros a day.")
def query_decomposition(config: Config, question: str) -> None:
    """How to do query decomposition, with several searches."""
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
    answer.invoke({"question": question}, config)


@app()
def routed_to_smalltalk(config: Config) -> None:
    """RunnableBranch: smalltalk or retrieval, the branch without retrieval."""
    llm = model("smalltalk", "Nice to hear!")
    classify = ChatPromptTemplate.from_template("smalltalk or question? {input}") | llm
    chat = ChatPromptTemplate.from_template("Be friendly: {input}") | llm
    branch = RunnableBranch((lambda x: "smalltalk" in text_of(x["topic"]), chat), chat)
    full = RunnablePassthrough.assign(topic=classify) | branch | StrOutputParser()
    full.invoke({"input": "I love your garden."}, config)


TIER = "Der Hund des Hauses heißt Bruno und liegt gern vor dem Kamin."
KATZE = "Die Katze darf nicht in die Küche."


@turn("What is the dog called?", (TIER,), "The dog is called Bruno.")
def translated_there_and_back(config: Config, question: str, answer: str) -> None:
    """Cross-lingual RAG: the question is translated, and so is the answer."""
    to_german = (
        ChatPromptTemplate.from_template("Translate to German: {text}")
        | model("Wie heißt der Hund des Hauses?")
        | StrOutputParser()
    )
    to_english = (
        ChatPromptTemplate.from_template("Translate to English: {text}")
        | model(answer)
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
    whole.invoke(question, config)
