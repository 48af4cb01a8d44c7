"""The dual-judge metrics: context relevance and response groundedness."""

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.evaluation import evaluate
from rag_eval_otel.metrics import (
    ContextPrecision,
    ContextRecall,
    ContextRelevance,
    ContextRelevancyRubric,
    ContextUtilization,
    ResponseGroundedness,
    StatementContextRelevance,
)
from rag_eval_otel.metrics.context import average_precision
from rag_eval_otel.metrics.outcome import Metric
from rag_eval_otel.testing.fakes import FakeJudge
from rag_eval_otel.types import Evaluation, Fusion, Sample, Score
from scoring import DOWN, FULL, flagged, score_of, script

DUAL = [partial(ContextRelevance, judges=2), partial(ResponseGroundedness, judges=2)]
TEXTS = {"question": "Why?", "contexts": ["One.", "Two."], "answer": "Because."}
both = pytest.mark.parametrize("metric", DUAL, ids=["relevance", "groundedness"])
RELEVANCE, GROUNDEDNESS = DUAL


def evaluated(
    metric: Metric, judge: FakeJudge, *, fusion: Fusion = "on", **texts: Any
) -> Evaluation:
    """Score a sample of the usual texts, except for those given."""
    return asyncio.run(
        evaluate(
            Sample(**{**TEXTS, **texts}),
            [metric],
            judge=judge,
            embedder=HashingEmbedder(),
            fusion=fusion,
        )
    )


def rated(*ratings: object) -> FakeJudge:
    """Return a judge whose voices rate so."""
    return FakeJudge(
        lambda task: {"rating": r} if isinstance(r := ratings[task.kind.voice - 1], int) else r
    )


@both
@pytest.mark.parametrize(
    ("ratings", "value", "disagreement"),
    [((2, 2), 1.0, 0.0), ((2, 1), 0.75, 0.5), ((0, 2), 0.5, 1.0), ((0, 0), 0.0, 0.0)],
)
def test_the_mean_of_two_judges(
    metric: Callable[[], Metric], ratings: tuple[int, int], value: float, disagreement: float
) -> None:
    """The score is the mean rating over 2; how far the judges differ is told on the same scale."""
    score = evaluated(metric(), rated(*ratings)).scores[0]
    assert (score.value, score.reason) == (value, None)
    assert score.detail == {
        "ratings": list(ratings),
        "rated": "integer",
        "judges_used": 2,
        "disagreement": disagreement,
    }


@both
@pytest.mark.parametrize("bad", [None, DOWN, 3, -1, True, {"rating": "2"}])
@pytest.mark.parametrize("first", [True, False], ids=["first", "second"])
def test_one_judge_is_enough(metric: Callable[[], Metric], bad: object, *, first: bool) -> None:
    """Whichever judge is without a valid rating, the other's counts, with a remark."""
    ratings = (bad, 2) if first else (2, bad)
    score = evaluated(metric(), rated(*ratings)).scores[0]
    assert (score.value, score.reason, score.detail["judges_used"]) == (1.0, "partial", 1)


@both
@pytest.mark.parametrize(
    ("bad", "status", "reason"),
    [((None, None), "undefined", "unparsable"), ((DOWN, None), "error", "transport")],
)
def test_no_judge_is_no_number(
    metric: Callable[[], Metric], bad: tuple[object, object], status: str, reason: str
) -> None:
    """Without a valid rating the reason is the first judge's."""
    score = evaluated(metric(), rated(*bad)).scores[0]
    assert (score.value, score.status, score.reason) == (None, status, reason)


@pytest.mark.parametrize(
    ("metric", "texts", "reason"),
    [
        (RELEVANCE, {"question": ""}, "missing_question"),
        (RELEVANCE, {"question": " ", "contexts": []}, "missing_question"),
        (RELEVANCE, {"contexts": []}, "no_context"),
        (RELEVANCE, {"contexts": ["", " \n"]}, "no_context"),
        (GROUNDEDNESS, {"answer": ""}, "empty_answer"),
        (GROUNDEDNESS, {"answer": "\n", "contexts": []}, "empty_answer"),
        (GROUNDEDNESS, {"contexts": []}, "no_context"),
        (GROUNDEDNESS, {"contexts": ["", " \n"]}, "no_context"),
    ],
)
def test_blank_is_zero_without_a_request(
    metric: Callable[[], Metric], texts: dict[str, Any], reason: str
) -> None:
    """Nothing retrieved, asked or answered is 0, and says why."""
    judge = rated(2, 2)
    score = evaluated(metric(), judge, **texts).scores[0]
    assert (score.value, score.reason, score.label) == (0.0, reason, "fail")
    assert judge.requests == []


