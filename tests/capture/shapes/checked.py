"""What comes after an answer: graders, titles, translations, other forms; or instead of it."""

import json
from operator import itemgetter

from kit import GROUNDED, Chat, Pages, ask, joined, rag
from langchain_core.output_parsers import JsonOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from registry import Truth, shape, span

TEA = "How long should green tea steep?"
TEA_PAGES = ["Green tea steeps two minutes at 75 degrees.", "Black tea takes four minutes."]
TEA_ANSWER = "Green tea should steep for two minutes, at 75 degrees."
SHOP = Pages(found={"tea": TEA_PAGES, "thé": TEA_PAGES})
TEA_TRUTH = Truth(TEA, TEA_PAGES, TEA_ANSWER)


def _grounded_dict(model: Chat) -> RunnablePassthrough:
    """Return a chain from a question to question, context and answer."""
    start = {"question": RunnablePassthrough(), "context": SHOP | joined}
    return start | RunnablePassthrough.assign(answer=ask(model, GROUNDED))  # type: ignore[return-value]


FRENCH = "Le thé vert infuse deux minutes, à 75 degrés."


@shape(Truth(TEA, TEA_PAGES, "I am sorry, but I can't tell you that."))
def blocked_after() -> None:
    """A guard throws the answer away: what the user reads was never generated."""
    model = Chat(rules={"Is this harmful": "yes", "Question:": TEA_ANSWER})

    def guard(answer: str) -> str:
        harmful = ask(model, "Is this harmful? {a}").invoke({"a": answer})
        return "I am sorry, but I can't tell you that." if harmful == "yes" else answer

    (rag(SHOP, model) | RunnableLambda(guard)).invoke(TEA)


@shape(TEA_TRUTH)
def missed_the_cache() -> None:
    """The cache is a retriever, too, and holds nothing."""
    cache = Pages(found={"coffee": ["cached"]})
    model = Chat(rules={"Question:": TEA_ANSWER})

    def look(question: str) -> str:
        hit = cache.invoke(question)
        return hit[0].page_content if hit else rag(SHOP, model).invoke(question)

    RunnableLambda(look).invoke(TEA)


@shape(TEA_TRUTH)
def json_with_citations() -> None:
    """The LLM writes JSON, the chain returns it parsed."""
    model = Chat(rules={"Question:": json.dumps({"answer": TEA_ANSWER, "citations": [0]})})
    prompt = ChatPromptTemplate.from_template(GROUNDED)
    start = {"question": RunnablePassthrough(), "context": SHOP | joined}
    (start | prompt | model | JsonOutputParser()).invoke(TEA)


@shape()
def sources_looked_up_after() -> None:
    """An LLM answers from memory; sources are searched afterwards and shown beside the answer."""
    model = Chat(rules={"From memory": "Two minutes are enough for green tea, I think."})
    chain = RunnablePassthrough.assign(
        answer=ask(model, "From memory: {question}")
    ) | RunnablePassthrough.assign(sources=itemgetter("answer") | SHOP)
    chain.invoke({"question": TEA})


@shape(TEA_TRUTH)
def stream_read_late() -> None:
    """A stream is begun, left standing while a joke is told, and then read to its end."""
    model = Chat(rules={"joke": "Why did the tea leave? It was steeped.", "Question:": TEA_ANSWER})
    stream = rag(SHOP, model).stream(TEA)
    next(stream)
    model.invoke("Tell me a joke")
    "".join(stream)


@shape(TEA_TRUTH)
def small_talk_beside() -> None:
    """One request asks the shop, another only chats; a span holds both."""
    model = Chat(rules={"joke": "Why did the tea leave? It was steeped.", "Question:": TEA_ANSWER})
    with span("session"):
        ask(model, "Tell me a joke about {x}").invoke({"x": "tea"})
        rag(SHOP, model).invoke(TEA)
        ask(model, "Another joke about {x}").invoke({"x": "kettles"})


@shape()
def examples_were_retrieved() -> None:
    """A retriever that is asked for examples only, whose result is thrown away."""
    model = Chat(rules={"Classify": "complaint"})
    log = RunnableLambda(lambda d: SHOP.invoke(d["text"]) and d)
    (log | ask(model, "Classify: {text}")).invoke({"text": "My tea is cold, I want my money back"})


GRADE = "The answer is grounded in the passages, and complete."


@shape(TEA_TRUTH)
def plain_function_graded() -> None:
    """Plain calls below one span: the last of them grades."""
    model = Chat(rules={"Is it grounded": GRADE, "Question:": TEA_ANSWER})
    with span("handle_request"):
        context = joined(SHOP.invoke(TEA))
        answer = model.invoke(GROUNDED.format(context=context, question=TEA)).content
        model.invoke(f"Is it grounded?\n{context}\nAsked: {TEA}\nAnswer: {answer}")


@shape(Truth(TEA, TEA_PAGES, "Two minutes."))
def plain_function_graded_short() -> None:
    """Plain calls below one span: the answer is short, the grade is not."""
    model = Chat(rules={"Is it grounded": GRADE, "Question:": "Two minutes."})
    with span("handle_request"):
        context = joined(SHOP.invoke(TEA))
        answer = model.invoke(GROUNDED.format(context=context, question=TEA)).content
        model.invoke(f"Is it grounded?\n{context}\nAsked: {TEA}\nAnswer: {answer}")


@shape(Truth(TEA, TEA_PAGES, FRENCH))
def plain_function_translated() -> None:
    """Plain calls below one span: the last of them translates."""
    model = Chat(rules={"Translate": FRENCH, "Question:": TEA_ANSWER})
    with span("handle_request"):
        context = joined(SHOP.invoke(TEA))
        answer = model.invoke(GROUNDED.format(context=context, question=TEA)).content
        model.invoke(f"Translate to French: {answer}")


@shape(TEA_TRUTH)
def own_names_and_a_grade() -> None:
    """Keys that nobody else uses, for the answer and for its grade."""
    model = Chat(rules={"Ist das belegt": GRADE, "Frage:": TEA_ANSWER})
    chain = (
        RunnablePassthrough.assign(treffer=itemgetter("frage") | SHOP | joined)
        | RunnablePassthrough.assign(antwort=ask(model, "{treffer}\n\nFrage: {frage}"))
        | RunnablePassthrough.assign(urteil=ask(model, "Ist das belegt? {treffer}\n{antwort}"))
    )
    chain.invoke({"frage": TEA})


@shape(TEA_TRUTH)
def own_names_and_a_verdict() -> None:
    """Keys that nobody else uses; the grade is one word."""
    model = Chat(rules={"Ist das belegt": "ja", "Frage:": TEA_ANSWER})
    chain = (
        RunnablePassthrough.assign(treffer=itemgetter("frage") | SHOP | joined)
        | RunnablePassthrough.assign(antwort=ask(model, "{treffer}\n\nFrage: {frage}"))
        | RunnablePassthrough.assign(urteil=ask(model, "Ist das belegt? {antwort}"))
    )
    chain.invoke({"frage": TEA})
