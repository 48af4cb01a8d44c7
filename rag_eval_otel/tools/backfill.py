"""Score turns that a backend or files have stored, and write the scores back, each once."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

from rag_eval_otel.capture.conventions import MARKS, native
from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.environment import first_set
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.evaluation import Measurement, definition_of
from rag_eval_otel.export.backends.annotation import IDENTIFIER, OVERALL, annotations_of
from rag_eval_otel.export.backends.clients import LANGFUSE_KEYS
from rag_eval_otel.export.backends.clients import Langfuse as LangfuseClient
from rag_eval_otel.export.backends.delivery import BACKENDS, Delivery, Outcome, check_backends
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.judge.tasks import Reply, Task
from rag_eval_otel.judge.usage import is_offline, scope
from rag_eval_otel.judge.wire import compose
from rag_eval_otel.metrics.base import kinds_of
from rag_eval_otel.runtime.guard import require
from rag_eval_otel.tools.collect import (
    CollectedTurn,
    nanoseconds,
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
from rag_eval_otel.types import COUNTS, Replies, Sampling, SpanRef, Usage

MARK: Final = "backfill"  # metadata of the last score of a turn: what has scored it completely
_PAGE: Final = 100  # traces, observations, scores or turns in a request
_PATIENCE: Final = 330.0  # seconds; after 300, scores whose span the backend lacks are dropped
Turn: TypeAlias = "tuple[str, str]"  # the ids of its trace and its span, in hexadecimal digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How turns are scored; those with the ``mark``, or live scores of ``versions``, are done."""

    measurement: Measurement
    share: float = 1.0
    versions: frozenset[str] = frozenset()
    mark: str = ""

    @classmethod
    def of(cls, measurement: Measurement, share: float) -> Plan:
        judge, shares = measurement.judge, measurement.share_requests
        revision = getattr(judge, "revision", None)
        model = judge.model if revision is None else f"{judge.model}.{revision}"
        define = partial(definition_of, share_requests=shares, reasons=measurement.explanations)
        with scope(prompts=measurement.prompts):
            versions = [f"{define(metric)}/{model}" for metric in measurement.metrics]
        mark = digest(*versions)
        return cls(measurement=measurement, share=share, versions=frozenset(versions), mark=mark)


class Source:
    """The stored traces of a backend or of files, and where the scores of their turns go."""

    def __init__(self, name: str, since: datetime | None, until: datetime | None) -> None:
        self.name, self.since, self.until = name, since, until
        self.lost = 0
        """The number of scores that could not be written."""
        self._marks: defaultdict[Turn, set[Any]] = defaultdict(set)  # and versions

    def messages(self) -> Iterator[Message]:
        """Yield the spans of the period as messages of OTLP."""
        raise NotImplementedError

    def left(self, turns: Sequence[CollectedTurn], plan: Plan) -> list[CollectedTurn]:
        """Return those of ``turns`` that do not have all scores."""
        self._read_scores(turns)
        stored = [(turn, self._marks.get((turn.trace_id, turn.span_id), set())) for turn in turns]
        return [t for t, s in stored if not (plan.mark in s or plan.versions | {OVERALL} <= s)]

    def _read_scores(self, turns: Sequence[CollectedTurn]) -> None:
        """Note the scores of ``turns``, unless `messages` has read them."""

    def _note(self, turn: Turn, name: str, metadata: Mapping[str, Any] | None) -> None:
        cells = metadata or {}
        # Live evaluation writes the overall label last, too, and without a mark.
        is_last = name == OVERALL and MARK not in cells
        self._marks[turn] |= {cells.get("version"), cells.get(MARK), OVERALL if is_last else None}

    def start(self, plan: Plan) -> None:
        """Get ready for `write`."""

    def write(self, row: Row) -> None:
        """Write the scores of one turn, at the latest in `flush`."""

    def flush(self) -> None: ...

    def close(self) -> None: ...


