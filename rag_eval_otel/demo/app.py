"""Build the app of the demo: a LangChain RAG chain over a company handbook.

The app needs no API key, no network and no model.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from rag_eval_otel.judge.texts import STOP, terms
from rag_eval_otel.types import Passage

if TYPE_CHECKING:
    from langchain_core.callbacks import CallbackManagerForLLMRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A question, the scripted answer to it, and the defect of this answer.

    ``incomplete``: the answer covers only a part of the question. ``made_up``: the answer is not in
    the handbook. ``off_topic``: the handbook says nothing about the question, so the retrieved
    passages do not help. ``refusal``: the answer says that the app cannot help.
    """

    question: str
    answer: str
    defect: Literal["none", "incomplete", "made_up", "off_topic", "refusal"] = "none"


def passages() -> tuple[Passage, ...]:
    """Return the sections of the handbook as passages. The id of a passage is its heading."""
    text = (files("rag_eval_otel.demo") / "handbook.md").read_text(encoding="utf-8")
    return tuple(_passage(section) for section in text.split("\n## ")[1:])


def _passage(section: str) -> Passage:
    heading, _, body = section.partition("\n")
    return Passage(id=heading.strip(), text=" ".join(body.split()))


TURNS: tuple[Turn, ...] = (
    Turn(
        question="How many days of paid leave does a full-time employee get each year?",
        answer="A full-time employee gets 27 days of paid leave each year.",
    ),
    Turn(
        question="How long is the warranty of the Skylark 2 weather station?",
        answer="The warranty of the Skylark 2 weather station is 5 years.",
    ),
    Turn(
        question="How do I claim travel costs, and by when must the claim be handed in?",
        answer="In the Tally app.",
        defect="incomplete",
    ),
    Turn(
        question="What is the daily allowance for meals on a business trip?",
        answer="The daily allowance for meals on a business trip is 38 euros.",
    ),
    Turn(
        question="How much does Larkfield pay towards a bicycle for commuting?",
        answer=(
            "Larkfield pays 400 euros towards a bicycle for commuting, once every three years,"
            " if it is bought from the dealer Velomark."
        ),
        defect="made_up",
    ),
    Turn(
        question="Until when may a weather station bought in the online shop be sent back?",
        answer=(
            "A weather station bought in the online shop may be sent back until 45 days after"
            " delivery."
        ),
    ),
    Turn(
        question="What does the pension plan pay when somebody retires at the age of 63?",
        answer="Larkfield pays the full salary for the first 7 weeks of an illness.",
        defect="off_topic",
    ),
    Turn(
        question="How many days a week is remote work possible, and which day is for the office?",
        answer=(
            "Remote work is possible on up to 3 days a week. Tuesday is the day on which everybody"
            " comes to the office."
        ),
    ),
    Turn(
        question="Is damage by lightning covered by the warranty of the Skylark 2?",
        answer="I'm sorry, I could not find that in the handbook. Please ask customer support.",
        defect="refusal",
    ),
    Turn(
        question="By when must a lost or stolen laptop be reported to the service desk?",
        answer="A lost or stolen laptop must be reported to the service desk within 2 hours.",
    ),
)
"""The questions and answers of the demo, in the order in which they are asked."""

TOP_K = 3
REQUEST = " (request "
"""What follows a question that the demo asks more than once, before the number of the request.

Replies of the judge to equal texts are cached; with the number, no two turns are equal.
"""

_DIMENSIONS = 2048
_UNKNOWN = "I don't know."
_PROMPT = ChatPromptTemplate.from_messages(
    [
        ("system", "Answer from these pages of the handbook.\n\n{context}"),
        ("human", "{question}"),
    ]
)


class HandbookEmbeddings(Embeddings):
    """Compute embedding vectors offline, by hashing the words of a text except stop words."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return one vector of unit length for each of ``texts``."""
        return [_vector(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return _vector(text)


def _vector(text: str) -> list[float]:
    row = np.full(_DIMENSIONS, 1e-9)  # a text without words needs a direction, too
    for term in terms(text):
        if term.weight > STOP:
            row[zlib.crc32(term.key.encode("utf-8", "replace")) % _DIMENSIONS] += term.weight
    unit: list[float] = (row / np.linalg.norm(row)).tolist()
    return unit


class HandbookModel(BaseChatModel):
    """Return a scripted answer instead of asking a model.

    ``answers`` maps a question to its answer. The question is the last message of the prompt. From
    `REQUEST` on, it is left out of account, so that the demo can ask a question again as a new one.
    """

    answers: Mapping[str, str]
    model_name: str = "handbook-offline"

    @property
    def _llm_type(self) -> str:
        return "handbook"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model_name": self.model_name}

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> ChatResult:
        question = str(messages[-1].content).partition(REQUEST)[0]
        answer = self.answers.get(question, _UNKNOWN)
        message = AIMessage(content=answer, response_metadata={"model_name": self.model_name})
        return ChatResult(generations=[ChatGeneration(message=message)])


def build_app() -> Runnable[str, str]:
    """Return the LangChain chain that takes a question and returns the answer."""
    model = HandbookModel(answers={turn.question: turn.answer for turn in TURNS})
    retriever = _store().as_retriever(search_kwargs={"k": TOP_K})
    inputs = {"context": retriever | _joined, "question": RunnablePassthrough()}
    chain: Runnable[str, str] = inputs | _PROMPT | model | StrOutputParser()
    return chain.with_config(run_name="handbook")


class _Handbook(InMemoryVectorStore):
    """The handbook. Passages for a question that is asked again are new, too (`REQUEST`)."""

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        question, request, number = query.partition(REQUEST)
        found = super().similarity_search(question, k, **kwargs)
        return [
            one.model_copy(update={"page_content": f"{one.page_content}{request}{number}"})
            for one in found
        ]


def _store() -> InMemoryVectorStore:
    store = _Handbook(HandbookEmbeddings())
    store.add_documents(
        [
            Document(page_content=passage.text, id=passage.id, metadata={"id": passage.id})
            for passage in passages()
        ]
    )
    return store


def _joined(documents: Sequence[Document]) -> str:
    return "\n\n".join(document.page_content for document in documents)
