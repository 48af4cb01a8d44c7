"""`LexicalJudge`: answers the metrics' questions offline, by comparing words.

No key, no network, no model, always the same reply. It sees whether words and numbers recur, not
what they mean: good for wiring, demos and a free first look, not an LLM judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, Literal, TypeAlias, cast

from rag_eval_otel.config import Config
from rag_eval_otel.errors import UnparsableReplyError
from rag_eval_otel.judge import replies as say
from rag_eval_otel.judge.lexical import texts
from rag_eval_otel.judge.lexical.texts import Passages, claims_of, keys_of, within_limit
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.types import Replies

Answer: TypeAlias = say.Reply | UnparsableReplyError

_FULL, _EVEN, _PART = 0.75, 0.5, 0.25  # the highest rating, a yes, and the rating between
_BY_THE_LEAST = 2  # the voice on groundedness that goes by one claim
_INTENT = "To know: "


class LexicalJudge:
    """Answers by comparing words: offline, free, the same every time.

    Verdicts and ratings carry how far the words agree; a half is as likely right as wrong. What
    takes reading (a rubric, a guideline, own instructions) gets an `UnparsableReplyError`. Texts
    are read up to `texts.MAX_CHARACTERS`. What they say never changes how they are judged.
    """

    model = "lexical"
    label_metrics = frozenset(
        {"context_relevance", "faithfulness", "response_groundedness", "statement_faithfulness"}
    )  # what the overall label goes by: those whose half tells good answers from bad ones
    revision = 4  # to be raised with every change of what it answers: a part of a score's version

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Answer ``tasks`` at once; nothing is requested, so the usage is zero."""
        read = cache(Passages)  # the same contexts are shown with several tasks
        return Replies(parts=tuple(_answer(task, read) for task in tasks), model=self.model)


def named_judge(_model: str, _config: Config) -> LexicalJudge:
    """Return the offline judge."""
    return LexicalJudge()


def _answer(task: Task[Any], read: Callable[[tuple[str, ...]], Passages]) -> Answer:
    name = f"to_{task.kind.family}"
    if hasattr(_Answers, name) and not task.kind.instructions:
        return cast("Answer", getattr(_Answers(task, read), name)())
    told = f"the lexical judge cannot answer {task.prompt!r}: it compares words, and cannot"
    return UnparsableReplyError(f"{told} follow instructions; take a judge that is a model")


