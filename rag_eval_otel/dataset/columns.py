"""Which column holds which field: our names, and those of ragas, LlamaIndex and Haystack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rag_eval_otel.errors import ConfigError

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "question": ("question", "questions", "query", "queries", "user_input"),
    "contexts": ("contexts", "context", "retrieved_contexts"),
    "answer": ("answer", "response", "responses", "predicted_answer", "predicted_answers"),
    "reference": (
        "reference",
        "reference_answer",
        "ground_truth",
        "ground_truths",
        "ground_truth_answer",
        "ground_truth_answers",
    ),
    "retrieved_ids": ("retrieved_ids", "retrieved_context_ids"),
    "relevant_ids": ("relevant_ids", "expected_ids", "reference_context_ids"),
    "grades": ("grades",),
    "rubric": ("rubric", "rubrics"),
    "extra": ("extra",),
}
"""The names under which each field of `Sample` is recognised, in any case, ``-`` or ``_``."""

_FIELDS = {name: field for field, names in COLUMNS.items() for name in names}


def fields_of(columns: Iterable[str], chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each field that has one; ``chosen`` maps fields to columns first.

    Raises `ConfigError` where two columns hold one field.
    """
    taken = {column: field for field, column in chosen.items()}
    found: dict[str, str] = {}
    for column in columns:
        field = taken.get(column) or _recognised(column)
        if field is None or (column not in taken and field in chosen):
            continue
        if field in found:
            msg = (
                f"columns {found[field]!r} and {column!r} both hold the {field};"
                f" drop one, or choose with columns={{{field!r}: {column!r}}}"
            )
            raise ConfigError(msg)
        found[field] = column
    return found


def _recognised(column: str) -> str | None:
    return _FIELDS.get(column.strip().lower().replace("-", "_").replace(" ", "_"))


def check_chosen(chosen: Mapping[str, str]) -> None:
    """Raise `ConfigError` unless ``chosen`` maps fields, each to a column of its own."""
    for field in chosen:
        if field not in COLUMNS:
            msg = f"columns names {field!r}, which is no field; there are {', '.join(COLUMNS)}"
            raise ConfigError(msg)
    if len(set(chosen.values())) < len(chosen):
        msg = f"columns gives one column to several fields: {dict(chosen)}"
        raise ConfigError(msg)
