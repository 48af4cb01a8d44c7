"""Collect the samples in recorded traces, by the code that reads live traces."""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from rag_eval_otel import semconv
from rag_eval_otel.capture.conventions import MARKS, native
from rag_eval_otel.capture.sample import Outcome, RecentTurns, extract, steps_in, turns_in, why_none
from rag_eval_otel.capture.span import Span
from rag_eval_otel.capture.turns import Turn
from rag_eval_otel.config import MAX_TEXT_CHARS, Config
from rag_eval_otel.environment import first_set
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.evaluation import Measurement
from rag_eval_otel.export.backends.annotation import (
    IDENTIFIER,
    OVERALL,
    annotations_of,
    backend_error,
)
from rag_eval_otel.export.backends.clients import LANGFUSE_KEYS
from rag_eval_otel.export.backends.clients import Langfuse as LangfuseClient
from rag_eval_otel.export.backends.delivery import BACKENDS, Delivery, check_backends
from rag_eval_otel.export.backends.delivery import Outcome as SendOutcome
from rag_eval_otel.live.scorer import sampling_point
from rag_eval_otel.runtime.guard import require
from rag_eval_otel.tools import otlp
from rag_eval_otel.tools.cli.options import require_another_file, say
from rag_eval_otel.tools.read import check_output, writing_samples
from rag_eval_otel.tools.rows import Row, digest, iso, messages_of, moment
from rag_eval_otel.types import Sample, Sampling, SpanRef

