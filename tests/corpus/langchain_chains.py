"""Chains: of the classic package and of LCEL, by layout, retriever, query and answer."""

import datetime as dt
import html
import json
import textwrap
from operator import itemgetter
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import CommaSeparatedListOutputParser, StrOutputParser
from langchain_core.output_parsers.openai_tools import PydanticToolsParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
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
    lcel,
    model,
    store,
    text_of,
)

CHEETAH = Document(
    "The cheetah is capable of running at 93 to 104 km/h; it has evolved for speed.",
    metadata={"title": "Cheetah", "source": "https://wiki.example.org/Cheetah"},
)
FALCON = Document(
    "The peregrine falcon dives at more than 320 km/h, which makes it the fastest animal.",
    metadata={"title": "Falcon", "source": "https://wiki.example.org/Falcon"},
)
SLOTH = Document(
    "Sloths move at 0.24 km/h and sleep fifteen hours a day.",
    metadata={"title": "Sloth", "source": "https://wiki.example.org/Sloth"},
)
FAST = "How fast are cheetahs?"
SPEED = "Cheetahs run at 93 to 104 km/h."


def animals(k: int = 2) -> Any:
    return store(CHEETAH, FALCON, SLOTH).as_retriever(search_kwargs={"k": k})


def titled(docs: list[Document]) -> str:
    return "\n\n".join(
        f"Article Title: {d.metadata['title']}\nArticle Snippet: {d.page_content}" for d in docs
    )


class CitedAnswer(BaseModel):
    """Answer based only on the given sources, and cite the sources used."""

    answer: str = Field(description="The answer.")
    citations: list[int] = Field(description="The IDs of the sources that justify the answer.")


@turn(
    FAST,
    (CHEETAH.page_content, SLOTH.page_content),
    SPEED,
    also=({"answer": '{"answer": "Cheetahs run at 93 to 104 km/h.", "citations": [0]}'},),
)
def citations_by_structured_output(config: Config, question: str, answer: str) -> None:
    """How to get a RAG application to add citations: tool calling."""
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Here are the articles: {context}"), ("human", "{question}")]
    )

    def numbered(docs: list[Document]) -> str:
        return "\n\n".join(
            f"Source ID: {i}\nArticle Title: {d.metadata['title']}\nArticle Snippet: {d.page_content}"
            for i, d in enumerate(docs)
        )

    llm = model(CitedAnswer(answer=answer, citations=[0]))
    rag = RunnablePassthrough.assign(context=itemgetter("docs") | RunnableLambda(numbered)) | (
        prompt | llm.with_structured_output(CitedAnswer)
    )
    whole = {"docs": itemgetter("question") | animals(), "question": itemgetter("question")} | rag
    result = whole.invoke({"question": question}, config)
    assert result.citations == [0]


@turn(
    "Which animals are faster than a car in town?",
    (FALCON.page_content, SLOTH.page_content, CHEETAH.page_content),
    "cheetah, falcon",
    also=({"answer": "['cheetah', 'falcon']"}, {"answer": '["cheetah", "falcon"]'}),
)
def list_as_the_answer(config: Config, question: str, answer: str) -> None:
    """A list as the answer, by CommaSeparatedListOutputParser."""
    rag = (
        {"articles": animals(3) | titled, "q": RunnablePassthrough()}
        | ChatPromptTemplate.from_template("{articles}\nList, separated by commas: {q}")
        | model(answer)
        | CommaSeparatedListOutputParser()
    )
    rag.invoke(question, config)


@turn(
    "How do I outrun a cheetah?",
    (CHEETAH.page_content, SLOTH.page_content),
    "I would rather not answer that.",
)
def guardrail_that_replaces_the_answer(config: Config, answer: str) -> None:
    """A guardrail after the answer that replaces it."""
    llm = model("Run at 105 km/h, or hide.", "UNSAFE")

    @chain
    def guarded(question: str) -> str:
        context = titled(animals().invoke(question))
        draft = llm.invoke([("system", context), ("human", question)])
        verdict = llm.invoke([("system", "SAFE or UNSAFE?"), ("human", text_of(draft))])
        return text_of(draft) if verdict.content == "SAFE" else answer

    guarded.invoke("How do I outrun a cheetah?", config)


