"""`export`: the rows of a dataset scored and sent on, none of them kept in memory."""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rag_eval_otel.dataset.otlp import sending
from rag_eval_otel.dataset.progress import Progress, progress_bar
from rag_eval_otel.dataset.read import Dataset, check_needs
from rag_eval_otel.dataset.stream import Plan, scored_rows
from rag_eval_otel.dataset.summary import Summary, Totals
from rag_eval_otel.results.files import writing


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Where rows go: to a file, over OTLP, or nowhere; and whether a bar says how many."""

    output: Path | None = None
    otlp: Literal["off", "on"] = "off"
    explanations: Literal["off", "on"] = "off"
    progress: Progress = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What the rows come to, and how many traces could not be sent."""

    totals: Totals
    unsent: int = 0


async def export(dataset: Dataset, plan: Plan, targets: Targets) -> Exported:
    """Score ``dataset`` by ``plan`` and hand each row to ``targets``, in constant memory."""
    check_needs(plan.metrics, dataset)
    async with AsyncExitStack() as stack:
        summary = stack.enter_context(closing(Summary(plan.names)))
        write = None
        if targets.output is not None:
            write = stack.enter_context(writing(targets.output, plan.names))
        sender = None
        if targets.otlp == "on":
            sender = await stack.enter_async_context(
                sending(dataset.name, explanations=targets.explanations)
            )
        advance = stack.enter_context(progress_bar(dataset.count, targets.progress))
        async for row in await stack.enter_async_context(aclosing(scored_rows(dataset, plan))):
            summary.add(row.evaluation)
            if write is not None:
                write(row)
            if sender is not None:
                await sender.send(row)
            advance()
        if sender is not None:
            await sender.flush()
        return Exported(totals=summary.totals(), unsent=sender.failed if sender else 0)
