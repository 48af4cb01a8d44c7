"""Chains: rewriting and routing before retrieval, and re-ranking, cutting or fusing after it."""

import json
from operator import itemgetter
from typing import Any

from kit import GROUNDED, Chat, Pages, ask, joined
from langchain_core.output_parsers import JsonOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from registry import Truth, shape, span

LEAVE = "How many days of parental leave do we get?"
LEAVE_PAGES = [
    "Parental leave is 120 days for every parent.",
    "Leave is booked in the HR portal at least 30 days ahead.",
]
LEAVE_ANSWER = "You get 120 days of parental leave, booked 30 days ahead."
HR = Pages(found={"leave": LEAVE_PAGES})


@shape(Truth(LEAVE, LEAVE_PAGES, LEAVE_ANSWER))
def rewrite_then_hyde() -> None:
    """The question is rewritten, a hypothetical answer is written, and that is searched."""
    model = Chat(
        rules={
            "Rewrite": "parental leave entitlement in days",
            "Write a passage": "The parental leave policy grants employees some number of days.",
            "Question:": LEAVE_ANSWER,
        }
    )
    hyde = ask(model, "Rewrite as a search query: {question}") | (
        lambda query: ask(model, "Write a passage that answers: {q}").invoke({"q": query})
    )
    chain = RunnablePassthrough.assign(context=hyde | HR | joined) | ask(model, GROUNDED)
    chain.invoke({"question": LEAVE})


FOUR = [
    "Bridges need inspection every two years.",
    "Tunnels are lit by LED lamps since 2019.",
    "Tunnels are inspected every single year.",
    "Roads are paved again after twelve years.",
]
TUNNEL = "How often are tunnels inspected?"
YEARLY = "Tunnels are inspected once a year, by law."


@shape(Truth(TUNNEL, [FOUR[2], FOUR[1]], YEARLY))
def filtered_by_code() -> None:
    """A plain function keeps two of four passages and hands their text on."""
    model = Chat(rules={"Question:": YEARLY})
    pages = Pages(found={"tunnel": FOUR})
    keep = RunnableLambda(lambda found: joined([found[2], found[1]]))
    chain = {"context": pages | keep, "question": RunnablePassthrough()} | ask(model, GROUNDED)
    chain.invoke(TUNNEL)


LONG = (
    "The ferry to the island leaves at eight every morning from the north pier. "
    "In winter it leaves at nine, and on Sundays there is none at all."
)


@shape(Truth("When does the ferry leave?", [LONG[:60]], "It leaves at eight every morning."))
def cut_to_fit() -> None:
    """Passages are cut before the generator gets them."""
    model = Chat(rules={"Question:": "It leaves at eight every morning."})
    cut = RunnableLambda(lambda found: found[0].page_content[:60])
    pages = Pages(found={"ferry": [LONG]})
    chain = {"context": pages | cut, "question": RunnablePassthrough()} | ask(model, GROUNDED)
    chain.invoke("When does the ferry leave?")


@shape(Truth(LEAVE, LEAVE_PAGES, LEAVE_ANSWER))
def own_names_for_everything() -> None:
    """Keys that nobody else uses."""
    model = Chat(rules={"Frage:": LEAVE_ANSWER})
    chain = RunnablePassthrough.assign(treffer=itemgetter("frage") | HR | joined) | {
        "antwort": ask(model, "Kontext:\n{treffer}\n\nFrage: {frage}"),
        "frage": itemgetter("frage"),
    }
    chain.invoke({"frage": LEAVE, "mandant": "north", "sprache": "de"})


@shape(Truth(LEAVE, LEAVE_PAGES, LEAVE_ANSWER))
def plain_function_with_rewrite() -> None:
    """No chain at all: three calls under a span of the application."""
    model = Chat(rules={"Rewrite": "parental leave days", "Question:": LEAVE_ANSWER})
    with span("handle_request"):
        query = model.invoke(f"Rewrite as a search query: {LEAVE}").content
        context = joined(HR.invoke(str(query)))
        model.invoke(GROUNDED.format(context=context, question=LEAVE))


def _structured(**fields: Any) -> None:
    """Retrieve and ask for JSON in one function, and read a field of it."""
    chain = ChatPromptTemplate.from_template(GROUNDED) | Chat(rules={"": json.dumps(fields)})
    with span("ask"):
        found = joined(HR.invoke(LEAVE))
        (chain | JsonOutputParser()).invoke({"context": found, "question": LEAVE})


@shape(Truth(LEAVE, LEAVE_PAGES, LEAVE_ANSWER))
def structured_answer_and_sources() -> None:
    """The field of the answer has a usual name, and others are beside it."""
    _structured(answer=LEAVE_ANSWER, sources=["hr.md"])


@shape(Truth(LEAVE, LEAVE_PAGES, LEAVE_ANSWER))
def structured_answer_alone() -> None:
    """The only field is named after the answer."""
    _structured(answer_based_on_content=LEAVE_ANSWER)


@shape(Truth(LEAVE, LEAVE_PAGES, LEAVE_ANSWER))
def structured_in_unusual_fields() -> None:
    """Which of the fields is the answer is not to be seen."""
    _structured(analysis="Both pages speak of leave.", verdict_for_user=LEAVE_ANSWER)
