"""LangChain runs without LangChain's runnables: the events of a turn, sent to a handler."""

from uuid import UUID, uuid4

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from live import ANSWER, CONTEXT, QUESTION
from rag_eval_otel.capture.langchain import LangChainCapture


def run_chain(handler: LangChainCapture, name: str, question: str = QUESTION) -> UUID:
    """Send ``handler`` the events of a chain that retrieves and asks a model; return its id."""
    root, search, call = uuid4(), uuid4(), uuid4()
    handler.on_chain_start(None, question, run_id=root, name=name)
    handler.on_retriever_start(None, question, run_id=search, parent_run_id=root)
    handler.on_retriever_end([Document(CONTEXT)], run_id=search, parent_run_id=root)
    shown = [[HumanMessage(f"{CONTEXT}\n\n{question}")]]
    handler.on_chat_model_start(None, shown, run_id=call, parent_run_id=root)
    message = ChatGeneration(message=AIMessage(ANSWER))
    handler.on_llm_end(LLMResult(generations=[[message]]), run_id=call, parent_run_id=root)
    handler.on_chain_end(ANSWER, run_id=root)
    return root
