"""Layouts of documents in the prompt."""

from __future__ import annotations

import html
import json
import textwrap
from operator import itemgetter
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import (
    ChatPromptTemplate,
    PromptTemplate,
    aformat_document,
    format_document,
)
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough, chain

from .kit import Config, Truth, app
from .langchain_kit import completion_model, documents, model, store

# --- a bakery's allergen sheet: short lines, in XML tags ------------------------------------------

RYE = "Rye loaf: rye flour, wheat flour, water, salt. Contains gluten."
ALMOND = "Almond horn: almonds, egg white, sugar. Contains nuts & egg. No gluten."
BRIOCHE = 'Brioche ("Zopf"): wheat flour, butter, milk, egg. Contains gluten, milk & egg.'
NUTS = "Is there anything without gluten for my aunt?"


@app(
    Truth(question=NUTS, contexts=(RYE, ALMOND, BRIOCHE), answer="Yes, the almond horn."),
    page="LCEL with documents in XML tags",
)
def documents_in_xml_tags(config: Config) -> None:
    def to_xml(docs: list[Document]) -> str:
        body = "\n".join(
            f'  <document index="{i}">\n    {d.page_content}\n  </document>'
            for i, d in enumerate(docs)
        )
        return f"<documents>\n{body}\n</documents>"

    prompt = ChatPromptTemplate.from_template(
        "{docs}\n\nYou serve at a bakery. Answer the guest by the documents above: {q}"
    )
    retriever = store(RYE, ALMOND, BRIOCHE).as_retriever()
    bakery = (
        {"docs": retriever | to_xml, "q": RunnablePassthrough()}
        | prompt
        | model("Yes, the almond horn.")
        | StrOutputParser()
    )
    bakery.invoke(NUTS, config)


@app(
    Truth(
        question=NUTS,
        contexts=(RYE, ALMOND, BRIOCHE),
        answer="The almond horn has no gluten, but nuts and egg.",
    ),
    page="LCEL with documents escaped for an HTML-like prompt",
)
def documents_html_escaped(config: Config) -> None:
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
    answer.invoke(NUTS, config)


# --- a gym's rules: a raw retriever in the prompt dict ---------------------------------------------

LOCKERS = "Lockers\nBring your own lock. Lockers that are still closed at midnight are opened."
GUESTS = (
    'Guests\nMembers may bring one guest a month. It\'s free on weekdays; "day passes" are 12 EUR.'
)
TOWELS = "Towels\nA towel is compulsory on every machine."
FRIEND = "Can I bring a friend on Tuesday?"


@app(
    Truth(
        question=FRIEND,
        contexts=(LOCKERS, GUESTS),
        answer="Yes, one guest a month, and on weekdays it costs nothing.",
    ),
    page="LCEL expression language page: `{'context': retriever}` without a formatter",
)
def retriever_without_formatter(config: Config) -> None:
    retriever = store(GUESTS, LOCKERS, TOWELS, source="rules.md").as_retriever(
        search_kwargs={"k": 2}
    )
    prompt = ChatPromptTemplate.from_template(
        "Answer the question based only on the following context:\n{context}\n\nQuestion: {question}\n"
    )
    rules = (
        {"context": retriever, "question": RunnablePassthrough()}
        | prompt
        | model("Yes, one guest a month, and on weekdays it costs nothing.")
        | StrOutputParser()
    )
    rules.invoke(FRIEND, config)


@app(
    Truth(
        question="What about towels and lockers?",
        contexts=(TOWELS, LOCKERS),
        answer="Bring a towel and a lock of your own.",
    ),
    page="LCEL with documents dumped as JSON",
)
def documents_as_json(config: Config) -> None:
    retriever = store(GUESTS, LOCKERS, TOWELS).as_retriever(search_kwargs={"k": 2})

    def dump(docs: list[Document]) -> str:
        return json.dumps([{"text": d.page_content, "meta": d.metadata} for d in docs], indent=2)

    prompt = PromptTemplate.from_template("DATA:\n{data}\n\nQ: {q}\nA:")
    gym = (
        {"data": itemgetter("q") | retriever | dump, "q": itemgetter("q")}
        | prompt
        | completion_model("Bring a towel and a lock of your own.")
    )
    gym.invoke({"q": "What about towels and lockers?"}, config)


# --- a university's exam regulations, German, several paragraphs -----------------------------------

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


@app(
    Truth(
        question=WIE_OFT,
        contexts=(RETAKE, GRADES),
        answer="Zweimal, und zwar innerhalb von zwei Semestern (§ 14).",
    ),
    page="LCEL in German, documents numbered and indented",
)
def documents_numbered_and_indented(config: Config) -> None:
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
        | model("Zweimal, und zwar innerhalb von zwei Semestern (§ 14).")
        | StrOutputParser()
    )
    kette.invoke({"frage": WIE_OFT}, config)


