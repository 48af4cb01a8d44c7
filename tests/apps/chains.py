"""The ready-made chains of LangChain (of `langchain_classic` since 1.0)."""

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable

from . import company
from .app import Handlers, Truth, app, config
from .company import FOUNDER, HISTORY
from .compat import (
    ConversationalRetrievalChain,
    RetrievalQA,
    create_history_aware_retriever,
    create_retrieval_chain,
    create_stuff_documents_chain,
    quietly,
)
from .fakes import ScriptedChat
from .lcel import FOUNDED, SPARS
from .parts import handbook
from .replies import saying

CONDENSER = ScriptedChat(reply=saying(company.SAILMAKER))
PROMPT = ChatPromptTemplate.from_messages(
    [
        ("system", "Answer from these pages only.\n\n{context}"),
        ("placeholder", "{chat_history}"),
        ("human", "{input}"),
    ]
)


@app(FOUNDED)
def retrieval_chain(callbacks: Handlers) -> object:
    """`create_retrieval_chain`: input in; input, context and answer out."""
    chain = create_retrieval_chain(handbook(), _stuff(ScriptedChat()))
    return chain.invoke({"input": company.FOUNDED}, config(callbacks))


@app(
    Truth(
        question=company.WHO,
        contexts=(FOUNDER, HISTORY),
        answer="Ada Lindqvist started it. [Founder; History]",
    )
)
def history_aware(callbacks: Handlers) -> object:
    """A model rewrites the follow-up for the search; the generator is asked the original."""
    rewrite = ChatPromptTemplate.from_messages(
        [("placeholder", "{chat_history}"), ("human", "{input}"), ("human", "Stand it alone.")]
    )
    retriever = create_history_aware_retriever(CONDENSER, handbook(), rewrite)
    chain = create_retrieval_chain(retriever, _stuff(ScriptedChat()))
    history = [HumanMessage(company.FOUNDED), AIMessage(FOUNDED.answer)]
    return chain.invoke({"input": company.WHO, "chat_history": history}, config(callbacks))


@app(
    Truth(
        question=company.WHO,
        contexts=(FOUNDER, HISTORY),
        answer="The sailmaker Ada Lindqvist did. [Founder; History]",
    )
)
def conv_retrieval_chain(callbacks: Handlers) -> object:
    """A model condenses the follow-up; search and generator are asked the condensed question."""
    with quietly():
        chain = ConversationalRetrievalChain.from_llm(
            ScriptedChat(), handbook(), condense_question_llm=CONDENSER
        )
    history = [(company.FOUNDED, FOUNDED.answer)]
    return chain.invoke({"question": company.WHO, "chat_history": history}, config(callbacks))


@app(SPARS)
def retrieval_qa(callbacks: Handlers) -> object:
    """`RetrievalQA`: query in, result out."""
    with quietly():
        chain = RetrievalQA.from_chain_type(ScriptedChat(), retriever=handbook())
    return chain.invoke({"query": company.SPARS}, config(callbacks))


@app()
def non_rag_stuff_docs(callbacks: Handlers) -> object:
    """A summary of given documents: the same prompt as in RAG, but nothing was retrieved."""
    chain = _stuff(ScriptedChat(reply=saying("A maker of kites, since 1987.")))
    values: dict[str, object] = {
        "input": "Summarise the pages.",
        "context": company.documents()[:2],
    }
    return chain.invoke(values, config(callbacks))


def _stuff(llm: BaseChatModel) -> Runnable[dict[str, object], str]:
    chain: Runnable[dict[str, object], str] = create_stuff_documents_chain(llm, PROMPT)
    return chain
