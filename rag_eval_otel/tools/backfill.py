"""Score turns that a backend or files have stored, and write the scores back, each once."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, Protocol, TypeAlias

from rag_eval_otel.capture.conventions import MARKS, native
from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.environment import first_set
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.evaluation import Measurement, definition_of
from rag_eval_otel.export.backends.annotation import IDENTIFIER, OVERALL, annotations_of
from rag_eval_otel.export.backends.clients import LANGFUSE_KEYS, Langfuse
from rag_eval_otel.export.backends.delivery import BACKENDS, Delivery, Outcome, check_backends
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.judge.tasks import Reply, Task
from rag_eval_otel.judge.usage import is_offline, name_of, scope
from rag_eval_otel.judge.wire import compose
from rag_eval_otel.metrics.base import kinds_of
from rag_eval_otel.runtime.guard import require
from rag_eval_otel.tools.collect import (
    CollectedTurn,
    phoenix_messages,
    reading,
    reading_phoenix,
    resource_span,
)
from rag_eval_otel.tools.dataset import Run
from rag_eval_otel.tools.otlp import Message, messages_in
from rag_eval_otel.tools.read import Dataset
from rag_eval_otel.tools.rows import ORIGIN, Row, digest
from rag_eval_otel.tools.stats import Summary, Totals
from rag_eval_otel.types import Replies, Sampling, SpanRef, Usage

Turn: TypeAlias = "tuple[str, str]"  # the ids of its trace and its span, in hexadecimal digits
Stored: TypeAlias = "Iterator[tuple[Turn, str, Mapping[str, Any]]]"
"""The scores of turns that a source has: the turn, the name of the score, and its metadata."""

MARK: Final = "backfill"  # metadata of the last score of a turn: what has scored it completely


class Source(Protocol):
    """The stored traces of a backend, or of files, and the scores that they have."""

    def messages(self, since: datetime | None, until: datetime | None) -> Iterator[Message]:
        """Yield the spans of the period as messages of OTLP."""

    def stored(self, turns: Sequence[CollectedTurn]) -> Stored:
        """Yield the scores of ``turns``, of which `messages` has yielded the spans."""


@dataclass(frozen=True, kw_only=True)
class Files:
    """Files of a collector's file exporter, and ``output``, the file for the scores."""

    paths: Sequence[Path]
    output: Path

    def messages(self, since: datetime | None, until: datetime | None) -> Iterator[Message]:  # noqa: ARG002  # turns are chosen by their end
        return messages_in(self.paths)

    def stored(self, turns: Sequence[CollectedTurn]) -> Stored:
        for key in map(_key, turns):
            if key in self._marks:
                yield key, OVERALL, {MARK: self._marks[key]}

    @cached_property
    def _marks(self) -> dict[Turn, Any]:
        """The marks in the output. The part of a line that a killed run has begun is removed."""
        content = self.output.read_bytes() if self.output.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            self.output.write_bytes(whole)
        try:
            rows = [json.loads(line) for line in whole.splitlines()]
            return {(row["trace_id"], row["span_id"]): row.get(MARK) for row in rows}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            msg = f"{self.output} has no scores of this command, so none are added: {error!r}"
            raise ConfigError(msg) from error


def _key(turn: CollectedTurn) -> Turn:
    return turn.trace_id, turn.span_id


@dataclass(frozen=True, slots=True)
class Phoenix:
    """A project in Phoenix, by its name or id."""

    project: str

    def messages(self, since: datetime | None, until: datetime | None) -> Iterator[Message]:
        return phoenix_messages(self.project, since=since, until=until)

    def stored(self, turns: Sequence[CollectedTurn]) -> Stored:
        spans = {turn.span_id: _key(turn) for turn in turns}
        client = require("phoenix.client", "phoenix").Client()
        with reading_phoenix(self.project):
            annotations = client.spans.get_span_annotations(
                span_ids=list(spans), project_identifier=self.project, timeout=60
            )
        for each in annotations:
            if each.get("identifier") == IDENTIFIER:
                yield spans[each["span_id"]], each["name"], each.get("metadata") or {}


