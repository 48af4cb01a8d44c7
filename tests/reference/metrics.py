"""The page on metrics: each metric by its description, and counts of requests."""

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from rag_eval_otel import metrics as m
from rag_eval_otel.metrics.base import MISSING, Metric
from rag_eval_otel.types import Sample
from reference.counts import CITED, SAMPLE, count

HERE = Path(__file__).parent

FAMILIES: tuple[tuple[ModuleType, Sequence[Metric]], ...] = (
    (m.relevancy, m.relevancy.RELEVANCY),
    (m.groundedness, m.groundedness.GROUNDED),
    (m.context, m.context.CONTEXT),
    (m.citations, ()),
    (m.ranking, m.ranking.RANKING),
    (m.correctness, m.correctness.CORRECT),
    (m.custom, ()),
)
"""The modules in the order of the page, with their rows. A module's docstring is its heading."""

_ONLINE = ("default", "dual", "online", "reference")
_COUNTED = ("requests, unfused", "fused", "tokens, unfused", "fused", "embedding requests")
_FENCED = re.compile(r"(.*)::\n\n((?: {4}.*\n?|\n)+)")


@cache
def page() -> str:
    parts = [_text("sets.md"), _sets(), _text("each_metric.md"), *_families(), *_of_your_own()]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _text(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _sets() -> str:
    rows = [
        (f"`{name}`", ", ".join(m.name for m in m.METRIC_SETS[name]()), *_counted([name]))
        for name in _ONLINE
    ]
    return table(("set", "metrics", *_COUNTED), rows)


def _counted(metrics: Sequence[str | Metric], sample: Sample = SAMPLE) -> tuple[str, ...]:
    single, fused = (
        count(metrics, share_requests=shares, sample=sample) for shares in (False, True)
    )
    requests = (str(single.requests), str(fused.requests))
    return (*requests, single.tokens, fused.tokens, str(fused.embedding_requests))


def names_of(module: ModuleType, rows: Sequence[Metric]) -> list[str]:
    """Return the names of the metrics of ``module``, which has ``rows``, sorted."""
    own = {row.name for row in rows}
    return [
        name
        for name, make in m.METRICS.items()
        if name in own or getattr(make, "__module__", None) == module.__name__
    ]


def _families() -> Iterator[str]:
    for module, rows in FAMILIES:
        names = names_of(module, rows)
        yield f"### {heading(module)}"
        yield table(
            ("name", "needs", "range", *_COUNTED), [_row(m.METRICS[name]()) for name in names]
        )
        for name in names:
            made: Any = m.METRICS[name]()
            yield f"#### `{name}`" + ("" if hasattr(made, "about") else f": {type(made).__name__}")
            yield described(made)


def heading(module: ModuleType) -> str:
    """Return the first line of the docstring of ``module``."""
    return inspect.cleandoc(module.__doc__ or "").splitlines()[0]


def _of_your_own() -> Iterator[str]:
    yield "### With what you bring"
    for kind in (m.LLMMetric, m.FunctionMetric):
        yield f"#### {kind.__name__}"
        yield described(kind)


def _row(metric: Metric) -> tuple[str, ...]:
    low, high = m.scale_of(metric)
    span = "its levels" if high - low > 10 else f"{low:g} to {high:g}"
    counted = _counted([metric], CITED if metric.name.startswith("citation") else SAMPLE)
    return (f"`{metric.name}`", ", ".join(sorted(metric.needs)), span, *counted)


def described(metric: Any) -> str:
    """Return the description of a metric as Markdown."""
    text = inspect.cleandoc(getattr(metric, "about", None) or metric.__doc__ or "")
    plain = text.replace("``", "`")
    blanks = {} if isinstance(metric, type) else metric.blank
    blank = " ".join(_blank(*item) for item in blanks.items())
    return "\n\n".join([_FENCED.sub(_fence, f"{plain}\n").strip(), blank]).strip()


def _blank(field: str, value: float | None) -> str:
    score = "undefined" if value is None else f"{value:g}"
    return f"Without {field}, the score is {score} (`{MISSING[field]}`)."


def _fence(found: re.Match[str]) -> str:
    code = inspect.cleandoc(found[2])
    return f"{found[1]}:\n\n```text\n{code}\n```\n\n"
