"""Forms of answers: citations, structured answers, sources, and steps after the answer."""

from __future__ import annotations

from operator import itemgetter
from typing import Annotated, Any

from langchain_core.documents import Document
from langchain_core.output_parsers import (
    CommaSeparatedListOutputParser,
    JsonOutputParser,
    StrOutputParser,
    XMLOutputParser,
)
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import (
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    chain,
)
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from .kit import Config, Truth, app
from .langchain_kit import model, store, text_of

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


@app(
    Truth(
        question=FAST,
        contexts=(CHEETAH.page_content, SLOTH.page_content),
        answer=SPEED,
        also=({"answer": '{"answer": "Cheetahs run at 93 to 104 km/h.", "citations": [0]}'},),
    ),
    page="How to get a RAG application to add citations: tool calling",
)
def citations_by_structured_output(config: Config) -> None:
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Here are the articles: {context}"), ("human", "{question}")]
    )

    def numbered(docs: list[Document]) -> str:
        return "\n\n".join(
            f"Source ID: {i}\nArticle Title: {d.metadata['title']}\nArticle Snippet: {d.page_content}"
            for i, d in enumerate(docs)
        )

    llm = model(CitedAnswer(answer=SPEED, citations=[0]))
    rag = RunnablePassthrough.assign(context=itemgetter("docs") | RunnableLambda(numbered)) | (
        prompt | llm.with_structured_output(CitedAnswer)
    )
    whole = {"docs": itemgetter("question") | animals(), "question": itemgetter("question")} | rag
    result = whole.invoke({"question": FAST}, config)
    assert result.citations == [0]


class Quoted(TypedDict):
    """An answer with quotes."""

    answer: str
    quotes: Annotated[list[str], ..., "Verbatim quotes"]


@app(
    Truth(
        question="Which animal is the fastest at all?",
        contexts=(FALCON.page_content, SLOTH.page_content),
        answer="The peregrine falcon, when it dives.",
        also=(
            {
                "answer": '{"answer": "The peregrine falcon, when it dives.", '
                '"quotes": ["dives at more than 320 km/h"]}'
            },
        ),
    ),
    page="How to return structured data: a TypedDict by JSON schema beside the documents",
)
async def structured_answer_beside_documents(config: Config) -> None:
    quoted = {
        "answer": "The peregrine falcon, when it dives.",
        "quotes": ["dives at more than 320 km/h"],
    }
    llm = model(lambda _: quoted)
    answer = (
        RunnablePassthrough.assign(context=lambda x: titled(x["context"]))
        | ChatPromptTemplate.from_template("{context}\n\nIn JSON, please: {question}")
        | llm.with_structured_output(Quoted, method="json_schema")
    )
    whole = RunnableParallel(context=animals(), question=RunnablePassthrough()).assign(
        answer=answer
    )
    result = await whole.ainvoke("Which animal is the fastest at all?", config)
    assert result["answer"]["quotes"]


@app(
    Truth(
        question=FAST,
        contexts=(CHEETAH.page_content, SLOTH.page_content),
        answer="They reach 104 km/h.",
        also=(
            {
                "answer": "<cited_answer><answer>They reach 104 km/h.</answer>"
                "<citation>0</citation></cited_answer>"
            },
            {"answer": '{"cited_answer": [{"answer": "They reach 104 km/h."}, {"citation": "0"}]}'},
        ),
    ),
    page="How to get a RAG application to add citations: direct prompting for XML",
)
def citations_in_xml(config: Config) -> None:
    said = (
        "<cited_answer><answer>They reach 104 km/h.</answer><citation>0</citation></cited_answer>"
    )

    def as_xml(docs: list[Document]) -> str:
        parts = [
            f'<source id="{i}"><title>{d.metadata["title"]}</title>'
            f"<article_snippet>{d.page_content}</article_snippet></source>"
            for i, d in enumerate(docs)
        ]
        return "\n\n<sources>" + "\n".join(parts) + "</sources>"

    rag = (
        {"context": animals() | as_xml, "question": RunnablePassthrough()}
        | ChatPromptTemplate.from_messages(
            [("system", "Answer and cite in XML.{context}"), ("human", "{question}")]
        )
        | model(said)
        | XMLOutputParser(parser="xml")
    )
    rag.invoke(FAST, config)


