"""`Fragment`: what one run or span tells about a RAG turn, whoever recorded it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from rag_eval_otel.types import Passage

Kind = Literal["agent", "chain", "embedding", "llm", "other", "retriever", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """One step of a turn. Times are nanoseconds since the epoch; ``end`` is None while it runs.

    ``input`` is what was asked: the question of a chain or agent, the query of a retriever, the
    last user message of an LLM, the arguments of a tool. ``output`` is what came out: the answer
    of a chain or agent, the text of an LLM or a tool. None means that it could not be told.
    ``documents`` belong to retrievers (None: not captured; ``()``: none found), ``prompt`` (the
    messages shown, oldest first) to LLMs.
    """

    id: Hashable
    parent: Hashable | None
    kind: Kind
    name: str
    start: int
    end: int | None = None
    input: str | None = None
    output: str | None = None
    prompt: tuple[str, ...] = ()
    documents: tuple[Passage, ...] | None = None
    error: str | None = None


class FragmentTree:
    """Fragments by id, with the questions one asks of a tree. Cycles in the parents are cut."""

    def __init__(self, fragments: Iterable[Fragment]) -> None:
        """Index ``fragments``; of two with one id the first counts."""
        self.by_id: dict[Hashable, Fragment] = {}
        for fragment in fragments:
            self.by_id.setdefault(fragment.id, fragment)
        self.fragments = tuple(self.by_id.values())

    def ancestors(self, fragment: Fragment) -> Iterator[Fragment]:
        """Yield the parents of ``fragment``, nearest first."""
        seen = {fragment.id}
        parent = fragment.parent
        while parent is not None and parent not in seen and parent in self.by_id:
            seen.add(parent)
            yield self.by_id[parent]
            parent = self.by_id[parent].parent

    def line(self, fragment: Fragment) -> tuple[Fragment, ...]:
        """Return ``fragment`` and its ancestors, nearest first."""
        return (fragment, *self.ancestors(fragment))

    @cached_property
    def retrievers(self) -> tuple[Fragment, ...]:
        """The outermost retrievers that succeeded, by start."""
        found = (f for f in self.fragments if f.kind == "retriever" and f.error is None)
        outermost = (f for f in found if not self._inside(f, "retriever"))
        return tuple(sorted(outermost, key=lambda f: f.start))

    @cached_property
    def generators(self) -> tuple[Fragment, ...]:
        """The innermost LLM calls that succeeded outside of any retriever, by start."""
        calls = [f for f in self.fragments if f.kind == "llm" and not self._inside(f, "retriever")]
        outer = {a.id for call in calls for a in self.ancestors(call) if a.kind == "llm"}
        found = (call for call in calls if call.id not in outer and call.error is None)
        return tuple(sorted(found, key=lambda f: f.start))

    def _inside(self, fragment: Fragment, kind: Kind) -> bool:
        return any(a.kind == kind for a in self.ancestors(fragment))
