"""From the cells of one row to a `Sample`; what cannot be used is an error, never a guess."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.types import Passage, Sample

_TEXT_KEYS = ("text", "page_content", "content")
_ABSENT = frozenset({"NAType", "NaTType"})  # pandas' own, which equal nothing, not even themselves


def sample_of(cells: Mapping[str, Any], fields: Mapping[str, str], *, where: str) -> Sample:
    """Return the sample in ``cells``, whose columns ``fields`` names by field.

    Texts in further columns become ``extra``. Raises `ConfigError` naming ``where`` and the column.
    """
    found: dict[str, Any] = {}
    for field, column in fields.items():
        value = _plain(cells.get(column))
        if is_missing(value):
            continue
        try:
            found[field] = _CONVERT[field](value)
        except (TypeError, ValueError) as error:
            msg = f"{where}, column {column!r}: {error}"
            raise ConfigError(msg) from error
    found["extra"] = {**_further(cells, set(fields.values())), **found.get("extra", {})}
    try:
        return Sample(**found)
    except (TypeError, ValueError) as error:
        msg = f"{where}: {error}"
        raise ConfigError(msg) from error


def is_missing(value: object) -> bool:
    """Tell whether a cell holds nothing: None, NaN, or what pandas has for them."""
    nan = isinstance(value, float) and math.isnan(value)
    return value is None or nan or type(value).__name__ in _ABSENT


def _plain(value: Any) -> Any:
    """Turn arrays and scalars of numpy into lists and numbers."""
    return value.tolist() if hasattr(value, "tolist") else value


def _further(cells: Mapping[str, Any], known: set[str]) -> dict[str, str]:
    return {k: v for k, v in cells.items() if k not in known and isinstance(v, str)}


def _text(value: object) -> str:
    if not isinstance(value, str):
        msg = f"must be text, not {_kind(value)}"
        raise TypeError(msg)
    return value


def _reference(value: object) -> str | None:
    """Take a list of one reference too; there is no telling which of several is meant."""
    if not isinstance(value, list):
        return _text(value)
    if len(value) > 1:
        msg = f"must be one text, not {len(value)}; keep the reference that is meant"
        raise ValueError(msg)
    return _text(value[0]) if value else None


def _contexts(value: object) -> list[Passage]:
    items = _listed(value) if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        msg = f"must be a list of texts, or one text, not {_kind(value)}"
        raise TypeError(msg)
    return [_passage(item) for item in items]


def _listed(text: str) -> list[Any]:
    """Read a list as JSON or Python writes it; any other text is one context, a blank one none."""
    bare = text.strip()
    if not (bare.startswith("[") and bare.endswith("]")):
        return [text] if bare else []
    found = _decoded(bare)
    if isinstance(found, list):
        return found
    if bare[1:2] in {"'", '"'}:
        msg = f'looks like a list, but is no JSON list like ["a", "b"]: {bare[:40]!r}'
        raise ValueError(msg)
    return [text]


def _decoded(text: str) -> Any:
    """Return what ``text`` means as JSON, or as Python where Python would write it just so."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    # An array of numpy is written without commas: to Python that is one text.
    return found if repr(found) == text else None


def _passage(item: object) -> Passage:
    if isinstance(item, Passage):
        return item
    if isinstance(item, Mapping):
        key = next((key for key in _TEXT_KEYS if key in item), None)
        if key is None:
            msg = f"a context must have a text ({', '.join(_TEXT_KEYS)}), not {sorted(item)}"
            raise ValueError(msg)
        name = item.get("id")
        return Passage(text=item[key], id=None if name is None else str(name))
    if isinstance(item, str):
        return Passage(text=item)
    msg = f"each context must be text, not {_kind(item)}"
    raise TypeError(msg)


def _ids(value: object) -> object:
    found = _decoded(value.strip()) if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not all(isinstance(i, str | int) for i in found):
        msg = f'must be a list of ids, in text a JSON list like ["a", "b"], not {_shown(value)}'
        raise TypeError(msg)
    return found


def _relevant_ids(value: object) -> object:
    """Take a mapping from ids to grades too."""
    found = _decoded(value.strip()) if isinstance(value, str) else value
    return _without_missing(found) if isinstance(found, Mapping) else _ids(value)


def _mapping(value: object) -> dict[Any, Any]:
    found = _decoded(value.strip()) if isinstance(value, str) else value
    if not isinstance(found, Mapping):
        msg = f"must be a mapping to texts, in text a JSON object, not {_shown(value)}"
        raise TypeError(msg)
    return _without_missing(found)


def _without_missing(found: Mapping[Any, Any]) -> dict[Any, Any]:
    """Leave out keys of other rows, which columnar formats fill in."""
    return {key: value for key, value in found.items() if not is_missing(value)}


def _grades(value: object) -> object:
    found = _decoded(value.strip()) if isinstance(value, str) else value
    if not isinstance(found, list | tuple):
        msg = f"must be a list of numbers, not {_shown(value)}"
        raise TypeError(msg)
    return found


def _kind(value: object) -> str:
    return type(value).__name__


def _shown(value: object) -> str:
    return repr(value[:40]) if isinstance(value, str) else _kind(value)


_CONVERT: Mapping[str, Callable[[Any], Any]] = {
    "question": _text,
    "contexts": _contexts,
    "answer": _text,
    "reference": _reference,
    "retrieved_ids": _ids,
    "relevant_ids": _relevant_ids,
    "grades": _grades,
    "rubric": _mapping,
    "extra": _mapping,
}
