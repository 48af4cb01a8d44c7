"""The arithmetic of ratings: read as a number or as a mean, and averaged over two judges."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from rag_eval_otel.errors import ConfigError, JudgeError
from rag_eval_otel.judge.replies import Graded
from rag_eval_otel.judge.tasks import AskLike, Rated, Task, check_examples, fitting
from rag_eval_otel.metrics.outcome import Examples, Metric, measured, undefined
from rag_eval_otel.metrics.relevancy import (
    DecompositionRelevancy,
    DirectRelevancy,
    IntentRelevancy,
    ReverseRelevancy,
    band,
    short_circuit,
)
from rag_eval_otel.types import EmbedFn, Reason, Sample, Score

_PARTS: Mapping[str, float] = {"reverse": 0.3, "direct": 0.25, "decomposition": 0.25, "intent": 0.2}
_KINDS = (
    *ReverseRelevancy.asks,
    *DirectRelevancy.asks,
    *DecompositionRelevancy.asks,
    *IntentRelevancy.asks,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiMethodRelevancy:
    """Relevancy of the answer by four methods: reverse, direct, decomposition and intent.

    Each part is a metric of its own (`ReverseRelevancy`, `DirectRelevancy`,
    `DecompositionRelevancy`, `IntentRelevancy`)::

        score = sum_i w_i part_i / sum_i w_i   over the parts that have a value
        w = .3 reverse, .25 direct, .25 decomposition, .2 intent

    Range [0, 1]. Needs question and answer. 9 judge requests unfused, 3 fused. ``detail`` has each
    part's value or reason, and the coverage "addressed/sub-questions"; the explanation says in
    words which of four bands the score is in.

    Edges: parts without a value are left out (``partial``); where they have more than half of the
    weight: undefined ``judge_incomplete``, or the error if all failed; no answer: 0
    ``empty_answer``.

    Source: multi-method relevancy (seed article). Differs: a part that failed has no value
    instead of .5, and the weights are renormalised over the others.
    """

    strictness: int = 3
    weights: Mapping[str, float] = field(default_factory=lambda: dict(_PARTS), hash=False)
    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "multi_method_relevancy"

    needs = frozenset({"question", "answer"})
    asks = _KINDS
    requests = "9 (fused 3)"
    range = "[0, 1]"

    def __post_init__(self) -> None:
        """Refuse weights of unknown parts, negative ones, all zero, and examples that don't fit."""
        weights = self.weights.values()
        if not set(self.weights) <= set(_PARTS) or not all(0 <= w < math.inf for w in weights):
            msg = f"weights must map some of {', '.join(_PARTS)} to numbers from 0"
            raise ConfigError(msg)
        if not 0 < sum(weights) < math.inf:
            msg = "at least one of the weights must be above 0, and their sum a number"
            raise ConfigError(msg)
        check_examples(self.name, self.examples, self.asks)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:
        """Return the score of ``sample``."""
        if short := short_circuit(self, sample, threshold=self.threshold):
            return short
        parts = self._parts()
        outcomes = await asyncio.gather(
            *(part.measure(sample, ask, embed) for part in parts.values()), return_exceptions=True
        )
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if len(errors) == len(parts):
            raise errors[0]
        return self._combined(
            {
                name: undefined(name, _reason(one)) if isinstance(one, BaseException) else one
                for name, one in zip(parts, outcomes, strict=True)
            }
        )

    def _parts(self) -> dict[str, Metric]:
        of = partial(fitting, self.examples)
        parts: dict[str, Metric] = {
            "reverse": ReverseRelevancy(
                strictness=self.strictness, examples=of(ReverseRelevancy.asks)
            ),
            "direct": DirectRelevancy(examples=of(DirectRelevancy.asks)),
            "decomposition": DecompositionRelevancy(examples=of(DecompositionRelevancy.asks)),
            "intent": IntentRelevancy(examples=of(IntentRelevancy.asks)),
        }
        return {name: part for name, part in parts.items() if self.weights.get(name)}

    def _combined(self, parts: Mapping[str, Score]) -> Score:
        values = {name: part.value for name, part in parts.items() if part.value is not None}
        total = sum(self.weights[name] for name in parts)
        weight = sum(self.weights[name] for name in values)
        detail: dict[str, Any] = {
            "parts": values,
            "missing": {name: part.reason for name, part in parts.items() if name not in values},
        }
        if "decomposition" in values:
            detail["coverage"] = parts["decomposition"].detail["coverage"]
        if weight < total / 2:
            return undefined(self.name, "judge_incomplete", detail=detail)
        value = sum(self.weights[name] * one for name, one in values.items()) / weight
        return measured(
            self.name,
            value,
            threshold=self.threshold,
            reason="partial" if detail["missing"] else None,
            explanation=band(value),
            detail=detail,
        )


def _reason(error: BaseException) -> Reason:
    return error.reason if isinstance(error, JudgeError) else "internal"


def rating_of(rating: Graded) -> float:
    """Return the mean under the judge's probabilities, where it is known, else the number."""
    return rating.rating if rating.expected is None else rating.expected


def how_rated(wanted: Rated, ratings: Sequence[Graded]) -> Literal[Rated, "graded"]:
    """Tell how ``ratings`` were read; as integers as soon as one had no probabilities.

    ``graded``: by the probabilities of a judge that gives them without being asked to.
    """
    if any(rating.expected is None for rating in ratings):
        return "integer"
    return "logprobs" if wanted == "logprobs" else "graded"


def rating_remark(wanted: Rated, ratings: Sequence[Graded]) -> Reason | None:
    """Return ``no_logprobs`` where probabilities were wanted and the server gave none."""
    return "no_logprobs" if wanted == "logprobs" != how_rated(wanted, ratings) else None


async def dual_score(
    name: str, tasks: Sequence[Task[Any]], ask: AskLike, *, scale: float, threshold: float | None
) -> Score:
    """Return the mean of the valid ratings over ``scale``, the highest one, in [0, 1].

    One invalid judge is left out (reason ``partial``), whichever it is; with none valid the first
    one's error is raised.
    """
    replies = await ask.each(tasks)
    ratings = [reply for reply in replies if isinstance(reply, Graded)]
    if not ratings:
        raise next(reply for reply in replies if isinstance(reply, BaseException))
    values = [rating_of(rating) for rating in ratings]
    remark = rating_remark(tasks[0].rated, ratings)
    return measured(
        name,
        sum(values) / len(values) / scale,
        threshold=threshold,
        reason="partial" if len(ratings) < len(tasks) else remark,
        explanation=" / ".join(rating.reason for rating in ratings if rating.reason),
        detail={
            "ratings": values,
            "rated": how_rated(tasks[0].rated, ratings),
            "judges_used": len(values),
            "disagreement": (max(values) - min(values)) / scale,
        },
    )
