"""Read the scores or the feedback in a file: a table, or OTLP JSON from the Collector."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from rag_eval_otel import semconv
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.results.files import source_of
from rag_eval_otel.results.otlp import SIGNALS, Turns, is_otlp, otlp_feedback, otlp_records
from rag_eval_otel.results.rows import (
    FeedbackRow,
    Row,
    ScoreRecord,
    number,
    question_id_of,
    sampling_of,
    score_from_cells,
    text,
)
from rag_eval_otel.types import Evaluation, Passage, Sample

T = TypeVar("T")

_METRIC_LEAVES = (".status", ".normalized", ".version", ".score", ".human")
"""The endings of columns such as ``<metric>.status``, from which a metric is recognised."""

_LEAVES = ("status", "reason", "label", "normalized", "explanation", "version")
_TIMES = ("time", "timestamp")
_EPOCHS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""The least number that is a time in a unit finer than seconds, and the units in a second."""
_PROBABILITIES = ("sampling_probability", semconv.EVALUATION_SAMPLING_PROBABILITY)
_IDS = ("turn_id", "id")
_RATINGS = ("score", "value", "rating", "feedback", "label")
_TRACE_ID = re.compile("[0-9a-f]{32}")
_PARTS = ("trace_id", "span_id", "row", "sample")
_QUESTIONS = ("question", "user_input")
_ANSWERS = ("answer", "response")


def read_scores(
    path: Path, *, metric: str | None = None, stratum: str | None = None
) -> Iterator[ScoreRecord]:
    """Yield the scores and counter points in the file ``path``.

    The file is OTLP JSON, or a .jsonl, .csv or .parquet table. If ``metric`` is set, only the
    scores of this metric are yielded. In a table, ``metric`` may also be the name of a column of
    scores that is not recognised as a metric. ``stratum`` names the column with the stratum of each
    row (a kind of question, such as a route). Raises `ConfigError` if the file cannot be read or,
    at the end, if the file had no scores.
    """
    columns: dict[str, None] = {}
    turns, is_empty = Turns(), True
    for message in _messages(path):
        columns.update(dict.fromkeys(map(str, message)))
        if is_otlp(message):
            found = _checked(partial(otlp_records, message, turns, metric=metric))
        else:
            found = _table_row(message, turns.new(), path=path, metric=metric, stratum=stratum)
        for record in _named(path, found):
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
        found: Iterable[FeedbackRow]
        if is_otlp(message):
            found = _checked(partial(otlp_feedback, message))
        else:
            found = [_feedback_row(message, f"{path}, row {index}")]
        for one in _named(path, found):
            is_empty = False
            yield one
    if is_empty:
        msg = f"{path} has no feedback; it needs events of record_feedback(), or rows with a score"
        raise ConfigError(msg)


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
        time=next((moment(cells[name]) for name in _TIMES if name in cells), None),
    )


def plain_turn(turn: str) -> str:
    """Return the id of a turn or trace with the trace id as 32 hexadecimal digits in lower case.

    A trace id may be written as a UUID. Another id is returned unchanged.
    """
    trace, slash, span = turn.strip().partition("/")
    found = trace.lower().replace("-", "")
    return f"{found}{slash}{span.lower()}" if _TRACE_ID.fullmatch(found) else turn


def _named(path: Path, found: Iterable[T]) -> Iterator[T]:
    """Yield the records in ``found``; name the file in a `ConfigError`."""
    try:
        yield from found
    except ConfigError as error:
        msg = f"{path}: {error}"
        raise ConfigError(msg) from error


def _checked(records: Callable[[], Iterable[T]]) -> Iterator[T]:
    """Yield ``records()``; raise `ConfigError` for what is not OTLP JSON."""
    try:
        yield from records()
    except ConfigError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        msg = f"is not OTLP JSON: {error!r}"
        raise ConfigError(msg) from error


