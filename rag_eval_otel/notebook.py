"""HTML by which notebooks show samples, evaluations and results (``_repr_html_``).

All texts are escaped, so that texts of users and judges cannot add markup to a notebook.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

_MOST_TEXT = 2000  # characters of a text
_MOST_ITEMS = 50  # items of a list
_TEXT = "white-space: pre-wrap; text-align: left"
_HEAD = "text-align: left; vertical-align: top"


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]], *, caption: str = "") -> str:
    """Return a table with the column names ``head``, which may be empty.

    A cell is a text, a number, or a list of texts. The first cell of a row is its name. None is
    shown as a dash.
    """
    title = f'<caption style="{_HEAD}">{escape(caption)}</caption>' if caption else ""
    names = "".join(f'<th scope="col" style="{_HEAD}">{escape(name)}</th>' for name in head)
    top = f"<thead><tr>{names}</tr></thead>" if head else ""
    body = "".join(
        f'<tr><th scope="row" style="{_HEAD}">{_cell(first)}</th>'
        + "".join(f'<td style="{_TEXT}">{_cell(cell)}</td>' for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return f"<table>{title}{top}<tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, list | tuple):
        items = "".join(f"<li>{_cell(item)}</li>" for item in value[:_MOST_ITEMS])
        left = len(value) - _MOST_ITEMS
        return f"<ol>{items}</ol>" + (f"and {left} more" if left > 0 else "")
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    shown = text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + "…"
    return f"<bdi>{escape(shown)}</bdi>"


def html_text(text: str) -> str:
    """Return ``text``, such as an aligned table, as preformatted HTML."""
    return f"<pre>{escape(text)}</pre>"


def html_lines(lines: Sequence[str]) -> str:
    """Return ``lines``, such as remarks below a table, as HTML; without lines, an empty text."""
    return html_text("\n".join(lines)) if lines else ""


def sample_html(sample: Any) -> str:
    """Return the texts of a `rag_eval_otel.types.Sample` as a table."""
    return html_table((), _fields(sample))


def _fields(sample: Any) -> Iterator[tuple[str, object]]:
    yield "question", sample.question
    yield "contexts", [passage.text for passage in sample.contexts]
    yield "answer", sample.answer
    if sample.reference is not None:
        yield "reference", sample.reference
    yield from sorted(sample.extra.items())


def evaluation_html(evaluation: Any) -> str:
    """Return the scores of a `rag_eval_otel.types.Evaluation` as a table."""
    label = f", {evaluation.label}" if evaluation.label else ""
    return html_table(
        ("metric", "score", "label", "threshold", "status", "reason", "explanation"),
        [
            (s.name, s.value, s.label, s.threshold, s.status, s.reason, s.explanation)
            for s in evaluation.scores
        ],
        caption=f"{evaluation.status}{label}; judge: {evaluation.judge or 'none'}",
    )