class Files(Source):
    """Files of a collector. ``output`` gets the turns whose metrics have all given a result."""

    def __init__(self, paths: Sequence[Path], output: Path, *period: datetime | None) -> None:
        super().__init__(str(output), *period)
        self._paths, self._output = paths, output
        self._mark = ""
        self._file: IO[str] | None = None

    def messages(self) -> Iterator[Message]:
        content = self._output.read_bytes() if self._output.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:  # a killed run has begun a line
            self._output.write_bytes(whole)
        try:
            for row in map(json.loads, whole.splitlines()):
                self._note((row["trace_id"], row["span_id"]), "", {MARK: row.get(MARK)})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            msg = f"{self._output} has no scores of stored turns, so none are added: {error!r}"
            raise ConfigError(msg) from error
        return messages_in(self._paths)

    def start(self, plan: Plan) -> None:
        self._mark = plan.mark
        self._file = self._output.open("a", encoding="utf-8", errors="replace")

    def write(self, row: Row) -> None:
        if self._file is not None and not row.failed:
            cells = {**row.to_dict(ORIGIN), MARK: self._mark}
            self._file.write(json.dumps(cells, ensure_ascii=False, default=str) + "\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class StoppedError(Exception):
    """The backend takes no more scores."""


class Backend(Source):
    """A backend; the queue and the client of live evaluation write the scores."""

    key = ""  # in BACKENDS

    def start(self, plan: Plan) -> None:
        self._plan, self._refused = plan, Counter[Outcome]()
        asking = frozenset(m.name for m in plan.measurement.metrics if kinds_of(m))
        self._annotations_of = partial(
            annotations_of, asking=asking, explanations=plan.measurement.explanations
        )
        connect = partial(BACKENDS.make, self.key)
        self._delivery = Delivery(connect, name=self.key, report=self._count)

    def _count(self, outcome: Outcome, number: int) -> None:
        if outcome != "delivered":
            self.lost += number
            self._refused[outcome] += number

    def write(self, row: Row) -> None:
        evaluation = replace(
            row.evaluation,
            span=SpanRef(trace_id=int(row.trace, 16), span_id=int(row.span, 16)),
            sampling=Sampling(probability=self._plan.share),
        )
        annotations = list(self._annotations_of(evaluation))
        if annotations and not row.failed:
            metadata = {**annotations[-1].metadata, MARK: self._plan.mark}
            annotations[-1] = replace(annotations[-1], metadata=metadata)
        self._delivery.put(annotations)

    def flush(self) -> None:
        in_time = self._delivery.end_flush(self._delivery.begin_flush(), timeout=_PATIENCE)
        if not in_time or self._refused.keys() & {"internal", "unauthorized"}:
            why = ", ".join(self._refused) or "no answer"
            raise StoppedError(f"{self.key} takes no more scores ({why})")

    def close(self) -> None:
        self._delivery.close()


class Phoenix(Backend):
    """A project in Phoenix, by its name or id."""

    key = "phoenix"

    def messages(self) -> Iterator[Message]:
        return phoenix_messages(self.name, since=self.since, until=self.until)

    def _read_scores(self, turns: Sequence[CollectedTurn]) -> None:
        traces = {turn.span_id: turn.trace_id for turn in turns}
        client = require("phoenix.client", "phoenix").Client()
        with reading_phoenix(self.name):
            annotations = client.spans.get_span_annotations(
                span_ids=list(traces), project_identifier=self.name, timeout=60
            )
        for each in annotations:
            if each.get("identifier") == IDENTIFIER:
                turn = (traces[each["span_id"]], each["span_id"])
                self._note(turn, each["name"], each.get("metadata"))


_MLFLOW: Final = "mlflow."
_FOREIGN: Final = {mark for mark in MARKS if not mark.startswith(_MLFLOW)} - native.PARTS.keys()


class MLflow(Backend):
    """An experiment in MLflow, by its name or id."""

    key = "mlflow"

    def messages(self) -> Iterator[Message]:
        moments = ((">=", self.since), ("<", self.until))
        limits = [f"timestamp_ms {sign} {int(at.timestamp() * 1000)}" for sign, at in moments if at]
        client = require("mlflow", "mlflow").MlflowClient()
        errors = (
            require("mlflow.exceptions", "mlflow").MlflowException,
            require("requests", "mlflow").RequestException,
        )
        variables = ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN")
        connection = partial(reading, "MLflow", f"the experiment {self.name!r}", variables, *errors)
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


class Langfuse(Backend):
    """The Langfuse project of the keys."""

    key = "langfuse"

    def messages(self) -> Iterator[Message]:
        require("langfuse.api", "langfuse")
        langfuse = LangfuseClient()
        variables = ("LANGFUSE_BASE_URL", *LANGFUSE_KEYS)
        connection = partial(reading, "Langfuse", "its traces", variables, *langfuse.errors)

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
    return resource_span(
        service="",
        attributes=attributes,
        failure=(observation.status_message or "") if has_failed else None,
        traceId=observation.trace_id,
        spanId=observation.id,
        parentSpanId=observation.parent_observation_id or "",
        name=observation.name or "",
        startTimeUnixNano=nanoseconds(observation.start_time),
        endTimeUnixNano=observation.end_time and nanoseconds(observation.end_time),
    )


def open_source(
    words: Sequence[str], output: Path | None, since: datetime | None, until: datetime | None
) -> Source:
    """Return the source that ``words`` name: backend and project, or files, with an ``output``."""
    key, _, name = words[0].partition(":")
    kinds = {kind.key: kind for kind in (Phoenix, MLflow, Langfuse)}
    if len(words) == 1 and key in kinds and bool(name) == (key != Langfuse.key):
        if output is not None:
            raise ConfigError(f"--output is for scores of files; {key} gets its scores itself")
        check_backends([key])
        return kinds[key](name, since, until)
    if output is None or output.suffix.lower() not in {".jsonl", ".ndjson"}:
        raise ConfigError(f"{words[0]} is a file, so name an --output FILE.jsonl for its scores")
    return Files(list(map(Path, words)), output, since, until)


@dataclass
class _DryJudge:
    """Answers offline, and counts the requests and tokens that a model would take."""

    model: str
    usage: Usage = field(default_factory=Usage)
    is_offline = True

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        request, replies = compose(tasks), await LexicalJudge().reply(tasks)
        said = [each.model_dump_json() for each in replies.parts if isinstance(each, Reply)]
        self.usage += Usage(
            judge_requests=1,
            prompt_tokens=(len(request.system) + len(request.user_with_schema)) // 4,
            completion_tokens=sum(map(len, said)) // 4,
        )
        return replies


_TRIED: Final = 20  # turns by which the usage of all turns is estimated


async def estimated(measurement: Measurement, dataset: Dataset) -> Usage:
    """Return about what the judge takes for ``dataset``: real prompts, with offline replies."""
    judge = _DryJudge(measurement.judge.model)
    dry = replace(measurement, judge=judge, embedder=HashingEmbedder(), budget=None)
    tried = list(islice(dataset.samples(), 0, None, -(-dataset.count // _TRIED)))
    for sample in () if is_offline(measurement.judge) else tried:
        await dry.of(sample)
    factor = dataset.count / len(tried)
    return Usage(**{name: round(getattr(judge.usage, name) * factor) for name in COUNTS})


async def fill(run: Run, dataset: Dataset, source: Source) -> Totals:
    """Score ``dataset``, and write the scores to ``source``."""
    summary = Summary(run.names)
    async with aclosing(run.rows(dataset)) as rows:
        async for row in rows:
            summary.add(row.evaluation)
            source.write(row)
            if row.index % _PAGE == _PAGE - 1:
                await asyncio.to_thread(source.flush)
    return summary.totals(stopped=run.stopped)