@pytest.mark.parametrize(
    ("metric", "texts"),
    [
        (RELEVANCE, {"question": "One. Two?", "contexts": ["One."]}),
        (RELEVANCE, {"question": "One.", "contexts": ["One."]}),
        (RELEVANCE, {"answer": ""}),
        (GROUNDEDNESS, {"answer": "One.", "contexts": ["One."]}),
        (GROUNDEDNESS, {"answer": "e", "contexts": ["One."]}),
        (GROUNDEDNESS, {"question": ""}),
    ],
)
def test_everything_else_is_judged(metric: Callable[[], Metric], texts: dict[str, Any]) -> None:
    """That one text is a piece of the other says nothing; what isn't needed may be missing."""
    judge = rated(1, 1)
    assert evaluated(metric(), judge, **texts).scores[0].value == 0.5
    assert len(judge.requests) == 2


def test_what_is_shown() -> None:
    """Context relevance is judged without the answer, groundedness without the question."""
    judge = rated(1, 1)
    evaluated(ContextRelevance(judges=2), judge, contexts=["One.", " ", "Two."])
    evaluated(ResponseGroundedness(judges=2), judge)
    shown = [dict(task.inputs) for request in judge.requests for task in request]
    contexts = ("One.", "Two.")
    assert shown == [
        *[{"question": "Why?", "contexts": contexts}] * 2,
        *[{"answer": "Because.", "contexts": contexts}] * 2,
    ]


@both
def test_one_judge_may_be_asked_for(metric: Any) -> None:
    """With judges=1 there is one request, and nothing partial about it."""
    judge = rated(1)
    score = evaluated(metric(judges=1), judge).scores[0]
    assert (score.value, score.reason, len(judge.requests)) == (0.5, None, 1)


@both
def test_reasons_become_the_explanation(metric: Callable[[], Metric]) -> None:
    """What the judges said is told, where they said something."""
    judge = FakeJudge(lambda task: {"rating": 1, "reason": "Half." if task.kind.voice == 1 else ""})
    assert evaluated(metric(), judge).scores[0].explanation == "Half."
    assert evaluated(metric(), rated(1, 1)).scores[0].explanation is None


RATING = st.sampled_from([0, 1, 2, 3, None])


def outcome(score: Score) -> tuple[object, ...]:
    """Return what can be compared of a score, apart from its version."""
    return (score.value, score.status, score.reason)


@given(st.sampled_from(DUAL), st.tuples(RATING, RATING))
def test_properties(metric: Any, ratings: tuple[object, object]) -> None:
    """A number is one of five; the judges may be swapped; fusion does not change the arithmetic."""
    score = evaluated(metric(), rated(*ratings)).scores[0]
    assert score.value in {None, 0.0, 0.25, 0.5, 0.75, 1.0}
    swapped = evaluated(metric(), rated(*reversed(ratings))).scores[0]
    apart = evaluated(metric(), rated(*ratings), fusion="off").scores[0]
    assert outcome(swapped) == outcome(apart) == outcome(score)


@given(st.permutations(["One.", "Two.", "Three."]), st.sampled_from(DUAL))
def test_the_order_of_contexts_is_the_judges_affair(contexts: list[str], metric: Any) -> None:
    """The arithmetic does not look at the order in which contexts were retrieved."""
    assert evaluated(metric(), rated(2, 1), contexts=contexts).scores[0].value == 0.75


# --- contexts by use, by rank, by what the reference says, and by the statements they make --------

PROMPTS = {ContextPrecision: "useful_for_reference", ContextUtilization: "useful_for_answer"}
each_ranking = pytest.mark.parametrize("make", PROMPTS)


def useful(*flags: object) -> Any:
    """Say of the context that is called by a number whether it is of use."""

    def answer(task: Any) -> object:
        flag = flags[int(task.text("context"))]
        return {"verdict": flag} if isinstance(flag, int) else flag

    return answer


