"""Two reports on the same questions: what changed, and whether it is more than chance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rag_eval_otel.dataset.table import aligned, interval
from rag_eval_otel.dataset.tally import Moments
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.results.rows import Row
from rag_eval_otel.types import Score

Versions = Literal["same", "any"]

_COLUMNS = ("metric", "difference", "95 % interval", "pairs", "unpaired", "higher", "lower")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One metric in two reports, over the ``pairs`` of rows whose scores are ok in both.

    ``mean`` is the mean difference, None without pairs; ``interval`` its 95 % confidence interval
    by Student's t on the paired differences, None for fewer than two. ``higher`` and ``lower``
    count the pairs that went up and down, ``unpaired`` the rows with a score in one or neither.
    """

    name: str
    mean: float | None
    interval: tuple[float, float] | None
    pairs: int
    unpaired: int
    higher: int
    lower: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison:
    """The differences of the metrics that two reports have in common.

    ``only_here`` and ``only_there`` name the others.
    """

    metrics: tuple[Difference, ...]
    only_here: tuple[str, ...] = ()
    only_there: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Difference:
        """Return the difference in the metric ``name``; `KeyError` names those there are."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        msg = f"no metric {name!r} in both; there are {[m.name for m in self.metrics]}"
        raise KeyError(msg)

    def __repr__(self) -> str:
        """Return the table."""
        told = [
            f"  {name}: only in {where}"
            for where, names in (("this report", self.only_here), ("the other", self.only_there))
            for name in names
        ]
        return "\n".join([aligned([_COLUMNS, *map(_cells, self.metrics)]), *told])

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return asdict(self)


def _cells(metric: Difference) -> tuple[str, ...]:
    counts = (metric.pairs, metric.unpaired, metric.higher, metric.lower)
    mean = "-" if metric.mean is None else f"{metric.mean:+.3f}"
    return (metric.name, mean, interval(metric.interval), *map(str, counts))


def compare_rows(here: Sequence[Row], there: Sequence[Row], *, versions: Versions) -> Comparison:
    """Compare row by row; `ConfigError` where the rows are not of the same questions."""
    if versions not in ("same", "any"):
        msg = f"versions must be 'same' or 'any', not {versions!r}"
        raise ConfigError(msg)
    _require_same_questions(here, there)
    ours, theirs = _names(here), _names(there)
    common = [name for name in ours if name in theirs]
    if here and not common:
        msg = f"no metric in common: {', '.join(ours)} here, {', '.join(theirs)} there"
        raise ConfigError(msg)
    return Comparison(
        metrics=tuple(_difference(name, here, there, versions) for name in common),
        only_here=tuple(name for name in ours if name not in common),
        only_there=tuple(name for name in theirs if name not in common),
    )


def _names(rows: Sequence[Row]) -> tuple[str, ...]:
    return tuple(score.name for score in rows[0].scores) if rows else ()


def _require_same_questions(here: Sequence[Row], there: Sequence[Row]) -> None:
    if len(here) != len(there):
        msg = f"{len(here)} rows here, {len(there)} there; evaluate the same rows to compare them"
        raise ConfigError(msg)
    for one, other in zip(here, there, strict=True):
        for part in ("question", "reference"):
            if getattr(one.sample, part) != getattr(other.sample, part):
                msg = f"row {one.index} has another {part} here than there; rows must match"
                raise ConfigError(msg)


def _difference(
    name: str, here: Sequence[Row], there: Sequence[Row], versions: Versions
) -> Difference:
    scores = [(one[name], other[name]) for one, other in zip(here, there, strict=True)]
    if versions == "same":
        _require_one_version(name, (score for pair in scores for score in pair))
    values = [(one.value, other.value) for one, other in scores]
    differences = [a - b for a, b in values if a is not None and b is not None]
    moments = Moments()
    for difference in differences:
        moments.add(difference)
    return Difference(
        name=name,
        mean=moments.mean,
        interval=moments.interval,
        pairs=moments.count,
        unpaired=len(scores) - moments.count,
        higher=sum(d > 0 for d in differences),
        lower=sum(d < 0 for d in differences),
    )


def _require_one_version(name: str, scores: Iterable[Score]) -> None:
    found = {score.version for score in scores if score.status == "ok"}
    if len(found) > 1:
        msg = (
            f"{name} was measured in different ways: {', '.join(sorted(found))}."
            " Evaluate both with the same metric, fusion and judge, or pass versions='any'"
        )
        raise ConfigError(msg)
