"""The examples by which these metrics are usually explained, with judges that follow a script."""

from collections.abc import Mapping
from typing import Any

import pytest

from rag_eval_otel.metrics import (
    AnswerAccuracy,
    AnswerCorrectness,
    AnswerRelevancy,
    ContextPrecision,
    ContextRecall,
    ContextRelevance,
    Faithfulness,
    InstanceRubric,
    MultiMethodRelevancy,
    ResponseGroundedness,
    Rubric,
    StatementContextRelevance,
    StatementFaithfulness,
)
from rag_eval_otel.metrics.outcome import Metric
from rag_eval_otel.testing.fakes import FakeJudge
from rag_eval_otel.types import Sample, Score
from scoring import evaluated, script


def scores(sample: Sample, *metrics: Metric, **replies: object) -> Mapping[str, Score]:
    """Score ``sample``, with these replies of the judge."""
    evaluation = evaluated(metrics, FakeJudge(script(**replies)), sample=sample)
    return {score.name: score for score in evaluation.scores}


def value(sample: Sample, metric: Metric, **replies: object) -> float:
    """Return the only score, which must be a number."""
    (score,) = scores(sample, metric, **replies).values()
    assert score.value is not None, score
    return score.value


def drawn(*questions: str) -> Any:
    """Draw these reverse questions, one after the other."""
    return lambda task: {"question": questions[task.draw], "noncommittal": 0}


# --- France ---------------------------------------------------------------------------------------

FRANCE = "Where is France and what is its capital?"
LOW = Sample(question=FRANCE, answer="France is in western Europe.")
HIGH = Sample(question=FRANCE, answer="France is in western Europe and Paris is its capital.")
REGION = drawn(
    "In which part of Europe is France located?",
    "What is the geographical location of France within Europe?",
    "Can you identify the region of Europe where France is situated?",
)
BOTH = drawn(
    "Where is France and what is its capital?",
    "Where is France located, and what is its capital?",
    "In which part of Europe is France and what is its capital?",
)


def test_half_an_answer_about_france_is_less_relevant() -> None:
    """Questions that ask for the region alone are further from the one asked than complete ones."""
    low = value(LOW, AnswerRelevancy(), reverse_question=REGION)
    high = value(HIGH, AnswerRelevancy(), reverse_question=BOTH)
    assert 0 < low < high <= 1
    assert high - low > 0.1


def test_half_an_answer_about_france_covers_half_of_the_question() -> None:
    """By four methods the complete answer is ahead too, and coverage says why."""
    parts = {"sub_questions": ["Where is France?", "What is the capital of France?"]}

    def judged(sample: Sample, questions: object, *flags: int, rating: float) -> Score:
        found = [{"index": i, "verdict": flag} for i, flag in enumerate(flags, start=1)]
        near = [{"index": i, "similarity": rating} for i in (1, 2, 3)]
        return scores(
            sample,
            MultiMethodRelevancy(),
            reverse_question=questions,
            similarities={"similarities": near},
            direct_relevancy={"rating": rating},
            sub_questions=parts,
            addressed={"verdicts": found},
            intent_fulfilment={"rating": rating},
        )["multi_method_relevancy"]

    low = judged(LOW, REGION, 1, 0, rating=0.5)
    high = judged(HIGH, BOTH, 1, 1, rating=1.0)
    assert (low.value, low.detail["coverage"]) == (pytest.approx(0.5), "1/2")
    assert (high.value, high.detail["coverage"]) == (pytest.approx(1.0), "2/2")
    assert "misses key aspects" in (low.explanation or "")
    assert "directly addresses" in (high.explanation or "")


# --- the Super Bowl -------------------------------------------------------------------------------

FIRST = Sample(
    question="When was the first super bowl?",
    contexts=["The first championship game of the two leagues was played on January 15, 1967."],
    answer="The first superbowl was held on Jan 15, 1967",
)
MOST = Sample(
    question="Who won the most super bowls?",
    contexts=["The Green Bay Packers are from Green Bay, Wisconsin.", "They play in the NFC."],
    answer="The most super bowls have been won by The New England Patriots",
)


@pytest.mark.parametrize(
    ("sample", "questions", "backed"),
    [
        (FIRST, ("When was the first superbowl held?",) * 3, 1),
        (MOST, ("Who has won the most super bowls?",) * 3, 0),
    ],
    ids=["first", "most"],
)
def test_an_answer_may_be_relevant_without_being_backed(
    sample: Sample, questions: tuple[str, ...], backed: int
) -> None:
    """Both answers are to the question; only the first is in what was retrieved."""
    found = scores(
        sample,
        AnswerRelevancy(),
        Faithfulness(form="full"),
        reverse_question=drawn(*questions),
        statements={"statements": [sample.answer]},
        verdicts={"verdicts": [{"index": 1, "verdict": backed}]},
    )
    assert found["answer_relevancy"].label == "pass"
    assert found["faithfulness"].value == backed


# --- Einstein -------------------------------------------------------------------------------------

BORN = "Albert Einstein was born in 1879."
CONTEXTS = [
    "Albert Einstein was born March 14, 1879.",
    "Albert Einstein was born at Ulm, in Württemberg, Germany.",
]
EINSTEIN = Sample(
    question="When was Einstein born?", contexts=CONTEXTS, answer=BORN, reference=BORN
)
WHERE = Sample(
    question="When and where was Albert Einstein born?",
    contexts=CONTEXTS,
    reference="14 March 1879, Ulm, Germany",
)
RUBRIC: Any = {
    "score0_description": "The answer is not in the reference, or wrong.",
    "score0.5_description": "The answer is in the reference in part.",
    "score1_description": "The answer says what the reference says.",
}


