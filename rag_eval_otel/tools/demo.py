"""Run a small RAG app over the handbook of an invented company, and show its traces with scores.

The app is a LangChain chain that needs no API key, no network and no model. `run_demo` prints the
traces of its questions; `run_traffic` plays traffic with a bad deployment and a judge outage, for a
look at the dashboards.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import urlsplit
from uuid import uuid4

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
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rag_eval_otel import semconv
from rag_eval_otel.config import Config
from rag_eval_otel.drift import DriftOptions
from rag_eval_otel.environment import Signal, otlp_endpoint, otlp_variables
from rag_eval_otel.errors import ConfigError, JudgeTransportError
from rag_eval_otel.judge.lexical import STOP, LexicalJudge, terms
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.live.instrument import Handle, instrument
from rag_eval_otel.live.recorded import record_feedback
from rag_eval_otel.runtime.providers import Providers, exporters
from rag_eval_otel.tools.doctor import export_nothing, from_answers, otlp_endpoints
from rag_eval_otel.types import Passage, Replies, Usage

if TYPE_CHECKING:
    from langchain_core.callbacks import CallbackManagerForLLMRun
    from opentelemetry.sdk.trace import ReadableSpan


# --- the app --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A question, the scripted answer to it, and the defect of this answer.

    ``incomplete``: the answer covers only a part of the question. ``made_up``: the answer is not in
    the handbook. ``off_topic``: the handbook says nothing about the question, so the retrieved
    passages do not help. ``refusal``: the answer says that the app cannot help.
    """

    question: str
    answer: str
    defect: Literal["none", "incomplete", "made_up", "off_topic", "refusal"] = "none"


def _file(name: str) -> str:
    return (files("rag_eval_otel.tools") / name).read_text(encoding="utf-8")


def passages() -> tuple[Passage, ...]:
    """Return the sections of the handbook as passages. The id of a passage is its heading."""
    sections = [section.partition("\n") for section in _file("handbook.md").split("\n## ")[1:]]
    return tuple(
        Passage(id=heading.strip(), text=" ".join(body.split())) for heading, _, body in sections
    )


TURNS = tuple(Turn(**turn) for turn in json.loads(_file("handbook_turns.json")))
"""The questions and answers of the demo, in the order in which they are asked."""

TOP_K = 3
REQUEST = " (request "
"""What follows a question that the demo asks more than once, before the number of the request.

Replies of the judge to equal texts are cached; with the number, no two turns are equal.
"""

_DIMENSIONS = 2048
_UNKNOWN = "I don't know."
_PROMPT = ChatPromptTemplate.from_messages(
    [("system", "Answer from these pages of the handbook.\n\n{context}"), ("human", "{question}")]
)


