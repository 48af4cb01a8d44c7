"""Tables of HTML: a caption, names for columns and rows, and the numbers beneath each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rag_eval_otel.dataset.table import interval, number
from rag_eval_otel.report.figures import Mean
from rag_eval_otel.report.markup import Child, Html, tag
from rag_eval_otel.report.scale import Unit, told

__all__ = ["interval", "means_table", "number", "table", "unfolded"]


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Child]]) -> Html:
    """Return a table, the first cell of each row its name; it scrolls where it is too wide."""
    columns = tag("tr", [tag("th", name, scope="col") for name in head])
    body = [
        tag("tr", tag("th", first, scope="row"), [tag("td", cell) for cell in rest])
        for first, *rest in rows
    ]
    made = tag("table", tag("caption", caption), tag("thead", columns), tag("tbody", body))
    return tag("div", made, class_="wide", tabindex=0, role="region", aria_label=caption)


def unfolded(summary: str, *children: Child) -> Html:
    """Return what is shown once it is asked for, and always in print."""
    return tag("details", tag("summary", summary), *children)


def means_table(caption: str, versions: Iterable[tuple[str, Iterable[Mean]]], unit: Unit) -> Html:
    """Return the means of parts of each version's scores."""
    head = ("from", "to", "version", "scores", "mean", "95 % interval", "lowest")
    rows = [
        (
            told(part.since, unit),
            told(part.at, unit),
            name,
            f"{part.n:,}",
            number(part.mean),
            interval(part.interval),
            number(part.lowest),
        )
        for name, parts in versions
        for part in parts
    ]
    return table(caption, head, rows)