def claims(*texts: str) -> list[dict[str, object]]:
    """Return claims that are all borne out."""
    return [{"statement": text, "verdict": 1} for text in texts]


def test_einsteins_year_is_right() -> None:
    """An answer that is the reference is right in every way of asking."""
    found = scores(
        EINSTEIN,
        AnswerAccuracy(),
        AnswerCorrectness(),
        Rubric(levels=RUBRIC),
        accuracy_1={"rating": 4},
        accuracy_2={"rating": 4},
        compared_statements={
            "answer_statements": claims(BORN),
            "reference_statements": claims(BORN),
        },
    )
    assert {name: score.value for name, score in found.items()} == {
        "answer_accuracy": 1,
        "answer_correctness": pytest.approx(1),
        "rubric": 1,
    }


def test_einsteins_contexts_are_the_right_ones() -> None:
    """Date and place are in two contexts, which together answer the question."""
    found = scores(
        WHERE,
        ContextRelevance(judges=2),
        ContextPrecision(),
        ContextRecall(),
        context_relevance_2={"rating": 2},
        reference_statements={"statements": claims("14 March 1879.", "Ulm, Germany.")},
    )
    assert [score.value for score in found.values()] == [1, 1, 1]


def test_einsteins_year_is_grounded() -> None:
    """The year is in the first context, whatever the second is about."""
    found = scores(
        EINSTEIN,
        ResponseGroundedness(judges=2),
        Faithfulness(form="full"),
        StatementFaithfulness(form="full"),
        statements={"statements": [BORN]},
    )
    assert [score.value for score in found.values()] == [1, 1, 1]


@pytest.mark.parametrize("level", [0, 0.5, 1])
def test_a_rubric_of_halves_works(level: float) -> None:
    """A scale of 0, 0.5 and 1 can be chosen from in full, for all samples or for one."""
    sample = Sample(question=WHERE.question, contexts=CONTEXTS, rubric=RUBRIC)
    for metric in (Rubric(levels=RUBRIC), InstanceRubric()):
        assert value(sample, metric, rubric={"rating": level}) == level


# --- Python's creator -----------------------------------------------------------------------------

CREATOR = "Python was created by Guido van Rossum."
PYTHON = Sample(
    question="Who created the Python language?",
    contexts=[
        "Python, created by Guido van Rossum in the late 1980s, is meant to be easy to read."
    ],
    answer="Python is a high-level general-purpose programming language made by George Lucas.",
)


def test_one_sentence_about_python_is_needed() -> None:
    """By the binary rule one sentence that is needed makes the context relevant."""
    replies = {"relevant_statements": {"relevant_statements": [CREATOR]}}
    assert value(PYTHON, StatementContextRelevance(form="full"), **replies) == 1


def test_half_of_what_is_said_about_python_helps() -> None:
    """By the rule of proportion the sentence about readable code counts against it."""
    found = [*claims(CREATOR), {"statement": "Python code is easy to read.", "verdict": 0}]
    metric = StatementContextRelevance(rule="proportion")
    assert value(PYTHON, metric, context_statements={"statements": found}) == 0.5


def test_george_lucas_did_not_create_python() -> None:
    """One of the two claims is not backed, in two steps and in one, and it is named."""
    kind, maker = "Python is a programming language.", "Python was made by George Lucas."
    found = scores(
        PYTHON,
        Faithfulness(form="full"),
        StatementFaithfulness(form="full"),
        statements={"statements": [kind, maker]},
        verdicts={"verdicts": [{"index": 1, "verdict": 1}, {"index": 2, "verdict": 0}]},
        judged_statements={"statements": [*claims(kind), {"statement": maker, "verdict": 0}]},
    )
    for score in found.values():
        assert (score.value, score.explanation) == (0.5, f"Not backed: {maker}")


# --- a container service --------------------------------------------------------------------------


def test_an_answer_that_is_somewhat_relevant() -> None:
    """Benefits of a container service, of which scale and cost were left out: between the bands."""
    sample = Sample(
        question="What are the main benefits of a managed Kubernetes service?",
        answer="It automates the infrastructure, fits the other services and brings monitoring.",
    )
    asked = ["How does it scale?", "What does it cost?", "How safe is it?", "What does it fit?"]
    flags = [{"index": i, "verdict": int(i == 4)} for i in range(1, 5)]
    near = [{"index": i, "similarity": s} for i, s in enumerate([0.75, 0.5, 0.5], start=1)]
    score = scores(
        sample,
        MultiMethodRelevancy(),
        similarities={"similarities": near},
        direct_relevancy={"rating": 0.7},
        sub_questions={"sub_questions": asked},
        addressed={"verdicts": flags},
        intent_fulfilment={"rating": 0.6},
    )["multi_method_relevancy"]
    expected = 0.3 * 1.75 / 3 + 0.25 * 0.7 + 0.25 * 0.25 + 0.2 * 0.6
    assert (score.value, score.detail["coverage"]) == (pytest.approx(expected), "1/4")
    assert "misses key aspects" in (score.explanation or "")
