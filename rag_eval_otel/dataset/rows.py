"""One scored row, and how scores are written down and read back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rag_eval_otel.types import Evaluation, Sample, Score

_SCORE_FIELDS = tuple(field.name for field in fields(Score) if field.name != "name")
_FLAT = ("status", "reason", "label", "normalized", "explanation", "version")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A sample and its scores; ``index`` is its place in the dataset, from 0.

    ``evaluation.usage`` is what this run asked for: nothing, where the scores came from the cache.
    """

    index: int
    sample: Sample
    evaluation: Evaluation

    def __getitem__(self, name: str) -> Score:
        """Return the score called ``name``; `KeyError` names those there are."""
        return self.evaluation[name]

    @property
    def scores(self) -> tuple[Score, ...]:
        """The scores, in the order of the metrics."""
        return self.evaluation.scores

    @property
    def failed(self) -> tuple[Score, ...]:
        """The scores that could not be had."""
        return tuple(score for score in self.scores if score.status == "error")

    def to_dict(self) -> dict[str, Any]:
        """Return the row as it is written in JSON; the texts of the sample are not in it.

        ``sample`` is a digest of them, the same for the same sample in every run.
        """
        return {
            **self._head(),
            "scores": {score.name: score_to_dict(score) for score in self.scores},
        }

    def to_flat(self) -> dict[str, Any]:
        """Return the row as one level: ``<metric>`` is the value, ``<metric>.<leaf>`` the rest."""
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


def flat_columns(metrics: Sequence[str]) -> dict[str, type]:
    """Return the columns of `Row.to_flat` and their types."""
    columns: dict[str, type] = {"row": int, "sample": str, "status": str, "label": str}
    columns["judge"] = str
    for name in metrics:
        columns[name] = float
        columns |= {f"{name}.{leaf}": float if leaf == "normalized" else str for leaf in _FLAT}
    return columns


def score_to_dict(score: Score) -> dict[str, Any]:
    """Return what ``score`` says, without its name and what it does not say."""
    found = {name: getattr(score, name) for name in _SCORE_FIELDS}
    return {name: v for name, v in found.items() if v not in (None, "", {}) or name == "value"}


def score_from_dict(name: str, found: Mapping[str, Any]) -> Score:
    """Return the score that `score_to_dict` wrote."""
    return Score(name=name, **found)


def digest(*parts: object) -> str:
    """Return 16 hexadecimal digits that stand for the content of ``parts``."""
    text = "\0".join(map(repr, parts)).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[:16]
