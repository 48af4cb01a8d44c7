"""Read rows from files, data frames and lists, and write scored rows to files.

Rows are read one at a time. A file is written completely or not at all.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from unicodedata import category, normalize

from rag_eval_otel.capture.otlp_files import LONGEST, lines_of
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.runtime.guard import require
from rag_eval_otel.tools.rows import FurtherColumn, Row, flat_columns
from rag_eval_otel.types import Sample

_BATCH = 256  # rows to read from a Parquet file at once
_ROW_GROUP = 1000  # rows to write to a Parquet file at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One row of data, as read from a file, table or list.

    A row may have several lines in its file. ``line`` is the number of the last line, from 1, and
    None if the row is not from a text file.
    """

    cells: Mapping[str, Any] | Sample
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A source of rows that can be read repeatedly. ``name`` names the source in error messages."""

    name: str
    records: Callable[[], Iterator[Record]]


def source_of(data: object) -> Source:
    """Return a `Source` that reads the rows in ``data``.

    ``data`` is a path, a table (pandas or Arrow), a mapping of columns, or an iterable of rows.
    Raises `ConfigError` for any other object, and for a file that cannot be read.
    """
    if isinstance(data, str | os.PathLike):
        return _file(Path(data))
    kind = type(data).__name__
    for method, read in _TABLES.items():
        if hasattr(data, method):
            return Source(name=f"the {kind}", records=partial(read, data))
    if isinstance(data, Mapping):
        return Source(name=f"the {kind}", records=partial(_columns, _checked_columns(data)))
    if not isinstance(data, Iterable):
        msg = (
            "samples must be a list of Sample or dict, a DataFrame, a Hugging Face dataset, a dict"
            f" of columns, or the path of a .jsonl, .csv or .parquet file, not {kind}"
        )
        raise ConfigError(msg)
    again = list(data) if isinstance(data, Iterator) else data
    return Source(name=f"the {kind}", records=partial(_items, again))


def _file(path: Path) -> Source:
    if path.suffix.lower() not in _FILES:
        msg = f"{path}: cannot read {path.suffix or 'a file without suffix'}; use {_SUFFIXES}"
        raise ConfigError(msg + _WAYS_OUT.get(path.suffix.lower(), ""))
    if not path.is_file():
        msg = f"{path}: there is no such file"
        raise ConfigError(msg)
    return Source(name=str(path), records=partial(_FILES[path.suffix.lower()], path))


# --- lists and tables -----------------------------------------------------------------------------


def _items(items: Iterable[Any]) -> Iterator[Record]:
    for index, item in enumerate(items):
        cells = item.model_dump() if hasattr(item, "model_dump") else item  # ragas' samples
        if not isinstance(cells, Sample | Mapping):
            msg = f"row {index}: must be a Sample or a mapping, not {type(item).__name__}"
            raise ConfigError(msg)
        yield Record(cells=cells)


def _checked_columns(columns: Mapping[str, Any]) -> Mapping[str, Any]:
    for name, column in columns.items():
        if not (isinstance(column, list | tuple) or hasattr(column, "tolist")):
            msg = (
                f"a mapping must hold columns, each a list; {name!r} is {type(column).__name__}."
                " Pass one split of a dataset, and a single row as [row]"
            )
            raise ConfigError(msg)
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        msg = f"the columns differ in length: {lengths}"
        raise ConfigError(msg)
    return columns


def _columns(columns: Mapping[str, Any]) -> Iterator[Record]:
    for cells in zip(*columns.values(), strict=True):
        yield Record(cells=dict(zip(columns, cells, strict=True)))


def _frame(frame: Any) -> Iterator[Record]:
    names = [str(name) for name in frame.columns]
    for cells in frame.itertuples(index=False, name=None):
        yield Record(cells=dict(zip(names, cells, strict=True)))


def _arrow(table: Any) -> Iterator[Record]:
    for batch in table.to_batches(max_chunksize=_BATCH):
        yield from (Record(cells=cells) for cells in batch.to_pylist())


_TABLES: Mapping[str, Callable[[Any], Iterator[Record]]] = {
    "itertuples": _frame,  # pandas
    "to_batches": _arrow,
}


# --- reading files --------------------------------------------------------------------------------


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn any error that occurs while ``path`` is read into a `ConfigError`."""
    try:
        yield
    except ConfigError:
        raise
    except UnicodeDecodeError as error:
        msg = f"{path} cannot be read: {error}. Save it as UTF-8"
        raise ConfigError(msg) from error
    except (OSError, ValueError, csv.Error) as error:  # errors of Arrow are OSError or ValueError
        msg = f"{path} cannot be read: {error}"
        raise ConfigError(msg) from error


