"""Outcome, cause and label of a turn, from what the judge says anyway."""

import random
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from rag_eval_otel import Sample, evaluate
from rag_eval_otel.evaluation import measurement_of
from rag_eval_otel.metrics import METRICS
from rag_eval_otel.testing.fakes import FakeJudge
from rag_eval_otel.types import Evaluation, Score
from scoring import DOWN, FULL, evaluated, script, shown, verdicts

ASKED = {"question": "When and where was Ada Lovelace born?"}
BESIDE = {"question": "Do cats purr?"}


def judge_of(*, rating: int, says: str, supported: int = 1) -> FakeJudge:
    """Return a judge of an answer that is on the question, beside it, or declines."""
    reverse = {**(BESIDE if says == "beside" else ASKED), "noncommittal": int(says == "declines")}
    sentence = 2 if says == "declines" else supported
    grounded = {"rating": 2 * supported * (says != "declines")}
    return FakeJudge(
        script(
            reverse_question=reverse,
            context_relevance_1={"rating": rating},
            groundedness_1=grounded,
            supported=verdicts(sentence),
        )
    )


TABLE = {  # whether the contexts suffice, what the answer does, and whether they support it
    (True, "answers", True): ("pass", None),
    (True, "answers", False): ("fail", "unsupported"),
    (True, "declines", None): ("fail", "needless_refusal"),
    (False, "declines", None): ("pass", "retrieval"),
    (False, "answers", True): ("pass", None),
    (False, "answers", False): ("fail", "retrieval"),
    (False, "beside", False): ("fail", "retrieval"),
    (False, "beside", True): ("fail", "off_topic"),
    (True, "beside", True): ("fail", "off_topic"),
    (True, "beside", False): ("fail", "off_topic"),
}
COLUMNS = ("context_relevance", "answer_relevancy", "faithfulness")
LOST = {  # what a judge says of a column that then is undefined, or that fails
    "context_relevance": "context_relevance_1",
    "answer_relevancy": "reverse_question",
    "faithfulness": "supported",
}


def expected(
    row: tuple[bool, str, bool], lost: str | None, counts: Collection[str], *, is_direct: bool
) -> tuple[str, str | None] | None:
    """Return label and cause by the table; None if it does not decide."""
    suffices, says, is_supported = row
    if not {"context_relevance", "faithfulness"} <= {*counts} or lost in COLUMNS[:2]:
        return None
    if says == "beside" and "answer_relevancy" not in counts:
        says = "answers"
    if lost and says != "declines":
        return None
    label, cause = TABLE[suffices, says, None if says == "declines" else is_supported]
    if label == "pass" and not is_direct and "direct_relevancy" in counts:
        return "fail", "metric"
    return label, cause


SLOW = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(50, 1000, 50)]


@pytest.mark.parametrize("seed", [0, *SLOW])
def test_cause_of_generated_turns(seed: int) -> None:
    """A judge that is right leads to label and cause of the table, whatever else is measured."""
    for number in range(seed, seed + 50):
        dice = random.Random(number)
        rating, says = dice.randint(0, 2), dice.choice(["answers", "beside", "declines"])
        verdict, rated = dice.choice([(0, 0), (0, 1), (1, 1), (2, 2)]), dice.choice([0.2, 0.9])
        claims = [flag for flag in verdict if flag < 2]
        threshold = dice.choice([0.5, 1.0])
        is_supported = not claims or sum(claims) / len(claims) >= threshold
        lost = dice.choice([None, None, None, *COLUMNS])
        said = {
            "context_relevance_1": {"rating": rating},
            "reverse_question": (BESIDE if says == "beside" else ASKED)
            | {"noncommittal": int(says == "declines")},
            "supported": verdicts(*verdict),
            "direct_relevancy": {"rating": rated},
        }
        if lost:
            said[LOST[lost]] = dice.choice([None, DOWN])
        others = ("direct_relevancy", *COLUMNS)
        counts = dice.choice([None, None, others[1:], others[:3], (others[1], others[3])])
        result = evaluate(
            replace(FULL, answer="She was born in London. It was 1815."),
            [
                METRICS["context_relevance"](threshold=dice.choice([None, 0.5, 1.0])),
                METRICS["answer_relevancy"](threshold=0.7),
                METRICS["faithfulness"](threshold=threshold),
                METRICS["direct_relevancy"](threshold=0.5),
            ],
            judge=FakeJudge(script(**said)),
            label_metrics=counts,
        )
        row = (rating == 2, says, is_supported)
        wanted = expected(row, lost, counts or others, is_direct=rated > 0.5)
        assert result.cause == (wanted and wanted[1]), number
        assert wanted is None or result.label == wanted[0], number
        declines = "declined" if says == "declines" else "answered"
        assert result.outcome == (None if lost == "answer_relevancy" else declines)


def of(options: Mapping[str, Any], **scores: Score) -> Evaluation:
    table = {
        "context_relevance": Score(name="context_relevance", value=1.0, label="pass"),
        "answer_relevancy": Score(name="answer_relevancy", value=0.9, label="pass"),
        "faithfulness": Score(name="faithfulness", value=1.0, label="pass"),
        **scores,
    }
    return Evaluation(scores=tuple(table.values()), **options)


UNDEFINED: Mapping[str, Any] = {"status": "undefined", "reason": "judge_incomplete"}


