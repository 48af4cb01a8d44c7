"""The demo's app: every defect lowers the score of its metric."""

import asyncio
from collections.abc import Sequence
from functools import cache
from uuid import UUID

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document

from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.evaluation import aevaluate
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.tools.demo import TURNS, Turn, build_app
from rag_eval_otel.types import Evaluation, Passage, Sample

GOOD = [turn for turn in TURNS if turn.defect == "none"]


class Retrieved(BaseCallbackHandler):
    """Keeps the retrieved documents."""

    def __init__(self) -> None:
        self.documents: Sequence[Document] = ()

    def on_retriever_end(
        self, documents: Sequence[Document], *, run_id: UUID, **kwargs: object
    ) -> None:
        self.documents = documents


@cache
def ask(question: str) -> tuple[str, tuple[Passage, ...]]:
    retrieved = Retrieved()
    answer = build_app().invoke(question, {"callbacks": [retrieved]})
    found = (Passage(text=one.page_content, id=one.id) for one in retrieved.documents)
    return answer, tuple(found)


@cache
def scores_of(turn: Turn) -> Evaluation:
    answer, contexts = ask(turn.question)
    sample = Sample(question=turn.question, answer=answer, contexts=contexts)
    return asyncio.run(aevaluate(sample, judge=LexicalJudge(), embedder=HashingEmbedder()))


def value(turn: Turn, name: str) -> float:
    score = scores_of(turn)[name]
    assert score.value is not None, score
    return score.value


@pytest.mark.parametrize("turn", TURNS, ids=lambda turn: turn.question[:30])
def test_the_app_retrieves_and_answers(turn: Turn) -> None:
    """The chain gives the scripted answer, from three passages with ids."""
    answer, contexts = ask(turn.question)
    assert answer == turn.answer
    assert len({passage.id for passage in contexts} - {None}) == 3


@pytest.mark.parametrize(
    ("defect", "name"),
    [
        ("incomplete", "answer_relevancy"),
        ("made_up", "faithfulness"),
        ("made_up", "response_groundedness"),
        ("off_topic", "context_relevance"),
        ("refusal", "answer_relevancy"),
    ],
)
def test_a_defect_lowers_the_score_of_its_metric(defect: str, name: str) -> None:
    """Below 0.5, and below every good answer; a refusal has no claims."""
    (turn,) = (turn for turn in TURNS if turn.defect == defect)
    assert value(turn, name) < 0.5 < min(value(good, name) for good in GOOD)
    if defect == "refusal":
        assert scores_of(turn)["faithfulness"].reason == "no_claims"