def ranked(make: Any, *flags: object, fusion: Fusion = "on") -> Score:
    """Score contexts of which these are of use."""
    judge = FakeJudge(script(**{PROMPTS[make]: useful(*flags)}))
    contexts = [str(i) for i in range(len(flags))]
    return score_of(make(), judge, contexts=contexts, fusion=fusion)


@each_ranking
@pytest.mark.parametrize(
    ("flags", "value", "told"),
    [
        ((1,), 1, "1"),
        ((0,), 0, "none"),
        ((1, 1, 1), 1, "1, 2, 3"),
        ((0, 1), 1 / 2, "2"),
        ((1, 0, 1), (1 + 2 / 3) / 2, "1, 3"),
        ((0, 0, 1, 1), (1 / 3 + 2 / 4) / 2, "3, 4"),
        ((0, 0, 0), 0, "none"),
    ],
)
def test_the_average_precision_of_use(
    make: Any, flags: tuple[int, ...], value: float, told: str
) -> None:
    """The mean, over the ranks that are of use, of the share of use so far; perfect is 1."""
    score = ranked(make, *flags)
    assert score.value == pytest.approx(value, abs=1e-15)
    assert score.explanation == f"Of use, by rank: {told}."
    assert score.detail == {"verdicts": list(flags)}


@each_ranking
def test_each_context_is_judged_by_itself(make: Any) -> None:
    """A judge of one context sees question, that context, and the text it may have served."""
    judge = FakeJudge(script())
    score_of(make(), judge, fusion="off")
    shown = PROMPTS[make].removeprefix("useful_for_")
    texts = {"question": FULL.question, shown: getattr(FULL, shown)}
    assert [dict(task.inputs) for request in judge.requests for task in request] == [
        {**texts, "context": passage.text} for passage in FULL.contexts
    ]


@each_ranking
def test_a_context_retrieved_twice_is_judged_once(make: Any) -> None:
    """Equal contexts have one verdict, and each its rank."""
    judge = FakeJudge(script(**{PROMPTS[make]: useful(1, 0)}))
    score = score_of(make(), judge, contexts=["0", "1", "0", " "])
    assert score.detail["verdicts"] == [1, 0, 1]
    assert [len(request) for request in judge.requests] == [2]


@each_ranking
@pytest.mark.parametrize(
    ("flags", "status", "reason"),
    [
        ((1, None, 0), "undefined", "judge_incomplete"),
        ((None, None, None), "undefined", "unparsable"),
        ((1, DOWN, None), "error", "transport"),
    ],
)
def test_a_context_without_a_verdict(
    make: Any, flags: tuple[object, ...], status: str, reason: str
) -> None:
    """One verdict that is missing leaves no ranking; the others can be read in the detail."""
    score = ranked(make, *flags)
    assert (score.value, score.status, score.reason) == (None, status, reason)
    if reason == "judge_incomplete":
        assert score.detail == {"verdicts": [1, None, 0]}


FLAGS = st.lists(st.sampled_from([0, 1]), min_size=1, max_size=8)


@given(FLAGS, st.data())
def test_a_context_of_use_that_moves_up_never_lowers(flags: list[int], data: st.DataObject) -> None:
    """The score is in [0, 1] and rewards what is of use for being first."""
    value = average_precision(flags)
    assert 0 <= value <= 1
    assert value == 1 or sorted(flags, reverse=True) != flags or not any(flags)
    steps = [i for i in range(1, len(flags)) if flags[i - 1 : i + 1] == [0, 1]]
    if steps:
        i = data.draw(st.sampled_from(steps))
        better = [*flags[: i - 1], 1, 0, *flags[i + 1 :]]
        assert average_precision(better) > value


# --- recall ---------------------------------------------------------------------------------------


def test_the_share_of_the_references_claims() -> None:
    """What the contexts do not hold is named; blank claims do not count."""
    statements = [*flagged(1, 0, 1), {"statement": " ", "verdict": 1}]
    judge = FakeJudge(script(reference_statements={"statements": statements}))
    score = score_of(ContextRecall(), judge)
    assert score.value == pytest.approx(2 / 3)
    assert score.explanation == "Not in the contexts: claim 1"
    assert score.detail["verdicts"] == [1, 0, 1]


