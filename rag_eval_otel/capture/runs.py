"""Record LangChain runs, and convert them into steps once the root run has ended.

A run is one call of a chain, model, retriever or tool. The application's thread only stores times
and copied values (`RunRecorder`). A background thread later reads questions, answers and documents
from these values (`RunTree.steps`).
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from opentelemetry import context as otel_context

from rag_eval_otel import semconv
from rag_eval_otel.capture import step as build
from rag_eval_otel.capture.conventions.native import distinct_passages
from rag_eval_otel.capture.span import Copier, PlainSpan
from rag_eval_otel.capture.step import Kind, Part, Step, has_longer_text
from rag_eval_otel.capture.values import Keys, plain
from rag_eval_otel.config import MAX_TEXT_CHARS
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.types import Passage

if TYPE_CHECKING:
    from opentelemetry.context import Context

MAX_RUNS = 10_000
"""The most runs of a tree. A larger tree is not scored, and the reason is ``evicted``."""

_RETRIEVALS = frozenset({"retriever", "tool"})


class Run:
    """One recorded LangChain run. Times are nanoseconds since the epoch.

    ``asked`` is the input and ``told`` is the output of the run. Both are plain data that nobody
    changes any more. ``said`` contains texts and documents that the application itself recorded
    within the run, with functions such as `record_answer`. ``query`` is the query of a retrieval
    that was recorded in this way. ``description`` is the description of a tool. ``model``,
    ``response_id`` and ``tokens`` (the numbers of input and output tokens) are set for calls of a
    model. ``is_prompt`` is true if the run filled a prompt template. ``is_search`` is true if the
    run is a search of a vector store.
    """

    # Defaults of the class. A run sets only attributes that differ, which is faster than slots.
    end: int | None = None
    asked: Any = None
    told: Any = None
    error: str | None = None
    is_prompt = False
    model: str | None = None
    response_id: str | None = None
    tokens: tuple[int, int] | None = None
    said: dict[Part, Any] | None = None
    query: str | None = None
    description: str | None = None
    is_search = False

    def __init__(  # noqa: PLR0917  # one for each event of the application: positional is faster
        self,
        id: int,  # noqa: A002
        parent: int | None,
        tree: RunTree,
        kind: Kind,
        name: str,
        metadata: Mapping[str, Any],
    ) -> None:
        self.id = id
        self.parent = parent
        self.tree = tree
        self.kind = kind
        self.name = name
        self.metadata = metadata
        self.start = time.time_ns()


class RunTree:
    """A LangChain root run and all runs below it, in the order in which they started.

    ``context`` is the OpenTelemetry context in which the root run started. If a span was active
    then, it is in ``context``. ``open`` is the number of runs that have not ended. ``ended_at`` is
    the time at which the root run ended, in seconds of the recorder's clock. ``is_kept`` is true
    until the recorder passes the tree on. ``lost`` is the number of runs that were not recorded
    because the tree already had `MAX_RUNS` runs. ``searched`` is the start of the first retrieval
    or tool call. ``called`` is the start of the last call of a model.
    """

    __slots__ = (
        "called",
        "context",
        "ended_at",
        "is_kept",
        "lost",
        "open",
        "runs",
        "searched",
        "size",
        "started_at",
    )

    def __init__(self, context: Context, started_at: float) -> None:
        self.context = context
        self.started_at = started_at
        self.runs: list[Run] = []
        self.open = 0
        self.ended_at: float | None = None
        self.is_kept = True
        self.lost = 0
        self.size = 0
        self.searched: int | None = None
        self.called: int | None = None

    @property
    def root(self) -> Run:
        """The run that has no parent."""
        return self.runs[0]

    @property
    def may_be_turn(self) -> bool:
        """Whether a model was called after a retrieval, so that there may be an answer to score.

        Only start times are compared. No texts are read.
        """
        both = self.searched is not None and self.called is not None
        return both and self.called >= self.searched  # type: ignore[operator]  # just checked

    def steps(
        self, keys: Keys, *, parent: int | None = None, most: int = MAX_TEXT_CHARS
    ) -> list[Step]:
        """Convert all runs of this tree into steps. The root's step becomes a child of ``parent``.

        A *step* is one call in a trace. ``keys`` are the dict keys under which the application
        keeps questions and answers. ``most`` is the limit of texts: see `Copier`.

        The tree may contain no call of a model, because LangChain's cache had the reply, or because
        the model is not one of LangChain's. Then a run that filled a prompt template becomes the
        step of a model.
        """
        asked = any(run.kind == "llm" for run in self.runs)
        _nest_searches(self.runs)
        said = _said(self.runs)
        found = []
        for run in self.runs:
            step = step_of(run, keys, most=most)
            if run.id in said:
                step = _with_said(step, run, said[run.id], most=most)
            if run.is_prompt and step.prompt and not asked:
                step = replace(step, kind="llm")
            found.append(step if run.parent is not None else replace(step, parent=parent))
        return found


def _nest_searches(runs: Sequence[Run]) -> None:
    """Set the parent of each vector store search to the retriever that made the search.

    A LangChain retriever does not become the active run while it searches its store. So the search
    is recorded with the same parent as the retriever. A search belongs to a retriever if both have
    the same parent, and the retriever was open during the whole search.
    """
    retrievers = [run for run in runs if run.kind == "retriever" and not run.is_search]
    for search in runs if retrievers else ():
        if search.is_search:
            end = search.end or search.start
            around = (
                one
                for one in reversed(retrievers)
                if one.parent == search.parent
                and one.start <= search.start
                and (one.end is None or one.end >= end)
            )
            search.parent = next((one.id for one in around), search.parent)


def step_of(run: Run, keys: Keys, *, most: int = MAX_TEXT_CHARS) -> Step:
    """Convert ``run`` into a step, the form in which all calls in a trace are read.

    Spans are converted by the same functions. ``keys`` are the dict keys under which the
    application keeps questions and answers.
    """
    view = PlainSpan(
        name=run.name,
        scope=semconv.SCOPE,
        span_id=run.id,
        parent_id=run.parent,
        start=run.start,
        end=run.end,
        error=run.error,
        keys=keys,
    )
    copier = Copier(most)
    inputs, outputs = plain(copier.value(run.asked)), plain(copier.value(run.told))
    if run.kind == "llm":
        step = build.llm(view, messages=inputs, reply=outputs, response_id=run.response_id)
    elif run.kind == "retriever":
        step = build.retrieval(view, inputs=inputs, documents=outputs)
    elif run.kind == "tool":
        step = build.tool(
            view, inputs=inputs, outputs=outputs, description=(run.description or "")[:most]
        )
    else:
        step = build.chain(view, run.kind, inputs=inputs, outputs=outputs)
        if run.is_prompt:
            shown = build.llm(view, messages=outputs, reply=None)
            step = replace(step, input=shown.input, prompt=shown.prompt, output=None)
    # A reader may have stripped white space from a text that was cut, or taken a part of it.
    is_cut = copier.is_cut and has_longer_text(step, most // 2)
    return replace(step, metadata=run.metadata, is_cut=is_cut)


def _said(runs: Sequence[Run]) -> dict[int, dict[Part, Any]]:
    """Return the parts (question, documents, answer) that the application recorded, by run id.

    A recorded question or answer also counts for all runs above the run in which the application
    recorded it.
    """
    by_id = {run.id: run for run in runs}
    found: dict[int, dict[Part, Any]] = {}
    for run in runs:
        if run.said is None:
            continue
        found.setdefault(run.id, {}).update(run.said)
        turn_parts = {**run.said}
        turn_parts.pop("documents", None)
        above = by_id.get(run.parent) if run.parent is not None else None
        while turn_parts and above is not None:
            found[above.id] = {**found.get(above.id, {}), **turn_parts, **(above.said or {})}
            above = by_id.get(above.parent) if above.parent is not None else None
    return found


def _with_said(step: Step, run: Run, said: Mapping[Part, Any], *, most: int) -> Step:
    """Return ``step`` with the parts ``said``, which the application itself recorded.

    The parts are the question, the documents or the answer. They replace the parts that LangChain
    reported. A part with a text of more than ``most`` characters is cut.
    """
    found: dict[Any, Any] = dict(said)
    cut = {part for part, value in found.items() if _longest(value) > most}
    found |= dict.fromkeys(cut)
    if found.get("documents") is not None:
        found["documents"] = tuple(distinct_passages(found["documents"]))
    query = (run.query or "")[:most] or None
    recorded = frozenset(said)
    return replace(
        step, **found, query=query, recorded=recorded, cut=(step.cut - recorded) | cut, flat=False
    )


def _longest(value: str | Sequence[Passage]) -> int:
    texts = [value] if isinstance(value, str) else [passage.text for passage in value]
    return max(map(len, texts), default=0)


def size_of(noted: object) -> int:
    """Return the number of characters in all texts of the plain data ``noted``."""
    if isinstance(noted, str):
        return len(noted)
    if isinstance(noted, Mapping):
        return sum(map(size_of, noted.values()))
    return sum(map(size_of, noted)) if isinstance(noted, list) else 0


class TreeIntake(Protocol):
    """Takes the run trees that a `RunRecorder` passes on."""

    def finished(self, tree: RunTree) -> None:
        """Take ``tree``, which is complete. No run will be added to it."""

    def evicted(self, tree: RunTree) -> None:
        """Take ``tree``, which was removed to limit memory before it was complete."""

    def waiting(self) -> None:
        """React to the end of a root run before the end of the runs below it.

        From now on, the receiver must call `RunRecorder.sweep` at intervals.
        """


class RunRecorder:
    """Stores the runs of every LangChain root run until its tree is complete, then passes it on.

    A tree contains a root run and all runs below it. The tree is complete when all of its runs have
    ended, or ``grace`` seconds after the end of its root run. Some runs below a root run end later
    or never: if a stream is abandoned, the root run ends before its model call, and a cancelled
    model call never ends.

    If a root run does not end, its tree may be removed, oldest first. This happens if the tree is
    older than ``max_age`` seconds, if there are more than ``max_trees`` trees, or if all runs
    together contain more than ``max_size`` characters.
    """

    def __init__(
        self,
        intake: TreeIntake,
        *,
        max_trees: int = 4096,
        max_size: int = 256 * 1024 * 1024,
        max_age: float = 3600.0,
        grace: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._intake = intake
        self._max_trees = max_trees
        self._max_size = max_size
        self._max_age = max_age
        self._grace = grace
        self._clock = clock
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        """Delete all trees. In a forked child process they belong to the parent process."""
        # Reentrant, because garbage collection under the lock may close a stream and end its runs.
        self._lock = threading.RLock()
        self.runs: dict[int, Run] = {}
        self._trees: OrderedDict[int, RunTree] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._trees)

    def start(
        self, kind: Kind, run_id: int, parent: int | None, name: str, metadata: Mapping[str, Any]
    ) -> Run | None:  # positional: see `Run`
        """Record the start of a run, and return the run.

        Return None if the run is already known, or if its tree is full. If the parent of the run is
        not known, the run becomes a root run, because a handler may be added in the middle of a
        run.
        """
        above = self.runs.get(parent) if parent is not None else None
        if above is None:
            return self._start_root(kind, run_id, name, metadata)
        tree = above.tree
        with self._lock:
            if run_id in self.runs:
                return None
            if len(tree.runs) >= MAX_RUNS:
                tree.lost += 1
                return None
            run = Run(run_id, above.id, tree, kind, name, metadata)
            return self._added(run)

    def _start_root(
        self, kind: Kind, run_id: int, name: str, metadata: Mapping[str, Any]
    ) -> Run | None:
        with self._lock:
            if run_id in self.runs:
                return None
            stale = self._stale() if self._trees else ()
            tree = RunTree(otel_context.get_current(), self._clock())
            self._trees[run_id] = tree
            run = self._added(Run(run_id, None, tree, kind, name, metadata))
        for old in stale:
            self._intake.evicted(old)
        return run

    def _added(self, run: Run) -> Run:
        tree = run.tree
        tree.runs.append(run)
        tree.open += 1
        self.runs[run.id] = run
        if run.kind == "llm":
            tree.called = run.start
        elif run.kind in _RETRIEVALS and tree.searched is None:
            tree.searched = run.start
        return run

    def _stale(self) -> list[RunTree]:
        """Remove and return the oldest trees if there are too many or they are too old or large."""
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

    def end(self, run: Run) -> None:
        """Record the end of ``run``, and pass on its tree if it is complete.

        If the end of ``run`` is already recorded, do nothing.
        """
        tree = run.tree
        is_root = run.parent is None
        # Inner chains are not counted: they mostly pass on texts of other runs.
        size = size_of(run.told) + size_of(run.asked) if is_root or run.kind != "chain" else 0
        with self._lock:
            if run.end is not None:
                return
            run.end = max(time.time_ns(), run.start)
            tree.open -= 1
            if size and tree.is_kept:
                tree.size += size
                self._size += size
            if is_root:
                tree.ended_at = self._clock()
            elif tree.ended_at is None:
                return
            is_finished = tree.open == 0 or tree.root.error is not None
            if is_finished and not self._forget(tree):
                return
        if is_finished:
            self._intake.finished(tree)
        elif is_root:
            self._intake.waiting()

    def sweep(self) -> None:
        """Pass on the trees whose root ended at least ``grace`` seconds ago."""
        if self._trees:
            self._finish_ended(self._clock() - self._grace)

    def flush(self) -> None:
        """Pass on the trees whose root has ended, without waiting for the runs below it."""
        self._finish_ended(self._clock())

    def _finish_ended(self, until: float) -> None:
        with self._lock:
            ended = [t for t in self._trees.values() if t.ended_at is not None]
            ready = [t for t in ended if (t.ended_at or 0.0) <= until and self._forget(t)]
        for tree in ready:
            self._intake.finished(tree)

    def _forget(self, tree: RunTree) -> bool:
        """Remove ``tree``, and return False if another thread has already removed this tree."""
        if self._trees.pop(tree.root.id, None) is None:
            return False
        tree.is_kept = False
        for run in tree.runs:
            self.runs.pop(run.id, None)
        self._size -= tree.size
        return True