# --- an allotment club, documents below 40 characters ----------------------------------------------

WATER = "Water is on from April to October."
FIRE = "No fires before dusk."
HEDGE = "Hedges: 1.20 m at most."
BEES = "Bees need a permit."
HIGH = "How high may hedges be?"


@app(
    Truth(question=HIGH, contexts=(HEDGE, BEES, WATER), answer="At most 1.20 m."),
    page="LCEL with very short documents as bullets",
)
def short_documents_as_bullets(config: Config) -> None:
    @chain
    def allotment(question: str) -> str:
        found = (
            store(WATER, FIRE, HEDGE, BEES).as_retriever(search_kwargs={"k": 3}).invoke(question)
        )
        rules = "\n".join(f"- {one.page_content}" for one in found)
        reply = model("At most 1.20 m.").invoke(
            [SystemMessage(f"The club's rules:\n{rules}"), HumanMessage(question)]
        )
        return str(reply.content)

    allotment.invoke(HIGH, config)


# --- a museum: one message for each document, and documents of several messages ---------------------

HALL = "Hall 1 shows the ship's bell of 1702, which was found by a fisherman off the northern spit."
TOWER = "The tower can be climbed at low tide only. There are 212 steps and no lift."
CAFE = "The café serves cake from two in the afternoon until the museum closes at six."
STEPS = "How many steps are there to the tower?"


@app(
    Truth(question=STEPS, contexts=(TOWER, HALL), answer="There are 212, and no lift."),
    page="Chat messages: one system message for each document",
)
def one_message_for_each_document(config: Config) -> None:
    guide = store(HALL, TOWER, CAFE).as_retriever(search_kwargs={"k": 2})

    def messages(inputs: dict[str, Any]) -> list[Any]:
        head = [SystemMessage("You guide visitors of a museum. Use what you are handed.")]
        handed = [SystemMessage(f"Handed to you: {d.page_content}") for d in inputs["found"]]
        return [*head, *handed, HumanMessage(inputs["visitor"])]

    tour = (
        {"found": guide, "visitor": RunnablePassthrough()}
        | RunnableLambda(messages)
        | model("There are 212, and no lift.")
    )
    tour.invoke(STEPS, config)


@app(
    Truth(question=STEPS, contexts=(TOWER, HALL), answer="212 steps lead up."),
    page="Prompt templates: documents by `format_document` with their metadata",
)
async def documents_with_metadata_by_template(config: Config) -> None:
    guide = store(HALL, TOWER, CAFE, floor="ground").as_retriever(search_kwargs={"k": 2})
    one = PromptTemplate.from_template("({floor} floor) {page_content}")

    async def gather(docs: list[Document]) -> str:
        first = format_document(docs[0], one)
        return "\n---\n".join([first, *[await aformat_document(d, one) for d in docs[1:]]])

    tour = (
        {"notes": guide | gather, "visitor": RunnablePassthrough()}
        | ChatPromptTemplate.from_template("# Notes\n{notes}\n# Visitor\n{visitor}")
        | model("212 steps lead up.")
        | StrOutputParser()
    )
    await tour.ainvoke(STEPS, config)


# --- a long manual, cut to fit ----------------------------------------------------------------------

BOILER = (
    "Venting the boiler. " + "Turn the key a quarter to the left until water comes. " * 9
) + "Then close it again and check the pressure, which should read 1.5 bar."
PUMP = (
    "Changing the pump. " + "Close both valves before you loosen the four screws. " * 9
) + "The seal must be renewed each time."
PRESSURE = "How do I vent the boiler?"


@app(
    Truth(
        question=PRESSURE,
        contexts=(BOILER[:160], PUMP[:160]),
        answer="Turn the key a quarter to the left until water comes.",
        also=({"contexts": (BOILER, PUMP)},),
    ),
    page="LCEL with documents cut to a number of characters",
)
def documents_truncated(config: Config) -> None:
    manual = store(BOILER, PUMP).as_retriever()

    def shortened(docs: list[Document]) -> str:
        return "\n\n".join(f"{d.page_content[:160]}..." for d in docs)

    helpdesk = (
        {"manual": manual | shortened, "problem": RunnablePassthrough()}
        | ChatPromptTemplate.from_template("Manual:\n{manual}\n\nProblem: {problem}\nHelp:")
        | model("Turn the key a quarter to the left until water comes.")
        | StrOutputParser()
    )
    for _ in helpdesk.stream(PRESSURE, config):
        pass


