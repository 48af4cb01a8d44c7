"""Options of metrics, judges and `evaluate` that type checkers reject. Never run, only checked.

Both checkers report an ignored line on which there is no error, so each line must be one.
"""

from rag_eval_otel import HashingEmbedder, OpenAIJudge, Sample, aevaluate
from rag_eval_otel.judge.local import LocalJudge
from rag_eval_otel.metrics import (
    AnswerRelevancy,
    Correctness,
    Faithfulness,
    FunctionMetric,
    LLMMetric,
    MultiMethodRelevancy,
    Rubric,
    SemanticSimilarity,
    StatementContextRelevance,
    resolve_metrics,
)


def a_value_outside_its_choices() -> None:
    Faithfulness(form="shrt")  # type: ignore[arg-type]
    StatementContextRelevance(rule="proportional")  # type: ignore[arg-type]
    Correctness(rating="float")  # type: ignore[arg-type]
    SemanticSimilarity(mode="manhattan")  # type: ignore[arg-type]


def a_value_of_the_wrong_type() -> None:
    AnswerRelevancy(strictness="3")  # type: ignore[arg-type]
    Faithfulness(threshold="high")  # type: ignore[arg-type]
    MultiMethodRelevancy(weights={"direct": "all"})  # type: ignore[dict-item]
    Rubric(levels={0: 1})  # type: ignore[dict-item]
    LLMMetric(name="tone", instructions="Warm?", bounds=(0, 1, 2))  # type: ignore[arg-type]
    FunctionMetric(function=len)  # type: ignore[arg-type]
    resolve_metrics([5])  # type: ignore[list-item]


def an_unknown_or_missing_option() -> None:
    Faithfulness(fom="short")  # type: ignore[call-arg]
    LLMMetric(name="tone")  # type: ignore[call-arg]
    Faithfulness("full")  # type: ignore[call-arg]
    OpenAIJudge("model", api_kye="key")  # type: ignore[call-arg]
    LocalJudge("model", batch=8)  # type: ignore[call-arg]
    HashingEmbedder(dimension=8)  # type: ignore[call-arg]


async def an_option_of_evaluate(sample: Sample) -> None:
    await aevaluate(sample, share_requests="yes")  # type: ignore[arg-type]
    await aevaluate(sample, judge=42)  # type: ignore[arg-type]
    await aevaluate(sample, metric=["default"])  # type: ignore[call-arg]