def _jsonl(path: Path) -> Iterator[Record]:
    with _readable(path), path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines_of(path, lines), start=1):
            if line.strip():
                yield Record(cells=_json_row(line, place=f"{path}, line {number}"), line=number)


def _json_row(line: str, *, place: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except (RecursionError, ValueError) as error:
        msg = f"{place}: is not JSON: {error}"
        raise ConfigError(msg) from error
    if not isinstance(row, dict):
        msg = f"{place}: must be a JSON object, not {type(row).__name__}"
        raise ConfigError(msg)
    return row


def _csv(path: Path) -> Iterator[Record]:
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST))  # the module's 131,072 is too low
    with _readable(path), path.open(encoding="utf-8-sig", newline="") as lines:
        rows = csv.reader(lines_of(path, lines), strict=True)
        header = next(rows, [])
        if len(header) == 1 and (other := next((s for s in ";\t" if s in header[0]), None)):
            msg = f"{path}, line 1: columns must be separated by commas, not {other!r}"
            raise ConfigError(msg)
        if len(set(header)) < len(header):
            msg = f"{path}, line 1: a column is named twice: {', '.join(header)}"
            raise ConfigError(msg)
        for cells in rows:
            if cells:
                place = f"{path}, line {rows.line_num}"
                yield Record(cells=_csv_row(header, cells, place=place), line=rows.line_num)


def _csv_row(header: list[str], cells: list[str], *, place: str) -> dict[str, str | None]:
    if len(cells) != len(header):
        msg = f"{place}: has {len(cells)} cells, but the header {len(header)}"
        raise ConfigError(msg)
    return {name: _unquoted(cell) or None for name, cell in zip(header, cells, strict=True)}


def _parquet(path: Path) -> Iterator[Record]:
    parquet = require("pyarrow.parquet")
    with _readable(path), parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_BATCH):
            yield from (Record(cells=cells) for cells in batch.to_pylist())


_FILES: Mapping[str, Callable[[Path], Iterator[Record]]] = {
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".csv": _csv,
    ".parquet": _parquet,
}
_SUFFIXES = ", ".join(_FILES)
_WAYS_OUT: Mapping[str, str] = {
    ".json": " (JSON Lines: one object a line, no list around them)",
    ".tsv": " (separated by commas)",
}


def _may_run(cell: str) -> bool:
    """Return True if a spreadsheet may run ``cell``, a text, as a formula.

    Spreadsheets leave out characters that are not seen, and read full-width signs like the others.
    Apostrophes are left out here, so that a cell that begins with one reads back as it was.
    """
    seen = (c for c in cell if c != "'" and category(c) not in _NOT_SEEN)
    return cell.lstrip("'")[:1] in _BREAKS or normalize("NFKC", next(seen, "."))[0] in "=+-@"


_NOT_SEEN = frozenset({"Cc", "Cf", "Mn", "Me", "Zl", "Zp", "Zs"})  # control, format, marks, space
_BREAKS = frozenset("\t\r\n")  # may move what follows them to another cell


def _quoted(cell: str) -> str:
    """Return ``cell`` with an apostrophe before it if a spreadsheet would run it as a formula."""
    return f"'{cell}" if _may_run(cell) else cell


def _unquoted(cell: str) -> str:
    """Return ``cell`` without the apostrophe that `_quoted` has put before it."""
    return cell[1:] if cell[:1] == "'" and _may_run(cell) else cell


# --- writing files --------------------------------------------------------------------------------

Write: TypeAlias = Callable[[Row], object]


