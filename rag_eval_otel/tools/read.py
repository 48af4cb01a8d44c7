"""Read rows of files, data frames and lists, check and convert them to samples; write scores."""

from __future__ import annotations

import ast
import csv
import json
import math
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
from rag_eval_otel.metrics.base import Metric
from rag_eval_otel.runtime.guard import require
from rag_eval_otel.tools.otlp import LONGEST, check_size, lines_of
from rag_eval_otel.tools.rows import ORIGIN, Row, flat_columns, moment
from rag_eval_otel.types import Evaluation, Passage, Sample

Records: TypeAlias = "Iterator[tuple[int | None, Any]]"
"""Rows, each after the number of its last line, from 1; None if it is not from a text file."""

_BATCH = 256  # rows to read from a Parquet file at once


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
        if suffix not in _READERS:
            msg = f"{path}: cannot read {path.suffix or 'a file without suffix'}"
            raise ConfigError(f"{msg}; use .jsonl (an object a line), .csv (commas) or .parquet")
        if not path.is_file():
            raise ConfigError(f"{path}: there is no such file")
        return Source(name=str(path), read=partial(_READERS[suffix], path))
    kind = type(data).__name__
    if hasattr(data, "itertuples"):
        rows = partial(data.itertuples, index=False, name=None)
        read = partial(_tuples, getattr(data, "columns", ()), rows)
    elif hasattr(data, "to_batches"):
        read = partial(_batches, partial(data.to_batches, max_chunksize=_BATCH))
    elif isinstance(data, Mapping):
        columns = [*data.values()]
        are_lists = all(hasattr(c, "__len__") and not isinstance(c, str | Mapping) for c in columns)
        if not are_lists or len(set(map(len, columns))) > 1:
            rule = "a mapping must hold columns, lists of one length"
            raise ConfigError(f"{rule}; pass one split of a dataset, and a single row as [row]")
        read = partial(_tuples, data, lambda: zip(*columns, strict=True))
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
    if path.suffix.lower() not in _WRITERS:
        raise ConfigError(
            f"{path}: cannot write {path.suffix or 'without a suffix'}; use {', '.join(_WRITERS)}"
        )
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file")


@contextmanager
def writing(path: Path, metrics: Sequence[str], *, further: Sequence[str] = ()) -> Iterator[Write]:
    """Yield a function that writes one scored row. The file ``path`` is replaced at the end."""
    check_output(path)
    write = _WRITERS[path.suffix.lower()]
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
    """Replace the file ``path`` by ``content``; an error names the command's ``option``."""
    with _whole_file(path, option) as part:
        part.write_text(content, encoding="utf-8")


def _json_line(cells: Mapping[str, Any]) -> str:
    return json.dumps(cells, ensure_ascii=False, default=str) + "\n"


@contextmanager
def _write_jsonl(
    part: Path,
    metrics: Sequence[str],  # noqa: ARG001  # each row has them
    further: Sequence[str],
) -> Iterator[Write]:
    with part.open("w", encoding="utf-8", errors="replace") as file:
        yield lambda row: file.write(_json_line(row.to_dict(further)))


@contextmanager
def _write_csv(part: Path, metrics: Sequence[str], further: Sequence[str]) -> Iterator[Write]:
    with part.open("w", encoding="utf-8", errors="replace", newline="") as file:
        writer = csv.DictWriter(file, list(flat_columns(metrics, further)))
        writer.writeheader()

        def safe(cell: Any) -> Any:
            if not isinstance(cell, str):
                return cell
            text = cell.replace("\0", "?")  # Python 3.10 can neither write nor read a NUL
            return f"'{text}" if _may_run(text) else text

        yield lambda row: writer.writerow({k: safe(v) for k, v in row.to_flat(further).items()})


