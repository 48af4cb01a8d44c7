"""`open_dataset`: rows of any kind as `Sample`s, looked through once before anything is asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import islice

from rag_eval_otel.dataset.cells import is_missing, sample_of
from rag_eval_otel.dataset.columns import COLUMNS, check_chosen, fields_of
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics.outcome import Metric
from rag_eval_otel.results.files import Record, Source, source_of
from rag_eval_otel.types import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Samples that can be read any number of times, one at a time.

    ``columns`` are those found, ``fields`` maps fields of `Sample` to their columns, and
    ``filled`` are the fields (and names in ``extra``) that some row has a value for.
    """

    source: Source
    count: int
    columns: tuple[str, ...]
    fields: Mapping[str, str]
    filled: frozenset[str]
    limit: int | None = None

    @property
    def name(self) -> str:
        """What it is called in messages: its path, or its type."""
        return self.source.name

    def samples(self) -> Iterator[Sample]:
        """Yield every sample, in order."""
        for index, record in enumerate(islice(self.source.records(), self.limit)):
            yield _sample(record, self.fields, where=_where(self.source, index, record))


def open_dataset(
    data: object, columns: Mapping[str, str] | None = None, *, limit: int | None = None
) -> Dataset:
    """Look through the first ``limit`` rows of ``data`` and return them as a `Dataset`.

    ``columns`` maps fields of `Sample` to columns, where these have names of their own. Every row
    is checked here, in constant memory: `ConfigError` names file, row (from 0) and column of the
    first that cannot be used.
    """
    if isinstance(data, Dataset):
        return data
    check_chosen(columns or {})
    source = source_of(data)
    survey = _Survey(columns or {})
    for index, record in enumerate(islice(source.records(), limit)):
        survey.see(record, where=_where(source, index, record))
    survey.require_chosen(source.name)
    return Dataset(
        source=source,
        count=survey.count,
        columns=tuple(survey.columns),
        fields=survey.fields,
        filled=frozenset(survey.filled),
        limit=limit,
    )


def check_needs(metrics: Iterable[Metric], dataset: Dataset) -> None:
    """Raise `ConfigError` for metrics that need what no row of ``dataset`` has."""
    if not dataset.count:
        return
    missing = {metric.name: sorted(metric.needs - dataset.filled) for metric in metrics}
    told = [f"{name} needs {', '.join(fields)}" for name, fields in missing.items() if fields]
    if told:
        lacking = sorted({field for fields in missing.values() for field in fields})
        names = [f"{name} ({' or '.join(COLUMNS.get(name, (name,)))})" for name in lacking]
        msg = (
            f"{dataset.name} has no values for what is needed: {'; '.join(told)}."
            f" Columns found: {', '.join(dataset.columns) or 'none'}."
            f" Add {', '.join(names)}, name the column with columns={{field: column}}"
            " (in a shell --columns field=column), or leave these metrics out"
        )
        raise ConfigError(msg)


def _where(source: Source, index: int, record: Record) -> str:
    line = f" (line {record.line})" if record.line is not None else ""
    return f"{source.name}, row {index}{line}"


def _sample(record: Record, fields: Mapping[str, str], *, where: str) -> Sample:
    if isinstance(record.cells, Sample):
        return record.cells
    return sample_of(record.cells, fields, where=where)


@dataclass(slots=True)
class _Survey:
    """What is known of a dataset after the rows seen so far."""

    chosen: Mapping[str, str]
    columns: dict[str, None] = field(default_factory=dict)  # in the order in which they came up
    fields: dict[str, str] = field(default_factory=dict)
    filled: set[str] = field(default_factory=set)
    count: int = 0

    def see(self, record: Record, *, where: str) -> None:
        self.count += 1
        if isinstance(record.cells, Sample):
            sample = record.cells
            self.filled |= {name for name in _SAMPLE_FIELDS if getattr(sample, name)}
            self.columns |= dict.fromkeys(sorted(self.filled & set(_SAMPLE_FIELDS)))
        else:
            sample = self._read(record.cells, where=where)
        self.filled |= set(sample.extra) | ({"retrieved_ids"} if sample.ranked_ids else set())

    def _read(self, cells: Mapping[str, object], *, where: str) -> Sample:
        if not cells.keys() <= self.columns.keys():
            self.columns |= dict.fromkeys(cells)
            self.fields = fields_of(self.columns, self.chosen)
        self.filled |= {f for f, column in self.fields.items() if not is_missing(cells.get(column))}
        return sample_of(cells, self.fields, where=where)

    def require_chosen(self, name: str) -> None:
        for one, column in self.chosen.items():
            if self.count and column not in self.columns:
                msg = (
                    f"{name} has no column {column!r} for the {one};"
                    f" columns found: {', '.join(self.columns) or 'none'}"
                )
                raise ConfigError(msg)


_SAMPLE_FIELDS = tuple(one.name for one in fields(Sample))
