"""The offline judge on an answer beside its reference: how far they say the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rag_eval_otel.errors import UnparsableReplyError
from rag_eval_otel.judge.lexical_contexts import claims_of, support_of, verdict_on
from rag_eval_otel.judge.lexical_questions import relevancy
from rag_eval_otel.judge.replies import Accuracy, ComparedStatements, FivePoint, JudgedStatement
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.judge.text import Passages, keys, terms

_FULL, _PART = 0.8, 0.3  # agreement from which credit is full, or in part
_EXACT = 0.9  # agreement where all numbers and names of the reference are found
_RIGHT = 4.0  # the grade from which an answer counts as right
_ON_SUBJECT = 0.3  # relevancy from which a wrong answer is at least about the question


def compared_statements(task: Task[Any]) -> ComparedStatements:
    """Return the claims of both sides, each with whether the other side has its words."""
    answer, reference = _claims(task, "answer"), _claims(task, "reference")
    beyond = keys(task.text("question"))
    return ComparedStatements(
        answer_statements=_flagged(answer, reference, beyond=beyond),
        reference_statements=_flagged(reference, answer, beyond=beyond),
    )


def _claims(task: Task[Any], name: str) -> list[str]:
    return claims_of(task.text(name), question=task.text("question"))


def _flagged(
    claims: Sequence[str], others: Sequence[str], *, beyond: set[str]
) -> list[JudgedStatement]:
    passages = Passages(["\n".join(others)])
    judged = [verdict_on(support_of(claim, passages, beyond=beyond)) for claim in claims]
    return [
        JudgedStatement(statement=claim, verdict=flag, reason=reason)
        for claim, (flag, reason) in zip(claims, judged, strict=True)
    ]


def accuracy(task: Task[Any]) -> Accuracy:
    """Give full credit where the answer has what the reference says, in part where it has some."""
    share = _agreement(task)
    reason = f"{share:.0%} of the reference is found"
    if share >= _FULL:
        return Accuracy(rating=4, reason=reason)
    return Accuracy(rating=2 if share >= _PART else 0, reason=reason)


def _agreement(task: Task[Any]) -> float:
    """Return how much of the reference the answer says, in [0, 1].

    If the numbers and names that the reference gives are found, little else is missed. What the
    answer says beyond it costs up to half; a number or a name that the reference does not have, or
    a no for a yes, costs all of its claim.
    """
    beyond = keys(task.text("question"))
    answer, reference = _claims(task, "answer"), _claims(task, "reference")
    found = _share(reference, answer, beyond=beyond)
    exact = _exact(reference) - beyond
    if found and exact and exact <= _exact(answer):
        found = max(found, _EXACT)
    return found * (1 + _share(answer, reference, beyond=beyond)) / 2


def _exact(claims: Sequence[str]) -> set[str]:
    return {term.key for claim in claims for term in terms(claim) if term.is_exact}


def _share(claims: Sequence[str], others: Sequence[str], *, beyond: set[str]) -> float:
    passages = Passages(["\n".join(others)])
    supports = [support_of(claim, passages, beyond=beyond) for claim in claims]
    shares = [0.0 if one.lacks_exact or one.is_denied else one.share for one in supports]
    return sum(shares) / max(1, len(shares))


def correctness(task: Task[Any]) -> FivePoint | UnparsableReplyError:
    """Grade by agreement with the reference; without one there is nothing to compare with."""
    if not dict(task.inputs).get("reference"):
        return UnparsableReplyError("the lexical judge cannot tell what is right without reference")
    share = _agreement(task)
    if share >= _PART:
        grade = _RIGHT + share if share >= _FULL else 2.0 + share * 2
    else:
        grade = 2.0 if relevancy(task.text("question"), task.text("answer")) >= _ON_SUBJECT else 1.0
    rating = min(5.0, round(2 * grade) / 2)
    return FivePoint(rating=rating, reason=f"{share:.0%} of the reference is found")
