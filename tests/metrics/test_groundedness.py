"""Faithfulness, in two steps and in one: what share of the claims is backed?"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.errors import JudgeTransportError
from rag_eval_otel.evaluation import aevaluate
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.metrics import Faithfulness, StatementFaithfulness
from rag_eval_otel.metrics.base import Metric
from rag_eval_otel.testing.fakes import FakeJudge
from rag_eval_otel.types import Evaluation, Sample, Score

TEXTS = {"question": "Why?", "contexts": ["One.", "Two."], "answer": "Because."}
CLAIMS = ["a", "b", "c"]
DOWN = JudgeTransportError("down")


def evaluated(
    metric: Metric,
    reply: Callable[[Task[Any]], object],
    /,
    *,
    share_requests: bool = True,
    **texts: Any,
) -> tuple[Evaluation, list[Task[Any]]]:
    """Score a sample; return the evaluation and the tasks that were put, in order."""
    judge = FakeJudge(reply)
    sample = Sample(**{**TEXTS, **texts})
    evaluation = asyncio.run(
        aevaluate(
            sample, [metric], judge=judge, embedder=HashingEmbedder(), share_requests=share_requests
        )
    )
    return evaluation, [task for request in judge.requests for task in request]


def judge_of(claims: Sequence[str], *rounds: object) -> Callable[[Task[Any]], object]:
    """Find these claims; give verdicts by index, or any other reply, one round after the other."""
    waiting = list(rounds)

    def answer(task: Task[Any]) -> object:
        if task.prompt == "statements":
            return {"statements": list(claims)}
        given = waiting.pop(0)
        pairs = tuple(given.items()) if isinstance(given, dict) else given
        return verdicts(pairs) if isinstance(pairs, tuple) else given

    return answer


def verdicts(flags: Iterable[tuple[object, object]]) -> dict[str, object]:
    """Return a reply with these verdicts by index."""
    return {"verdicts": [{"index": i, "verdict": flag} for i, flag in flags]}


def faithful(claims: Sequence[str], *rounds: object, **texts: Any) -> tuple[Score, int]:
    """Return the score, and how many requests it took."""
    evaluation, asked = evaluated(Faithfulness(form="full"), judge_of(claims, *rounds), **texts)
    return evaluation.scores[0], len(asked)


# --- in two steps ---------------------------------------------------------------------------------


def test_the_share_of_backed_claims() -> None:
    """The score is supported claims over claims; those without support are named."""
    score, requests = faithful(CLAIMS, {1: 1, 2: 0, 3: 1})
    assert (score.value, score.reason, requests) == (pytest.approx(2 / 3), None, 2)
    assert score.explanation == "Not backed: b"
    assert score.detail == {"statements": CLAIMS, "verdicts": [1, 0, 1]}


def test_verdicts_belong_to_claims_by_index() -> None:
    """The order in which verdicts come says nothing; indexes out of range and repeats neither."""
    score, _ = faithful(CLAIMS, ((3, 0), (0, 1), (-1, 1), (4, 1), (1, 1), (2, 1), (3, 1)))
    assert score.detail["verdicts"] == [1, 1, 0]


def test_missing_verdicts_are_asked_once_more() -> None:
    """Only the claims without a verdict are put again, under new numbers."""
    evaluation, asked = evaluated(Faithfulness(form="full"), judge_of(CLAIMS, {2: 1}, {1: 0, 2: 1}))
    assert [dict(task.inputs).get("statements") for task in asked] == [
        None,
        ("a", "b", "c"),
        ("a", "c"),
    ]
    assert evaluation.scores[0].detail["verdicts"] == [0, 1, 1]


@pytest.mark.parametrize(
    "rounds",
    [({}, {}), ({1: 1}, {}), ({1: 1}, {1: 1}), ({}, {1: 1, 2: 1}), ({9: 1}, {0: 1})],
)
def test_claims_left_without_a_verdict(rounds: tuple[Mapping[int, int], ...]) -> None:
    """After the second time the score is undefined: it is not the share of what came back."""
    score, requests = faithful(CLAIMS, *rounds)
    assert (score.value, score.status, score.reason) == (None, "undefined", "judge_incomplete")
    assert score.detail == {"statements": CLAIMS}
    assert requests == 3


def test_a_judge_that_gave_no_verdict_is_asked_again() -> None:
    """The second time counts, also where the first brought nothing at all."""
    score, requests = faithful(CLAIMS, {}, {1: 1, 2: 1, 3: 0})
    assert (score.value, requests) == (pytest.approx(2 / 3), 3)


@pytest.mark.parametrize("claims", [[], ["", " \n"]])
def test_an_answer_without_claims_is_undefined(claims: list[str]) -> None:
    """A refusal is neither faithful nor unfaithful, and takes no second request."""
    score, requests = faithful(claims)
    assert (score.status, score.reason, requests) == ("undefined", "no_claims", 1)


@pytest.mark.parametrize("contexts", [[], ["", " "]])
def test_without_context_nothing_is_backed(contexts: list[str]) -> None:
    """Claims without a context are 0, without asking whether they follow from it."""
    score, requests = faithful(CLAIMS, contexts=contexts)
    assert (score.value, score.reason, requests) == (0.0, "no_context", 1)
    assert score.detail == {"statements": CLAIMS, "verdicts": [0, 0, 0]}


@pytest.mark.parametrize(
    ("rounds", "status", "reason"),
    [
        ([None] * 2, "undefined", "unparsable"),
        ([{1: 2}] * 2, "undefined", "unparsable"),
        ([{1: -1}] * 2, "undefined", "unparsable"),
        ([{"1": 1}] * 2, "undefined", "unparsable"),
        ([DOWN], "error", "transport"),
        ([{1: 1}, DOWN], "error", "transport"),
    ],
)
def test_no_usable_verdicts(rounds: list[object], status: str, reason: str) -> None:
    """A verdict is 0 or 1; without usable ones there is no number."""
    score, _ = faithful(CLAIMS, *rounds)
    assert (score.value, score.status, score.reason) == (None, status, reason)


def test_no_usable_claims() -> None:
    """If the first step fails, so does the score."""
    evaluation, _ = evaluated(Faithfulness(form="full"), lambda _: None)
    assert evaluation.scores[0].reason == "unparsable"


# --- in one step ----------------------------------------------------------------------------------


def judged(*claims: tuple[str, object]) -> Callable[[Task[Any]], object]:
    """Find and judge these claims in one step."""
    found = [{"statement": claim, "verdict": verdict} for claim, verdict in claims]
    return lambda _: {"statements": found}


def test_claims_and_verdicts_in_one_request() -> None:
    """The one-step variant has the same arithmetic at half the requests."""
    evaluation, asked = evaluated(
        StatementFaithfulness(form="full"), judged(("a", 1), ("b", 0), (" ", 1))
    )
    score = evaluation.scores[0]
    assert (score.value, score.explanation) == (0.5, "Not backed: b")
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("answer", "texts", "outcome", "requests"),
    [
        (judged(), {}, (None, "undefined", "no_claims"), 1),
        (judged(("", 1)), {}, (None, "undefined", "no_claims"), 1),
        (judged(("a", 1)), {"contexts": [" "]}, (0.0, "ok", "no_context"), 0),
        (judged(("a", 2)), {}, (None, "undefined", "unparsable"), 2),
        (lambda _: DOWN, {}, (None, "error", "transport"), 1),
    ],
)
def test_edges_in_one_step(
    answer: Any, texts: dict[str, Any], outcome: tuple[object, ...], requests: int
) -> None:
    """The one-step variant has the edges of the other."""
    evaluation, asked = evaluated(StatementFaithfulness(form="full"), answer, **texts)
    score = evaluation.scores[0]
    assert (score.value, score.status, score.reason) == outcome
    assert len(asked) == requests


# --- properties -----------------------------------------------------------------------------------

FLAGS = st.lists(st.sampled_from([0, 1]), min_size=1, max_size=8)


@given(FLAGS, st.data())
def test_properties(flags: list[int], data: st.DataObject) -> None:
    """The score is the share of ones, in any order of claims and verdicts, in one step or two."""
    order = data.draw(st.permutations(range(len(flags))))
    shuffled = [flags[i] for i in order]
    claims = [f"claim {i}" for i in order]
    replies = {i + 1: shuffled[i] for i in data.draw(st.permutations(range(len(flags))))}
    expected = pytest.approx(sum(flags) / len(flags))
    for share_requests in (True, False):
        two, _ = evaluated(
            Faithfulness(form="full"), judge_of(claims, replies), share_requests=share_requests
        )
        one, _ = evaluated(
            StatementFaithfulness(form="full"),
            judged(*zip(claims, shuffled, strict=True)),
            share_requests=share_requests,
        )
        assert two.scores[0].value == one.scores[0].value == expected
