"""Play traffic for a look at dashboards and alerts, in the phases of `PHASES`.

    OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 python collector/look/traffic.py --minutes 10

The app is that of `rag-eval-otel demo`. A user rates one of three answers. The exit status is 1 if
the app has traces that were not exported.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.vectorstores import InMemoryVectorStore
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

from rag_eval_otel import instrument, record_feedback
from rag_eval_otel.config import Config
from rag_eval_otel.drift import DriftOptions
from rag_eval_otel.errors import JudgeTransportError
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.runtime.providers import Providers, exporters
from rag_eval_otel.tools.demo import TURNS, HandbookModel, Turn, build_app
from rag_eval_otel.types import Replies, Usage

if TYPE_CHECKING:
    from langchain_core.documents import Document
    from langchain_core.outputs import ChatResult

REQUEST = " (request "
"""What follows a question, before its number: replies of the judge to equal texts are cached."""

_LATENCY = 0.02  # seconds for a reply of the judge
_INTERVAL = 1000  # milliseconds between two exports of metrics
_LAST_SCORES_SECONDS = 30.0  # seconds for the last scores
_TOKENS = (400, 60)  # tokens of a task: of its prompt, and of the reply
_FEEDBACK_EVERY = 3  # turns, of which one gets feedback
_GOOD = tuple(turn for turn in TURNS if turn.defect == "none")
_BAD = tuple(turn for turn in TURNS if turn.defect in {"made_up", "off_topic"})


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of the traffic, with a ``share`` of the time. One of ``bad_every`` answers is bad."""

    name: str
    share: float
    bad_every: int = 30
    has_judge: bool = True


PHASES = (
    Phase(name="healthy traffic", share=0.30),
    Phase(name="bad deployment: every second answer is wrong", share=0.15, bad_every=2),
    Phase(name="rolled back", share=0.15),
    Phase(name="judge outage: no request is answered", share=0.15, has_judge=False),
    Phase(name="recovered", share=0.25),
)


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


class Model(HandbookModel):
    """Answer a question without its number."""

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        question = HumanMessage(str(messages[-1].content).partition(REQUEST)[0])
        return super()._generate([question], *args, **kwargs)


class Handbook(InMemoryVectorStore):
    """Search for a question without its number, which is in the passages, too."""

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        question, request, number = query.partition(REQUEST)
        documents = super().similarity_search(question, k, **kwargs)
        return [
            each.model_copy(update={"page_content": f"{each.page_content}{request}{number}"})
            for each in documents
        ]


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
            msg = "an outage of the judge"
            raise JudgeTransportError(msg)
        replies = await self._judge.reply(tasks)
        prompt, completion = (len(tasks) * tokens for tokens in _TOKENS)
        usage = Usage(judge_requests=1, prompt_tokens=prompt, completion_tokens=completion)
        return replace(replies, model=self.model, usage=usage)


def play(
    *,
    minutes: float,
    rate: float,
    now: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
) -> int:
    """Ask ``rate`` questions a second for ``minutes``, and return the exit status."""
    results: list[bool] = []
    judge, start = HandbookJudge(), now()
    providers = Providers.exporting(
        traces=[_watched(exporter, results) for exporter in exporters("traces")],
        metrics=[
            PeriodicExportingMetricReader(exporter, export_interval_millis=_INTERVAL)
            for exporter in exporters("metrics")
        ],
        logs=[*exporters("logs")],
        service="handbook",
    )
    config = Config.from_env(
        judge=judge,
        prices={"models": {judge.model: {"input": 0.25, "output": 2.0}}},
        budget="100 USD/day",
        drift=DriftOptions(learn=200, every=10_000),
        # answer_relevancy asks about the answer alone, and replies to equal answers are cached.
        metrics=["context_relevance", "faithfulness", "response_groundedness"],
    )
    handle = instrument(
        config,
        tracer_provider=providers.tracer_provider,
        meter_provider=providers.meter_provider,
        logger_provider=providers.logger_provider,
    )
    app, last = build_app(Model, Handbook), None
    for number, (phase, turn) in enumerate(planned(max(1, round(minutes * 60 * rate)))):
        wait(max(0.0, start + number / rate - now()))
        if phase is not last:
            sys.stdout.write(f"{number / rate:6.0f} s  {phase.name}\n")
            sys.stdout.flush()
            if judge.answers:  # turns wait for the end of an outage, and are scored then
                handle.flush(_LAST_SCORES_SECONDS)  # the last phase is judged as it was
            last, judge.answers = phase, phase.has_judge
        question, run = f"{turn.question}{REQUEST}{number})", uuid4()
        app.invoke(question, config={"callbacks": [handle.callback], "run_id": run})
        if (number + 1) % _FEEDBACK_EVERY == 0:
            record_feedback(turn.defect == "none", trace_id=run)
    handle.shutdown(_LAST_SCORES_SECONDS)
    providers.shutdown()
    counted = ", ".join(f"{count} {name}" for name, count in sorted(handle.stats.turns.items()))
    sys.stdout.write(f"turns: {counted}; {results.count(False)} of {len(results)} exports failed\n")
    return 0 if results and all(results) else 1


def _watched(exporter: Any, results: list[bool]) -> Any:
    export = exporter.export

    def watched(spans: Any) -> Any:
        result = export(spans)
        results.append(result.name == "SUCCESS")
        return result

    exporter.export = watched
    return exporter


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=2.0, help="questions a second")
    options = parser.parse_args()
    sys.exit(play(minutes=options.minutes, rate=options.rate))
