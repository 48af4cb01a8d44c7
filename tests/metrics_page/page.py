"""The page: an introduction by hand, the metrics by their docstrings, counts, the edge table."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from golden.cases import GOLDEN_EDGE, golden_cases
from metrics_page.counts import count
from metrics_page.edges import edge_tables, table
from rag_eval_otel.metrics import (
    METRIC_SETS,
    METRICS,
    CrossEncoderSimilarity,
    FunctionMetric,
    LLMMetric,
)
from rag_eval_otel.metrics.outcome import Metric

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "metrics.md"

FIRST = ("relevancy", "groundedness", "context", "ranking", "correctness", "rubric")
"""The order of the modules on the page; others follow. A module's docstring is its heading."""

_ONLINE = ("default", "dual", "online", "reference")
_COUNTED = ("requests, unfused", "fused", "tokens, unfused", "fused", "embedding requests")
_FENCED = re.compile(r"(.*)::\n\n((?: {4}.*\n?|\n)+)")


def page() -> str:
    """Return the page."""
    cases = golden_cases(GOLDEN_EDGE)
    parts = [body(), _text("edges.md").format(cases=len(cases)), *edge_tables(cases)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


@cache
def body() -> str:
    """Return the page up to the edge table."""
    parts = [_text("intro.md"), _sets(), _text("metrics.md"), *_families(), *_of_your_own()]
    return "\n\n".join(part.strip() for part in parts)


def _text(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _sets() -> str:
    rows = [
        (f"`{name}`", ", ".join(m.name for m in METRIC_SETS[name]()), *_counted([name]))
        for name in _ONLINE
    ]
    return table(("set", "metrics", *_COUNTED), rows)


def _counted(metrics: Sequence[str | Metric]) -> tuple[str, ...]:
    single, fused = (count(metrics, fusion=fusion) for fusion in ("off", "on"))
    requests = (str(single.requests), str(fused.requests))
    return (*requests, single.tokens, fused.tokens, str(fused.embedding_requests))


def _families() -> Iterator[str]:
    for module in families():
        names = [name for name, make in METRICS.items() if make.__module__ == module]
        heading = inspect.cleandoc(sys.modules[module].__doc__ or "").splitlines()[0]
        yield f"### {heading}"
        yield table(
            ("name", "needs", "range", *_COUNTED),
            [_row(METRICS[name]()) for name in names],
        )
        for name in names:
            yield f"#### `{name}`: {type(METRICS[name]()).__name__}"
            yield described(type(METRICS[name]()))


def families() -> list[str]:
    """Return the modules of the metrics, in the order of the page."""
    package = METRICS["faithfulness"].__module__.rpartition(".")[0]
    modules = [make.__module__ for make in METRICS.values()]
    return list(dict.fromkeys([*(f"{package}.{name}" for name in FIRST), *sorted(modules)]))


def _of_your_own() -> Iterator[str]:
    yield "### With what you bring"
    for kind in (LLMMetric, FunctionMetric, CrossEncoderSimilarity):
        yield f"#### {kind.__name__}"
        yield described(kind)


def _row(metric: Metric) -> tuple[str, ...]:
    span = str(getattr(metric, "range", ""))
    return (f"`{metric.name}`", ", ".join(sorted(metric.needs)), span, *_counted([metric]))


def described(kind: type) -> str:
    """Return the docstring of ``kind`` as Markdown."""
    text = inspect.cleandoc(kind.__doc__ or "")
    plain = text.replace("``", "`")
    return _FENCED.sub(_fence, f"{plain}\n").strip()


def _fence(found: re.Match[str]) -> str:
    code = inspect.cleandoc(found[2])
    return f"{found[1]}:\n\n```text\n{code}\n```\n\n"
