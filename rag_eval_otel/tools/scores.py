"""Read scores or feedback from a file: a table, or OTLP JSON as a collector's exporter writes it.

A *turn* is one question of a user and its answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

from rag_eval_otel import semconv
from rag_eval_otel.capture.otlp_files import SIGNALS, check_size, read_json_messages
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.sampling import Sampling
from rag_eval_otel.tools.files import source_of
from rag_eval_otel.tools.rows import (
    LEAVES,
    FeedbackRow,
    Row,
    ScoreRecord,
    UnscoredTurn,
    number,
    question_id_of,
    sampling_of,
    score_from_cells,
    text,
)
from rag_eval_otel.types import ErrorReason, Evaluation, Passage, Sample, Score

T = TypeVar("T")


def read_scores(path: Path, *, metric: str | None = None) -> Iterator[ScoreRecord]:
    """Yield the scores and the unscored turns in the file ``path``.

    The file is OTLP JSON, or a .jsonl, .csv or .parquet table. If ``metric`` is set, only the
    scores of this metric are yielded. In a table, ``metric`` may also be the name of a column of
    scores that is not recognised as a metric. Raises `ConfigError` if the file cannot be read or,
    at the end, if the file had no scores.
    """
    columns: dict[str, None] = {}
    turns, is_empty = _Turns(), True

    def records(message: Mapping[str, Any]) -> Iterable[ScoreRecord]:
        if _is_otlp(message):
            return _otlp_records(message, turns, metric=metric)
        return _table_row(message, turns.new(), path=path, metric=metric)

    for message in _messages(path):
        columns.update(dict.fromkeys(map(str, message)))
        for record in _checked(path, message, records):
            is_empty = is_empty and not isinstance(record, Row)
            yield record
    if is_empty:
        msg = (
            f"{path} has no scores{f' of {metric}' if metric else ''}; use score, scores, or a"
            f" column named by --metric. Found: {', '.join(columns) or 'nothing'}"
        )
        raise ConfigError(msg)


def read_feedback(path: Path) -> Iterator[FeedbackRow]:
    """Yield the feedback of people in the file ``path``.

    The file is OTLP JSON with the events of `record_feedback`, or a .jsonl, .csv or .parquet table.
    A row of a table has ``score`` (or ``value``, ``rating``, ``feedback`` or ``label``), the ids of
    the turn (``trace_id``, perhaps with ``span_id``; ``turn_id`` or ``id``; or ``row`` with
    ``sample``), and perhaps ``name`` and a time. Raises `ConfigError` if the file cannot be read,
    if a row lacks a score or an id, or if there is no feedback.
    """
    is_empty = True
    for index, message in enumerate(_messages(path)):

        def records(cells: Mapping[str, Any], index: int = index) -> Iterable[FeedbackRow]:
            if _is_otlp(cells):
                return _otlp_feedback(cells)
            return [_feedback_row(cells, f"{path}, row {index}")]

        for feedback in _checked(path, message, records):
            is_empty = False
            yield feedback
    if is_empty:
        msg = f"{path} has no feedback; it needs events of record_feedback(), or rows with a score"
        raise ConfigError(msg)


def plain_turn(turn: str) -> str:
    """Return the id of a turn or trace with the trace id as 32 hexadecimal digits in lower case.

    A trace id may be written as a UUID. Another id is returned unchanged.
    """
    trace, slash, span = turn.strip().partition("/")
    digits = trace.lower().replace("-", "")
    return f"{digits}{slash}{span.lower()}" if _TRACE_ID.fullmatch(digits) else turn


_TRACE_ID: Final = re.compile("[0-9a-f]{32}")


def _messages(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a table, or the OTLP export requests of a JSON file."""
    if path.suffix.lower() == ".json":
        yield from read_json_messages(path)
    else:
        for record in source_of(path).records():
            cells: Any = record.cells  # files hold no samples
            yield cells


def _is_otlp(message: Mapping[str, Any]) -> bool:
    return not message.keys().isdisjoint(SIGNALS)