@turn(
    "What is there on sloths?",
    (SLOTH.page_content, CHEETAH.page_content),
    "They are slow and sleepy.",
)
def documents_rewritten_before_the_answer(config: Config, question: str, answer: str) -> None:
    """Documents are shortened by a model before the answer is written."""
    short = {"Sloths move": "- 0.24 km/h, 15 h of sleep", "The cheetah": "- quick, 100 km/h"}
    llm = model({**short, "Facts:": answer})
    condense = ChatPromptTemplate.from_template("In five words: {page_content}") | llm

    def condensed(docs: list[Document]) -> str:
        notes = condense.batch([{"page_content": d.page_content} for d in docs])
        return "\n".join(text_of(n) for n in notes)

    whole = (
        {"facts": store(SLOTH, CHEETAH).as_retriever() | condensed, "q": RunnablePassthrough()}
        | ChatPromptTemplate.from_template("Facts:\n{facts}\n\n{q}")
        | llm
        | StrOutputParser()
    )
    whole.invoke(question, config)


WARRANTY = "The warranty is two years from the day of delivery, five years on the motor."
RETURNS = "Goods can be returned within 30 days if the box is undamaged."
SPARE = "Spare parts are sold for ten years after a mower has been discontinued."
MOTOR = "How long is the motor under warranty?"


@turn(MOTOR, (WARRANTY, SPARE), "The motor: five years.")
def retrieval_qa_map_reduce(config: Config, question: str, answer: str) -> None:
    """RetrievalQA, map_reduce, with a completion model."""
    llm = completion_model(
        {"Content:": answer, "Use the following portion": "It says something about years."}
    )
    qa = classic("chains").RetrievalQA.from_chain_type(
        llm=llm,
        chain_type="map_reduce",
        retriever=store(WARRANTY, RETURNS, SPARE).as_retriever(search_kwargs={"k": 2}),
    )
    qa.invoke(question, config)


@turn(MOTOR, (WARRANTY, SPARE), "Five years, all else two.")
def retrieval_qa_refine(config: Config, question: str, answer: str) -> None:
    """RetrievalQA, refine."""
    qa = classic("chains").RetrievalQA.from_chain_type(
        llm=model("Five years.", answer),
        chain_type="refine",
        retriever=store(WARRANTY, RETURNS, SPARE).as_retriever(search_kwargs={"k": 2}),
    )
    qa.invoke({"query": question}, config)


OPEN_BOX = "I opened the box. Can I still send it back?"


@app(
    Truth(
        OPEN_BOX, (RETURNS, SPARE, WARRANTY), "Yes, for 30 days, as long as the box is undamaged."
    ),
    Truth(
        "And after that?", (WARRANTY, RETURNS, SPARE), "Then only the warranty of two years helps."
    ),
)
def conversational_retrieval_chain(config: Config) -> None:
    """ConversationalRetrievalChain with a buffer memory."""
    llm = model(
        "Yes, for 30 days, as long as the box is undamaged.",
        "After 30 days, is there a warranty from delivery?",
        "Then only the warranty of two years helps.",
    )
    memory = classic("memory").ConversationBufferMemory(
        memory_key="chat_history", return_messages=True
    )
    qa = classic("chains").ConversationalRetrievalChain.from_llm(
        llm, retriever=store(WARRANTY, RETURNS, SPARE).as_retriever(), memory=memory
    )
    qa.invoke({"question": OPEN_BOX}, config)
    qa.invoke({"question": "And after that?"}, config)


ROOM = "The reading room is silent; phones stay in the lockers."
LOAN = "Books are lent for four weeks and can be renewed twice unless another reader waits."
FINE = "A late book costs 50 cents a day; after 30 days it counts as lost."


@turn("May I phone in the reading room?", (ROOM,), "No, phones stay in the lockers.")
def agent_executor(config: Config, question: str, answer: str) -> None:
    """AgentExecutor with create_tool_calling_agent and a retriever tool."""
    from langchain_core.tools import create_retriever_tool

    agents = classic("agents")
    rules = create_retriever_tool(
        store(ROOM, LOAN).as_retriever(search_kwargs={"k": 1}), "library_rules", "The rules."
    )
    prompt = ChatPromptTemplate.from_messages(
        [
            ("system", "You help readers."),
            MessagesPlaceholder("chat_history", optional=True),
            ("human", "{input}"),
            MessagesPlaceholder("agent_scratchpad"),
        ]
    )
    llm = model(call("library_rules", query="phones reading room"), answer)
    executor = agents.AgentExecutor(
        agent=agents.create_tool_calling_agent(llm, [rules], prompt), tools=[rules]
    )
    history = [HumanMessage("Hello"), AIMessage("Hello, what can I do for you?")]
    executor.invoke({"input": question, "chat_history": history}, config)


