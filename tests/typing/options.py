"""Options that type checkers reject and accept. Never run, only checked.

Both checkers report an ignored line on which there is no error, so each ignored line must be one.
"""

from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

from rag_eval_otel import (
    Config,
    HashingEmbedder,
    LexicalJudge,
    OpenAIJudge,
    RagEvalCallbackHandler,
    RagEvalSpanProcessor,
    Sample,
    aevaluate,
    instrument,
)
from rag_eval_otel.drift import DriftOptions
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

EXPORTING = BatchSpanProcessor(ConsoleSpanExporter())


def instrument_refuses_unknown_options_and_wrong_types() -> None:
    instrument(hold_seconds=5, judge="lexical")
    instrument(hold_second=5)  # type: ignore[call-arg]
    instrument(judge=42)  # type: ignore[arg-type]
    instrument(hold_second=5, judge=42)  # type: ignore[arg-type, call-arg]
    instrument(embedder=LexicalJudge())  # type: ignore[arg-type]
    instrument(judge=HashingEmbedder())  # type: ignore[arg-type]
    instrument(metrics=[42])  # type: ignore[list-item]
    instrument(metrics=[Faithfulness(), "answer_relevancy"])
    instrument(drift="maybe")  # type: ignore[arg-type]
    instrument(drift=DriftOptions())
    instrument(drift=LexicalJudge())  # type: ignore[arg-type]
    instrument(score_events="span")
    instrument(score_events="trace")  # type: ignore[arg-type]
    instrument(export_content="some")  # type: ignore[arg-type]
    instrument(sample_rate=None)  # type: ignore[arg-type]
    instrument(sample_rate=[{"match": {"error": True}, "rate": 1}], cascade="lexical")
    instrument(sample_rate=[0.5])  # type: ignore[list-item]
    instrument(cascade=0.5)  # type: ignore[arg-type]
    instrument(max_held=0.5)  # type: ignore[arg-type]
    instrument(budget="5 USD/day", explanations=True, prices={"models": {}})
    instrument(budget=5)  # type: ignore[arg-type]
    instrument(redis=6379)  # type: ignore[arg-type]
    instrument(thresholds={"faithfulness": "high"})  # type: ignore[dict-item]
    instrument(thresholds={"faithfulness": 0.8})
    instrument(wrap=ConsoleSpanExporter())  # type: ignore[arg-type]
    instrument(sinks=[LexicalJudge()])  # type: ignore[list-item]


def the_callback_handler_refuses_them() -> None:
    RagEvalCallbackHandler(judge=LexicalJudge(), hold_seconds=1.5)
    RagEvalCallbackHandler(hold_second=5)  # type: ignore[call-arg]
    RagEvalCallbackHandler(judge=42)  # type: ignore[arg-type]
    RagEvalCallbackHandler("lexical")  # type: ignore[arg-type]


def the_span_processor_refuses_them() -> None:
    RagEvalSpanProcessor(EXPORTING, judge="lexical", hold_seconds=1.5)
    RagEvalSpanProcessor(EXPORTING, hold_second=5)  # type: ignore[call-arg]
    RagEvalSpanProcessor(EXPORTING, judge=42)  # type: ignore[arg-type]
    RagEvalSpanProcessor(ConsoleSpanExporter())  # type: ignore[arg-type]
    RagEvalSpanProcessor()  # type: ignore[call-arg]


def config_refuses_them() -> None:
    Config(judge="lexical")
    Config(judge=42)  # type: ignore[arg-type]
    Config(hold_second=5)  # type: ignore[call-arg]
    Config.from_env(hold_second=5)  # type: ignore[call-arg]
    Config.from_env({"RAG_EVAL_JUDGE": "lexical"}, judge=None)  # type: ignore[arg-type]


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