def _checked(
    path: Path, message: Mapping[str, Any], records: Callable[[Mapping[str, Any]], Iterable[T]]
) -> Iterator[T]:
    """Yield ``records(message)``; raise a `ConfigError` with ``path`` for what is not valid."""
    try:
        yield from records(message)
    except ConfigError as error:
        msg = f"{path}: {error}"
        raise ConfigError(msg) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        msg = f"{path}: is not OTLP JSON: {error!r}"
        raise ConfigError(msg) from error


# --- rows of a table ------------------------------------------------------------------------------

_METRIC_COLUMNS: Final = (".status", ".normalized", ".version", ".score", ".human")
"""The endings of columns such as ``<metric>.status``, from which a metric is recognised."""

_EPOCHS: Final = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""The least number that is a time in a unit finer than seconds, and the units in a second."""

_PROBABILITIES: Final = ("sampling_probability", semconv.EVALUATION_SAMPLING_PROBABILITY)
_RATINGS: Final = ("score", "value", "rating", "feedback", "label")


def _table_row(
    cells: Mapping[str, Any], index: int, *, path: Path, metric: str | None
) -> Iterator[Row]:
    scores = tuple(
        score_from_cells(name, metric_cells(cells, name))
        for name in metric_names(cells, metric=metric)
        if metric in {None, name}
    )
    if not scores:
        return
    sample = sample_in(cells)
    question_id = question_id_of(sample) if sample.question else ""
    yield Row(
        index=index,
        evaluation=Evaluation(
            scores=scores,
            judge=text(cells.get("judge")),
            duration=number(cells.get("duration")) or 0.0,
            sampling=_first(map(sampling_of, map(cells.get, _PROBABILITIES))),
        ),
        sample=sample,
        place=f"row {index}",
        time=moment(cells.get("time", cells.get("timestamp"))),
        service=str(cells.get("service") or ""),
        trace=str(cells.get("trace_id") or ""),
        span=str(cells.get("span_id") or ""),
        turn=_turn(cells, path),
        # The text of the question comes before ``id``, as scores of `evaluate` have no ``id``.
        question_id=_id(cells.get("question_id")) or question_id or _id(cells.get("id")),
    )


def _feedback_row(cells: Mapping[str, Any], place: str) -> FeedbackRow:
    score = _first(map(cells.get, _RATINGS))
    if score is None:
        msg = f"{place} has no {', '.join(_RATINGS[:-1])} or {_RATINGS[-1]}: {', '.join(cells)}"
        raise ConfigError(msg)
    trace, turn = _id(cells.get("trace_id")), _turn(cells, Path())
    if not (trace or turn):
        msg = f"{place} has no trace_id, turn_id, id, or row with sample: {', '.join(cells)}"
        raise ConfigError(msg)
    return FeedbackRow(
        score=score,
        turn=turn,
        trace=trace,
        name=str(cells.get("name") or "user"),
        place=place,
        time=moment(cells.get("time", cells.get("timestamp"))),
    )


def sample_in(cells: Mapping[str, Any]) -> Sample:
    """Return the texts in ``cells``, without texts that cannot be read."""
    question, answer, reference = (
        _first(text(cells.get(name)) for name in names)
        for names in (("question", "user_input"), ("answer", "response"), ("reference",))
    )
    contexts = cells.get("contexts")
    if isinstance(contexts, str):
        try:
            check_size(contexts)
            contexts = json.loads(contexts)
        except (RecursionError, ValueError):
            contexts = [contexts]
    texts = (
        text(item.get("text") if isinstance(item, Mapping) else item)
        for item in (contexts if isinstance(contexts, list) else ())
    )
    return Sample(
        question=question or "",
        contexts=tuple(Passage(text=passage) for passage in texts if passage),
        answer=answer or "",
        reference=reference,
    )


def _turn(cells: Mapping[str, Any], path: Path) -> str:
    """Return the id of the turn in all files, or ``""`` if no column says which turn it is.

    A trace id alone is no id, as a trace may have several turns.
    """
    names = ("trace_id", "span_id", "row", "sample", "turn_id", "id")
    trace, span, row, sample, *ids = (_id(cells.get(name)) for name in names)
    turn = next(filter(None, ids), "")
    if trace and (span or turn):
        return f"{trace}/{span or turn}"
    if turn or not row:
        return turn
    return f"row {row}, {sample}" if sample else f"{path}, row {row}"


def _id(cell: object) -> str:
    return "" if cell is None else str(cell)


def _first(values: Iterable[T | None]) -> T | None:
    return next((value for value in values if value is not None), None)


def metric_names(
    cells: Mapping[str, Any], *, metric: str | None = None, default: str = "score"
) -> tuple[str, ...]:
    """Return the names of the metrics in ``cells``, which has one of three forms.

    - ``{"score": 0.8, "metric": "faithfulness"}``. Without the column ``metric``, the name of the
      metric is ``default``.
    - ``{"scores": {"faithfulness": 0.8}}``. A mapping of the fields of `Score` may replace the
      number.
    - One column for each value: ``{"faithfulness": 0.8, "faithfulness.status": "ok"}``. The
      argument ``metric`` names a column of scores that needs no further columns.
    """
    if isinstance(cells.get("scores"), Mapping):
        return tuple(cells["scores"])
    if "score" in cells:
        return (str(cells.get("metric") or default),)
    stems = [c.removesuffix(end) for c in cells for end in _METRIC_COLUMNS if c.endswith(end)]
    named = [metric] if metric is not None and metric in cells else []
    return tuple(dict.fromkeys([*stems, *named]))


def metric_cells(cells: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the cells of the metric ``name`` in ``cells``, one row of a table.

    The keys of the result are the fields of `Score`.
    """
    scores = cells.get("scores")
    if isinstance(scores, Mapping):
        score = scores.get(name)
        return score if isinstance(score, Mapping) else {"value": score}
    if "score" in cells:  # a label beside a plain score is often the label of a human
        return {**cells, "value": cells["score"], "label": None}
    leaves = {leaf: cells.get(f"{name}.{leaf}") for leaf in LEAVES}
    return {**leaves, "value": cells.get(name, cells.get(f"{name}.score"))}


