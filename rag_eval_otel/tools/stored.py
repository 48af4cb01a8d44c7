"""Read the spans that Phoenix, MLflow and Langfuse have stored, as messages of OTLP.

Backends store spans in forms of their own. Each reader restores the attributes that the application
exported, as far as the backend has kept them, so that the same code reads them as from a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, Final

from rag_eval_otel import semconv
from rag_eval_otel.capture.conventions import MARKS, native
from rag_eval_otel.capture.otlp import Message, as_attributes
from rag_eval_otel.environment import first_set
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.export.backends.annotation import OVERALL, backend_error
from rag_eval_otel.export.backends.clients import (
    LANGFUSE_ADDRESSES,
    LANGFUSE_KEYS,
    langfuse_client,
    langfuse_errors,
)
from rag_eval_otel.runtime.guard import require
from rag_eval_otel.tools.collect import Collected

_ERROR: Final = "ERROR"
_IS_TRACE_ID: Final = re.compile(r"[0-9a-f]{32}").fullmatch
_IS_SPAN_ID: Final = re.compile(r"[0-9a-f]{16}").fullmatch
_CREDENTIALS: Final = re.compile(r"//[^/@\s]*@")
_QUOTED: Final = 300  # characters of an error of a client


@contextmanager
def _reading(
    backend: str, what: str, variables: Sequence[str], errors: tuple[type[Exception], ...]
) -> Iterator[None]:
    """Raise ``errors`` of the client of ``backend`` as `ConfigError`.

    The message says that ``what`` could not be read, and names ``variables``, of which the first
    has the address of the backend.
    """
    try:
        yield
    except errors as error:
        status = None if isinstance(error.__context__, OSError) else backend_error(error).status
        reason = _CREDENTIALS.sub("//", str(error) or type(error).__name__)[:_QUOTED]
        msg = f"{backend} cannot be reached: {reason}; set {variables[0]} to its address"
        if status is not None:
            named = ", ".join(variables[:-1]) + f" and {variables[-1]}"
            msg = f"{backend} answered {status} for {what}; check {named}"
        raise ConfigError(msg) from error


def _resource(
    *,
    trace: str,
    span: str,
    parent: str | None,
    name: str | None,
    start: int,
    end: int | None,
    failure: str | None,
    attributes: Mapping[str, Any],
    events: Iterable[tuple[str, Mapping[str, Any] | None]] = (),
    service: str,
    scope: str = "",
) -> dict[str, Any]:
    """Return a span and its resource in OTLP JSON.

    ``start`` and ``end`` are in nanoseconds since the epoch. ``failure`` is the message of the
    status, which may be empty; None if the span has not failed.
    """
    content = {
        "traceId": trace,
        "spanId": span,
        "parentSpanId": parent or "",
        "name": name or "",
        "startTimeUnixNano": start,
        "endTimeUnixNano": end,
        "attributes": as_attributes(attributes),
        "events": [
            {"name": event, "attributes": as_attributes(values or {})} for event, values in events
        ],
        "status": {} if failure is None else {"code": 2, "message": failure},
    }
    return {
        "resource": {"attributes": as_attributes({"service.name": service})},
        "scopeSpans": [{"scope": {"name": scope}, "spans": [content]}],
    }


def _nanoseconds(moment: datetime) -> int:
    """Return the nanoseconds from the epoch to ``moment``."""
    since = moment - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000


# --- Phoenix --------------------------------------------------------------------------------------

_ALL: Final = 10**9  # the highest number of spans to read


def phoenix_messages(
    project: str, *, since: datetime | None = None, until: datetime | None = None
) -> Iterator[Message]:
    """Yield one message with the spans of ``project``, a name or id, in a Phoenix server.

    Only spans that started at ``since`` or later and before ``until`` are read. The client of the
    package ``arize-phoenix-client`` reads the address and the key from variables such as
    ``PHOENIX_ENDPOINT`` and ``PHOENIX_API_KEY``. Raises `ConfigError` if the server cannot be
    reached or has no such project, and `MissingDependencyError` without the package.
    """
    client = require("phoenix.client", "phoenix").Client()
    errors = (require("httpx", "phoenix").HTTPError,)
    variables = ("PHOENIX_ENDPOINT", "PHOENIX_API_KEY")
    with _reading("Phoenix", f"the project {project!r}", variables, errors):
        spans = client.spans.get_spans(
            project_identifier=project, start_time=since, end_time=until, limit=_ALL
        )
    yield {"resourceSpans": [_of_phoenix(span, project) for span in spans]}


def _of_phoenix(span: Mapping[str, Any], project: str) -> dict[str, Any]:
    """Return a span of Phoenix in OTLP JSON. Phoenix does not keep the scope and the resource."""
    start, end = (
        datetime.fromisoformat(span[name].replace("Z", "+00:00"))
        for name in ("start_time", "end_time")
    )
    has_failed = span.get("status_code") == _ERROR
    return _resource(
        trace=span["context"]["trace_id"],
        span=span["context"]["span_id"],
        parent=span.get("parent_id"),
        name=span["name"],
        start=_nanoseconds(start),
        end=_nanoseconds(end),
        failure=(span.get("status_message") or "") if has_failed else None,
        attributes=span.get("attributes") or {},
        events=((event["name"], event.get("attributes")) for event in span.get("events") or ()),
        service=project,
    )


# --- MLflow ---------------------------------------------------------------------------------------

_TRACES: Final = 100  # in a request
_MLFLOW: Final = "mlflow."
_FOREIGN: Final = {mark for mark in MARKS if not mark.startswith(_MLFLOW)} - native.PARTS.keys()


def mlflow_messages(
    experiment: str, *, since: datetime | None = None, until: datetime | None = None
) -> Iterator[Message]:
    """Yield a message with the spans of each trace of ``experiment``, a name or id, in MLflow.

    Only traces that started at ``since`` or later and before ``until`` are read. The client of the
    package ``mlflow`` reads the address and the key from variables such as
    ``MLFLOW_TRACKING_URI`` and ``MLFLOW_TRACKING_TOKEN``. Raises `ConfigError` if the server cannot
    be reached or has no such experiment, and `MissingDependencyError` without the package.
    """
    module = require("mlflow", "mlflow")
    retries = require("mlflow.environment_variables", "mlflow").MLFLOW_HTTP_REQUEST_MAX_RETRIES
    if not retries.is_set():
        retries.set(2)  # by default, the client tries for four minutes
    errors = (
        require("mlflow.exceptions", "mlflow").MlflowException,
        require("requests", "mlflow").RequestException,
    )
    variables = ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN")
    moments = ((">=", since), ("<", until))
    limits = [f"timestamp_ms {sign} {_nanoseconds(at) // 10**6}" for sign, at in moments if at]
    token = None
    with _reading("MLflow", f"the experiment {experiment!r}", variables, errors):
        client = module.MlflowClient()
        source = client.get_experiment_by_name(experiment)
        if source is None and experiment.isdigit():
            source = client.get_experiment(experiment)
    if source is None:
        msg = f"MLflow has no experiment {experiment!r}; check its name and {variables[0]}"
        raise ConfigError(msg)
    while token != "":
        with _reading("MLflow", f"the experiment {experiment!r}", variables, errors):
            page = client.search_traces(
                locations=[source.experiment_id],
                filter_string=" AND ".join(limits) or None,
                max_results=_TRACES,
                page_token=token,
            )
        for trace in page:
            yield {
                "resourceSpans": [_of_mlflow(span, trace, experiment) for span in trace.data.spans]
            }
        token = page.token or ""


def _of_mlflow(span: Any, trace: Any, experiment: str) -> dict[str, Any]:
    """Return a span of MLflow in OTLP JSON. MLflow does not keep the scope.

    MLflow adds attributes of its own to the spans of other instrumentations; they are left out. An
    application that MLflow traces exports attributes of MLflow as JSON.
    """
    is_foreign = not _FOREIGN.isdisjoint(span.attributes)
    attributes = {
        name: json.dumps(value) if name.startswith(_MLFLOW) else _text_of(value)
        for name, value in span.attributes.items()
        if not (is_foreign and name.startswith(_MLFLOW))
    }
    status = span.status
    has_failed = status is not None and status.status_code.value == _ERROR
    return _resource(
        trace=trace.info.trace_id.rpartition("/")[2].removeprefix("tr-"),
        span=span.span_id,
        parent=span.parent_id,
        name=span.name,
        start=span.start_time_ns,
        end=span.end_time_ns,
        failure=(status.description or "") if has_failed else None,
        attributes=attributes,
        events=((event.name, event.attributes) for event in span.events),
        service=trace.info.tags.get("service.name") or experiment,
    )


def _text_of(value: Any) -> Any:
    """Return the text of which MLflow has made the object ``value``; other values as they are."""
    parts = value if isinstance(value, list) else [value]
    is_object = any(isinstance(part, Mapping | list) for part in parts)
    return json.dumps(value) if is_object else value


# --- Langfuse -------------------------------------------------------------------------------------

_OBSERVATIONS: Final = 100  # in a request; their texts may be long
_SCORES: Final = 100  # in a request, the most that Langfuse allows
_CUT: Final = 200  # characters after which Langfuse cuts values of metadata that are not asked for
_ASKED: Final = 6_000  # the most characters of names of metadata in the address of a request
_LANGFUSE: Final = (LANGFUSE_ADDRESSES[0], *LANGFUSE_KEYS)
_MESSAGES: Final = ("gen_ai.input.messages", "gen_ai.output.messages")
_NOT_KEPT: Final = frozenset({"openinference.instrumentation.llama_index"})
_MODEL_CALL: Final = {"openinference.span.kind": "LLM"}
_TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    "traceloop.span.kind": ("traceloop.entity.input", "traceloop.entity.output"),
    "openinference.span.kind": ("input.value", "output.value"),
    "gen_ai.operation.name": _MESSAGES,
}
"""The attributes that Langfuse removes and shows as input and output, by a mark of the others."""
_TOOL_TEXTS: Final = ("gen_ai.tool.call.arguments", "gen_ai.tool.call.result")
_OWN_TEXTS: Final = ("langfuse.observation.input", "langfuse.observation.output")


def langfuse_messages(
    counts: Collected, *, since: datetime | None = None, until: datetime | None = None
) -> Iterator[Message]:
    """Yield messages with the observations of the Langfuse project to which the keys belong.

    Only observations that started at ``since`` or later and before ``until`` are read, and only
    those of the environment ``LANGFUSE_TRACING_ENVIRONMENT``, if it is set. The address and the
    keys are read from ``LANGFUSE_BASE_URL``, ``LANGFUSE_PUBLIC_KEY`` and ``LANGFUSE_SECRET_KEY``.
    Traces that cannot be read are put into ``counts.refused``: ``invalid_id`` if an id is not that
    of an OpenTelemetry span, ``truncated`` if Langfuse has cut an attribute, and ``not_kept`` if
    Langfuse does not keep the messages of their instrumentation.
    Raises `ConfigError` if Langfuse does not answer, and `MissingDependencyError` without the
    package ``langfuse``.
    """
    require("langfuse.api", "langfuse")
    client, errors = langfuse_client(), langfuse_errors()
    labels: dict[tuple[str, str], str] = {}
    asked = {"attributes", "resourceAttributes", "scope"}
    cursor: str | None = None
    while cursor != "":
        with _reading("Langfuse", "its observations", _LANGFUSE, errors):
            if cursor is None:
                labels = dict(_labels(client, since))
            page = client.observations.get_many(
                fields="core,basic,io,metadata",
                expand_metadata=",".join(sorted(asked)),
                limit=_OBSERVATIONS,
                cursor=cursor,
                environment=first_set(["LANGFUSE_TRACING_ENVIRONMENT"]),
                from_start_time=since,
                to_start_time=until,
            )
        cut = _cut_in(page.data) - asked
        if cut and len(",".join(asked | cut)) < _ASKED:
            asked |= cut
            continue
        kept = []
        for observation in page.data:
            reason = _refusal(observation, asked)
            if reason:
                counts.refused[observation.trace_id or observation.id] = reason
            else:
                label = labels.get((observation.trace_id, observation.id))
                kept.append(_of_langfuse(observation, label))
        yield {"resourceSpans": kept}
        cursor = page.meta.cursor or ""


def _refusal(observation: Any, asked: AbstractSet[str]) -> str:
    """Return why an observation cannot be read, or an empty text."""
    if not (_IS_TRACE_ID(observation.trace_id or "") and _IS_SPAN_ID(observation.id)):
        return "invalid_id"
    metadata = observation.metadata or {}
    is_cut = isinstance(metadata.get("attributes"), str) and not _object(metadata, "attributes")
    if is_cut or _cut_in([observation]) - asked:
        return "truncated"
    scope = _object(metadata, "scope").get("name")
    return "not_kept" if scope in _NOT_KEPT else ""


def _labels(client: Any, since: datetime | None) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield the ids of traces and spans, and the overall labels in Langfuse."""
    cursor = None
    while cursor != "":
        page = client.scores.get_many(
            name=OVERALL, fields="subject", limit=_SCORES, cursor=cursor, from_timestamp=since
        )
        for score in page.data:
            if score.subject.kind == "observation":
                yield (score.subject.trace_id, score.subject.id), score.value
        cursor = page.meta.cursor or ""


