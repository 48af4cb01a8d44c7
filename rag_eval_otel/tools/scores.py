"""Read scores from a file: a table, or OTLP JSON of a collector's file exporter."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, get_args

from rag_eval_otel import semconv
from rag_eval_otel.capture.conventions.openinference import SPAN_KIND
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.export.backends.annotation import IDENTIFIER
from rag_eval_otel.tools.otlp import SIGNALS, Message, read_messages
from rag_eval_otel.tools.read import contexts_in, history_in, source_of
from rag_eval_otel.tools.rows import (
    LEAVES,
    VERDICT,
    Row,
    moment,
    number,
    question_id_of,
    sampling_of,
    score_from_cells,
    text,
)
from rag_eval_otel.types import ErrorReason, Evaluation, Passage, Sample, Sampling, Score

MOST_SCORES: Final = 500_000
"""The highest number of scores for a page or a comparison, which keep all in memory."""


def read_scores(path: Path, *, metric: str | None = None, most: float = math.inf) -> Iterator[Row]:
    """Yield the scores and the unscored turns in the file ``path``, OTLP JSON or a table.

    ``metric`` selects the scores of one metric; in a table, it may be the name of any column.
    Raises `ConfigError` if the file cannot be read, has more than ``most`` scores, or has none.
    """
    columns: dict[str, None] = {}
    turns, count = _Turns(), 0
    is_json = path.suffix.lower() == ".json"
    messages: Iterable[Any] = (
        read_messages(path) if is_json else (cells for _, cells in source_of(path).rows())
    )
    for message in messages:
        if count > most:
            raise ConfigError(f"{path} has over {most:,} scores; choose one metric by --metric")
        columns.update(dict.fromkeys(map(str, message)))
        try:
            records: Iterator[Row] = (
                _otlp_records(message, turns, metric=metric)
                if _is_otlp(message)
                else _table_row(message, turns.number(), metric=metric)
            )
            for record in records:
                count += len(record.scores)
                yield record
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path}: is not OTLP JSON: {error!r}") from error
    if not count:
        raise ConfigError(
            f"{path} has no scores{f' of {metric}' if metric else ''}; use score, scores, or a"
            f" column named by --metric. Found: {', '.join(columns) or 'nothing'}"
        )


def _is_otlp(message: Message) -> bool:
    return not message.keys().isdisjoint(SIGNALS)


_METRIC_COLUMNS: Final = (".status", ".normalized", ".version", ".score", ".human")
"""The endings of columns such as ``<metric>.status``, from which a metric is recognised."""

_PROBABILITIES: Final = ("sampling_probability", semconv.EVALUATION_SAMPLING_PROBABILITY)


def _table_row(cells: Message, index: int, *, metric: str | None) -> Iterator[Row]:
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
            sampling=next(filter(None, map(sampling_of, map(cells.get, _PROBABILITIES))), None),
        ),
        sample=sample,
        place=f"row {index}",
        time=moment(cells.get("time", cells.get("timestamp"))),
        service=str(cells.get("service") or ""),
        trace=str(cells.get("trace_id") or ""),
        span=str(cells.get("span_id") or ""),
        stored={} if "score" in cells else {name: text(cells.get(name)) for name in VERDICT},
        # The text of the question comes before ``id``, as scores of `evaluate` have no ``id``.
        question_id=_id(cells.get("question_id")) or question_id or _id(cells.get("id")),
    )


def sample_in(cells: Message) -> Sample:
    contexts: Sequence[Passage] = ()
    with suppress(TypeError, ValueError):
        contexts = contexts_in(cells.get("contexts") or [])
    sample = Sample(
        question=text(cells.get("question")) or "",
        contexts=contexts,
        answer=text(cells.get("answer")) or "",
        reference=text(cells.get("reference")),
        query=text(cells.get("query")),
    )
    with suppress(TypeError, ValueError):
        history: Any = history_in(cells.get("history"))
        sample = replace(sample, history=history)
    return sample


def _id(cell: object) -> str:
    return "" if cell is None else str(cell)


def metric_names(
    cells: Message, *, metric: str | None = None, default: str = "score"
) -> tuple[str, ...]:
    """Return the names of the metrics in ``cells``, which has one of three forms.

    - ``{"score": 0.8, "metric": "faithfulness"}``; ``default`` stands for a missing ``metric``.
    - ``{"scores": {"faithfulness": 0.8}}``, or with the fields of `Score` instead of the number.
    - ``{"faithfulness": 0.8, "faithfulness.status": "ok"}``. The argument ``metric`` names a column
      of scores that needs no further columns.
    """
    if isinstance(cells.get("scores"), Mapping):
        return tuple(cells["scores"])
    if "score" in cells:
        return (str(cells.get("metric") or default),)
    stems = [c.removesuffix(end) for c in cells for end in _METRIC_COLUMNS if c.endswith(end)]
    named = [metric] if metric is not None and metric in cells else []
    return tuple(dict.fromkeys([*stems, *named]))


def metric_cells(cells: Message, name: str) -> Message:
    scores = cells.get("scores")
    if isinstance(scores, Mapping):
        score = scores.get(name)
        if isinstance(score, Mapping) and score.keys().isdisjoint({"value", "status"}):
            msg = f"a score of {name} has neither value nor status: another version wrote the file"
            raise ConfigError(msg)
        return score if isinstance(score, Mapping) else {"value": score}
    if "score" in cells:  # a label beside a plain score is often the label of a human
        return {**cells, "value": cells["score"], "label": None}
    leaves = {leaf: cells.get(f"{name}.{leaf}") for leaf in LEAVES}
    return {**leaves, "value": cells.get(name, cells.get(f"{name}.score"))}


_PREFIX: Final = f"{semconv.METRIC_PREFIX}."
_OFFLINE: Final = f"{semconv.OFFLINE}."
_FIELDS: Final = {
    "value": semconv.LEAF_SCORE,
    "normalized": semconv.LEAF_NORMALIZED_SCORE,
    "label": semconv.LEAF_LABEL,
    "threshold": semconv.LEAF_THRESHOLD,
    "reason": semconv.LEAF_REASON,
    "version": semconv.LEAF_VERSION,
    "explanation": semconv.LEAF_EXPLANATION,
}
_OF_OBJECT: Final = ("name", "score", "label", "explanation")
_EVENT_FIELDS: Final = {
    "value": semconv.GEN_AI_EVALUATION_SCORE_VALUE,
    "normalized": semconv.EVALUATION_NORMALIZED,
    "label": semconv.GEN_AI_EVALUATION_SCORE_LABEL,
    "reason": semconv.EVALUATION_REASON,
    "version": semconv.EVALUATION_VERSION,
    "explanation": semconv.GEN_AI_EVALUATION_EXPLANATION,
}
_VERDICT: Final = {
    "label": semconv.EVALUATION_LABEL,
    "outcome": semconv.EVALUATION_OUTCOME,
    "cause": semconv.EVALUATION_CAUSE,
}
_ERRORS: Final = frozenset(get_args(ErrorReason))
_SPANS: Final = ("resourceSpans", "scopeSpans", "spans")
_LOGS: Final = ("resourceLogs", "scopeLogs", "logRecords")


class _Turns:
    """Numbers the turns of a file by their spans, and recognises scores that occur twice."""

    def __init__(self) -> None:
        self._count = 0
        self._by_span: dict[tuple[str, str], int] = {}
        self._read: set[tuple[int, str, str]] = set()

    def number(self, trace: str = "", span: str = "") -> int:
        """Return the turn number of a span: a new one if the span is new or has no id."""
        known = self._by_span.get((trace, span)) if span else None
        if known is not None:
            return known
        self._by_span[trace, span] = self._count
        self._count += 1
        return self._count - 1

    def is_first(self, turn: int, score: Score) -> bool:
        """Return False if this score was read before, on the span or in an event of the span."""
        key = (turn, score.name, score.version)
        is_first = key not in self._read
        self._read.add(key)
        return is_first


def _otlp_records(message: Message, turns: _Turns, *, metric: str | None) -> Iterator[Row]:
    """Yield the scores and the unscored turns in ``message``, each score once."""
    for is_span, parts in ((True, _parts(message, _SPANS)), (False, _parts(message, _LOGS))):
        for service, part in parts:
            attributes, links = _attributes(part), part.get("links", ())
            is_carrier = attributes.get(SPAN_KIND) == "EVALUATOR" and len(links) == 1
            ids = _ids({**part, **links[0]} if is_carrier else part)
            evaluations = [*(_on_span if is_span else _in_event)(part, attributes)]
            status = text(attributes.get(semconv.EVALUATION_STATUS)) if is_span else None
            if not evaluations and status is not None:
                stored = {"status": status}
                yield Row(index=0, evaluation=Evaluation(scores=()), service=service, stored=stored)
            turn = turns.number(ids["trace"], ids["span"]) if evaluations else 0
            for evaluation in evaluations:
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
                        service=service,
                        stored={name: text(attributes.get(key)) for name, key in _VERDICT.items()},
                        **ids,
                    )


def _parts(message: Message, names: tuple[str, str, str]) -> Iterator[tuple[str, Message]]:
    resources, scopes, parts = names
    for resource in message.get(resources, ()):
        service = str(_attributes(resource.get("resource", {})).get("service.name", ""))
        for scope in resource.get(scopes, ()):
            for part in scope.get(parts, ()):
                yield service, part


def _attributes(holder: Message) -> dict[str, Any]:
    def plain(value: Message) -> Any:
        kind, content = next(iter(value.items()), ("", None))
        return int(content) if kind == "intValue" and content is not None else content

    return {each["key"]: plain(each.get("value") or {}) for each in holder.get("attributes", ())}


def _ids(part: Message) -> dict[str, Any]:
    trace, span = str(part.get("traceId", "")), str(part.get("spanId", ""))
    times = map(part.get, ("endTimeUnixNano", "timeUnixNano", "observedTimeUnixNano"))
    end = next(filter(None, times), None)
    return {
        "trace": trace,
        "span": span,
        "place": f"trace {trace}",
        "time": int(str(end)) / 1e9 if end else None,
    }


def _on_span(_: Message, attributes: Message) -> Iterator[Evaluation]:
    """Yield the judge's evaluation on a span, and the offline one that a cascade made first."""
    split = [k.removeprefix(_PREFIX).rpartition(".") for k in attributes if k.startswith(_PREFIX)]
    leaves = (semconv.LEAF_SCORE, semconv.LEAF_REASON)
    names = dict.fromkeys(name for name, _, leaf in split if name and leaf in leaves)
    objects = _objects(attributes)
    names |= {name: None for name, each in objects.items() if each["value"] is not None}
    judges = (each["judge"] for each in objects.values() if "judge" in each)

    def score(name: str) -> Score:
        known = objects.get(name, {})
        cells = {
            field: attributes.get(semconv.metric_attribute(name, leaf), known.get(field))
            for field, leaf in _FIELDS.items()
        }
        has_failed = cells["value"] is None and cells["reason"] in _ERRORS
        cells["status"] = "error" if has_failed else None
        return score_from_cells(name.removeprefix(_OFFLINE), cells)

    if judged := tuple(score(name) for name in names if not name.startswith(_OFFLINE)):
        yield Evaluation(
            scores=judged,
            judge=text(attributes.get(semconv.EVALUATION_JUDGE)) or text(next(judges, None)),
            duration=number(attributes.get(semconv.EVALUATION_DURATION)) or 0.0,
            sampling=sampling_of(attributes.get(semconv.EVALUATION_SAMPLING_PROBABILITY)),
        )
    if offline := tuple(score(name) for name in names if name.startswith(_OFFLINE)):
        judge = offline[0].version.split("/", 3)[3:]  # after `definition_of`
        yield Evaluation(
            scores=offline, judge=judge[0] if judge else None, sampling=Sampling(stage="offline")
        )


