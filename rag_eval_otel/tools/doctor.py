"""Check the set-up by one small request to judge, embedder and endpoints, and say what to do."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import platform
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args

from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from rag_eval_otel import errors, semconv
from rag_eval_otel.config import Config
from rag_eval_otel.environment import Signal, exporter_names
from rag_eval_otel.judge.tasks import STATEMENTS
from rag_eval_otel.live.shutdown import call_at_end
from rag_eval_otel.models import build_embedder, build_plain_judge
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.threads import Workers
from rag_eval_otel.tools.rows import number

if TYPE_CHECKING:
    from rag_eval_otel.export.metrics import Stats
    from rag_eval_otel.live.pipeline import Pipeline
    from rag_eval_otel.runtime.sdk import Attachment

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
    return (files("rag_eval_otel") / "causes.md").read_text(encoding="utf-8")


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


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda each: get_args(Level).index(each.level))


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
    for key, count in sorted(turns.items()):
        status, _, reason = key.partition(" ")
        if not reason:
            continue
        is_refused = status in {"skipped", "dropped"} and reason != "duplicate" and not is_scored
        level: Level | None = "problem" if is_refused else None
        seen = f"{count} turns lack a score" if status == "scored" else f"{count} turns {status}"
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
        yield from map(str, worst_first(self._findings(stats)))

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
        if not self._spans and _DROPS_ALL.match(text):
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

_DROPS_ALL: Final = re.compile(r"(ParentBased\{root:)?(AlwaysOff|TraceIdRatioBased\{0(\.0)?\})")
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


def run(options: argparse.Namespace) -> int:
    diagnosis = diagnose(os.environ, timeout=options.timeout)
    sys.stdout.write(f"{diagnosis}\n")
    return diagnosis.status


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The installed versions, the replies to test requests, and the findings, the worst first."""

    versions: Mapping[str, str]
    replies: Sequence[Reply] = ()
    answers: Sequence[Answer] = ()
    findings: Sequence[Finding] = ()

    @property
    def status(self) -> Literal[0, 1]:
        """The exit status of the command: 1 if there is a problem, else 0."""
        return 1 if any(each.level == "problem" for each in self.findings) else 0

    def __str__(self) -> str:
        ours = [name for name in ("python", *OURS) if name in self.versions]
        others = [f"{name} {v}" for name, v in self.versions.items() if name not in ours]
        lines = [
            f"interpreter {sys.executable}",
            "installed   " + ", ".join(f"{name} {self.versions[name]}" for name in ours),
            "beside it   " + (", ".join(others) or "no known instrumentation"),
            *(f"{r.part:<12}{r.name}: {r.text} ({r.seconds:.1f} s)" for r in self.replies),
            *(
                f"{to.signal:<12}{to.url} by {to.exporter}: {'OK' if answer.is_ok else 'fails'}"
                for answer in self.answers
                for to in [answer.endpoint]
            ),
        ]
        levels = [each.level for each in self.findings]
        total = f"problems: {levels.count('problem')}, warnings: {levels.count('warning')}"
        return "\n\n".join(["\n".join(lines), *map(str, self.findings), total])


def diagnose(environ: Mapping[str, str], *, timeout: float) -> Diagnosis:
    findings = [*from_variables(environ)]
    config: Config | None = None
    try:
        config = Config.from_env(environ)
    except errors.ConfigError as error:
        findings.append(finding("config-invalid", str(error)))
    if config is not None and config.judge == "lexical":
        findings.append(finding("judge-lexical", "the judge is lexical"))
    if config is not None and config.base_rate == 0 and not config.sampling_rules:
        seen = "sample_rate is 0: nothing is scored"
        findings.append(finding("turns-sample-rate", seen, level="problem"))
    replies, answers = asyncio.run(_check(config, otlp_endpoints(environ), timeout=timeout))
    findings = worst_first([*findings, *from_replies(replies), *from_answers(answers)])
    return Diagnosis(versions=versions(), replies=replies, answers=answers, findings=findings)


Part = Literal["judge", "embedder"]
_QUESTION, _ANSWER = "What is the capital of France?", "Paris is the capital of France."

