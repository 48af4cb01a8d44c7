"""Read rows from files, data frames and lists, and write rows to files, one row at a time."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias
from unicodedata import category, normalize

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.runtime.guard import require
from rag_eval_otel.tools.otlp import LONGEST, lines_of
from rag_eval_otel.tools.rows import FurtherColumn, Row, flat_columns
from rag_eval_otel.types import Sample

Records: TypeAlias = "Iterator[tuple[int | None, Any]]"
"""Rows, each after the number of its last line, from 1; None if it is not from a text file."""

_BATCH = 256  # rows to read from a Parquet file at once
_ROW_GROUP = 1000  # rows to write to a Parquet file at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Rows that can be read repeatedly. ``name`` names them in error messages."""

    name: str
    read: Callable[[], Records]

    def rows(self, limit: int | None = None) -> Iterator[tuple[str, Any]]:
        """Yield the name of each row, with its number and line, and its cells or `Sample`."""
        for index, (line, cells) in enumerate(islice(self.read(), limit)):
            place = "" if line is None else f" (line {line})"
            yield f"{self.name}, row {index}{place}", cells


def source_of(data: object) -> Source:
    """Return ``data`` as a `Source`: a path, a table, a mapping of columns, or a list of rows."""
    if isinstance(data, str | os.PathLike):
        path = Path(data)
        suffix = path.suffix.lower()
        if suffix not in _FORMATS:
            msg = f"{path}: cannot read {path.suffix or 'a file without suffix'}; use {_SUFFIXES}"
            raise ConfigError(msg + _WAYS_OUT.get(suffix, ""))
        if not path.is_file():
            raise ConfigError(f"{path}: there is no such file")
        return Source(name=str(path), read=partial(_FORMATS[suffix][0], path))
    kind = type(data).__name__
    if hasattr(data, "itertuples"):
        rows = partial(data.itertuples, index=False, name=None)
        read = partial(_tuples, getattr(data, "columns", ()), rows)
    elif hasattr(data, "to_batches"):
        read = partial(_batches, partial(data.to_batches, max_chunksize=_BATCH))
    elif isinstance(data, Mapping):
        columns = _checked_columns(data)
        read = partial(_tuples, columns, lambda: zip(*columns.values(), strict=True))
    elif isinstance(data, Iterable):
        read = partial(_items, list(data) if isinstance(data, Iterator) else data)
    else:
        raise ConfigError(
            "samples must be a list of Sample or dict, a DataFrame, a Hugging Face dataset, a dict"
            f" of columns, or the path of a .jsonl, .csv or .parquet file, not {kind}"
        )
    return Source(name=f"the {kind}", read=read)


def _items(items: Iterable[Any]) -> Records:
    for index, item in enumerate(items):
        cells = item.model_dump() if hasattr(item, "model_dump") else item  # ragas' samples
        if not isinstance(cells, Sample | Mapping):
            raise ConfigError(
                f"row {index}: must be a Sample or a mapping, not {type(item).__name__}"
            )
        yield None, cells


def _checked_columns(columns: Mapping[str, Any]) -> Mapping[str, Any]:
    for name, column in columns.items():
        if not (isinstance(column, list | tuple) or hasattr(column, "tolist")):
            raise ConfigError(
                f"a mapping must hold columns, each a list; {name!r} is {type(column).__name__}."
                " Pass one split of a dataset, and a single row as [row]"
            )
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ConfigError(f"the columns differ in length: {lengths}")
    return columns


def _tuples(names: Iterable[Any], rows: Callable[[], Iterable[Any]]) -> Records:
    columns = list(map(str, names))
    for cells in rows():
        yield None, dict(zip(columns, cells, strict=True))


def _batches(batches: Callable[[], Iterable[Any]]) -> Records:
    for batch in batches():
        yield from ((None, cells) for cells in batch.to_pylist())


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} cannot be read: {error}. Save it as UTF-8") from error
    except (OSError, ValueError, csv.Error) as error:  # errors of Arrow are OSError or ValueError
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _read_jsonl(path: Path) -> Records:
    with _readable(path), path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines_of(path, lines), start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (RecursionError, ValueError) as error:
                raise ConfigError(f"{path}, line {number}: is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise ConfigError(
                    f"{path}, line {number}: must be a JSON object, not {type(row).__name__}"
                )
            yield number, row


def _read_csv(path: Path) -> Records:
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST))  # the module's 131,072 is too low
    with _readable(path), path.open(encoding="utf-8-sig", newline="") as lines:
        rows = csv.reader(lines_of(path, lines), strict=True)
        header = next(rows, [])
        if len(header) == 1 and (other := next((s for s in ";\t" if s in header[0]), None)):
            raise ConfigError(f"{path}, line 1: columns must be separated by commas, not {other!r}")
        if len(set(header)) < len(header):
            raise ConfigError(f"{path}, line 1: a column is named twice: {', '.join(header)}")
        for cells in filter(None, rows):
            number = rows.line_num
            if len(cells) != len(header):
                raise ConfigError(
                    f"{path}, line {number}: has {len(cells)} cells, but the header {len(header)}"
                )
            # Without the apostrophe that `_write_csv` has put before a formula.
            texts = (cell[1:] if cell[:1] == "'" and _may_run(cell) else cell for cell in cells)
            yield number, {name: text or None for name, text in zip(header, texts, strict=True)}


