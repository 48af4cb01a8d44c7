"""Chains: of the classic package and of LCEL, by layout, retriever, query and answer."""

import datetime as dt
import html
import json
import textwrap
from operator import itemgetter
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import (
    Runnable,
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    chain,
)
from langchain_core.vectorstores import InMemoryVectorStore
from pydantic import BaseModel, Field

from .kit import Config, Truth, app, turn
from .langchain_kit import (
    KeywordRetriever,
    Words,
    call,
    classic,
    completion_model,
    documents,
    joined,
    lcel,
    lines,
    model,
    retriever,
    search_tool,
    text_of,
)

CHEETAH = "The cheetah is capable of running at 93 to 104 km/h; it has evolved for speed."
FALCON = "The peregrine falcon dives at more than 320 km/h, which makes it the fastest animal."
SLOTH = "Sloths move at 0.24 km/h and sleep fifteen hours a day."
ARTICLES = [
    Document(text, metadata={"title": title, "source": f"https://wiki.example.org/{title}"})
    for title, text in (("Cheetah", CHEETAH), ("Falcon", FALCON), ("Sloth", SLOTH))
]
SPEED = "Cheetahs run at 93 to 104 km/h."


def animals(k: int = 2) -> Any:
    return retriever(*ARTICLES, k=k)


def titled(docs: list[Document]) -> str:
    return "\n\n".join(
        f"Article Title: {d.metadata['title']}\nArticle Snippet: {d.page_content}" for d in docs
    )


class CitedAnswer(BaseModel):
    """Answer based only on the given sources, and cite the sources used."""

    answer: str = Field(description="The answer.")
    citations: list[int] = Field(description="The IDs of the sources that justify the answer.")


@turn(
    "How fast are cheetahs?",
    (CHEETAH, SLOTH),
    SPEED,
    also=({"answer": json.dumps({"answer": SPEED, "citations": [0]})},),
)
def citations_by_structured_output(config: Config, question: str, answer: str) -> None:
    """How to get a RAG application to add citations: tool calling."""
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Here are the articles: {context}"), ("human", "{question}")]
    )

    def numbered(docs: list[Document]) -> str:
        return "\n\n".join(f"Source ID: {i}\n{titled([d])}" for i, d in enumerate(docs))

    llm = model(CitedAnswer(answer=answer, citations=[0]))
    rag = RunnablePassthrough.assign(context=itemgetter("docs") | RunnableLambda(numbered)) | (
        prompt | llm.with_structured_output(CitedAnswer)
    )
    whole = {"docs": itemgetter("question") | animals(), "question": itemgetter("question")} | rag
    assert whole.invoke({"question": question}, config).citations == [0]


@turn("How do I outrun a cheetah?", (CHEETAH, SLOTH), "I would rather not answer that.")
def guardrail_that_replaces_the_answer(config: Config, question: str, answer: str) -> None:
    """A guardrail after the answer that replaces it."""
    llm = model("Run at 105 km/h, or hide.", "UNSAFE")

    @chain
    def guarded(asked: str) -> str:
        context = titled(animals().invoke(asked))
        draft = llm.invoke([("system", context), ("human", asked)])
        verdict = llm.invoke([("system", "SAFE or UNSAFE?"), ("human", text_of(draft))])
        return text_of(draft) if verdict.content == "SAFE" else answer

    guarded.invoke(question, config)


WARRANTY = "The warranty is two years from the day of delivery, five years on the motor."
RETURNS = "Goods can be returned within 30 days if the box is undamaged."
SPARE = "Spare parts are sold for ten years after a mower has been discontinued."
MOTOR = "How long is the motor under warranty?"


def warranty_qa(llm: Any, chain_type: str) -> Any:
    found = retriever(WARRANTY, RETURNS, SPARE, k=2)
    make = classic("chains").RetrievalQA.from_chain_type
    return make(llm=llm, chain_type=chain_type, retriever=found)


@turn(MOTOR, (WARRANTY, SPARE), "The motor: five years.")
def retrieval_qa_map_reduce(config: Config, question: str, answer: str) -> None:
    """RetrievalQA, map_reduce, with a completion model."""
    partly = {"Use the following portion": "It says something about years."}
    llm = completion_model({"Content:": answer, **partly})
    warranty_qa(llm, "map_reduce").invoke(question, config)


