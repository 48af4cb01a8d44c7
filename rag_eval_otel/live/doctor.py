"""Print what a process has captured and scored when it ends, if ``RAG_EVAL_DOCTOR=1`` is set.

The report has counts, names and the causes of missing scores. It never has texts of the
application, arguments or keys.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from rag_eval_otel import semconv
from rag_eval_otel.environment import doctor_is_on
from rag_eval_otel.live.causes import Finding, Level, finding, findings_on_turns
from rag_eval_otel.runtime.endings import call_at_end
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.providers import missing_providers

if TYPE_CHECKING:
    from rag_eval_otel.live.pipeline import Pipeline
    from rag_eval_otel.runtime.providers import Attachment


def report_at_exit(
    pipeline: Pipeline,
    provider: object,
    attachment: Attachment | None = None,
    *,
    needed: Collection[str] = (),
) -> None:
    """If ``RAG_EVAL_DOCTOR=1`` is set, print a report on ``pipeline`` when the process ends.

    ``provider`` is the tracer provider of the pipeline. ``needed`` has the kinds of the other
    providers that the application must set.
    """
    if doctor_is_on():
        _Report(pipeline, getattr(provider, "provider", provider), attachment, needed)


class _Report(SpanProcessor):
    """Count the spans of a provider by instrumentation, and print the report at the end."""

    def __init__(
        self,
        pipeline: Pipeline,
        provider: object,
        attachment: Attachment | None,
        needed: Collection[str],
    ) -> None:
        self._pipeline = pipeline
        self._needed = needed
        self._provider = provider
        self._others = None if attachment is None else attachment.others
        self._reset()
        call_in_child(self._reset)
        if attachment is not None and attachment.receives_spans:
            provider.add_span_processor(self)  # type: ignore[attr-defined]
        config = pipeline.config
        call_at_end(self, seconds=config.shutdown_seconds, at_sigterm=config.host_hooks)

    def _reset(self) -> None:
        self._spans: Counter[str] = Counter()
        self._is_printed = False

    def on_end(self, span: ReadableSpan) -> None:
        scope = span.instrumentation_scope
        self._spans[scope.name if scope is not None else ""] += 1

    def drain(self) -> None:
        """Print the report to stderr, once."""
        if not self._is_printed:
            self._is_printed = True
            with self._pipeline.edge("doctor"):
                sys.stderr.write("\n".join(self._lines()) + "\n")

    def drain_and_flush(self, timeout: float) -> None:  # noqa: ARG002  # called at each ending
        self.drain()

    def flush_all(self, timeout: float) -> None:
        """Do nothing: the process goes on."""

    def _lines(self) -> Iterator[str]:
        pipeline, config = self._pipeline, self._pipeline.config
        captured, turns = pipeline.instruments.tally.turns()
        pending = captured - sum(turns.values())
        program = Path(sys.argv[0]).name or "python"
        yield f"rag-eval-otel {semconv.VERSION}, {program}, process {os.getpid()}"
        yield f"judge     {_name_of(config.judge)}; embedder {_name_of(config.embedder)}"
        yield f"spans     {listed(self._spans)}"
        yield f"read      {listed(pipeline.instruments.tally.of('source'))}"
        yield f"turns     {listed(turns)}" + (f"; pending: {pending}" if pending > 0 else "")
        levels = get_args(Level)
        for each in sorted(self._findings(turns), key=lambda one: levels.index(one.level)):
            yield str(each)

    def _findings(self, turns: Mapping[str, int]) -> Iterator[Finding]:
        tally = self._pipeline.instruments.tally
        yield from self._of_provider()
        if not turns:
            yield self._why_silent()
        yield from findings_on_turns(turns)
        early = {s: n for s, n in tally.of("released").items() if s in {"timeout", "flushed"}}
        if early:
            yield finding("unscored-spans", listed(early))
        if failures := tally.of("failure"):
            yield finding("internal-errors", listed(failures))

    def _of_provider(self) -> Iterator[Finding]:
        name = f"{type(self._provider).__module__}.{type(self._provider).__qualname__}"
        if "NoOp" in name:
            yield finding("provider-noop", f"the tracer provider is {name}")
        elif not self._pipeline.has_spans:
            yield finding("provider-foreign", f"the tracer provider is {name}")
        others = self._others
        if others is not None and all(isinstance(one, _Report) for one in others):
            yield finding("no-exporter", f"{name} has no span processor")
        missing = [f"no {kind} is set" for kind in missing_providers() if kind in self._needed]
        if missing:
            yield finding("provider-missing", ", ".join(missing))
        sampler = getattr(self._provider, "sampler", None)
        text = "" if sampler is None else sampler.get_description()
        if not self._spans and re.search(r"AlwaysOff|TraceIdRatioBased\{0(\.0)?\}", text):
            yield finding("sampler-off", f"{name} with {text}: no span recorded")

    def _why_silent(self) -> Finding:
        """Return the finding that explains why no turn was found in the spans."""
        if semconv.SCOPE in self._spans or self._pipeline.instruments.tally.of("source"):
            return finding("no-turns", f"spans by {listed(self._spans)}")
        if "langchain_core.runnables" in sys.modules:
            return finding("callback-missing", "LangChain is in use, but no run is recorded")
        if self._spans:
            return finding("no-convention", f"spans by {listed(self._spans)}")
        return finding("no-spans", "no span has ended on the provider that is attached")


def _name_of(model: object) -> str:
    return model if isinstance(model, str) else f"an object, {type(model).__name__}"


def listed(counts: Mapping[str, int]) -> str:
    """Return the names and numbers in ``counts`` as text, the largest number first."""
    items = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name or 'no name'} {number}" for name, number in items) or "none"
