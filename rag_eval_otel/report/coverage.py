"""The section on coverage: how many evaluations gave a score, and why others gave none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rag_eval_otel.report.charts import shares
from rag_eval_otel.report.markup import Child, Html, quoted, tag
from rag_eval_otel.report.series import Series
from rag_eval_otel.report.tables import table

_MOST = 20  # reasons and statuses by name


def coverage_section(found: Sequence[tuple[Html, Series]], unscored: Counter[str]) -> Html:
    """Return the section; each series comes with its name, and turns without scores by status."""
    head = ("metric", "ok, undefined, error", "ok", "undefined", "error", "reasons")
    rows = [(name, *_cells(series)) for name, series in found]
    return tag(
        "section",
        tag("h2", "Coverage", id="coverage-name"),
        table("What became of the evaluations", head, rows),
        _without(unscored) if unscored else None,
        id="coverage",
        aria_labelledby="coverage-name",
    )


def _without(unscored: Counter[str]) -> Html:
    rows = [(quoted(status), f"{count:,}") for status, count in unscored.most_common(_MOST)]
    return table("Turns whose spans left without scores", ("status", "turns"), rows)


def _cells(series: Series) -> Iterator[Child]:
    counts = [series.tally.counts[status] for status in ("ok", "undefined", "error")]
    yield shares(counts)
    yield from (_share(count, sum(counts)) for count in counts)
    yield _reasons(series)


def _share(count: int, whole: int) -> str:
    return f"{count:,} ({count / whole:.1%})" if count else "0"


def _reasons(series: Series) -> Child:
    most = series.failed.most_common(_MOST)
    told = [
        [", " if i else None, f"{count:,} {status}: ", quoted(reason or "no reason told", most=80)]
        for i, ((status, reason), count) in enumerate(most)
    ]
    more = len(series.failed) - len(most)
    return [told or "-", f" and {more:,} more" if more else None]