@pytest.mark.parametrize(
    ("options", "scores", "label", "cause"),
    [
        ({}, {"tone": Score(name="tone", value=0, label="fail")}, "fail", "metric"),
        ({}, {"tone": Score(name="tone", value=0)}, "pass", None),
        (
            {"label_metrics": frozenset({"faithfulness"})},
            {"tone": Score(name="tone", value=0, label="fail")},
            "pass",
            None,
        ),
        (
            {"label_metrics": frozenset({"faithfulness"})},
            {"answer_relevancy": Score(name="answer_relevancy", value=0.1, label="fail")},
            "pass",
            None,
        ),
        ({}, {"faithfulness": Score(name="faithfulness", **UNDEFINED)}, "pass", None),
        ({}, {"context_relevance": Score(name="context_relevance", **UNDEFINED)}, "pass", None),
        ({}, {"answer_relevancy": Score(name="answer_relevancy", **UNDEFINED)}, "pass", None),
        ({}, {"context_relevance": Score(name="another", value=0, label="fail")}, "fail", None),
    ],
)
def test_beside_the_table(
    options: Mapping[str, Any], scores: Mapping[str, Score], label: str, cause: str | None
) -> None:
    """Other metrics can fail a turn; without a column of the table there is no cause."""
    result = of(options, **scores)
    assert (result.label, result.cause) == (label, cause)


def test_needless_refusal_takes_no_request() -> None:
    """Both metrics of refusals share the requests of the default set, and low is good."""
    wanted = ["default", "needless_refusal", "context_sufficiency"]
    judge = judge_of(rating=2, says="declines")
    result = evaluated(wanted, judge)
    assert len(judge.requests) == 2
    assert (result["needless_refusal"].value, result["needless_refusal"].label) == (1, "fail")
    assert result["context_sufficiency"].value == 1
    rows = ((2, "answers", 0.0, None), (1, "declines", None, "insufficient_context"))
    for rating, says, value, reason in rows:
        score = evaluated(wanted, judge_of(rating=rating, says=says))["needless_refusal"]
        assert (score.value, score.reason) == (value, reason)


TURN = [("user", "When was Ada Lovelace born?"), ("assistant", "In 1815.")]


def test_history_is_shown_with_the_question() -> None:
    """A request that shows the question has the history; the one for reverse questions has none."""
    judge = FakeJudge(script())
    evaluated(["default"], judge, history=TURN)
    told = ("user: When was Ada Lovelace born?", "assistant: In 1815.")
    assert all(("history" in texts) == ("question" in texts) for texts in shown(judge))
    assert {texts.get("history") for texts in shown(judge)} == {None, told}


def test_the_stand_alone_question_is_compared() -> None:
    """Relevancy is that to the query; without one, to a question that the judge writes."""
    written = script(standalone_question={"question": "Do cats purr?"}, reverse_question={
        "question": "Do cats purr?", "noncommittal": 0,
    })  # fmt: skip
    judge = FakeJudge(written)
    assert evaluated(["answer_relevancy"], judge, history=TURN).scores[0].value == pytest.approx(1)
    asked = {"history": TURN, "query": "Do cats purr?"}
    judge = FakeJudge(written)
    assert evaluated(["answer_relevancy"], judge, **asked).scores[0].value == pytest.approx(1)
    assert len(judge.requests) == 1
    alone = evaluated(["answer_relevancy"], FakeJudge(written), query="Do cats purr?")
    assert alone.scores[0].value != pytest.approx(1)  # without history, nothing changes


def test_places_of_unsupported_sentences() -> None:
    """The offsets are those of the sentences in the answer, whatever the script and the layout."""
    answer = "Das ist 🙂 gut.\r\n\r\n- **Zwei** ist   falsch.\n3. ผู้ใช้ต้องเข้าสู่ระบบ\nEnde?"
    judge = FakeJudge(script(supported=verdicts(1, 0, 0, 2)))
    score = evaluated(["faithfulness"], judge, answer=answer).scores[0]
    assert score.unsupported is not None
    texts = [answer[start:end] for start, end in score.unsupported]
    assert texts == ["- **Zwei** ist   falsch.", "3. ผู้ใช้ต้องเข้าสู่ระบบ"]
    assert evaluated(["context_relevance"]).scores[0].unsupported is None
    for offsets, flags in ((5, 5), (["text"], [0]), ([[0]], [0])):
        detail = {"offsets": offsets, "verdicts": flags}
        assert Score(name="own", value=1, detail=detail).unsupported is None


def test_history_is_bounded() -> None:
    """The last eight messages of user and assistant are kept, and their last 2,000 characters."""
    many = [("human", f"question {i}") for i in range(10_000)]
    called = {"role": "assistant", "content": None, "tool_calls": []}
    shown = [{"type": "text", "text": "Who?"}, {"type": "image_url", "image_url": "x"}]
    (message,) = Sample(history=[{"role": "user", "content": shown}]).history
    assert message.text == "Who?"
    assert Sample(history=[*many[:1], called]).history == Sample(history=many[:1]).history
    sample = Sample(history=[*many, ("system", "Be good."), {"role": "ai", "content": "x" * 1990}])
    assert [m.role for m in sample.history] == ["user", "assistant"]
    assert sample.history[0].text == "stion 9999"
    assert len(Sample(history=many).history) == 8
    for wrong in (["text"], [("user", 1)], [{"role": 1, "content": "x"}], "text", [(*"abc",)]):
        with pytest.raises(TypeError, match=r"Sample\.history"):
            Sample(history=wrong)  # type: ignore[arg-type]
    assert measurement_of().redactor.sample(FULL) == FULL
