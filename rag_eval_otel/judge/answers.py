"""Build replies to tasks from numbers: how far contexts support claims and help with a question.

`LexicalJudge` and `LocalJudge` answer in this way. They differ in how they compute the numbers (the
*evidence*): `LexicalJudge` compares words, `LocalJudge` asks a classifier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, Protocol

from rag_eval_otel.judge import replies as say
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.judge.words import claims_of, evades

FULL, EVEN, PART = 0.75, 0.5, 0.25  # least shares: rating 2, a yes, rating 1
_BY_THE_LEAST = 2  # the groundedness prompt for which the worst claim counts, not the mean


class Shown:
    """The texts that a task shows: the question, the answer (or reference), and the contexts."""

    def __init__(self, task: Task[Any]) -> None:
        shown = dict(task.inputs)
        self.question = task.text("question") if "question" in shown else ""
        self.answer = next((task.text(n) for n in ("answer", "reference") if n in shown), "")
        self.contexts = next((task.texts(n) for n in ("contexts", "context") if n in shown), ())

    @cached_property
    def claims(self) -> list[str]:
        """The claims that the answer (or the reference) makes."""
        return claims_of(self.answer, question=self.question)


class Evidence(Protocol):
    """Computes from 0 to 1 how far the contexts of a task support claims and help to answer."""

    def support(self, claim: str) -> float:
        """Return the probability that the contexts support ``claim``."""

    def new_support(self, claim: str) -> float:
        """Return the probability that contexts support ``claim``, without words of the question."""

    def sentence_support(self, sentence: str, claims: Sequence[str]) -> float:
        """Return the probability that contexts support ``sentence``, which makes ``claims``."""

    def relevances(self) -> Sequence[float]:
        """Return, for each context, how far it helps to answer the question (0 to 1)."""

    def relevance(self) -> float:
        """Return how far all contexts together help to answer the question (0 to 1)."""

    def reason(self, share: float) -> str:
        """Return a text that explains a rating; ``share`` (0 to 1) is the rating's evidence."""


class EvidenceAnswers:
    """Builds the reply to one ``task`` from ``evidence`` about the texts that are ``shown``.

    `ANSWERS` maps the family of a task to the method that builds its reply.
    """

    def __init__(self, task: Task[Any], shown: Shown, evidence: Evidence) -> None:
        self.task, self.shown, self.evidence = task, shown, evidence

    def verdicts(self) -> say.Verdicts:
        return verdicts(map(self.evidence.support, self.task.texts("statements")))

    def supported(self) -> say.Reply:
        sentences = self.task.texts("sentences")
        if not claims_of("\n".join(sentences), question=self.shown.question):
            sentences = ("",) * len(sentences)  # a refusal; its other sentences are no claims
        found = [self._sentence(i, text) for i, text in enumerate(sentences, start=1)]
        return say.SupportedSentences(verdicts=found)

    def _sentence(self, index: int, sentence: str) -> say.Sentence:
        claims = claims_of(sentence, question=self.shown.question)
        if not claims:
            return say.Sentence(index=index, verdict=2)
        return say.Sentence.graded(self.evidence.sentence_support(sentence, claims), index=index)

    def statements(self) -> say.JudgedStatements:
        return judged(self.shown.claims, self.evidence.support)

    def groundedness(self) -> say.Reply:
        support = list(map(self.evidence.support, self.shown.claims))
        if not support:  # a mere yes or no: it is unknown whether the contexts support it
            return self._rating(0.0 if evades(self.shown.answer) else EVEN)
        least_counts = self.task.kind.voice == _BY_THE_LEAST
        return self._rating(min(support) if least_counts else sum(support) / len(support))

    def response_supported(self) -> say.Decision:
        flags = [one.verdict for one in self.statements().statements]
        told = f"{sum(flags)} of {len(flags)} claims are backed"
        return say.Decision(passing=bool(flags) and all(flags), reason=told)

    def context_relevance(self) -> say.Reply:
        return self._rating(self.evidence.relevance())

    def relevant_contexts(self) -> say.Reply:
        relevances = enumerate(self.evidence.relevances(), start=1)
        return say.RelevantContexts(numbers=[i for i, one in relevances if one >= EVEN])

    def useful(self) -> say.Reply:
        support = max(map(self.evidence.new_support, self.shown.claims), default=0.0)
        return say.Useful.graded(min(support, self.evidence.relevance()))

    def _rating(self, share: float) -> say.Reply:
        rating: Literal[0, 1, 2] = 2 if share >= FULL else 1 if share >= PART else 0
        return say.Rating(rating=rating, reason=self.evidence.reason(share)).expecting(2 * share)


def verdicts(probabilities: Iterable[float]) -> say.Verdicts:
    """Return a verdict for each of ``probabilities``, numbered from 1; from one half, it is yes."""
    numbered = enumerate(probabilities, start=1)
    return say.Verdicts(verdicts=[say.Verdict.graded(one, index=i) for i, one in numbered])


def judged(claims: Iterable[str], probability: Callable[[str], float]) -> say.JudgedStatements:
    """Return ``claims`` with verdicts: yes if ``probability(claim)`` is at least one half."""
    found = [say.JudgedStatement.graded(probability(one), statement=one) for one in claims]
    return say.JudgedStatements(statements=found)


ANSWERS: Mapping[str, Callable[[EvidenceAnswers], say.Reply]] = {
    "verdicts": EvidenceAnswers.verdicts,
    "supported": EvidenceAnswers.supported,
    "judged_statements": EvidenceAnswers.statements,
    "reference_statements": EvidenceAnswers.statements,
    "groundedness": EvidenceAnswers.groundedness,
    "response_supported": EvidenceAnswers.response_supported,
    "context_relevance": EvidenceAnswers.context_relevance,
    "relevant_contexts": EvidenceAnswers.relevant_contexts,
    "useful_for_answer": EvidenceAnswers.useful,
    "useful_for_reference": EvidenceAnswers.useful,
}
"""The method that answers a task, by the family of the task's prompt (see `Kind.family`)."""
