"""The libraries that the benchmarks compare: each scores the same turns with the same judge.

Each scores answer relevancy, context relevance and faithfulness. A contestant is built once, which
imports what it needs, and then run. Haystack has no concurrency, so it runs on several threads.
"""

# ruff: noqa: PLC0415  # each contestant runs in a separate process and imports its own packages

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from rag_eval_otel.types import Evaluation

KEY = "sk-none"
TRIAD = ("answer_relevancy", "context_relevance", "faithfulness")

Rows: TypeAlias = "Sequence[Mapping[str, Any]]"
Run: TypeAlias = "Callable[[Rows], int]"
"""Scores the turns, and returns how many of their scores are missing."""


def ours(
    url: str, at_once: int, *, explanations: bool = False, metrics: Sequence[str] = TRIAD
) -> Run:
    """Return a function that runs our dataset evaluation."""
    import openai  # noqa: F401  # imports are not timed

    from rag_eval_otel.embed import OpenAIEmbedder
    from rag_eval_otel.judge.openai import OpenAIJudge
    from rag_eval_otel.tools.dataset import evaluate_dataset

    judge = OpenAIJudge("judge", base_url=url, api_key=KEY)
    embedder = OpenAIEmbedder("embedder", base_url=url, api_key=KEY)

    def run(rows: Rows) -> int:
        result = evaluate_dataset(
            rows,
            metrics=metrics,
            judge=judge,
            embedder=embedder,
            concurrency=at_once,
            explanations=explanations,
        )
        assert result.totals.rows == len(rows)
        return sum(len(rows) - one.ok for one in result.totals.metrics)

    return run


class Kept:
    """A sink that keeps every evaluation."""

    def __init__(self) -> None:
        self.evaluations: list[Evaluation] = []

    def __call__(self, evaluation: Evaluation) -> None:
        """Keep ``evaluation``."""
        self.evaluations.append(evaluation)


def live(url: str, at_once: int) -> Run:
    """Return a function that makes spans of the turns, and waits for their live scores."""
    import openai  # noqa: F401
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from rag_eval_otel import OpenAIEmbedder, OpenAIJudge, instrument

    provider, sink = TracerProvider(), Kept()
    provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    handle = instrument(
        tracer_provider=provider,
        metrics=TRIAD,
        judge=OpenAIJudge("judge", base_url=url, api_key=KEY),
        embedder=OpenAIEmbedder("embedder", base_url=url, api_key=KEY),
        concurrency=at_once,
        hold_seconds=600,
        evaluation_timeout=600,
        sinks=[sink],
        drift=False,
    )
    tracer = provider.get_tracer("bench")

    def run(rows: Rows) -> int:
        sink.evaluations.clear()
        for row in rows:
            _trace(tracer, row)
        assert handle.flush(600)
        scores = [score for one in sink.evaluations for score in one.scores]
        return len(TRIAD) * len(rows) - sum(score.status == "ok" for score in scores)

    return run


def _trace(tracer: Any, row: Mapping[str, Any]) -> None:
    """Make the spans of one turn as OpenInference does: a chain, a retriever and a model call."""
    question, answer = row["question"], row["answer"]
    kind = "openinference.span.kind"
    found = {
        f"retrieval.documents.{i}.document.content": text for i, text in enumerate(row["contexts"])
    }
    turn = {kind: "CHAIN", "input.value": question, "output.value": answer}
    with tracer.start_as_current_span("rag", attributes=turn):
        searched = {kind: "RETRIEVER", "input.value": question, **found}
        tracer.start_span("retrieve", attributes=searched).end()
        prompt = "\n".join([*row["contexts"], question])
        asked = {kind: "LLM", "input.value": prompt, "output.value": answer}
        tracer.start_span("generate", attributes=asked).end()


def llamaindex(url: str, at_once: int) -> Run:
    """Return a function that runs LlamaIndex's batch runner."""
    from llama_index.core.evaluation import (
        AnswerRelevancyEvaluator,
        BatchEvalRunner,
        ContextRelevancyEvaluator,
        FaithfulnessEvaluator,
    )
    from llama_index.llms.openai_like import OpenAILike

    llm = OpenAILike(
        model="judge", api_base=url, api_key=KEY, is_chat_model=True, context_window=128_000
    )
    evaluators = {
        "answer_relevancy": AnswerRelevancyEvaluator(llm=llm),
        "context_relevancy": ContextRelevancyEvaluator(llm=llm),
        "faithfulness": FaithfulnessEvaluator(llm=llm),
    }

    def run(rows: Rows) -> int:
        runner = BatchEvalRunner(evaluators, workers=at_once)
        found = asyncio.run(
            runner.aevaluate_response_strs(
                queries=[row["question"] for row in rows],
                response_strs=[row["answer"] for row in rows],
                contexts_list=[row["contexts"] for row in rows],
            )
        )
        return sum(one.score is None for results in found.values() for one in results)

    return run


def haystack(url: str, at_once: int) -> Run:
    """Return a function that runs Haystack's evaluators, one turn per thread."""
    from haystack.components.evaluators import (
        ContextRelevanceEvaluator,
        FaithfulnessEvaluator,
        LLMEvaluator,
    )
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.utils import Secret

    def generator() -> Any:
        options = {"response_format": {"type": "json_object"}}
        return OpenAIChatGenerator(
            model="judge",
            api_base_url=url,
            api_key=Secret.from_token(KEY),
            generation_kwargs=options,
        )

    asked = LLMEvaluator(
        instructions="Write three questions that the answer replies to, as 'written_questions'.",
        inputs=[("predicted_answers", list[str])],
        outputs=["written_questions", "noncommittal"],
        examples=[
            {
                "inputs": {"predicted_answers": "Berlin."},
                "outputs": {"written_questions": ["What is Germany's capital?"], "noncommittal": 0},
            }
        ],
        chat_generator=generator(),
        progress_bar=False,
    )
    relevant = ContextRelevanceEvaluator(chat_generator=generator(), progress_bar=False)
    faithful = FaithfulnessEvaluator(chat_generator=generator(), progress_bar=False)

    def score(row: Mapping[str, Any]) -> int:
        answer, question, contexts = [row["answer"]], [row["question"]], [row["contexts"]]
        parts = (
            lambda: asked.run(predicted_answers=answer)["results"][0] is None,
            lambda: relevant.run(questions=question, contexts=contexts)["score"] != 1,
            lambda: (
                not faithful.run(questions=question, contexts=contexts, predicted_answers=answer)[
                    "score"
                ]
            ),
        )
        return sum(map(_is_missing, parts))

    def run(rows: Rows) -> int:
        with ThreadPoolExecutor(at_once) as threads:
            return sum(threads.map(score, rows))

    return run


def _is_missing(part: Callable[[], bool]) -> bool:
    try:
        return part()
    except Exception:  # noqa: BLE001  # the judge has refused all attempts
        return True
