"""Traffic of the demo's app for dashboards and alerts, in the phases of `PHASES`."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any
from uuid import uuid4

from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

from rag_eval_otel.config import Config
from rag_eval_otel.drift import DriftOptions
from rag_eval_otel.environment import Signal
from rag_eval_otel.errors import JudgeTransportError
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.live.instrument import instrument
from rag_eval_otel.live.recorded import record_feedback
from rag_eval_otel.runtime.sdk import Providers
from rag_eval_otel.tools.demo import TURNS, Turn, build_app
from rag_eval_otel.types import Replies, Usage

_LATENCY = 0.02  # seconds for a reply of the judge
_INTERVAL = 1000  # milliseconds between two exports of metrics
_LAST_SCORES_SECONDS = 5.0
_TOKENS = (400, 60)  # tokens of a task: of its prompt, and of the reply
_FEEDBACK_EVERY = 3  # turns, of which one gets feedback
_GOOD = tuple(turn for turn in TURNS if turn.defect == "none")
_BAD = tuple(turn for turn in TURNS if turn.defect in {"made_up", "off_topic"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of the traffic, with a ``share`` of the time. One of ``bad_every`` answers is bad."""

    name: str
    share: float
    bad_every: int = 30
    has_judge: bool = True


PHASES = (
    Phase(name="healthy traffic", share=0.25),
    Phase(name="bad deployment: every second answer is wrong", share=0.25, bad_every=2),
    Phase(name="rolled back", share=0.15),
    Phase(name="judge outage: no request is answered", share=0.15, has_judge=False),
    Phase(name="recovered", share=0.2),
)


def planned(turns: int) -> Iterator[tuple[Phase, Turn]]:
    """Yield the phase and the question of each turn, in cycles of ``turns`` turns."""
    ends = [round(end * turns) for end in accumulate(phase.share for phase in PHASES)]
    while True:
        for number in range(turns):
            phase = PHASES[bisect_right(ends, number)]
            is_bad = number % phase.bad_every == phase.bad_every - 1
            among = _BAD if is_bad else _GOOD
            yield phase, among[number // (phase.bad_every if is_bad else 1) % len(among)]


class HandbookJudge:
    """The offline judge, with the latency, the token counts and the outages of a remote judge."""

    model = "handbook-judge"
    label_metrics = LexicalJudge.label_metrics

    def __init__(self) -> None:
        self.answers = True
        self._judge = LexicalJudge()

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        await asyncio.sleep(_LATENCY)
        if not self.answers:
            raise JudgeTransportError("an outage of the judge")
        replies = await self._judge.reply(tasks)
        prompt, completion = (len(tasks) * tokens for tokens in _TOKENS)
        usage = Usage(judge_requests=1, prompt_tokens=prompt, completion_tokens=completion)
        return replace(replies, model=self.model, usage=usage)


def play(
    exporters: Mapping[Signal, Sequence[Any]],
    *,
    minutes: float,
    rate: float,
    begin: Callable[[str], object],
    wait: Callable[[float], bool],
) -> Mapping[str, int]:
    """Ask ``rate`` questions a second, and return the counts of turns by what became of them.

    All phases take ``minutes`` and are repeated until ``wait``, which gets the seconds until the
    next question, returns True. ``begin`` gets the name of each phase at its start.
    """
    judge, start = HandbookJudge(), time.monotonic()
    readers = [
        PeriodicExportingMetricReader(exporter, export_interval_millis=_INTERVAL)
        for exporter in exporters.get("metrics", ())
    ]
    providers = Providers.exporting(
        traces=exporters["traces"],
        metrics=readers,
        logs=exporters.get("logs", ()),
        service="handbook",
    )
    config = Config.from_env(
        {},  # the variables of the user's own application are not for this one
        judge=judge,
        prices={"models": {judge.model: {"input": 0.25, "output": 2.0}}},
        budget="100 USD/day",
        drift=DriftOptions(learn=200, every=10_000),
        export_content="all",
        host_hooks=False,
    )
    handle = instrument(
        config,
        tracer_provider=providers.tracer_provider,
        meter_provider=providers.meter_provider,
        logger_provider=providers.logger_provider,
    )
    app, last, rated = build_app(), None, None
    for number, (phase, turn) in enumerate(planned(max(1, round(minutes * 60 * rate)))):
        if wait(max(0.0, start + number / rate - time.monotonic())):
            break
        if phase is not last:
            begin(phase.name)
            if judge.answers:  # turns wait for the end of an outage, and are scored then
                handle.flush(_LAST_SCORES_SECONDS)  # the last phase is judged as it was
            last, judge.answers = phase, phase.has_judge
        if rated and number % _FEEDBACK_EVERY == 0:
            record_feedback(rated[0].defect == "none", trace_id=rated[1])
        rated = turn, uuid4()
        app.invoke(turn.question, config={"callbacks": [handle.callback], "run_id": rated[1]})
    handle.shutdown(_LAST_SCORES_SECONDS)
    providers.shutdown()
    return handle.stats.turns
