"""Run a LangChain RAG app over the handbook of a company, and show its traces with scores."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

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
from rag_eval_otel.environment import Signal, otlp_endpoint, otlp_variables
from rag_eval_otel.judge.lexical import STOP, terms
from rag_eval_otel.live.instrument import instrument
from rag_eval_otel.runtime.providers import Providers, exporters
from rag_eval_otel.tools.doctor import Answer, export_nothing, from_answers, otlp_endpoints
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

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model_name": self.model_name}

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


def build_app(
    model: type[HandbookModel] = HandbookModel,
    handbook: type[InMemoryVectorStore] = InMemoryVectorStore,
) -> Runnable[str, str]:
    store = handbook(HandbookEmbeddings())
    store.add_documents(
        [Document(page_content=p.text, id=p.id, metadata={"id": p.id}) for p in passages()]
    )
    retriever = store.as_retriever(search_kwargs={"k": TOP_K})

    def joined(documents: Sequence[Document]) -> str:
        return "\n\n".join(document.page_content for document in documents)

    inputs = {"context": retriever | joined, "question": RunnablePassthrough()}
    answers = {turn.question: turn.answer for turn in TURNS}
    chain: Runnable[str, str] = inputs | _PROMPT | model(answers=answers) | StrOutputParser()
    return chain.with_config(run_name="handbook")


Form = Literal["text", "json"]

_SCORE_SECONDS = 120.0  # a judge over the network may be slow
_TEST_SECONDS = 5.0  # the time limit of a test export
_METRICS = ("answer_relevancy", "context_relevance", "faithfulness", "response_groundedness")
_LEXICAL = """\
The judge is lexical: it compares words, offline and without a model. It shows that the set-up works
and gives a rough signal; it is no LLM judge. To use one: rag-eval-otel demo --judge openai/MODEL"""


def _described(turn: Turn, spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    root, attributes = spans[0], spans[0].attributes or {}
    leaves = (semconv.LEAF_SCORE, semconv.LEAF_LABEL, semconv.LEAF_REASON)
    return {
        **asdict(turn),
        "trace_id": f"{root.context.trace_id:032x}",
        "span_id": f"{root.context.span_id:016x}",
        "status": attributes.get(semconv.EVALUATION_STATUS),
        "label": attributes.get(semconv.EVALUATION_LABEL),
        "scores": {
            name: {leaf: attributes.get(semconv.metric_attribute(name, leaf)) for leaf in leaves}
            for name in _METRICS
        },
        "spans": [{"name": span.name, "milliseconds": _milliseconds(span)} for span in spans],
    }


def _milliseconds(span: ReadableSpan) -> float:
    return round(((span.end_time or 0) - (span.start_time or 0)) / 1e6, 1)


def _tree(turn: Mapping[str, Any]) -> str:
    root, *children = (f"{each['name']}  {each['milliseconds']} ms" for each in turn["spans"])
    defect = "" if turn["defect"] == "none" else f"   <- {turn['defect'].replace('_', ' ')}"
    lines = [
        f"Q  {turn['question']}",
        f"A  {turn['answer']}{defect}",
        f"trace {turn['trace_id']}",
        f"{root}  {turn['status']}",
    ]
    for name, score in turn["scores"].items():
        value = "   -" if score["score"] is None else f"{score['score']:4.2f}"
        remark = f"  ({score['reason']})" if score["reason"] else ""
        lines.append(f"│    {name:<22} {value}  {score['label'] or '-'}{remark}")
    lines += [f"{'└' if i == len(children) else '├'}─ {c}" for i, c in enumerate(children, 1)]
    return "\n".join(lines)


def _totals(document: Mapping[str, Any]) -> Iterator[str]:
    turns, totals = document["turns"], document["totals"]
    outcomes = ", ".join(f"{n} {name}" for name, n in sorted(totals["turns_by_outcome"].items()))
    yield f"{len(turns)} turns ({outcomes}), {totals['spans']} spans"
    for name in _METRICS:
        scores = [turn["scores"][name]["score"] for turn in turns]
        if values := [score for score in scores if score is not None]:
            mean = f"mean {sum(values) / len(values):.2f}"
            yield f"  {name:<22} {mean}  lowest {min(values):.2f}  of {len(values)}"
    yield from document["elsewhere"]
    if document["judge"] == "lexical":
        yield _LEXICAL


def run_demo(*, form: Form, options: Mapping[str, Any], write: Callable[[str], object]) -> int:
    """Ask the demo's questions and print the traces. Return 0 if all were exported with scores."""
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
    turns = [_described(turn, spans) for turn, spans in zip(TURNS, whole, strict=False)]
    judge = config.judge if isinstance(config.judge, str) else type(config.judge).__name__
    document: dict[str, Any] = {
        "judge": judge,
        "turns": turns,
        "totals": {"spans": len(spans), "turns_by_outcome": counts},
        "elsewhere": [*_elsewhere(answers)],
    }
    text = "\n\n".join([*map(_tree, turns), "\n".join(_totals(document))])
    write(f"{json.dumps(document, indent=2, ensure_ascii=False) if form == 'json' else text}\n")
    scored = [turn for turn in turns if turn["status"] == "scored"]
    return 0 if len(scored) == len(turns) == len(TURNS) else 1


def _test_exports() -> Sequence[Answer]:
    environ = otlp_variables()
    endpoints = otlp_endpoints(environ) if otlp_endpoint(environ) is not None else []
    return [export_nothing(each, _TEST_SECONDS) for each in endpoints if each.source]


def _exporters(signal: Signal, answers: Sequence[Answer]) -> list[Any]:
    accepting = {answer.endpoint.signal for answer in answers if answer.verdict == "ok"}
    return [*exporters(signal)] if signal in accepting else []


def _elsewhere(answers: Sequence[Answer]) -> Iterator[str]:
    good = [answer.endpoint for answer in answers if answer.verdict == "ok"]
    for server in dict.fromkeys(endpoint.server for endpoint in good):
        here = [endpoint for endpoint in good if endpoint.server == server]
        scheme = f"{urlsplit(here[0].url).scheme}://" if "://" in here[0].url else ""
        yield f"Also exported to {scheme}{server}: {', '.join(each.signal for each in here)}"
    for cause in from_answers(answers):
        yield f"Not exported: {cause.seen}\n  {cause.fix}"
