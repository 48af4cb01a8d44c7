"""Run the corpus, and compare the scored turns with the stated ones.

    PYTHONPATH=tests python -m corpus.run --via callback
    PYTHONPATH=tests python -m corpus.run --via openinference --framework langgraph --only self_rag

Each application runs once, with its own tracer provider and our library attached to it. A metric
records the captured samples. Only the library's public API is used. An instrumentation is enabled
once in the process, on a provider that delegates to that of the running application.
"""

import argparse
import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from corpus.kit import App, Truth, all_apps, call
from corpus.recorded import is_recorded
from corpus.sources import SOURCES, Source
from rag_eval_otel import Sample, instrument
from rag_eval_otel.semconv import EVALUATION_STATUS

PATIENCE = 30.0


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The results of one run of an application."""

    samples: list[Truth]
    outcomes: Counter[str]
    spans: Sequence[ReadableSpan] = ()
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """An application's verdict, and the texts that differ."""

    app: App
    kind: str
    reason: str = ""
    differs: list[dict[str, Any]] = field(default_factory=list)


KINDS = (
    *("exact", "off span", "refused", "unknowable", "wrong"),
    *("false positive", "failed", "skipped"),
)


def judge(app: App, seen: Seen, via: str) -> Verdict:
    """Compare the scored samples with the truths.

    Each sample must be that of another truth, or of an optional turn. `wrong`: a sample is none of
    them. `false positive`: a sample of an application without truths. `refused`: a truth without a
    sample. `unknowable`: refused, where ``via`` does not record the truth (the application says so, or
    a context is on no span but in a prompt). `off span`: exact, but the scores are not all on spans.
    """
    if seen.error:
        return Verdict(app=app, kind="failed", reason=seen.error)
    missed, extra = match(app, seen.samples)
    reason = ", ".join(f"{name} x{number}" for name, number in sorted(seen.outcomes.items()))
    if extra:
        kind = "wrong" if app.truths else "false positive"
        differs = [_difference(sample, missed) for sample in extra]
        return Verdict(app=app, kind=kind, reason=reason, differs=differs)
    if missed:
        kind = "refused" if _is_knowable(app, missed, seen, via) else "unknowable"
        return Verdict(app=app, kind=kind, reason=reason or "nothing seen")
    statuses = [(span.attributes or {}).get(EVALUATION_STATUS) for span in seen.spans]
    is_on_spans = statuses.count("scored") == len(seen.samples)
    return Verdict(app=app, kind="exact" if is_on_spans else "off span", reason=reason)


def _is_knowable(app: App, missed: Sequence[Truth], seen: Seen, via: str) -> bool:
    if via in app.not_on_spans:
        return False
    return via == "callback" or all(is_recorded(truth, seen.spans) for truth in missed)


def match(app: App, samples: Sequence[Truth]) -> tuple[list[Truth], list[Truth]]:
    """Return the truths without a sample, and the samples that none of the truths states."""
    missed, free, extra = list(app.truths), list(app.optional), []
    for sample in samples:
        told = (sample.question, sample.contexts, sample.answer)
        for pool in (missed, free):
            found = next((one for one in pool if one.holds_for(*told)), None)
            if found is not None:
                pool.remove(found)
                break
        else:
            extra.append(sample)
    return missed, extra


def _difference(sample: Truth, missed: Sequence[Truth]) -> dict[str, Any]:
    told = sample.squeezed()
    wanted = [one for truth in missed for one in truth.statements()]
    near = max(wanted, key=lambda one: _equal(one.squeezed(), told), default=None)
    names = ("question", "contexts", "answer")
    if near is None:
        return {"unexpected": dict(zip(names, told, strict=True))}
    pairs = zip(names, told, near.squeezed(), strict=True)
    return {name: {"told": ours, "truth": theirs} for name, ours, theirs in pairs if ours != theirs}


def _equal(one: Sequence[Any], other: Sequence[Any]) -> int:
    return sum(a == b for a, b in zip(one, other, strict=True))


def run_app(app: App, source: Source) -> Seen:
    exporter, reader, samples = InMemorySpanExporter(), InMemoryMetricReader(), list[Sample]()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    meters = MeterProvider([reader])

    async def told(sample: Sample) -> float:
        samples.append(sample)
        return 1.0

    handle = instrument(
        tracer_provider=provider,
        meter_provider=meters,
        judge="lexical",
        metrics=[told],
        hold_seconds=PATIENCE,
    )
    with source.watching(provider, handle) as config:
        error = _call(app, config)
        handle.flush(PATIENCE)
    handle.shutdown()
    seen = Seen(
        samples=[as_truth(sample) for sample in samples],
        outcomes=_outcomes(reader),
        spans=exporter.get_finished_spans(),
        error=error,
    )
    provider.shutdown()
    meters.shutdown()
    return seen


def _call(app: App, config: dict[str, Any]) -> str:
    try:
        call(app, config)
    except Exception as error:
        logging.getLogger(__name__).debug("%s", app.name, exc_info=True)
        return f"{type(error).__name__}: {error}"
    return ""


def as_truth(sample: Sample) -> Truth:
    contexts = tuple(passage.text for passage in sample.contexts or ())
    return Truth(sample.question or "", contexts, sample.answer or "")


def _outcomes(reader: InMemoryMetricReader) -> Counter[str]:
    counts: Counter[str] = Counter()
    data = reader.get_metrics_data()
    scopes = [
        scope for each in (data.resource_metrics if data else ()) for scope in each.scope_metrics
    ]
    for metric in (metric for scope in scopes for metric in scope.metrics):
        for point in metric.data.data_points if metric.name == "rag.evaluation.turns" else ():
            counts[str(point.attributes.get("reason") or point.attributes["status"])] += point.value
    return counts


@contextmanager
def quietly() -> Any:
    logging.disable(logging.ERROR)
    with warnings.catch_warnings():
        warnings.showwarning = lambda *_args, **_kwargs: None  # LangChain sets filters of its own
        yield
    logging.disable(logging.NOTSET)


def verdict(app: App, source: Source, via: str) -> Verdict:
    if missing := app.missing():
        return Verdict(app=app, kind="skipped", reason=", ".join(missing))
    return judge(app, run_app(app, source), via)


def report(found: Sequence[Verdict], via: str, seconds: float) -> str:
    lines = []
    for one in found:
        if one.kind == "exact":
            continue
        lines.append(f"{one.kind:14} {one.app.framework}/{one.app.name}: {one.reason}")
        lines += [f"    {name}: {value}" for part in one.differs for name, value in part.items()]
    counts = Counter(one.kind for one in found)
    totals = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind])
    knowable = sum(n for kind, n in counts.items() if kind not in {"unknowable", "skipped"})
    share = counts["exact"] / knowable if knowable else 0.0
    lines.append(f"{via}: {totals}; {share:.1%} of {knowable} exact; {seconds:.0f} s")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    vias = {via for sources in SOURCES.values() for via in sources}
    parser.add_argument("--via", choices=sorted(vias), required=True)
    parser.add_argument("--framework", default="langchain,langgraph", help="comma-separated")
    parser.add_argument("--only", default="", help="names of applications, comma-separated")
    options = parser.parse_args(argv)
    began = time.monotonic()
    with quietly():
        apps = all_apps(*options.framework.split(","))
        only = set(filter(None, options.only.split(",")))
        chosen = [one for one in apps if not only or one.name in only]
        with SOURCES[apps[0].framework][options.via]() as source:
            found = [verdict(one, source, options.via) for one in chosen]
    print(report(found, options.via, time.monotonic() - began))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
