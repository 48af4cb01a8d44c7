"""The dual-judge metrics: context relevance and response groundedness."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from rag_eval_otel.metrics import StatementContextRelevance, metric
from rag_eval_otel.metrics.base import Metric
from rag_eval_otel.testing.fakes import FakeJudge
from rag_eval_otel.types import Sample, Score
from scoring import DOWN, FULL, flagged, score_of, script

DUAL = [partial(metric, name, judges=2) for name in ("context_relevance", "response_groundedness")]
TEXTS = {"question": "Why?", "contexts": ["One.", "Two."], "answer": "Because."}
both = pytest.mark.parametrize("make", DUAL, ids=["relevance", "groundedness"])
RELEVANCE, GROUNDEDNESS = DUAL


def scored(metric: Metric, judge: FakeJudge, **texts: Any) -> Score:
    """Score a sample of the usual texts, except for those given."""
    return score_of(metric, judge, sample=Sample(**{**TEXTS, **texts}))


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
    make: Callable[[], Metric], ratings: tuple[int, int], value: float, disagreement: float
) -> None:
    """The score is the mean rating over 2; how far the judges differ is told on the same scale."""
    score = scored(make(), rated(*ratings))
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
def test_one_judge_is_enough(make: Callable[[], Metric], bad: object, *, first: bool) -> None:
    """Whichever judge is without a valid rating, the other's counts, with a remark."""
    ratings = (bad, 2) if first else (2, bad)
    score = scored(make(), rated(*ratings))
    assert (score.value, score.reason, score.detail["judges_used"]) == (1.0, "partial", 1)


@both
@pytest.mark.parametrize(
    ("bad", "status", "reason"),
    [((None, None), "undefined", "unparsable"), ((DOWN, None), "error", "transport")],
)
def test_no_judge_is_no_number(
    make: Callable[[], Metric], bad: tuple[object, object], status: str, reason: str
) -> None:
    """Without a valid rating the reason is the first judge's."""
    score = scored(make(), rated(*bad))
    assert (score.value, score.status, score.reason) == (None, status, reason)


@pytest.mark.parametrize(
    ("make", "texts"),
    [
        (RELEVANCE, {"question": "One. Two?", "contexts": ["One."]}),
        (RELEVANCE, {"question": "One.", "contexts": ["One."]}),
        (RELEVANCE, {"answer": ""}),
        (GROUNDEDNESS, {"answer": "One.", "contexts": ["One."]}),
        (GROUNDEDNESS, {"answer": "e", "contexts": ["One."]}),
        (GROUNDEDNESS, {"question": ""}),
    ],
)
def test_everything_else_is_judged(make: Callable[[], Metric], texts: dict[str, Any]) -> None:
    """That one text is a piece of the other says nothing; what isn't needed may be missing."""
    judge = rated(1, 1)
    assert scored(make(), judge, **texts).value == 0.5
    assert len(judge.requests) == 2


@both
def test_reasons_become_the_explanation(make: Callable[[], Metric]) -> None:
    """What the judges said is told, where they said something."""
    judge = FakeJudge(lambda task: {"rating": 1, "reason": "Half." if task.kind.voice == 1 else ""})
    assert scored(make(), judge).explanation == "Half."
    assert scored(make(), rated(1, 1)).explanation is None


# --- contexts by use, by rank, by what the reference says, and by the statements they make --------

PROMPTS = {"context_precision": "useful_for_reference", "context_utilization": "useful_for_answer"}
each_ranking = pytest.mark.parametrize("name", PROMPTS)


def useful(*flags: object) -> Any:
    """Say of the context that is called by a number whether it is of use."""

    def answer(task: Any) -> object:
        flag = flags[int(task.text("context"))]
        return {"verdict": flag} if isinstance(flag, int) else flag

    return answer


