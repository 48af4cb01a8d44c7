"""Haystack: pipelines beyond the plainest."""

from collections.abc import Mapping
from typing import Any

from haystack import Document, Pipeline, component
from haystack.components.builders import AnswerBuilder, ChatPromptBuilder
from haystack.components.joiners import DocumentJoiner
from haystack.components.routers import ConditionalRouter
from haystack.dataclasses import ChatMessage
from registry import Truth, shape

ICE = ["Glaciers move a few metres a year.", "Ice is lighter than water."]
MOVE, MOVE_ANSWER = (
    "How fast do glaciers move?",
    "Glaciers move a few metres a year, and no faster.",
)
PROMPT = [
    ChatMessage.from_user(
        "Answer from:\n{% for d in documents %}{{ d.content }}\n{% endfor %}\n"
        "Question: {{ question }}"
    )
]
MOVE_TRUTH = Truth(MOVE, ICE, MOVE_ANSWER)


@component
class ScriptedChatGenerator:
    """Replies by the first of ``rules`` whose key is in what it is shown."""

    def __init__(self, rules: Mapping[str, str]) -> None:
        self.rules = rules

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage]) -> dict[str, Any]:
        """Reply."""
        shown = "\n".join(message.text or "" for message in messages)
        reply = next(reply for key, reply in self.rules.items() if key in shown)
        return {"replies": [ChatMessage.from_assistant(reply)]}


@component
class ShelfRetriever:
    """Finds the texts of the first of ``found`` whose key is in the query."""

    def __init__(self, found: Mapping[str, list[str]]) -> None:
        self.found = found

    @component.output_types(documents=list[Document])
    def run(self, query: str) -> dict[str, Any]:
        """Retrieve."""
        texts = next((texts for key, texts in self.found.items() if key in query.lower()), [])
        return {"documents": [Document(content=text) for text in texts]}


@component
class FirstReply:
    """Takes the text of a reply."""

    @component.output_types(text=str)
    def run(self, replies: list[ChatMessage]) -> dict[str, Any]:
        """Take it."""
        return {"text": replies[0].text}


@component
class SimilarityRanker:
    """Keeps the first documents, by length."""

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document], top_k: int = 1) -> dict[str, Any]:
        """Rank."""
        return {"documents": sorted(documents, key=lambda d: len(d.content or ""))[:top_k]}


def pipeline(*connections: tuple[str, str], **parts: Any) -> Pipeline:
    """Return a pipeline of named components."""
    made = Pipeline()
    for name, part in parts.items():
        made.add_component(name, part)
    for one, other in connections:
        made.connect(one, other)
    return made


def prompt() -> ChatPromptBuilder:
    """Return the builder of the generator's prompt."""
    return ChatPromptBuilder(template=PROMPT, required_variables="*")


BASIC = (("retriever.documents", "prompt.documents"), ("prompt.prompt", "llm.messages"))


@shape(MOVE_TRUTH)
def rewriting_pipeline() -> None:
    """An LLM rewrites the question before the search."""
    ask = [ChatMessage.from_user("Rewrite: {{ question }}")]
    made = pipeline(
        ("rewrite_prompt.prompt", "rewriter.messages"),
        ("rewriter.replies", "first.replies"),
        ("first.text", "retriever.query"),
        *BASIC,
        rewrite_prompt=ChatPromptBuilder(template=ask, required_variables="*"),
        rewriter=ScriptedChatGenerator({"": "glacier speed per year"}),
        first=FirstReply(),
        retriever=ShelfRetriever({"glacier": ICE}),
        prompt=prompt(),
        llm=ScriptedChatGenerator({"": MOVE_ANSWER}),
    )
    made.run({"rewrite_prompt": {"question": MOVE}, "prompt": {"question": MOVE}})


@shape(Truth(MOVE, [ICE[1]], MOVE_ANSWER))
def ranking_pipeline() -> None:
    """A ranker keeps one document."""
    made = pipeline(
        ("retriever.documents", "ranker.documents"),
        ("ranker.documents", "prompt.documents"),
        ("prompt.prompt", "llm.messages"),
        retriever=ShelfRetriever({"glacier": ICE}),
        ranker=SimilarityRanker(),
        prompt=prompt(),
        llm=ScriptedChatGenerator({"": MOVE_ANSWER}),
    )
    made.run({"retriever": {"query": MOVE}, "prompt": {"question": MOVE}})


