"""Recognise turns that are repeated: identical turns at one time, and turns recorded twice."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict, deque
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeAlias

from rag_eval_otel.capture.turn import Turn
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


_MAX_EQUAL = 64  # remembered turns with the same question and answer

_Record: TypeAlias = "tuple[str, int, int]"
"""The name of the instrumentation that recorded a turn, and start and end of the turn in ns."""


class RecentTurns:
    """The last ``max_turns`` RAG turns, to find turns that two instrumentations have recorded.

    A turn is one question of a user and its answer. The callback handler and an instrumentation may
    both record the same turn, and so may two instrumentations. Then the record that comes first
    counts. If one instrumentation records two equal requests at the same time, these are two turns.
    """

    def __init__(self, max_turns: int = 1024) -> None:
        self._max = max_turns
        self._seen: OrderedDict[int, deque[_Record]] = OrderedDict()

    def is_repeated(self, sample: Sample, turn: Turn) -> bool:
        """Return True if another instrumentation has recorded ``turn`` before."""
        key = hash((sample.question, sample.answer))
        steps = (step for step in reversed(turn.path) if step.kind != "other")
        outermost = next(steps, turn.anchor)  # steps of kind "other" around it may be a session
        record = (outermost.source, outermost.start, outermost.end or time.time_ns())
        others = self._seen.setdefault(key, deque(maxlen=_MAX_EQUAL))
        self._seen.move_to_end(key)
        repeated = next((other for other in others if _is_duplicate(record, other)), None)
        if repeated is not None:
            others.remove(repeated)
            return True
        others.append(record)
        while len(self._seen) > self._max:
            self._seen.popitem(last=False)
        return False


def _is_duplicate(record: _Record, other: _Record) -> bool:
    """Return True if the records are from two instrumentations and overlap in time."""
    return record[0] != other[0] and record[1] <= other[2] and other[1] <= record[2]
