"""Read scores and human labels from the rows of a table, or join scores with people's feedback."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics import METRICS
from rag_eval_otel.tools.rows import FeedbackRow, Row, UnscoredTurn
from rag_eval_otel.tools.scores import metric_cells, metric_names
from rag_eval_otel.types import Score

Status: TypeAlias = Literal["ok", "missing", "undefined", "error"]
Cells: TypeAlias = Mapping[str, Any]

_WORDS: Mapping[str, float] = {
    **dict.fromkeys(("pass", "true", "yes"), 1.0),
    **dict.fromkeys(("fail", "false", "no"), 0.0),
}
_FAILED: Mapping[object, Status] = {"undefined": "undefined", "error": "error"}
_EVALUATED = frozenset({"sample", "judge"})  # columns of a file that `evaluate` wrote


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The score and the human label of one row, ``where``, for one metric."""

    score: float | None
    label: float | None
    status: Status = "ok"
    where: str = field(default="", compare=False)


def observe(
    score: object, label: object, *, where: str, status: object = None, about: str = ""
) -> Observation:
    """Read a score and a human label, ``about`` a metric, from two cells of the row ``where``."""
    place = f"{where}, {about}" if about else where
    number = None if status in _FAILED else _number(score, where=f"{place}: the score")
    known: Status = "ok" if number is not None else _FAILED.get(status, "missing")
    read = _label(label, where=place)
    return Observation(score=number, label=read, status=known, where=where)


def observations(
    rows: Iterable[tuple[str, Cells]], *, metric: str | None = None
) -> dict[str, list[Observation]]:
    """Read the scores and human labels in ``rows``, for each metric or for ``metric`` only.

    ``rows`` has pairs of a row's name and its cells, in one of the forms of ``docs/calibrate.md``.
    Raises `ConfigError` if a cell cannot be read, and for rows without a metric or a label.
    """
    places = list(rows)
    names = dict.fromkeys(name for where, row in places for name in _names(row, metric, where))
    if not places:
        raise ConfigError("there are no rows")
    if not names or metric not in {None, *names}:
        columns = dict.fromkeys(str(column) for _, row in places for column in row)
        raise ConfigError(
            f"no scores of {metric or 'any metric'} found; use score and label, scores and labels,"
            " or columns <metric> and <metric>.human; or name the column of the scores (--metric)."
            f" Metrics found: {', '.join(names) or 'none'}."
            f" Columns found: {', '.join(columns)}"
        )
    observed: dict[str, list[Observation]] = {}
    for name in [metric] if metric else names:
        observed[name] = []
        for where, row in places:
            # A row with one score belongs to one metric, all others to every metric.
            if "score" not in row or name in metric_names(row, default=metric or "score"):
                cells, label = metric_cells(row, name), _label_cell(row, name, where)
                status = cells.get("status")
                value = cells.get("value")
                observed[name].append(observe(value, label, where=where, status=status, about=name))
    if all(each.label is None for seen in observed.values() for each in seen):
        raise ConfigError(
            "no row has a human label: add label (beside score), labels, human or <metric>.human;"
            " the label that evaluate writes is the metric's own"
        )
    return observed


def _names(row: Cells, metric: str | None, where: str) -> Iterable[str]:
    """Return the names of the metrics that have a score or a label in ``row``."""
    _mapping(row, "scores", where)
    known = METRICS if "human" in row and "score" not in row else ()
    return [
        *metric_names(row, metric=metric, default=metric or "score"),
        *_mapping(row, "labels", where),
        *(column for column in row if column in known),
    ]


def _label_cell(row: Cells, name: str, where: str) -> object:
    """Return the human label in ``row`` for the metric ``name``, else the label for all metrics."""
    is_ours = row.keys() >= _EVALUATED
    common = row.get("human") if is_ours or "label" not in row else row.get("human", row["label"])
    return _mapping(row, "labels", where).get(name, row.get(f"{name}.human", common))


def _mapping(row: Cells, key: str, where: str) -> Mapping[str, object]:
    content = row.get(key)
    if content is not None and not isinstance(content, Mapping):
        raise ConfigError(f"{where}: {key} must be an object by metric, not {content!r:.40}")
    return content or {}