@turn("How much is a late book?", (FINE,), "It is 50 cents a day.")
def react_agent_in_text(config: Config, question: str) -> None:
    """ReAct agent in text with AgentExecutor: Thought, Action, Observation."""
    from langchain_core.tools import create_retriever_tool

    agents = classic("agents")
    search = create_retriever_tool(
        store(ROOM, LOAN, FINE).as_retriever(search_kwargs={"k": 1}), "Search", "Library rules."
    )
    prompt = PromptTemplate.from_template(
        "Tools:\n{tools}\nUse this format: Question, Thought, Action (one of [{tool_names}]), "
        "Action Input, Observation, Final Answer.\n\nQuestion: {input}\nThought:{agent_scratchpad}"
    )
    llm = completion_model(
        "I should look that up.\nAction: Search\nAction Input: late book costs",
        "I know it now.\nFinal Answer: It is 50 cents a day.",
    )
    executor = agents.AgentExecutor(
        agent=agents.create_react_agent(llm, [search], prompt), tools=[search]
    )
    executor.invoke({"input": question}, config)


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
def documents_html_escaped(config: Config, question: str) -> None:
    """LCEL with documents escaped for an HTML-like prompt."""

    def escaped(docs: list[Document]) -> str:
        return "\n".join(f"<item>{html.escape(d.page_content)}</item>" for d in docs)

    sheet = store(RYE, ALMOND, BRIOCHE).as_retriever()
    answer = (
        RunnableParallel(sheet=sheet | escaped, guest=RunnablePassthrough())
        | ChatPromptTemplate.from_messages(
            [("system", "Allergen sheet:\n{sheet}"), ("user", "{guest}")]
        )
        | model("The almond horn has no gluten, but nuts and egg.")
        | StrOutputParser()
    )
    answer.invoke(question, config)


LOCKERS = "Lockers\nBring your own lock. Lockers that are still closed at midnight are opened."
GUESTS = (
    'Guests\nMembers may bring one guest a month. It\'s free on weekdays; "day passes" are 12 EUR.'
)
TOWELS = "Towels\nA towel is compulsory on every machine."


@turn("What about towels and lockers?", (TOWELS, LOCKERS), "Bring a towel and a lock of your own.")
def documents_as_json(config: Config, question: str, answer: str) -> None:
    """LCEL with documents dumped as JSON."""
    retriever = store(GUESTS, LOCKERS, TOWELS).as_retriever(search_kwargs={"k": 2})

    def dump(docs: list[Document]) -> str:
        return json.dumps([{"text": d.page_content, "meta": d.metadata} for d in docs], indent=2)

    prompt = PromptTemplate.from_template("DATA:\n{data}\n\nQ: {q}\nA:")
    gym = (
        {"data": itemgetter("q") | retriever | dump, "q": itemgetter("q")}
        | prompt
        | completion_model(answer)
    )
    gym.invoke({"q": question}, config)


RETAKE = """§ 14 Wiederholung von Prüfungen

(1) Nicht bestandene Prüfungen können zweimal wiederholt werden.

(2) Die Wiederholung muss innerhalb von zwei Semestern erfolgen. Versäumt die Studentin oder der Student
diese Frist, gilt die Prüfung als endgültig nicht bestanden."""
SICK = """§ 16 Rücktritt

(1) Wer krank ist, legt spätestens am dritten Werktag nach der Prüfung ein ärztliches Attest vor.

(2) Wird der Grund anerkannt, so gilt die Prüfung als nicht unternommen."""
GRADES = """§ 11 Bewertung

Die Noten sind 1,0 bis 5,0. Eine Prüfung ist bestanden, wenn sie mindestens mit 4,0 bewertet wurde."""
WIE_OFT = "Wie oft kann ich eine nicht bestandene Prüfung wiederholen?"