class _Answers:
    """The answer to one task, of the two dozen families there are."""

    def __init__(self, task: Task[Any], read: Callable[[tuple[str, ...]], Passages]) -> None:
        self._task, self._read = task, read
        shown = dict(task.inputs)
        self._question = task.text("question") if "question" in shown else ""
        self._said = next((task.text(n) for n in ("answer", "reference") if n in shown), "")
        self._contexts = next((task.texts(n) for n in ("contexts", "context") if n in shown), ())

    def to_reverse_question(self) -> say.Reply:
        written = texts.reverse_questions(self._said) or [""]
        question = written[self._task.draw % len(written)]
        return say.ReverseQuestion(
            question=question, noncommittal=1 if texts.evades(self._said) else 0
        )

    def to_similarities(self) -> say.Reply:
        near = (texts.similarity(self._question, q) for q in self._task.texts("questions"))
        found = [say.Similarity(index=i, similarity=one) for i, one in enumerate(near, start=1)]
        return say.Similarities(similarities=found)

    def to_direct_relevancy(self) -> say.Reply:
        return say.UnitRating(rating=texts.relevancy(self._question, self._said))

    def to_sub_questions(self) -> say.Reply:
        return say.SubQuestions(sub_questions=texts.sub_questions(self._question))

    def to_addressed(self) -> say.Reply:
        asked = self._task.texts("sub_questions")
        return _verdicts(texts.relevancy(question, self._said) for question in asked)

    def to_intent(self) -> say.Reply:
        return say.Intent(intent=_INTENT + " ".join(self._question[: texts.MAX].split()))

    def to_intent_fulfilment(self) -> say.Reply:
        question = self._task.text("intent").removeprefix(_INTENT)
        return say.UnitRating(rating=texts.relevancy(question, self._said))

    def to_answer_relevancy_rubric(self) -> say.Reply:
        rating = texts.relevancy(self._question, self._said)
        return say.TwoFlags(subject=1 if rating >= _EVEN else 0, focus=1 if rating >= _FULL else 0)

    def to_context_relevance(self) -> say.Reply:
        return _rating(self._relevance())

    def _relevance(self) -> float:
        served = (texts.coverage(self._question, text) for text in within_limit(self._contexts))
        return max(served, default=0.0)

    def to_context_relevancy_rubric(self) -> say.Reply:
        mark = 2 * self._relevance()
        return say.TwoMarks(subject=mark, sufficiency=mark)

    def to_context_statements(self) -> say.JudgedStatements:
        told = [one for text in within_limit(self._contexts) for one in texts.sentences(text)]
        return _judged(told, partial(texts.coverage, self._question))

    def to_relevant_statements(self) -> say.Reply:
        told = self.to_context_statements().statements
        return say.RelevantStatements(relevant_statements=[t.statement for t in told if t.verdict])

    def to_relevant_contexts(self) -> say.Reply:
        served = partial(texts.coverage, self._question)
        told = enumerate(map(texts.sentences, within_limit(self._contexts)), start=1)
        found = [i for i, one in told if max(map(served, one), default=0.0) >= _EVEN]
        return say.RelevantContexts(numbers=found)

    def to_useful_for_answer(self) -> say.Reply:
        passages, beyond = self._read(self._contexts), keys_of(self._question)
        backed = (passages.probability(claim, beyond=beyond) for claim in self._claims())
        return say.Useful.graded(min(max(backed, default=0.0), self._relevance()))

    to_useful_for_reference = to_useful_for_answer

    def _claims(self) -> list[str]:
        return claims_of(self._said, question=self._question)

    def to_statements(self) -> say.Reply:
        return say.Statements(statements=self._claims())

    def to_verdicts(self) -> say.Reply:
        passages = self._read(self._contexts)
        return _verdicts(map(passages.probability, self._task.texts("statements")))

    def to_supported(self) -> say.Reply:
        told = self._task.texts("sentences")
        if not claims_of("\n".join(told), question=self._question):
            told = ("",) * len(told)  # a refusal, whose other sentences say whom to ask
        found = [self._worth(i, text) for i, text in enumerate(told, start=1)]
        return say.SupportedSentences(verdicts=found)

    def _worth(self, index: int, sentence: str) -> say.Sentence:
        passages, said = self._read(self._contexts), claims_of(sentence, question=self._question)
        if not said:
            return say.Sentence(index=index, verdict=2)
        backed = sum(map(passages.probability, said)) / len(said)
        return say.Sentence.graded(backed, index=index)

    def to_judged_statements(self) -> say.JudgedStatements:
        return _judged(self._claims(), self._read(self._contexts).probability)

    to_reference_statements = to_judged_statements

    def to_groundedness(self) -> say.Reply:
        backed = list(map(self._read(self._contexts).probability, self._claims()))
        if not backed:  # a mere yes or no may be backed as well as not
            return _rating(0.0 if texts.evades(self._said) else _EVEN)
        least_counts = self._task.kind.voice == _BY_THE_LEAST
        return _rating(min(backed) if least_counts else sum(backed) / len(backed))

    def to_response_supported(self) -> say.Decision:
        flags = [one.verdict for one in self.to_judged_statements().statements]
        told = f"{sum(flags)} of {len(flags)} claims are backed"
        return say.Decision(passing=bool(flags) and all(flags), reason=told)

    def to_response_relevancy(self) -> say.Reply:
        supported = self.to_response_supported()
        return supported if self._relevance() >= _EVEN else say.Decision(passing=False)

    def to_compared_statements(self) -> say.ComparedStatements:
        beyond, sides = keys_of(self._question), map(self._task.text, ("answer", "reference"))
        said, wanted = (claims_of(text, question=self._question) for text in sides)
        in_said, in_wanted = (partial(Passages(one).share, beyond=beyond) for one in (said, wanted))
        return say.ComparedStatements(
            answer_statements=_judged(said, in_wanted).statements,
            reference_statements=_judged(wanted, in_said).statements,
        )

    def _agreement(self) -> float:
        compared = self.to_compared_statements()
        sides = (compared.answer_statements, compared.reference_statements)
        said, wanted = (sum(c.probability for c in side) / max(1, len(side)) for side in sides)
        return 2 * said * wanted / (said + wanted) if said + wanted else 0.0

    def to_accuracy(self) -> say.Reply:
        share = self._agreement()
        rating: Literal[0, 2, 4] = 4 if share >= _FULL else 2 if share >= _PART else 0
        return say.Accuracy(rating=rating).expecting(4 * share)

    def to_correctness(self) -> Answer:
        if not dict(self._task.inputs).get("reference"):
            return UnparsableReplyError("without a reference, the lexical judge cannot tell")
        return say.FivePoint(rating=1 + 4 * self._agreement())


def _judged(claims: Iterable[str], probability: Callable[[str], float]) -> say.JudgedStatements:
    found = [say.JudgedStatement.graded(probability(one), statement=one) for one in claims]
    return say.JudgedStatements(statements=found)


def _verdicts(found: Iterable[float]) -> say.Reply:
    verdicts = [say.Verdict.graded(one, index=i) for i, one in enumerate(found, start=1)]
    return say.Verdicts(verdicts=verdicts)


def _rating(share: float) -> say.Reply:
    rating: Literal[0, 1, 2] = 2 if share >= _FULL else 1 if share >= _PART else 0
    return say.Rating(rating=rating, reason=f"{share:.0%} agree").expecting(2 * share)
