"""The offline judge on questions and answers: what is claimed, what is asked, how they fit."""

from __future__ import annotations

from typing import Any

from rag_eval_otel.judge.lexical_contexts import claims_of, evades
from rag_eval_otel.judge.lexical_questions import (
    addresses,
    fit,
    intent,
    relevancy,
    reverse_questions,
    shared_words,
    sub_questions,
    wanted,
)
from rag_eval_otel.judge.replies import (
    Intent,
    ReverseQuestion,
    Similarities,
    Similarity,
    Statements,
    SubQuestions,
    TwoFlags,
    UnitRating,
    Verdict,
    Verdicts,
)
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.judge.text import sentences
from rag_eval_otel.judge.text_questions import similarity

_SAME_SUBJECT = 0.3  # share of a question's words from which an answer is on its subject
_SAME_KIND = 0.5  # how far an answer must give what was asked for
_STEPS = 4  # into which a similarity is rounded


def statements(task: Task[Any]) -> Statements:
    """Return the claims of the answer."""
    return Statements(statements=claims_of(task.text("answer"), question=task.text("question")))


def reverse_question(task: Task[Any]) -> ReverseQuestion:
    """Write a question that the answer may be the answer to; each drawing another."""
    answer = task.text("answer")
    told = claims_of(answer) or sentences(answer)
    written = reverse_questions(told) if told else [""]
    return ReverseQuestion(
        question=written[task.draw % len(written)], noncommittal=1 if evades(answer) else 0
    )


def similarities(task: Task[Any]) -> Similarities:
    """Rate every question by the words it shares with the one asked, and what it asks for."""
    question = task.text("question")
    return Similarities(
        similarities=[
            Similarity(index=i, similarity=round(_STEPS * similarity(question, other)) / _STEPS)
            for i, other in enumerate(task.texts("questions"), start=1)
        ]
    )


def direct_relevancy(task: Task[Any]) -> UnitRating:
    """Rate how well the answer addresses the question."""
    return _rated(task.text("question"), task.text("answer"))


def intent_fulfilment(task: Task[Any]) -> UnitRating:
    """Rate how well the answer addresses the question that is in the intent."""
    return _rated(wanted(task.text("intent")), task.text("answer"))


def _rated(question: str, answer: str) -> UnitRating:
    shared = shared_words(question, answer)
    return UnitRating(
        rating=round(relevancy(question, answer), 2),
        reason=f"the answer names {shared:.0%} of what is asked about",
    )


def split_question(task: Task[Any]) -> SubQuestions:
    """Split the question where another question word begins."""
    return SubQuestions(sub_questions=sub_questions(task.text("question")))


def addressed(task: Task[Any]) -> Verdicts:
    """Tell for every part of the question whether the answer addresses it."""
    answer = task.text("answer")
    return Verdicts(
        verdicts=[
            Verdict(index=i, verdict=1 if addresses(part, answer) else 0)
            for i, part in enumerate(task.texts("sub_questions"), start=1)
        ]
    )


def state_intent(task: Task[Any]) -> Intent:
    """Return the question as something wanted; more cannot be read off its words."""
    return Intent(intent=intent(task.text("question")))


def answer_relevancy_rubric(task: Task[Any]) -> TwoFlags:
    """Give a point for the words of the question, and one for the kind of thing it asks for."""
    question, answer = task.text("question"), task.text("answer")
    claims = [] if evades(answer) else claims_of(answer, question=question)
    shared = shared_words(question, answer) if claims else 0.0
    kind = max((fit(question, claim) for claim in claims), default=0.0)
    is_kind = kind >= _SAME_KIND
    return TwoFlags(
        subject=1 if shared >= _SAME_SUBJECT or relevancy(question, answer) >= _SAME_KIND else 0,
        focus=1 if is_kind else 0,
        reason=f"the answer names {shared:.0%} of what is asked about"
        + (", and gives what is asked for" if is_kind else ", not the kind of thing asked for"),
    )