def moment(value: Any) -> float | None:
    """Convert ``value`` to seconds since the epoch.

    ``value`` is a number, a datetime or a text in ISO 8601. A time without a zone is in UTC. A
    number is in seconds, or, if that would be after the year 5000, in milliseconds, microseconds or
    nanoseconds, as pandas, JavaScript and OTLP write times. Returns None for any other value.
    """
    if isinstance(value, str):
        with suppress(ValueError):  # it may be a number
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()
    seconds = number(value)
    if seconds is None:
        return None
    return seconds / next((unit for least, unit in _EPOCHS if seconds >= least), 1.0)


# --- OTLP JSON ------------------------------------------------------------------------------------

_PREFIX: Final = f"{semconv.METRIC_PREFIX}."
_OFFLINE: Final = f"{semconv.OFFLINE}."
_FIELDS: Final = {
    "value": semconv.LEAF_SCORE,
    "normalized": semconv.LEAF_NORMALIZED_SCORE,
    "label": semconv.LEAF_LABEL,
    "reason": semconv.LEAF_REASON,
    "version": semconv.LEAF_VERSION,
    "explanation": semconv.LEAF_EXPLANATION,
}
_EVENT_FIELDS: Final = {
    "value": semconv.GEN_AI_EVALUATION_SCORE_VALUE,
    "label": semconv.GEN_AI_EVALUATION_SCORE_LABEL,
    "reason": semconv.EVALUATION_REASON,
    "version": semconv.EVALUATION_VERSION,
    "explanation": semconv.GEN_AI_EVALUATION_EXPLANATION,
}
_ERRORS: Final = frozenset(get_args(ErrorReason))
"""The values of the attribute ``reason`` of a score that mean that the score has failed."""


