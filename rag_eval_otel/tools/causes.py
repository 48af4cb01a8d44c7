"""The causes of missing scores (``causes.md``), and a report on them when a process ends.

The report never has texts of the application, arguments or keys.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast, get_args

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from rag_eval_otel import semconv
from rag_eval_otel.live.shutdown import call_at_end
from rag_eval_otel.runtime.fork import call_in_child

if TYPE_CHECKING:
    from rag_eval_otel.export.metrics import Stats
    from rag_eval_otel.live.pipeline import Pipeline
    from rag_eval_otel.runtime.providers import Attachment

Level = Literal["problem", "warning", "info"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A cause of missing scores that was detected, with its explanation and its fix."""

    cause: str
    level: Level
    why: str
    fix: str
    seen: str = ""

    def __str__(self) -> str:
        head = f"{self.level.upper()} {self.cause}: {self.seen}"
        return f"{head}\n  why: {self.why}\n  do:  {self.fix}"


def causes_text() -> str:
    return (files("rag_eval_otel.tools") / "causes.md").read_text(encoding="utf-8")


@cache
def causes() -> Mapping[str, Finding]:
    entry = r"^- `([a-z-]+)` \((\w+)\): (.+)\n  \*Do:\* (.+)$"
    return {
        cause: Finding(cause=cause, level=cast("Level", level), why=why, fix=fix)
        for cause, level, why, fix in re.findall(entry, causes_text(), re.MULTILINE)
    }


def finding(cause: str, seen: str, *, level: Level | None = None) -> Finding:
    usual = causes()[cause]
    return replace(usual, level=level or usual.level, seen=seen)


_OF_SCORES: Final[Mapping[str, str]] = {
    "transport": "server-unreachable",
    "circuit_open": "server-unreachable",
    "timeout": "server-slow",
    "unauthorized": "key-refused",
    "rate_limited": "rate-limited",
    "bad_request": "model-refused",
    "unparsable": "reply-unusable",
    "judge_incomplete": "reply-unusable",
    "too_long": "texts-too-long",
    "redaction_error": "turns-redaction-error",
    "internal": "internal-errors",
    "shutdown": "turns-shutdown",
    "span_missed": "turns-span-missed",
    "budget": "turns-budget",
}


def cause_of(status: str, reason: str) -> str:
    if status in {"skipped", "dropped"}:
        return f"turns-{reason.replace('_', '-')}"
    return _OF_SCORES.get(reason, "scores-undefined")


def findings_on_turns(turns: Mapping[str, int]) -> Sequence[Finding]:
    is_scored = any(key.partition(" ")[0] == "scored" for key in turns)
    results = []
    for key, number in sorted(turns.items()):
        status, _, reason = key.partition(" ")
        if not reason:
            continue
        is_refused = status in {"skipped", "dropped"} and reason != "duplicate" and not is_scored
        level: Level | None = "problem" if is_refused else None
        seen = f"{number} turns lack a score" if status == "scored" else f"{number} turns {status}"
        results.append(finding(cause_of(status, reason), f"{seen}: {reason}", level=level))
    return results


def report_at_exit(pipeline: Pipeline, provider: object, attachment: Attachment | None) -> None:
    """Print a report on ``pipeline`` when the process ends; called if ``RAG_EVAL_DOCTOR=1``."""
    _Report(pipeline, getattr(provider, "provider", provider), attachment)


