"""Contexts by use, by rank, by what the reference says, and by the statements they make."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.metrics import (
    ContextPrecision,
    ContextRecall,
    ContextRelevancyRubric,
    ContextUtilization,
    StatementContextRelevance,
)
from rag_eval_otel.metrics.context import average_precision
from rag_eval_otel.testing.fakes import FakeJudge
from rag_eval_otel.types import Fusion, Score
from scoring import DOWN, FULL, flagged, score_of, script

PROMPTS = {ContextPrecision: "useful_for_reference", ContextUtilization: "useful_for_answer"}
both = pytest.mark.parametrize("make", PROMPTS)


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


@both
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


@both
def test_each_context_is_judged_by_itself(make: Any) -> None:
    """A judge of one context sees question, that context, and the text it may have served."""
    judge = FakeJudge(script())
    score_of(make(), judge, fusion="off")
    shown = PROMPTS[make].removeprefix("useful_for_")
    texts = {"question": FULL.question, shown: getattr(FULL, shown)}
    assert [dict(task.inputs) for request in judge.requests for task in request] == [
        {**texts, "context": passage.text} for passage in FULL.contexts
    ]


@both
def test_a_context_retrieved_twice_is_judged_once(make: Any) -> None:
    """Equal contexts have one verdict, and each its rank."""
    judge = FakeJudge(script(**{PROMPTS[make]: useful(1, 0)}))
    score = score_of(make(), judge, contexts=["0", "1", "0", " "])
    assert score.detail["verdicts"] == [1, 0, 1]
    assert [len(request) for request in judge.requests] == [2]


@both
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
