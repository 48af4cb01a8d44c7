"""The offline judge on contexts: do they serve the question, do they back the answer?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from rag_eval_otel.judge.lexical_claims import claims_of, evades, support_of, verdict_on
from rag_eval_otel.judge.replies import (
    Decision,
    JudgedStatement,
    JudgedStatements,
    Rating,
    RelevantStatements,
    TwoMarks,
    Useful,
    Verdict,
    Verdicts,
)
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.judge.text import Term, content, keys, sentences, terms, within_limit
from rag_eval_otel.judge.text_kinds import read
from rag_eval_otel.judge.text_passages import Passages, Support

_RELEVANCE = ((0.6, 0.3), (0.7, 0.4))  # by voice: shares from which the rating is 2, and 1
_GROUNDED = (0.8, 0.45)
_ALL_OR_SOME = (1.0, 0.001)
_NEEDED = 0.4  # share of what is asked about from which a sentence is needed
_ON_SUBJECT = 0.3  # share from which a context is about what is asked
_TAKEN = 0.5  # share of an answer's own words that must stand in a context of use
_HALVES = 2

_Steps = tuple[float, float]


def verdicts(task: Task[Any]) -> Verdicts:
    """Tell for every statement whether the contexts back it."""
    passages = Passages(task.texts("contexts"))
    judged = [verdict_on(support_of(claim, passages)) for claim in task.texts("statements")]
    return Verdicts(
        verdicts=[
            Verdict(index=i, verdict=flag, reason=reason)
            for i, (flag, reason) in enumerate(judged, start=1)
        ]
    )


def judged_statements(task: Task[Any]) -> JudgedStatements:
    """Return the answer's claims with their verdicts; the question's words are given."""
    return _judged(task, "answer")


def reference_statements(task: Task[Any]) -> JudgedStatements:
    """Return the reference's claims with their verdicts; the question's words are given."""
    return _judged(task, "reference")


def _judged(task: Task[Any], name: Literal["answer", "reference"]) -> JudgedStatements:
    passages, question = Passages(task.texts("contexts")), task.text("question")
    beyond = keys(question)
    claims = claims_of(task.text(name), question=question)
    found = [verdict_on(support_of(claim, passages, beyond=beyond)) for claim in claims]
    return JudgedStatements(
        statements=[
            JudgedStatement(statement=claim, verdict=flag, reason=reason)
            for claim, (flag, reason) in zip(claims, found, strict=True)
        ]
    )


def _asked_about(question: str) -> Mapping[str, Term]:
    """Return the terms of what ``question`` is about, apart from its question word, by key."""
    about = [term for term in terms(read(question)[1]) if term.weight]
    return {term.key: term for term in about or content(terms(question))}


def _rating(share: float, *, steps: _Steps, reason: str) -> Rating:
    full, partly = steps
    if share >= full:
        return Rating(rating=2, reason=reason)
    return Rating(rating=1 if share >= partly else 0, reason=reason)


def context_relevance_1(task: Task[Any]) -> Rating:
    """Rate by the best single context, read as a whole."""
    asked = _asked_about(task.text("question"))
    share = max((_coverage(asked, _held(text)) for text in _contexts(task)), default=0.0)
    reason = f"one context has {share:.0%} of what is asked about"
    return _rating(share, steps=_RELEVANCE[0], reason=reason)


def _contexts(task: Task[Any]) -> Iterator[str]:
    return within_limit(task.texts("contexts"))


def _coverage(asked: Mapping[str, Term], held: Iterable[str]) -> float:
    total = sum(term.weight for term in asked.values())
    return _weight(asked, held) / total if total else 0.0


def _weight(asked: Mapping[str, Term], held: Iterable[str]) -> float:
    return sum(asked[key].weight for key in held if key in asked)


def _held(text: str) -> set[str]:
    return set().union(*(keys(sentence) for sentence in sentences(text)))


def context_relevance_2(task: Task[Any]) -> Rating:
    """Rate by the best neighbouring sentences."""
    share = _nearby(task).share
    reason = f"neighbouring sentences have {share:.0%} of what is asked about"
    return _rating(share, steps=_RELEVANCE[1], reason=reason)


def _nearby(task: Task[Any]) -> Support:
    return Passages(task.texts("contexts")).support(_asked_about(task.text("question")).values())


def context_relevancy_rubric(task: Task[Any]) -> TwoMarks:
    """Mark the best single context for the subject, neighbouring sentences for sufficiency."""
    asked = _asked_about(task.text("question"))
    subject = max((_coverage(asked, _held(text)) for text in _contexts(task)), default=0.0)
    sufficiency = _nearby(task).share
    return TwoMarks(
        subject=_mark(subject),
        sufficiency=_mark(sufficiency),
        reason=f"one context has {subject:.0%} of what is asked about, neighbouring sentences"
        f" {sufficiency:.0%}",
    )


def _mark(share: float) -> float:
    return min(2.0, round(2 * _HALVES * share) / _HALVES)


def relevant_statements(task: Task[Any]) -> RelevantStatements:
    """Return the sentences that hold much of what is asked about."""
    return RelevantStatements(
        relevant_statements=[sentence for sentence, flag in _flagged(task) if flag]
    )


def context_statements(task: Task[Any]) -> JudgedStatements:
    """Return every sentence, with whether it holds much of what is asked about."""
    return JudgedStatements(
        statements=[
            JudgedStatement(statement=sentence, verdict=flag) for sentence, flag in _flagged(task)
        ]
    )


def _flagged(task: Task[Any]) -> Iterator[tuple[str, Literal[0, 1]]]:
    asked = _asked_about(task.text("question"))
    least = _NEEDED * sum(term.weight for term in asked.values())
    for text in _contexts(task):
        for sentence in sentences(text):
            weight = _weight(asked, keys(sentence))
            yield sentence, 1 if weight and weight >= least else 0


def useful_for_answer(task: Task[Any]) -> Useful:
    """Tell whether something of the answer can be taken from the context."""
    return _useful(task, "answer")


def useful_for_reference(task: Task[Any]) -> Useful:
    """Tell whether something of the reference can be taken from the context."""
    return _useful(task, "reference")


def _useful(task: Task[Any], name: Literal["answer", "reference"]) -> Useful:
    """Ask for words of the question in the context, and for those that are the answer's own."""
    question, context = task.text("question"), task.text("context")
    passages, beyond = Passages([context]), keys(question)
    claims = claims_of(task.text(name), question=question)
    share = max((support_of(one, passages, beyond=beyond).share for one in claims), default=0.0)
    about = passages.support(_asked_about(question).values()).share
    is_useful = share >= _TAKEN and about >= _ON_SUBJECT
    return Useful(
        verdict=1 if is_useful else 0,
        reason=f"it has {share:.0%} of what the {name} says, {about:.0%} of what is asked about",
    )


