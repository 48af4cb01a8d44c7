"""How metrics say what they found: a number, a number with a remark, or no number and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, get_args, get_origin, get_type_hints

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.replies import Decision, Judged
from rag_eval_otel.judge.tasks import AskLike, Kind
from rag_eval_otel.types import EmbedFn, Label, Reason, Sample, Score

Examples: TypeAlias = Sequence[Mapping[str, Any]]
"""Worked examples shown to the judge: each ``{"inputs": {...}, "outputs": {...}}``."""


class Metric(Protocol):
    """A definition: computes one `Score` from a sample, judge replies and embeddings."""

    @property
    def name(self) -> str:
        """The metric's name, snake case: ``[a-z][a-z0-9_]*``."""

    @property
    def needs(self) -> frozenset[str]:
        """The required fields of `Sample`, or keys of its ``extra``."""

    @property
    def asks(self) -> tuple[Kind[Any], ...]:
        """The kinds of question it puts to the judge; part of its definition."""

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:
        """Return the score. A `JudgeError` that it raises becomes a failed score."""


def check_choices(metric: object) -> None:
    """Raise `ConfigError` where a parameter of ``metric`` is none of the choices it has."""
    for name, hint in get_type_hints(type(metric)).items():
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        if choices and getattr(metric, name) not in choices:
            told = f"{name} of {type(metric).__name__} must be one of {choices}"
            msg = f"{told}, not {getattr(metric, name)!r}"
            raise ConfigError(msg)


def measured(
    name: str,
    value: float,
    *,
    threshold: float | None,
    normalized: float | None = None,
    reason: Reason | None = None,
    explanation: str | None = None,
    detail: Mapping[str, Any] | None = None,
) -> Score:
    """Return an ok score, labelled pass where ``value`` reaches ``threshold``."""
    return Score(
        name=name,
        value=value,
        normalized=normalized,
        label=label_of(value, threshold),
        threshold=threshold,
        reason=reason,
        explanation=explanation or None,
        detail=detail or {},
    )


def label_of(value: float | None, threshold: float | None) -> Label | None:
    """Return pass from ``threshold`` on, fail below; None without a threshold or a value."""
    if value is None or threshold is None:
        return None
    return "pass" if value >= threshold else "fail"


def undefined(name: str, reason: Reason, *, detail: Mapping[str, Any] | None = None) -> Score:
    """Return a score that the definition gives no number for."""
    return Score(name=name, status="undefined", reason=reason, detail=detail or {})


def share_of(judged: Sequence[Judged]) -> float:
    """Return the mean probability of a yes: the share of yeses, where each is 0 or 1."""
    return sum(one.probability for one in judged) / len(judged)


def verdicts_of(judged: Sequence[Judged]) -> dict[str, Any]:
    """Return what goes into the detail: the verdicts, and how likely each is where that is told."""
    found: dict[str, Any] = {"verdicts": [one.verdict for one in judged]}
    if any(one.is_graded for one in judged):
        found["probabilities"] = [one.probability for one in judged]
    return found


def decided(name: str, decision: Decision, *, threshold: float | None) -> Score:
    """Return 1 for a yes of the judge and 0 for a no."""
    value = 1.0 if decision.passing else 0.0
    return measured(name, value, threshold=threshold, explanation=decision.reason)
