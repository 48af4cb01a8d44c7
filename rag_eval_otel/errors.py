"""The exceptions that this library raises on purpose."""

from __future__ import annotations

from typing import ClassVar, Final

from rag_eval_otel.types import Reason

REPOSITORY: Final = "git+https://github.com/rag-eval-otel/rag-eval-otel"  # on no index yet


class RagEvalError(Exception):
    """Base class of all errors of this library."""


class ConfigError(RagEvalError, ValueError):
    """An option has a value that cannot be used; the message says which values are allowed."""


class MissingDependencyError(RagEvalError, ImportError):
    """A package is not installed; the message names the extra of this library to install."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is not installed. Install the extra {extra!r} with:"
            f' pip install "rag-eval-otel[{extra}] @ {REPOSITORY}"'
            f' (in a checkout: pip install ".[{extra}]")'
        )


class RedactionError(RagEvalError):
    """A function of the option ``redact`` failed. The message does not quote the text."""


class FailedRowError(RagEvalError):
    """A row of a data set could not be scored, so a test of it has no result."""


class JudgeError(RagEvalError):
    """A judge or embedder gave no usable reply; ``reason`` becomes `Score.reason`.

    ``requests`` is 1, or 0 if nothing was sent, because of a budget, a pause or an outage.
    ``status`` is the HTTP status, or None without a response. ``retry_after`` is the number of
    seconds after which the server allows the next request, or None if it named no time.
    """

    reason: ClassVar[Reason] = "transport"
    requests: int = 1
    status: int | None = None
    retry_after: float | None = None

    def __init_subclass__(cls, *, reason: Reason | None = None) -> None:
        cls.reason = reason or cls.reason


class JudgeTimeoutError(JudgeError, reason="timeout"):
    """The judge did not answer in time."""


class JudgeTransportError(JudgeError):
    """The judge could not be reached, or answered with a server error."""


class JudgeAuthError(JudgeError, reason="unauthorized"):
    """The judge refused the key (401 or 403)."""


class JudgeRateLimitError(JudgeError, reason="rate_limited"):
    """A request was refused (429), or not sent because the server demands a long pause."""


class JudgeRequestError(JudgeError, reason="bad_request"):
    """The judge refused the request itself (400, 404, 422): often the model's name is wrong."""

    named: frozenset[str] = frozenset()  # options of the request that the server's message names


class JudgeTooLongError(JudgeRequestError, reason="too_long"):
    """The texts of the request are too long for the judge's model."""


class JudgeUnavailableError(JudgeError, reason="circuit_open"):
    """The judge was not asked, because earlier requests failed (open circuit breaker)."""

    requests: int = 0


class BudgetSpentError(JudgeUnavailableError, reason="budget"):
    """The judge was not asked, because a limit of the budget is reached."""


class UnparsableReplyError(JudgeError, reason="unparsable"):
    """The judge replied, but its reply does not parse or does not fit the question."""


class UnsuitableJudgeError(UnparsableReplyError):
    """The judge cannot answer this kind of question; the message quotes no text of a user."""
