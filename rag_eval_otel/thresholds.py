"""Read thresholds of metrics from options, variables and files, and write a thresholds file."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from rag_eval_otel.errors import ConfigError

_toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
_SUFFIX = ".toml"
_BARE = re.compile("[A-Za-z0-9_-]+")  # the keys that TOML has without quotes
_HEAD = """\
# From which score on each metric passes. Read by `rag-eval-otel evaluate --thresholds FILE`, by
# `rag-eval-otel rules --thresholds FILE`, by the option `thresholds` and RAG_EVAL_THRESHOLDS.
[thresholds]
"""


def thresholds_of(given: object, *, where: str) -> dict[str, float]:
    """Return the thresholds in ``given``, by name of the metric.

    ``given`` is a mapping, the path of a TOML file, or a text such as ``name=0.8,other=0.5``.
    Raises `ConfigError` for anything else, for a value that is not a number, and for a file that
    cannot be read. The message begins with ``where``, the option or variable that was read. The
    names of metrics are not checked.
    """
    if isinstance(given, Mapping):
        return {str(name): _number(value, name, where=where) for name, value in given.items()}
    if isinstance(given, os.PathLike) or (isinstance(given, str) and given.endswith(_SUFFIX)):
        return read_thresholds(Path(given))
    if not isinstance(given, str):
        msg = f"{where} must map names of metrics to numbers, or be a {_SUFFIX} file, not {given!r}"
        raise ConfigError(msg)
    pairs = [pair.partition("=") for pair in given.split(",") if pair.strip()]
    names = [name.strip() for name, _, _ in pairs]
    if "" in names or len(set(names)) < len(names):
        msg = f"{where}: name each metric once, as in faithfulness=0.8, not {given!r}"
        raise ConfigError(msg)
    return {
        name: _number(_parsed(value), name, where=where)
        for name, (_, _, value) in zip(names, pairs, strict=True)
    }


def _parsed(text: str) -> object:
    try:
        return float(text)
    except ValueError:
        return text


def _number(value: object, name: object, *, where: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    found = float(value) if is_number else math.nan  # type: ignore[arg-type]  # it is a number
    if not math.isfinite(found):
        msg = f"{where}: a threshold must be a number, as in {name}=0.8, not {value!r}"
        raise ConfigError(msg)
    return found


def read_thresholds(path: Path) -> dict[str, float]:
    """Return the thresholds in the table ``thresholds`` of the TOML file at ``path``.

    Raises `ConfigError`, which names the file, if the file cannot be read, has another table, or
    has a value that is not a number.
    """
    try:
        found: Mapping[str, Any] = _toml.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        msg = f"the thresholds of {path} cannot be read: {error}"
        raise ConfigError(msg) from error
    table = found.get("thresholds")
    if not isinstance(table, Mapping) or set(found) != {"thresholds"}:
        msg = f"{path} must have one table, [thresholds], of lines such as faithfulness = 0.8"
        raise ConfigError(msg)
    return thresholds_of(table, where=str(path))


def written_thresholds(found: Iterable[tuple[str, float, str]]) -> str:
    """Return the text of a thresholds file with a line for each metric in ``found``.

    Each entry of ``found`` has the name of a metric, its threshold, and a remark. The remark
    becomes a comment in the line.
    """
    lines = [
        (name if _BARE.fullmatch(name) else json.dumps(name), value, told)
        for name, value, told in found
    ]
    return _HEAD + "".join(f"{key} = {value:.6g}  # {told}\n" for key, value, told in lines)