_READERS: Mapping[str, Callable[[Path], Records]] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
_WRITERS: Mapping[str, Callable[..., AbstractContextManager[Write]]] = {
    ".jsonl": _write_jsonl,
    ".ndjson": _write_jsonl,
    ".csv": _write_csv,
}
_TEXT_KEYS = ("text", "page_content", "content")
_COLLECTED = "trace_id"  # a column that rows of `rag-eval-otel collect` have
_ABOUT_TURNS = (*ORIGIN, "live_label")  # its columns about a turn, which are no texts of the sample
_SAMPLE_FIELDS = frozenset(Sample.__dataclass_fields__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A source of samples that can be read repeatedly, one sample at a time.

    ``fields`` maps fields of `Sample` to ``columns``; ``filled`` are the fields, or keys of
    ``extra``, that have a value in at least one row.
    """

    source: Source
    count: int
    columns: tuple[str, ...]
    fields: Mapping[str, str]
    filled: frozenset[str]
    limit: int | None = None

    @property
    def name(self) -> str:
        return self.source.name

    def samples(self) -> Iterator[Sample]:
        return (row.sample for row in self.rows())

    def rows(self) -> Iterator[Row]:
        """Yield the rows, not scored yet. Collected turns have trace, span, service and time."""
        for index, (where, cells) in enumerate(self.source.rows(self.limit)):
            origin: dict[str, Any] = {}
            if not isinstance(cells, Sample) and cells.get(_COLLECTED):
                names = {"trace": "trace_id", "span": "span_id", "service": "service"}
                origin = {key: str(cells.get(name) or "") for key, name in names.items()}
                origin["time"] = moment(cells.get("time"))
            sample = sample_of(cells, self.fields, where=where)
            yield Row(index=index, sample=sample, evaluation=Evaluation(scores=()), **origin)

    @property
    def origin(self) -> tuple[str, ...]:
        is_collected = _COLLECTED in self.columns
        return tuple(name for name in ORIGIN if name in self.columns) if is_collected else ()


def open_dataset(
    data: object, columns: Mapping[str, str] | None = None, *, limit: int | None = None
) -> Dataset:
    """Check the first ``limit`` rows of ``data``, or all, and return them as a `Dataset`.

    ``columns`` maps fields of `Sample` to columns with other names. If a cell cannot be used,
    `ConfigError` names the file, the row (from 0) and the column. Rows are not kept in memory.
    """
    if isinstance(data, Dataset):
        return data
    chosen = columns or {}
    check_chosen(chosen)
    source = source_of(data)
    names: dict[str, None] = {}  # columns, in the order in which they are read
    fields: dict[str, str] = {}
    filled: set[str] = set()
    count = 0
    for where, cells in source.rows(limit):
        if isinstance(cells, Sample):
            filled |= {name for name in _SAMPLE_FIELDS if getattr(cells, name)}
            names |= dict.fromkeys(sorted(filled & _SAMPLE_FIELDS))
        else:
            if not cells.keys() <= names.keys():
                names |= dict.fromkeys(cells)
                fields = fields_of(names, chosen)
            filled |= {f for f, column in fields.items() if not is_missing(cells.get(column))}
        count += 1
        sample = sample_of(cells, fields, where=where)
        filled |= set(sample.extra) | ({"retrieved_ids"} if sample.ranked_ids else set())
    for name, column in chosen.items():
        if count and column not in names:
            raise ConfigError(
                f"{source.name} has no column {column!r} for the {name};"
                f" columns found: {', '.join(names) or 'none'}"
            )
    return Dataset(
        source=source,
        count=count,
        columns=tuple(names),
        fields=fields,
        filled=frozenset(filled),
        limit=limit,
    )


def check_needs(metrics: Iterable[Metric], dataset: Dataset) -> None:
    """Raise `ConfigError` if a metric needs a field that is empty in every row of ``dataset``."""
    missing = {metric.name: sorted(metric.needs - dataset.filled) for metric in metrics}
    needs = [f"{name} needs {', '.join(lacks)}" for name, lacks in missing.items() if lacks]
    if needs and dataset.count:
        lacking = sorted({name for lacks in missing.values() for name in lacks})
        names = [f"{name} ({' or '.join(COLUMNS.get(name, (name,)))})" for name in lacking]
        raise ConfigError(
            f"{dataset.name} has no values for what is needed: {'; '.join(needs)}."
            f" Columns found: {', '.join(dataset.columns) or 'none'}."
            f" Add {', '.join(names)}, name the column with columns={{field: column}}"
            " (in a shell --columns field=column), or leave these metrics out"
        )


COLUMNS: Mapping[str, tuple[str, ...]] = {
    "question": ("question", "questions", "query", "queries", "user_input"),
    "contexts": ("contexts", "context", "retrieved_contexts"),
    "answer": ("answer", "response", "responses", "predicted_answer", "predicted_answers"),
    "history": ("history", "chat_history", "conversation_history"),
    "query": ("query", "queries"),
    "reference": (
        *("reference", "reference_answer", "ground_truth", "ground_truths"),
        *("ground_truth_answer", "ground_truth_answers"),
    ),
    "retrieved_ids": ("retrieved_ids", "retrieved_context_ids"),
    "relevant_ids": ("relevant_ids", "expected_ids", "reference_context_ids"),
    "grades": ("grades",),
    "rubric": ("rubric", "rubrics"),
    "extra": ("extra",),
}
"""The column names of each field of `Sample`, in any case, with ``-`` or a blank for ``_``.

A query without a question beside it is the question.
"""

_FIELDS = {name: each for each, names in COLUMNS.items() for name in names}


def fields_of(columns: Iterable[str], chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each field of `Sample`: as ``chosen``, or else by a known name."""
    by_column = {column: name for name, column in chosen.items()}
    fields: dict[str, str] = {}
    for column in columns:
        recognised = _FIELDS.get(column.strip().lower().replace("-", "_").replace(" ", "_"))
        name = by_column.get(column) or recognised
        if name is None or (column not in by_column and name in chosen):
            continue
        if name in fields:
            raise ConfigError(
                f"columns {fields[name]!r} and {column!r} both hold the {name};"
                f" drop one, or choose with columns={{{name!r}: {column!r}}}"
            )
        fields[name] = column
    if "query" in fields.keys() - chosen.keys() and "question" not in fields:
        fields["question"] = fields.pop("query")
    return fields


def check_chosen(chosen: Mapping[str, str]) -> None:
    for name in chosen:
        if name not in COLUMNS:
            raise ConfigError(f"columns: no field {name!r}; there are {', '.join(COLUMNS)}")
    if len(set(chosen.values())) < len(chosen):
        raise ConfigError(f"columns gives one column to several fields: {dict(chosen)}")


def sample_of(cells: Any, fields: Mapping[str, str], *, where: str) -> Sample:
    """Convert ``cells`` to a `Sample`, other texts to ``extra``; errors name ``where``."""
    if isinstance(cells, Sample):
        return cells
    values: dict[str, Any] = {}
    for name, column in fields.items():
        cell: Any = cells.get(column)
        cell = cell.tolist() if hasattr(cell, "tolist") else cell  # of numpy
        if is_missing(cell):
            continue
        try:
            values[name] = _CONVERT[name](cell)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where}, column {column!r}: {error}") from error
    read = {*fields.values(), *(_ABOUT_TURNS if cells.get(_COLLECTED) else ())}
    texts = {k: v for k, v in cells.items() if k not in read and isinstance(v, str)}
    values["extra"] = {**texts, **values.get("extra", {})}
    try:
        return Sample(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from error


def is_missing(value: object) -> bool:
    nan = isinstance(value, float) and math.isnan(value)
    return value is None or nan or type(value).__name__ in {"NAType", "NaTType"}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"must be text, not {type(value).__name__}")
    return value


