"""Every kind of question the metrics ask. The prompts are in ``prompts/``, under the same names."""

from __future__ import annotations

from rag_eval_otel.judge.replies import (
    Accuracy,
    ComparedStatements,
    Decision,
    FivePoint,
    Intent,
    JudgedStatements,
    Rating,
    RelevantContexts,
    RelevantStatements,
    ReverseQuestion,
    Similarities,
    Statements,
    SubQuestions,
    SupportedSentences,
    TwoFlags,
    TwoMarks,
    UnitRating,
    Useful,
    Verdicts,
)
from rag_eval_otel.judge.tasks import Kind

# --- the answer alone -----------------------------------------------------------------------------

REVERSE_QUESTION = Kind(
    prompt="reverse_question",
    reply=ReverseQuestion,
    inputs=("answer",),
    blind_to=frozenset({"question", "contexts"}),
)

# --- question and answer --------------------------------------------------------------------------

SIMILARITIES = Kind(
    prompt="similarities",
    reply=Similarities,
    inputs=("question", "questions"),
    each="questions",
)
DIRECT_RELEVANCY = Kind(prompt="direct_relevancy", reply=UnitRating, inputs=("question", "answer"))
SUB_QUESTIONS = Kind(prompt="sub_questions", reply=SubQuestions, inputs=("question",))
ADDRESSED = Kind(
    prompt="addressed",
    reply=Verdicts,
    inputs=("sub_questions", "answer"),
    each="sub_questions",
)
INTENT = Kind(prompt="intent", reply=Intent, inputs=("question",))
INTENT_FULFILMENT = Kind(prompt="intent_fulfilment", reply=UnitRating, inputs=("intent", "answer"))
ANSWER_RELEVANCY_RUBRIC = Kind(
    prompt="answer_relevancy_rubric", reply=TwoFlags, inputs=("question", "answer")
)
GUIDELINE = Kind(prompt="guideline", reply=Decision, inputs=("question", "answer", "guidelines"))

# --- the contexts ---------------------------------------------------------------------------------

CONTEXT_RELEVANCE = tuple(
    Kind(
        prompt=f"context_relevance_{voice}",
        reply=Rating,
        inputs=("question", "contexts"),
        voice=voice,
    )
    for voice in (1, 2)
)
RELEVANT_STATEMENTS = Kind(
    prompt="relevant_statements", reply=RelevantStatements, inputs=("question", "contexts")
)
RELEVANT_CONTEXTS = Kind(
    prompt="relevant_contexts", reply=RelevantContexts, inputs=("question", "contexts")
)
CONTEXT_STATEMENTS = Kind(
    prompt="context_statements", reply=JudgedStatements, inputs=("question", "contexts")
)
CONTEXT_RELEVANCY_RUBRIC = Kind(
    prompt="context_relevancy_rubric", reply=TwoMarks, inputs=("question", "contexts")
)
USEFUL_FOR_ANSWER = Kind(
    prompt="useful_for_answer", reply=Useful, inputs=("question", "context", "answer")
)
USEFUL_FOR_REFERENCE = Kind(
    prompt="useful_for_reference", reply=Useful, inputs=("question", "context", "reference")
)

# --- the answer against the contexts --------------------------------------------------------------

STATEMENTS = Kind(prompt="statements", reply=Statements, inputs=("question", "answer"))
VERDICTS = Kind(
    prompt="verdicts", reply=Verdicts, inputs=("contexts", "statements"), each="statements"
)
SUPPORTED = Kind(
    prompt="supported",
    reply=SupportedSentences,
    inputs=("question", "contexts", "sentences"),
    each="sentences",
)
JUDGED_STATEMENTS = Kind(
    prompt="judged_statements", reply=JudgedStatements, inputs=("question", "answer", "contexts")
)
GROUNDEDNESS = tuple(
    Kind(
        prompt=f"groundedness_{voice}",
        reply=Rating,
        inputs=("answer", "contexts"),
        voice=voice,
    )
    for voice in (1, 2)
)
RESPONSE_SUPPORTED = Kind(
    prompt="response_supported", reply=Decision, inputs=("answer", "contexts")
)
RESPONSE_RELEVANCY = Kind(
    prompt="response_relevancy", reply=Decision, inputs=("question", "answer", "contexts")
)

# --- against a reference --------------------------------------------------------------------------

REFERENCE_STATEMENTS = Kind(
    prompt="reference_statements",
    reply=JudgedStatements,
    inputs=("question", "contexts", "reference"),
)
COMPARED_STATEMENTS = Kind(
    prompt="compared_statements",
    reply=ComparedStatements,
    inputs=("question", "answer", "reference"),
)
ACCURACY = tuple(
    Kind(
        prompt=f"accuracy_{voice}",
        reply=Accuracy,
        inputs=("question", "answer", "reference"),
        voice=voice,
    )
    for voice in (1, 2)
)
CORRECTNESS = Kind(
    prompt="correctness", reply=FivePoint, inputs=("question", "answer", "reference")
)
