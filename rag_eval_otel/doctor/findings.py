"""Find the causes of problems in settings, connections and the report of a program's run.

The file ``causes.md`` describes every cause. `docs/doctor.md` repeats its text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Final, Literal, get_args

from rag_eval_otel import semconv
from rag_eval_otel.config import Config
from rag_eval_otel.doctor.connections import Answer, Reply, missing_exporters
from rag_eval_otel.errors import (
    JudgeAuthError,
    JudgeError,
    JudgeRateLimitError,
    JudgeRequestError,
    JudgeTimeoutError,
    UnparsableReplyError,
)
from rag_eval_otel.live.notes import Note, listed

Level = Literal["problem", "warning", "info"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A cause of problems in the user's set-up, read from the file ``causes.md``.

    ``level`` says how bad the problem is. ``why`` says why the problem matters, and ``fix`` what to
    do.
    """

    id: str
    level: Level
    why: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem that the doctor has found in the user's set-up.

    ``cause`` describes the problem and what to do. ``seen`` is the evidence as text. ``level`` says
    how bad the problem is here, and may differ from the usual level in ``cause``.
    """

    cause: Cause
    level: Level
    seen: str


def causes_text() -> str:
    return (files("rag_eval_otel.doctor") / "causes.md").read_text(encoding="utf-8")


def _causes(text: str) -> Iterator[Cause]:
    entry = r"^- `([a-z-]+)` \((\w+)\): (.+?)\n  \*Do:\* (.+?)$"
    levels: Mapping[str, Level] = {level: level for level in get_args(Level)}
    for name, level, why, fix in re.findall(entry, text, re.MULTILINE):
        yield Cause(id=name, level=levels[level], why=why, fix=fix)


CAUSES: Final[Mapping[str, Cause]] = {cause.id: cause for cause in _causes(causes_text())}


def finding(cause: str, seen: str, *, level: Level | None = None) -> Finding:
    """Return a `Finding` (a problem found) for the id of a known cause, with the evidence ``seen``.

    If ``level`` is given, it replaces the usual level of the cause.
    """
    known = CAUSES[cause]
    return Finding(cause=known, level=level or known.level, seen=seen)


_SILENT: Final = frozenset({"no-spans", "no-turns", "no-dialect", "callback-missing"})
_EXPLAINS: Final[Mapping[str, frozenset[str]]] = {
    "program-failed": _SILENT | {"nothing-attached"},
    "sdk-disabled": _SILENT | {"provider-foreign", "provider-noop", "no-exporter"},
    "sampler-off": _SILENT,
    "provider-noop": _SILENT | {"provider-foreign"},
    "provider-late": _SILENT | {"no-exporter"},
    "exporter-missing": frozenset({"nothing-attached"}),
    "config-invalid": frozenset({"nothing-attached"}),
    "traces-not-exported": frozenset({"no-exporter"}),
}
"""For the id of a cause, the ids of causes that are only its consequences."""


def without_consequences(findings: Iterable[Finding]) -> list[Finding]:
    """Return ``findings`` without repeated problems and without consequences, the worst first.

    A finding is a problem found. A problem is a consequence if another found problem explains it,
    for example if nothing is attached because the program has failed.
    """
    kept = {(one.cause.id, one.seen): one for one in findings}
    names = {name for name, _ in kept}
    explained = frozenset[str]().union(*(_EXPLAINS.get(name, frozenset()) for name in names))
    levels = get_args(Level)
    return sorted(
        (one for (name, _), one in kept.items() if name not in explained),
        key=lambda one: levels.index(one.level),
    )


# --- settings -------------------------------------------------------------------------------------

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

_LIMITS: Final[Mapping[str, int]] = {
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": 100_000,
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": 100_000,
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": 128,
    "OTEL_ATTRIBUTE_COUNT_LIMIT": 128,
}
"""For each variable with a limit, the lowest value that is high enough."""


def from_variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the problems that the environment variables in ``environ`` show."""
    for cause, switches in _SWITCHES.items():
        off = [n for n, values in switches.items() if environ.get(n, "").strip().lower() in values]
        if off:
            yield finding(cause, _assignments(off, environ))
    low = [name for name, enough in _LIMITS.items() if _is_below(environ.get(name, ""), enough)]
    if low:
        yield finding("attribute-limit", _assignments(low, environ))
    disabled = environ.get("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "")
    if {"*", "rag_eval_otel"} & {name.strip() for name in disabled.split(",")}:
        yield finding("instrumentor-disabled", f"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS={disabled}")
    yield from _from_sampler_variables(environ)
    for signal, name in missing_exporters(environ):
        seen = f"OTEL_{signal.upper()}_EXPORTER names {name!r}, which is not installed"
        yield finding("exporter-missing", seen)


def _assignments(names: Iterable[str], environ: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={environ[name]}" for name in names)


def _is_below(value: str, enough: int) -> bool:
    return value.isdigit() and int(value) < enough


def _from_sampler_variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    name, ratio = environ.get("OTEL_TRACES_SAMPLER", ""), environ.get("OTEL_TRACES_SAMPLER_ARG", "")
    seen = f"OTEL_TRACES_SAMPLER={name}" + (f", argument {ratio}" if ratio else "")
    if name.endswith("always_off"):
        yield finding("sampler-off", seen)
    elif name.endswith("traceidratio") and _number(ratio or "1") != 1:
        yield finding("sampler-off" if _number(ratio) == 0 else "sampler-ratio", seen)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def from_config(config: Config, *, judge_is_asked: bool) -> Iterator[Finding]:
    """Yield the problems that the settings in ``config`` show.

    ``judge_is_asked`` is True if the doctor can send a test request to the judge.
    """
    if config.judge == "lexical":
        yield finding("judge-lexical", "the judge is lexical")
    if config.sample_rate == 0 and not config.chosen_rules:
        yield finding("turns-sample-rate", "sample_rate is 0: nothing is scored", level="problem")
    if config.max_turns_per_minute == 0:
        seen = "max_turns_per_minute is 0: nothing is scored"
        yield finding("turns-budget", seen, level="problem")
    if not judge_is_asked:
        yield finding("judge-untried", "the judge or its key is set in the program's code")


# --- connections ----------------------------------------------------------------------------------

_JUDGE_ERRORS: Final[Sequence[tuple[type[JudgeError], str]]] = (
    (JudgeAuthError, "key-refused"),
    (JudgeRateLimitError, "rate-limited"),
    (JudgeTimeoutError, "server-slow"),
    (JudgeRequestError, "model-refused"),
    (UnparsableReplyError, "reply-unusable"),
)


def from_replies(replies: Iterable[Reply]) -> Iterator[Finding]:
    """Yield the problems that the test replies of judge and embedder show.

    If judge and embedder fail for the same cause, only one problem is yielded.
    """
    seen: set[str] = set()
    for reply in replies:
        if reply.error is None:
            if reply.part == "judge" and reply.name != "lexical":
                yield finding("judge-unchecked", f"the judge is {reply.name}")
            continue
        cause = _cause_of_error(reply.error)
        if reply.part == "embedder" and cause in {"model-refused", "reply-unusable"}:
            cause = "embedder-missing"
        if cause not in seen:
            seen.add(cause)
            yield finding(cause, f"the {reply.part}, {reply.name}: {reply.text}")


def _cause_of_error(error: JudgeError) -> str:
    if isinstance(error, JudgeAuthError) and "HTTP" not in str(error):
        return "key-missing"  # the client refused to send the request
    causes = (cause for kind, cause in _JUDGE_ERRORS if isinstance(error, kind))
    return next(causes, "server-unreachable")


def from_answers(answers: Sequence[Answer]) -> Iterator[Finding]:
    """Yield the problems that the test exports to OTLP endpoints show.

    If several signals fail at one server for the same cause, only one problem is yielded. If traces
    arrive, the failure of another signal is only a warning.
    """
    traces_arrive = any(a.verdict == "ok" and a.endpoint.signal == "traces" for a in answers)
    seen: set[tuple[str, str]] = set()
    for answer in answers:
        endpoint, verdict = answer.endpoint, answer.verdict
        cause = "otlp-refused" if verdict == "unknown_host" else f"otlp-{verdict}"
        if cause == "otlp-refused" and not endpoint.source:
            cause = "otlp-unset"
        elif cause == "otlp-path" and traces_arrive:
            cause = "otlp-signal"
        if verdict != "ok" and (cause, endpoint.server) not in seen:
            seen.add((cause, endpoint.server))
            source = f" ({endpoint.source})" if endpoint.source else ""
            text = f"{endpoint.url}{source} over {endpoint.protocol}: {answer.text}"
            level: Level | None = "warning" if traces_arrive else None
            yield finding(cause, f"{endpoint.signal} to {text}", level=level)


# --- the report of a program ----------------------------------------------------------------------

_REPEATED: Final = "skipped duplicate"
_BLOCKED: Final = "blocked "  # begins the count of failures of a part that blocked the event loop
_ROOT_SAMPLER: Final = re.compile(r"(?:ParentBased\{root:)?(AlwaysOff|TraceIdRatioBased\{([^},]+))")


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums of the counts in ``notes``, the reports of the scoring pipelines of a program."""

    notes: Sequence[Note]

    @cached_property
    def turns(self) -> Mapping[str, int]:
        """The number of turns by outcome and reason.

        A turn is one question of a user and its answer. If two instrumentations have recorded a
        turn, it counts once.
        """
        return {key: n for key, n in self.of("turn").items() if key != _REPEATED}

    @property
    def repeated(self) -> int:
        """How often a question was recorded again, for example by a second instrumentation."""
        return self.of("turn").get(_REPEATED, 0)

    @property
    def captured(self) -> int:
        """The number of turns that were found; a turn that was recorded twice counts twice."""
        return sum(note.captured for note in self.notes)

    @property
    def pending(self) -> int:
        """The number of turns that were found and have no outcome yet."""
        return sum(note.pending for note in self.notes)

    @property
    def scored(self) -> int:
        return sum(n for key, n in self.turns.items() if key.partition(" ")[0] == "scored")

    @property
    def spans(self) -> Mapping[str, int]:
        """The number of ended spans by instrumentation scope, this library's own scope included."""
        return _sum(note.spans for note in self.notes)

    def of(self, kind: str) -> Mapping[str, int]:
        """Return the counts of one ``kind`` by name, added up over the reports of all pipelines.

        ``kind`` says what was counted: ``turn``, ``source`` (spans that were read), ``released``
        (spans that waited for scores) or ``failure``.
        """
        return _sum(note.counts.get(kind, {}) for note in self.notes)


def _sum(counts: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)


def from_notes(notes: Sequence[Note]) -> Iterator[Finding]:
    """Yield the problems that the reports in ``notes`` show.

    Each scoring pipeline in the user's program wrote one report while the program ran.
    """
    if not notes:
        yield finding("nothing-attached", "no pipeline has reported")
        return
    totals = Totals(notes=notes)
    for note in notes:
        yield from _from_note(note)
    if not totals.turns and not any(note.held for note in notes):
        yield _why_silent(totals)
    yield from _from_turns(totals)
    if totals.repeated:
        yield finding("turns-duplicate", f"{totals.repeated} second records of the same turns")
    early = {s: n for s, n in totals.of("released").items() if s in {"timeout", "flushed"}}
    if early:
        yield finding("unscored-spans", listed(early))
    blocked = {n: k for n, k in totals.of("failure").items() if n.startswith(_BLOCKED)}
    if blocked:
        yield finding("part-blocked", listed(blocked))
    failed = {n: k for n, k in totals.of("failure").items() if n not in blocked}
    if failed:
        yield finding("internal-errors", listed(failed))


def _from_note(note: Note) -> Iterator[Finding]:
    if not note.ended and (note.spans or note.held):
        seen = f"{note.program}, process {note.pid}: {note.held} spans were waiting for scores"
        seen = (
            f"{seen}, {note.pending} turns were pending, {sum(note.spans.values())} spans had ended"
        )
        yield finding("killed", seen, level="warning" if note.held or note.pending else None)
    for cause, lines in note.logged.items():
        yield from (finding(cause, line) for line in lines)
    if "NoOp" in note.provider:
        yield finding("provider-noop", f"the tracer provider is {note.provider}")
    elif not note.sees_spans:
        yield finding("provider-foreign", f"the tracer provider is {note.provider}")
    if note.processors is not None and not note.processors:
        yield finding("no-exporter", f"{note.provider} has no span processor")
    sampler = _ROOT_SAMPLER.match(note.sampler)
    ratio = float(sampler[2] or 0) if sampler else 1
    if ratio == 0 and not note.spans:
        yield finding("sampler-off", f"{note.provider} with {note.sampler}: no span recorded")
    elif 0 < ratio < 1:
        yield finding("sampler-ratio", f"{note.provider} with {note.sampler}")


def _why_silent(totals: Totals) -> Finding:
    """Return the problem that explains why no question and answer was found in the spans."""
    spans = totals.spans
    if semconv.SCOPE in spans or totals.of("source"):
        return finding("no-turns", f"spans by {listed(spans)}")
    if any(note.has_langchain for note in totals.notes):
        others = f"; spans by {listed(spans)}" if spans else ""
        return finding("callback-missing", f"LangChain is in use, but no run is recorded{others}")
    if spans:
        return finding("no-dialect", f"spans by {listed(spans)}")
    return finding("no-spans", "no span has ended on the provider that is attached")


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
    "blocked": "part-blocked",
    "redaction_error": "turns-redaction-error",
    "internal": "internal-errors",
    "shutdown": "turns-shutdown",
    "budget": "turns-budget",
}


def cause_of(outcome: str, reason: str) -> str:
    """Return the id of the cause, in ``causes.md``, for which turns have no scores.

    A turn is one question of a user and its answer. The pipeline counts each turn with its
    ``outcome``, such as ``skipped``, and the ``reason`` for the outcome.
    """
    if outcome in {"skipped", "dropped"}:
        return f"turns-{reason.replace('_', '-')}"
    return _OF_SCORES.get(reason, "scores-undefined")


def _from_turns(totals: Totals) -> Iterator[Finding]:
    for key, number in sorted(totals.turns.items()):
        outcome, _, reason = key.partition(" ")
        level: Level | None = None
        if outcome == "scored":
            level = "warning"
        elif outcome in {"skipped", "dropped"} and not totals.scored:
            level = "problem"
        if reason:
            lack = "lack a score" if outcome == "scored" else outcome
            yield finding(
                cause_of(outcome, reason), f"{number} turns {lack}: {reason}", level=level
            )