@dataclass(slots=True)
class _Turns:
    """Number the turns in a file; a score may be on a span and also in an event of that span."""

    count: int = 0
    _by_span: dict[tuple[str, str], int] = field(default_factory=dict)
    _read: set[tuple[int, str, str]] = field(default_factory=set)

    def new(self) -> int:
        self.count += 1
        return self.count - 1

    def of_span(self, trace: str, span: str) -> int:
        """Return the number of the turn of a span; a new number if ``span`` is empty or new."""
        if not span:
            return self.new()
        if (trace, span) not in self._by_span:
            self._by_span[trace, span] = self.new()
        return self._by_span[trace, span]

    def is_first(self, turn: int, score: Score) -> bool:
        """Return True at the first call for ``score`` of the turn number ``turn``.

        Two judges may have scored a turn; the versions of their scores differ.
        """
        key = (turn, score.name, score.version)
        is_first = key not in self._read
        self._read.add(key)
        return is_first


def _otlp_records(
    message: Mapping[str, Any], turns: _Turns, *, metric: str | None
) -> Iterator[ScoreRecord]:
    """Yield the scores and the unscored turns in ``message``, each score once."""
    for resource, span in _parts(message, "resourceSpans", "scopeSpans", "spans"):
        yield from _span(span, turns, service=_service(resource), metric=metric)
    for resource, record in _parts(message, "resourceLogs", "scopeLogs", "logRecords"):
        yield from _event(record, turns, service=_service(resource), metric=metric)