def check_output(path: Path) -> None:
    """Raise `ConfigError` if scored rows cannot be written to ``path``.

    The suffix must be known, ``path`` must not be a folder, and a Parquet file needs pyarrow.
    """
    if path.suffix.lower() not in _WRITERS:
        msg = f"{path}: cannot write {path.suffix or 'without a suffix'}; use {', '.join(_WRITERS)}"
        raise ConfigError(msg)
    if path.is_dir():
        msg = f"{path} is a folder; name a file"
        raise ConfigError(msg)
    if path.suffix.lower() == ".parquet":
        require("pyarrow")


@contextmanager
def writing(
    path: Path, metrics: Sequence[str], *, further: Sequence[FurtherColumn] = ()
) -> Iterator[Write]:
    """Give a function that writes one scored row to ``path``, completely or not at all.

    ``metrics`` are the names of the metrics, from which the columns of a table are named.
    ``further`` names more columns: texts of the sample, and where a turn comes from.
    """
    check_output(path)
    with _whole_file(path) as part, _WRITERS[path.suffix.lower()](part, metrics, further) as write:
        yield write


@contextmanager
def writing_samples(path: Path) -> Iterator[Callable[[Mapping[str, Any]], object]]:
    """Give a function that writes one sample, a dict, to ``path``, completely or not at all."""
    with _whole_file(path) as part, part.open("w", encoding="utf-8", errors="replace") as file:
        yield lambda cells: file.write(json_line(cells))


def check_samples_output(path: Path) -> None:
    """Raise `ConfigError` if samples cannot be written to ``path``."""
    check_output(path)
    if path.suffix.lower() not in {".jsonl", ".ndjson"}:
        msg = f"{path}: samples have lists of contexts; use .jsonl"
        raise ConfigError(msg)


@contextmanager
def _whole_file(path: Path, option: str = "") -> Iterator[Path]:
    """Give a temporary path, ``<path>.part``, which replaces ``path`` unless there is an error.

    The message of the `ConfigError` for a file that cannot be written begins with ``option``.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        part.replace(path)
    except OSError as error:
        msg = f"{option} {path} cannot be written: {error}".lstrip()
        raise ConfigError(msg) from error
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, content: str, *, option: str) -> None:
    """Write ``content`` to ``path``, the file of the command line option ``option``."""
    with _whole_file(path, option) as part:
        part.write_text(content, encoding="utf-8")


def json_line(cells: Mapping[str, Any]) -> str:
    return json.dumps(cells, ensure_ascii=False, default=str) + "\n"


@contextmanager
def _jsonl_writer(
    part: Path,
    metrics: Sequence[str],  # noqa: ARG001  # each row has them
    further: Sequence[FurtherColumn],
) -> Iterator[Write]:
    with part.open("w", encoding="utf-8", errors="replace") as file:
        yield lambda row: file.write(json_line(row.to_dict(further)))


@contextmanager
def _csv_writer(
    part: Path, metrics: Sequence[str], further: Sequence[FurtherColumn]
) -> Iterator[Write]:
    with part.open("w", encoding="utf-8", errors="replace", newline="") as file:
        writer = csv.DictWriter(file, list(flat_columns(metrics, further)))
        writer.writeheader()

        def write(row: Row) -> None:
            cells = row.to_flat(further)
            texts = {name: cell for name, cell in cells.items() if isinstance(cell, str)}
            # Python 3.10 can neither write nor read a NUL.
            quoted = {name: _quoted(text.replace("\0", "?")) for name, text in texts.items()}
            writer.writerow({**cells, **quoted})

        yield write


@contextmanager
def _parquet_writer(
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

        def write(row: Row) -> None:
            cells = row.to_flat(further)
            group.append({name: _encodable(cell) for name, cell in cells.items()})
            if len(group) >= _ROW_GROUP:
                flush()

        yield write
        flush()


def _encodable(cell: Any) -> Any:
    """Return ``cell``, a text with a question mark for each half of a surrogate pair."""
    return cell.encode("utf-8", "replace").decode() if isinstance(cell, str) else cell


_Writer: TypeAlias = Callable[
    [Path, Sequence[str], Sequence[FurtherColumn]], AbstractContextManager[Write]
]

_WRITERS: Mapping[str, _Writer] = {
    ".jsonl": _jsonl_writer,
    ".ndjson": _jsonl_writer,
    ".csv": _csv_writer,
    ".parquet": _parquet_writer,
}
