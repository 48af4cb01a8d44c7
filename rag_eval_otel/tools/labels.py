"""Read scores and human labels from the rows of a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics import METRICS
from rag_eval_otel.tools.scores import metric_cells, metric_names

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
