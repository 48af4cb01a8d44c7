"""Apps that fail, and apps that recover."""

import contextlib

from langchain_core.exceptions import OutputParserException
from langchain_core.output_parsers import JsonOutputParser

from . import company
from .app import Handlers, app, config
from .fakes import DownRetriever, KeywordRetriever, ScriptedChat
from .lcel import FOUNDED, SPARS
from .parts import rag
from .replies import failing_once, from_pages, unavailable


@app()
def err_retriever(callbacks: Handlers) -> None:
    """The retriever fails."""
    with contextlib.suppress(ConnectionError):
        rag(DownRetriever()).invoke(company.FOUNDED, config(callbacks))


@app()
def err_llm(callbacks: Handlers) -> None:
    """The model fails."""
    with contextlib.suppress(ConnectionError):
        rag(llm=ScriptedChat(reply=unavailable)).invoke(company.FOUNDED, config(callbacks))


@app()
def err_parser(callbacks: Handlers) -> None:
    """The model answers, but the parser after it fails."""
    with contextlib.suppress(OutputParserException):
        (rag() | JsonOutputParser()).invoke(company.FOUNDED, config(callbacks))


@app(SPARS)
def llm_fallback(callbacks: Handlers) -> object:
    """The first model fails and the second answers."""
    llm = ScriptedChat(reply=unavailable).with_fallbacks([ScriptedChat()])
    return rag(llm=llm).invoke(company.SPARS, config(callbacks))


@app(FOUNDED)
def llm_retry_retriever_fallback(callbacks: Handlers) -> object:
    """The model answers at the second try, and the second retriever at the first."""
    llm = ScriptedChat(reply=failing_once(from_pages))
    retrying = llm.with_retry(stop_after_attempt=2, wait_exponential_jitter=False)
    retriever = DownRetriever().with_fallbacks([KeywordRetriever()])
    return rag(retriever, retrying).invoke(company.FOUNDED, config(callbacks))
