"""Chains: rewriting and routing before retrieval, and re-ranking, cutting or fusing after it."""

import json
from operator import itemgetter
from typing import Any

from kit import GROUNDED, Chat, Pages, ask, joined, rag
from langchain_core.documents import Document
from langchain_core.output_parsers import JsonOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableBranch, RunnableLambda, RunnablePassthrough
from registry import shape, span, truth

LEAVE = "How many days of parental leave do we get?"
LEAVE_PAGES = [
    "Parental leave is 120 days for every parent.",
    "Leave is booked in the HR portal at least 30 days ahead.",
]
LEAVE_ANSWER = "You get 120 days of parental leave, booked 30 days ahead."
HR = Pages(found={"leave": LEAVE_PAGES})


@shape(truth(LEAVE, LEAVE_PAGES, LEAVE_ANSWER))
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


@shape(truth(LEAVE, ["Leave law is national.", *LEAVE_PAGES], LEAVE_ANSWER))
def step_back() -> None:
    """A wider question is searched beside the one asked."""
    model = Chat(
        rules={
            "Step back": "What governs absence in general?",
            "Question:": LEAVE_ANSWER,
        }
    )
    wide = Pages(found={"absence": ["Leave law is national."]})
    chain = (
        {
            "general": ask(model, "Step back from: {question}") | wide | joined,
            "context": itemgetter("question") | HR | joined,
            "question": itemgetter("question"),
        }
        | RunnableLambda(lambda d: {**d, "context": f"{d['general']}\n\n{d['context']}"})
        | ask(model, GROUNDED)
    )
    chain.invoke({"question": LEAVE})


@shape(
    truth(
        "My invoice is wrong, what now?",
        ["Invoices are corrected by billing@x.org."],
        "Write to billing@x.org, they correct it.",
    )
)
def routed_by_llm() -> None:
    """An LLM says which of two retrievers is asked."""
    model = Chat(
        rules={
            "billing or technical": "billing",
            "Question:": "Write to billing@x.org, they correct it.",
        }
    )
    billing = Pages(found={"invoice": ["Invoices are corrected by billing@x.org."]})
    technical = Pages(found={"": ["Restart the router to reconnect."]})
    routed = RunnableBranch(
        (lambda d: d["topic"] == "billing", itemgetter("question") | rag(billing, model)),
        itemgetter("question") | rag(technical, model),
    )
    topic = ask(model, "Is this billing or technical? {question}")
    (RunnablePassthrough.assign(topic=topic) | routed).invoke(
        {"question": "My invoice is wrong, what now?"}
    )


FOUR = [
    "Bridges need inspection every two years.",
    "Tunnels are lit by LED lamps since 2019.",
    "Tunnels are inspected every single year.",
    "Roads are paved again after twelve years.",
]
TUNNEL = "How often are tunnels inspected?"
YEARLY = "Tunnels are inspected once a year, by law."


@shape(truth(TUNNEL, [FOUR[2], FOUR[1]], YEARLY))
def reranked_by_llm() -> None:
    """An LLM ranks four passages, and two are kept, in another order."""
    model = Chat(rules={"Rank": "[2, 1, 0, 3]", "Question:": YEARLY})
    pages = Pages(found={"tunnel": FOUR})

    def rerank(d: dict[str, Any]) -> str:
        listed = "\n".join(f"[{n}] {p.page_content}" for n, p in enumerate(d["documents"]))
        order = json.loads(
            ask(model, "Rank for {q}:\n{l}").invoke({"q": d["question"], "l": listed})
        )
        return joined([d["documents"][n] for n in order[:2]])

    chain = (
        {"documents": pages, "question": RunnablePassthrough()}
        | RunnablePassthrough.assign(context=rerank)
        | ask(model, GROUNDED)
    )
    chain.invoke(TUNNEL)