_SIGNALS: Final[tuple[Signal, ...]] = ("traces", "metrics", "logs")
_PORTS: Final = {"otlp_proto_grpc": 4317, "otlp_proto_http": 4318}
_EXPORT_SECONDS: Final = 3.0  # an exporter repeats a failed request for so long
_MAX_TEXT: Final = 400  # characters of an error's text in a report


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The result of a test request to judge or embedder ``name``; ``cause`` is empty on success."""

    part: Part
    name: str
    text: str
    seconds: float
    cause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The OTLP endpoint of one signal, and the environment variable that sets it, if any.

    ``exporter`` is the name of the exporter's entry point.
    """

    signal: Signal
    exporter: str
    url: str
    source: str = ""

    @property
    def server(self) -> str:
        return self.url.partition("//")[2].partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of a test export, with what the exporter of the SDK logs about it."""

    endpoint: Endpoint
    is_ok: bool
    text: str = ""


async def _check(
    config: Config | None, endpoints: Sequence[Endpoint], *, timeout: float
) -> tuple[Sequence[Reply], Sequence[Answer]]:
    # Python does not wait for daemon threads at exit: one may hang in a DNS look-up.
    loop, limit = asyncio.get_running_loop(), min(timeout, _EXPORT_SECONDS)
    loop.set_default_executor(Workers())
    questions = [] if config is None else _questions(config, timeout=timeout)
    exports = loop.run_in_executor(None, export_all, endpoints, limit)
    return await asyncio.gather(asyncio.gather(*questions), exports)


def _questions(config: Config, *, timeout: float) -> list[Coroutine[Any, Any, Reply]]:
    judge, embedder = map(_without_retries, (build_plain_judge(config), build_embedder(config)))

    async def ask_judge() -> str:
        replies = await judge.reply([STATEMENTS.task({"question": _QUESTION, "answer": _ANSWER})])
        if isinstance(replies.parts[0], errors.JudgeError):
            raise replies.parts[0]
        return f"{replies.model} answers"

    async def ask_embedder() -> str:
        return f"vectors of {(await embedder.embed([_ANSWER])).shape[1]}"

    return [
        _reply("judge", str(config.judge), ask_judge(), timeout=timeout),
        _reply("embedder", str(config.embedder), ask_embedder(), timeout=timeout),
    ]


def _without_retries(model: Any) -> Any:
    endpoint, copied = getattr(model, "endpoint", None), getattr(model, "with_endpoint", None)
    if endpoint is None or copied is None:
        return model
    return copied(endpoint.with_limits({"retries": 0}))


async def _reply(part: Part, name: str, question: Awaitable[str], *, timeout: float) -> Reply:
    start, cause = time.monotonic(), ""
    try:
        text = await asyncio.wait_for(question, timeout)
    except asyncio.TimeoutError:
        text, cause = f"no reply within {timeout:g} s", "server-slow"
    except errors.JudgeError as error:
        text = str(error)
        cause = next((c for kind, c in _CAUSES if isinstance(error, kind)), "server-unreachable")
        if cause == "key-refused" and "HTTP" not in text:
            cause = "key-missing"  # the client refused to send the request
        if part == "embedder" and cause in {"model-refused", "reply-unusable"}:
            cause = "embedder-missing"
    return Reply(part=part, name=name, text=text, seconds=time.monotonic() - start, cause=cause)


_CAUSES: Final[Sequence[tuple[type[errors.JudgeError], str]]] = (
    (errors.JudgeAuthError, "key-refused"),
    (errors.JudgeRateLimitError, "rate-limited"),
    (errors.JudgeTimeoutError, "server-slow"),
    (errors.JudgeRequestError, "model-refused"),
    (errors.UnparsableReplyError, "reply-unusable"),
)


def otlp_endpoints(environ: Mapping[str, str]) -> list[Endpoint]:
    return [
        endpoint_of(signal, name, environ)
        for signal in _SIGNALS
        for name in exporter_names(signal, environ)
        if name in _PORTS
    ]


def endpoint_of(signal: Signal, exporter: str, environ: Mapping[str, str]) -> Endpoint:
    path = f"/v1/{signal}" if exporter == "otlp_proto_http" else ""
    own, common = f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
    source = next(filter(environ.get, (own, common)), "")
    url = environ.get(source) or f"http://localhost:{_PORTS[exporter]}"
    if source != own:
        url = url.rstrip("/") + path
    return Endpoint(signal=signal, exporter=exporter, url=url, source=source)


class _Logged(logging.Handler):
    """Collects what the exporters log in this thread during the ``with`` block."""

    def __enter__(self) -> list[str]:
        self._texts: list[str] = []
        self._thread = threading.get_ident()
        _OF_EXPORTERS.addHandler(self)
        return self._texts

    def __exit__(self, *_: object) -> None:
        _OF_EXPORTERS.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            self._texts.append(record.getMessage())


_OF_EXPORTERS: Final = logging.getLogger("opentelemetry.exporter.otlp")
_ACCEPTED: Final = ("code: 400", "INVALID_ARGUMENT")  # of servers that refuse an empty request


def export_all(endpoints: Sequence[Endpoint], timeout: float) -> list[Answer]:
    """Test ``endpoints``; if traces fail, other signals to the same server count as failed."""
    answers: list[Answer] = []
    failed: dict[str, Answer] = {}
    for endpoint in endpoints:  # one after another: exporters log no message twice in a row
        server = endpoint.server
        if server not in failed:
            answers.append(export_nothing(endpoint, timeout))
        else:
            answers.append(replace(failed[server], endpoint=endpoint))
        if not answers[-1].is_ok and endpoint.signal == "traces":
            failed[server] = answers[-1]
    return answers


def export_nothing(endpoint: Endpoint, timeout: float) -> Answer:
    """Send a request without content by the exporter of the SDK, as the application would."""
    group = f"opentelemetry_{endpoint.signal}_exporter"
    empty: Any = MetricsData(resource_metrics=[]) if endpoint.signal == "metrics" else []
    from opentelemetry.exporter.otlp.proto.grpc import exporter as grpc  # noqa: PLC0415  # slow

    with _Logged() as texts:
        try:
            exporter = next(iter(entry_points(group=group, name=endpoint.exporter))).load()
            has_succeeded = exporter(timeout=timeout).export(empty).name == "SUCCESS"
        except (OSError, ValueError, RuntimeError, grpc.InvalidCompressionValueException) as error:
            has_succeeded = False
            texts.append(str(error))
    text = (texts or ["no answer"])[0].replace("\n", " ")
    if has_succeeded or any(words in text for words in _ACCEPTED):
        return Answer(endpoint=endpoint, is_ok=True)
    return Answer(endpoint=endpoint, is_ok=False, text=text[:_MAX_TEXT])


_TRUE, _FALSE = frozenset({"true", "1"}), frozenset({"false", "0"})
_SWITCHES: Final[Mapping[str, Mapping[str, frozenset[str]]]] = {
    "sdk-disabled": {"OTEL_SDK_DISABLED": frozenset({"true"})},
    "traces-not-exported": {"OTEL_TRACES_EXPORTER": frozenset({"none"})},
    "content-hidden": {
        "OPENINFERENCE_HIDE_INPUTS": _TRUE,
        "OPENINFERENCE_HIDE_OUTPUTS": _TRUE,
        "OPENINFERENCE_HIDE_INPUT_MESSAGES": _TRUE,
        "OPENINFERENCE_HIDE_OUTPUT_MESSAGES": _TRUE,
        "OPENINFERENCE_HIDE_INPUT_TEXT": _TRUE,
        "OPENINFERENCE_HIDE_OUTPUT_TEXT": _TRUE,
        "TRACELOOP_TRACE_CONTENT": _FALSE,
        "HAYSTACK_CONTENT_TRACING_ENABLED": _FALSE,
        "LANGSMITH_HIDE_INPUTS": _TRUE,
        "LANGSMITH_HIDE_OUTPUTS": _TRUE,
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": frozenset({"false", "no_content"}),
    },
}
"""For the id of a cause, the variables and values that switch something off."""


def from_variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    def set_to(names: Iterable[str]) -> str:
        return ", ".join(f"{name}={environ[name]}" for name in names)

    for cause, switches in _SWITCHES.items():
        off = [n for n, values in switches.items() if environ.get(n, "").strip().lower() in values]
        if off:
            yield finding(cause, set_to(off))
    name, ratio = environ.get("OTEL_TRACES_SAMPLER", ""), environ.get("OTEL_TRACES_SAMPLER_ARG", "")
    seen = f"OTEL_TRACES_SAMPLER={name}" + (f", argument {ratio}" if ratio else "")
    if name.endswith("always_off") or (name.endswith("traceidratio") and number(ratio or "1") == 0):
        yield finding("sampler-off", seen)
    for signal, each in ((s, e) for s in _SIGNALS for e in exporter_names(s, environ)):
        if not entry_points(group=f"opentelemetry_{signal}_exporter", name=each):
            yield finding("exporter-missing", f"OTEL_{signal.upper()}_EXPORTER names {each}")


def from_replies(replies: Iterable[Reply]) -> Iterator[Finding]:
    causes: set[str] = set()
    for reply in replies:
        if reply.cause and reply.cause not in causes:
            causes.add(reply.cause)
            yield finding(reply.cause, f"the {reply.part}, {reply.name}: {reply.text}")
        elif not reply.cause and reply.part == "judge" and reply.name != "lexical":
            yield finding("judge-unchecked", f"the judge is {reply.name}")


def from_answers(answers: Sequence[Answer]) -> Iterator[Finding]:
    traces_arrive = any(each.is_ok and each.endpoint.signal == "traces" for each in answers)
    seen: set[tuple[str, str]] = set()
    for answer in (each for each in answers if not each.is_ok):
        endpoint = answer.endpoint
        cause = "otlp-fails" if endpoint.source else "otlp-unset"
        cause = "otlp-signal" if traces_arrive else cause
        if (cause, endpoint.server) not in seen:
            seen.add((cause, endpoint.server))
            source = f" ({endpoint.source})" if endpoint.source else ""
            text = f"{endpoint.url}{source} by {endpoint.exporter}: {answer.text}"
            yield finding(cause, f"{endpoint.signal} to {text}")
