"""Tasks that several tests put to judges."""

from collections.abc import Sequence

from rag_eval_otel.judge import tasks as kinds
from rag_eval_otel.judge.tasks import (
    JudgedStatements,
    Rating,
    ReverseQuestion,
    Statements,
    Task,
    Verdicts,
)


def reverse_question(answer: str, *, draw: int) -> Task[ReverseQuestion]:
    return kinds.REVERSE_QUESTION.task({"answer": answer}, draw=draw)


def statements(question: str, answer: str) -> Task[Statements]:
    return kinds.STATEMENTS.task({"question": question, "answer": answer})


def verdicts(contexts: Sequence[str], claims: Sequence[str], *, draw: int = 0) -> Task[Verdicts]:
    return kinds.VERDICTS.task({"contexts": contexts, "statements": claims}, draw=draw)


def judged_statements(
    question: str, answer: str, contexts: Sequence[str]
) -> Task[JudgedStatements]:
    shown = {"question": question, "answer": answer, "contexts": contexts}
    return kinds.JUDGED_STATEMENTS.task(shown)


def context_relevance(question: str, contexts: Sequence[str], *, voice: int) -> Task[Rating]:
    kind = kinds.CONTEXT_RELEVANCE[voice - 1]
    return kind.task({"question": question, "contexts": contexts})


def groundedness(answer: str, contexts: Sequence[str], *, voice: int) -> Task[Rating]:
    return kinds.GROUNDEDNESS[voice - 1].task({"answer": answer, "contexts": contexts})
