"""What replies of a judge, and vectors, become: value, reason, explanation and detail."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics import (
    METRICS,
    AnswerCorrectness,
    AnswerRelevancy,
    Correctness,
    CrossEncoderSimilarity,
    DecompositionRelevancy,
    Faithfulness,
    Guideline,
    IntentRelevancy,
    MultiMethodRelevancy,
    ReverseRelevancy,
    SemanticSimilarity,
    StatementContextRelevance,
    StatementFaithfulness,
    metric,
)
from rag_eval_otel.metrics.base import Metric
from rag_eval_otel.metrics.correctness import f_beta
from rag_eval_otel.testing.fakes import FakeEmbedder, FakeJudge
from rag_eval_otel.types import Score
from scoring import DOWN, FULL, evaluated, flagged, score_of, script, told

ANSWER, REFERENCE = FULL.answer, FULL.reference or ""
INCOMPLETE: dict[str, Any] = {"reason": "judge_incomplete"}
UNPARSABLE: dict[str, Any] = {"reason": "unparsable"}


def shown(judge: FakeJudge) -> list[dict[str, object]]:
    return [dict(task.inputs) for request in judge.requests for task in request]


def facts(score: Score, judge: FakeJudge) -> dict[str, object]:
    requests = len(judge.requests)
    plain = {"reason": score.reason, "explanation": score.explanation, "label": score.label}
    return {**plain, "normalized": score.normalized, "requests": requests, **score.detail}


DUAL = {
    "context_relevance": (0, 1, 2),
    "response_groundedness": (0, 1, 2),
    "answer_accuracy": (0, 2, 4),
}
dual = pytest.mark.parametrize("name", DUAL)


def rated(name: str, *ratings: object, **texts: Any) -> tuple[Score, FakeJudge]:
    def answer(task: Any) -> object:
        rating = ratings[task.kind.voice - 1]
        at_level = isinstance(rating, int) and 0 <= rating <= 2 and rating is not True
        return {"rating": DUAL[name][rating]} if at_level else rating  # type: ignore[index]

    judge = FakeJudge(answer)
    return score_of(metric(name, judges=2), judge, **texts), judge


@dual
@pytest.mark.parametrize(("ratings", "value"), [((2, 2), 1.0), ((2, 1), 0.75), ((0, 2), 0.5)])
def test_the_mean_of_two_judges(name: str, ratings: tuple[int, int], value: float) -> None:
    """The score is the mean rating over the highest; the disagreement has the same scale."""
    score, judge = rated(name, *ratings)
    assert (score.value, score.reason, len(judge.requests)) == (value, None, 2)
    assert score.detail == {
        "ratings": [DUAL[name][rating] for rating in ratings],
        "rated": "integer",
        "judges_used": 2,
        "disagreement": abs(ratings[0] - ratings[1]) / 2,
    }


@dual
@pytest.mark.parametrize("bad", [None, DOWN, *({"rating": r} for r in (3, -1, True, "2", 40))])
def test_one_judge_is_enough(name: str, bad: object) -> None:
    """Whichever judge gives no valid rating, the other's counts, with a remark."""
    for ratings in ((bad, 2), (2, bad)):
        score, _ = rated(name, *ratings)
        assert (score.value, score.reason, score.detail["judges_used"]) == (1.0, "partial", 1)


@dual
def test_no_judge_is_no_number(name: str) -> None:
    """Without a valid rating, the first judge's error counts."""
    assert told(rated(name, None, DOWN)[0])[1:3] == ("undefined", "unparsable")
    assert told(rated(name, DOWN, None)[0])[1:3] == ("error", "transport")


@dual
def test_reasons_become_the_explanation(name: str) -> None:
    """The explanation has the reasons of the judges that gave one."""
    level = DUAL[name][1]
    score, _ = rated(name, {"rating": level, "reason": "Half."}, {"rating": level})
    assert score.explanation == "Half."
    assert rated(name, 1, 1)[0].explanation is None


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("context_relevance", {"question": "One.", "contexts": ["One."], "answer": ""}),
        ("response_groundedness", {"answer": "e", "contexts": ["One."], "question": ""}),
        ("answer_accuracy", {"answer": REFERENCE}),
    ],
)
def test_texts_that_are_parts_of_each_other_are_judged(name: str, texts: dict[str, Any]) -> None:
    """Unlike in ragas, there is no shortcut; fields that are not needed may be missing."""
    score, judge = rated(name, 1, 1, **texts)
    assert (score.value, len(judge.requests)) == (0.5, 2)


