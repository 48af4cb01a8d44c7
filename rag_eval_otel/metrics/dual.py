"""The arithmetic of ratings: read as a number or as a mean, and averaged over two judges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from rag_eval_otel.judge.replies import Graded
from rag_eval_otel.judge.tasks import Rated, Task
from rag_eval_otel.metrics.outcome import measured
from rag_eval_otel.protocols import AskLike
from rag_eval_otel.types import Reason, Score


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