class _Report(SpanProcessor):
    """Counts the spans of a tracer provider by scope, and prints the doctor's report at exit."""

    def __init__(self, pipeline: Pipeline, provider: object, attachment: Attachment | None) -> None:
        self._pipeline = pipeline
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
        if not self._is_printed:
            self._is_printed = True
            with self._pipeline.edge("doctor"):
                sys.stderr.write("\n".join(self._lines()) + "\n")

    def drain_and_flush(self, timeout: float) -> None:  # noqa: ARG002  # called at each ending
        self.drain()

    def flush_all(self, timeout: float) -> None: ...  # the process goes on

    def _lines(self) -> Iterator[str]:
        pipeline, config = self._pipeline, self._pipeline.config
        stats = pipeline.stats
        program = Path(sys.argv[0]).name or "python"
        yield f"rag-eval-otel {semconv.VERSION}, {program}, process {os.getpid()}"
        judge, embedder = (
            model if isinstance(model, str) else f"an object, {type(model).__name__}"
            for model in (config.judge, config.embedder)
        )
        yield f"judge     {judge}; embedder {embedder}"
        yield f"spans     {listed(self._spans)}"
        yield f"read      {listed(stats.sources)}"
        waiting = f"; pending: {stats.pending}" if stats.pending > 0 else ""
        yield f"turns     {listed(stats.turns)}{waiting}"
        levels = get_args(Level)
        for each in sorted(self._findings(stats), key=lambda one: levels.index(one.level)):
            yield str(each)

    def _findings(self, stats: Stats) -> Iterator[Finding]:
        yield from self._of_provider()
        if not stats.turns:
            yield self._why_silent(stats)
        yield from findings_on_turns(stats.turns)
        early = {s: n for s, n in stats.released.items() if s in {"timeout", "flushed"}}
        if early:
            yield finding("unscored-spans", listed(early))
        if stats.failures:
            yield finding("internal-errors", listed(stats.failures))

    def _of_provider(self) -> Iterator[Finding]:
        name = f"{type(self._provider).__module__}.{type(self._provider).__qualname__}"
        if "NoOp" in name:
            yield finding("provider-noop", f"the tracer provider is {name}")
        elif self._pipeline.next is None:
            yield finding("provider-foreign", f"the tracer provider is {name}")
        others = self._others
        if others is not None and all(isinstance(one, _Report) for one in others):
            yield finding("no-exporter", f"{name} has no span processor")
        if missing := self._pipeline.missing_providers():
            yield finding("provider-missing", ", ".join(f"no {kind} is set" for kind in missing))
        sampler = getattr(self._provider, "sampler", None)
        text = "" if sampler is None else sampler.get_description()
        if not self._spans and re.search(r"AlwaysOff|TraceIdRatioBased\{0(\.0)?\}", text):
            yield finding("sampler-off", f"{name} with {text}: no span recorded")

    def _why_silent(self, stats: Stats) -> Finding:
        if semconv.SCOPE in self._spans or stats.sources:
            return finding("no-turns", f"spans by {listed(self._spans)}")
        if "langchain_core.runnables" in sys.modules:
            return finding("callback-missing", "LangChain is in use, but no run is recorded")
        if self._spans:
            return finding("no-convention", f"spans by {listed(self._spans)}")
        return finding("no-spans", "no span has ended on the provider that is attached")


def listed(counts: Mapping[str, int]) -> str:
    items = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name or 'no name'} {number}" for name, number in items) or "none"


OURS: Final = (
    "rag-eval-otel",
    "opentelemetry-api",
    "opentelemetry-sdk",
    "opentelemetry-exporter-otlp-proto-grpc",
    "opentelemetry-exporter-otlp-proto-http",
    "langchain-core",
    "openai",
)

_OTHERS: Final = re.compile(  # what makes spans that this library reads, or changes them
    r"arize-phoenix-otel|ddtrace|haystack-ai|lang(chain|fuse|graph|smith)|llama-index-(core|obs.*)"
    r"|logfire|mlflow(-skinny)?|(openinference|opentelemetry)-instrumentation(-.+)?"
    r"|opentelemetry-(distro|util-genai)|pydantic-ai(-slim)?|traceloop-sdk"
)


def versions() -> Mapping[str, str]:
    from importlib.metadata import distributions  # noqa: PLC0415  # 30 ms

    installed = {str(each.metadata["Name"]).lower(): each.version for each in distributions()}
    found = {"python": platform.python_version(), "rag-eval-otel": semconv.VERSION}
    found |= {name: installed.get(name, "not installed") for name in OURS[1:]}
    return found | {name: installed[name] for name in sorted(installed) if _OTHERS.fullmatch(name)}
