"""Chat engines of LlamaIndex, whose history their caller keeps."""

from typing import Any

from llama_index.core.chat_engine import CondensePlusContextChatEngine, ContextChatEngine
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from conversations import REPHRASE, Ask, Messages, reply_to
from corpus.llamaindex_kit import ChatModel


class Shelf(BaseRetriever):
    """Finds one page, which has its query."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        text = f"This page was found by its words: {query_bundle.query_str}"
        return [NodeWithScore(node=TextNode(text=text), score=1.0)]


def conversing(kind: str) -> Ask:
    options: dict[str, Any] = {"retriever": Shelf(), "llm": ChatModel(reply_to)}
    if kind == "system":
        options["system_prompt"] = "You are helpful."
    if kind == "rewritten":
        options["condense_prompt"] = f"{REPHRASE}\n{{chat_history}}\n{{question}}"
    made = CondensePlusContextChatEngine if kind == "rewritten" else ContextChatEngine

    def ask(question: str, history: Messages) -> str:
        memory = ChatMemoryBuffer.from_defaults(llm=options["llm"])
        engine = made.from_defaults(**options, memory=memory)
        before = [ChatMessage(role=role, content=text) for role, text in history]
        if kind == "streamed":
            return "".join(engine.stream_chat(question, chat_history=before).response_gen)
        return str(engine.chat(question, chat_history=before))

    return ask
