"""From the spans of a trace to the samples in it, each refusal with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rag_eval_otel.capture.dialects import read
from rag_eval_otel.capture.extract import extract
from rag_eval_otel.capture.fragment import RETRIEVALS, Fragment
from rag_eval_otel.capture.retrievals import find_retrievals
from rag_eval_otel.capture.tree import FragmentTree
from rag_eval_otel.capture.turns import Turn, find_turns
from rag_eval_otel.capture.view import SpanView
from rag_eval_otel.types import Sample, SkipReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a turn; ``turn`` is None where nothing could be recognised as one."""

    result: Sample | SkipReason
    turn: Turn | None = None


def outcomes(fragments: Sequence[Fragment]) -> list[Outcome]:
    """Return what becomes of each turn of a trace, or why a trace that might hold one has none."""
    turns = find_turns(fragments, loss="possible")
    if turns:
        return [Outcome(result=extract(turn), turn=turn) for turn in turns]
    reason = why_none(fragments)
    return [] if reason is None else [Outcome(result=reason)]


def outcomes_of(spans: Iterable[SpanView]) -> list[Outcome]:
    """Return what becomes of each turn in the ``spans`` of one trace, all of which have ended.

    One that never ended must be left out: what is below it then shows that something is missing.
    """
    return outcomes([read(span) for span in spans])


def why_none(fragments: Sequence[Fragment]) -> SkipReason | None:
    """Return why a trace without turns has none, or None where nobody would expect one."""
    kinds = {fragment.kind for fragment in fragments}
    if "llm" not in kinds:
        said = frozenset().union(*(fragment.explicit for fragment in fragments))
        if kinds & RETRIEVALS or "documents" in said:
            return "no_answer"
        return "no_retrieval" if said else None
    if any(f.error is not None and f.parent is None for f in fragments):
        return "error"
    tree = FragmentTree(fragments)
    if not find_retrievals(tree):
        failed = any(f.kind in RETRIEVALS and f.error is not None for f in fragments)
        return "error" if failed else "no_retrieval"
    return "partial" if tree.orphans else "no_answer"