@turn(MOTOR, (WARRANTY, SPARE), "Five years, all else two.")
def retrieval_qa_refine(config: Config, question: str, answer: str) -> None:
    """RetrievalQA, refine."""
    warranty_qa(model("Five years.", answer), "refine").invoke({"query": question}, config)


OPEN_BOX, LATER = "I opened the box. Can I still send it back?", "And after that?"
UNDAMAGED, THEN = "Yes, if the box is undamaged.", "Then only the warranty of two years helps."


@app(
    Truth(OPEN_BOX, (RETURNS, SPARE, WARRANTY), UNDAMAGED),
    Truth(LATER, (WARRANTY, RETURNS, SPARE), THEN),
)
def conversational_retrieval_chain(config: Config) -> None:
    """ConversationalRetrievalChain with a buffer memory."""
    llm = model(UNDAMAGED, "After 30 days, is there a warranty from delivery?", THEN)
    buffer = classic("memory").ConversationBufferMemory
    memory = buffer(memory_key="chat_history", return_messages=True)
    make = classic("chains").ConversationalRetrievalChain.from_llm
    qa = make(llm, retriever=retriever(WARRANTY, RETURNS, SPARE), memory=memory)
    for question in (OPEN_BOX, LATER):
        qa.invoke({"question": question}, config)


ROOM = "The reading room is silent; phones stay in the lockers."
LOAN = "Books are lent for four weeks and can be renewed twice unless another reader waits."
FINE = "A late book costs 50 cents a day; after 30 days it counts as lost."


@turn("May I phone in the reading room?", (ROOM,), "No, phones stay in the lockers.")
def agent_executor(config: Config, question: str, answer: str) -> None:
    """AgentExecutor with create_tool_calling_agent and a retriever tool."""
    agents, rules = classic("agents"), search_tool("library_rules", ROOM, LOAN, k=1)
    prompt = ChatPromptTemplate.from_messages(
        [
            ("system", "You help readers."),
            MessagesPlaceholder("chat_history", optional=True),
            ("human", "{input}"),
            MessagesPlaceholder("agent_scratchpad"),
        ]
    )
    llm = model(call("library_rules", query="phones reading room"), answer)
    agent = agents.create_tool_calling_agent(llm, [rules], prompt)
    history = [HumanMessage("Hello"), AIMessage("Hello, what can I do for you?")]
    asked = {"input": question, "chat_history": history}
    agents.AgentExecutor(agent=agent, tools=[rules]).invoke(asked, config)


@app()
def summarize_documents(config: Config) -> None:
    """load_summarize_chain over given documents."""
    chain = classic("chains.summarize").load_summarize_chain(
        model("Rules on silence, loans and fines."), chain_type="stuff"
    )
    chain.invoke({"input_documents": documents(ROOM, LOAN, FINE)}, config)


RYE = "Rye loaf: rye flour, wheat flour, water, salt. Contains gluten."
ALMOND = "Almond horn: almonds, egg white, sugar. Contains nuts & egg. No gluten."
BRIOCHE = 'Brioche ("Zopf"): wheat flour, butter, milk, egg. Contains gluten, milk & egg.'
NUTS = "Is there anything without gluten for my aunt?"


@turn(NUTS, (RYE, ALMOND, BRIOCHE), "The almond horn has no gluten, but nuts and egg.")
def documents_html_escaped(config: Config, question: str, answer: str) -> None:
    """LCEL with documents escaped for an HTML-like prompt."""

    def escaped(docs: list[Document]) -> str:
        return "\n".join(f"<item>{html.escape(d.page_content)}</item>" for d in docs)

    sheet = retriever(RYE, ALMOND, BRIOCHE) | escaped
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Allergen sheet:\n{sheet}"), ("user", "{guest}")]
    )
    shown = RunnableParallel(sheet=sheet, guest=RunnablePassthrough())
    (shown | prompt | model(answer) | StrOutputParser()).invoke(question, config)


RETAKE = """§ 14 Wiederholung von Prüfungen

(1) Nicht bestandene Prüfungen können zweimal wiederholt werden.

(2) Die Wiederholung muss innerhalb von zwei Semestern erfolgen."""
SICK = """§ 16 Rücktritt

(1) Wer krank ist, legt spätestens am dritten Werktag ein ärztliches Attest vor."""
GRADES = "§ 11 Bewertung\n\nEine Prüfung ist bestanden, wenn sie mindestens mit 4,0 bewertet wurde."
WIE_OFT = "Wie oft kann ich eine nicht bestandene Prüfung wiederholen?"


