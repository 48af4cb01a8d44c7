"""The short form: sentences that we number, and digits for them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.metrics import (
    Faithfulness,
    StatementContextRelevance,
    StatementFaithfulness,
)
from rag_eval_otel.metrics.base import Metric
from rag_eval_otel.metrics.groundedness import sentences_of
from rag_eval_otel.testing.fakes import FakeJudge
from rag_eval_otel.types import Score
from scoring import score_of, script

ANSWER = "Ada was born in London. She was born in 1815. Ask me anything!"


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        (
            "It costs 3.50 euros, e.g. at Dr. Lee's. Yes.",
            ["It costs 3.50 euros, e.g. at Dr. Lee's.", "Yes."],
        ),
        ("Am 3. Mai war es so. Dann nicht.", ["Am 3. Mai war es so.", "Dann nicht."]),
        ('He said "no." She left.', ['He said "no."', "She left."]),
        ("- One thing\n- Another\n\n1. A third", ["One thing", "Another", "A third"]),
        ("第一句。第二句！第三句", ["第一句。", "第二句！", "第三句"]),  # noqa: RUF001  # Chinese
        ("पहला वाक्य। दूसरा वाक्य।", ["पहला वाक्य।", "दूसरा वाक्य।"]),
        ("جملة أولى؟ جملة ثانية.", ["جملة أولى؟", "جملة ثانية."]),
        ("One... two. ***", ["One... two. ***"]),
        ("", []),
        (" \n ", []),
        ("!?", []),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    """Marks of many scripts end a sentence; abbreviations, numbers and ordinals do not."""
    assert sentences_of(text) == sentences


@given(st.lists(st.sampled_from(["One", "two", ". ", "! ", "\n", "。", "- ", "3", "\u0964", '"'])))
def test_no_word_is_lost(pieces: list[str]) -> None:
    """Whatever the text, its words are in the sentences, in order, and there are at most forty."""
    text = "".join(pieces)
    found = sentences_of(text)
    words = "".join(c for c in " ".join(found) if c.isalpha())
    assert words == "".join(c for c in text if c.isalpha())
    assert all(any(c.isalnum() for c in one) for one in found)


def test_a_long_answer_is_put_together() -> None:
    """Of more than forty sentences, neighbours are judged as one."""
    found = sentences_of(" ".join(f"Sentence number {i} is here." for i in range(100)))
    assert len(found) == 34
    assert found[0].count("Sentence") == 3


# --- what becomes of the digits -------------------------------------------------------------------

BOTH = pytest.mark.parametrize("metric", [Faithfulness(), StatementFaithfulness()])


def scored(metric: Metric, *verdicts: object, **texts: Any) -> tuple[Score, FakeJudge]:
    """Score the usual answer by a judge that gives these verdicts."""
    found = [{"index": i, "verdict": v} for i, v in enumerate(verdicts, start=1) if v is not None]
    judge = FakeJudge(script(supported={"verdicts": found}))
    return score_of(metric, judge, **{"answer": ANSWER, **texts}), judge


@BOTH
def test_the_share_of_sentences_that_claim_something(metric: Metric) -> None:
    """What claims nothing counts neither way, and what is not backed is named."""
    score, judge = scored(metric, 1, 0, 2)
    assert (score.value, score.reason) == (0.5, None)
    assert score.explanation == "Not backed: She was born in 1815."
    assert score.detail["statements"] == ["Ada was born in London.", "She was born in 1815."]
    ((task,),) = judge.requests
    assert task.texts("sentences") == tuple(sentences_of(ANSWER))
    assert "answer" not in dict(task.inputs)


@BOTH
def test_reasons_are_told_where_there_are_any(metric: Metric) -> None:
    """Beside the sentence that is not backed stands why."""
    found = [{"index": 1, "verdict": 0, "reason": "It was Paris."}]
    judge = FakeJudge(script(supported={"verdicts": found}))
    score = score_of(metric, judge, answer="She was born in London.")
    assert score.explanation == "Not backed: She was born in London. (It was Paris.)"


@BOTH
def test_a_refusal_makes_no_claim(metric: Metric) -> None:
    """Where no sentence claims anything there is no share."""
    score, _ = scored(metric, 2, 2, 2)
    assert (score.value, score.status, score.reason) == (None, "undefined", "no_claims")


@BOTH
@pytest.mark.parametrize("verdicts", [(1, 1), (1, None, 1), ()])
def test_a_sentence_without_a_verdict(metric: Metric, verdicts: tuple[object, ...]) -> None:
    """Numbers that the judge left out make the score undefined, never another share."""
    score, _ = scored(metric, *verdicts)
    assert (score.value, score.reason) == (None, "judge_incomplete")


@BOTH
@pytest.mark.parametrize(
    ("texts", "outcome"),
    [
        ({"answer": " "}, (None, "empty_answer")),
        ({"answer": "?!"}, (None, "no_claims")),
        ({"contexts": []}, (0.0, "no_context")),
    ],
)
def test_edges_ask_nobody(
    metric: Metric, texts: dict[str, Any], outcome: tuple[float | None, str]
) -> None:
    """What is clear without a judge is not asked."""
    score, judge = scored(metric, 1, 1, 1, **texts)
    assert (score.value, score.reason) == outcome
    assert judge.requests == []


@pytest.mark.parametrize(
    ("numbers", "value", "ranks"),
    [([2], 1.0, [2]), ([3, 1, 3], 1.0, [1, 3]), ([], 0.0, [])],
)
def test_contexts_that_are_needed(numbers: list[int], value: float, ranks: list[int]) -> None:
    """Numbers of contexts that are there count; none means that nothing was needed."""
    judge = FakeJudge(script(relevant_contexts={"numbers": numbers}))
    score = score_of(StatementContextRelevance(), judge)
    assert (score.value, score.detail["relevant_contexts"]) == (value, ranks)


@pytest.mark.parametrize("numbers", [[0], [4], [1, -1]])
def test_a_context_that_is_not_there(numbers: list[int]) -> None:
    """A judge that counts from 0, or invents a number, gives no score."""
    judge = FakeJudge(script(relevant_contexts={"numbers": numbers}))
    score = score_of(StatementContextRelevance(), judge)
    assert (score.value, score.reason) == (None, "judge_incomplete")