def _objects(attributes: Message) -> dict[str, dict[str, Any]]:
    """Return the fields of this library's objects of OpenInference, by metric."""
    found = dict[str, dict[str, Any]]()
    for key, mark in attributes.items():
        start = key.removesuffix(".identifier")
        if start != key and key.startswith("evaluations.") and mark == IDENTIFIER:
            about: Any = {}
            with suppress(KeyError, TypeError, ValueError):
                about = json.loads(attributes[f"{start}.metadata"])
            cells = {leaf: attributes.get(f"{start}.{leaf}") for leaf in _OF_OBJECT}
            more = about if isinstance(about, dict) else {}
            scores = {"value": cells["score"], "normalized": more.get("normalized_score")}
            found[str(cells["name"])] = {**more, **cells, **scores}
    return found


def _in_event(record: Message, attributes: Message) -> Iterator[Evaluation]:
    """Yield the score in an evaluation event, unless it is the feedback of a person."""
    name = text(attributes.get(semconv.GEN_AI_EVALUATION_NAME))
    is_score = record.get("eventName") == semconv.EVALUATION_EVENT and name not in VERDICT
    if is_score and name is not None and semconv.EVALUATION_ANNOTATOR not in attributes:
        cells = {field: attributes.get(key) for field, key in _EVENT_FIELDS.items()}
        cells["status"] = "error" if semconv.ERROR_TYPE in attributes else None
        sampling = sampling_of(attributes.get(semconv.EVALUATION_SAMPLING_PROBABILITY))
        yield Evaluation(
            scores=(score_from_cells(name.removeprefix(_OFFLINE), cells),),
            judge=text(attributes.get(semconv.EVALUATION_JUDGE)),
            sampling=Sampling(stage="offline") if name.startswith(_OFFLINE) else sampling,
        )
