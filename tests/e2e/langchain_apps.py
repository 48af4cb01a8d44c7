"""The handbook's chain in LangChain."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from apps.fakes import ScriptedChat
from apps.parts import rag
from apps.replies import unavailable

PLAIN = ChatPromptTemplate.from_template("{greeting}")


@dataclass(frozen=True, kw_only=True)
class HandbookChain:
    """The plain chain; ``callbacks`` are those of the instrumentation, not ours."""

    llm: BaseChatModel = field(default_factory=ScriptedChat)
    dead_llm: BaseChatModel = field(default_factory=lambda: ScriptedChat(reply=unavailable))
    error: type[Exception] = ConnectionError
    callbacks: list[BaseCallbackHandler] = field(default_factory=list)

    def ask(self, question: str) -> str:
        return rag(llm=self.llm).invoke(question, self._config)

    async def aask(self, question: str) -> str:
        return await rag(llm=self.llm).ainvoke(question, self._config)

    def stream(self, question: str) -> str:
        return "".join(rag(llm=self.llm).stream(question, self._config))

    def fail(self, question: str) -> None:
        with pytest.raises(self.error):
            rag(llm=self.dead_llm).invoke(question, self._config)

    def chat(self, greeting: str) -> str:
        return (PLAIN | self.llm | StrOutputParser()).invoke({"greeting": greeting}, self._config)

    @property
    def _config(self) -> dict[str, Any]:
        return {"callbacks": self.callbacks}