@turn(WIE_OFT, (RETAKE, GRADES), "Zweimal, und zwar innerhalb von zwei Semestern (§ 14).")
def documents_numbered_and_indented(config: Config, question: str, answer: str) -> None:
    """LCEL in German, documents numbered and indented."""
    ordnung = store(RETAKE, SICK, GRADES, quelle="PO 2024").as_retriever(search_kwargs={"k": 2})

    def nummeriert(fundstellen: list[Document]) -> str:
        return "\n\n".join(
            f"[{nr}] " + textwrap.indent(f.page_content, "    ").strip()
            for nr, f in enumerate(fundstellen, start=1)
        )

    vorlage = ChatPromptTemplate(
        [
            (
                "system",
                "Sie beraten Studierende. Antworten Sie kurz und nennen Sie den Paragraphen.",
            ),
            ("human", "Fundstellen:\n{fundstellen}\n\nFrage: {frage}"),
        ]
    )
    kette = (
        RunnablePassthrough.assign(fundstellen=itemgetter("frage") | ordnung | nummeriert)
        | vorlage
        | model(answer)
        | StrOutputParser()
    )
    kette.invoke({"frage": question}, config)


BOILER = (
    "Venting the boiler. " + "Turn the key a quarter to the left until water comes. " * 9
) + "Then close it again and check the pressure, which should read 1.5 bar."
PUMP = (
    "Changing the pump. " + "Close both valves before you loosen the four screws. " * 9
) + "The seal must be renewed each time."
PRESSURE = "How do I vent the boiler?"


@turn(
    PRESSURE,
    (BOILER[:160], PUMP[:160]),
    "Turn the key a quarter to the left until water comes.",
    also=({"contexts": (BOILER, PUMP)},),
)
def documents_truncated(config: Config, question: str, answer: str) -> None:
    """LCEL with documents cut to a number of characters."""
    manual = store(BOILER, PUMP).as_retriever()

    def shortened(docs: list[Document]) -> str:
        return "\n\n".join(f"{d.page_content[:160]}..." for d in docs)

    helpdesk = (
        {"manual": manual | shortened, "problem": RunnablePassthrough()}
        | ChatPromptTemplate.from_template("Manual:\n{manual}\n\nProblem: {problem}\nHelp:")
        | model(answer)
        | StrOutputParser()
    )
    for _ in helpdesk.stream(question, config):
        pass


@turn(PRESSURE, (BOILER,), "A quarter turn of the key to the left vents it.")
def only_the_best_document(config: Config, question: str, answer: str) -> None:
    """LCEL that uses only the first of the documents it finds."""
    manual = store(BOILER, PUMP).as_retriever()
    helpdesk = (
        {"page": manual | (lambda docs: docs[0].page_content), "problem": RunnablePassthrough()}
        | ChatPromptTemplate.from_template("{page}\n\n{problem}")
        | model(answer)
        | StrOutputParser()
    )
    helpdesk.invoke(question, config)


LEAVE_HI = "कर्मचारियों को हर साल 24 दिन का सवैतनिक अवकाश मिलता है।"
PAY_HI = "वेतन हर महीने की 28 तारीख को बैंक खाते में जमा होता है।"
HOW_MUCH_HI = "साल में कितने दिन का अवकाश मिलता है?"


@turn(HOW_MUCH_HI, (LEAVE_HI, PAY_HI), "साल में 24 दिन का अवकाश मिलता है।")
def documents_in_content_blocks(config: Config, question: str, answer: str) -> None:
    """Multimodal how-to: a human message of several text blocks, in Hindi."""
    retriever = store(LEAVE_HI, PAY_HI).as_retriever()

    def to_message(inputs: dict[str, Any]) -> list[HumanMessage]:
        blocks = [{"type": "text", "text": d.page_content} for d in inputs["docs"]]
        return [HumanMessage(content=[*blocks, {"type": "text", "text": inputs["sawal"]}])]

    uttar = (
        {"docs": retriever, "sawal": RunnablePassthrough()}
        | RunnableLambda(to_message)
        | model(answer)
        | StrOutputParser()
    )
    uttar.invoke(question, config)


LEAVE_JA = "有給休暇は入社半年後に十日付与されます。\n翌年からは毎年十二日です。"
REMOTE_JA = "在宅勤務は週に三日までです。\n上司の許可が必要です。"
HOW_MANY_JA = "有給休暇は入社後に何日付与されますか。"