@app(
    Truth(
        question=PRESSURE,
        contexts=(BOILER,),
        answer="A quarter turn of the key to the left vents it.",
    ),
    page="LCEL that uses only the first of the documents it finds",
)
def only_the_best_document(config: Config) -> None:
    manual = store(BOILER, PUMP).as_retriever()
    helpdesk = (
        {
            "page": manual | (lambda docs: docs[0].page_content),
            "problem": RunnablePassthrough(),
        }
        | ChatPromptTemplate.from_template("{page}\n\n{problem}")
        | model("A quarter turn of the key to the left vents it.")
        | StrOutputParser()
    )
    helpdesk.invoke(PRESSURE, config)


# --- Hindi and Japanese, blocks of content ------------------------------------------------------------

LEAVE_HI = "कर्मचारियों को हर साल 24 दिन का सवैतनिक अवकाश मिलता है।"
PAY_HI = "वेतन हर महीने की 28 तारीख को बैंक खाते में जमा होता है।"
HOW_MUCH_HI = "साल में कितने दिन का अवकाश मिलता है?"


@app(
    Truth(
        question=HOW_MUCH_HI,
        contexts=(LEAVE_HI, PAY_HI),
        answer="साल में 24 दिन का अवकाश मिलता है।",
    ),
    page="Multimodal how-to: a human message of several text blocks, in Hindi",
)
def documents_in_content_blocks(config: Config) -> None:
    retriever = store(LEAVE_HI, PAY_HI).as_retriever()

    def to_message(inputs: dict[str, Any]) -> list[HumanMessage]:
        blocks = [{"type": "text", "text": d.page_content} for d in inputs["docs"]]
        return [HumanMessage(content=[*blocks, {"type": "text", "text": inputs["sawal"]}])]

    uttar = (
        {"docs": retriever, "sawal": RunnablePassthrough()}
        | RunnableLambda(to_message)
        | model("साल में 24 दिन का अवकाश मिलता है।")
        | StrOutputParser()
    )
    uttar.invoke(HOW_MUCH_HI, config)


LEAVE_JA = "有給休暇は入社半年後に十日付与されます。\n翌年からは毎年十二日です。"
REMOTE_JA = "在宅勤務は週に三日までです。\n上司の許可が必要です。"
HOW_MANY_JA = "有給休暇は入社後に何日付与されますか。"


@app(
    Truth(question=HOW_MANY_JA, contexts=(LEAVE_JA, REMOTE_JA), answer="半年後に十日です。"),
    page="LCEL in Japanese, documents in square brackets",
)
def japanese_documents_in_brackets(config: Config) -> None:
    kensaku = store(LEAVE_JA, REMOTE_JA).as_retriever()
    prompt = ChatPromptTemplate.from_template("資料:{shiryo}\n質問:{shitsumon}")
    kotae = (
        {
            "shiryo": kensaku | (lambda docs: "".join(f"【{d.page_content}】" for d in docs)),
            "shitsumon": RunnablePassthrough(),
        }
        | prompt
        | model("半年後に十日です。")
        | StrOutputParser()
    )
    kotae.invoke(HOW_MANY_JA, config)


# --- the repr of documents, and a table ---------------------------------------------------------------

ROUTE_5 = (
    "Line 5 runs every 10 minutes from the harbour to Mill Hill; it doesn't stop at Elm Street."
)
ROUTE_9 = (
    "Line 9 runs every 20 minutes from the station to the harbour, after 22:00 every 40 minutes."
)
HARBOUR = "How often does line 9 run?"


@app(
    Truth(question=HARBOUR, contexts=(ROUTE_9, ROUTE_5), answer="Every 20 minutes until ten."),
    page="A function that puts `repr()` of each document into an f-string",
)
def repr_of_documents(config: Config) -> None:
    timetable = store(*documents(ROUTE_5, ROUTE_9, source="timetable.pdf", page=3)).as_retriever()
    llm = model("Every 20 minutes until ten.")

    def ask(question: str) -> str:
        lines = "\n".join(repr(d) for d in timetable.invoke(question))
        return str(llm.invoke(f"Timetable:\n{lines}\nPassenger: {question}").content)

    RunnableLambda(ask).invoke(HARBOUR, config)


@app(
    Truth(question=HARBOUR, contexts=(ROUTE_9, ROUTE_5), answer="It runs every 20 minutes."),
    page="LCEL with documents as rows of a Markdown table",
)
def documents_in_a_markdown_table(config: Config) -> None:
    timetable = store(ROUTE_5, ROUTE_9, source="timetable.pdf").as_retriever()

    def table(docs: list[Document]) -> str:
        rows = "\n".join(
            f"| {i} | {d.metadata['source']} | {d.page_content} |" for i, d in enumerate(docs, 1)
        )
        return f"| no | source | text |\n|---|---|---|\n{rows}"

    travel = (
        {"table": timetable | table, "passenger": RunnablePassthrough()}
        | ChatPromptTemplate.from_messages([("human", "{table}\n\n{passenger}")])
        | model("It runs every 20 minutes.")
        | StrOutputParser()
    )
    travel.batch([HARBOUR], config)
