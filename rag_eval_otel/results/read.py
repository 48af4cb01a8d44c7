"""Scores in the rows of a table, in any of the forms in which they are written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.results.otlp import SIGNALS, is_otlp, otlp_found
from rag_eval_otel.results.records import Found, Scored, Turns, number, score_from, text
from rag_eval_otel.results.sources import source_of


def read_scores(
    path: Path, *, metric: str | None = None, stratum: str | None = None
) -> Iterator[Found]:
    """Yield what ``path`` says: .jsonl, .csv or .parquet of scores, or OTLP JSON (.json, .jsonl).

    ``metric`` takes that one alone, and names its column where nothing else tells that it is one;
    ``stratum`` names the column of each score's stratum. Raises `ConfigError` for what cannot be
    read, and, at the end, where nothing told of a score.
    """
    columns: dict[str, None] = {}
    turns, scored = Turns(), 0
    for message in _messages(path):
        columns.update(dict.fromkeys(map(str, message)))
        for found in _found(path, message, turns, metric=metric, stratum=stratum):
            if not isinstance(found, Scored):
                yield found
            elif metric in {None, found.score.name}:
                scored += 1
                yield found
    if not scored:
        raise ConfigError(_nothing(path, metric, list(columns)))


def _nothing(path: Path, metric: str | None, columns: list[str]) -> str:
    return (
        f"{path} has no scores{f' of {metric}' if metric else ''}; use score, scores, or a column"
        f" named by --metric. Found: {', '.join(columns) or 'nothing'}"
    )


def _found(
    path: Path, message: Any, turns: Turns, *, metric: str | None, stratum: str | None
) -> Iterator[Found]:
    if not is_otlp(message):
        yield from row_scores(message, turn=turns.new(), metric=metric, stratum=stratum)
        return
    try:
        yield from otlp_found(message, turns)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        msg = f"{path}: is not OTLP JSON: {error!r}"
        raise ConfigError(msg) from error


def _messages(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield rows or export requests."""
    if path.suffix.lower() == ".json":
        yield from _json(path)
    else:
        for record in source_of(path).records():
            cells: Any = record.cells
            yield cells


def _json(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the export requests of a file: a whole one, or one a line."""
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
    except ValueError:  # what cannot be read as a whole may be one a line
        lines = [line for line in content.splitlines() if line.strip()]
        if len(lines) < 2:  # noqa: PLR2004
            raise
        return [json.loads(line) for line in lines]


_TELLING = (".status", ".normalized", ".version", ".score")
"""Ends of the names of columns that tell of a metric."""

_LEAVES = ("status", "reason", "label", "normalized", "explanation", "version")
_TIMES = ("time", "timestamp")
_QUESTIONS = ("question", "user_input")


def row_scores(
    cells: Mapping[str, Any], *, turn: int, metric: str | None, stratum: str | None
) -> Iterator[Scored]:
    """Yield the scores of a row.

    - ``{"score": 0.8, "metric": "faithfulness"}``;
    - ``{"scores": {"faithfulness": 0.8}}``, or with a mapping of the fields of `Score` for each;
    - columns by name: ``{"faithfulness": 0.8, "faithfulness.status": "ok"}``, or ``metric`` alone.
    """
    told: dict[str, Any] = {
        "place": f"row {turn}",
        "turn": turn,
        "time": next((moment(cells[name]) for name in _TIMES if name in cells), None),
        "service": str(cells.get("service") or ""),
        "judge": text(cells.get("judge")),
        "duration": number(cells.get("duration")),
        "question": next((q for name in _QUESTIONS if (q := text(cells.get(name)))), None),
        "stratum": None if stratum is None else str(cells.get(stratum)),
    }
    for name, found in _scores(cells, metric):
        yield Scored(score=score_from(name, found), **told)


def _scores(
    cells: Mapping[str, Any], metric: str | None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(cells.get("scores"), Mapping):
        for name, one in cells["scores"].items():
            yield name, one if isinstance(one, Mapping) else {"value": one}
    elif "score" in cells:
        # A label beside a bare score is often a human's.
        yield str(cells.get("metric") or "score"), {**cells, "value": cells["score"], "label": None}
    else:
        for name in _names(tuple(cells), metric):
            leaves = {leaf: cells.get(f"{name}.{leaf}") for leaf in _LEAVES}
            yield name, {**leaves, "value": cells.get(name, cells.get(f"{name}.score"))}


@lru_cache(maxsize=64)
def _names(columns: tuple[str, ...], metric: str | None) -> tuple[str, ...]:
    """Return the metrics that ``columns`` tell of."""
    stems = [c.removesuffix(leaf) for c in columns for leaf in _TELLING if c.endswith(leaf)]
    return tuple(dict.fromkeys([*stems, *([metric] if metric in columns else [])]))


def moment(value: Any) -> float | None:
    """Return seconds since the epoch, of a number or an ISO 8601 text (without a zone: UTC)."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            return number(value)
    if isinstance(value, datetime):
        zoned = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        return zoned.timestamp()
    return number(value)