@turn(WIE_OFT, (GRADES, RETAKE), "Zweimal, und zwar innerhalb von zwei Semestern (§ 14).")
def documents_numbered_and_indented(config: Config, question: str, answer: str) -> None:
    """LCEL in German, documents numbered and indented."""

    def nummeriert(fundstellen: list[Document]) -> str:
        return "\n\n".join(
            f"[{nr}] " + textwrap.indent(f.page_content, "    ").strip()
            for nr, f in enumerate(fundstellen, start=1)
        )

    ordnung = retriever(RETAKE, SICK, GRADES, quelle="PO 2024", k=2)
    vorlage = ChatPromptTemplate(
        [
            ("system", "Sie beraten Studierende. Nennen Sie den Paragraphen."),
            ("human", "Fundstellen:\n{fundstellen}\n\nFrage: {frage}"),
        ]
    )
    gefunden = RunnablePassthrough.assign(fundstellen=itemgetter("frage") | ordnung | nummeriert)
    kette = gefunden | vorlage | model(answer) | StrOutputParser()
    kette.invoke({"frage": question}, config)


BOILER = (
    f"Venting the boiler. {'Turn the key a quarter left until water comes. ' * 9}Then close it."
)
PUMP = f"Changing the pump. {'Close both valves before you loosen the screws. ' * 9}Renew the seal."
PRESSURE = "How do I vent the boiler?"


@turn(
    PRESSURE,
    (BOILER[:150], PUMP[:150]),
    "Turn the key a quarter to the left until water comes.",
    also=({"contexts": (BOILER, PUMP)},),
)
def documents_truncated(config: Config, question: str, answer: str) -> None:
    """LCEL with documents cut to a number of characters."""

    def shortened(docs: list[Document]) -> str:
        return "\n\n".join(f"{d.page_content[:150]}..." for d in docs)

    shown = {"manual": retriever(BOILER, PUMP) | shortened, "problem": RunnablePassthrough()}
    helpdesk = shown | lcel("Manual:\n{manual}\n\nProblem: {problem}\nHelp:", model(answer))
    for _ in helpdesk.stream(question, config):
        pass


@turn(PRESSURE, (BOILER,), "A quarter turn of the key to the left vents it.")
def only_the_best_document(config: Config, question: str, answer: str) -> None:
    """LCEL that uses only the first of the documents it finds."""
    best = retriever(BOILER, PUMP) | (lambda docs: docs[0].page_content)
    shown = {"page": best, "problem": RunnablePassthrough()}
    (shown | lcel("{page}\n\n{problem}", model(answer))).invoke(question, config)


LEAVE_HI = "कर्मचारियों को हर साल 24 दिन का सवैतनिक अवकाश मिलता है।"
PAY_HI = "वेतन हर महीने की 28 तारीख को बैंक खाते में जमा होता है।"
HOW_MUCH_HI = "साल में कितने दिन का अवकाश मिलता है?"


@turn(HOW_MUCH_HI, (LEAVE_HI, PAY_HI), "साल में 24 दिन का अवकाश मिलता है।")
def documents_in_content_blocks(config: Config, question: str, answer: str) -> None:
    """Multimodal how-to: a human message of several text blocks, in Hindi."""

    def to_message(inputs: dict[str, Any]) -> list[HumanMessage]:
        texts = [*(d.page_content for d in inputs["docs"]), inputs["sawal"]]
        return [HumanMessage([{"type": "text", "text": text} for text in texts])]

    shown = {"docs": retriever(LEAVE_HI, PAY_HI), "sawal": RunnablePassthrough()}
    uttar = shown | RunnableLambda(to_message) | model(answer) | StrOutputParser()
    uttar.invoke(question, config)


CHECK_IN = "Check-in is from 15:00; late arrivals after 22:00 use the key box, code 4711."
PARKING = "The car park is behind the house and costs 9 euros a night."
BREAKFAST = "Breakfast is served from 7 to 10, on Sundays until 11."
BIKES = "Bicycles can be hired at the desk for 15 euros a day, helmets included."
HOTEL = (CHECK_IN, PARKING, BREAKFAST, BIKES)


