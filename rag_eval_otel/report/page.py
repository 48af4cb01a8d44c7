"""The page: everything of a file of scores in one HTML document that needs nothing else."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from importlib.resources import files
from string import Template

from rag_eval_otel.report.cost import cost_section
from rag_eval_otel.report.coverage import coverage_section
from rag_eval_otel.report.markup import Html, joined, quoted, tag
from rag_eval_otel.report.metric import Explanations, Shown, name_of, section, shown
from rag_eval_otel.report.scale import told
from rag_eval_otel.report.series import Scores
from rag_eval_otel.report.tables import interval, number, table

MOST_SECTIONS = 60
"""Metrics of services with a section of their own; the tables at the top have all of them."""


def render(scores: Scores, *, name: str, explanations: Explanations = "off") -> str:
    """Return the page of ``scores`` from the file called ``name``.

    Explanations and questions, which quote user data, are on it only where ``explanations`` is on.
    """
    found = [shown(one, anchor=f"m{i}") for i, one in enumerate(scores.series.values())]
    style = _part("style.css")
    return Template(_part("page.html")).substitute(
        title=joined("Scores of ", name),
        hash=b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        style=style,
        body=joined(*_body(scores, found, name=name, explanations=explanations)),
    )


def _part(name: str) -> str:
    return (files("rag_eval_otel.report") / "templates" / name).read_text(encoding="utf-8")


def _body(
    scores: Scores, found: Sequence[Shown], *, name: str, explanations: Explanations
) -> Iterator[Html]:
    services = len(scores.services)
    yield tag("h1", "Scores of ", quoted(name))
    yield tag("p", *_head(scores))
    yield _overview(found, services)
    for one in found[:MOST_SECTIONS]:
        yield section(one, services=services, explanations=explanations)
    if len(found) > MOST_SECTIONS:
        left = f"{len(found) - MOST_SECTIONS:,} more are in the tables alone."
        yield tag("p", left, class_="note")
    named = [(name_of(one.series, services=services), one.series) for one in found]
    yield coverage_section(named, scores.unscored)
    yield cost_section(scores)
    yield tag("footer", tag("p", f"Written by rag-eval-otel {version('rag-eval-otel')}."))


def _head(scores: Scores) -> Iterator[str | Html]:
    yield f"{scores.turns:,} turns"
    if scores.first is not None and scores.last is not None:
        yield f", {told(scores.first, 'time')} to {told(scores.last, 'time')}"
    if any(scores.services):
        yield "; services: "
        yield from _listed(scores.services)
    yield "; judges: "
    yield from _listed(list(scores.judges) or ["not told"])
    yield "."


def _listed(names: Sequence[str]) -> Iterator[str | Html]:
    for i, name in enumerate(names[:_MOST_NAMES]):
        yield ", " if i else ""
        yield quoted(name or "unknown service")
    if len(names) > _MOST_NAMES:
        yield f" and {len(names) - _MOST_NAMES:,} more"


_MOST_NAMES = 8


def _overview(found: Sequence[Shown], services: int) -> Html:
    head = ("metric", "mean", "95 % interval", "median", "scores", "undefined", "error", "passed")
    rows = [
        (
            _link(one, services, linked=i < MOST_SECTIONS),
            number(one.summary.mean),
            interval(one.summary.interval),
            number(one.summary.median),
            f"{one.summary.ok:,}",
            f"{one.summary.undefined:,}",
            f"{one.summary.error:,}",
            f"{one.summary.passed:,}/{one.summary.labelled:,}" if one.summary.labelled else "-",
            _alarms(one),
        )
        for i, one in enumerate(found)
    ]
    return tag("nav", table("Overview", (*head, "drift alarms"), rows), aria_label="Metrics")


def _link(one: Shown, services: int, *, linked: bool) -> Html:
    name = name_of(one.series, services=services)
    return tag("a", name, href=f"#{one.anchor}") if linked else name


def _alarms(one: Shown) -> Html:
    return tag("strong", f"{one.alarms:,}") if one.marks else tag("span", "0")
