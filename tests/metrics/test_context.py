"""Metrics of the contexts: ranked, recalled, and relevant by statement."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.metrics import StatementContextRelevance, metric
from rag_eval_otel.testing.fakes import FakeJudge
from scoring import BLANK, DOWN, FULL, Case, assert_case, case, flagged, score_of, script, shown


def useful(*flags: object) -> Callable[[Task[Any]], object]:
    def answer(task: Task[Any]) -> object:
        flag = flags[int(task.text("context"))]
        return {"verdict": flag} if isinstance(flag, int) else flag

    return answer


def rankings(name: str, prompt: str) -> Iterator[Case]:
    def ranked(
        value: float | None, flags: tuple[object, ...], contexts: str = "", **facts: Any
    ) -> Case:
        texts = {"contexts": list(contexts or "".join(map(str, range(len(flags)))))}
        return case(metric(name), value, {prompt: useful(*flags)}, texts=texts, **facts)

    for flags, value, ranks in (
        ((1,), 1, "1"),
        ((1, 1, 1), 1, "1, 2, 3"),
        ((0, 1), 1 / 2, "2"),
        ((1, 0, 1), (1 + 2 / 3) / 2, "1, 3"),
        ((0, 0, 1, 1), (1 / 3 + 2 / 4) / 2, "3, 4"),
        ((0, 0, 0), 0, "none"),
    ):
        explanation = f"Of use, by rank: {ranks}."
        yield ranked(value, flags, explanation=explanation, verdicts=list(flags))
    yield ranked(None, (1, None, 0), reason="judge_incomplete", verdicts=[1, None, 0])
    yield ranked(None, (None, None, None), reason="unparsable")
    yield ranked(None, (1, DOWN, None), reason="transport")
    yield ranked(5 / 6, (1, 0), "010 ", verdicts=[1, 0, 1])  # equal contexts have one verdict


SHARE, COPIED = StatementContextRelevance(rule="proportion"), StatementContextRelevance(form="full")
RUBRIC, RECALL = metric("context_relevancy_rubric"), metric("context_recall")
CASES = [
    *rankings("context_precision", "useful_for_reference"),
    *rankings("context_utilization", "useful_for_answer"),
    case(
        RECALL,
        2 / 3,
        {"reference_statements": {"statements": [*flagged(1, 0, 1), BLANK]}},
        explanation="Not in the contexts: claim 1",
        verdicts=[1, 0, 1],
    ),
    case(
        SHARE,
        0.5,
        {"context_statements": {"statements": [*flagged(1, 0, 0, 1), BLANK]}},
        explanation="2 of 4 statements help.",
    ),
    *(
        case(one, None, {prompt: {"statements": statements}}, reason="no_claims")
        for one, prompt in ((RECALL, "reference_statements"), (SHARE, "context_statements"))
        for statements in ([], [BLANK])
    ),
    *(
        case(
            COPIED,
            value,
            {"relevant_statements": {"relevant_statements": copied}},
            explanation=explanation,
        )
        for copied, value, explanation in (
            (["One.", "Two."], 1, "Needed: One. / Two."),
            (["One.", " "], 1, "Needed: One."),
            (["", "\n"], 0, "Nothing of it is needed."),
        )
    ),
    *(
        case(
            StatementContextRelevance(),
            value,
            {"relevant_contexts": {"numbers": numbers}},
            **facts,
        )
        for numbers, value, facts in (
            ([2], 1, {"relevant_contexts": [2]}),
            ([3, 1, 3], 1, {"relevant_contexts": [1, 3], "explanation": "Needed, by rank: 1, 3."}),
            ([], 0, {"relevant_contexts": []}),
            *(
                (numbers, None, {"reason": "judge_incomplete"})
                for numbers in ([0], [1, 4], [1, -1])
            ),
        )
    ),
    *(
        case(RUBRIC, value, {"context_relevancy_rubric": {"subject": a, "sufficiency": b}})
        for a, b, value in ((2, 2, 1), (1.5, 0, 0.375), (0, 0, 0), (2, 1.0, 0.75))
    ),
]


@pytest.mark.parametrize("one", CASES)
def test_the_score_of_replies(one: Case) -> None:
    """Replies of a judge become value, reason, explanation and detail."""
    assert_case(one)


@pytest.mark.parametrize(
    ("name", "field"), [("context_precision", "reference"), ("context_utilization", "answer")]
)
def test_each_context_is_judged_alone(name: str, field: str) -> None:
    """The judge of one context sees the question, the context, and reference or answer."""
    judge = FakeJudge(script())
    score_of(metric(name), judge, share_requests=False)
    texts = {"question": FULL.question, field: getattr(FULL, field)}
    assert shown(judge) == [{**texts, "context": passage.text} for passage in FULL.contexts]
