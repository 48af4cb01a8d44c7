"""Every exception the library raises on purpose.

RagEvalError
├── ConfigError            an option or a RAG_EVAL_* variable has a value that cannot be used
├── MissingDependencyError an optional dependency is needed and not installed
├── FailedRowError         a row of a dataset could not be scored, and that was to be an error
└── JudgeError             a judge or embedder could not be asked; carries a score reason
    ├── JudgeTimeoutError      no answer in time
    ├── JudgeTransportError    connection refused, reset, or a server error
    ├── JudgeAuthError         401 or 403: the key or its rights are wrong
    ├── JudgeRateLimitError    429, after the client's own retries
    ├── JudgeRequestError      400 or 404: the request or the model's name is wrong
    ├── JudgeUnavailableError  the circuit breaker is open: not asked at all
    │   └── BudgetSpentError       a run's budget is spent: not asked at all
    └── UnparsableReplyError   an answer came, but not one that fits the question
"""

from __future__ import annotations

from typing import ClassVar

from rag_eval_otel.types import Reason


class RagEvalError(Exception):
    """Base of all errors of this library."""


class ConfigError(RagEvalError, ValueError):
    """An option has a value that cannot be used; the message names the allowed ones."""


class MissingDependencyError(RagEvalError, ImportError):
    """An optional dependency is not installed; the message names the extra to install."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is not installed. Install it with: pip install 'rag-eval-otel[{extra}]'"
        )


class FailedRowError(RagEvalError):
    """A row of a dataset could not be scored, and ``raise_on_failure`` was asked for."""


class JudgeError(RagEvalError):
    """A judge or embedder could not be asked. ``reason`` is the reason of the score."""

    reason: ClassVar[Reason] = "transport"


class JudgeTimeoutError(JudgeError):
    """The judge did not answer in time."""

    reason = "timeout"


class JudgeTransportError(JudgeError):
    """The judge could not be reached, or answered with a server error."""


class JudgeAuthError(JudgeError):
    """The judge refused the key (401 or 403)."""

    reason = "unauthorized"


class JudgeRateLimitError(JudgeError):
    """The judge refused for its rate limit (429), also after the client's retries."""

    reason = "rate_limited"


class JudgeRequestError(JudgeError):
    """The judge refused the request itself (400, 404, 422): often a wrong model name.

    ``status`` is the HTTP status, where there was one.
    """

    reason = "bad_request"
    status: int | None = None


class JudgeUnavailableError(JudgeError):
    """The circuit breaker is open after repeated failures: the judge was not asked."""

    reason: ClassVar[Reason] = "circuit_open"


class BudgetSpentError(JudgeUnavailableError):
    """The budget of a run over a dataset is spent: the judge was not asked."""

    reason: ClassVar[Reason] = "budget"


class UnparsableReplyError(JudgeError):
    """The judge answered, but the answer does not fit the question."""

    reason = "unparsable"
