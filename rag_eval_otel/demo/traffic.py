"""Play traffic with a bad deployment and a judge outage, for a look at the dashboards."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias
from uuid import uuid4

from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

from rag_eval_otel.config import Config
from rag_eval_otel.demo.app import REQUEST, TURNS, Turn, build_app
from rag_eval_otel.demo.show import Elsewhere
from rag_eval_otel.drift.options import DriftOptions
from rag_eval_otel.errors import ConfigError, JudgeTransportError
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.live.instrument import Handle, instrument
from rag_eval_otel.live.recorded import record_feedback
from rag_eval_otel.runtime.providers import Providers
from rag_eval_otel.types import Replies, Usage

_LATENCY = 0.02  # seconds for a reply of the judge
_INTERVAL = 1000  # milliseconds between two exports of metrics
_MAX_WAIT = 30.0  # seconds for the last scores
_TOKENS = (400, 60)  # tokens of a task: of its prompt, and of the reply
_FEEDBACK_EVERY = 3  # turns, of which one gets feedback
_GOOD = tuple(turn for turn in TURNS if turn.defect == "none")
_BAD = tuple(turn for turn in TURNS if turn.defect in {"made_up", "off_topic"})

JudgeState: TypeAlias = Literal["up", "down"]
"""Whether the judge answers, or has an outage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of the traffic.

    ``share`` is its share of the time. One of ``bad_every`` answers is bad.
    """

    name: str
    share: float
    bad_every: int
    judge: JudgeState = "up"


PHASES: tuple[Phase, ...] = (
    Phase(name="healthy traffic", share=0.30, bad_every=30),
    Phase(name="bad deployment: every second answer is wrong", share=0.15, bad_every=2),
    Phase(name="rolled back", share=0.15, bad_every=30),
    Phase(name="judge outage: no request is answered", share=0.15, bad_every=30, judge="down"),
    Phase(name="recovered", share=0.25, bad_every=30),
)


class HandbookJudge:
    """The offline judge, with the latency, the token counts and the outages of a remote judge."""

    model = "handbook-judge"
    label_metrics = LexicalJudge.label_metrics

    def __init__(self) -> None:
        self.state: JudgeState = "up"
        self._judge = LexicalJudge()

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Return the replies of the offline judge; raise `JudgeTransportError` in an outage."""
        await asyncio.sleep(_LATENCY)
        if self.state != "up":
            msg = "the demo plays an outage of the judge"
            raise JudgeTransportError(msg)
        replies = await self._judge.reply(tasks)
        prompt, completion = (len(tasks) * tokens for tokens in _TOKENS)
        usage = Usage(judge_requests=1, prompt_tokens=prompt, completion_tokens=completion)
        return replace(replies, model=self.model, usage=usage)


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The time of the traffic; tests use one that does not wait."""

    now: Callable[[], float] = time.monotonic
    wait: Callable[[float], object] = threading.Event().wait


def run_traffic(
    *, minutes: float, rate: float, write: Callable[[str], object], clock: Clock | None = None
) -> int:
    """Ask ``rate`` questions a second for ``minutes``, in the phases of `PHASES`.

    A user rates one of three answers: good, or bad if it is wrong. Scores and feedback go to the
    OTLP endpoint that the environment names, metrics every second. The phases are printed with
    ``write`` as they begin, and at the end what was exported. Return 0 if all exports succeeded,
    else 1. Raises `ConfigError` if no endpoint is named or none accepts exports.
    """
    if not (minutes > 0 and rate > 0):
        msg = f"--minutes and --rate must be above 0, not {minutes:g} and {rate:g}"
        raise ConfigError(msg)
    elsewhere, judge = Elsewhere(), HandbookJudge()
    traces = [*elsewhere.exporters("traces")]
    if not traces:
        why = (
            "; ".join(elsewhere.failures())
            or "set OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318"
        )
        msg = f"traffic is for a look at a backend, and there is none: {why}"
        raise ConfigError(msg)
    providers = Providers.exporting(
        traces=traces,
        metrics=[
            PeriodicExportingMetricReader(exporter, export_interval_millis=_INTERVAL)
            for exporter in elsewhere.exporters("metrics")
        ],
        logs=elsewhere.exporters("logs"),
        service="handbook",
    )
    handle = _instrumented(judge, providers)
    turns = max(1, round(minutes * 60 * rate))
    _ask(handle, judge, turns=turns, rate=rate, write=write, clock=clock or Clock())
    handle.shutdown(_MAX_WAIT)
    providers.shutdown()
    counted = ", ".join(f"{count} {name}" for name, count in sorted(handle.stats.turns.items()))
    failures = [*elsewhere.failures()]
    write("\n".join([f"turns: {counted}", *elsewhere.exported(), *failures]) + "\n")
    return 1 if failures else 0


def _instrumented(judge: HandbookJudge, providers: Providers) -> Handle:
    prices = {"models": {judge.model: {"input": 0.25, "output": 2.0}}}
    config = Config.from_env(
        judge=judge,
        prices=prices,
        budget="100 USD/day",
        drift=DriftOptions(learn=200, every=10_000),
        # answer_relevancy asks about the answer alone, and replies to equal answers are cached.
        metrics=["context_relevance", "faithfulness", "response_groundedness"],
    )
    return instrument(
        config,
        tracer_provider=providers.tracer_provider,
        meter_provider=providers.meter_provider,
        logger_provider=providers.logger_provider,
    )


def _ask(
    handle: Handle,
    judge: HandbookJudge,
    *,
    turns: int,
    rate: float,
    write: Callable[[str], object],
    clock: Clock,
) -> None:
    app, start = build_app(), clock.now()
    last: Phase | None = None
    for number, (phase, turn) in enumerate(planned(turns)):
        clock.wait(max(0.0, start + number / rate - clock.now()))
        if phase is not last:
            write(f"{number / rate:6.0f} s  {phase.name}\n")
            handle.flush(_MAX_WAIT)  # the last phase is judged as it was
            last, judge.state = phase, phase.judge
        question, run = f"{turn.question}{REQUEST}{number})", uuid4()
        app.invoke(question, config={"callbacks": [handle.callback], "run_id": run})
        if (number + 1) % _FEEDBACK_EVERY == 0:
            record_feedback(turn.defect == "none", trace_id=run)


def planned(turns: int) -> Iterator[tuple[Phase, Turn]]:
    """Yield the phase and the question of each of ``turns`` turns."""
    ends, end = [], 0.0
    for phase in PHASES:
        end += phase.share
        ends.append((round(end * turns), phase))
    for number in range(turns):
        phase = next((phase for until, phase in ends if number < until), PHASES[-1])
        is_bad = number % phase.bad_every == phase.bad_every - 1
        among = _BAD if is_bad else _GOOD
        yield phase, among[number // (phase.bad_every if is_bad else 1) % len(among)]
