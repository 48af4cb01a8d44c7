"""Evaluate equal turns once: those that come at the same time, and those that come again."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Final

from rag_eval_otel.evaluation import Measurement, is_final
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.types import Evaluation, Sample, Score, Usage

_EXPORTED = ("injection", "truncated")
"""The entries of details that are exported, and quote no texts."""
_UNUSED: Final = Usage()  # one object for all scores that are kept


class SharedEvaluations:
    """Evaluates equal samples by ``measurement`` once.

    Of samples that come at the same time, the first is evaluated, and the others get its scores.
    The scores of the last ``max_kept`` samples are kept for those that come again, if all of them
    are final: none has failed, and none lacks a usable reply. Scores that are shared or kept have
    no usage and cost. Only digests of samples are kept, and details that quote texts only with
    ``explanations``. ``count`` is called with ``hit`` or ``miss`` for each sample, unless nothing
    is kept.
    """

    def __init__(
        self,
        measurement: Measurement,
        *,
        max_kept: int = 0,
        count: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._measurement = measurement
        self._max_kept = max_kept
        self._count = count if max_kept else lambda _: None
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        """Forget the evaluations; a forked child has none of the threads, and needs a new lock."""
        self._lock = threading.RLock()
        # The thread is a part of the key: a blocked event loop may never finish an evaluation.
        self._under_way: dict[tuple[int, str], Future[Evaluation | None]] = {}
        self._kept: OrderedDict[str, Evaluation] = OrderedDict()

    async def of(self, sample: Sample) -> Evaluation:
        """Return the scores of ``sample``; raise `RedactionError` if ``redact`` fails."""
        started = self._measurement.clock()
        prepared, cut = self._measurement.prepared(sample)
        key = self._key(prepared)
        kept = self._find(key, started)
        if kept is not None:
            return kept
        place = (threading.get_ident(), key)
        while (shared := self._under_way.get(place)) is not None:
            # A caller that is cancelled must not cancel what the other callers wait for.
            evaluation = await asyncio.shield(asyncio.wrap_future(shared))
            if evaluation is not None:  # else the first evaluation has failed
                return _unpaid(evaluation)
        self._count("miss")
        result = self._under_way[place] = Future[Evaluation | None]()
        evaluation = None
        try:
            evaluation = await self._measurement.of_prepared(prepared, cut)
        finally:
            del self._under_way[place]
            if not result.done():  # at a shutdown, one of the other callers may have cancelled it
                result.set_result(evaluation)
        self._keep(key, evaluation)
        return evaluation

    def known(self, sample: Sample) -> Evaluation | None:
        """Return the scores of ``sample`` if they are kept, else None."""
        started = self._measurement.clock()
        return self._find(self._key(self._measurement.prepared(sample)[0]), started)

    def _key(self, sample: Sample) -> str:
        # A judge may change its model, also while a process runs.
        text = repr((self._measurement.judge.model, sample))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def _find(self, key: str, started: float) -> Evaluation | None:
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                return None
            self._kept.move_to_end(key)
        self._count("hit")
        return replace(kept, duration=self._measurement.clock() - started)

    def _keep(self, key: str, evaluation: Evaluation) -> None:
        if not self._max_kept or not all(map(is_final, evaluation.scores)):
            return
        kept = _unpaid(evaluation)
        if not self._measurement.explanations:
            kept = replace(kept, scores=tuple(map(_without_texts, kept.scores)))
        with self._lock:
            self._kept[key] = kept
            while len(self._kept) > self._max_kept:
                self._kept.popitem(last=False)


def _unpaid(evaluation: Evaluation) -> Evaluation:
    """Return ``evaluation`` without its usage and cost, which count for another turn."""
    scores = tuple(replace(score, usage=_UNUSED, cost=None) for score in evaluation.scores)
    return replace(evaluation, scores=scores, usage=_UNUSED, cost=None)


def _without_texts(score: Score) -> Score:
    """Return ``score`` without texts that are not exported, which take most of its memory."""
    detail = {name: score.detail[name] for name in _EXPORTED if name in score.detail}
    return replace(score, explanation=None, detail=detail)