def test_the_second_judge_of_accuracy_sees_the_texts_exchanged() -> None:
    """It rates the reference against the answer, in a request of its own."""
    _, judge = rated("answer_accuracy", 1, 1)
    first = {"question": FULL.question, "answer": ANSWER, "reference": REFERENCE}
    assert shown(judge) == [first, {**first, "answer": REFERENCE, "reference": ANSWER}]


BLANK = {"statement": " ", "verdict": 1}


def useful(*flags: object) -> Any:
    def answer(task: Any) -> object:
        flag = flags[int(task.text("context"))]
        return {"verdict": flag} if isinstance(flag, int) else flag

    return answer


def drawn(*questions: object) -> Any:
    def answer(task: Any) -> object:
        draw = questions[task.draw]
        question, flag = draw if isinstance(draw, tuple) else (draw, 0)
        is_reply = isinstance(question, str)
        return {"question": question, "noncommittal": flag} if is_reply else draw

    return answer


def indexed(key: str, *values: object, first: int = 1) -> list[dict[str, object]]:
    return [{"index": i, key: v} for i, v in enumerate(values, start=first) if v is not None]


def verdicts(*flags: object) -> dict[str, object]:
    return {"verdicts": indexed("verdict", *flags)}


def similar(*values: float, first: int = 1) -> dict[str, object]:
    return {"similarities": indexed("similarity", *values, first=first)}


def parts(count: int) -> dict[str, object]:
    return {"sub_questions": [f"part {i}?" for i in range(count)]}


def compared(answer: Sequence[object], reference: Sequence[object]) -> dict[str, object]:
    sides = {"answer_statements": flagged(*answer), "reference_statements": flagged(*reference)}
    return {"compared_statements": sides}


def rankings() -> Iterable[tuple[Any, ...]]:
    for name, prompt in (
        ("context_precision", "useful_for_reference"),
        ("context_utilization", "useful_for_answer"),
    ):
        for flags, value, ranks in (
            ((1,), 1, "1"),
            ((1, 1, 1), 1, "1, 2, 3"),
            ((0, 1), 1 / 2, "2"),
            ((1, 0, 1), (1 + 2 / 3) / 2, "1, 3"),
            ((0, 0, 1, 1), (1 / 3 + 2 / 4) / 2, "3, 4"),
            ((0, 0, 0), 0, "none"),
        ):
            rest = {"explanation": f"Of use, by rank: {ranks}.", "verdicts": list(flags)}
            texts = {"contexts": [str(i) for i in range(len(flags))]}
            yield metric(name), {prompt: useful(*flags)}, texts, value, rest
        three: dict[str, Any] = {"contexts": ["0", "1", "2"]}
        missing = {**INCOMPLETE, "verdicts": [1, None, 0]}
        yield metric(name), {prompt: useful(1, None, 0)}, three, None, missing
        yield metric(name), {prompt: useful(None, None, None)}, three, None, UNPARSABLE
        yield metric(name), {prompt: useful(1, DOWN, None)}, three, None, {"reason": "transport"}
        twice = {"contexts": ["0", "1", "0", " "]}  # equal contexts have one verdict
        yield metric(name), {prompt: useful(1, 0)}, twice, 5 / 6, {"verdicts": [1, 0, 1]}


def short_forms() -> Iterable[tuple[Any, ...]]:
    three = {"answer": "Ada was born in London. She was born in 1815. Ask me anything!"}
    claims = ["Ada was born in London.", "She was born in 1815."]
    for one in (Faithfulness(), StatementFaithfulness()):
        backed = {"explanation": "Not backed: She was born in 1815.", "statements": claims}
        yield one, {"supported": verdicts(1, 0, 2)}, three, 0.5, backed
        reasoned = [{"index": 1, "verdict": 0, "reason": "It was Paris."}]
        because = {"explanation": "Not backed: She was born in London. (It was Paris.)"}
        yield (
            one,
            {"supported": {"verdicts": reasoned}},
            {"answer": "She was born in London."},
            0,
            because,
        )
        yield one, {"supported": verdicts(2, 2, 2)}, three, None, {"reason": "no_claims"}
        for flags in ((1, 1), (1, None, 1), ()):
            yield one, {"supported": verdicts(*flags)}, three, None, INCOMPLETE
        for text, reason in ((" ", "empty_answer"), ("?!", "no_claims")):
            yield one, {}, {"answer": text}, None, {"reason": reason, "requests": 0}
        yield one, {}, {"contexts": []}, 0, {"reason": "no_context", "requests": 0}


