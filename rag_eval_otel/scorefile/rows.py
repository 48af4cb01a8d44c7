"""Scores in the rows of a table, in any of the forms in which they are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

from rag_eval_otel.scorefile.records import Scored, number, score_from, text

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