def _parts(
    message: Mapping[str, Any], resources: str, scopes: str, name: str
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for resource in message.get(resources, ()):
        for scope in resource.get(scopes, ()):
            for part in scope.get(name, ()):
                yield resource, part


def _service(resource: Mapping[str, Any]) -> str:
    return str(_attributes(resource.get("resource", {})).get("service.name", ""))


def _attributes(holder: Mapping[str, Any]) -> dict[str, Any]:
    return {each["key"]: _plain(each.get("value") or {}) for each in holder.get("attributes", ())}


def _plain(value: Mapping[str, Any]) -> Any:
    kind, content = next(iter(value.items()), ("", None))
    return int(content) if kind == "intValue" and content is not None else content


def _seconds(record: Mapping[str, Any], *names: str) -> float | None:
    nanoseconds = next((moment for name in names if (moment := record.get(name))), None)
    return int(str(nanoseconds)) / 1e9 if nanoseconds else None


def _ids(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ids of a span or log record and of its turn, as fields of `Row`."""
    trace, span = str(record.get("traceId", "")), str(record.get("spanId", ""))
    turn = f"{trace}/{span}" if span else ""
    return {"trace": trace, "span": span, "turn": turn, "place": f"trace {trace}"}


def _span(
    span: Mapping[str, Any], turns: _Turns, *, service: str, metric: str | None
) -> Iterator[ScoreRecord]:
    attributes, ids = _attributes(span), _ids(span)
    split = [k.removeprefix(_PREFIX).rpartition(".") for k in attributes if k.startswith(_PREFIX)]
    leaves = (semconv.LEAF_SCORE, semconv.LEAF_REASON)
    names = list(dict.fromkeys(name for name, _, leaf in split if name and leaf in leaves))
    if not names:
        status = text(attributes.get(semconv.EVALUATION_STATUS))
        if status is not None:
            turn_id = f"{ids['trace']}/{ids['span']}"
            yield UnscoredTurn(service=service, status=status, turn=turn_id)
        return
    turn = turns.of_span(ids["trace"], ids["span"])
    for evaluation in _evaluations(names, attributes):
        scores = tuple(
            score
            for score in evaluation.scores
            if metric in {None, score.name} and turns.is_first(turn, score)
        )
        if scores:
            yield Row(
                index=turn,
                evaluation=replace(evaluation, scores=scores),
                sample=Sample(question=text(attributes.get(semconv.QUESTION)) or ""),
                time=_seconds(span, "endTimeUnixNano"),
                service=service,
                **ids,
            )


def _evaluations(names: list[str], attributes: Mapping[str, Any]) -> Iterator[Evaluation]:
    """Yield the scores on a span: those of the judge, and those of a cascade's first judge."""
    plain = [name for name in names if not name.startswith(_OFFLINE)]
    if plain:
        yield Evaluation(
            scores=tuple(score_from_cells(name, _cells(name, attributes)) for name in plain),
            judge=text(attributes.get(semconv.EVALUATION_JUDGE)),
            duration=number(attributes.get(semconv.EVALUATION_DURATION)) or 0.0,
            sampling=sampling_of(attributes.get(semconv.EVALUATION_SAMPLING_PROBABILITY)),
        )
    if len(plain) < len(names):
        scores = tuple(
            score_from_cells(name.removeprefix(_OFFLINE), _cells(name, attributes))
            for name in names
            if name.startswith(_OFFLINE)
        )
        judge = scores[0].version.split("/", 3)[3:]  # as `version_of` writes it
        yield Evaluation(
            scores=scores, judge=judge[0] if judge else None, sampling=Sampling(stage="offline")
        )


def _cells(name: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    cells = {
        field: attributes.get(semconv.metric_attribute(name, leaf))
        for field, leaf in _FIELDS.items()
    }
    has_failed = cells["value"] is None and cells["reason"] in _ERRORS
    return {**cells, "status": "error" if has_failed else None}


def _event(
    record: Mapping[str, Any], turns: _Turns, *, service: str, metric: str | None
) -> Iterator[Row]:
    attributes, ids = _attributes(record), _ids(record)
    name = text(attributes.get(semconv.GEN_AI_EVALUATION_NAME))
    if record.get("eventName") != semconv.EVALUATION_EVENT or name is None:
        return
    if semconv.EVALUATION_ANNOTATOR in attributes:  # feedback of a person is no score
        return
    turn = turns.of_span(ids["trace"], ids["span"])
    cells = {field: attributes.get(key) for field, key in _EVENT_FIELDS.items()}
    cells["status"] = "error" if semconv.ERROR_TYPE in attributes else None
    score = score_from_cells(name, cells)
    sampling = sampling_of(attributes.get(semconv.EVALUATION_SAMPLING_PROBABILITY))
    if metric in {None, name} and turns.is_first(turn, score):
        yield Row(
            index=turn,
            evaluation=Evaluation(
                scores=(score,),
                judge=text(attributes.get(semconv.EVALUATION_JUDGE)),
                sampling=sampling,
            ),
            time=_seconds(record, "timeUnixNano", "observedTimeUnixNano"),
            service=service,
            **ids,
        )


def _otlp_feedback(message: Mapping[str, Any]) -> Iterator[FeedbackRow]:
    """Yield the feedback in events, and in attributes of spans that it reached in time."""
    for _, record in _parts(message, "resourceLogs", "scopeLogs", "logRecords"):
        attributes = _attributes(record)
        if semconv.EVALUATION_ANNOTATOR in attributes:
            name = str(attributes.get(semconv.GEN_AI_EVALUATION_NAME, ""))
            score = attributes.get(semconv.GEN_AI_EVALUATION_SCORE_VALUE)
            yield _feedback(record, name, score=score)
    for _, span in _parts(message, "resourceSpans", "scopeSpans", "spans"):
        for key, value in _attributes(span).items():
            name = key.removeprefix(semconv.FEEDBACK_PREFIX).removesuffix(f".{semconv.LEAF_SCORE}")
            if key == semconv.feedback_attribute(name, semconv.LEAF_SCORE):
                yield _feedback(span, name, score=value)


def _feedback(record: Mapping[str, Any], name: str, *, score: object) -> FeedbackRow:
    ids = _ids(record)
    return FeedbackRow(
        score=score,
        turn=ids["turn"],
        trace=ids["trace"],
        name=name,
        place=ids["place"],
        time=_seconds(record, "timeUnixNano", "observedTimeUnixNano", "endTimeUnixNano"),
    )
