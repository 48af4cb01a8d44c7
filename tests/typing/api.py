"""The public API as a type checker sees it. Never run: mypy and pyright check it strictly.

Both report an ignored line on which there is no error, so each ignored line must be one.
"""

from collections.abc import Mapping
from typing import Literal

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from typing_extensions import assert_type

from rag_eval_otel import (
    Config,
    Evaluation,
    Handle,
    HashingEmbedder,
    LexicalJudge,
    OpenAIJudge,
    Passage,
    RagEvalCallbackHandler,
    RagEvalSpanProcessor,
    Sample,
    Score,
    aevaluate,
    instrument,
    record_answer,
    record_question,
    record_retrieval,
)
from rag_eval_otel import metrics as m
from rag_eval_otel.drift import DriftOptions
from rag_eval_otel.judge.local import LocalJudge
from rag_eval_otel.metrics.base import Metric

EXPORTING = BatchSpanProcessor(ConsoleSpanExporter())


def a_sample_takes_passages_and_strings() -> None:
    sample = Sample(question="Who?", contexts=["Ada.", Passage(text="Ada.")], answer="Ada.")
    assert_type(sample.question, str)
    assert_type(sample.contexts, tuple[Passage, ...])
    assert_type(sample.reference, str | None)


def a_score_is_a_number_or_has_a_reason(score: Score) -> None:
    assert_type(score.value, float | None)
    assert_type(score.status, Literal["ok", "undefined", "error"])
    assert_type(score.label, Literal["pass", "fail"] | None)
    assert_type(score.normalized, float | None)


async def evaluating_gives_scores(sample: Sample) -> None:
    evaluation = await aevaluate(
        sample,
        [
            "default",
            m.AnswerRelevancy(strictness=5),
            m.metric("context_relevance", judges=1, threshold=None),
        ],
        judge=OpenAIJudge("model", base_url="http://localhost/v1"),
        embedder=HashingEmbedder(),
        share_requests=False,
    )
    assert_type(evaluation, Evaluation)
    assert_type(evaluation["answer_relevancy"], Score)
    assert_type(evaluation.status, Literal["scored", "partial", "unscored", "error"])
    assert_type(evaluation.about.get("session.id"), str | bool | int | float | None)


def instrumenting_gives_a_handle(provider: TracerProvider) -> None:
    handle = instrument(tracer_provider=provider, judge=LexicalJudge(), metrics=["default"])
    assert_type(handle, Handle)
    assert_type(handle.flush(timeout=1.0), bool)
    callback: BaseCallbackHandler = handle.callback
    assert callback is not None
    handler: BaseCallbackHandler = RagEvalCallbackHandler(judge="lexical")
    assert handler is not None
    processor: SpanProcessor | None = handle.processor
    assert processor is not None
    assert_type(handle.config, Config)
    assert_type(handle.stats.held, int)
    assert_type(handle.stats.turns, Mapping[str, int])


def a_span_processor_is_one_of_the_sdk(provider: TracerProvider) -> None:
    processor = RagEvalSpanProcessor(EXPORTING, judge="lexical", hold_seconds=5)
    provider.add_span_processor(processor)
    assert_type(processor.handle, Handle)


def judges_and_embedders_may_be_those_of_langchain(
    model: BaseChatModel, embeddings: Embeddings
) -> None:
    instrument(judge=model, embedder=embeddings, metrics=["default", m.Faithfulness()], drift=False)
    Config(judge=OpenAIJudge("model"), embedder=HashingEmbedder(), metrics=("default",))
    Config.from_env({"RAG_EVAL_SPANS": "all"}, thresholds="thresholds.toml", redact=str.lower)


def every_metric_is_one() -> None:
    metrics: list[Metric] = [
        m.AnswerCorrectness(beta=2.0, weights=(0.5, 0.5)),
        m.Correctness(rating="logprobs", threshold=3.5),
        m.Faithfulness(
            examples=[{"inputs": {"answer": "No."}, "outputs": {"statements": []}}], name="taught"
        ),
        m.InstanceRubric(inputs=("answer", "reference")),
        m.LLMMetric(name="tone", instructions="Warm?", outputs={"x": [1, 2], "y": str}, value="x"),
        m.MultiMethodRelevancy(weights={"direct": 1}),
        m.metric("ndcg", k=10, gain="exponential"),
        m.Rubric(levels={0: "Wrong.", 0.5: "Half right.", 1: "Right."}),
        m.SemanticSimilarity(mode="euclidean", threshold=None),
        m.StatementContextRelevance(rule="proportion"),
    ]
    assert_type(m.resolve_metrics(["online", *metrics]), tuple[Metric, ...])
    assert_type(m.resolve_metrics("faithfulness"), tuple[Metric, ...])
    assert_type(m.metric_names(), tuple[str, ...])
    assert_type(m.METRICS["faithfulness"](), Metric)


