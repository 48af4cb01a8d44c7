"""Replay recorded traces and print the samples in them.

``python -m rag_eval_otel.testing.replay PATH... [--json]`` feeds each recording in the order in
which a span processor saw it, and prints question, contexts and answer of every turn, or why it
was skipped. ``PATH`` is a recording or a folder of them. ``--contexts-from-prompt on`` is the
option of the same name.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import NoOpTracerProvider

from rag_eval_otel.capture.sample import Outcome, extract, why_none
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.turn import Turn
from rag_eval_otel.config import Config
from rag_eval_otel.live.pipeline import Pipeline
from rag_eval_otel.live.processor import RagEvalSpanProcessor
from rag_eval_otel.live.score import RecentTurns
from rag_eval_otel.sinks.instruments import InstrumentSink, Tally
from rag_eval_otel.testing.recordings import Call, Recording, load
from rag_eval_otel.testing.replayed import ReplayedSpan
from rag_eval_otel.types import UNTOUCHED, ContextsFromPrompt, Sample, SkipReason

if TYPE_CHECKING:
    from rag_eval_otel.live.score import TurnScorer


class _Clock:
    """Tells the time of the call that is being replayed."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class _Noting:
    """In the place of scorer, evaluator and counters: notes what becomes of each turn."""

    def __init__(self) -> None:
        self.evaluator = self
        self.instruments = self
        self.threads: frozenset[int] = frozenset()
        self.tally = Tally()
        self.found: list[Outcome] = []
        self._recent = RecentTurns()

    def is_current(self) -> bool:
        return False

    def admission(self, _trace_id: int) -> None:
        """Admit every turn."""

    def submit(self, job: Any, *_: Any, done: Any = None, **__: Any) -> bool:
        if isinstance(job, Turn):
            self.found.append(Outcome(result=self._read(job), turn=job))
            done(UNTOUCHED)
        else:
            job.begin()
        return True

    def _read(self, turn: Turn) -> Sample | SkipReason:
        result = extract(turn)
        if isinstance(result, Sample) and self._recent.is_repeated(result, turn):
            return "duplicate"
        return result

    def refuse(self, reason: SkipReason) -> None:
        self.found.append(Outcome(result=reason))

    def refuse_steps(self, steps: Sequence[Step]) -> SkipReason | None:
        reason = why_none(steps)
        if reason is not None:
            self.refuse(reason)
        return reason

    def turn(self, _outcome: str, reason: SkipReason) -> None:
        self.refuse(reason)

    def drop(self, reason: str) -> None:
        raise AssertionError(reason)

    def shutdown(self, _timeout: float) -> None:
        """There is no thread to stop."""


class _Exported(SpanProcessor):
    """Counts the spans that leave."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


def replay(
    calls: Iterable[Call],
    *,
    timed: bool = True,
    contexts_from_prompt: ContextsFromPrompt = "off",
) -> list[Outcome]:
    """Feed ``calls`` to the span processor and return what becomes of the turns in them.

    ``timed``: traces end when the recorded time says so, else all at the end. Raises
    `AssertionError` if a span that entered did not leave exactly once.
    """
    noting, clock, exported = _Noting(), _Clock(), _Exported()
    pipeline = Pipeline(
        Config(errors="raise", contexts_from_prompt=contexts_from_prompt),
        provider=NoOpTracerProvider(),
        instruments=InstrumentSink(NoOpMeterProvider()),
        scorer=cast("TurnScorer", noting),
        clock=clock,
    )
    processor = RagEvalSpanProcessor(exported, pipeline)
    pipeline.sweeper.stop()  # time is told by the calls
    live: dict[int, ReplayedSpan] = {}
    for call in calls:
        if timed:
            clock.now = max(clock.now, call.at / 1e9)
            pipeline.buffer.sweep()
        _feed(call, live, processor)
    pipeline.drain(0.0)
    ended = sum(span.end_time is not None for span in live.values())
    if len(exported.spans) != ended or len({id(span) for span in exported.spans}) != ended:
        msg = f"{ended} spans ended, {len(exported.spans)} left"
        raise AssertionError(msg)
    return sorted(noting.found, key=_start) or [Outcome(result="no_retrieval")]


def _feed(call: Call, live: dict[int, ReplayedSpan], processor: RagEvalSpanProcessor) -> None:
    if call.operation == "start":
        live[call.span.span_id] = span = ReplayedSpan(call.span)
        processor.on_start(cast("Span", span))
        return
    span = live.setdefault(call.span.span_id, ReplayedSpan(call.span))
    for record in call.span.logs:
        processor.pipeline.buffer.logged(call.span.trace_id, call.span.span_id, record)
    span.fill(call.span)
    processor.on_end(span)


def _start(outcome: Outcome) -> int:
    return outcome.turn.anchor.start if outcome.turn is not None else 0


def as_json(recording: Recording, found: Sequence[Outcome]) -> dict[str, Any]:
    """Return one file's line of the report."""
    return {
        "file": recording.path.name,
        "instrumentation": recording.instrumentation,
        "app": recording.app,
        "samples": [_sample(one) for one in found],
    }


def _sample(outcome: Outcome) -> dict[str, Any]:
    result = outcome.result
    if not isinstance(result, Sample):
        empty = {"question": None, "contexts": None, "answer": None}
        return {**empty, "status": "skipped", "reason": result}
    return {
        "question": result.question,
        "contexts": [passage.text for passage in result.contexts],
        "answer": result.answer,
        "status": "ok",
        "reason": None,
    }


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        yield from sorted(path.glob("*.json")) if path.is_dir() else [path]


def _line(report: dict[str, Any]) -> str:
    lines = [report["file"]]
    for sample in report["samples"]:
        if sample["status"] == "skipped":
            lines.append(f"  skipped: {sample['reason']}")
        else:
            lines.append(f"  {sample['question']!r} -> {sample['answer']!r}")
            lines += [f"    {text!r}" for text in sample["contexts"]]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay the recordings named on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m rag_eval_otel.testing.replay",
        description="Replay recorded traces and print the samples in them.",
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    parser.add_argument("--json", action="store_true", help="one JSON object per line and file")
    parser.add_argument(
        "--contexts-from-prompt",
        choices=get_args(ContextsFromPrompt),
        default="off",
        help="whether contexts are read out of prompts, by a heading",
    )
    options = parser.parse_args(arguments)
    for path in _files(options.paths):
        recording = load(path)
        reads = options.contexts_from_prompt
        report = as_json(recording, replay(recording.calls, contexts_from_prompt=reads))
        text = json.dumps(report, ensure_ascii=False) if options.json else _line(report)
        sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