def _read_parquet(path: Path) -> Records:
    parquet = require("pyarrow.parquet")
    with _readable(path), parquet.ParquetFile(path) as file:
        yield from _batches(partial(file.iter_batches, batch_size=_BATCH))


_NOT_SEEN = frozenset({"Cc", "Cf", "Mn", "Me", "Zl", "Zp", "Zs"})  # control, format, marks, space
_BREAKS = frozenset("\t\r\n")  # may move what follows them to another cell


def _may_run(cell: str) -> bool:
    """Return True if a spreadsheet may take ``cell`` for a formula, as ``=1+1``.

    Spreadsheets ignore invisible characters before the sign.
    """
    seen = (c for c in cell if c != "'" and category(c) not in _NOT_SEEN)
    return cell.lstrip("'")[:1] in _BREAKS or normalize("NFKC", next(seen, "."))[0] in "=+-@"


Write: TypeAlias = Callable[[Row], object]


def check_output(path: Path) -> None:
    if path.suffix.lower() not in _FORMATS:
        raise ConfigError(
            f"{path}: cannot write {path.suffix or 'without a suffix'}; use {_SUFFIXES}"
        )
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file")
    if path.suffix.lower() == ".parquet":
        require("pyarrow")


@contextmanager
def writing(
    path: Path, metrics: Sequence[str], *, further: Sequence[FurtherColumn] = ()
) -> Iterator[Write]:
    """Yield a function that writes one scored row. The file ``path`` is replaced at the end."""
    check_output(path)
    write = _FORMATS[path.suffix.lower()][1]
    with _whole_file(path) as part, write(part, metrics, further) as add:
        yield add


@contextmanager
def writing_samples(path: Path) -> Iterator[Callable[[Mapping[str, Any]], object]]:
    with _whole_file(path) as part, part.open("w", encoding="utf-8", errors="replace") as file:
        yield lambda cells: file.write(_json_line(cells))


@contextmanager
def _whole_file(path: Path, option: str = "") -> Iterator[Path]:
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be written: {error}".lstrip()) from error
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, content: str, *, option: str) -> None:
    """Write ``content`` to ``path``, the file of the command line option ``option``."""
    with _whole_file(path, option) as part:
        part.write_text(content, encoding="utf-8")


def _json_line(cells: Mapping[str, Any]) -> str:
    return json.dumps(cells, ensure_ascii=False, default=str) + "\n"


@contextmanager
def _write_jsonl(
    part: Path,
    metrics: Sequence[str],  # noqa: ARG001  # each row has them
    further: Sequence[FurtherColumn],
) -> Iterator[Write]:
    with part.open("w", encoding="utf-8", errors="replace") as file:
        yield lambda row: file.write(_json_line(row.to_dict(further)))


@contextmanager
def _write_csv(
    part: Path, metrics: Sequence[str], further: Sequence[FurtherColumn]
) -> Iterator[Write]:
    with part.open("w", encoding="utf-8", errors="replace", newline="") as file:
        writer = csv.DictWriter(file, list(flat_columns(metrics, further)))
        writer.writeheader()

        def safe(cell: Any) -> Any:
            if not isinstance(cell, str):
                return cell
            text = cell.replace("\0", "?")  # Python 3.10 can neither write nor read a NUL
            return f"'{text}" if _may_run(text) else text

        yield lambda row: writer.writerow({k: safe(v) for k, v in row.to_flat(further).items()})


@contextmanager
def _write_parquet(
    part: Path, metrics: Sequence[str], further: Sequence[FurtherColumn]
) -> Iterator[Write]:
    arrow, parquet = require("pyarrow"), require("pyarrow.parquet")
    kinds = {int: arrow.int64(), float: arrow.float64(), str: arrow.string()}
    columns = flat_columns(metrics, further)
    schema = arrow.schema([(name, kinds[kind]) for name, kind in columns.items()])
    group: list[dict[str, Any]] = []
    with parquet.ParquetWriter(part, schema) as writer:

        def flush() -> None:
            writer.write_table(arrow.Table.from_pylist(group, schema=schema))
            group.clear()

        def encodable(cell: Any) -> Any:  # without halves of surrogate pairs
            return cell.encode("utf-8", "replace").decode() if isinstance(cell, str) else cell

        def write(row: Row) -> None:
            group.append({name: encodable(cell) for name, cell in row.to_flat(further).items()})
            if len(group) >= _ROW_GROUP:
                flush()

        yield write
        flush()


_Reader: TypeAlias = Callable[[Path], Records]
_Writer: TypeAlias = Callable[
    [Path, Sequence[str], Sequence[FurtherColumn]], AbstractContextManager[Write]
]
_FORMATS: Mapping[str, tuple[_Reader, _Writer]] = {
    ".jsonl": (_read_jsonl, _write_jsonl),
    ".ndjson": (_read_jsonl, _write_jsonl),
    ".csv": (_read_csv, _write_csv),
    ".parquet": (_read_parquet, _write_parquet),
}
_SUFFIXES = ", ".join(_FORMATS)
_WAYS_OUT: Mapping[str, str] = {
    ".json": " (JSON Lines: one object a line, no list around them)",
    ".tsv": " (separated by commas)",
}