@turn("We'll be there around midnight, ok?", (CHECK_IN,), "Fine, use the key box with code 4711.")
def hypothetical_document(config: Config, question: str, answer: str) -> None:
    """HyDE: retrieve by a hypothetical document."""
    made_up = model("Guests with late arrivals after ten can check in by a key box.")
    hyde = lcel("Please write a passage that answers: {question}", made_up)
    retrieval = hyde | retriever(*HOTEL, k=1)

    @chain
    def desk(asked: str) -> str:
        (found,) = retrieval.invoke({"question": asked})
        context = f"Answer the following question based on this context:\n\n{found.page_content}"
        return str(model(answer).invoke(f"{context}\n\nQuestion: {asked}").content)

    desk.invoke(question, config)


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
    text = {"text": RunnablePassthrough()}
    to_german = lcel("Translate to German: {text}", model("Wie heißt der Hund des Hauses?"))
    to_english = lcel("Translate to English: {text}", model(answer))
    kontext = {"kontext": retriever(TIER, KATZE, k=1) | lines, "frage": RunnablePassthrough()}
    deutsch = kontext | lcel("Kontext: {kontext}\nFrage: {frage}", model("Der Hund heißt Bruno."))
    (text | to_german | deutsch | text | to_english).invoke(question, config)


COFFEE = "Coffee is grown between the tropics; the bean is the seed of a cherry."
ROAST = "A dark roast is bitter, since the sugars of the bean have burnt."
GRIND = "Espresso wants a fine grind, filter coffee a medium one, the French press a coarse one."
WATER = "Brew with water of 92 to 96 degrees, just off the boil."
MILK = "Milk foams best when it is cold and has some fat."
PAGES = (COFFEE, ROAST, GRIND, WATER, MILK)


def barista(finder: Runnable[Any, Any], llm: Any) -> Runnable[str, str]:
    """The chain that most of the pages end with."""
    prompt = "Answer from the context.\n\nContext: {context}\n\nQuestion: {question}"
    return {"context": finder | joined, "question": RunnablePassthrough()} | lcel(prompt, llm)


GRINDER = "How fine should I grind for espresso?"


@turn(GRINDER, (GRIND, ROAST), "Finely.")
def multi_query_retriever(config: Config, question: str, answer: str) -> None:
    """How to use the MultiQueryRetriever."""
    llm = model("Espresso fine grind?\nWhy is dark roast bitter?", answer)
    make = classic("retrievers").MultiQueryRetriever.from_llm
    barista(make(retriever=retriever(*PAGES, k=1), llm=llm), llm).invoke(question, config)


@turn(
    "What temperature should water to brew with have?", (WATER, COFFEE, MILK), "92 to 96 degrees."
)
def ensemble_retriever(config: Config, question: str, answer: str) -> None:
    """How to combine results from several retrievers: EnsembleRetriever."""
    both = [KeywordRetriever(documents=documents(*PAGES), k=1), retriever(*PAGES, k=3)]
    hybrid = classic("retrievers").EnsembleRetriever(retrievers=both, weights=[0.5, 0.5])
    barista(hybrid, model(answer)).invoke(question, config)


class Relevant(InMemoryVectorStore):
    """A store that takes similarity for relevance."""

    def _select_relevance_score_fn(self) -> Any:
        return lambda similarity: similarity


NOTE_OLD = "The team's room is 204."
NOTE_NEW = "The team's room is 311, since the move."


@turn("Which room is the team's?", (NOTE_NEW, NOTE_OLD), "Room 311.")
def time_weighted_retriever(config: Config, question: str, answer: str) -> None:
    """How to use a time-weighted vector store retriever."""
    weighted = classic("retrievers").TimeWeightedVectorStoreRetriever(
        vectorstore=Relevant(Words()), decay_rate=0.5, k=2
    )
    long_ago = dt.datetime.now() - dt.timedelta(days=30)  # noqa: DTZ005 - as it does
    weighted.add_documents([Document(NOTE_OLD, metadata={"last_accessed_at": long_ago})])
    weighted.add_documents([Document(NOTE_NEW)])
    barista(weighted, model(answer)).invoke(question, config)


@turn("Who owns the moon?", (), "I have found nothing on that.")
def nothing_found(config: Config, question: str, answer: str) -> None:
    """Similarity score threshold retrieval that finds nothing."""
    finder = KeywordRetriever(documents=documents(ROAST, MILK))
    barista(finder, model(answer)).invoke(question, config)
