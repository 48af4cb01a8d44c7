"""Scores as files: JSON Lines, CSV or Parquet, one row at a time, whole or not at all."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from rag_eval_otel.dataset.rows import Row, flat_columns
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.runtime.installed import require

Write: TypeAlias = Callable[[Row], object]

_GROUP = 1000  # rows of Parquet in memory at once: a row group


def check_output(path: Path) -> None:
    """Raise `ConfigError` unless rows can be written to ``path``."""
    if path.suffix.lower() not in _WRITERS:
        msg = f"{path}: cannot write {path.suffix or 'without a suffix'}; use {', '.join(_WRITERS)}"
        raise ConfigError(msg)
    if path.is_dir():
        msg = f"{path} is a folder; name a file"
        raise ConfigError(msg)
    if path.suffix.lower() == ".parquet":
        require("pyarrow")


@contextmanager
def writing(path: Path, metrics: Sequence[str]) -> Iterator[Write]:
    """Give a function that writes a row; ``path`` is there, whole, once the context has ended.

    Until then rows are in ``<path>.part``, which is removed where the context ends in an error.
    """
    check_output(path)
    part = path.with_name(f"{path.name}.part")
    try:
        with _WRITERS[path.suffix.lower()](part, metrics) as write:
            yield write
        part.replace(path)
    except OSError as error:
        msg = f"{path} cannot be written: {error}"
        raise ConfigError(msg) from error
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _jsonl(part: Path, metrics: Sequence[str]) -> Iterator[Write]:  # noqa: ARG001  # they are in each row
    with part.open("w", encoding="utf-8") as file:
        yield lambda row: file.write(json_line(row))


def json_line(row: Row) -> str:
    """Return ``row`` as one line of JSON."""
    return json.dumps(row.to_dict(), ensure_ascii=False, default=str) + "\n"


@contextmanager
def _csv(part: Path, metrics: Sequence[str]) -> Iterator[Write]:
    with part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(flat_columns(metrics)))
        writer.writeheader()
        yield lambda row: writer.writerow(row.to_flat())


@contextmanager
def _parquet(part: Path, metrics: Sequence[str]) -> Iterator[Write]:
    arrow, parquet = require("pyarrow"), require("pyarrow.parquet")
    kinds = {int: arrow.int64(), float: arrow.float64(), str: arrow.string()}
    columns = flat_columns(metrics)
    schema = arrow.schema([(name, kinds[kind]) for name, kind in columns.items()])
    group: list[dict[str, Any]] = []
    with parquet.ParquetWriter(part, schema) as writer:

        def flush() -> None:
            writer.write_table(arrow.Table.from_pylist(group, schema=schema))
            group.clear()

        def write(row: Row) -> None:
            group.append(row.to_flat())
            if len(group) >= _GROUP:
                flush()

        yield write
        flush()


_WRITERS: Mapping[str, Callable[[Path, Sequence[str]], AbstractContextManager[Write]]] = {
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".csv": _csv,
    ".parquet": _parquet,
}