_ALWAYS: Final = ("question", "contexts", "answer")  # in each row, even if empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Choose the traces and turns to collect, and say how long their texts can be.

    ``share`` is the fraction of traces, those that live evaluation chooses with this rate. Turns
    that ended before ``since`` or from ``until`` on are left out. A text of ``value_limit``
    characters, the application's ``OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT``, was cut, so its turn is
    skipped as ``truncated``.
    """

    share: float = 1.0
    since: datetime | None = None
    until: datetime | None = None
    label: Literal["any", "fail"] = "any"
    contexts_from_prompt: bool = False
    max_text_chars: int = MAX_TEXT_CHARS
    value_limit: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"the share must be above 0 and at most 1, not {self.share!r}")
        if self.since and self.until and self.since >= self.until:
            raise ConfigError(f"--since {self.since} must be before --until {self.until}")

    @classmethod
    def of(cls, options: argparse.Namespace, config: Config, **further: Any) -> Selection:
        return cls(
            share=options.sample_rate,
            since=options.since,
            until=options.until,
            contexts_from_prompt=config.contexts_from_prompt,
            max_text_chars=config.max_text_chars,
            **further,
        )

    def has_chosen(self, trace_id: str) -> bool:
        """Return True if the trace with this id, in hexadecimal digits, is in the share."""
        return sampling_point(int(trace_id, 16)) < self.share

    def has_turn(self, turn: CollectedTurn) -> bool:
        """Return True if ``turn`` has the label, and ended in the period."""
        is_late = self.until is not None and turn.time >= self.until.timestamp()
        is_early = self.since is not None and turn.time < self.since.timestamp()
        return not (is_early or is_late) and self.label in {"any", turn.label}


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedTurn:
    """The sample of a turn, with ids, end (seconds since the epoch), service, label of its span."""

    sample: Sample
    trace_id: str
    span_id: str
    time: float
    service: str
    label: str | None

    def to_dict(self) -> dict[str, Any]:
        sample = self.sample
        cells = {
            "question": sample.question,
            "contexts": [
                p.text
                if p.id is None and p.score is None
                else {name: value for name, value in asdict(p).items() if value is not None}
                for p in sample.contexts
            ],
            "answer": sample.answer,
            "history": messages_of(sample),
            "query": sample.query,
            "retrieved_ids": list(sample.retrieved_ids),
            "trace_id": self.trace_id,
            "span_id": self.span_id,
            "time": iso(self.time),
            "service": self.service,
            "live_label": self.label,
        }
        return {name: v for name, v in cells.items() if v not in (None, "", []) or name in _ALWAYS}


@dataclass(slots=True)
class Collected:
    """Counts that `collect` fills; ``others`` are samples of another label or period."""

    traces: int = 0
    not_chosen: int = 0
    samples: int = 0
    others: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        parts = [f"{self.samples:,} samples of {self.traces:,} traces"]
        if self.not_chosen:
            parts.append(f"{self.not_chosen:,} traces not in the share")
        if self.others:
            parts.append(f"{self.others:,} samples of another label or period")
        if self.skipped:
            reasons = ", ".join(f"{n:,} {why}" for why, n in self.skipped.most_common())
            parts.append(f"skipped: {reasons}")
        return "; ".join(parts)


def collect(
    messages: Iterable[otlp.Message], selection: Selection, counts: Collected
) -> Iterator[CollectedTurn]:
    recent = RecentTurns()
    for parts in _traces(messages, selection, counts):
        counts.traces += 1
        if sum(len(part.content) for part in parts) > otlp.LONGEST:
            counts.skipped["evicted"] += 1
            continue
        spans = otlp.spans_of(parts, value_limit=selection.value_limit)
        for outcome in read_trace(spans, selection):
            sample, turn = outcome.result, outcome.turn
            if not isinstance(sample, Sample) or turn is None:
                counts.skipped[str(sample)] += 1
                continue
            if recent.is_repeated(sample, turn):
                counts.skipped["duplicate"] += 1
                continue
            collected = _collected(sample, turn, {span.span_id: span for span in spans})
            if not selection.has_turn(collected):
                counts.others += 1
                continue
            counts.samples += 1
            yield collected


def _traces(
    messages: Iterable[otlp.Message], selection: Selection, counts: Collected
) -> Iterable[Sequence[otlp.TracePart]]:
    """Return the parts of each trace in ``selection``, and count the other traces."""
    chosen: defaultdict[str, list[otlp.TracePart]] = defaultdict(list)
    others: set[str] = set()
    for part in chain.from_iterable(map(otlp.parts_of, messages)):
        if selection.has_chosen(part.trace_id):
            chosen[part.trace_id].append(part)
        elif part.signal == "span":
            others.add(part.trace_id)
    counts.not_chosen = counts.traces = len(others)
    return [parts for parts in chosen.values() if any(part.signal == "span" for part in parts)]


def read_trace(spans: Sequence[Span], selection: Selection) -> list[Outcome]:
    """Return a sample or skip reason for each turn in one trace, ordered by start time."""
    steps = steps_in(spans, most=selection.max_text_chars)
    if steps is None:
        return [Outcome(result="ambiguous")]
    turns = turns_in(steps, contexts_from_prompt=selection.contexts_from_prompt)
    if not turns:
        reason = why_none(steps)
        return [] if reason is None else [Outcome(result=reason)]
    outcomes = [Outcome(result=extract(turn), turn=turn) for turn in turns]
    return sorted(outcomes, key=lambda outcome: outcome.turn.anchor.start if outcome.turn else 0)


def _collected(sample: Sample, turn: Turn, spans: Mapping[Any, Span]) -> CollectedTurn:
    line = [spans[step.id] for step in turn.path if step.id in spans]
    scored = next((span for span in line if semconv.EVALUATION_STATUS in span.attributes), None)
    span = scored or spans[turn.anchor.id]
    return CollectedTurn(
        sample=sample,
        trace_id=f"{span.trace_id:032x}",
        span_id=f"{span.span_id:016x}",
        time=(span.end or span.start) / 1e9,
        service=span.service,
        label=span.attributes.get(semconv.EVALUATION_LABEL),
    )


MARK: Final = "backfill"  # metadata of the last score of a turn: what has scored it completely
_PAGE: Final = 100  # traces, observations or scores in a request
_ALL: Final = 10**9  # the highest number of spans to read
_CREDENTIALS: Final = re.compile(r"//[^/@\s]*@")
_QUOTED: Final = 300  # characters of an error of the client
_PATIENCE: Final = 330.0  # seconds; after 300, scores whose span the backend lacks are dropped
Ids: TypeAlias = "tuple[str, str]"  # the ids of its trace and its span, in hexadecimal digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How turns are scored; those with the ``mark``, or live scores of ``versions``, are done."""

    measurement: Measurement
    share: float = 1.0
    versions: Mapping[bool, frozenset[str]]  # by whether a sample has a history
    mark: str

    @classmethod
    def of(cls, measurement: Measurement, share: float) -> Plan:
        judge, by_history = measurement.judge, measurement.definitions_by_history
        revision = getattr(judge, "revision", None)
        model = judge.model if revision is None else f"{judge.model}.{revision}"
        versions = {which: [f"{each}/{model}" for each in of] for which, of in by_history.items()}
        mark = digest(*versions[False])
        found = {history: frozenset([*each, OVERALL]) for history, each in versions.items()}
        return cls(measurement=measurement, share=share, versions=found, mark=mark)