def claims_of(*claims: str) -> dict[str, object]:
    return {"statements": {"statements": list(claims)}}


FULL_FORM, ONE_STEP = Faithfulness(form="full"), StatementFaithfulness(form="full")
COPIED, SHARE = StatementContextRelevance(form="full"), StatementContextRelevance(rule="proportion")
RUBRIC2, RUBRIC4 = metric("answer_relevancy_rubric"), metric("context_relevancy_rubric")
CASES: list[tuple[Any, ...]] = [
    *rankings(),
    *short_forms(),
    # recall, and statements of the contexts
    (
        metric("context_recall"),
        {"reference_statements": {"statements": [*flagged(1, 0, 1), BLANK]}},
        {},
        2 / 3,
        {"explanation": "Not in the contexts: claim 1", "verdicts": [1, 0, 1]},
    ),
    *(
        (one, {prompt: {"statements": found}}, {}, None, {"reason": "no_claims"})
        for one, prompt in (
            (metric("context_recall"), "reference_statements"),
            (SHARE, "context_statements"),
            (ONE_STEP, "judged_statements"),
        )
        for found in ([], [BLANK])
    ),
    (
        SHARE,
        {"context_statements": {"statements": [*flagged(1, 0, 0, 1), BLANK]}},
        {},
        0.5,
        {"explanation": "2 of 4 statements help."},
    ),
    *(
        (COPIED, {"relevant_statements": {"relevant_statements": found}}, {}, value, rest)
        for found, value, rest in (
            (["One.", "Two."], 1, {"explanation": "Needed: One. / Two."}),
            (["One.", " "], 1, {"explanation": "Needed: One."}),
            (["", "\n"], 0, {"explanation": "Nothing of it is needed."}),
        )
    ),
    *(
        (StatementContextRelevance(), {"relevant_contexts": {"numbers": found}}, {}, value, rest)
        for found, value, rest in (
            ([2], 1, {"relevant_contexts": [2]}),
            ([3, 1, 3], 1, {"relevant_contexts": [1, 3], "explanation": "Needed, by rank: 1, 3."}),
            ([], 0, {"relevant_contexts": []}),
            *(([*wrong], None, INCOMPLETE) for wrong in ((0,), (4,), (1, -1))),
        )
    ),
    # points, decisions and numbers
    *(
        (RUBRIC4, {"context_relevancy_rubric": {"subject": a, "sufficiency": b}}, {}, value, {})
        for a, b, value in ((2, 2, 1), (1.5, 0, 0.375), (0, 0, 0), (2, 1.0, 0.75))
    ),
    *(
        (RUBRIC2, {"answer_relevancy_rubric": {"subject": a, "focus": b}}, {}, value, {"focus": b})
        for a, b, value in ((1, 1, 1), (1, 0, 0.5), (0, 0, 0))
    ),
    *(
        (one, {prompt: {"passing": flag, "reason": "So."}}, {}, int(flag), {"explanation": "So."})
        for one, prompt in (
            (metric("response_supported"), "response_supported"),
            (metric("context_agreement"), "context_agreement"),
            (Guideline(guidelines="Be brief."), "guideline"),
        )
        for flag in (True, False)
    ),
    *(
        (metric("direct_relevancy"), {"direct_relevancy": {"rating": r}}, {}, r, {"requests": 1})
        for r in (0, 0.37, 1)
    ),
    (IntentRelevancy(), {"intent": {"intent": " "}}, {}, None, INCOMPLETE),
    # faithfulness in two steps
    (
        FULL_FORM,
        {**claims_of("a", "b", " ", "c"), "verdicts": verdicts(1, 0, 1)},
        {},
        2 / 3,
        {"explanation": "Not backed: b", "statements": ["a", "b", "c"], "requests": 2},
    ),
    (
        FULL_FORM,  # by number: the first of equal numbers counts, and unknown numbers do not
        {
            **claims_of("a", "b"),
            "verdicts": {
                "verdicts": [
                    {"index": i, "verdict": v} for i, v in ((2, 0), (9, 0), (1, 1), (2, 1))
                ]
            },
        },
        {},
        0.5,
        {"verdicts": [1, 0], "requests": 2},
    ),
    (FULL_FORM, claims_of(" "), {}, None, {"reason": "no_claims", "requests": 1}),
    (
        FULL_FORM,
        claims_of("a", "b"),
        {"contexts": [" "]},
        0,
        {"reason": "no_context", "verdicts": [0, 0], "requests": 1},
    ),
    (
        FULL_FORM,
        {**claims_of("a", "b"), "verdicts": verdicts(1)},
        {},
        1.0,  # the second verdict comes when it is asked alone
        {"requests": 3},
    ),
    (
        FULL_FORM,
        {**claims_of("a", "b", "c"), "verdicts": verdicts(1)},
        {},
        None,
        {**INCOMPLETE, "statements": ["a", "b", "c"], "requests": 3},
    ),
    *((FULL_FORM, {"verdicts": verdicts(flag)}, {}, None, UNPARSABLE) for flag in (2, -1)),
    (FULL_FORM, {"verdicts": DOWN}, {}, None, {"reason": "transport"}),
    (
        ONE_STEP,
        {"judged_statements": {"statements": [*flagged(1, 0), BLANK]}},
        {},
        0.5,
        {"explanation": "Not backed: claim 1", "requests": 1},
    ),
    (ONE_STEP, {}, {"contexts": [" "]}, 0, {"reason": "no_context", "requests": 0}),
    # relevancy by reverse questions and by sub-questions
    (
        ReverseRelevancy(),
        {"reverse_question": drawn("a?", " ", "b?"), "similarities": similar(1, 0.25)},
        {},
        0.625,
        {"reason": "partial", "questions": ["a?", "b?"], "similarities": [1, 0.25]},
    ),
    (
        ReverseRelevancy(),  # by number
        {"similarities": {"similarities": [*reversed(indexed("similarity", 0.1, 0.2, 0.3, 1))]}},
        {},
        0.2,
        {"similarities": [0.1, 0.2, 0.3]},
    ),
    *(
        (ReverseRelevancy(), replies, {}, None, {"reason": reason})
        for replies, reason in (
            ({"reverse_question": drawn("", " ", "\n")}, "no_questions"),
            ({"similarities": similar(1, 1)}, "judge_incomplete"),
            ({"similarities": similar(1, 1, 1, first=2)}, "judge_incomplete"),
            ({"similarities": similar(1, 1, 1, first=0)}, "judge_incomplete"),
            ({"reverse_question": None}, "unparsable"),
        )
    ),
    (
        DecompositionRelevancy(),
        {"sub_questions": {"sub_questions": ["a?", " ", "b?"]}, "addressed": verdicts(1, 0)},
        {},
        0.5,
        {"explanation": "Not addressed: b?", "sub_questions": ["a?", "b?"], "coverage": "1/2"},
    ),
    (DecompositionRelevancy(), {"sub_questions": parts(20)}, {}, 1, {"coverage": "8/8"}),
    *(
        (DecompositionRelevancy(), replies, {}, None, {"reason": reason})
        for replies, reason in (
            ({"sub_questions": parts(0)}, "no_questions"),
            ({"sub_questions": {"sub_questions": [" "]}}, "no_questions"),
            ({"addressed": verdicts(1)}, "judge_incomplete"),
            ({"addressed": None}, "unparsable"),
        )
    ),
    # correctness
    *(
        (
            AnswerCorrectness(beta=beta, weights=(1, 0)),
            compared(answer, reference),
            {},
            factual,
            {"factual": pytest.approx(factual), "reason": None},
        )
        for answer, reference, beta, factual in (
            ([1, 1], [1, 1], 1, 1),
            ([1, 0], [1, 1], 1, 2 / 3),
            ([1, 1], [1, 0, 0], 1, 2 * (2 / 4) / (1 + 2 / 4)),
            ([0, 0], [0, 0], 1, 0),
            ([], [1, 1], 1, 0),
            ([1, 1], [], 1, 0),
            ([1, 0], [1, 0, 0], 2, 5 * (1 / 2) * (1 / 3) / (4 / 2 + 1 / 3)),
            ([1, 0], [1, 0, 0], 0.5, 1.25 * (1 / 2) * (1 / 3) / (0.25 / 2 + 1 / 3)),
        )
    ),
    (AnswerCorrectness(), compared([], []), {}, None, {"reason": "no_claims"}),
    (
        AnswerCorrectness(),
        {"compared_statements": {"answer_statements": [BLANK], "reference_statements": [BLANK]}},
        {},
        None,
        {"reason": "no_claims"},
    ),
    *(
        (
            Correctness(),
            {"correctness": {"rating": rating, "reason": "So."}},
            {},
            rating,
            {"normalized": pytest.approx(unit), "label": label, "explanation": "So."},
        )
        for rating, unit, label in ((1, 0, "fail"), (3.9, 0.725, "fail"), (4, 0.75, "pass"))
    ),
    *(
        (Correctness(), {"correctness": {"rating": rating}}, {}, None, UNPARSABLE)
        for rating in (0, 5.01, 7, "4/5")
    ),
    (Correctness(), {}, {"answer": " "}, 1, {"normalized": 0, "reason": "empty_answer"}),
    *(
        (metric("answer_exact_match"), {}, {"answer": a, "reference": r}, value, {"reason": None})
        for a, r, value in (
            ("a", "a", 1),
            ("a", "A", 0),
            ("a ", "a", 0),
            ("", "a", 0),
            (" ", " ", 1),
        )
    ),
    *(
        (metric("answer_exact_match"), {}, {"reference": r}, None, {"reason": "missing_reference"})
        for r in (None, "")
    ),
    *(
        (CrossEncoderSimilarity(score=lambda *_: 1.0), {}, texts, None, {"reason": reason})
        for texts, reason in (
            ({"reference": ""}, "missing_reference"),
            ({"answer": ""}, "empty_answer"),
        )
    ),
    (CrossEncoderSimilarity(score=lambda *_: math.nan), {}, {}, None, {"reason": "internal"}),
]


