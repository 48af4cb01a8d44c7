"""`Row`: the scores of one turn, as `evaluate` writes them and as score files have them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias, cast

from rag_eval_otel.types import Evaluation, Label, Reason, Sample, Score, ScoreStatus

_SCORE_FIELDS = tuple(each.name for each in fields(Score) if each.name != "name")
_FLAT = ("status", "reason", "label", "normalized", "explanation", "version")
_LABELS = frozenset({"pass", "fail"})
_WITHOUT_VALUE = frozenset({"undefined", "error"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The scores of one turn. ``index`` numbers the turns of a dataset or file from 0.

    ``evaluation.usage`` is what this run asked of the judge: nothing, where the scores come from
    the cache. ``place`` (the row or trace in words), ``time`` (seconds since the epoch),
    ``service`` and ``stratum`` are known of rows of a score file only; their sample has at most the
    question. Two rows of a file with one ``index`` hold different scores of the same turn.
    """

    index: int
    evaluation: Evaluation
    sample: Sample = field(default_factory=Sample)
    place: str = ""
    time: float | None = None
    service: str = ""
    stratum: str | None = None

    def __getitem__(self, name: str) -> Score:
        """Return the score called ``name``; `KeyError` lists the names there are."""
        return self.evaluation[name]

    @property
    def scores(self) -> tuple[Score, ...]:
        """The scores, in the order of the metrics."""
        return self.evaluation.scores

    @property
    def failed(self) -> tuple[Score, ...]:
        """The scores with status ``error``."""
        return tuple(score for score in self.scores if score.status == "error")

    def to_dict(self) -> dict[str, Any]:
        """Return the row for JSON, without the texts of the sample.

        ``sample`` is a digest of them, the same for the same sample in every run.
        """
        return {
            **self._head(),
            "scores": {score.name: score_to_dict(score) for score in self.scores},
        }

    def to_flat(self) -> dict[str, Any]:
        """Return the row for a table: ``<metric>`` is the value, ``<metric>.<leaf>`` the rest."""
        flat = self._head()
        for score in self.scores:
            flat[score.name] = score.value
            flat |= {f"{score.name}.{leaf}": getattr(score, leaf) for leaf in _FLAT}
        return flat

    def _head(self) -> dict[str, Any]:
        return {
            "row": self.index,
            "sample": digest(self.sample),
            "status": self.evaluation.status,
            "label": self.evaluation.label,
            "judge": self.evaluation.judge,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class UnscoredTurn:
    """A turn whose span was exported without scores, and its ``rag.evaluation.status``."""

    service: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterPoint:
    """The ``value`` of a counter for these ``attributes`` at some ``time``.

    All points of a ``cumulative`` counter with the same ``key`` are one count at different times.
    """

    name: str
    attributes: Mapping[str, Any]
    value: float
    time: float
    key: str
    cumulative: bool


ScoreRecord: TypeAlias = "Row | UnscoredTurn | CounterPoint"
"""The records of a score file."""


def flat_columns(metrics: Sequence[str]) -> dict[str, type]:
    """Return the columns of `Row.to_flat` and their types."""
    columns: dict[str, type] = {"row": int, "sample": str, "status": str, "label": str}
    columns["judge"] = str
    for name in metrics:
        columns[name] = float
        columns |= {f"{name}.{leaf}": float if leaf == "normalized" else str for leaf in _FLAT}
    return columns


def score_to_dict(score: Score) -> dict[str, Any]:
    """Return the fields of ``score`` that are set, without its name; ``value`` is always there."""
    found = {name: getattr(score, name) for name in _SCORE_FIELDS}
    return {name: v for name, v in found.items() if v not in (None, "", {}) or name == "value"}


def score_from_dict(name: str, found: Mapping[str, Any]) -> Score:
    """Return the score that `score_to_dict` wrote."""
    return Score(name=name, **found)


def score_from_cells(name: str, cells: Mapping[str, Any]) -> Score:
    """Return the score in ``cells``, which are named as the fields of `Score`.

    A value that is no finite number is left out. A score without a value is undefined, unless its
    status is ``error``.
    """
    value, normalized = number(cells.get("value")), number(cells.get("normalized"))
    if normalized is not None and not 0 <= normalized <= 1:
        normalized = None
    value = normalized if value is None else value
    given = cells.get("status")
    status: ScoreStatus = "undefined" if value is None or given in _WITHOUT_VALUE else "ok"
    if given == "error":
        status = "error"
    is_ok = status == "ok"
    label, reason = cells.get("label"), text(cells.get("reason"))
    return Score(
        name=name,
        value=value if is_ok else None,
        normalized=normalized if is_ok else None,
        status=status,
        reason=cast("Reason | None", reason if is_ok else reason or ""),
        label=cast("Label", label) if label in _LABELS else None,
        explanation=text(cells.get("explanation")),
        version=text(cells.get("version")) or "",
    )


def unit_value(score: Score) -> float | None:
    """Return the score on the scale 0 to 1, if its metric has one; None without a value."""
    return score.value if score.normalized is None else score.normalized


def digest(*parts: object) -> str:
    """Return 16 hexadecimal digits that identify the content of ``parts``."""
    content = "\0".join(map(repr, parts)).encode("utf-8", "surrogatepass")
    return hashlib.sha256(content).hexdigest()[:16]


def number(value: object) -> float | None:
    """Return ``value`` as a finite number, also if it is written as text; None if it is none."""
    try:
        found = float(cast("Any", value))
    except (OverflowError, TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def text(value: object) -> str | None:
    """Return ``value`` if it is text that is not empty, else None."""
    return value if isinstance(value, str) and value else None