def groundedness_1(task: Task[Any]) -> Rating:
    """Rate by the share of the answer's words that are found where their sentence is."""
    supports = _supports(task)
    share = sum(support.share for support in supports) / max(1, len(supports))
    return _rating(share, steps=_GROUNDED, reason=f"{share:.0%} of its words are found")


def groundedness_2(task: Task[Any]) -> Rating:
    """Rate by the claims: 2 if all are backed, 1 if some are."""
    backed, claims = _backed(task)
    reason = f"{backed} of {claims} claims are backed"
    return _rating(backed / max(1, claims), steps=_ALL_OR_SOME, reason=reason)


def _supports(task: Task[Any]) -> list[Support]:
    passages = Passages(task.texts("contexts"))
    return [support_of(claim, passages) for claim in claims_of(task.text("answer"))]


def _backed(task: Task[Any]) -> tuple[int, int]:
    flags = [verdict_on(support)[0] for support in _supports(task)]
    return sum(flags), len(flags)


def response_supported(task: Task[Any]) -> Decision:
    """Tell whether every claim of the answer is backed."""
    backed, claims = _backed(task)
    return Decision(passing=0 < claims == backed, reason=f"{backed} of {claims} claims are backed")


def response_relevancy(task: Task[Any]) -> Decision:
    """Tell whether the contexts are about the question and back the answer to it."""
    about = _nearby(task).share
    flags = [one.verdict for one in judged_statements(task).statements]
    is_backed = bool(flags) and all(flags) and not evades(task.text("answer"))
    return Decision(
        passing=is_backed and about >= _ON_SUBJECT,
        reason=f"{sum(flags)} of {len(flags)} claims are backed, by contexts with {about:.0%} of"
        " what is asked about",
    )
