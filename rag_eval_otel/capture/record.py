"""`RunRecorder`: run trees in the making, and what becomes of them when their root has ended."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

from opentelemetry import context as otel_context
from opentelemetry.trace import Span, SpanContext, get_current_span

from rag_eval_otel.capture.loose import LooseRuns
from rag_eval_otel.capture.runs import Run, RunTree
from rag_eval_otel.capture.spans import SpanWriter, end
from rag_eval_otel.capture.step import Kind, Step
from rag_eval_otel.capture.text import USUAL, answer_of, question_of
from rag_eval_otel.capture.turn import Turn, find_turns
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.types import SkipReason

MAX_RUNS = 10_000  # of one tree; what comes after is not looked at, and the turn is refused


class TurnIntake(Protocol):
    """Where recognised turns go."""

    def expect(self, span: SpanContext, turn: Turn, *, instead: Turn | None = None) -> bool:
        """Let ``span`` stand for ``turn``, if it stands for no other but ``instead``."""

    def withdraw(self, span: SpanContext, turn: Turn) -> None:
        """Let ``span`` stand for ``turn`` no more."""

    def submit(self, turn: Turn, span: SpanContext) -> None:
        """Evaluate ``turn`` without holding any span; its scores refer to ``span``."""

    def skipped(self, reason: SkipReason) -> None:
        """Count a turn that won't be evaluated."""