@pytest.mark.parametrize(("one", "replies", "texts", "value", "rest"), CASES)
def test_the_score_of_replies(
    one: Metric, replies: Any, texts: Any, value: float | None, rest: dict[str, Any]
) -> None:
    """A case has replies by prompt, texts of the sample, the value, and further facts."""
    judge = FakeJudge(script(**replies))
    score = score_of(one, judge, **texts)
    assert score.value == (None if value is None else pytest.approx(value, abs=1e-15))
    stated = facts(score, judge)
    assert {name: stated[name] for name in rest} == rest


@pytest.mark.parametrize(
    ("name", "field"), [("context_precision", "reference"), ("context_utilization", "answer")]
)
def test_each_context_is_judged_alone(name: str, field: str) -> None:
    """The judge of one context sees the question, the context, and reference or answer."""
    judge = FakeJudge(script())
    score_of(metric(name), judge, share_requests=False)
    texts = {"question": FULL.question, field: getattr(FULL, field)}
    assert shown(judge) == [{**texts, "context": passage.text} for passage in FULL.contexts]


def test_intent_is_stated_before_it_is_rated() -> None:
    """The judge that states the intent does not see the answer."""
    judge = FakeJudge(script(intent={"intent": "to know"}, intent_fulfilment={"rating": 0.3}))
    assert score_of(IntentRelevancy(), judge).detail == {"intent": "to know"}
    assert shown(judge) == [{"question": FULL.question}, {"intent": "to know", "answer": ANSWER}]