def _label(value: object, *, where: str) -> float | None:
    plain = value.item() if hasattr(value, "item") else value  # of numpy
    if isinstance(plain, bool):
        return float(plain)
    if isinstance(plain, str) and plain.strip().lower() in _WORDS:
        return _WORDS[plain.strip().lower()]
    accepted = "pass or fail, true or false, yes or no, or a number"
    return _number(plain, where=f"{where}: the label", accepted=accepted)


def _number(value: object, *, where: str, accepted: str = "a number") -> float | None:
    """Convert ``value`` to a finite number; return None for null, NaN or an empty cell."""
    plain: object = value.item() if hasattr(value, "item") else value
    if isinstance(plain, str):
        with suppress(ValueError):
            plain = float(plain) if plain.strip() else None
    if plain is None:
        return None
    if isinstance(plain, bool) or not isinstance(plain, int | float) or math.isinf(plain):
        raise ConfigError(f"{where} must be {accepted}, not {value!r:.40}")
    return None if math.isnan(plain) else float(plain)


Measured: TypeAlias = "tuple[str, str]"
"""The name of a metric, and the version of its scores."""


def rated(
    rows: Iterable[Row | UnscoredTurn],
    feedback: Iterable[FeedbackRow],
    *,
    metric: str | None = None,
    name: str | None = None,
) -> tuple[dict[Measured, list[Observation]], list[FeedbackRow]]:
    """Join scores with ``feedback`` on the same turns; also return feedback on no scored turn.

    Feedback on no span, or on a span that is no turn, is joined if its trace has one scored turn.
    Of several feedbacks on a turn with one name, the last counts. Feedback that is named like a
    metric is about this metric only. ``metric`` and ``name`` choose a metric and the feedback of
    one name.
    """
    unscored: set[str] = set()
    scored: defaultdict[str, list[Score]] = defaultdict(list)
    for row in rows:
        if isinstance(row, UnscoredTurn):
            unscored.add(_plain(row.turn))
        else:
            scored[_plain(row.turn or row.trace) or row.place] += [
                score
                for score in row.scores
                if score.value is not None and metric in {None, score.name}
            ]
    metrics = {score.name for scores in scored.values() for score in scores}
    said = _chosen(feedback, name, metrics)
    by_trace: defaultdict[str, list[str]] = defaultdict(list)
    for turn in scored:
        by_trace[turn.partition("/")[0]].append(turn)
    labels: dict[tuple[str, str], float | None] = {}
    unmatched = []
    for each in said:
        turns = [turn for turn in [_plain(each.turn)] if turn in scored or turn in unscored]
        turns = turns or by_trace[_plain(each.trace)]
        if len(turns) == 1 and turns[0] in scored:
            about = each.name if each.name in metrics else ""
            labels[turns[0], about] = _label(each.score, where=each.place)
        else:
            unmatched.append(each)
    if not labels:
        raise ConfigError(
            f"no feedback is on a scored turn; {said[0].place} is on"
            f" {said[0].turn or said[0].trace!r}, and the ids of scored turns look like"
            f" {next(iter(scored), 'none')!r}"
            if said
            else f"there is no feedback of the name {name}"
        )
    observed: defaultdict[Measured, list[Observation]] = defaultdict(list)
    for turn, scores in scored.items():
        for score in scores:
            label = labels.get((turn, score.name), labels.get((turn, "")))
            observed[score.name, score.version].append(Observation(score=score.value, label=label))
    return dict(observed), unmatched


def _chosen(
    feedback: Iterable[FeedbackRow], name: str | None, metrics: Collection[str]
) -> list[FeedbackRow]:
    """Return the feedback called ``name``, the newest last, which must be of one name if None."""
    chosen = [each for each in feedback if name in {None, each.name}]
    names = {each.name for each in chosen} - set(metrics)
    if name is None and len(names) > 1:
        raise ConfigError(
            f"there is feedback of {', '.join(sorted(names))}: choose with --feedback-name"
        )
    has_times = all(each.time is not None for each in chosen)
    return sorted(chosen, key=lambda each: each.time or 0.0) if has_times else chosen


def _plain(turn: str) -> str:
    """Return the id of a turn or trace so that ids in capitals or written as UUIDs are equal."""
    return turn.strip().lower().replace("-", "")
