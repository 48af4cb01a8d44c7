"""Read scores and human labels from the rows of a table, or join scores with people's feedback."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics import METRICS
from rag_eval_otel.tools.rows import FeedbackRow, Row, UnscoredTurn, measured_version
from rag_eval_otel.tools.scores import metric_cells, metric_names, plain_turn
from rag_eval_otel.types import Score

Status: TypeAlias = Literal["ok", "missing", "undefined", "error"]
Cells: TypeAlias = Mapping[str, Any]
Places: TypeAlias = Sequence[tuple[str, Cells]]
"""Pairs of a row's name, for error messages, and the cells of the row."""

_WORDS: Mapping[str, float] = {
    **dict.fromkeys(("pass", "true", "yes"), 1.0),
    **dict.fromkeys(("fail", "false", "no"), 0.0),
}
_FAILED: Mapping[object, Status] = {"undefined": "undefined", "error": "error"}
_EVALUATED = frozenset({"sample", "judge"})  # columns of a file that `evaluate` wrote


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The score and the human label of one row, for one metric.

    ``score`` is None unless ``status`` is ok. ``label`` is None if the row has no human label.
    ``where`` names the row; it is empty for a live turn.
    """

    score: float | None
    label: float | None
    status: Status = "ok"
    where: str = field(default="", compare=False)


def observe(score: object, label: object, *, where: str, status: object = None) -> Observation:
    """Read a score and a human label from two cells of a row.

    If ``status`` is ``undefined`` or ``error``, the score is None, and the cell ``score`` is not
    read. If a cell is not empty and cannot be read, `ConfigError` is raised with ``where``, the
    name of the row.
    """
    number = None if status in _FAILED else _number(score, where=f"{where}: the score")
    found: Status = "ok" if number is not None else _FAILED.get(status, "missing")
    return Observation(score=number, label=_label(label, where=where), status=found)


def observations(
    rows: Iterable[tuple[str, Cells]], *, metric: str | None = None
) -> dict[str, list[Observation]]:
    """Read the scores and human labels in ``rows``, for each metric or for ``metric`` only.

    ``rows`` has pairs of a row's name and its cells. A row has one of these forms:

    - ``{"score": 0.8, "label": 1}``, with ``metric`` if the file has several metrics.
    - ``{"scores": {"faithfulness": 0.8}, "labels": {"faithfulness": 1}}``.
    - One column for each value: ``{"faithfulness": 0.8, "faithfulness.human": 1}``. A column
      ``human`` is the label for all metrics.
    - A row that ``rag-eval-otel evaluate --output`` wrote, with ``<metric>.human`` or ``human``
      added. The column ``label`` of such a row is the metric's pass or fail, not a human label.

    If a cell cannot be read, `ConfigError` names the row. `ConfigError` is also raised if there is
    no metric, if ``metric`` is not found, or if no row has a label.
    """
    places = list(rows)
    names = dict.fromkeys(name for where, row in places for name in _names(row, metric, where))
    _check_names(names, metric, places)
    found = {
        name: [
            _observed(row, name, where)
            for where, row in places
            # A row with one score belongs to one metric, all others to every metric.
            if "score" not in row or name in metric_names(row, default=metric or "score")
        ]
        for name in ([metric] if metric else names)
    }
    if all(each.label is None for seen in found.values() for each in seen):
        raise ConfigError(_NO_LABEL)
    return found


# --- feedback -------------------------------------------------------------------------------------

Measured: TypeAlias = "tuple[str, str]"
"""The name of a metric, and the version of its scores."""

Timed: TypeAlias = "tuple[float | None, Observation]"
"""The time of a turn, in seconds since the epoch, and its score and label for one metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rated:
    """The scores of turns, with the labels that people gave in feedback.

    ``observations`` has the turns of each metric in each version, in which scores are comparable.
    A failed score is under the version of the others (see `measured_version`). ``mixed`` names the
    metrics with several versions. ``unmatched`` is the feedback on turns without scores.
    """

    observations: Mapping[Measured, Sequence[Timed]]
    mixed: Sequence[str]
    unmatched: Sequence[FeedbackRow]


def rated(
    rows: Iterable[Row | UnscoredTurn],
    feedback: Iterable[FeedbackRow],
    *,
    metric: str | None = None,
    name: str | None = None,
) -> Rated:
    """Join the scores in ``rows`` with ``feedback`` on the same turns.

    Feedback on no span, or on a span that is no turn, is joined if its trace has one scored turn.
    Feedback on a turn without scores is not joined. Of several feedbacks on a turn with one name,
    the last counts: by time, or by the order of the rows if a row has no time. Feedback that is
    named like a metric is about this metric only. ``metric`` and ``name`` choose a metric and the
    feedback of one name. Scores that a turn has only because of bad feedback are left out. Raises
    `ConfigError` if a label cannot be read, if no feedback has a scored turn, or if there is
    feedback of several names and none is chosen.
    """
    unscored: set[str] = set()
    scored: defaultdict[str, list[tuple[Score, float | None]]] = defaultdict(list)
    for row in rows:
        if isinstance(row, Row):
            scores = [(score, row.time) for score in row.scores if metric in {None, score.name}]
            scored[plain_turn(row.turn or row.trace) or row.place] += scores
        else:
            unscored.add(plain_turn(row.turn))
    metrics = {score.name for scores in scored.values() for score, _ in scores}
    given = [each for each in feedback if name in {None, each.name}]
    if all(each.time is not None for each in given):  # an export may have the newest first
        given.sort(key=lambda each: each.time or 0.0)
    names = {each.name for each in given} - metrics
    if name is None and len(names) > 1:
        msg = f"there is feedback of {', '.join(sorted(names))}: choose with --feedback-name"
        raise ConfigError(msg)
    by_trace: defaultdict[str, list[str]] = defaultdict(list)
    for turn in scored:
        by_trace[turn.partition("/")[0]].append(turn)
    labels: dict[tuple[str, str], float | None] = {}
    unmatched = []
    for each in given:
        turns = by_trace.get(plain_turn(each.trace), [])
        of_span = plain_turn(each.turn)
        only = turns[0] if len(turns) == 1 and of_span not in unscored else ""
        turn = of_span if of_span in scored else only
        if not turn:
            unmatched.append(each)
            continue
        about = each.name if each.name in metrics else ""
        labels[turn, about] = _label(each.score, where=each.place)
    if not labels:
        msg = f"there is no feedback of the name {name}"
        if given:
            msg = (
                f"no feedback is on a scored turn; {given[0].place} is on"
                f" {given[0].turn or given[0].trace!r}, and the ids of scored turns look like"
                f" {next(iter(scored), 'none')!r}"
            )
        raise ConfigError(msg)
    observed = _observed_turns(scored, labels)
    versions = Counter(measured for measured, _ in observed)
    return Rated(
        observations=observed,
        mixed=[measured for measured, count in versions.items() if count > 1],
        unmatched=unmatched,
    )