def test_missing_verdicts_are_asked_once_more() -> None:
    """Only the claims without a verdict are put again, under new numbers."""
    rounds = [{"verdicts": [{"index": 2, "verdict": 1}]}, verdicts(0, 1)]
    replies = {**claims_of("a", "b", "c"), "verdicts": lambda _: rounds.pop(0)}
    judge = FakeJudge(script(**replies))
    assert score_of(FULL_FORM, judge).detail["verdicts"] == [0, 1, 1]
    assert [texts.get("statements") for texts in shown(judge)[1:]] == [("a", "b", "c"), ("a", "c")]


@pytest.mark.parametrize("answer", [":", "...", "Thought process:", "Solution:"])
def test_no_judge_sees_an_answer_without_content(answer: str) -> None:
    """Each metric that asks a judge gives the score of an empty answer."""
    judge = FakeJudge(script())
    scores = evaluated(list(METRICS), judge, answer=answer)
    texts = [text for texts in shown(judge) for text in texts.values()]
    assert all(
        answer != text and not (isinstance(text, tuple) and answer in text) for text in texts
    )
    for score, empty in zip(scores.scores, evaluated(list(METRICS), answer="").scores, strict=True):
        if METRICS[score.name]().asks:  # type: ignore[attr-defined]
            assert (score.value, score.status) == (empty.value, empty.status)
    assert scores["answer_relevancy"].reason == "noncommittal"
    assert scores["faithfulness"].reason == "no_claims"


