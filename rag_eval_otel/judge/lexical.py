"""`LexicalJudge`: the offline judge, which compares words.

The judge needs no key, no network and no model, and gives equal replies to equal questions. It
finds the words and numbers that two texts have in common, and does not know what words mean. It is
good for a first set-up, demos and a free first look at scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Literal, TypeAlias, cast

from rag_eval_otel.errors import JudgeTooLongError, UnparsableReplyError, UnsuitableJudgeError
from rag_eval_otel.judge import replies as say
from rag_eval_otel.judge import words
from rag_eval_otel.judge.answers import (
    ANSWERS,
    EVEN,
    FULL,
    PART,
    EvidenceAnswers,
    Shown,
    judged,
    verdicts,
)
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.judge.words import Passages, claims_of, keys_of, within_limit
from rag_eval_otel.types import Replies

Answer: TypeAlias = say.Reply | UnparsableReplyError | JudgeTooLongError

_INTENT = "To know: "
_SHOWN = frozenset({"context", "contexts", "question"})  # which are read up to their own limits


class LexicalJudge:
    """A judge that compares words: offline, free, and with equal replies to equal questions.

    Verdicts and most ratings are computed from a probability; at one half, yes and no are equally
    likely. The judge cannot follow instructions (a rubric, a guideline, instructions of your own);
    its reply to such a task is an `UnsuitableJudgeError`. At most `words.MAX_CHARACTERS` of the
    contexts are read. If the answer has more than `words.MAX` characters, the reply is a
    `JudgeTooLongError`. Instructions hidden in an answer or a context have no effect.
    """

    model = "lexical"
    label_metrics = frozenset(
        {"context_relevance", "faithfulness", "response_groundedness", "statement_faithfulness"}
    )  # the metrics whose scores separate good answers from bad ones at one half
    revision = 4  # part of the version of a score: raise it whenever the replies change

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Return the replies to ``tasks``, made without any request, so that the usage is zero."""
        read = cache(Passages)  # several tasks show the same contexts
        return Replies(parts=tuple(_answer(task, read) for task in tasks), model=self.model)


class _WordEvidence:
    """Computes, by comparing words, how far contexts support claims and help with a question."""

    def __init__(self, shown: Shown, read: Callable[[tuple[str, ...]], Passages]) -> None:
        self._shown, self._read = shown, read

    def support(self, claim: str) -> float:
        return self._read(self._shown.contexts).probability(claim)

    def new_support(self, claim: str) -> float:
        passages, beyond = self._read(self._shown.contexts), keys_of(self._shown.question)
        return passages.probability(claim, beyond=beyond)

    def sentence_support(self, sentence: str, claims: Sequence[str]) -> float:  # noqa: ARG002
        return sum(map(self.support, claims)) / len(claims)

    def relevances(self) -> list[float]:
        coverage = partial(words.coverage, self._shown.question)
        contexts = map(words.sentences, within_limit(self._shown.contexts))
        return [max(map(coverage, sentences), default=0.0) for sentences in contexts]

    def relevance(self) -> float:
        coverage = partial(words.coverage, self._shown.question)
        return max(map(coverage, within_limit(self._shown.contexts)), default=0.0)

    def reason(self, share: float) -> str:
        return f"{share:.0%} agree"


def _answer(task: Task[Any], read: Callable[[tuple[str, ...]], Passages]) -> Answer:
    others = (task.texts(name) for name, _ in task.inputs if name not in _SHOWN)
    if any(sum(map(len, one)) > words.MAX for one in others):
        return JudgeTooLongError(f"the lexical judge reads at most {words.MAX:,} characters of it")
    shown = Shown(task)
    answers = EvidenceAnswers(task, shown, _WordEvidence(shown, read))
    family = "" if task.kind.instructions else task.kind.family
    if family in ANSWERS:
        return ANSWERS[family](answers)
    if hasattr(_Answers, f"to_{family}"):
        return cast("Answer", getattr(_Answers(answers), f"to_{family}")())
    told = f"the lexical judge cannot answer {task.prompt!r}: it compares words, and cannot"
    return UnsuitableJudgeError(f"{told} follow instructions; take a judge that is a model")