@contextmanager
def _reading(
    backend: str, what: str, variables: Sequence[str], *errors: type[Exception]
) -> Iterator[None]:
    """Raise ``errors`` of a client as `ConfigError` that names ``variables``, the address first."""
    try:
        yield
    except errors as error:
        status = None if isinstance(error.__context__, OSError) else backend_error(error).status
        reason = _CREDENTIALS.sub("//", str(error) or type(error).__name__)[:_QUOTED]
        msg = f"{backend} cannot be reached: {reason}; set {variables[0]} to its address"
        if status is not None:
            msg = f"{backend} answered {status} for {what}; check {' and '.join(variables)}"
        raise ConfigError(msg) from error


class StoppedError(Exception):
    """The backend takes no more scores."""


class Source:
    """A backend with stored traces. The queue and client of live evaluation write the scores."""

    key = ""  # in BACKENDS

    def __init__(self, name: str, since: datetime | None, until: datetime | None) -> None:
        self.name, self.since, self.until = name, since, until
        self.lost = Counter[SendOutcome]()
        """The number of scores that could not be written, by the reason."""
        self._marks: defaultdict[Ids, set[Any]] = defaultdict(set)  # and versions

    def messages(self) -> Iterator[otlp.Message]:
        """Yield the spans of the period as messages of OTLP."""
        raise NotImplementedError

    def left(self, turns: Sequence[CollectedTurn], plan: Plan) -> list[CollectedTurn]:
        """Return those of ``turns`` of which the backend lacks scores that ``plan`` asks for."""
        self._read_scores(turns)
        stored = [(turn, self._marks.get((turn.trace_id, turn.span_id), set())) for turn in turns]
        done = plan.versions
        return [t for t, s in stored if not (plan.mark in s or done[bool(t.sample.history)] <= s)]

    def _read_scores(self, turns: Sequence[CollectedTurn]) -> None:
        """Note the scores of ``turns``, unless `messages` has read them."""

    def _note(self, turn: Ids, name: str, metadata: Mapping[str, Any] | None) -> None:
        cells = metadata or {}
        # Live evaluation writes the overall label last, too, and without a mark.
        is_last = name == OVERALL and MARK not in cells
        self._marks[turn] |= {cells.get("version"), cells.get(MARK), OVERALL if is_last else None}

    def start(self, plan: Plan) -> None:
        """Start the queue to the backend; call this before `write`."""
        self._plan = plan
        connect = partial(BACKENDS.make, self.key)
        self._delivery = Delivery(connect, name=self.key, report=self._count)

    def _count(self, outcome: SendOutcome, number: int) -> None:
        if outcome != "delivered":
            self.lost[outcome] += number

    def write(self, row: Row) -> None:
        """Write the scores of one turn, at the latest in `flush`."""
        evaluation = replace(
            row.evaluation,
            span=SpanRef(trace_id=int(row.trace, 16), span_id=int(row.span, 16)),
            sampling=Sampling(probability=self._plan.share),
        )
        explanations = self._plan.measurement.explanations
        annotations = [*annotations_of(evaluation, explanations=explanations)]
        if annotations and not row.failed:
            metadata = {**annotations[-1].metadata, MARK: self._plan.mark}
            annotations[-1] = replace(annotations[-1], metadata=metadata)
        self._delivery.put(annotations)

    def flush(self) -> None:
        in_time = self._delivery.end_flush(self._delivery.begin_flush(), timeout=_PATIENCE)
        if not in_time or self.lost.keys() & {"rejected", "unauthorized"}:
            why = ", ".join(self.lost) or "no answer"
            raise StoppedError(f"{self.key} takes no more scores ({why})")

    def close(self) -> None:
        self._delivery.close()


class Phoenix(Source):
    """A project in Phoenix, by its name or id."""

    key = "phoenix"

    def messages(self) -> Iterator[otlp.Message]:
        client = require("phoenix.client", "phoenix").Client()
        with self._connection():
            spans = client.spans.get_spans(
                project_identifier=self.name, start_time=self.since, end_time=self.until, limit=_ALL
            )
        yield {"resourceSpans": [_of_phoenix(span, self.name) for span in spans]}

    def _connection(self) -> AbstractContextManager[None]:
        variables = ("PHOENIX_ENDPOINT", "PHOENIX_API_KEY")
        error = require("httpx", "phoenix").HTTPError
        return _reading("Phoenix", f"the project {self.name!r}", variables, error)

    def _read_scores(self, turns: Sequence[CollectedTurn]) -> None:
        traces = {turn.span_id: turn.trace_id for turn in turns}
        client = require("phoenix.client", "phoenix").Client()
        with self._connection():
            annotations = client.spans.get_span_annotations(
                span_ids=list(traces), project_identifier=self.name, timeout=60
            )
        for each in annotations:
            if each.get("identifier") == IDENTIFIER:
                turn = (traces[each["span_id"]], each["span_id"])
                self._note(turn, each["name"], each.get("metadata"))


