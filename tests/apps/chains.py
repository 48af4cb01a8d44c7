"""The ready-made chains of LangChain (of `langchain_classic` since 1.0)."""

from langchain_core.language_models import BaseChatModel
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable

from . import company
from .app import Handlers, app, config
from .compat import create_retrieval_chain, create_stuff_documents_chain
from .fakes import ScriptedChat
from .lcel import FOUNDED
from .parts import handbook
from .replies import saying

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