@shape(truth(TUNNEL, [FOUR[2], FOUR[1]], YEARLY))
def filtered_by_code() -> None:
    """A plain function keeps two of four passages and hands their text on."""
    model = Chat(rules={"Question:": YEARLY})
    pages = Pages(found={"tunnel": FOUR})
    keep = RunnableLambda(lambda found: joined([found[2], found[1]]))
    chain = {"context": pages | keep, "question": RunnablePassthrough()} | ask(model, GROUNDED)
    chain.invoke(TUNNEL)


@shape(truth(TUNNEL, [FOUR[2], FOUR[0]], YEARLY))
def fused_by_code() -> None:
    """Two retrievers are asked, their results fused by a function, the best two kept."""
    model = Chat(rules={"Question:": YEARLY})
    one, two = Pages(found={"": FOUR[:3]}), Pages(found={"": [FOUR[2], FOUR[0]]})
    fuse = RunnableLambda(lambda d: joined([d["two"][0], d["one"][0]]))
    chain = {
        "context": {"one": one, "two": two} | fuse,
        "question": RunnablePassthrough(),
    } | ask(model, GROUNDED)
    chain.invoke(TUNNEL)


LONG = (
    "The ferry to the island leaves at eight every morning from the north pier. "
    "In winter it leaves at nine, and on Sundays there is none at all."
)


@shape(
    truth(
        "When does the ferry leave?",
        [LONG],
        "It leaves at eight in the morning, at nine in winter.",
    )
)
def windows_replace_sentences() -> None:
    """What is found are sentences; what the generator gets is the text around them."""
    model = Chat(rules={"Question:": "It leaves at eight in the morning, at nine in winter."})
    pages = Pages(
        found={"ferry": ["In winter it leaves at nine, and on Sundays there is none at all."]}
    )
    widen = RunnableLambda(lambda _: joined([Document(page_content=LONG)]))
    chain = {"context": pages | widen, "question": RunnablePassthrough()} | ask(model, GROUNDED)
    chain.invoke("When does the ferry leave?")


@shape(truth("When does the ferry leave?", [LONG[:60]], "It leaves at eight every morning."))
def cut_to_fit() -> None:
    """Passages are cut before the generator gets them."""
    model = Chat(rules={"Question:": "It leaves at eight every morning."})
    cut = RunnableLambda(lambda found: found[0].page_content[:60])
    pages = Pages(found={"ferry": [LONG]})
    chain = {"context": pages | cut, "question": RunnablePassthrough()} | ask(model, GROUNDED)
    chain.invoke("When does the ferry leave?")


@shape(truth(LEAVE, LEAVE_PAGES, LEAVE_ANSWER))
def map_then_answer() -> None:
    """Each passage is summed up by an LLM, and the answer drawn from the notes alone."""
    model = Chat(
        rules={
            "Sum up: Parental": "Note one: every parent has 120 days.",
            "Sum up: Leave": "Note two: booking is 30 days ahead in the portal.",
            "Question:": LEAVE_ANSWER,
        }
    )
    notes = ask(model, "Sum up: {p}").map()
    spread = RunnableLambda(lambda found: [{"p": p.page_content} for p in found])
    chain = {"context": HR | spread | notes | "\n".join, "question": RunnablePassthrough()}
    (chain | ask(model, GROUNDED)).invoke(LEAVE)


@shape(truth(LEAVE, [], "I could not find anything about that."))
def nothing_found_after_rewrite() -> None:
    """The rewritten question finds nothing, and the LLM says so."""
    model = Chat(
        rules={
            "Rewrite": "absence of parents",
            "Question:": "I could not find anything about that.",
        }
    )
    found = ask(model, "Rewrite as a search query: {question}") | HR | joined
    (RunnablePassthrough.assign(context=found) | ask(model, GROUNDED)).invoke({"question": LEAVE})


@shape(truth(LEAVE, LEAVE_PAGES, LEAVE_ANSWER))
def retriever_falls_back() -> None:
    """The first retriever fails, the second answers."""
    broken = Pages(found={"": ConnectionError("index is down")})
    model = Chat(rules={"Question:": LEAVE_ANSWER})
    chain = {
        "context": broken.with_fallbacks([HR]) | joined,
        "question": RunnablePassthrough(),
    } | ask(model, GROUNDED)
    chain.invoke(LEAVE)


