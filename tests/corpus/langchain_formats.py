"""Layouts of documents in the prompt."""

import html
import json
import textwrap
from operator import itemgetter
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough

from .kit import Config, turn
from .langchain_kit import completion_model, model, store

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