@pytest.mark.parametrize("answer", ["Paris", "42", "Yes"])
def test_short_answers_reach_the_judge(answer: str) -> None:
    """A name, a number and a yes are judged."""
    judge = FakeJudge(script())
    evaluated(["answer_relevancy", "faithfulness"], judge, answer=answer)
    assert {"answer": answer} in shown(judge)


VECTORS = {
    FULL.question: [1.0, 0.0],
    "same": [2.0, 0.0],
    "half": [0.5, 0.75**0.5],
    "orthogonal": [0.0, 1.0],
    "opposite": [-1.0, 0.0],
    "zero": [0.0, 0.0],
    "": [3.0, 4.0],
    " ": [3.0, 4.0],
}


def relevant(*draws: object, **options: Any) -> Score:
    judge = FakeJudge(script(reverse_question=drawn(*draws)))
    one = AnswerRelevancy(strictness=len(draws))
    return score_of(one, judge, embedder=FakeEmbedder(VECTORS), **options)


@pytest.mark.parametrize(
    ("draws", "value", "reason"),
    [
        (["same", "half", "orthogonal"], 0.5, None),
        (["opposite", "orthogonal"], -0.5, None),
        (["same", ("half", 1)], 0.75, None),
        ([("same", 1), ("half", 1)], 0.0, "noncommittal"),
        ([("zero", 1), ("", 1)], 0.0, "noncommittal"),
        ([("same", 1), ("", 0)], 1.0, "partial"),
        (["same", " ", "half"], 0.75, "partial"),
        (["same", "zero"], 1.0, "partial"),
        (["same", None], 1.0, "partial"),
        (["same", ("half", 2)], 1.0, "partial"),
        ([None, DOWN, "half"], 0.5, "partial"),
        (["", " \n"], None, "no_questions"),
        (["zero", "zero"], None, "zero_vector"),
        ([None, None], None, "unparsable"),
        ([DOWN, DOWN], None, "transport"),
    ],
)
def test_answer_relevancy(draws: list[object], value: float | None, reason: str | None) -> None:
    """The mean cosine of the questions that are usable; 0 if all replies say evasive."""
    score = relevant(*draws)
    assert score.value == (None if value is None else pytest.approx(value))
    assert score.reason == reason
    if reason is None and value == 0.5:
        assert score.explanation == "The answer reads as a reply to: same / half / orthogonal"
        assert score.detail["similarities"] == pytest.approx([1.0, 0.5, 0.0])


DRAWS = st.lists(
    st.tuples(st.sampled_from(sorted(VECTORS)), st.sampled_from([0, 1, 2])) | st.none(),
    min_size=1,
    max_size=5,
)


@given(DRAWS, st.data())
def test_properties_of_answer_relevancy(draws: list[object], data: st.DataObject) -> None:
    """A number is within [-1, 1]; order and fusion do not change it."""
    score = relevant(*draws)
    assert score.value is None or -1 <= score.value <= 1
    shuffled = relevant(*data.draw(st.permutations(draws)))
    for other in (relevant(*draws, share_requests=False), shuffled):
        assert (other.status, other.reason) == (score.status, score.reason)
        assert other.value == pytest.approx(score.value, abs=1e-12)


def compare(one: Metric, answer: list[float], reference: list[float]) -> Score:
    return score_of(one, embedder=FakeEmbedder({ANSWER: answer, REFERENCE: reference}))


FAR = 1 / (1 + 89**0.5)


@pytest.mark.parametrize(
    ("parameters", "value", "normalized", "label"),
    [
        ({}, 0.6, None, "fail"),
        ({"threshold": 0.6}, 0.6, None, "pass"),
        ({"threshold": 0.0}, 0.6, None, "pass"),
        ({"threshold": None}, 0.6, None, None),
        ({"rule": "threshold"}, 0, None, "fail"),
        ({"rule": "threshold", "threshold": 0.6}, 1, None, "pass"),
        ({"rule": "threshold", "threshold": 0.0}, 1, None, "pass"),
        ({"mode": "dot_product"}, 6, None, "pass"),
        ({"mode": "euclidean"}, -(89**0.5), FAR, "fail"),
        ({"mode": "euclidean", "threshold": 0.09}, -(89**0.5), FAR, "pass"),
        ({"mode": "euclidean", "rule": "threshold", "threshold": 0.09}, 1, None, "pass"),
    ],
)
def test_similarity(
    parameters: Any, value: float, normalized: float | None, label: str | None
) -> None:
    """Cosine, dot product or negative distance; 0 is a threshold like any other."""
    score = compare(SemanticSimilarity(**parameters), [1, 0], [6, 8])
    assert score.value == pytest.approx(value)
    assert score.normalized == (normalized and pytest.approx(normalized))
    assert score.label == label