@turn(HOW_MANY_JA, (LEAVE_JA, REMOTE_JA), "半年後に十日です。")
def japanese_documents_in_brackets(config: Config, question: str, answer: str) -> None:
    """LCEL in Japanese, documents in square brackets."""
    kensaku = store(LEAVE_JA, REMOTE_JA).as_retriever()
    prompt = ChatPromptTemplate.from_template("資料:{shiryo}\n質問:{shitsumon}")
    kotae = (
        {
            "shiryo": kensaku | (lambda docs: "".join(f"【{d.page_content}】" for d in docs)),
            "shitsumon": RunnablePassthrough(),
        }
        | prompt
        | model(answer)
        | StrOutputParser()
    )
    kotae.invoke(question, config)


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
    hyde = lcel(
        "Please write a passage that answers: {question}",
        model("Guests with late arrivals after ten can check in by a key box."),
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
    to_german = lcel("Translate to German: {text}", model("Wie heißt der Hund des Hauses?"))
    to_english = lcel("Translate to English: {text}", model(answer))
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


COFFEE = "Coffee is grown between the tropics; the bean is the seed of a cherry."
ROAST = "A dark roast is bitter, since the sugars of the bean have burnt."
GRIND = "Espresso wants a fine grind, filter coffee a medium one, the French press a coarse one."
WATER = "Brew with water of 92 to 96 degrees, just off the boil."
MILK = "Milk foams best when it is cold and has some fat."
PAGES = (COFFEE, ROAST, GRIND, WATER, MILK)


def joined(docs: list[Document]) -> str:
    return "\n\n".join(d.page_content for d in docs)


def barista(retriever: Runnable[Any, Any], llm: Any) -> Runnable[str, str]:
    """The chain that most of the pages end with."""
    prompt = ChatPromptTemplate.from_template(
        "Answer from the context.\n\nContext: {context}\n\nQuestion: {question}"
    )
    return (
        {"context": retriever | joined, "question": RunnablePassthrough()}
        | prompt
        | llm
        | StrOutputParser()
    )


GRINDER = "How fine should I grind for espresso?"


@turn(GRINDER, (GRIND, ROAST), "Finely.")
def multi_query_retriever(config: Config, question: str, answer: str) -> None:
    """How to use the MultiQueryRetriever."""
    llm = model("Espresso fine grind?\nWhy is dark roast bitter?", answer)
    retriever = classic("retrievers").MultiQueryRetriever.from_llm(
        retriever=store(*PAGES).as_retriever(search_kwargs={"k": 1}), llm=llm
    )
    barista(retriever, llm).invoke(question, config)


@turn(
    "What temperature should water to brew with have?",
    (WATER, COFFEE, MILK),
    "Between 92 and 96 degrees.",
)
def ensemble_retriever(config: Config, question: str, answer: str) -> None:
    """How to combine results from several retrievers: EnsembleRetriever."""
    keywords = KeywordRetriever(documents=documents(*PAGES), k=1)
    vectors = store(*PAGES).as_retriever(search_kwargs={"k": 3})
    hybrid = classic("retrievers").EnsembleRetriever(
        retrievers=[keywords, vectors], weights=[0.5, 0.5]
    )
    barista(hybrid, model(answer)).invoke(question, config)


LONG_NOTE = (
    "The shop opens at eight and the oven is on from six. The grinder by the window is for filter "
    "coffee. The espresso grinder is cleaned on Mondays with the brush that hangs beside it."
)
CLEANED = "The espresso grinder is cleaned on Mondays with the brush that hangs beside it."


@turn(
    "When is the espresso grinder cleaned?",
    (CLEANED,),
    "On Mondays.",
    also=({"contexts": (LONG_NOTE,)},),
)
def contextual_compression_extractor(config: Config, question: str, answer: str) -> None:
    """How to do retrieval with contextual compression: LLMChainExtractor."""
    compressors = classic("retrievers.document_compressors")
    llm = model({"Extracted relevant parts": CLEANED, "Answer from the context": answer})
    retriever = classic("retrievers").ContextualCompressionRetriever(
        base_compressor=compressors.LLMChainExtractor.from_llm(llm),
        base_retriever=store(LONG_NOTE).as_retriever(),
    )
    barista(retriever, llm).invoke(question, config)


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
    retriever = KeywordRetriever(documents=documents(ROAST, MILK))
    barista(retriever, model(answer)).invoke(question, config)