_MLFLOW: Final = "mlflow."
_FOREIGN: Final = {mark for mark in MARKS if not mark.startswith(_MLFLOW)} - native.PARTS.keys()
_PAGE: Final = 100  # traces, observations or scores in a request


@dataclass(frozen=True, slots=True)
class MLflow:
    """An experiment in MLflow, by its name or id."""

    experiment: str
    _scores: dict[Turn, list[Any]] = field(default_factory=lambda: defaultdict(list))

    def messages(self, since: datetime | None, until: datetime | None) -> Iterator[Message]:
        moments = ((">=", since), ("<", until))
        limits = [f"timestamp_ms {sign} {int(at.timestamp() * 1000)}" for sign, at in moments if at]
        client = require("mlflow", "mlflow").MlflowClient()
        with self._reading():
            source = client.get_experiment_by_name(self.experiment)
            if source is None and self.experiment.isdigit():
                source = client.get_experiment(self.experiment)
        if source is None:
            raise ConfigError(
                f"MLflow has no experiment {self.experiment!r}; check MLFLOW_TRACKING_URI"
            )
        token = None
        while token != "":
            with self._reading():
                page = client.search_traces(
                    locations=[source.experiment_id],
                    filter_string=" AND ".join(limits) or None,
                    max_results=_PAGE,
                    page_token=token,
                )
            for trace in page:
                trace_id = trace.info.trace_id.rpartition("/")[2].removeprefix("tr-")
                for each in trace.info.assessments or ():
                    self._scores[trace_id, each.span_id or ""].append(each)
                service = trace.info.tags.get("service.name") or self.experiment
                yield {
                    "resourceSpans": [_of_mlflow(s, trace_id, service) for s in trace.data.spans]
                }
            token = page.token or ""

    def stored(self, turns: Sequence[CollectedTurn]) -> Stored:
        for key in map(_key, turns):
            for each in self._scores.get(key, ()):
                yield key, each.name, each.metadata or {}

    def _reading(self) -> AbstractContextManager[None]:
        variables = ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN")
        error = require("mlflow.exceptions", "mlflow").MlflowException
        other = require("requests", "mlflow").RequestException
        return reading("MLflow", f"the experiment {self.experiment!r}", variables, error, other)