def test_complete_recall_needs_no_explanation() -> None:
    """Where nothing is missing nothing is named."""
    judge = FakeJudge(script(reference_statements={"statements": flagged(1)}))
    assert score_of(ContextRecall(), judge).explanation is None


@pytest.mark.parametrize("statements", [[], [{"statement": " ", "verdict": 1}]])
def test_a_reference_without_claims(statements: list[object]) -> None:
    """Nothing to trace is undefined."""
    judge = FakeJudge(script(reference_statements={"statements": statements}))
    assert score_of(ContextRecall(), judge).reason == "no_claims"


def test_recall_does_without_a_question() -> None:
    """The question only helps to read the reference."""
    assert score_of(ContextRecall(), question="").value == 0.5


# --- statements of the contexts -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "value", "told"),
    [
        (["One.", "Two."], 1, "Needed: One. / Two."),
        (["One.", " "], 1, "Needed: One."),
        ([], 0, "Nothing of it is needed."),
        (["", "\n"], 0, "Nothing of it is needed."),
    ],
)
def test_whether_anything_is_needed(found: list[str], value: float, told: str) -> None:
    """One sentence that is needed is enough; a blank one is none."""
    judge = FakeJudge(script(relevant_statements={"relevant_statements": found}))
    score = score_of(StatementContextRelevance(form="full"), judge)
    assert (score.value, score.explanation) == (value, told)


@pytest.mark.parametrize("found", [None, "none", [1], [None]])
def test_what_is_no_list_of_sentences(found: object) -> None:
    """The word none is no sentence, and null no empty list."""
    judge = FakeJudge(script(relevant_statements={"relevant_statements": found}))
    score = score_of(StatementContextRelevance(form="full"), judge)
    assert (score.value, score.reason) == (None, "unparsable")


def test_how_much_of_it_helps() -> None:
    """By the rule of proportion the score is the share of statements that help."""
    statements = [*flagged(1, 0, 0, 1), {"statement": "", "verdict": 0}]
    judge = FakeJudge(script(context_statements={"statements": statements}))
    score = score_of(StatementContextRelevance(rule="proportion"), judge)
    assert (score.value, score.explanation) == (0.5, "2 of 4 statements help.")
    nothing = FakeJudge(script(context_statements={"statements": []}))
    empty = score_of(StatementContextRelevance(rule="proportion"), nothing)
    assert (empty.value, empty.reason) == (None, "no_claims")


@given(FLAGS, st.data())
def test_the_order_of_statements_says_nothing(flags: list[int], data: st.DataObject) -> None:
    """Statements in another order have the same share, for recall and for relevance."""
    order = data.draw(st.permutations(flags))
    for metric, prompt in (
        (ContextRecall(), "reference_statements"),
        (StatementContextRelevance(rule="proportion"), "context_statements"),
    ):
        values = [
            score_of(metric, FakeJudge(script(**{prompt: {"statements": flagged(*one)}}))).value
            for one in (flags, order)
        ]
        assert values[0] == values[1] == pytest.approx(math.fsum(flags) / len(flags))


# --- marks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subject", "sufficiency", "value"), [(2, 2, 1), (1.5, 0, 0.375), (0, 0, 0), (2, 1.0, 0.75)]
)
def test_marks_over_four(subject: float, sufficiency: float, value: float) -> None:
    """Up to two marks each, halves allowed; all contexts are judged in one request."""
    reply = {"subject": subject, "sufficiency": sufficiency, "reason": "So."}
    judge = FakeJudge(script(context_relevancy_rubric=reply))
    score = score_of(ContextRelevancyRubric(), judge)
    assert (score.value, score.explanation) == (value, "So.")
    assert len(judge.requests) == 1


@pytest.mark.parametrize("marks", [2.1, -0.1, "2", None, True])
def test_marks_off_the_scale(marks: object) -> None:
    """More than two marks for one question are refused, not added up."""
    reply = {"subject": marks, "sufficiency": 0}
    score = score_of(ContextRelevancyRubric(), FakeJudge(script(context_relevancy_rubric=reply)))
    assert (score.value, score.reason) == (None, "unparsable")
