"""The edge table: what the peers say to a case, and what we say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from golden.cases import Case
from golden.run import outcome_of

_COLUMNS = ("case", "peer", "it says", "we say", "note")


def edge_tables(cases: Sequence[Case]) -> Iterator[str]:
    """Yield a heading and a table for each metric."""
    for metric in sorted({case["metric"] for case in cases}):
        yield f"### {metric}"
        rows = [edge_row(case) for case in cases if case["metric"] == metric]
        yield table(_COLUMNS, rows)


def edge_row(case: Case) -> tuple[str, ...]:
    """Return the cells of a case; all but the note have something in them."""
    return (
        f"`{case['id']}`",
        " ".join(filter(None, [case["source"], case.get("variant")])),
        peer_says(case),
        str(outcome_of(case)),
        case.get("note", ""),
    )


def peer_says(case: Case) -> str:
    """Return the outcome recorded of the peer."""
    if case["expected"] is not None:
        return f"{case['expected']:.6g}"
    if case["outcome"] != "error":
        return str(case["outcome"])
    return f"error: {_kinds(case['error'])}"


def _kinds(error: Any) -> str:
    if isinstance(error, str):
        return error
    return ", ".join(f"{kind} ({variant})" for variant, kind in error.items())


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", r"\|").split())