@shape(truth(LEAVE, LEAVE_PAGES, LEAVE_ANSWER))
def model_retries_then_falls_back() -> None:
    """One model fails twice, another answers."""
    broken = Chat(rules={"": ConnectionError("overloaded")}).with_retry(
        stop_after_attempt=2, wait_exponential_jitter=False
    )
    model = broken.with_fallbacks([Chat(rules={"": LEAVE_ANSWER})])
    rag(HR, model).invoke(LEAVE)  # type: ignore[arg-type]


@shape()
def model_fails_for_good() -> None:
    """No answer ever came."""
    rag(HR, Chat(rules={"": ConnectionError("overloaded")})).invoke(LEAVE)


@shape(truth(LEAVE, LEAVE_PAGES, LEAVE_ANSWER))
def own_names_for_everything() -> None:
    """Keys that nobody else uses."""
    model = Chat(rules={"Frage:": LEAVE_ANSWER})
    chain = RunnablePassthrough.assign(treffer=itemgetter("frage") | HR | joined) | {
        "antwort": ask(model, "Kontext:\n{treffer}\n\nFrage: {frage}"),
        "frage": itemgetter("frage"),
    }
    chain.invoke({"frage": LEAVE, "mandant": "north", "sprache": "de"})


@shape(truth(LEAVE, LEAVE_PAGES, LEAVE_ANSWER))
def plain_function_with_rewrite() -> None:
    """No chain at all: three calls under a span of the application."""
    model = Chat(rules={"Rewrite": "parental leave days", "Question:": LEAVE_ANSWER})
    with span("handle_request"):
        query = model.invoke(f"Rewrite as a search query: {LEAVE}").content
        context = joined(HR.invoke(str(query)))
        model.invoke(GROUNDED.format(context=context, question=LEAVE))


@shape()
def summary_of_given_documents() -> None:
    """Documents are summed up one by one and then together: nobody asked for them."""
    model = Chat(
        rules={
            "Merge": "All in all, bridges and tunnels are looked after well.",
            "Bridges": "Bridges are checked every second year.",
            "Tunnels": "Tunnels have lamps and are checked.",
        }
    )
    each = ask(model, "Summarise: {text}").map()
    merge = RunnableLambda(lambda parts: {"parts": "\n".join(parts)}) | ask(
        model, "Merge:\n{parts}"
    )
    documents = [Document(page_content=text) for text in FOUR[:3]]
    spread = RunnableLambda(lambda d: [{"text": p.page_content} for p in d["documents"]])
    (spread | each | merge).invoke({"documents": documents})


def _structured(**fields: Any) -> None:
    """Retrieve and ask for JSON in one function, and read a field of it."""
    chain = ChatPromptTemplate.from_template(GROUNDED) | Chat(rules={"": json.dumps(fields)})
    with span("ask"):
        found = joined(HR.invoke(LEAVE))
        (chain | JsonOutputParser()).invoke({"context": found, "question": LEAVE})


@shape(truth(LEAVE, LEAVE_PAGES, LEAVE_ANSWER))
def structured_answer_and_sources() -> None:
    """The field of the answer has a usual name, and others are beside it."""
    _structured(answer=LEAVE_ANSWER, sources=["hr.md"])


@shape(truth(LEAVE, LEAVE_PAGES, LEAVE_ANSWER))
def structured_answer_alone() -> None:
    """The only field is named after the answer."""
    _structured(answer_based_on_content=LEAVE_ANSWER)


@shape(truth(LEAVE, LEAVE_PAGES, LEAVE_ANSWER))
def structured_in_unusual_fields() -> None:
    """Which of the fields is the answer is not to be seen."""
    _structured(analysis="Both pages speak of leave.", verdict_for_user=LEAVE_ANSWER)
