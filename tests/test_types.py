"""The records: what they refuse, and what they make of what they are given."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.types import Evaluation, Feedback, Label, Passage, Sample, Score, Usage


def test_a_sample_reads_what_it_is_given() -> None:
    """Strings become passages, iterators are read once, ids become strings; the order stays."""
    sample = Sample(contexts=["one", Passage(text="two", id="2", score=0.5)])
    assert sample.contexts == (Passage(text="one"), Passage(text="two", id="2", score=0.5))
    sample = Sample(contexts=(text for text in "ab"), retrieved_ids=iter([1]), relevant_ids=["2"])
    assert (sample.context_texts, sample.retrieved_ids) == (("a", "b"), ("1",))
    assert sample.relevant_ids == ("2",)
    assert Sample(contexts=["", " \n", "text "]).context_texts == ("text ",)  # as a judge sees it


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"question": None}, "Sample.question must be a str, not NoneType"),
        ({"text": None}, "Passage.text must be a str, not NoneType"),
        ({"answer": 3}, "Sample.answer must be a str, not int"),
        ({"reference": []}, "Sample.reference must be a str, not list"),
        ({"contexts": "text"}, r"Sample.contexts must be a sequence .* not str; pass \[text\]"),
        ({"contexts": None}, "Sample.contexts must be a sequence .* not NoneType"),
        ({"contexts": [None]}, "A context must be a str or a Passage, not NoneType"),
        ({"retrieved_ids": "a"}, "Sample.retrieved_ids must be a sequence of ids, not str"),
        ({"relevant_ids": None}, "Sample.relevant_ids must be a sequence of ids, not NoneType"),
    ],
)
def test_a_sample_names_the_field_of_a_wrong_type(fields: dict[str, Any], told: str) -> None:
    """What is not text is refused where the sample or the passage is made."""
    with pytest.raises(TypeError, match=told):
        (Passage if "text" in fields else Sample)(**fields)


@given(st.floats())
def test_a_number_is_finite_or_refused(value: float) -> None:
    """No score is ever NaN or infinite, and what is finite is kept to the bit."""
    if math.isfinite(value):
        assert Score(name="m", value=value).value == value
    else:
        with pytest.raises(ValueError, match="'m' is ok, but"):
            Score(name="m", value=value)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"status": "undefined"},
        {"status": "error", "value": 0.0, "reason": "timeout"},
        {"status": "undefined", "value": 0.5, "reason": "no_claims"},
    ],
)
def test_a_failure_is_never_a_number(fields: dict[str, Any]) -> None:
    """A score has a number and is ok, or has none and says why."""
    with pytest.raises(ValueError, match="Score 'm' is"):
        Score(name="m", **fields)


OK = Score(name="a", value=1.0)
UNDEFINED = Score(name="b", status="undefined", reason="no_claims")
PROSE = Score(name="d", status="undefined", reason="unparsable")
FAILED = Score(name="c", status="error", reason="timeout")


@pytest.mark.parametrize(
    ("scores", "judge", "status", "reason"),
    [
        ((), None, "scored", None),
        ((OK,), "j", "scored", None),
        ((OK, UNDEFINED), "j", "scored", None),
        ((OK, FAILED), "j", "partial", None),
        ((UNDEFINED, FAILED), None, "error", "timeout"),
        ((UNDEFINED, PROSE, PROSE, FAILED), "j", "unscored", "unparsable"),
        ((UNDEFINED,), None, "unscored", "no_claims"),
        ((FAILED, FAILED), "j", "error", "timeout"),
    ],
)
def test_the_status_tells_failures_from_undefined(
    scores: tuple[Score, ...], judge: str | None, status: str, reason: str | None
) -> None:
    """An undefined score is no failure; without any number a turn is not scored, and says why."""
    evaluation = Evaluation(scores=scores, judge=judge)
    assert (evaluation.status, evaluation.reason) == (status, reason)
    assert evaluation.is_useless == (PROSE in scores)


@pytest.mark.parametrize(
    ("labels", "label"),
    [
        ((), None),
        ((None,), None),
        (("pass", None), "pass"),
        (("pass", "fail"), "fail"),
        ((None, "fail"), "fail"),
    ],
)
def test_one_failure_fails_the_turn(labels: tuple[Label | None, ...], label: Label | None) -> None:
    """The overall label is fail as soon as one metric fails, and absent where none has one."""
    scores = tuple(Score(name="m", value=0.0, label=one) for one in labels)
    assert Evaluation(scores=scores).label == label


def test_a_score_is_found_by_name() -> None:
    """A name that is not there is answered by those that are."""
    evaluation = Evaluation(scores=(OK, FAILED))
    assert evaluation["c"] is FAILED
    with pytest.raises(KeyError, match=r"no score 'd'; there are \['a', 'c'\]"):
        evaluation["d"]


def test_tokens_are_those_of_requests_and_replies() -> None:
    """Cached tokens are among those of the prompt."""
    usage = Usage(prompt_tokens=10, cached_tokens=9, completion_tokens=5, embedding_tokens=2)
    assert (usage.tokens, (usage + usage).tokens) == (17, 34)


@pytest.mark.parametrize(
    ("score", "label"), [(0, "fail"), (0.49, "fail"), (0.5, "pass"), (1, "pass"), (True, "pass")]
)
def test_feedback_has_a_label_by_its_score(score: float, label: Label) -> None:
    """Feedback below one half fails. A label that is given stays."""
    assert Feedback(trace_id=1, score=score).label == label
    assert Feedback(trace_id=1, score=score, label="fail").label == "fail"
    assert isinstance(Feedback(trace_id=1, score=score).score, float)


@pytest.mark.parametrize("score", [-1, 5, math.nan, math.inf])
def test_feedback_has_a_scale(score: float) -> None:
    """A number of stars is refused, because 2 of 5 stars would be a good score."""
    with pytest.raises(ValueError, match=r"from 0 \(bad\) to 1 \(good\), not"):
        Feedback(trace_id=1, score=score)