def _of_phoenix(span: Mapping[str, Any], project: str) -> dict[str, Any]:
    events = [
        {"name": event["name"], "attributes": otlp.as_attributes(event.get("attributes") or {})}
        for event in span.get("events") or ()
    ]
    has_failed = span.get("status_code") == "ERROR"
    return _resource_span(
        service=project,
        attributes=span.get("attributes") or {},
        failure=(span.get("status_message") or "") if has_failed else None,
        traceId=span["context"]["trace_id"],
        spanId=span["context"]["span_id"],
        parentSpanId=span.get("parent_id") or "",
        name=span["name"],
        startTimeUnixNano=_nanoseconds(span["start_time"]),
        endTimeUnixNano=_nanoseconds(span["end_time"]),
        events=events,
    )


_MLFLOW: Final = "mlflow."
_FOREIGN: Final = {mark for mark in MARKS if not mark.startswith(_MLFLOW)} - native.PARTS.keys()


class MLflow(Source):
    """An experiment in MLflow, by its name or id."""

    key = "mlflow"

    def messages(self) -> Iterator[otlp.Message]:
        moments = ((">=", self.since), ("<", self.until))
        limits = [f"timestamp_ms {sign} {int(at.timestamp() * 1000)}" for sign, at in moments if at]
        client = require("mlflow", "mlflow").MlflowClient()
        errors = (
            require("mlflow.exceptions", "mlflow").MlflowException,
            require("requests", "mlflow").RequestException,
        )
        variables = ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN")
        what = f"the experiment {self.name!r}"
        connection = partial(_reading, "MLflow", what, variables, *errors)
        with connection():
            found = client.get_experiment_by_name(self.name)
            if found is None and self.name.isdigit():
                found = client.get_experiment(self.name)
        if found is None:
            raise ConfigError(f"MLflow has no experiment {self.name!r}; check {variables[0]}")
        token = None
        while token != "":
            with connection():
                page = client.search_traces(
                    locations=[found.experiment_id],
                    filter_string=" AND ".join(limits) or None,
                    max_results=_PAGE,
                    page_token=token,
                )
            for trace in page:
                info = trace.info
                trace_id = info.trace_id.rpartition("/")[2].removeprefix("tr-")
                for each in info.assessments or ():
                    self._note((trace_id, each.span_id or ""), each.name, each.metadata)
                service = info.tags.get("service.name") or self.name
                spans = [_of_mlflow(span, trace_id, service) for span in trace.data.spans]
                yield {"resourceSpans": spans}
            token = page.token or ""


def _of_mlflow(span: Any, trace_id: str, service: str) -> dict[str, Any]:
    """Return a span of MLflow in OTLP JSON. MLflow does not keep the scope.

    Attributes of MLflow become JSON, as applications that MLflow traces export them. If another
    instrumentation wrote the span, they are left out: MLflow has added them.
    """
    is_foreign = not _FOREIGN.isdisjoint(span.attributes)
    has_failed = span.status is not None and span.status.status_code.value == "ERROR"
    return _resource_span(
        service=service,
        attributes={
            name: json.dumps(value) if name.startswith(_MLFLOW) else _as_json(value)
            for name, value in span.attributes.items()
            if not (is_foreign and name.startswith(_MLFLOW))
        },
        failure=(span.status.description or "") if has_failed else None,
        traceId=trace_id,
        spanId=span.span_id,
        parentSpanId=span.parent_id or "",
        name=span.name or "",
        startTimeUnixNano=span.start_time_ns,
        endTimeUnixNano=span.end_time_ns,
    )


def _as_json(value: Any) -> Any:
    """Return ``value`` as JSON if MLflow has parsed it from JSON to objects, else unchanged."""
    parts = value if isinstance(value, list) else [value]
    return json.dumps(value) if any(isinstance(one, Mapping | list) for one in parts) else value


