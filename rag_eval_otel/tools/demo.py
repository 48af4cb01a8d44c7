"""Run a small offline RAG app, and show its traces with their scores."""

from __future__ import annotations

import argparse
import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rag_eval_otel import semconv
from rag_eval_otel.config import Config
from rag_eval_otel.environment import Signal, first_set, otlp_endpoint, otlp_variables
from rag_eval_otel.judge.lexical import STOP, terms
from rag_eval_otel.live.instrument import instrument
from rag_eval_otel.runtime.sdk import Providers, exporters
from rag_eval_otel.tools.doctor import Answer, export_all, from_answers, otlp_endpoints
from rag_eval_otel.tools.rows import CAUSES
from rag_eval_otel.types import Passage

if TYPE_CHECKING:
    from langchain_core.callbacks import CallbackManagerForLLMRun
    from opentelemetry.sdk.trace import ReadableSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A question, the scripted answer to it, and the defect of this answer."""

    question: str
    answer: str
    defect: Literal["none", "incomplete", "made_up", "off_topic", "refusal"] = "none"


def _file(name: str) -> str:
    return (files("rag_eval_otel.tools") / name).read_text(encoding="utf-8")


def passages() -> tuple[Passage, ...]:
    sections = [section.partition("\n") for section in _file("handbook.md").split("\n## ")[1:]]
    return tuple(
        Passage(id=heading.strip(), text=" ".join(body.split())) for heading, _, body in sections
    )


TURNS = tuple(Turn(**turn) for turn in json.loads(_file("handbook_turns.json")))
"""The questions and answers of the demo, in the order in which they are asked."""

TOP_K = 3

_DIMENSIONS = 2048
_PROMPT = ChatPromptTemplate.from_messages(
    [("system", "Answer from these pages of the handbook.\n\n{context}"), ("human", "{question}")]
)


class HandbookEmbeddings(Embeddings):
    """Compute embedding vectors offline, by hashing the words of a text except stop words."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return one vector of unit length for each of ``texts``."""
        return list(map(self.embed_query, texts))

    def embed_query(self, text: str) -> list[float]:
        row = np.full(_DIMENSIONS, 1e-9)  # a text without words needs a direction, too
        for term in terms(text):
            if term.weight > STOP:
                row[zlib.crc32(term.key.encode("utf-8", "replace")) % _DIMENSIONS] += term.weight
        unit: list[float] = (row / np.linalg.norm(row)).tolist()
        return unit


class HandbookModel(BaseChatModel):
    """Return the scripted answer to the question, which is the last message of the prompt."""

    answers: Mapping[str, str]
    model_name: str = "handbook-offline"

    @property
    def _llm_type(self) -> str:
        return "handbook"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> ChatResult:
        answer = self.answers.get(str(messages[-1].content), "I don't know.")
        message = AIMessage(content=answer, response_metadata={"model_name": self.model_name})
        return ChatResult(generations=[ChatGeneration(message=message)])


def build_app() -> Runnable[str, str]:
    store = InMemoryVectorStore(HandbookEmbeddings())
    store.add_documents(
        [Document(page_content=p.text, id=p.id, metadata={"id": p.id}) for p in passages()]
    )
    retriever = store.as_retriever(search_kwargs={"k": TOP_K})

    def joined(documents: Sequence[Document]) -> str:
        return "\n\n".join(document.page_content for document in documents)

    inputs = {"context": retriever | joined, "question": RunnablePassthrough()}
    answers = {turn.question: turn.answer for turn in TURNS}
    model = HandbookModel(answers=answers)
    chain: Runnable[str, str] = inputs | _PROMPT | model | StrOutputParser()
    return chain.with_config(run_name="handbook")


def run(options: argparse.Namespace) -> int:
    has_colour = sys.stdout.isatty() and first_set(("NO_COLOR",)) is None

    def write(text: str) -> None:
        sys.stdout.write(text if has_colour else re.sub("\x1b\\[[0-9;]*m", "", text))

    return run_demo({"judge": options.judge} if options.judge else {}, write=write)


_SCORE_SECONDS = 120.0  # a judge over the network may be slow
_TEST_SECONDS = 5.0  # the time limit of a test export
_METRICS = ("answer_relevancy", "context_relevance", "faithfulness", "response_groundedness")
_LEXICAL = """\
The judge is lexical: it compares words, offline and without a model. That is a rough signal, and
no LLM judge. Next: rag-eval-otel demo --judge openai/MODEL"""
_NEXT = """\
Your own application: RagEvalCallbackHandler() for LangChain, instrument() beside an instrumentation
(README.md). The scores are on the spans, in attributes rag.evaluation.*: see them in your backend
with OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318; see dashboards with: rag-eval-otel look"""
_COLOURS = {"pass": "32", "fail": "1;31"}  # ANSI: green, bold red; else faint


