"""Evaluate identical turns that come at the same time once."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import replace

from rag_eval_otel.evaluation import Measurement
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.types import Evaluation, Sample, Usage


class SharedEvaluations:
    """Evaluates identical samples that come at the same time once.

    The first caller evaluates the sample, and the others get its result, without usage and cost.
    Later callers evaluate the sample again, with replies and vectors from caches.
    """

    def __init__(self) -> None:
        # The thread is a part of the key: a blocked event loop may never finish an evaluation.
        self._under_way: dict[tuple[int, int, Sample], Future[Evaluation | None]] = {}
        # A forked child has none of the threads, and the system reuses their numbers.
        call_in_child(self._reset)

    def _reset(self) -> None:
        self._under_way.clear()

    async def of(self, measurement: Measurement, sample: Sample) -> Evaluation:
        """Return the scores of ``sample`` by ``measurement``."""
        key = (threading.get_ident(), id(measurement), sample)
        shared = self._under_way.get(key)
        while shared is not None:
            # A caller that is cancelled must not cancel what the other callers wait for.
            evaluation = await asyncio.shield(asyncio.wrap_future(shared))
            if evaluation is not None:
                return _unpaid(evaluation)
            shared = self._under_way.get(key)  # the first evaluation has failed
        made = self._under_way[key] = Future()
        evaluation = None
        try:
            evaluation = await measurement.of(sample)
        finally:
            del self._under_way[key]
            if not made.done():  # at a shutdown, one of the other callers may have cancelled it
                made.set_result(evaluation)
        return evaluation


def _unpaid(evaluation: Evaluation) -> Evaluation:
    """Return ``evaluation`` without its usage and cost, which count for another turn."""
    scores = tuple(replace(score, usage=Usage(), cost=None) for score in evaluation.scores)
    return replace(evaluation, scores=scores, usage=Usage(), cost=None)