def a_sample_may_have_more() -> None:
    sample = Sample(
        retrieved_ids=[1, "b"],
        relevant_ids={"a": 2.0, "b": 0},
        rubric={0: "No.", 0.5: "Half.", 1: "Yes."},
        extra={"house_style": "Be brief."},
    )
    assert_type(sample.relevant_ids, tuple[str, ...])
    assert_type(sample.grades, tuple[float, ...])


def an_application_may_say_it_itself(handle: Handle) -> None:
    record_question("What is it?")
    record_retrieval("it", ["A text.", Passage(text="Another."), {"text": "A third.", "id": 3}])
    record_answer("It is.")
    handle.install_langchain_hook()
    handle.remove_langchain_hook()


def instrument_refuses_unknown_options_and_wrong_types() -> None:
    instrument(hold_seconds=5, judge="lexical")
    instrument(hold_second=5)  # type: ignore[call-arg]
    instrument(judge=42)  # type: ignore[arg-type]
    instrument(embedder=LexicalJudge())  # type: ignore[arg-type]
    instrument(judge=HashingEmbedder())  # type: ignore[arg-type]
    instrument(metrics=[42])  # type: ignore[list-item]
    instrument(drift="maybe")  # type: ignore[arg-type]
    instrument(drift=DriftOptions())
    instrument(drift=LexicalJudge())  # type: ignore[arg-type]
    instrument(score_events="trace")  # type: ignore[arg-type]
    instrument(export_content="some")  # type: ignore[arg-type]
    instrument(sample_rate=[{"match": {"error": True}, "rate": 1}], cascade="lexical")
    instrument(sample_rate=[0.5])  # type: ignore[list-item]
    instrument(max_held=0.5)  # type: ignore[arg-type]
    instrument(budget="5 USD/day", explanations=True, prices={"models": {}})
    instrument(budget=5)  # type: ignore[arg-type]
    instrument(thresholds={"faithfulness": "high"})  # type: ignore[dict-item]
    instrument(sinks=[LexicalJudge()])  # type: ignore[list-item]


def the_callback_handler_refuses_them() -> None:
    RagEvalCallbackHandler(hold_second=5)  # type: ignore[call-arg]
    RagEvalCallbackHandler(judge=42)  # type: ignore[arg-type]
    RagEvalCallbackHandler("lexical")  # type: ignore[arg-type]


def the_span_processor_refuses_them() -> None:
    RagEvalSpanProcessor(EXPORTING, hold_second=5)  # type: ignore[call-arg]
    RagEvalSpanProcessor(EXPORTING, judge=42)  # type: ignore[arg-type]
    RagEvalSpanProcessor(ConsoleSpanExporter())  # type: ignore[arg-type]
    RagEvalSpanProcessor()  # type: ignore[call-arg]


def config_refuses_them() -> None:
    Config(judge=42)  # type: ignore[arg-type]
    Config(hold_second=5)  # type: ignore[call-arg]
    Config.from_env(hold_second=5)  # type: ignore[call-arg]
    Config.from_env({"RAG_EVAL_JUDGE": "lexical"}, judge=None)  # type: ignore[arg-type]


def a_value_outside_its_choices() -> None:
    m.Faithfulness(form="shrt")  # type: ignore[arg-type]
    m.Correctness(rating="float")  # type: ignore[arg-type]


def a_value_of_the_wrong_type() -> None:
    m.AnswerRelevancy(strictness="3")  # type: ignore[arg-type]
    m.Faithfulness(threshold="high")  # type: ignore[arg-type]
    m.Rubric(levels={0: 1})  # type: ignore[dict-item]
    m.LLMMetric(name="tone", instructions="Warm?", bounds=(0, 1, 2))  # type: ignore[arg-type]
    m.FunctionMetric(function=len)  # type: ignore[arg-type]
    m.resolve_metrics([5])  # type: ignore[list-item]


def an_unknown_or_missing_option() -> None:
    m.LLMMetric(name="tone")  # type: ignore[call-arg]
    m.Faithfulness("full")  # type: ignore[call-arg]
    OpenAIJudge("model", api_kye="key")  # type: ignore[call-arg]
    LocalJudge("model", batch=8)  # type: ignore[call-arg]
    HashingEmbedder(dimension=8)  # type: ignore[call-arg]


async def an_option_of_evaluate(sample: Sample) -> None:
    await aevaluate(sample, share_requests="yes")  # type: ignore[arg-type]
    await aevaluate(sample, judge=42)  # type: ignore[arg-type]
    await aevaluate(sample, metric=["default"])  # type: ignore[call-arg]
