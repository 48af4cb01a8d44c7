"""Our outcome for a golden case: scores, their mean, or the error that refuses the input."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from golden.cases import Case, Row, golden_dataset, is_batch, rows_of
from golden.judges import GoldenJudge
from golden.metrics import metric_of
from rag_eval_otel.evaluation import Measurement
from rag_eval_otel.judge.codec import read_parts
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.metrics.base import Metric
from rag_eval_otel.testing.fakes import FakeEmbedder, FakeJudge
from rag_eval_otel.tools.read import check_needs
from rag_eval_otel.tools.stats import Summary
from rag_eval_otel.types import Evaluation, Score
from scoring import LOOP

REPAIRS = 4  # the peers take up to five attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What we say to a case: scores and their mean, the error that refuses it, or just nothing."""

    scores: tuple[Score, ...] = ()
    value: float | None = None
    batch: bool = False
    refused: str = ""

    def __str__(self) -> str:
        if self.refused:
            return self.refused
        if len(self.scores) == 1:
            return told(self.scores[0])
        if not self.batch:
            return "accepted"
        rows = "; ".join(map(told, self.scores)) or "none"
        return f"{'no mean' if self.value is None else f'mean {self.value:.6g}'} (rows: {rows})"


def told(score: Score) -> str:
    if score.value is None:
        return f"{score.status}: {score.reason}"
    return f"{score.value:.6g}" + (f" ({score.reason})" if score.reason else "")


def outcome_of(case: Case, *, share_requests: bool = True) -> Outcome:
    try:
        asked = list(_asked(case))
    except (TypeError, ValueError) as error:  # ConfigError is one
        return Outcome(refused=f"{type(error).__name__}: {error}")
    scores = [_score(case, row, metric, share_requests=share_requests) for row, metric in asked]
    scores += map(_given, case["inputs"].get("scores", ()))
    batch = is_batch(case) or case["metric"] == "aggregate_mean"
    silent = not case["judge"] and any(score.reason == "unparsable" for score in scores)
    if silent or not (scores or batch):
        return Outcome()
    value = _mean(scores) if batch else scores[0].value
    return Outcome(scores=tuple(scores), value=value, batch=batch)


def _asked(case: Case) -> Iterator[tuple[Row, Metric]]:
    if case["metric"] == "aggregate_mean":
        return
    if "constructor" in case["params"]:
        metric_of(case)
        return
    rows = [(row, metric_of(case, row)) for row in rows_of(case)]
    if is_batch(case):
        check_needs([metric for _, metric in rows[:1]], golden_dataset(case))
    yield from rows


def _given(value: float | None) -> Score:
    if value is None or math.isnan(value):
        return Score(name="given", status="undefined", reason="missing_input")
    return Score(name="given", value=value)


def _mean(scores: Sequence[Score]) -> float | None:
    name = scores[0].name if scores else "none"
    summary = Summary([name])
    for score in scores:
        summary.add(Evaluation(scores=(score,)))
    return summary.totals()[name].mean


def _score(case: Case, row: Row, metric: Metric, *, share_requests: bool) -> Score:
    script = GoldenJudge(case, row)
    measurement = Measurement(
        metrics=(metric,),
        judge=FakeJudge(lambda task: _read(script(task.prompt), task)),
        embedder=FakeEmbedder(case.get("embeddings") or {}),
        share_requests=share_requests,
        repairs=REPAIRS,
    )
    return LOOP.run_until_complete(measurement.of(row.sample)).scores[0]


def _read(said: object, task: Task[Any]) -> object:
    return read_parts(said, [task])[0] if isinstance(said, str) else said