class RunRecorder:
    """Keeps the runs of every root run that has not ended, at most ``max_trees`` of them.

    A tree is finished as soon as its root and all below have ended, or ``grace`` seconds after its
    root: an abandoned stream ends its root before its LLM, a cancelled call never ends its LLM.
    Roots that have not ended when they are older than ``max_age`` seconds, or too many, or keep
    more than ``max_size`` characters alive between them, are given up, oldest first: their spans
    are written as they are, and they give no turn.
    """

    def __init__(
        self,
        writer: SpanWriter,
        intake: TurnIntake,
        *,
        edge: Edge,
        question_keys: Iterable[str] = (),
        answer_keys: Iterable[str] = (),
        max_trees: int = 4096,
        max_size: int = 256 * 1024 * 1024,
        max_age: float = 3600.0,
        grace: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write spans with ``writer`` and give turns to ``intake``."""
        self._writer = writer
        self._intake = intake
        self._edge = edge
        self._keys = USUAL.after(question=question_keys, answer=answer_keys)
        self._max_trees = max_trees
        self._max_size = max_size
        self._max_age = max_age
        self._grace = grace
        self._clock = clock
        # Reentrant: a garbage collection under the lock may close a stream, which ends its runs.
        self._lock = threading.RLock()
        self._loose = LooseRuns()
        self._runs: dict[UUID, Run] = {}
        self._trees: OrderedDict[UUID, RunTree] = OrderedDict()
        self._size = 0
        call_in_child(self._after_fork)

    def __len__(self) -> int:
        """Return how many root runs are in the making."""
        return len(self._trees)

    def question_of(self, value: object) -> str | None:
        """Return the question in the input of a chain."""
        return question_of(value, self._keys)

    def answer_of(self, value: object) -> str | None:
        """Return the answer in the output of a chain."""
        return answer_of(value, self._keys)

    def find(self, run_id: UUID | None) -> Run | None:
        """Return the run ``run_id`` if its tree is still in the making."""
        return self._runs.get(run_id) if run_id is not None else None

    def start(
        self,
        kind: Kind,
        run_id: UUID,
        *,
        parent: UUID | None,
        name: str,
        metadata: Mapping[str, Any],
    ) -> Run | None:
        """Note a run; None where it is known already or its tree is full.

        A parent that is not known makes it a root: handlers join in the middle of things.
        """
        with self._lock:
            if run_id in self._runs:
                return None
            above = self._runs.get(parent) if parent is not None else None
            stale = [] if above else self._stale()
            tree = above.tree if above else self._plant(run_id)
            run = self._add(tree, run_id, above=above, kind=kind, name=name, metadata=metadata)
        for old in stale:
            with self._edge:
                self._intake.skipped("evicted")
            with self._edge:
                self._write(old, [])
        return run

    def _add(
        self,
        tree: RunTree,
        run_id: UUID,
        *,
        above: Run | None,
        kind: Kind,
        name: str,
        metadata: Mapping[str, Any],
    ) -> Run | None:
        if len(tree.runs) >= MAX_RUNS:
            tree.lost += 1
            return None
        run = Run(
            id=run_id,
            parent=above.id if above else None,
            tree=tree,
            kind=kind,
            name=name,
            start=time.time_ns(),
            metadata=metadata,
        )
        tree.runs.append(run)
        tree.open += 1
        self._runs[run_id] = run
        return run

    def _plant(self, root: UUID) -> RunTree:
        tree = RunTree(context=otel_context.get_current(), started_at=self._clock())
        self._trees[root] = tree
        return tree

    def _stale(self) -> list[RunTree]:
        """Take out the trees that are too old or too many: their roots will hardly end."""
        stale: list[RunTree] = []
        now = self._clock()
        while self._trees:
            oldest = next(iter(self._trees.values()))
            too_many = len(self._trees) >= self._max_trees or self._size > self._max_size
            if not too_many and now - oldest.started_at <= self._max_age:
                break
            self._forget(oldest)
            stale.append(oldest)
        return stale

    def end(self, run: Run, at: int) -> None:
        """Note that ``run`` ended; a second end changes nothing."""
        with self._lock:
            if run.end is not None:
                return
            run.end = max(at, run.start)
            tree = run.tree
            tree.open -= 1
            if tree.root.id in self._trees:
                size = _size(run)
                tree.size += size
                self._size += size
            if run is tree.root:
                tree.ended_at = self._clock()
            finished = tree.ended_at is not None and (tree.open == 0 or tree.root.error is not None)
            finished = finished and self._forget(tree)
        if finished:
            self._finish(tree)
        elif run is tree.root:
            self._finish_later(tree)

    def _finish_later(self, tree: RunTree) -> None:
        timer = threading.Timer(self._grace, self._finish_now, args=(tree,))
        timer.daemon = True
        timer.start()

    def _finish_now(self, tree: RunTree) -> None:
        with self._lock:
            mine = self._forget(tree)
        if mine:
            with self._edge:
                self._finish(tree)

    def flush(self) -> None:
        """Finish the trees whose root has ended, without waiting for their grace."""
        with self._lock:
            trees = list(self._trees.values())
        for tree in trees:
            if tree.ended_at is not None:
                self._finish_now(tree)

    def _forget(self, tree: RunTree) -> bool:
        """Take ``tree`` out; False if somebody else has."""
        if self._trees.pop(tree.root.id, None) is None:
            return False
        for run in tree.runs:
            self._runs.pop(run.id, None)
        self._size -= tree.size
        return True

    def _finish(self, tree: RunTree) -> None:
        """Write the spans of ``tree`` and pass its turns on, outside of any lock."""
        turns: list[Turn] = []
        with self._edge:  # whatever happens here, the spans are written
            steps = [] if tree.lost else tree.fragments()
            turns = find_turns(steps)
            if not turns and not self._is_joined(tree, steps):
                self._count_refusal(tree)
        self._write(tree, turns)

    def _write(self, tree: RunTree, turns: Sequence[Turn]) -> None:
        """Write the spans of ``tree``; a turn is announced before the span standing for it ends."""
        standing = {turn.line[-1].id: turn for turn in turns}
        spans = self._writer.start(tree, also=standing.keys(), edge=self._edge)
        for run in sorted(tree.runs, key=lambda r: (r.end or tree.root.end or 0, -r.start)):
            if run.id in standing:
                with self._edge:
                    self._announce(standing[run.id], spans.get(run.id), tree)
            if run.id in spans:
                with self._edge:
                    end(spans[run.id], run)

    def _is_joined(self, tree: RunTree, steps: Sequence[Step]) -> bool:
        """Tell whether ``tree`` is part of a turn of the span around it, which then stands for it.

        A span of several turns stands for none of them: who knows what belongs together.
        """
        joined = None if tree.root.error is not None else self._loose.join(tree, steps)
        if joined is None:
            return False
        span, turns, before = joined
        context = span.get_span_context()
        if len(turns) == 1:
            return self._intake.expect(context, turns[0], instead=before)
        if before is not None:
            self._intake.withdraw(context, before)
            self._intake.skipped("ambiguous")
        return True

    def _count_refusal(self, tree: RunTree) -> None:
        """Count a tree that is no turn, if it might have been one."""
        kinds = {run.kind for run in tree.runs}
        if tree.lost:
            self._intake.skipped("evicted")
        elif tree.root.error is not None and kinds & {"llm", "retriever"}:
            self._intake.skipped("error")
        elif "llm" in kinds:
            self._intake.skipped("no_answer" if "retriever" in kinds else "no_retrieval")

    def _announce(self, turn: Turn, span: Span | None, tree: RunTree) -> None:
        """Let the turn's own span stand for it; without one, the span around the root run."""
        span = span or get_current_span(tree.context)
        context = span.get_span_context()
        if context.is_valid and not context.trace_flags.sampled:
            self._intake.skipped("not_sampled")
        elif not (span.is_recording() and self._intake.expect(context, turn)):
            self._intake.submit(turn, context)

    def _after_fork(self) -> None:
        """Forget the runs under way in a forked child: they end in the parent."""
        self._lock = threading.RLock()
        self._loose.clear()
        self._runs.clear()
        self._trees.clear()
        self._size = 0


def _size(run: Run) -> int:
    """Return how many characters ``run`` keeps alive."""
    texts = (run.input, run.output, *(text for _, text in run.messages))
    return sum(len(text or "") for text in texts) + sum(len(p.text) for p in run.documents or ())
