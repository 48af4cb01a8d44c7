"""Run the demo, receive its traces over OTLP, and print them as text or JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from rag_eval_otel import semconv
from rag_eval_otel.config import Config
from rag_eval_otel.demo.app import TURNS, Turn, build_app
from rag_eval_otel.doctor.connections import Answer, export_nothing, otlp_endpoints
from rag_eval_otel.doctor.findings import from_answers
from rag_eval_otel.environment import Signal, otlp_endpoint, otlp_variables
from rag_eval_otel.live.instrument import instrument
from rag_eval_otel.runtime.providers import Providers, exporters
from rag_eval_otel.testing import OtlpReceiver, ReceivedSpan

Form = Literal["text", "json"]

_MAX_WAIT = 120.0  # seconds; a judge over the network may be slow
_TEST_SECONDS = 5.0  # the time limit of a test export
_METRICS = ("answer_relevancy", "context_relevance", "faithfulness", "response_groundedness")
_LEXICAL = """\
The judge is lexical: it compares words, offline and without a model. It shows that the set-up works
and gives a rough signal; it is no LLM judge. To use one: rag-eval-otel demo --judge openai/MODEL
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTurn:
    """One question of the demo and the received spans of its trace.

    The first of ``spans`` is the root span.
    """

    turn: Turn
    spans: tuple[ReceivedSpan, ...]

    @property
    def root(self) -> ReceivedSpan:
        """The root span of the trace, which has the scores as attributes."""
        return self.spans[0]

    @property
    def scores(self) -> dict[str, float]:
        """The scores on the root span, by metric."""
        found = self.root.attributes
        prefix, suffix = f"{semconv.METRIC_PREFIX}.", ".score"
        return {
            key.removeprefix(prefix).removesuffix(suffix): value
            for key, value in found.items()
            if key.startswith(prefix) and key.endswith(suffix)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the demo received: its questions with their traces, and some counts.

    ``turns`` has the questions in order. ``spans`` and ``events`` are the numbers of spans and
    evaluation events. ``counted`` has the number of questions by outcome of their evaluation.
    ``elsewhere`` says for each OTLP endpoint of the environment what was exported there, or why
    nothing was.
    """

    turns: tuple[ShownTurn, ...]
    spans: int
    events: int
    counted: dict[str, int]
    judge: str
    elsewhere: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether exactly one scored trace was received for every question."""
        scored = [
            t for t in self.turns if t.root.attributes.get(semconv.EVALUATION_STATUS) == "scored"
        ]
        return len(scored) == len(self.turns) == len(TURNS)


def collect(receiver: OtlpReceiver, *, judge: object, elsewhere: Iterable[str] = ()) -> Shown:
    """Return the received traces of the demo, each with its question.

    The questions were asked one after the other, so the first question has the first trace.
    """
    spans = sorted(receiver.spans(), key=lambda span: span.start_ns)
    roots = [span for span in spans if span.parent_span_id is None]
    turns = [
        ShownTurn(
            turn=turn,
            spans=(root, *(s for s in spans if s.trace_id == root.trace_id and s is not root)),
        )
        for turn, root in zip(TURNS, roots, strict=False)
    ]
    counted: Counter[str] = Counter()
    for point in receiver.metrics():  # exported once, at the end
        if point.name == semconv.TURNS:
            counted[str(point.attributes[semconv.OUTCOME])] += int(point.value or 0)
    return Shown(
        turns=tuple(turns),
        spans=len(spans),
        events=sum(log.event_name == semconv.EVALUATION_EVENT for log in receiver.logs()),
        counted=dict(counted),
        judge=judge if isinstance(judge, str) else type(judge).__name__,
        elsewhere=tuple(elsewhere),
    )


def as_json(shown: Shown) -> str:
    document: dict[str, Any] = {
        "judge": shown.judge,
        "turns": [_turn_as_json(turn) for turn in shown.turns],
        "totals": {
            "spans": shown.spans,
            "evaluation_events": shown.events,
            "turns_by_outcome": shown.counted,
        },
        "elsewhere": shown.elsewhere,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _turn_as_json(shown: ShownTurn) -> dict[str, Any]:
    root = shown.root
    return {
        "question": shown.turn.question,
        "answer": shown.turn.answer,
        "defect": shown.turn.defect,
        "trace_id": f"{root.trace_id:032x}",
        "span_id": f"{root.span_id:016x}",
        "status": root.attributes.get(semconv.EVALUATION_STATUS),
        "label": root.attributes.get(semconv.EVALUATION_LABEL),
        "scores": shown.scores,
        "spans": [span.name for span in shown.spans],
    }


def as_text(shown: Shown) -> str:
    """Return each trace as a tree of spans with its scores, and the totals below."""
    blocks = ["\n".join(_tree(turn)) for turn in shown.turns]
    return "\n\n".join([*blocks, "\n".join(_totals(shown))]) + "\n"


def _tree(shown: ShownTurn) -> Iterator[str]:
    root = shown.root
    defect = "" if shown.turn.defect == "none" else f"   <- {shown.turn.defect.replace('_', ' ')}"
    yield f"Q  {shown.turn.question}"
    yield f"A  {shown.turn.answer}{defect}"
    yield f"trace {root.trace_id:032x}"
    yield f"{root.name}  {_milliseconds(root)}  {root.attributes.get(semconv.EVALUATION_STATUS)}"
    for name in _METRICS:
        yield f"│    {_score_line(root, name)}"
    children = shown.spans[1:]
    for i, child in enumerate(children, start=1):
        yield f"{'└' if i == len(children) else '├'}─ {child.name}  {_milliseconds(child)}"


def _score_line(root: ReceivedSpan, name: str) -> str:
    def leaf(key: str) -> Any:
        return root.attributes.get(semconv.metric_attribute(name, key))

    score, reason = leaf("score"), leaf("reason")
    value = "   -" if score is None else f"{score:4.2f}"
    remark = f"  ({reason})" if reason else ""
    return f"{name:<22} {value}  {leaf('label') or '-'}{remark}"


def _milliseconds(span: ReceivedSpan) -> str:
    return f"{(span.end_ns - span.start_ns) / 1e6:.1f} ms"


def _totals(shown: Shown) -> Iterator[str]:
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(shown.counted.items()))
    arrived = f"{shown.spans} spans, {shown.events} evaluation events"
    yield f"{len(shown.turns)} turns ({outcomes}), {arrived}"
    for name in _METRICS:
        yield f"  {name:<22} {_summary(shown.turns, name)}"
    yield from shown.elsewhere
    if shown.judge == "lexical":
        yield _LEXICAL.rstrip()


def _summary(turns: Sequence[ShownTurn], name: str) -> str:
    values = [turn.scores[name] for turn in turns if name in turn.scores]
    if not values:
        return "no scores"
    return f"mean {sum(values) / len(values):.2f}  lowest {min(values):.2f}  of {len(values)}"


_SHOW: Mapping[Form, Callable[[Shown], str]] = {"text": as_text, "json": as_json}


def run_demo(*, form: Form, options: Mapping[str, Any], write: Callable[[str], object]) -> int:
    """Ask the questions of the demo, and print the received traces with ``write``.

    ``options`` are settings of `Config`. Returns 0 if every question was received with scores, else
    1.
    """
    config = Config.from_env(**{"hold_seconds": _MAX_WAIT, **options})
    elsewhere = Elsewhere()
    with OtlpReceiver() as receiver:
        _ask_all(config, receiver.http_endpoint, elsewhere)
        told = (*elsewhere.exported(), *elsewhere.failures())
        shown = collect(receiver, judge=config.judge, elsewhere=told)
    write(_SHOW[form](shown))
    return 0 if shown.is_complete else 1


def _ask_all(config: Config, receiver: str, elsewhere: Elsewhere) -> None:
    traces, metrics, logs = (
        [make(endpoint=f"{receiver}/v1/{signal}"), *elsewhere.exporters(signal)]
        for signal, make in _EXPORTERS.items()
    )
    providers = Providers.exporting(
        traces=traces, metrics=metrics, logs=logs, service="rag-eval-otel-demo"
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
    handle.shutdown(_MAX_WAIT)
    providers.shutdown()


_EXPORTERS: Mapping[Signal, Any] = {
    "traces": OTLPSpanExporter,
    "metrics": OTLPMetricExporter,
    "logs": OTLPLogExporter,
}


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

    def exporters(self, signal: Signal) -> Iterator[Any]:
        """Yield the exporters of ``signal`` whose endpoint accepts exports."""
        answer = self._answers.get(signal)
        if answer is None or answer.verdict != "ok":
            return
        for exporter in exporters(signal):
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
                yield f"Also exported to {_scheme(good[0])}{server}: {names}"

    def failures(self) -> Iterator[str]:
        """Yield what was not exported, with the reason."""
        for found in from_answers([*self._answers.values()]):
            yield f"Not exported: {found.seen}\n  {found.cause.fix}"
        for signal, results in self._results.items():
            if not all(results):
                yield f"Not exported: {signal} ({results.count(False)} exports failed)"


def _scheme(answer: Answer) -> str:
    return f"{urlsplit(answer.endpoint.url).scheme}://" if "://" in answer.endpoint.url else ""
