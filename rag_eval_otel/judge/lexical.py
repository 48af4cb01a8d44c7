"""`LexicalJudge`: answers the metrics' questions offline, by comparing words.

No key, no network, no model, always the same reply. It sees whether words, names and numbers
recur, not what they mean: good for wiring, demos and a free first look, not an LLM judge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rag_eval_otel.errors import UnparsableReplyError
from rag_eval_otel.judge import lexical_answers as answers
from rag_eval_otel.judge import lexical_contexts as contexts
from rag_eval_otel.judge import lexical_references as references
from rag_eval_otel.judge.replies import Reply
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.types import Replies


class LexicalJudge:
    """Answers by comparing words: offline, free, the same every time.

    A question that takes reading (a rubric, a guideline, instructions of the user's own) is
    answered by an `UnparsableReplyError`. Texts are read up to `text.MAX_CHARACTERS`, so that a
    reply takes bounded time whatever it is shown. What the texts say never changes how they are
    judged.
    """

    model = "lexical"
    revision = 3
    """To be raised with every change of what it answers: a part of the version of its scores."""

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Answer ``tasks`` at once; nothing is requested, so the usage is zero."""
        return Replies(parts=tuple(_answer(task) for task in tasks), model=self.model)


def _answer(task: Task[Any]) -> Reply | UnparsableReplyError:
    answer = _ANSWERS.get(task.prompt)
    if answer is None or task.kind.instructions:
        told = f"the lexical judge cannot answer {task.prompt!r}: it compares words, and cannot"
        return UnparsableReplyError(f"{told} follow instructions; take a judge that is a model")
    return answer(task)


_ANSWERS: Mapping[str, Callable[[Task[Any]], Reply | UnparsableReplyError]] = {
    "reverse_question": answers.reverse_question,
    "similarities": answers.similarities,
    "direct_relevancy": answers.direct_relevancy,
    "sub_questions": answers.split_question,
    "addressed": answers.addressed,
    "intent": answers.state_intent,
    "intent_fulfilment": answers.intent_fulfilment,
    "answer_relevancy_rubric": answers.answer_relevancy_rubric,
    "statements": answers.statements,
    "context_relevance_1": contexts.context_relevance_1,
    "context_relevance_2": contexts.context_relevance_2,
    "relevant_contexts": contexts.relevant_contexts,
    "relevant_statements": contexts.relevant_statements,
    "context_statements": contexts.context_statements,
    "context_relevancy_rubric": contexts.context_relevancy_rubric,
    "useful_for_answer": contexts.useful_for_answer,
    "useful_for_reference": contexts.useful_for_reference,
    "supported": contexts.supported,
    "verdicts": contexts.verdicts,
    "judged_statements": contexts.judged_statements,
    "reference_statements": contexts.reference_statements,
    "groundedness_1": contexts.groundedness_1,
    "groundedness_2": contexts.groundedness_2,
    "response_supported": contexts.response_supported,
    "response_relevancy": contexts.response_relevancy,
    "compared_statements": references.compared_statements,
    "accuracy_1": references.accuracy,
    "accuracy_2": references.accuracy,
    "correctness": references.correctness,
}