class HandbookEmbeddings(Embeddings):
    """Compute embedding vectors offline, by hashing the words of a text except stop words."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return one vector of unit length for each of ``texts``."""
        return [_vector(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return _vector(text)


def _vector(text: str) -> list[float]:
    row = np.full(_DIMENSIONS, 1e-9)  # a text without words needs a direction, too
    for term in terms(text):
        if term.weight > STOP:
            row[zlib.crc32(term.key.encode("utf-8", "replace")) % _DIMENSIONS] += term.weight
    unit: list[float] = (row / np.linalg.norm(row)).tolist()
    return unit


class HandbookModel(BaseChatModel):
    """Return a scripted answer instead of asking a model.

    ``answers`` maps a question to its answer. The question is the last message of the prompt. From
    `REQUEST` on, it is left out of account, so that the demo can ask a question again as a new one.
    """

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
        question = str(messages[-1].content).partition(REQUEST)[0]
        answer = self.answers.get(question, _UNKNOWN)
        message = AIMessage(content=answer, response_metadata={"model_name": self.model_name})
        return ChatResult(generations=[ChatGeneration(message=message)])


def build_app() -> Runnable[str, str]:
    """Return the LangChain chain that takes a question and returns the answer."""
    model = HandbookModel(answers={turn.question: turn.answer for turn in TURNS})
    retriever = _store().as_retriever(search_kwargs={"k": TOP_K})
    inputs = {"context": retriever | _joined, "question": RunnablePassthrough()}
    chain: Runnable[str, str] = inputs | _PROMPT | model | StrOutputParser()
    return chain.with_config(run_name="handbook")


class _Handbook(InMemoryVectorStore):
    """The handbook. Passages for a question that is asked again are new, too (`REQUEST`)."""

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        question, request, number = query.partition(REQUEST)
        found = super().similarity_search(question, k, **kwargs)
        return [
            one.model_copy(update={"page_content": f"{one.page_content}{request}{number}"})
            for one in found
        ]


def _store() -> InMemoryVectorStore:
    store = _Handbook(HandbookEmbeddings())
    store.add_documents(
        [
            Document(page_content=passage.text, id=passage.id, metadata={"id": passage.id})
            for passage in passages()
        ]
    )
    return store


def _joined(documents: Sequence[Document]) -> str:
    return "\n\n".join(document.page_content for document in documents)


# --- its traces -----------------------------------------------------------------------------------

Form = Literal["text", "json"]

_SCORE_SECONDS = 120.0  # seconds; a judge over the network may be slow
_TEST_SECONDS = 5.0  # the time limit of a test export
_METRICS = ("answer_relevancy", "context_relevance", "faithfulness", "response_groundedness")
_LEXICAL = """\
The judge is lexical: it compares words, offline and without a model. It shows that the set-up works
and gives a rough signal; it is no LLM judge. To use one: rag-eval-otel demo --judge openai/MODEL
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTurn:
    """One question of the demo and the exported spans of its trace, the root span first."""

    turn: Turn
    spans: Sequence[ReadableSpan]

    @property
    def root(self) -> ReadableSpan:
        """The root span of the trace, which has the scores as attributes."""
        return self.spans[0]

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The attributes of the root span."""
        return self.root.attributes or {}

    def leaf(self, metric: str, leaf: str) -> Any:
        """Return the attribute ``leaf`` of the score of ``metric``; None if it has none."""
        return self.attributes.get(semconv.metric_attribute(metric, leaf))

    def to_dict(self) -> dict[str, Any]:
        scores = {name: self.leaf(name, semconv.LEAF_SCORE) for name in _METRICS}
        return {
            "question": self.turn.question,
            "answer": self.turn.answer,
            "defect": self.turn.defect,
            "trace_id": f"{self.root.context.trace_id:032x}",
            "span_id": f"{self.root.context.span_id:016x}",
            "status": self.attributes.get(semconv.EVALUATION_STATUS),
            "label": self.attributes.get(semconv.EVALUATION_LABEL),
            "scores": {name: value for name, value in scores.items() if value is not None},
            "spans": [span.name for span in self.spans],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the demo exported: its questions with their traces, and some counts.

    ``turns`` has the questions in order, ``spans`` the number of all spans, and ``counted`` the
    number of questions by outcome of their evaluation. ``elsewhere`` says for each OTLP endpoint of
    the environment what was exported there, or why nothing was.
    """

    turns: Sequence[ShownTurn]
    spans: int
    counted: Mapping[str, int]
    judge: str
    elsewhere: Sequence[str] = ()

    @property
    def is_complete(self) -> bool:
        """Whether exactly one scored trace was exported for every question."""
        scored = [t for t in self.turns if t.attributes.get(semconv.EVALUATION_STATUS) == "scored"]
        return len(scored) == len(self.turns) == len(TURNS)


def shown_turns(exported: Iterable[ReadableSpan]) -> list[ShownTurn]:
    """Return the ``exported`` traces, each with its question: the first has the first trace."""
    traces: dict[int, list[ReadableSpan]] = {}
    for span in sorted(exported, key=lambda span: (span.start_time or 0, span.parent is not None)):
        traces.setdefault(span.context.trace_id, []).append(span)
    roots = [spans for spans in traces.values() if spans[0].parent is None]
    return [ShownTurn(turn=turn, spans=spans) for turn, spans in zip(TURNS, roots, strict=False)]


def as_json(shown: Shown) -> str:
    document: dict[str, Any] = {
        "judge": shown.judge,
        "turns": [turn.to_dict() for turn in shown.turns],
        "totals": {"spans": shown.spans, "turns_by_outcome": shown.counted},
        "elsewhere": shown.elsewhere,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def as_text(shown: Shown) -> str:
    """Return each trace as a tree of spans with its scores, and the totals below."""
    blocks = ["\n".join(_tree(turn)) for turn in shown.turns]
    return "\n\n".join([*blocks, "\n".join(_totals(shown))]) + "\n"


def _tree(shown: ShownTurn) -> Iterator[str]:
    root, defect = shown.root, shown.turn.defect.replace("_", " ")
    yield f"Q  {shown.turn.question}"
    yield f"A  {shown.turn.answer}" + ("" if defect == "none" else f"   <- {defect}")
    yield f"trace {root.context.trace_id:032x}"
    yield f"{root.name}  {_milliseconds(root)}  {shown.attributes.get(semconv.EVALUATION_STATUS)}"
    for name in _METRICS:
        score, label, reason = (shown.leaf(name, leaf) for leaf in ("score", "label", "reason"))
        value = "   -" if score is None else f"{score:4.2f}"
        remark = f"  ({reason})" if reason else ""
        yield f"│    {name:<22} {value}  {label or '-'}{remark}"
    for i, child in enumerate(shown.spans[1:], start=2):
        yield f"{'└' if i == len(shown.spans) else '├'}─ {child.name}  {_milliseconds(child)}"


def _milliseconds(span: ReadableSpan) -> str:
    return f"{((span.end_time or 0) - (span.start_time or 0)) / 1e6:.1f} ms"


def _totals(shown: Shown) -> Iterator[str]:
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(shown.counted.items()))
    yield f"{len(shown.turns)} turns ({outcomes}), {shown.spans} spans"
    for name in _METRICS:
        scores = [turn.leaf(name, semconv.LEAF_SCORE) for turn in shown.turns]
        if values := [score for score in scores if score is not None]:
            mean = f"mean {sum(values) / len(values):.2f}"
            yield f"  {name:<22} {mean}  lowest {min(values):.2f}  of {len(values)}"
    yield from shown.elsewhere
    if shown.judge == "lexical":
        yield _LEXICAL.rstrip()


def run_demo(*, form: Form, options: Mapping[str, Any], write: Callable[[str], object]) -> int:
    """Ask the questions of the demo, and print the exported traces with ``write``.

    ``options`` are settings of `Config`. Returns 0 if every question was exported with scores, else
    1.
    """
    config = Config.from_env(**{"hold_seconds": _SCORE_SECONDS, **options})
    elsewhere, exporter = Elsewhere(), InMemorySpanExporter()
    providers = elsewhere.providers("rag-eval-otel-demo", traces=[exporter])
    handle = _instrumented(config, providers)
    app = build_app()
    for turn in TURNS:
        app.invoke(turn.question, config={"callbacks": [handle.callback]})
    handle.shutdown(_SCORE_SECONDS)
    providers.shutdown()
    spans, counts = exporter.get_finished_spans(), Counter[str]()
    for name, number in handle.stats.turns.items():
        counts[name.split()[0]] += number  # "unscored no_claims" is an outcome and its reason
    shown = Shown(
        turns=shown_turns(spans),
        spans=len(spans),
        counted=counts,
        judge=config.judge if isinstance(config.judge, str) else type(config.judge).__name__,
        elsewhere=(*elsewhere.exported(), *elsewhere.failures()),
    )
    write(as_json(shown) if form == "json" else as_text(shown))
    return 0 if shown.is_complete else 1


def _instrumented(config: Config, providers: Providers) -> Handle:
    return instrument(
        config,
        tracer_provider=providers.tracer_provider,
        meter_provider=providers.meter_provider,
        logger_provider=providers.logger_provider,
    )


class Elsewhere:
    """The OTLP endpoints that the environment names, and the results of the exports there.

    Each endpoint gets a test export first. Nothing else is sent to an endpoint that refuses it. If
    the environment names no endpoint, there are none.
    """

    def __init__(self) -> None:
        environ = otlp_variables()
        endpoints = otlp_endpoints(environ) if otlp_endpoint(environ) is not None else []
        self._answers = {
            one.signal: export_nothing(one, _TEST_SECONDS) for one in endpoints if one.source
        }
        self._results: dict[Signal, list[bool]] = {}

    def providers(self, service: str, *, traces: Sequence[Any] = ()) -> Providers:
        """Return providers that export there, and spans to ``traces``, too."""
        return Providers.exporting(
            traces=[*traces, *self.exporters("traces")],
            metrics=[
                PeriodicExportingMetricReader(exporter, export_interval_millis=_INTERVAL)
                for exporter in self.exporters("metrics")
            ],
            logs=[*self.exporters("logs")],
            service=service,
        )

    def accepts(self, signal: Signal) -> bool:
        """Whether an endpoint has accepted the test export of ``signal``."""
        return signal in self._answers and self._answers[signal].verdict == "ok"

    def exporters(self, signal: Signal) -> Iterator[Any]:
        """Yield the exporters of ``signal`` whose endpoint accepts exports."""
        for exporter in exporters(signal) if self.accepts(signal) else ():
            exporter.export = self._watched(exporter.export, self._results.setdefault(signal, []))
            yield exporter

    def _watched(self, export: Callable[..., Any], results: list[bool]) -> Callable[..., Any]:
        def watched(*args: Any, **options: Any) -> Any:
            result = export(*args, **options)
            results.append(getattr(result, "name", "") == "SUCCESS")
            return result

        return watched

    def exported(self) -> Iterator[str]:
        """Yield what was exported to each server."""
        servers = dict.fromkeys(answer.endpoint.server for answer in self._answers.values())
        for server in servers:
            here = [a for a in self._answers.values() if a.endpoint.server == server]
            good = [a for a in here if all(self._results.get(a.endpoint.signal, [False]))]
            if good:
                names = ", ".join(answer.endpoint.signal for answer in good)
                url = good[0].endpoint.url
                scheme = f"{urlsplit(url).scheme}://" if "://" in url else ""
                yield f"Also exported to {scheme}{server}: {names}"

    def failures(self) -> Iterator[str]:
        """Yield what was not exported, with the reason."""
        for found in from_answers([*self._answers.values()]):
            yield f"Not exported: {found.seen}\n  {found.fix}"
        for signal, results in self._results.items():
            if not all(results):
                yield f"Not exported: {signal} ({results.count(False)} exports failed)"


# --- traffic --------------------------------------------------------------------------------------

_LATENCY = 0.02  # seconds for a reply of the judge
_INTERVAL = 1000  # milliseconds between two exports of metrics
_LAST_SCORES_SECONDS = 30.0  # seconds for the last scores
_TOKENS = (400, 60)  # tokens of a task: of its prompt, and of the reply
_FEEDBACK_EVERY = 3  # turns, of which one gets feedback
_GOOD = tuple(turn for turn in TURNS if turn.defect == "none")
_BAD = tuple(turn for turn in TURNS if turn.defect in {"made_up", "off_topic"})

JudgeState: TypeAlias = Literal["up", "down"]
"""Whether the judge answers, or has an outage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of the traffic.

    ``share`` is its share of the time. One of ``bad_every`` answers is bad.
    """

    name: str
    share: float
    bad_every: int
    judge: JudgeState = "up"


PHASES: tuple[Phase, ...] = (
    Phase(name="healthy traffic", share=0.30, bad_every=30),
    Phase(name="bad deployment: every second answer is wrong", share=0.15, bad_every=2),
    Phase(name="rolled back", share=0.15, bad_every=30),
    Phase(name="judge outage: no request is answered", share=0.15, bad_every=30, judge="down"),
    Phase(name="recovered", share=0.25, bad_every=30),
)


class HandbookJudge:
    """The offline judge, with the latency, the token counts and the outages of a remote judge."""

    model = "handbook-judge"
    label_metrics = LexicalJudge.label_metrics

    def __init__(self) -> None:
        self.state: JudgeState = "up"
        self._judge = LexicalJudge()

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Return the replies of the offline judge; raise `JudgeTransportError` in an outage."""
        await asyncio.sleep(_LATENCY)
        if self.state != "up":
            msg = "the demo plays an outage of the judge"
            raise JudgeTransportError(msg)
        replies = await self._judge.reply(tasks)
        prompt, completion = (len(tasks) * tokens for tokens in _TOKENS)
        usage = Usage(judge_requests=1, prompt_tokens=prompt, completion_tokens=completion)
        return replace(replies, model=self.model, usage=usage)


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The time of the traffic; tests use one that does not wait."""

    now: Callable[[], float] = time.monotonic
    wait: Callable[[float], object] = threading.Event().wait


def run_traffic(
    *, minutes: float, rate: float, write: Callable[[str], object], clock: Clock | None = None
) -> int:
    """Ask ``rate`` questions a second for ``minutes``, in the phases of `PHASES`.

    A user rates one of three answers: good, or bad if it is wrong. Scores and feedback go to the
    OTLP endpoint that the environment names, metrics every second. The phases are printed with
    ``write`` as they begin, and at the end what was exported. Return 0 if all exports succeeded,
    else 1. Raises `ConfigError` if no endpoint is named or none accepts exports.
    """
    if not (minutes > 0 and rate > 0):
        msg = f"--minutes and --rate must be above 0, not {minutes:g} and {rate:g}"
        raise ConfigError(msg)
    elsewhere, judge = Elsewhere(), HandbookJudge()
    if not elsewhere.accepts("traces"):
        why = (
            "; ".join(elsewhere.failures())
            or "set OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318"
        )
        msg = f"traffic is for a look at a backend, and there is none: {why}"
        raise ConfigError(msg)
    providers = elsewhere.providers("handbook")
    handle = _instrumented(_traffic_config(judge), providers)
    turns = max(1, round(minutes * 60 * rate))
    _ask(handle, judge, turns=turns, rate=rate, write=write, clock=clock or Clock())
    handle.shutdown(_LAST_SCORES_SECONDS)
    providers.shutdown()
    counted = ", ".join(f"{count} {name}" for name, count in sorted(handle.stats.turns.items()))
    failures = [*elsewhere.failures()]
    write("\n".join([f"turns: {counted}", *elsewhere.exported(), *failures]) + "\n")
    return 1 if failures else 0


def _traffic_config(judge: HandbookJudge) -> Config:
    return Config.from_env(
        judge=judge,
        prices={"models": {judge.model: {"input": 0.25, "output": 2.0}}},
        budget="100 USD/day",
        drift=DriftOptions(learn=200, every=10_000),
        # answer_relevancy asks about the answer alone, and replies to equal answers are cached.
        metrics=["context_relevance", "faithfulness", "response_groundedness"],
    )


def _ask(
    handle: Handle,
    judge: HandbookJudge,
    *,
    turns: int,
    rate: float,
    write: Callable[[str], object],
    clock: Clock,
) -> None:
    app, start = build_app(), clock.now()
    last: Phase | None = None
    for number, (phase, turn) in enumerate(planned(turns)):
        clock.wait(max(0.0, start + number / rate - clock.now()))
        if phase is not last:
            write(f"{number / rate:6.0f} s  {phase.name}\n")
            if judge.state == "up":  # turns wait for the end of an outage, and are scored then
                handle.flush(_LAST_SCORES_SECONDS)  # the last phase is judged as it was
            last, judge.state = phase, phase.judge
        question, run = f"{turn.question}{REQUEST}{number})", uuid4()
        app.invoke(question, config={"callbacks": [handle.callback], "run_id": run})
        if (number + 1) % _FEEDBACK_EVERY == 0:
            record_feedback(turn.defect == "none", trace_id=run)


def planned(turns: int) -> Iterator[tuple[Phase, Turn]]:
    """Yield the phase and the question of each of ``turns`` turns."""
    ends, end = [], 0.0
    for phase in PHASES:
        end += phase.share
        ends.append((round(end * turns), phase))
    for number in range(turns):
        phase = next((phase for until, phase in ends if number < until), PHASES[-1])
        is_bad = number % phase.bad_every == phase.bad_every - 1
        among = _BAD if is_bad else _GOOD
        yield phase, among[number // (phase.bad_every if is_bad else 1) % len(among)]