class Langfuse(Source):
    """The Langfuse project that the key in ``LANGFUSE_PUBLIC_KEY`` belongs to."""

    key = "langfuse"

    def messages(self) -> Iterator[otlp.Message]:
        require("langfuse.api", "langfuse")
        langfuse = LangfuseClient()
        variables = ("LANGFUSE_BASE_URL", *LANGFUSE_KEYS)
        connection = partial(_reading, "Langfuse", "its traces", variables, *langfuse.errors)

        def pages(read: Any, **options: Any) -> Iterator[Any]:
            cursor = None
            while cursor != "":
                with connection():
                    page = read(limit=_PAGE, cursor=cursor, **options)
                yield from page.data
                cursor = page.meta.cursor or ""

        scores = pages(
            langfuse.client.scores.get_many, fields="subject,details", from_timestamp=self.since
        )
        for score in scores:
            if score.subject is not None and score.subject.kind == "observation":
                turn = (score.subject.trace_id or "", score.subject.id)
                self._note(turn, score.name, score.metadata)
        observations = pages(
            langfuse.client.observations.get_many,
            fields="core,basic,io",
            environment=first_set(["LANGFUSE_TRACING_ENVIRONMENT"]),
            from_start_time=self.since,
            to_start_time=self.until,
        )
        for observation in observations:
            if len(observation.trace_id or "") == 32 and len(observation.id) == 16:  # noqa: PLR2004  # of OpenTelemetry
                yield {"resourceSpans": [_of_langfuse(observation)]}


def _of_langfuse(observation: Any) -> dict[str, Any]:
    """Return an observation in OTLP JSON, with type, input and output as Langfuse shows them."""
    is_root = observation.is_root_observation and observation.parent_observation_id
    attributes: dict[str, Any] = {
        "langfuse.observation.type": observation.type.lower(),
        "langfuse.internal.is_app_root": bool(is_root),
    }
    for part in ("input", "output"):
        text = getattr(observation, part)
        if text is not None:
            text = text if isinstance(text, str) else json.dumps(text)
            attributes[f"langfuse.observation.{part}"] = text
    has_failed = str(getattr(observation.level, "value", observation.level)) == "ERROR"
    return _resource_span(
        service="",
        attributes=attributes,
        failure=(observation.status_message or "") if has_failed else None,
        traceId=observation.trace_id,
        spanId=observation.id,
        parentSpanId=observation.parent_observation_id or "",
        name=observation.name or "",
        startTimeUnixNano=_nanoseconds(observation.start_time),
        endTimeUnixNano=observation.end_time and _nanoseconds(observation.end_time),
    )


def _resource_span(
    *,
    service: str,
    attributes: Mapping[str, Any],
    failure: str | None,
    scope: str = "",
    **fields: Any,
) -> dict[str, Any]:
    """Return a span with its resource in OTLP JSON; ``failure`` is the message of its status."""
    status = {} if failure is None else {"code": 2, "message": failure}
    span = {**fields, "attributes": otlp.as_attributes(attributes), "status": status}
    return {
        "resource": {"attributes": otlp.as_attributes({"service.name": service})},
        "scopeSpans": [{"scope": {"name": scope}, "spans": [span]}],
    }


def _nanoseconds(at: str | datetime) -> int:
    return round((moment(at) or 0.0) * 1e6) * 1000


_KINDS: Final = {kind.key: kind for kind in (Phoenix, MLflow, Langfuse)}


def names_source(text: str) -> bool:
    key, _, name = text.partition(":")
    return key in _KINDS and bool(name) == (key != Langfuse.key)


def open_source(text: str, since: datetime | None, until: datetime | None) -> Source:
    """Return the source that ``text`` names: a backend and, but for Langfuse, a project in it."""
    if not names_source(text):
        msg = f"SOURCE must be phoenix:PROJECT, mlflow:EXPERIMENT or langfuse, not {text}"
        raise ConfigError(msg)
    key, _, name = text.partition(":")
    check_backends([key])
    return _KINDS[key](name, since, until)


def run(options: argparse.Namespace) -> int:
    check_output(options.output)
    if options.output.suffix.lower() not in {".jsonl", ".ndjson"}:
        raise ConfigError(f"{options.output}: samples have lists of contexts; use .jsonl")
    require_another_file(options.output, *map(Path, options.sources), option="--output")
    if options.value_limit is not None and options.value_limit < 1:
        raise ConfigError(f"--value-limit must be 1 or more, not {options.value_limit}")
    label, limit = "fail" if options.failed else "any", options.value_limit
    selection = Selection.of(options, Config.from_env(), label=label, value_limit=limit)
    counts = Collected()
    with writing_samples(options.output) as write:
        for turn in collect(_messages(options), selection, counts):
            write(turn.to_dict())
    say(f"{options.output}: {counts}")
    if not counts.samples:
        say(
            "no sample was found; spans have texts only if the instrumentation captures content"
            " (docs/doctor.md says what the reasons mean)"
        )
    return 0 if counts.samples else 1


def _messages(options: argparse.Namespace) -> Iterator[otlp.Message]:
    for source in options.sources:
        if names_source(source):
            yield from open_source(source, options.since, options.until).messages()
        else:
            yield from otlp.read_messages(Path(source))
