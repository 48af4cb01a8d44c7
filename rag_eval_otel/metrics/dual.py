"""The arithmetic of the dual-judge metrics: two independent ratings, averaged."""

from __future__ import annotations

from collections.abc import Sequence

from rag_eval_otel.judge.tasks import Rating, Task
from rag_eval_otel.metrics.outcome import measured
from rag_eval_otel.protocols import AskLike
from rag_eval_otel.types import Score

_SCALE = 2  # the highest rating


async def dual_score(
    name: str, tasks: Sequence[Task[Rating]], ask: AskLike, *, threshold: float | None
) -> Score:
    """Return the mean of the valid ratings over the scale's maximum, in [0, 1].

    One invalid judge is left out (reason ``partial``), whichever it is; with none valid the first
    one's error is raised.
    """
    replies = await ask.each(tasks)
    ratings = [reply for reply in replies if isinstance(reply, Rating)]
    if not ratings:
        raise next(reply for reply in replies if isinstance(reply, BaseException))
    values = [rating.rating for rating in ratings]
    return measured(
        name,
        sum(values) / len(values) / _SCALE,
        threshold=threshold,
        reason="partial" if len(ratings) < len(tasks) else None,
        explanation=" / ".join(rating.reason for rating in ratings if rating.reason) or None,
        detail={
            "ratings": values,
            "judges_used": len(values),
            "disagreement": (max(values) - min(values)) / _SCALE,
        },
    )
