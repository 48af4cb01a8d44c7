"""The seams of the library: protocols of one method, for what handles its records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rag_eval_otel.judge.replies import Reply
    from rag_eval_otel.judge.tasks import Kind, Task
    from rag_eval_otel.types import Evaluation, Replies, Sample, Score

R = TypeVar("R", bound="Reply")
Vectors: TypeAlias = "NDArray[np.float64]"
EmbedFn: TypeAlias = Callable[[Sequence[str]], Awaitable[Vectors]]


class AskLike(Protocol):
    """What a metric sees of the judge: put a task, get its reply."""

    async def __call__(self, task: Task[R]) -> R:
        """Return the reply to ``task``; raise `JudgeError` when none can be had."""

    async def each(self, tasks: Sequence[Task[R]]) -> list[R | BaseException]:
        """Put all ``tasks`` at once; a task that failed is answered by its error."""


class Metric(Protocol):
    """A definition: from a sample, judge replies and embeddings to one `Score`."""

    @property
    def name(self) -> str:
        """The metric's name, snake case: ``[a-z][a-z0-9_]*``."""

    @property
    def needs(self) -> frozenset[str]:
        """The fields of `Sample`, or keys of its ``extra``, that it cannot do without."""

    @property
    def asks(self) -> tuple[Kind[Any], ...]:
        """The kinds of question it puts to the judge; they are part of its definition."""

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:
        """Return the score. A `JudgeError` may be raised: it becomes a failed score."""


class Judge(Protocol):
    """Answers typed questions, one request for the tasks it is given."""

    @property
    def model(self) -> str:
        """The model that is asked; part of the version of every score."""

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Answer ``tasks`` in one request; raise `JudgeError` when none could be answered."""


class Embedder(Protocol):
    """Turns texts into vectors."""

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Return a float array of shape ``(len(texts), dim)``; raise `JudgeError` on failure."""


class Sink(Protocol):
    """Takes finished evaluations; called on the evaluator's thread."""

    def emit(self, evaluation: Evaluation) -> None:
        """Record ``evaluation``; what it raises is counted and logged, never passed on."""