def _of_mlflow(span: Any, trace_id: str, service: str) -> dict[str, Any]:
    """Return a span of MLflow in OTLP JSON. MLflow does not keep the scope.

    MLflow adds attributes of its own to the spans of other instrumentations; they are left out. An
    application that MLflow traces exports attributes of MLflow as JSON.
    """
    is_foreign = not _FOREIGN.isdisjoint(span.attributes)
    has_failed = span.status is not None and span.status.status_code.value == "ERROR"
    return resource_span(
        service=service,
        attributes={
            name: json.dumps(value) if name.startswith(_MLFLOW) else _text_of(value)
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


def _text_of(value: Any) -> Any:
    """Return the JSON of which MLflow has made the object ``value``; other values as they are."""
    parts = value if isinstance(value, list) else [value]
    return json.dumps(value) if any(isinstance(one, Mapping | list) for one in parts) else value


_CUT: Final = 200  # characters after which Langfuse cuts values of metadata that are not asked for
_ASKED: Final = 6_000  # the most characters of names of metadata in the address of a request
_IDS: Final = re.compile("[0-9a-f]{32}/[0-9a-f]{16}").fullmatch
_MESSAGES: Final = ("gen_ai.input.messages", "gen_ai.output.messages")
_TOOL_TEXTS: Final = ("gen_ai.tool.call.arguments", "gen_ai.tool.call.result")
_OWN_TEXTS: Final = ("langfuse.observation.input", "langfuse.observation.output")
_TEXTS: Final[Mapping[str, tuple[str, str]]] = {  # by a mark of the instrumentation
    "traceloop.span.kind": ("traceloop.entity.input", "traceloop.entity.output"),
    "openinference.span.kind": ("input.value", "output.value"),
    "gen_ai.operation.name": _MESSAGES,
}
_NOT_KEPT: Final = "openinference.instrumentation.llama_index"  # its messages


class LangfuseProject:
    """The Langfuse project of the keys."""

    def __init__(self) -> None:
        require("langfuse.api", "langfuse")
        self._langfuse = Langfuse()
        self._since: datetime | None = None
        self._scores: dict[Turn, list[Any]] | None = None

    def messages(self, since: datetime | None, until: datetime | None) -> Iterator[Message]:
        self._since = since
        asked = {"attributes", "resourceAttributes", "scope"}
        cursor = None
        while cursor != "":
            with self._reading():
                page = self._langfuse.client.observations.get_many(
                    fields="core,basic,io,metadata",
                    expand_metadata=",".join(sorted(asked)),
                    limit=_PAGE,
                    cursor=cursor,
                    environment=first_set(["LANGFUSE_TRACING_ENVIRONMENT"]),
                    from_start_time=since,
                    to_start_time=until,
                )
            cut = set().union(*map(_cut_in, page.data)) - asked
            if cut and len(",".join(asked | cut)) < _ASKED:
                asked |= cut
                continue
            spans = [each for each in page.data if _IDS(f"{each.trace_id}/{each.id}")]
            yield {"resourceSpans": [_of_langfuse(each, _cut_in(each) - asked) for each in spans]}
            cursor = page.meta.cursor or ""

    def stored(self, turns: Sequence[CollectedTurn]) -> Stored:
        if self._scores is None:
            self._scores = defaultdict(list)
            cursor = None
            while cursor != "":
                with self._reading():
                    page = self._langfuse.client.scores.get_many(
                        fields="subject,details",
                        limit=_PAGE,
                        cursor=cursor,
                        from_timestamp=self._since,
                    )
                for each in page.data:
                    if each.subject is not None and each.subject.kind == "observation":
                        self._scores[each.subject.trace_id or "", each.subject.id].append(each)
                cursor = page.meta.cursor or ""
        for key in map(_key, turns):
            for each in self._scores.get(key, ()):
                yield key, each.name, each.metadata or {}

    def _reading(self) -> AbstractContextManager[None]:
        variables = ("LANGFUSE_BASE_URL", *LANGFUSE_KEYS)
        return reading("Langfuse", "its traces", variables, *self._langfuse.errors)


def _cut_in(observation: Any) -> set[str]:
    """Return the names of metadata of which Langfuse may have cut a value."""
    items = (observation.metadata or {}).items()
    return {n for n, v in items if isinstance(v, str) and len(v) >= _CUT and n[:10] == "attributes"}


def _object(metadata: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the object ``name`` in ``metadata``: an object, its JSON, or names with a prefix."""
    value = metadata.get(name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    prefix = f"{name}."
    flat = {key[len(prefix) :]: item for key, item in metadata.items() if key.startswith(prefix)}
    return {**flat, **(value if isinstance(value, Mapping) else {})}


def _of_langfuse(observation: Any, cut: Collection[str]) -> dict[str, Any]:
    """Return an observation of Langfuse in OTLP JSON; the metadata in ``cut`` counts as dropped."""
    metadata = {k: v for k, v in (observation.metadata or {}).items() if k not in cut}
    has_failed = str(getattr(observation.level, "value", observation.level)) == "ERROR"
    scope = str(_object(metadata, "scope").get("name", ""))
    start, end = (
        None if at is None else round(at.timestamp() * 1e6) * 1000
        for at in (observation.start_time, observation.end_time)
    )
    return resource_span(
        service=str(_object(metadata, "resourceAttributes").get("service.name", "")),
        scope=scope,
        attributes=_langfuse_attributes(observation, _object(metadata, "attributes")),
        failure=(observation.status_message or "") if has_failed else None,
        traceId=observation.trace_id,
        spanId=observation.id,
        parentSpanId=observation.parent_observation_id or "",
        name=observation.name or "",
        startTimeUnixNano=start,
        endTimeUnixNano=end,
        droppedAttributesCount=int(bool(cut) or scope == _NOT_KEPT),
    )


def _langfuse_attributes(observation: Any, kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that Langfuse has ``kept``, and its input and output as attributes.

    Of model calls by OpenInference, Langfuse keeps the input but not the messages. They are read as
    generations of Langfuse, whose messages are in the input.
    """
    is_call = kept.get("openinference.span.kind") == "LLM"
    attributes = {n: v for n, v in kept.items() if not (is_call and n == "openinference.span.kind")}
    marks = [names for mark, names in _TEXTS.items() if mark in attributes]
    names = marks[0] if marks else _OWN_TEXTS
    if names == _MESSAGES and attributes["gen_ai.operation.name"] == "execute_tool":
        names = _TOOL_TEXTS
    texts = {
        name: text if isinstance(text, str) else json.dumps(text)
        for name, text in zip(names, (observation.input, observation.output), strict=True)
        if text is not None
    }
    own = {
        "langfuse.observation.type": "generation" if is_call else observation.type.lower(),
        "langfuse.internal.is_app_root": bool(
            observation.is_root_observation and observation.parent_observation_id
        ),
    }
    return {**texts, **attributes, **({} if marks else own)}


_SOURCES: Final[Mapping[str, Any]] = {"phoenix": Phoenix, "mlflow": MLflow}


def open_source(words: Sequence[str], output: Path | None) -> tuple[str, Source]:
    """Return the backend of the source that ``words`` name ("": files), and the source."""
    backend, _, name = words[0].partition(":")
    is_backend = len(words) == 1 and ((backend in _SOURCES and name) or words[0] == "langfuse")
    if is_backend and output is None:
        check_backends([backend])
        return backend, _SOURCES[backend](name) if name else LangfuseProject()
    if is_backend or output is None or output.suffix.lower() not in {".jsonl", ".ndjson"}:
        raise ConfigError("scores of files are written to --output FILE.jsonl, others to SOURCE")
    return "", Files(paths=[Path(word) for word in words], output=output)


class Progress:
    """Tells which turns have their scores: those of the metrics, prompts and judge of a run."""

    def __init__(self, measurement: Measurement) -> None:
        judge = measurement.judge
        revision = getattr(judge, "revision", None)
        model = judge.model if revision is None else f"{judge.model}.{revision}"
        define = partial(definition_of, share_requests=measurement.share_requests)
        with scope(prompts=measurement.prompts):
            self._versions = {
                metric.name: f"{define(metric, reasons=measurement.explanations)}/{model}"
                for metric in measurement.metrics
            }
        self.mark = digest(self._versions)

    def done(self, source: Source, turns: Sequence[CollectedTurn]) -> set[Turn]:
        """Return those of ``turns`` with all scores, by this command or by live evaluation."""
        versions: defaultdict[Turn, dict[str, Any]] = defaultdict(dict)
        done: set[Turn] = set()
        for turn, name, metadata in source.stored(turns):
            versions[turn][name] = metadata.get("version")
            if metadata.get(MARK) == self.mark:
                done.add(turn)
        live = {t for t, stored in versions.items() if self._versions.items() <= stored.items()}
        return done | live


@dataclass
class _DryJudge:
    """Answers offline, and counts the requests and tokens that a model would take."""

    model: str
    usage: Usage = field(default_factory=Usage)
    is_offline = True

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        request = compose(tasks)
        replies = await LexicalJudge().reply(tasks)
        said = [each.model_dump_json() for each in replies.parts if isinstance(each, Reply)]
        prompt, reply = len(request.system) + len(request.user_with_schema), sum(map(len, said))
        self.usage += Usage(
            judge_requests=1, prompt_tokens=prompt // 4, completion_tokens=reply // 4
        )
        return replies


_TRIED: Final = 20  # turns by which the usage of all turns is estimated


async def estimated(measurement: Measurement, dataset: Dataset) -> Usage:
    """Return about what the judge takes for ``dataset``: real prompts, with offline replies."""
    judge = _DryJudge(name_of(measurement.judge))
    if is_offline(measurement.judge) or not dataset.count:
        return judge.usage
    dry = replace(measurement, judge=judge, embedder=HashingEmbedder(), budget=None)
    step = -(-dataset.count // _TRIED)
    tried = list(islice(dataset.samples(), 0, None, step))
    for sample in tried:
        await dry.of(sample)
    factor, used = dataset.count / len(tried), judge.usage
    return Usage(
        judge_requests=round(used.judge_requests * factor),
        prompt_tokens=round(used.prompt_tokens * factor),
        completion_tokens=round(used.completion_tokens * factor),
    )


class StoppedError(Exception):
    """The backend takes no more scores."""


class ToFile:
    """Adds the rows whose metrics have all given a result to a file."""

    lost = 0

    def __init__(self, path: Path, mark: str) -> None:
        self._mark = mark
        try:
            self._file: IO[str] = path.open("a", encoding="utf-8", errors="replace")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error}") from error

    def write(self, row: Row) -> None:
        if not row.failed:
            cells = {**row.to_dict(ORIGIN), MARK: self._mark}
            self._file.write(json.dumps(cells, ensure_ascii=False, default=str) + "\n")
            self._file.flush()

    def flush(self) -> None:
        """Do nothing, because `write` has written each row."""

    def close(self) -> None:
        self._file.close()


_PATIENCE: Final = 330.0  # seconds; after 300, scores whose span the backend lacks are dropped


class ToBackend:
    """Sends scores as objects of ``backend``, by the queue and the client of live evaluation."""

    def __init__(self, backend: str, mark: str, measurement: Measurement, rate: float) -> None:
        asking = frozenset(metric.name for metric in measurement.metrics if kinds_of(metric))
        self._annotations_of = partial(
            annotations_of, asking=asking, explanations=measurement.explanations
        )
        self._mark, self._rate, self._backend = mark, rate, backend
        self._ended: Counter[Outcome] = Counter()
        self._delivery = Delivery(partial(BACKENDS.make, backend), name=backend, report=self._count)

    def _count(self, outcome: Outcome, number: int) -> None:
        self._ended[outcome] += number

    @property
    def lost(self) -> int:
        """The number of scores that the backend did not take."""
        return self._ended.total() - self._ended["delivered"]

    def write(self, row: Row) -> None:
        span = SpanRef(trace_id=int(row.trace, 16), span_id=int(row.span, 16), trace_flags=1)
        evaluation = replace(row.evaluation, span=span, sampling=Sampling(probability=self._rate))
        annotations = list(self._annotations_of(evaluation))
        if annotations and not row.failed:
            metadata = {**annotations[-1].metadata, MARK: self._mark}
            annotations[-1] = replace(annotations[-1], metadata=metadata)
        self._delivery.put(annotations)

    def flush(self) -> None:
        in_time = self._delivery.end_flush(self._delivery.begin_flush(), timeout=_PATIENCE)
        if not in_time or self._ended["unauthorized"] or self._ended["internal"]:
            raise StoppedError(f"{self._backend} takes no more scores; run the command again")

    def close(self) -> None:
        self._delivery.close()


_FLUSHED: Final = 100  # turns after which the scoring waits for the backend


async def fill(run: Run, dataset: Dataset, target: ToFile | ToBackend) -> Totals:
    """Score ``dataset`` and write each row to ``target``."""
    summary = Summary(run.names)
    async with aclosing(run.rows(dataset)) as rows:
        async for row in rows:
            summary.add(row.evaluation)
            target.write(row)
            if row.index % _FLUSHED == _FLUSHED - 1:
                await asyncio.to_thread(target.flush)
    return summary.totals(stopped=run.stopped)