@app(
    Truth(
        question=FAST,
        contexts=(CHEETAH.page_content, SLOTH.page_content),
        answer=SPEED + "\n\nSources:\n- https://wiki.example.org/Cheetah",
        also=({"answer": SPEED},),
    ),
    page="How to return sources: links put below the answer by a function",
)
def links_below_the_answer(config: Config) -> None:
    def with_links(result: dict[str, Any]) -> str:
        link = result["docs"][0].metadata["source"]
        return f"{result['answer']}\n\nSources:\n- {link}"

    answer = (
        {"context": lambda x: titled(x["docs"]), "question": itemgetter("question")}
        | ChatPromptTemplate.from_template("{context}\n\n{question}")
        | model(SPEED)
        | StrOutputParser()
    )
    whole = (
        {"docs": animals(), "question": RunnablePassthrough()}
        | RunnablePassthrough.assign(answer=answer)
        | with_links
    )
    whole.invoke(FAST, config)


@app(
    Truth(
        question=FAST,
        contexts=(CHEETAH.page_content, SLOTH.page_content),
        answer="Between 93 and 104 km/h.",
        also=({"answer": '{"answer": "Between 93 and 104 km/h.", "confidence": 0.9}'},),
    ),
    page="How to parse JSON output, streamed",
)
def json_parsed_and_streamed(config: Config) -> None:
    rag = (
        {"articles": animals() | titled, "q": RunnablePassthrough()}
        | ChatPromptTemplate.from_template("{articles}\nReply with JSON (answer, confidence). {q}")
        | model('{"answer": "Between 93 and 104 km/h.", "confidence": 0.9}')
        | JsonOutputParser()
    )
    for _ in rag.stream(FAST, config):
        pass


@app(
    Truth(
        question="Which animals are faster than a car in town?",
        contexts=(FALCON.page_content, SLOTH.page_content, CHEETAH.page_content),
        answer="cheetah, falcon",
        also=({"answer": "['cheetah', 'falcon']"}, {"answer": '["cheetah", "falcon"]'}),
    ),
    page="A list as the answer, by CommaSeparatedListOutputParser",
)
def list_as_the_answer(config: Config) -> None:
    rag = (
        {"articles": animals(3) | titled, "q": RunnablePassthrough()}
        | ChatPromptTemplate.from_template("{articles}\nList, separated by commas: {q}")
        | model("cheetah, falcon")
        | CommaSeparatedListOutputParser()
    )
    rag.invoke("Which animals are faster than a car in town?", config)


# --- steps after the answer ---------------------------------------------------------------------------


@app(
    Truth(
        question=FAST,
        contexts=(CHEETAH.page_content, SLOTH.page_content),
        answer="They run at about 100 km/h.",
    ),
    page="Suggested questions beside the answer",
)
def follow_up_suggestions(config: Config) -> None:
    llm = model(
        "They run at about 100 km/h.",
        "How fast is a falcon?\nHow long do sloths sleep?",
    )
    answer = (
        {"context": lambda x: titled(x["docs"]), "question": itemgetter("question")}
        | ChatPromptTemplate.from_template("{context}\n\n{question}")
        | llm
        | StrOutputParser()
    )
    suggest = (
        ChatPromptTemplate.from_template(
            "The user asked: {question}\nand was told: {answer}\nSuggest two questions."
        )
        | llm
        | StrOutputParser()
        | str.splitlines
    )
    whole = (
        RunnableParallel(docs=animals(), question=RunnablePassthrough())
        | RunnablePassthrough.assign(answer=answer)
        | RunnablePassthrough.assign(suggestions=suggest)
    )
    result = whole.invoke(FAST, config)
    assert len(result["suggestions"]) == 2


@app(
    Truth(
        question="How do I outrun a cheetah?",
        contexts=(CHEETAH.page_content, SLOTH.page_content),
        answer="I would rather not answer that.",
    ),
    page="A guardrail after the answer that replaces it",
)
def guardrail_that_replaces_the_answer(config: Config) -> None:
    llm = model("Run at 105 km/h, or hide.", "UNSAFE")

    @chain
    def guarded(question: str) -> str:
        context = titled(animals().invoke(question))
        draft = llm.invoke([("system", context), ("human", question)])
        verdict = llm.invoke([("system", "SAFE or UNSAFE?"), ("human", text_of(draft))])
        return text_of(draft) if verdict.content == "SAFE" else "I would rather not answer that."

    guarded.invoke("How do I outrun a cheetah?", config)


