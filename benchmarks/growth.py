"""How the CPU time of scoring grows: with samples, contexts, their length, and spans in a trace.

The judge composes each request and reads each reply as `OpenAIJudge` does, but sends nothing. Each
size is measured several times, the sizes in turn, and the smallest CPU time counts. The *exponent*
is the slope of a line through the logarithms of size and time, by least squares: 1 is linear. The
*last* exponent is that between the two largest sizes, where fixed costs count least.

``python benchmarks/growth.py [rounds]``
"""

from __future__ import annotations

import gc
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from _common import NullEmbedder, setting
from _turns import reply, turns
from opentelemetry.sdk.trace import TracerProvider

from rag_eval_otel import instrument
from rag_eval_otel.judge.codec import compose, read_parts
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.tools import evaluate_dataset
from rag_eval_otel.types import Replies, Usage

ROUNDS = 3
TRIAD = ["answer_relevancy", "context_relevance", "faithfulness"]
KIND = "openinference.span.kind"
LIMIT = 1.05


class ComposingJudge:
    """A judge that composes requests and reads replies, and answers at once."""

    model = "composing"

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Return the replies that the scripted judge of the benchmarks gives."""
        request = compose(tasks)
        json.dumps([request.system, request.user, request.schema])
        schema = {"json_schema": {"schema": request.schema}}
        messages = [{"content": request.system}, {"content": request.user}]
        said = str(reply({"messages": messages, "response_format": schema}))
        return Replies(
            parts=read_parts(said, tasks), model=self.model, usage=Usage(judge_requests=1)
        )


def scored(rows: Sequence[Mapping[str, Any]]) -> None:
    """Score ``rows`` with the three metrics of the other benchmarks."""
    result = evaluate_dataset(rows, TRIAD, judge=ComposingJudge(), embedder=NullEmbedder())
    assert all(one.ok == len(rows) for one in result.totals.metrics), result.totals


def with_samples(count: int) -> Callable[[], None]:
    """Return a function that scores ``count`` turns, all different."""
    some = turns()
    rows = [
        {**some[i % len(some)], "question": f"{i}: {some[i % len(some)]['question']}"}
        for i in range(count)
    ]
    return lambda: scored(rows)


def with_contexts(count: int) -> Callable[[], None]:
    """Return a function that scores 20 turns with ``count`` contexts of 800 characters each."""
    rows = [
        {**row, "contexts": [f"Context {k}. " + row["contexts"][k % 4] for k in range(count)]}
        for row in turns()[:20]
    ]
    return lambda: scored(rows)


def with_characters(count: int) -> Callable[[], None]:
    """Return a function that scores 5 turns with four contexts of ``count`` characters each."""
    rows = [
        {**row, "contexts": [(text + " ") * (count // len(text) + 1) for text in row["contexts"]]}
        for row in turns()[:5]
    ]
    rows = [{**row, "contexts": [text[:count] for text in row["contexts"]]} for row in rows]
    return lambda: scored(rows)


def with_spans(count: int) -> Callable[[], None]:
    """Return a function that makes a trace with ``count`` spans and one turn, and scores it."""
    provider = TracerProvider()
    handle = instrument(
        tracer_provider=provider,
        metrics=TRIAD,
        judge=ComposingJudge(),
        embedder=NullEmbedder(),
        drift=False,
    )
    tracer, row = provider.get_tracer("bench"), turns()[0]

    def run() -> None:
        before = handle.stats.turns.get("scored", 0)
        found = {
            f"retrieval.documents.{i}.document.content": one
            for i, one in enumerate(row["contexts"])
        }
        asked = {KIND: "CHAIN", "input.value": row["question"], "output.value": row["answer"]}
        with tracer.start_as_current_span("rag", attributes=asked):
            for i in range(count - 3):
                tracer.start_span(f"step {i}").end()
            said = {KIND: "RETRIEVER", "input.value": row["question"], **found}
            tracer.start_span("retrieve", attributes=said).end()
            said = {KIND: "LLM", "input.value": row["question"], "output.value": row["answer"]}
            tracer.start_span("generate", attributes=said).end()
        assert handle.flush(60)
        assert handle.stats.turns.get("scored", 0) == before + 1, handle.stats

    return run


SERIES: Mapping[str, tuple[Callable[[int], Callable[[], None]], Sequence[int]]] = {
    "samples": (with_samples, (100, 300, 1_000, 3_000, 10_000)),
    "contexts": (with_contexts, (1, 3, 10, 25, 50)),
    "characters of a context": (with_characters, (500, 2_000, 8_000, 25_000, 50_000)),
    "spans in a trace": (with_spans, (30, 100, 300, 1_000, 3_000, 9_900)),
}


def seconds(run: Callable[[], None]) -> float:
    """Return the CPU seconds of one call of ``run``."""
    gc.collect()
    began = time.process_time()
    run()
    return time.process_time() - began


def exponent(sizes: Sequence[int], times: Sequence[float]) -> float:
    """Return the slope of the line through the logarithms, by least squares."""
    xs, ys = [math.log(n) for n in sizes], [math.log(t) for t in times]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    above = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True))
    return above / sum((a - x) ** 2 for a in xs)


def main(rounds: int) -> None:
    """Measure each series and print the times and the exponents."""
    print(setting("rag-eval-otel", "opentelemetry-sdk"))
    for name, (make, sizes) in SERIES.items():
        runs = [make(size) for size in sizes]
        runs[0]()
        found = [[seconds(run) for run in runs] for _ in range(rounds)]
        best = [min(column) for column in zip(*found, strict=True)]
        shown = ", ".join(f"{n}: {t * 1e3:.1f} ms" for n, t in zip(sizes, best, strict=True))
        fitted, last = exponent(sizes, best), exponent(sizes[-2:], best[-2:])
        verdict = "linear or less" if max(fitted, last) <= LIMIT else "MORE THAN LINEAR"
        print(f"{name}: exponent {fitted:.2f}, last {last:.2f}, {verdict}; {shown}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
