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
from rag_eval_otel.tools.demo import TURNS, HandbookEmbeddings, Turn, build_app, passages
from rag_eval_otel.types import Evaluation, Passage, Sample

GOOD = [turn for turn in TURNS if turn.defect == "none"]
NAMES = ("answer_relevancy", "context_relevance", "faithfulness", "response_groundedness")


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


def test_passages_have_ids_and_text() -> None:
    """The handbook has 12 passages with an id each."""
    found = passages()
    assert len({passage.id for passage in found}) == len(found) == 12
    assert all(passage.text and "\n" not in passage.text for passage in found)


@pytest.mark.parametrize("turn", TURNS, ids=lambda turn: turn.question[:30])
def test_the_app_retrieves_and_answers(turn: Turn) -> None:
    """The chain gives the scripted answer, from three passages with ids."""
    answer, contexts = ask(turn.question)
    assert answer == turn.answer
    assert len({passage.id for passage in contexts} - {None}) == 3


def test_an_unknown_question_is_not_answered() -> None:
    """The model has no answer to an unknown question or one without words."""
    assert ask("What is the airspeed of a swallow?")[0] == "I don't know."
    assert ask("?")[0] == "I don't know."
    assert len(HandbookEmbeddings().embed_query("")) == len(HandbookEmbeddings().embed_query("a"))


@pytest.mark.parametrize("turn", GOOD, ids=lambda turn: turn.question[:30])
def test_a_good_turn_scores_well(turn: Turn) -> None:
    """All four scores of a good turn are well above 0.5."""
    assert value(turn, "answer_relevancy") > 0.6
    assert all(value(turn, name) >= 0.75 for name in NAMES[1:])


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
