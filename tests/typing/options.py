"""Options of `Config` that type checkers reject and accept. Never run, only checked.

Both checkers report an ignored line on which there is no error, so each ignored line must be one.
"""

from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

from rag_eval_otel import (
    Config,
    HashingEmbedder,
    LexicalJudge,
    RagEvalCallbackHandler,
    RagEvalSpanProcessor,
    instrument,
)
from rag_eval_otel.drift import DriftOptions
from rag_eval_otel.metrics import Faithfulness

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