def ranked(name: str, *flags: object, share_requests: bool = True) -> Score:
    """Score contexts of which these are of use."""
    judge = FakeJudge(script(**{PROMPTS[name]: useful(*flags)}))
    contexts = [str(i) for i in range(len(flags))]
    return score_of(metric(name), judge, contexts=contexts, share_requests=share_requests)


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
    name: str, flags: tuple[int, ...], value: float, told: str
) -> None:
    """The mean, over the ranks that are of use, of the share of use so far; perfect is 1."""
    score = ranked(name, *flags)
    assert score.value == pytest.approx(value, abs=1e-15)
    assert score.explanation == f"Of use, by rank: {told}."
    assert score.detail == {"verdicts": list(flags)}


@each_ranking
def test_each_context_is_judged_by_itself(name: str) -> None:
    """A judge of one context sees question, that context, and the text it may have served."""
    judge = FakeJudge(script())
    score_of(metric(name), judge, share_requests=False)
    shown = PROMPTS[name].removeprefix("useful_for_")
    texts = {"question": FULL.question, shown: getattr(FULL, shown)}
    assert [dict(task.inputs) for request in judge.requests for task in request] == [
        {**texts, "context": passage.text} for passage in FULL.contexts
    ]


@each_ranking
def test_a_context_retrieved_twice_is_judged_once(name: str) -> None:
    """Equal contexts have one verdict, and each its rank."""
    judge = FakeJudge(script(**{PROMPTS[name]: useful(1, 0)}))
    score = score_of(metric(name), judge, contexts=["0", "1", "0", " "])
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
    name: str, flags: tuple[object, ...], status: str, reason: str
) -> None:
    """One verdict that is missing leaves no ranking; the others can be read in the detail."""
    score = ranked(name, *flags)
    assert (score.value, score.status, score.reason) == (None, status, reason)
    if reason == "judge_incomplete":
        assert score.detail == {"verdicts": [1, None, 0]}


# --- recall ---------------------------------------------------------------------------------------


def test_the_share_of_the_references_claims() -> None:
    """What the contexts do not hold is named; blank claims do not count."""
    statements = [*flagged(1, 0, 1), {"statement": " ", "verdict": 1}]
    judge = FakeJudge(script(reference_statements={"statements": statements}))
    score = score_of(metric("context_recall"), judge)
    assert score.value == pytest.approx(2 / 3)
    assert score.explanation == "Not in the contexts: claim 1"
    assert score.detail["verdicts"] == [1, 0, 1]


@pytest.mark.parametrize("statements", [[], [{"statement": " ", "verdict": 1}]])
def test_a_reference_without_claims(statements: list[object]) -> None:
    """Nothing to trace is undefined."""
    judge = FakeJudge(script(reference_statements={"statements": statements}))
    assert score_of(metric("context_recall"), judge).reason == "no_claims"


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


def test_how_much_of_it_helps() -> None:
    """By the rule of proportion the score is the share of statements that help."""
    statements = [*flagged(1, 0, 0, 1), {"statement": "", "verdict": 0}]
    judge = FakeJudge(script(context_statements={"statements": statements}))
    score = score_of(StatementContextRelevance(rule="proportion"), judge)
    assert (score.value, score.explanation) == (0.5, "2 of 4 statements help.")
    nothing = FakeJudge(script(context_statements={"statements": []}))
    empty = score_of(StatementContextRelevance(rule="proportion"), nothing)
    assert (empty.value, empty.reason) == (None, "no_claims")


# --- marks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subject", "sufficiency", "value"), [(2, 2, 1), (1.5, 0, 0.375), (0, 0, 0), (2, 1.0, 0.75)]
)
def test_marks_over_four(subject: float, sufficiency: float, value: float) -> None:
    """Up to two marks each, halves allowed; all contexts are judged in one request."""
    reply = {"subject": subject, "sufficiency": sufficiency, "reason": "So."}
    judge = FakeJudge(script(context_relevancy_rubric=reply))
    score = score_of(metric("context_relevancy_rubric"), judge)
    assert (score.value, score.explanation) == (value, "So.")
    assert len(judge.requests) == 1
