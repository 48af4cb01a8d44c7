"""What was found without a program: in the variables, and by asking judge, embedder and OTLP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rag_eval_otel.config import Config
from rag_eval_otel.doctor.causes import Finding, Level, found
from rag_eval_otel.doctor.otlp import Answer
from rag_eval_otel.doctor.reach import Reply
from rag_eval_otel.doctor.targets import Target, missing_exporters
from rag_eval_otel.errors import (
    JudgeAuthError,
    JudgeError,
    JudgeRateLimitError,
    JudgeRequestError,
    JudgeTimeoutError,
    UnparsableReplyError,
)

_HIDES: Final[Mapping[str, frozenset[str]]] = {
    "OPENINFERENCE_HIDE_INPUTS": frozenset({"true", "1"}),
    "OPENINFERENCE_HIDE_OUTPUTS": frozenset({"true", "1"}),
    "OPENINFERENCE_HIDE_INPUT_MESSAGES": frozenset({"true", "1"}),
    "OPENINFERENCE_HIDE_OUTPUT_MESSAGES": frozenset({"true", "1"}),
    "OPENINFERENCE_HIDE_INPUT_TEXT": frozenset({"true", "1"}),
    "OPENINFERENCE_HIDE_OUTPUT_TEXT": frozenset({"true", "1"}),
    "TRACELOOP_TRACE_CONTENT": frozenset({"false", "0"}),
    "HAYSTACK_CONTENT_TRACING_ENABLED": frozenset({"false", "0"}),
    "LANGSMITH_HIDE_INPUTS": frozenset({"true", "1"}),
    "LANGSMITH_HIDE_OUTPUTS": frozenset({"true", "1"}),
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": frozenset({"false", "no_content"}),
}
"""Variables of instrumentations, and the values that switch content off."""

_LIMITS: Final = (
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
)
_ENOUGH: Final[Mapping[str, int]] = {"VALUE_LENGTH_LIMIT": 100_000, "COUNT_LIMIT": 128}


def of_variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what the variables alone tell."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        yield found("sdk-disabled", "OTEL_SDK_DISABLED is true")
    yield from _sampler(environ)
    limits = [name for name in _LIMITS if _is_tight(name, environ.get(name, ""))]
    if limits:
        yield found("attribute-limit", _listed(limits, environ))
    hidden = [name for name, off in _HIDES.items() if environ.get(name, "").lower() in off]
    if hidden:
        yield found("content-hidden", _listed(hidden, environ))
    disabled = environ.get("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "")
    if {"*", "rag_eval_otel"} & {name.strip() for name in disabled.split(",")}:
        yield found("instrumentor-disabled", f"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS={disabled}")
    yield from _exporters(environ)


def _sampler(environ: Mapping[str, str]) -> Iterator[Finding]:
    name, argument = environ.get("OTEL_TRACES_SAMPLER", ""), environ.get("OTEL_TRACES_SAMPLER_ARG")
    seen = f"OTEL_TRACES_SAMPLER={name}" + (f", argument {argument}" if argument else "")
    if name.endswith("always_off") or (name.endswith("traceidratio") and _number(argument) == 0):
        yield found("sampler-off", seen)
    elif name.endswith("traceidratio") and _number(argument) != 1:
        yield found("sampler-ratio", seen)


def _number(text: str | None) -> float | None:
    try:
        return float(text or 1)
    except ValueError:
        return None


def _is_tight(name: str, value: str) -> bool:
    enough = next(least for end, least in _ENOUGH.items() if name.endswith(end))
    return value.isdigit() and int(value) < enough


def _listed(names: Sequence[str], environ: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={environ[name]}" for name in names)


def _exporters(environ: Mapping[str, str]) -> Iterator[Finding]:
    for signal, name in missing_exporters(environ):
        seen = f"OTEL_{signal.upper()}_EXPORTER names {name!r}, which is not installed"
        yield found("exporter-missing", seen)
    if environ.get("OTEL_TRACES_EXPORTER", "").strip() == "none":
        yield found("traces-not-exported", "OTEL_TRACES_EXPORTER is none")


# --- judge and embedder ---------------------------------------------------------------------------

_OF_ERRORS: Final[tuple[tuple[type[JudgeError], str], ...]] = (
    (JudgeAuthError, "key-refused"),
    (JudgeRateLimitError, "rate-limited"),
    (JudgeTimeoutError, "server-slow"),
    (JudgeRequestError, "model-refused"),
    (UnparsableReplyError, "reply-unusable"),
)
_EMBEDDERS_OWN: Final = frozenset({"model-refused", "reply-unusable"})


def of_config(config: Config) -> Iterator[Finding]:
    """Yield what the options tell."""
    if config.judge == "lexical":
        yield found("judge-lexical", "the judge is lexical")
    if config.sample_rate == 0:
        yield found("turns-sample-rate", "sample_rate is 0: nothing is scored", level="problem")
    if config.max_turns_per_minute == 0:
        yield found("turns-budget", "max_turns_per_minute is 0: nothing is scored", level="problem")


def of_replies(replies: Sequence[Reply]) -> Iterator[Finding]:
    """Yield what came of asking judge and embedder; what ails both is said once."""
    told: set[str] = set()
    for reply in replies:
        if reply.error is None:
            if reply.part == "judge" and reply.name != "lexical":
                yield found("judge-unchecked", f"the judge is {reply.name}")
            continue
        cause = _cause_of(reply.error)
        if reply.part == "embedder" and cause in _EMBEDDERS_OWN:
            cause = "embedder-missing"
        if cause not in told:
            told.add(cause)
            yield found(cause, f"the {reply.part}, {reply.name}: {reply.told}")


def _cause_of(error: JudgeError) -> str:
    if isinstance(error, JudgeAuthError) and "HTTP" not in str(error):
        return "key-missing"  # the client was not even made
    return next(
        (name for kind, name in _OF_ERRORS if isinstance(error, kind)), "server-unreachable"
    )


# --- OTLP -----------------------------------------------------------------------------------------

_OF_VERDICTS: Final[Mapping[str, str]] = {
    "refused": "otlp-refused",
    "unknown_host": "otlp-refused",
    "protocol": "otlp-protocol",
    "path": "otlp-path",
    "key": "otlp-key",
    "timeout": "otlp-timeout",
    "tls": "otlp-tls",
    "address": "otlp-address",
    "error": "otlp-error",
}


def of_answers(answers: Sequence[Answer]) -> Iterator[Finding]:
    """Yield what came of asking the endpoints; one that ails all signals is named once."""
    traces = [one.verdict for one in answers if one.target.signal == "traces"]
    told: set[tuple[str, str, int]] = set()
    for answer in answers:
        if answer.verdict == "ok":
            continue
        cause, level = _cause(answer, traces)
        key = (cause, answer.target.host, answer.target.port)
        if key not in told:
            told.add(key)
            yield found(cause, _seen(answer), level=level)
    yield from _unsaid(answers)


def _cause(answer: Answer, traces: Sequence[str]) -> tuple[str, Level | None]:
    """Return the cause: what other signals than traces meet alone, is a lesser evil."""
    target = answer.target
    if not target.source and answer.verdict in {"refused", "unknown_host"}:
        return "otlp-unset", None
    if target.signal != "traces" and "ok" in traces:
        if answer.verdict == "path":
            return "otlp-signal", None
        return _OF_VERDICTS[answer.verdict], "warning"
    return _OF_VERDICTS[answer.verdict], None


def _seen(answer: Answer) -> str:
    target = answer.target
    named = f" ({target.source})" if target.source else ""
    hint = f"; {answer.hint}" if answer.hint else ""
    return (
        f"{target.signal} to {target.endpoint}{named} over {target.protocol}: {answer.told}{hint}"
    )


def _unsaid(answers: Sequence[Answer]) -> Iterator[Finding]:
    """Tell of port 4318 without a protocol."""
    for answer in answers:
        if answer.verdict == "ok" and _is_guess(answer.target):
            yield found("otlp-protocol-unset", f"{answer.target.endpoint}, and no protocol")
            return


def _is_guess(target: Target) -> bool:
    return bool(target.source) and not target.named_protocol and target.protocol == "http"
