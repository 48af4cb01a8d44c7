"""A day of traffic from labelled rows, scored offline, as Prometheus series."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.evaluation import aevaluate
from rag_eval_otel.export.metrics import InstrumentSink
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.semconv import SCORE, TURNS
from rag_eval_otel.types import Evaluation, Sample

STEP, STEPS = 2, 720  # minutes between two scrapes, and scrapes of a day
TURNS_A_STEP = 6
SERVICE = "shop"
Series = Mapping[str, Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Evaluated turns of good answers and of bad ones."""

    good: tuple[Evaluation, ...]
    bad: tuple[Evaluation, ...]

    def day(self, bad: float, *, seed: int = 7) -> list[Evaluation]:
        """Return the turns of a day, each bad with probability ``bad``."""
        draw = random.Random(seed)
        return [
            draw.choice(self.bad if draw.random() < bad else self.good)
            for _ in range(STEPS * TURNS_A_STEP)
        ]


def traffic(rows: Iterable[Mapping[str, Any]]) -> Traffic:
    """Score labelled ``rows`` offline with the default metrics."""
    marked = [(row["faithful"], _evaluated(row)) for row in rows if row.get("faithful") is not None]
    return Traffic(
        good=tuple(one for mark, one in marked if mark),
        bad=tuple(one for mark, one in marked if not mark),
    )


def _evaluated(row: Mapping[str, Any]) -> Evaluation:
    sample = Sample(
        question=row["question"], answer=row["answer"] or "", contexts=tuple(row["contexts"])
    )
    return asyncio.run(aevaluate(sample, judge=LexicalJudge(), embedder=HashingEmbedder()))


def series_of(turns: Sequence[Evaluation]) -> dict[str, list[float]]:
    """Return the series that Prometheus scrapes while ``turns`` are scored."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    sink = InstrumentSink(provider)
    found: dict[str, list[float]] = defaultdict(list)
    for start in range(0, len(turns), TURNS_A_STEP):
        for one in turns[start : start + TURNS_A_STEP]:
            sink(one)
        _scrape(reader, found, count=start // TURNS_A_STEP + 1)
    provider.shutdown()
    return found


def _scrape(reader: InMemoryMetricReader, found: dict[str, list[float]], *, count: int) -> None:
    data = reader.get_metrics_data()
    assert data is not None
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points if metric.name in {SCORE, TURNS} else ():
            for name, value in _values(metric.name.replace(".", "_"), point):
                seen = found[name]
                seen += [0.0] * (count - 1 - len(seen))  # a series that was not there yet
                seen.append(value)


def _values(name: str, point: Any) -> Iterator[tuple[str, float]]:
    labels = {key.replace(".", "_"): value for key, value in point.attributes.items()}
    if not hasattr(point, "bucket_counts"):
        yield _series(f"{name}_total", labels), point.value
        return
    below = 0
    for bound, found in zip((*point.explicit_bounds, "+Inf"), point.bucket_counts, strict=True):
        below += found
        le = bound if bound == "+Inf" else f"{bound:g}"
        yield _series(f"{name}_bucket", {**labels, "le": le}), below
    yield _series(f"{name}_count", labels), point.count
    yield _series(f"{name}_sum", labels), point.sum


def _series(name: str, labels: Mapping[str, str]) -> str:
    told = (f'{label}="{value}"' for label, value in {"service_name": SERVICE, **labels}.items())
    return f"{name}{{{','.join(told)}}}"


def scenario(series: Series, *, rules: str, pages: bool) -> str:
    """Return a promtool scenario of a day that must raise exactly ``pages``."""
    expression = 'count(count_over_time(ALERTS{alertname=~".*",severity="page"}[1d])) > bool 0'
    expected = [{"labels": "{}", "value": 1}] if pages else []
    return json.dumps(
        {
            "rule_files": [rules],
            "evaluation_interval": f"{STEP}m",
            "tests": [
                {
                    "interval": f"{STEP}m",
                    "input_series": [
                        {"series": name, "values": " ".join(f"{value:g}" for value in values)}
                        for name, values in series.items()
                    ],
                    "promql_expr_test": [
                        {"expr": expression, "eval_time": "1d", "exp_samples": expected}
                    ],
                }
            ],
        }
    )