@pytest.mark.parametrize("vector", [[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0]])
@pytest.mark.parametrize("mode", ["cosine", "dot_product", "euclidean"])
def test_a_vector_without_direction(mode: Any, vector: list[float]) -> None:
    """A similarity that is not finite is undefined."""
    score = compare(SemanticSimilarity(mode=mode), [1, 0], vector)
    if mode == "cosine" or not all(map(math.isfinite, vector)):
        assert (score.value, score.reason) == (None, "zero_vector")
    else:
        assert score.status == "ok"


def test_claims_and_vectors_are_weighed() -> None:
    """By default, three quarters claims and one quarter cosine."""

    def weighed(flags: list[int], reference: list[float]) -> Score:
        judge = FakeJudge(script(**compared(flags, flags)))
        embedder = FakeEmbedder({ANSWER: [1, 0], REFERENCE: reference})
        return score_of(AnswerCorrectness(), judge, embedder=embedder)

    score = weighed([1], [0.6, 0.8])
    assert score.value == pytest.approx(0.75 + 0.25 * 0.6)
    counts = {"tp": 1, "fp": 0, "fn": 0, "factual": 1, "similarity": pytest.approx(0.6)}
    assert score.detail == counts
    assert weighed([0], [-1, 0]).value == -0.25
    assert weighed([1], [0, 0]).reason == "zero_vector"


@pytest.mark.parametrize(("weights", "judged", "embedded"), [((1, 0), 1, 0), ((0, 1), 0, 1)])
def test_a_part_without_weight_is_not_asked(weights: Any, judged: int, embedded: int) -> None:
    """Without weight for claims no judge is asked, without one for vectors no embedder."""
    usage = evaluated(AnswerCorrectness(weights=weights)).usage
    assert (usage.judge_requests, usage.embedding_requests) == (judged, embedded)


COUNT = st.integers(0, 20)


@given(COUNT, COUNT, COUNT, st.floats(1e-300, 1e6))
def test_f_is_a_share(tp: int, fp: int, fn: int, beta: float) -> None:
    """F is in [0, 1], grows with hits and falls with every claim that is wrong or missing."""
    value = f_beta(tp, fp, fn=fn, beta=beta)
    assert 0 <= value <= 1 + 1e-15
    assert f_beta(tp + 1, fp, fn=fn, beta=beta) >= value - 1e-12
    assert f_beta(tp, fp + 1, fn=fn, beta=beta) <= value + 1e-12
    assert f_beta(tp, fp, fn=fn + 1, beta=beta) <= value + 1e-12


@pytest.mark.parametrize(
    ("activation", "logit", "value"),
    [
        ("identity", -5, -5),
        ("sigmoid", 0, 0.5),
        ("sigmoid", 8.0, 1 / (1 + math.exp(-8))),
        ("sigmoid", -1e9, 0),
        ("sigmoid", 1e9, 1),
    ],
)
def test_a_cross_encoder(activation: Any, logit: float, value: float) -> None:
    """The function gets answer and reference."""
    pairs = []
    one = CrossEncoderSimilarity(score=lambda *p: pairs.append(p) or logit, activation=activation)  # type: ignore[func-returns-value]
    assert score_of(one).value == pytest.approx(value)
    assert pairs == [(ANSWER, REFERENCE)]


QUARTERS = {
    "similarities": similar(1, 1, 1),
    "direct_relevancy": {"rating": 0.5},
    "sub_questions": parts(4),
    "addressed": verdicts(1, 0, 0, 0),
    "intent_fulfilment": {"rating": 0.75},
}
"""Reverse 1, direct .5, decomposition .25, intent .75."""


def combined(**replies: object) -> Score:
    return score_of(MultiMethodRelevancy(), FakeJudge(script(**{**QUARTERS, **replies})))


def test_the_weighted_sum() -> None:
    """Three tenths reverse, a quarter direct, a quarter decomposition, a fifth intent."""
    score = combined()
    assert score.value == pytest.approx(0.3 * 1 + 0.25 * 0.5 + 0.25 * 0.25 + 0.2 * 0.75)
    assert score.reason is None
    parts_ = {"reverse": 1.0, "direct": 0.5, "decomposition": 0.25, "intent": 0.75}
    assert score.detail == {"parts": parts_, "missing": {}, "coverage": "1/4"}


