"""Read scores and human labels from the rows of a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics import METRICS
from rag_eval_otel.tools.rows import number, score_from_cells
from rag_eval_otel.tools.scores import metric_cells, metric_names

Cells: TypeAlias = Mapping[str, Any]
Observation: TypeAlias = "tuple[float | None, float | None]"
"""The score of a row for one metric, and its human label."""

_WORDS: Mapping[str, float] = {
    **dict.fromkeys(("pass", "true", "yes"), 1.0),
    **dict.fromkeys(("fail", "false", "no"), 0.0),
}
_EVALUATED = frozenset({"sample", "judge"})  # columns of a file that `evaluate` wrote


def observations(
    rows: Iterable[tuple[str, Cells]], *, metric: str | None = None
) -> Mapping[str, Sequence[Observation]]:
    """Read the scores and human labels in ``rows``, for each metric or for ``metric`` only.

    ``rows`` has pairs of a row's name and its cells, in one of the forms of ``docs/calibrate.md``.
    Raises `ConfigError` for a label that cannot be read, and for rows without a metric or a label.
    """
    observed: defaultdict[str, list[Observation]] = defaultdict(list)
    columns: dict[str, None] = {}
    for where, row in rows:
        columns |= dict.fromkeys(map(str, row))
        labels = row.get("labels")
        if labels is not None and not isinstance(labels, Mapping | str | float):
            raise ConfigError(f"{where}: labels must be an object of labels, not {labels!r:.40}")
        labels = labels if isinstance(labels, Mapping) else {}
        known = METRICS if "human" in row and "score" not in row else ()
        names = [*metric_names(row, metric=metric, default=metric or "score"), *labels]
        # The label that `evaluate` writes is the metric's own.
        common = row.get("human", None if row.keys() >= _EVALUATED else row.get("label"))
        for name in dict.fromkeys([*names, *(column for column in row if column in known)]):
            if metric in {None, name}:
                cells = metric_cells(row, name)
                score = score_from_cells(name, cells)
                if score.value is None:
                    parsed(cells.get("value"), where=f"{where}, {name}: the score")
                label = labels.get(name, row.get(f"{name}.human", common))
                read = parsed(label, where=f"{where}, {name}: the label")
                observed[name].append((score.value, read))
    if not observed:
        raise ConfigError(
            f"no scores of {metric or 'any metric'} found; use score and label, scores and labels,"
            " or columns <metric> and <metric>.human; or name the column of the scores (--metric)."
            f" Columns found: {', '.join(columns) or 'none'}"
        )
    if all(label is None for seen in observed.values() for _, label in seen):
        raise ConfigError(
            "no row has a human label: add label (beside score), labels, human or <metric>.human;"
            " the label that evaluate writes is the metric's own"
        )
    return observed


def parsed(value: object, *, where: str) -> float | None:
    """Convert ``value``, a number or pass or fail, to a number; None if it is empty or NaN."""
    plain = value.item() if hasattr(value, "item") else value  # of numpy
    if isinstance(plain, str):
        plain = _WORDS.get(plain.strip().lower(), plain.strip())
    if plain in (None, "") or plain != plain:  # noqa: PLR0124  # NaN
        return None
    read = number(plain)
    if read is None:
        accepted = "pass or fail, true or false, yes or no, or a number"
        raise ConfigError(f"{where} must be {accepted}, not {value!r:.40}")
    return read