def _messages(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a table, or the OTLP export requests of a JSON file."""
    if path.suffix.lower() == ".json":
        yield from _requests(path)
    else:
        for record in source_of(path).records():
            cells: Any = record.cells  # files hold no samples
            yield cells


def _requests(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the OTLP export requests of a .json file.

    The file contains one request, or one request in each line.
    """
    try:
        requests = _parsed(path.read_text(encoding="utf-8-sig"))
    except (OSError, RecursionError, ValueError) as error:
        msg = f"{path} cannot be read: {error}"
        raise ConfigError(msg) from error
    for request in requests:
        if not (isinstance(request, dict) and is_otlp(request)):
            msg = f"{path}: must be OTLP JSON, an object with {' or '.join(SIGNALS)}"
            raise ConfigError(msg)
        yield request


def _parsed(content: str) -> list[Any]:
    try:
        return [json.loads(content)]
    except ValueError:
        lines = [line for line in content.splitlines() if line.strip()]
        if len(lines) < 2:  # noqa: PLR2004
            raise
        return [json.loads(line) for line in lines]


# --- rows of a table ------------------------------------------------------------------------------


def _table_row(
    cells: Mapping[str, Any],
    index: int,
    *,
    path: Path,
    metric: str | None,
    stratum: str | None,
) -> Iterator[Row]:
    names = metric_names(cells, metric=metric)
    scores = tuple(
        score_from_cells(name, metric_cells(cells, name))
        for name in names
        if metric in {None, name}
    )
    if not scores:
        return
    sample = sample_in(cells)
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
        time=next((moment(cells[name]) for name in _TIMES if name in cells), None),
        service=str(cells.get("service") or ""),
        stratum=None if stratum is None else str(cells.get(stratum)),
        trace=str(cells.get("trace_id") or ""),
        span=str(cells.get("span_id") or ""),
        turn=_turn(cells, path),
        question_id=_question_id(cells, sample),
    )


def _question_id(cells: Mapping[str, Any], sample: Sample) -> str:
    """Return what identifies the question of a row in all runs, or ``""`` if no column says it.

    The text of the question comes before ``id``, as scores of `evaluate` have no ``id``.
    """
    own = question_id_of(sample) if sample.question else ""
    return _id(cells.get("question_id")) or own or _id(cells.get("id"))


def sample_in(cells: Mapping[str, Any]) -> Sample:
    """Return the texts in ``cells``, without texts that cannot be read."""
    question, answer, reference = (
        next((found for name in names if (found := text(cells.get(name)))), None)
        for names in (_QUESTIONS, _ANSWERS, ("reference",))
    )
    return Sample(
        question=question or "",
        contexts=_contexts(cells.get("contexts")),
        answer=answer or "",
        reference=reference,
    )


def _contexts(cell: object) -> tuple[Passage, ...]:
    """Return the contexts in ``cell``: texts or mappings with a text, in a list or as JSON."""
    if isinstance(cell, str):
        try:
            cell = json.loads(cell)
        except (RecursionError, ValueError):
            cell = [cell]
    items = [
        one.get("text") if isinstance(one, Mapping) else one
        for one in (cell if isinstance(cell, list) else ())
    ]
    return tuple(Passage(text=found) for one in items if (found := text(one)))


def _turn(cells: Mapping[str, Any], path: Path) -> str:
    """Return the id of the turn in all files, or ``""`` if no column says which turn it is.

    A trace may have several turns, so a trace id alone is no id of a turn. The number of a row is
    one within its file, and in all files together with the digest of the sample.
    """
    trace, span, row, sample = (_id(cells.get(name)) for name in _PARTS)
    turn = next((one for one in map(_id, map(cells.get, _IDS)) if one), "")
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
    """Return the names of the metrics in ``cells``, one row of a table.

    A row has one of these forms:

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
    return _column_names(tuple(cells), metric)


@lru_cache(maxsize=64)
def _column_names(columns: tuple[str, ...], metric: str | None) -> tuple[str, ...]:
    stems = [c.removesuffix(leaf) for c in columns for leaf in _METRIC_LEAVES if c.endswith(leaf)]
    return tuple(dict.fromkeys([*stems, *([metric] if metric in columns else [])]))


def metric_cells(cells: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the cells of the metric ``name`` in ``cells``, one row of a table.

    The keys of the result are the fields of `Score`.
    """
    scores = cells.get("scores")
    if isinstance(scores, Mapping):
        found = scores.get(name)
        return found if isinstance(found, Mapping) else {"value": found}
    if "score" in cells:  # a label beside a plain score is often the label of a human
        return {**cells, "value": cells["score"], "label": None}
    leaves = {leaf: cells.get(f"{name}.{leaf}") for leaf in _LEAVES}
    return {**leaves, "value": cells.get(name, cells.get(f"{name}.score"))}


def moment(value: Any) -> float | None:
    """Convert ``value`` to seconds since the epoch.

    ``value`` is a number, a datetime or a text in ISO 8601. A time without a zone is in UTC. A
    number is in seconds, or, if that would be after the year 5000, in milliseconds, microseconds or
    nanoseconds, as pandas, JavaScript and OTLP write times. Returns None for any other value.
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            return _epoch_seconds(number(value))
    if isinstance(value, datetime):
        zoned = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        return zoned.timestamp()
    return _epoch_seconds(number(value))


def _epoch_seconds(value: float | None) -> float | None:
    if value is None:
        return None
    return value / next((unit for least, unit in _EPOCHS if value >= least), 1.0)