def _reference(value: object) -> str | None:
    if not isinstance(value, list):
        return _text(value)
    if len(value) > 1:
        raise ValueError(f"must be one text, not {len(value)}; keep one of them")
    return _text(value[0]) if value else None


def contexts_in(value: object) -> list[Passage]:
    items = _listed(value) if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise TypeError(f"must be a list of texts, or one text, not {type(value).__name__}")
    return [_passage(item) for item in items]


def _listed(text: str) -> list[Any]:
    bare = text.strip()
    if not (bare.startswith("[") and bare.endswith("]")):
        return [text] if bare else []
    items = _decoded(bare)
    if isinstance(items, list):
        return items
    if bare[1:2] in {"'", '"'}:
        raise ValueError(f'looks like a list, but is no JSON list like ["a", "b"]: {bare[:40]!r}')
    return [text]


def _decoded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = value.strip()
    check_size(text)
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(f"is nested too deeply: {text[:40]!r}; pass a list of texts") from None
    except ValueError:
        pass
    try:
        literal = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    # A printed numpy array has no commas: Python would join its strings into one.
    return literal if repr(literal) == text else None


def _passage(item: object) -> Passage:
    if isinstance(item, Passage):
        return item
    if isinstance(item, Mapping):
        key = next((key for key in _TEXT_KEYS if key in item), None)
        if key is None:
            raise ValueError(f"a context needs text ({', '.join(_TEXT_KEYS)}), not {sorted(item)}")
        name, score = item.get("id"), item.get("score")
        return Passage(
            text=item[key],
            id=None if name is None else str(name),
            score=float(score) if isinstance(score, int | float) else None,
        )
    if isinstance(item, str):
        return Passage(text=item)
    raise TypeError(f"each context must be text, not {type(item).__name__}")


def _sequence(value: object, *, kind: Any, told: str) -> object:
    items = _decoded(value)
    if not isinstance(items, list | tuple) or not all(isinstance(i, kind) for i in items):
        raise TypeError(f"{told}, not {_named(value)}")
    return items


_ids = partial(
    _sequence, kind=str | int, told='must be a list of ids, in text a JSON list like ["a", "b"]'
)


def history_in(value: object) -> object:
    if is_missing(value) or value == "":
        return ()
    return _sequence(value, kind=list | tuple | Mapping, told="must be a list of messages")


def _mapping(value: object) -> dict[Any, Any]:
    """Return the mapping in ``value`` without missing values: tables add keys of other rows."""
    mapping = _decoded(value)
    if not isinstance(mapping, Mapping):
        raise TypeError(f"must be a mapping to texts, in text a JSON object, not {_named(value)}")
    return {key: item for key, item in mapping.items() if not is_missing(item)}


def _relevant_ids(value: object) -> object:
    decoded = _decoded(value)
    return _mapping(decoded) if isinstance(decoded, Mapping) else _ids(value)


def _named(value: object) -> str:
    return repr(value[:40]) if isinstance(value, str) else type(value).__name__


_CONVERT: Mapping[str, Callable[[Any], Any]] = {
    "question": _text,
    "contexts": contexts_in,
    "answer": _text,
    "history": history_in,
    "query": _text,
    "reference": _reference,
    "retrieved_ids": _ids,
    "relevant_ids": _relevant_ids,
    "grades": partial(_sequence, kind=object, told="must be a list of numbers"),
    "rubric": _mapping,
    "extra": _mapping,
}