_Scores: TypeAlias = "Mapping[str, Sequence[tuple[Score, float | None]]]"
"""The scores of each turn, by the id of the turn, with the time of the turn."""


def _observed_turns(
    scored: _Scores, labels: Mapping[tuple[str, str], float | None]
) -> dict[Measured, list[Timed]]:
    versions: defaultdict[str, set[str]] = defaultdict(set)  # in which a metric has a number
    for scores in scored.values():
        for score, _ in scores:
            if score.value is not None:
                versions[score.name].add(score.version)
    observed: defaultdict[Measured, list[Timed]] = defaultdict(list)
    for turn, scores in scored.items():
        for score, time in scores:
            label = labels.get((turn, score.name), labels.get((turn, "")))
            seen = Observation(score=score.value, label=label, status=score.status)
            version = score.version
            if score.value is None:
                version = measured_version(version, versions[score.name])
            observed[score.name, version].append((time, seen))
    return dict(observed)


# --- rows of a table ------------------------------------------------------------------------------

_NO_LABEL = (
    "no row has a human label: add label (beside score), labels, human or <metric>.human;"
    " the label that evaluate writes is the metric's own"
)


def _check_names(names: Iterable[str], metric: str | None, places: Places) -> None:
    known = list(names)
    if not places:
        msg = "there are no rows"
        raise ConfigError(msg)
    if not known or metric not in {None, *known}:
        columns = dict.fromkeys(str(column) for _, row in places for column in row)
        msg = (
            f"no scores of {metric or 'any metric'} found; use score and label, scores and labels,"
            " or columns <metric> and <metric>.human; or name the column of the scores (--metric)."
            f" Metrics found: {', '.join(known) or 'none'}."
            f" Columns found: {', '.join(columns)}"
        )
        raise ConfigError(msg)


def _names(row: Cells, metric: str | None, where: str) -> Iterable[str]:
    """Return the names of the metrics that have a score or a label in ``row``."""
    _mapping(row, "scores", where)
    known = METRICS if "human" in row and "score" not in row else ()
    return [
        *metric_names(row, metric=metric, default=metric or "score"),
        *_mapping(row, "labels", where),
        *(column for column in row if column in known),
    ]


def _observed(row: Cells, name: str, where: str) -> Observation:
    found = metric_cells(row, name)
    label = _label_cell(row, name, where)
    place = f"{where}, {name}"
    seen = observe(found.get("value"), label, where=place, status=found.get("status"))
    return replace(seen, where=where)


def _label_cell(row: Cells, name: str, where: str) -> object:
    """Return the human label in ``row`` for the metric ``name``, else the label for all metrics."""
    labels = _mapping(row, "labels", where)
    ours = row.keys() >= _EVALUATED
    common = row.get("human") if ours or "label" not in row else row.get("human", row["label"])
    return labels.get(name, row.get(f"{name}.human", common))


def _mapping(row: Cells, key: str, where: str) -> Mapping[str, object]:
    found = row.get(key)
    if found is not None and not isinstance(found, Mapping):
        msg = f"{where}: {key} must be an object by metric, not {found!r:.40}"
        raise ConfigError(msg)
    return found or {}


def _label(value: object, *, where: str) -> float | None:
    plain = _plain(value)
    if isinstance(plain, bool):
        return float(plain)
    if isinstance(plain, str) and plain.strip().lower() in _WORDS:
        return _WORDS[plain.strip().lower()]
    accepted = "pass or fail, true or false, yes or no, or a number"
    return _number(plain, where=f"{where}: the label", accepted=accepted)


def _number(value: object, *, where: str, accepted: str = "a number") -> float | None:
    """Convert ``value`` to a finite number; return None for null, NaN or an empty cell."""
    plain = _plain(value)
    if isinstance(plain, str):
        with suppress(ValueError):
            plain = float(plain) if plain.strip() else None
    if plain is None:
        return None
    if isinstance(plain, bool) or not isinstance(plain, int | float) or math.isinf(plain):
        msg = f"{where} must be {accepted}, not {value!r:.40}"
        raise ConfigError(msg)
    return None if math.isnan(plain) else float(plain)


def _plain(value: Any) -> object:
    """Convert a scalar of numpy to a scalar of Python; return other values unchanged."""
    return value.item() if hasattr(value, "item") else value