@pytest.mark.parametrize("failure", [None, DOWN, RuntimeError("a client of one's own")])
def test_a_missing_part_has_no_value(failure: object) -> None:
    """The weights of the other parts are normalised."""
    score = combined(direct_relevancy=failure)
    expected = (0.3 * 1 + 0.25 * 0.25 + 0.2 * 0.75) / 0.75
    assert (score.value, score.reason) == (pytest.approx(expected), "partial")
    assert set(score.detail["missing"]) == {"direct"}


def test_without_half_of_the_weight_there_is_no_value() -> None:
    """Reverse and direct have more than half of the weight."""
    score = combined(direct_relevancy=None, similarities=None)
    assert (score.value, score.reason) == (None, "judge_incomplete")
    assert score.detail["missing"] == {"reverse": "unparsable", "direct": "unparsable"}


def test_parts_without_weight_are_not_asked() -> None:
    """Their prompts are not sent."""
    judge = FakeJudge(script(**QUARTERS))
    score = score_of(MultiMethodRelevancy(weights={"direct": 1, "intent": 3, "reverse": 0}), judge)
    assert score.value == pytest.approx((0.5 + 3 * 0.75) / 4)
    prompts = {task.prompt for request in judge.requests for task in request}
    assert prompts == {"direct_relevancy", "intent", "intent_fulfilment"}


@pytest.mark.parametrize(
    ("value", "band"),
    [
        (0.8, "directly addresses"),
        (0.79, "partially addresses"),
        (0.59, "somewhat related"),
        (0.39, "does not address"),
    ],
)
def test_the_bands_of_the_explanation(value: float, band: str) -> None:
    """The explanation says which of four bands the score is in."""
    judge = FakeJudge(script(direct_relevancy={"rating": value}))
    assert band in str(score_of(MultiMethodRelevancy(weights={"direct": 1}), judge).explanation)
    reverse = FakeJudge(script(similarities=similar(value, value, value)))
    assert band in str(score_of(ReverseRelevancy(), reverse).explanation)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        *(
            (AnswerCorrectness, {"beta": beta}, "beta must be above 0, at most 1e")
            for beta in (0, -1, math.nan, math.inf, 1e200)
        ),
        *(
            (AnswerCorrectness, {"weights": weights}, "weights must be two numbers from 0, one ab")
            for weights in (
                (0, 0),
                (-1, 2),
                (math.nan, 1),
                (1, math.inf),
                (1e308, 1e308),
                (1, 1, 1),
            )
        ),
        *(
            (MultiMethodRelevancy, {"weights": weights}, "weights must map some of reverse, direct")
            for weights in ({"direct": -1}, {"direct": math.nan}, {"direkt": 1})
        ),
        *(
            (MultiMethodRelevancy, {"weights": weights}, "at least one of the weights must be abov")
            for weights in ({}, {"direct": 0}, {"direct": 1e308, "intent": 1e308})
        ),
        (SemanticSimilarity, {"rule": "threshold", "threshold": None}, "needs a threshold"),
        (AnswerRelevancy, {"strictness": 0}, "strictness must be at least 1, not 0"),
        (ReverseRelevancy, {"strictness": 0}, "strictness must be at least 1, not 0"),
        (Guideline, {"guidelines": " \n"}, "guidelines must say what is asked of the answer"),
    ],
)
def test_options_that_cannot_be_used(make: Any, options: dict[str, Any], message: str) -> None:
    """Options that would give no number are refused at once."""
    with pytest.raises(ConfigError, match=message):
        make(**options)


FLAGS = st.lists(st.sampled_from([0, 1]), min_size=1, max_size=8)


@given(FLAGS, st.data())
def test_faithfulness_is_the_share_of_ones(flags: list[int], data: st.DataObject) -> None:
    """In any order of claims and verdicts, in one step or two, fused or not."""
    order = data.draw(st.permutations(range(len(flags))))
    replies = script(
        statements={"statements": [f"claim {i}" for i in order]},
        verdicts={"verdicts": [{"index": i + 1, "verdict": flags[order[i]]} for i in order]},
        judged_statements={"statements": flagged(*(flags[i] for i in order))},
    )
    for one in (FULL_FORM, ONE_STEP):
        for shares in (True, False):
            score = score_of(one, FakeJudge(replies), share_requests=shares)
            assert score.value == pytest.approx(sum(flags) / len(flags))