class _Answers:
    """Answers tasks that `EvidenceAnswers` cannot answer; ``to_X`` answers tasks of family X."""

    def __init__(self, by_evidence: EvidenceAnswers) -> None:
        self._by_evidence = by_evidence
        self._task, self._evidence = by_evidence.task, by_evidence.evidence
        self._shown = by_evidence.shown
        self._question, self._said = self._shown.question, self._shown.answer

    def to_reverse_question(self) -> say.Reply:
        written = words.reverse_questions(self._said) or [""]
        question = written[self._task.draw % len(written)]
        return say.ReverseQuestion(
            question=question, noncommittal=1 if words.evades(self._said) else 0
        )

    def to_similarities(self) -> say.Reply:
        near = (words.similarity(self._question, q) for q in self._task.texts("questions"))
        found = [say.Similarity(index=i, similarity=one) for i, one in enumerate(near, start=1)]
        return say.Similarities(similarities=found)

    def to_direct_relevancy(self) -> say.Reply:
        return say.UnitRating(rating=words.relevancy(self._question, self._said))

    def to_sub_questions(self) -> say.Reply:
        return say.SubQuestions(sub_questions=words.sub_questions(self._question))

    def to_addressed(self) -> say.Reply:
        asked = self._task.texts("sub_questions")
        return verdicts(words.relevancy(question, self._said) for question in asked)

    def to_intent(self) -> say.Reply:
        return say.Intent(intent=_INTENT + " ".join(self._question[: words.MAX].split()))

    def to_intent_fulfilment(self) -> say.Reply:
        question = self._task.text("intent").removeprefix(_INTENT)
        return say.UnitRating(rating=words.relevancy(question, self._said))

    def to_answer_relevancy_rubric(self) -> say.Reply:
        rating = words.relevancy(self._question, self._said)
        return say.TwoFlags(subject=1 if rating >= EVEN else 0, focus=1 if rating >= FULL else 0)

    def to_context_relevancy_rubric(self) -> say.Reply:
        mark = 2 * self._evidence.relevance()
        return say.TwoMarks(subject=mark, sufficiency=mark)

    def to_context_statements(self) -> say.JudgedStatements:
        told = [one for text in within_limit(self._shown.contexts) for one in words.sentences(text)]
        return judged(told, partial(words.coverage, self._question))

    def to_relevant_statements(self) -> say.Reply:
        told = self.to_context_statements().statements
        return say.RelevantStatements(relevant_statements=[t.statement for t in told if t.verdict])

    def to_statements(self) -> say.Reply:
        return say.Statements(statements=self._shown.claims)

    def to_context_agreement(self) -> say.Reply:
        supported = self._by_evidence.response_supported()
        return supported if self._evidence.relevance() >= EVEN else say.Decision(passing=False)

    def to_compared_statements(self) -> say.ComparedStatements:
        beyond, sides = keys_of(self._question), map(self._task.text, ("answer", "reference"))
        said, wanted = (claims_of(text, question=self._question) for text in sides)
        in_said, in_wanted = (partial(Passages(one).share, beyond=beyond) for one in (said, wanted))
        return say.ComparedStatements(
            answer_statements=judged(said, in_wanted).statements,
            reference_statements=judged(wanted, in_said).statements,
        )

    def _agreement(self) -> float:
        compared = self.to_compared_statements()
        sides = (compared.answer_statements, compared.reference_statements)
        said, wanted = (sum(c.probability for c in side) / max(1, len(side)) for side in sides)
        return 2 * said * wanted / (said + wanted) if said + wanted else 0.0

    def to_accuracy(self) -> say.Reply:
        share = self._agreement()
        rating: Literal[0, 2, 4] = 4 if share >= FULL else 2 if share >= PART else 0
        return say.Accuracy(rating=rating).expecting(4 * share)

    def to_correctness(self) -> Answer:
        if not dict(self._task.inputs).get("reference"):
            return UnsuitableJudgeError("without a reference, the lexical judge cannot tell")
        return say.FivePoint(rating=1 + 4 * self._agreement())
