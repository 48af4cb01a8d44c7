"""`read_scores`: a file of scores, whatever wrote it, one record after the other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rag_eval_otel.dataset.sources import source_of
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.scorefile.otlp import SIGNALS, is_otlp, otlp_found
from rag_eval_otel.scorefile.records import Found, Scored, Turns
from rag_eval_otel.scorefile.rows import row_scores


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
