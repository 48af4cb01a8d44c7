"""The LangChain runs of one root run, as they happened: plain records, filled by the handler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from rag_eval_otel.capture.step import Kind, Step
from rag_eval_otel.types import Passage

if TYPE_CHECKING:
    from opentelemetry.context import Context


@dataclass(slots=True, kw_only=True, eq=False)
class Run:
    """One run. Texts are taken when the event comes, since applications go on to change them."""

    id: UUID
    parent: UUID | None
    tree: RunTree
    kind: Kind
    name: str
    start: int
    end: int | None = None
    input: str | None = None
    output: str | None = None
    messages: tuple[tuple[str, str], ...] = ()
    documents: tuple[Passage, ...] | None = None
    error: str | None = None
    calls_tools: bool = False
    is_prompt: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    response_id: str | None = None
    tokens: tuple[int, int] | None = None

    def fragment(self) -> Step:
        """Return what this run tells about a turn."""
        return Step(
            id=self.id,
            parent=self.parent,
            kind=self.kind,
            name=self.name,
            start=self.start,
            end=self.end,
            input=self.input,
            output=self.output,
            prompt=tuple(text for _, text in self.messages),
            documents=self.documents,
            error=self.error,
            calls_tools=self.calls_tools,
            response_id=self.response_id,
            metadata=self.metadata,
        )


@dataclass(slots=True, kw_only=True, eq=False)
class RunTree:
    """A root run and all below it, in the order they started.

    ``context`` is the OpenTelemetry context the root started in: the parent of its span.
    ``open`` counts the runs that have not ended; ``ended_at`` (monotonic seconds) is set once the
    root has. ``lost`` counts runs over the limit that were not kept, ``size`` the characters that
    the runs which have ended keep alive.
    """

    context: Context
    started_at: float
    runs: list[Run] = field(default_factory=list)
    open: int = 0
    ended_at: float | None = None
    lost: int = 0
    size: int = 0

    @property
    def root(self) -> Run:
        """The root run."""
        return self.runs[0]

    def fragments(self) -> list[Step]:
        """Return what its runs tell about turns.

        Where no model is seen, as when LangChain's cache knew a completion, or when the model is no
        model of LangChain, a filled prompt stands for the call it was filled for.
        """
        asked = any(run.kind == "llm" for run in self.runs)
        found = [(run, run.fragment()) for run in self.runs]
        return [
            replace(one, kind="llm") if run.is_prompt and run.messages and not asked else one
            for run, one in found
        ]