def _cut_in(observations: Iterable[Any]) -> set[str]:
    """Return the names of metadata of which Langfuse may have cut a value."""
    return {
        name
        for observation in observations
        for name, value in (observation.metadata or {}).items()
        if isinstance(value, str) and len(value) >= _CUT and name.startswith("attributes.")
    }


def _object(metadata: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the object ``name`` in ``metadata``: an object, its JSON, or names with a prefix."""
    value = metadata.get(name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    flat = {
        key.removeprefix(f"{name}."): item
        for key, item in metadata.items()
        if key.startswith(f"{name}.")
    }
    return {**flat, **(value if isinstance(value, Mapping) else {})}


def _of_langfuse(observation: Any, label: str | None) -> dict[str, Any]:
    """Return an observation of Langfuse in OTLP JSON, with its overall ``label``."""
    metadata = observation.metadata or {}
    level = getattr(observation.level, "value", observation.level)
    has_failed = str(level) == _ERROR
    attributes = _langfuse_attributes(observation, _object(metadata, "attributes"))
    if label is not None:
        scored = {semconv.EVALUATION_STATUS: "scored", semconv.EVALUATION_LABEL: label}
        attributes = {**scored, **attributes}
    return _resource(
        trace=observation.trace_id,
        span=observation.id,
        parent=observation.parent_observation_id,
        name=observation.name,
        start=_nanoseconds(observation.start_time),
        end=None if observation.end_time is None else _nanoseconds(observation.end_time),
        failure=(observation.status_message or "") if has_failed else None,
        attributes=attributes,
        service=str(_object(metadata, "resourceAttributes").get("service.name", "")),
        scope=str(_object(metadata, "scope").get("name", "")),
    )


def _langfuse_attributes(observation: Any, kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a span: those that Langfuse has ``kept``, its input and its output.

    Of model calls by OpenInference, Langfuse keeps the input but not the messages. They are read as
    generations of Langfuse, whose messages are in the input.
    """
    attributes = {name: value for name, value in kept.items() if value != _MODEL_CALL.get(name)}
    marks = [names for mark, names in _TEXTS.items() if mark in attributes]
    names = marks[0] if marks else _OWN_TEXTS
    if names == _MESSAGES and attributes["gen_ai.operation.name"] == "execute_tool":
        names = _TOOL_TEXTS
    texts = {
        name: text if isinstance(text, str) else json.dumps(text)
        for name, text in zip(names, (observation.input, observation.output), strict=True)
        if text is not None
    }
    if marks:
        return {**texts, **attributes}
    is_call = len(attributes) < len(kept)
    own = {
        "langfuse.observation.type": "generation" if is_call else observation.type.lower(),
        "langfuse.internal.is_app_root": bool(
            observation.is_root_observation and observation.parent_observation_id
        ),
    }
    return {**texts, **attributes, **own}