def _paint(text: str, style: str | None) -> str:
    return f"\x1b[{_COLOURS.get(style or '', '2')}m{text}\x1b[0m"


def _on(spans: Sequence[ReadableSpan], attribute: str) -> Any:
    return (spans[0].attributes or {}).get(attribute)


def _bars(spans: Sequence[ReadableSpan]) -> Iterator[str]:
    for name in _METRICS:
        score, label, reason = (
            _on(spans, semconv.metric_attribute(name, leaf))
            for leaf in (semconv.LEAF_SCORE, semconv.LEAF_LABEL, semconv.LEAF_REASON)
        )
        bar = "" if score is None else f"{'█' * round(10 * score):·<10} {score:.2f}"
        yield f"      {name:<22} " + _paint(bar or f"no score: {reason}", label)


def _lines(turn: Turn, spans: Sequence[ReadableSpan]) -> Iterator[str]:
    label = _on(spans, semconv.EVALUATION_LABEL) or _on(spans, semconv.EVALUATION_STATUS)
    yield f"{_paint(f'{label:<5}', label)} {turn.question}"
    if label == "pass":
        return
    answer, places = turn.answer, _on(spans, semconv.EVALUATION_OFFSETS) or ()
    for start, end in reversed([*zip(places[::2], places[1::2], strict=True)]):
        answer = f"{answer[:start]}{_paint(f'[{answer[start:end]}]', 'fail')}{answer[end:]}"
    cause = _on(spans, semconv.EVALUATION_CAUSE)
    yield f"      {answer}"
    if cause in CAUSES:
        yield f"      {cause}: {CAUSES[cause]}"
    yield from _bars(spans)


def run_demo(options: Mapping[str, Any], *, write: Callable[[str], object]) -> int:
    """Ask the demo's questions and print the scores. Return 0 if all were exported with scores."""
    config = Config.from_env(**{"hold_seconds": _SCORE_SECONDS, **options})
    exporter, answers = InMemorySpanExporter(), _test_exports()
    providers = Providers.exporting(
        traces=[exporter, *_exporters("traces", answers)],
        metrics=_exporters("metrics", answers),
        logs=_exporters("logs", answers),
        service="rag-eval-otel-demo",
    )
    handle = instrument(
        config,
        tracer_provider=providers.tracer_provider,
        meter_provider=providers.meter_provider,
        logger_provider=providers.logger_provider,
    )
    app = build_app()
    for turn in TURNS:
        app.invoke(turn.question, config={"callbacks": [handle.callback]})
    handle.shutdown(_SCORE_SECONDS)
    providers.shutdown()
    counts = Counter[str]()
    for name, number in handle.stats.turns.items():
        counts[name.split()[0]] += number  # "unscored no_claims" is an outcome and its reason
    traces: dict[int, list[ReadableSpan]] = {}
    spans = exporter.get_finished_spans()
    for span in sorted(spans, key=lambda span: (span.start_time or 0, span.parent is not None)):
        traces.setdefault(span.context.trace_id, []).append(span)
    whole = [spans for spans in traces.values() if spans[0].parent is None]
    turns = sorted(
        zip(TURNS, whole, strict=False),
        key=lambda each: _on(each[1], semconv.EVALUATION_LABEL) == "pass",
    )
    remarks = [*_elsewhere(answers), *([_LEXICAL] if config.judge == "lexical" else []), _NEXT]
    lines = [line for turn, spans in turns for line in _lines(turn, spans)]
    outcomes = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
    passed = sum(_on(spans, semconv.EVALUATION_LABEL) == "pass" for spans in whole)
    total = f"{len(whole)} turns ({outcomes}), {passed} pass"
    write("\n".join([*lines, "", total, *remarks, ""]))
    scored = [spans for spans in whole if _on(spans, semconv.EVALUATION_STATUS) == "scored"]
    return 0 if len(scored) == len(whole) == len(TURNS) else 1


def _test_exports() -> Sequence[Answer]:
    environ = otlp_variables()
    endpoints = otlp_endpoints(environ) if otlp_endpoint(environ) is not None else []
    return export_all([each for each in endpoints if each.source], _TEST_SECONDS)


def _exporters(signal: Signal, answers: Sequence[Answer]) -> list[Any]:
    accepting = {answer.endpoint.signal for answer in answers if answer.is_ok}
    return [*exporters(signal)] if signal in accepting else []


def _elsewhere(answers: Sequence[Answer]) -> Iterator[str]:
    for answer in answers:
        if answer.is_ok:
            yield f"Also exported to {answer.endpoint.url}: {answer.endpoint.signal}"
    for cause in from_answers(answers):
        yield f"Not exported: {cause.seen}\n  {cause.fix}"