@shape(Truth(MOVE, [*ICE, "Water is wet."], MOVE_ANSWER))
def joining_pipeline() -> None:
    """Two retrievers are joined."""
    made = pipeline(
        ("one.documents", "join.documents"),
        ("two.documents", "join.documents"),
        ("join.documents", "prompt.documents"),
        ("prompt.prompt", "llm.messages"),
        one=ShelfRetriever({"glacier": ICE}),
        two=ShelfRetriever({"glacier": ["Water is wet."]}),
        join=DocumentJoiner(),
        prompt=prompt(),
        llm=ScriptedChatGenerator({"": MOVE_ANSWER}),
    )
    made.run({"one": {"query": MOVE}, "two": {"query": MOVE}, "prompt": {"question": MOVE}})


@shape(MOVE_TRUTH)
def graded_pipeline() -> None:
    """A second LLM grades the answer."""
    ask = [ChatMessage.from_user("Grade: {{ text }}")]
    made = pipeline(
        *BASIC,
        ("llm.replies", "first.replies"),
        ("first.text", "grade_prompt.text"),
        ("grade_prompt.prompt", "grader.messages"),
        ("llm.replies", "answers.replies"),
        retriever=ShelfRetriever({"glacier": ICE}),
        prompt=prompt(),
        llm=ScriptedChatGenerator({"": MOVE_ANSWER}),
        first=FirstReply(),
        grade_prompt=ChatPromptBuilder(template=ask, required_variables="*"),
        grader=ScriptedChatGenerator({"": "That is a good and well grounded answer."}),
        answers=AnswerBuilder(),
    )
    made.run(
        {"retriever": {"query": MOVE}, "prompt": {"question": MOVE}, "answers": {"query": MOVE}}
    )


@shape()
def pipeline_without_retrieval() -> None:
    """An LLM alone."""
    ask = [ChatMessage.from_user("Sum up: {{ text }}")]
    made = pipeline(
        ("prompt.prompt", "llm.messages"),
        prompt=ChatPromptBuilder(template=ask, required_variables="*"),
        llm=ScriptedChatGenerator({"": "Ice moves and floats."}),
    )
    made.run({"prompt": {"text": " ".join(ICE)}})


@shape(
    Truth(
        "How fast do rivers run?", ["Rivers run up to 10 km/h."], "Rivers run at 10 km/h at most."
    )
)
def falling_back_pipeline() -> None:
    """Nothing is found at first, so another shelf is searched."""
    routes = [
        {
            "condition": "{{ documents|length > 0 }}",
            "output": "{{ documents }}",
            "output_name": "found",
            "output_type": list[Document],
        },
        {
            "condition": "{{ documents|length == 0 }}",
            "output": "{{ query }}",
            "output_name": "again",
            "output_type": str,
        },
    ]
    made = pipeline(
        ("retriever.documents", "router.documents"),
        ("router.again", "web.query"),
        ("web.documents", "prompt.documents"),
        ("prompt.prompt", "llm.messages"),
        retriever=ShelfRetriever({"glacier": ICE}),
        router=ConditionalRouter(routes, unsafe=True),
        web=ShelfRetriever({"river": ["Rivers run up to 10 km/h."]}),
        prompt=prompt(),
        llm=ScriptedChatGenerator({"": "Rivers run at 10 km/h at most."}),
    )
    query = "How fast do rivers run?"
    made.run(
        {"retriever": {"query": query}, "router": {"query": query}, "prompt": {"question": query}}
    )


OVERLAPPING = [f"Foreword on ice. {ICE[0]}", ICE[1], ICE[0]]


@shape(Truth(MOVE, OVERLAPPING, MOVE_ANSWER))
def overlapping_hybrid_pipeline() -> None:
    """Two retrievers find chunks that overlap, and the prompt shows each chunk."""
    made = pipeline(
        ("bm25.documents", "joiner.documents"),
        ("vectors.documents", "joiner.documents"),
        ("joiner.documents", "prompt.documents"),
        ("prompt.prompt", "llm.messages"),
        bm25=ShelfRetriever({"glacier": OVERLAPPING[:2]}),
        vectors=ShelfRetriever({"glacier": OVERLAPPING[2:]}),
        joiner=DocumentJoiner(sort_by_score=False),
        prompt=prompt(),
        llm=ScriptedChatGenerator({"": MOVE_ANSWER}),
    )
    made.run({"bm25": {"query": MOVE}, "vectors": {"query": MOVE}, "prompt": {"question": MOVE}})