@app(
    Truth(
        question=FAST,
        contexts=(CHEETAH.page_content, SLOTH.page_content),
        answer="They make 93 to 104 km/h.",
    ),
    page="A guardrail after the answer that lets it pass",
)
def guardrail_that_lets_pass(config: Config) -> None:
    llm = model("They make 93 to 104 km/h.", "SAFE")

    @chain
    def guarded(question: str) -> str:
        context = titled(animals().invoke(question))
        draft = llm.invoke([("system", context), ("human", question)])
        verdict = llm.invoke([("system", "SAFE or UNSAFE?"), ("human", text_of(draft))])
        return text_of(draft) if verdict.content == "SAFE" else "I would rather not answer that."

    guarded.invoke(FAST, config)


@app(
    Truth(
        question="Wie schnell sind Geparde?",
        contexts=(CHEETAH.page_content, SLOTH.page_content),
        answer="Geparde laufen mit 93 bis 104 km/h.",
    ),
    page="The answer is translated for the user, in a chain of named steps",
)
def answer_translated(config: Config) -> None:
    llm = model("Cheetahs are that fast: 93 to 104 km/h.", "Geparde laufen mit 93 bis 104 km/h.")
    draft = (
        {"hits": (lambda _: "cheetahs running") | animals(), "frage": RunnablePassthrough()}
        | RunnablePassthrough.assign(hits=lambda x: titled(x["hits"]))
        | ChatPromptTemplate.from_template("{hits}\n\nAnswer in English: {frage}")
        | llm.with_config(run_name="draft")
        | StrOutputParser()
    ).with_config(run_name="rag")
    german = (
        ChatPromptTemplate.from_template("Translate to German: {text}")
        | llm.with_config(run_name="translate")
        | StrOutputParser()
    )
    whole = ({"text": draft} | german).with_config(run_name="assistant")
    whole.invoke("Wie schnell sind Geparde?", config)


@app(
    Truth(
        question="How long do sloths sleep?",
        contexts=(SLOTH.page_content,),
        answer="Fifteen hours a day.",
    ),
    page="A draft is improved by a second call that sees the documents too",
)
def draft_and_revision(config: Config) -> None:
    llm = model("Long.", "Fifteen hours a day.")
    facts = animals(1) | titled
    draft = ChatPromptTemplate.from_template("{facts}\nQ: {q}\nDraft:") | llm | StrOutputParser()
    revise = (
        ChatPromptTemplate.from_template("{facts}\nQ: {q}\nDraft: {draft}\nBetter:")
        | llm
        | StrOutputParser()
    )
    whole = (
        {"facts": facts, "q": RunnablePassthrough()}
        | RunnablePassthrough.assign(draft=draft)
        | revise
    )
    whole.invoke("How long do sloths sleep?", config)


@app(
    Truth(
        question="What is there on sloths?",
        contexts=(SLOTH.page_content, CHEETAH.page_content),
        answer="They are slow and sleepy.",
    ),
    page="Documents are shortened by a model before the answer is written",
)
def documents_rewritten_before_the_answer(config: Config) -> None:
    short = {"Sloths move": "- 0.24 km/h, 15 h of sleep", "The cheetah": "- quick, 100 km/h"}
    llm = model({**short, "Facts:": "They are slow and sleepy."})
    condense = ChatPromptTemplate.from_template("In five words: {page_content}") | llm

    def condensed(docs: list[Document]) -> str:
        notes = condense.batch([{"page_content": d.page_content} for d in docs])
        return "\n".join(text_of(n) for n in notes)

    whole = (
        {
            "facts": store(SLOTH, CHEETAH).as_retriever() | condensed,
            "q": RunnablePassthrough(),
        }
        | ChatPromptTemplate.from_template("Facts:\n{facts}\n\n{q}")
        | llm
        | StrOutputParser()
    )
    whole.invoke("What is there on sloths?", config)
