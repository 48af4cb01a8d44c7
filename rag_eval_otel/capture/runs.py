"""Record LangChain runs, and convert them into steps once the root run has ended."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as otel_context

from rag_eval_otel import semconv
from rag_eval_otel.capture import step as build
from rag_eval_otel.capture.documents import distinct
from rag_eval_otel.capture.span import Copier, Span
from rag_eval_otel.capture.step import Kind, Part, Step, has_longer_text
from rag_eval_otel.capture.values import plain
from rag_eval_otel.config import MAX_TEXT_CHARS
from rag_eval_otel.runtime.fork import call_in_child

if TYPE_CHECKING:
    from opentelemetry.context import Context

PARAMETERS: Mapping[str, tuple[str, type]] = {  # LangChain's names of those of a request, GenAI's
    "temperature": ("temperature", float),
    "top_p": ("top_p", float),
    "frequency_penalty": ("frequency_penalty", float),
    "presence_penalty": ("presence_penalty", float),
    "max_tokens": ("max_tokens", int),
    "max_completion_tokens": ("max_tokens", int),
    "max_output_tokens": ("max_tokens", int),
    "top_k": ("top_k", int),
    "seed": ("seed", int),
    "n": ("choice.count", int),
    "stop": ("stop_sequences", list),
    "stop_sequences": ("stop_sequences", list),
    "model": ("model", str),
    "model_name": ("model", str),
}
MAX_RUNS = 10_000  # of a tree; a larger tree is not scored, and the reason is ``evicted``
_NEVER = float("inf")
_THREADS = 64  # whose root runs after a retrieval on its own are kept
_BESIDE, _BESIDE_SIZE = 16, 1024 * 1024  # the most of them in a thread, and their characters


class Run:
    """A LangChain run with its input ``asked``, output ``told`` and recorded texts ``said``."""

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
    call_id: str | None = None  # of a tool
    request: Mapping[str, Any] = MappingProxyType({})  # parameters
    finish: str | None = None
    details: Mapping[str, int] = MappingProxyType({})  # of tokens
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


@dataclass(slots=True, eq=False, repr=False)
class RunTree:
    """A LangChain root run and all runs below, in the order of their starts."""

    context: Context
    started_at: float
    runs: list[Run] = field(default_factory=list)
    open: int = 0
    ended_at: float = _NEVER
    is_lost: bool = False  # whether runs are missing, to limit memory
    size: int = 0
    searched: int | None = None  # start of the first retrieval or tool, ns since the epoch
    called: int | None = None  # start of the last model call
    is_joined: bool = False  # whether turns are found in the trace around it
    thread: int = field(default_factory=threading.get_ident)
    beside: deque[RunTree] = field(default_factory=lambda: deque(maxlen=_BESIDE))  # in its thread
    is_used: bool = False  # whether its documents belong to the turn of a later root run

    @property
    def has_only_searched(self) -> bool:
        """Whether the runs retrieved, called no model, did not fail, and are in no other trace."""
        is_other = self.is_joined or self.called is not None
        return not is_other and self.searched is not None and self.root.error is None

    @property
    def may_follow_search(self) -> bool:
        if self.called is None or self.searched is not None:
            return False
        beside = tuple(self.beside)  # another thread may add to it
        return any(tree.has_only_searched and not tree.is_used for tree in beside)

    @property
    def root(self) -> Run:
        return self.runs[0]

    def steps(self, *, parent: int | None = None, most: int = MAX_TEXT_CHARS) -> list[Step]:
        """Convert all runs into steps (texts: ``most`` characters), the root below ``parent``."""
        has_model = any(run.kind == "llm" for run in self.runs)  # else LangChain's cache had it
        _nest_searches(self.runs)
        said = _said(self.runs)
        steps = []
        for run in self.runs:
            step = _step_of(run, most)
            if run.id in said:
                step = _with_said(step, run, said[run.id], most=most)
            if run.is_prompt and step.prompt and not has_model:
                step = replace(step, kind="llm")
            steps.append(replace(step, parent=parent) if run.parent is None else step)
        return steps


def _nest_searches(runs: Sequence[Run]) -> None:
    """Set the parent of each vector store search to the retriever that made the search."""
    # A retriever does not become LangChain's active run: both have the same parent.
    retrievers = [run for run in runs if run.kind == "retriever" and not run.is_search]
    for search in (run for run in runs if run.is_search):
        end, parent = search.end or search.start, search.parent
        for run in retrievers:  # the last counts
            is_around = run.start <= search.start and (run.end is None or run.end >= end)
            if is_around and run.parent == parent:
                search.parent = run.id


def _step_of(run: Run, most: int) -> Step:
    copier = Copier(most)
    view = Span(
        name=run.name,
        span_id=run.id,
        start=run.start,
        end=run.end,
        scope=semconv.SCOPE,
        parent_id=run.parent,
        error=run.error,
    )
    inputs, outputs = plain(copier.value(run.asked)), plain(copier.value(run.told))
    more: dict[str, Any] = {"metadata": run.metadata}
    if run.kind == "llm":
        step = build.llm(view, messages=inputs, reply=outputs, response_id=run.response_id, **more)
    elif run.kind == "retriever":
        step = build.retrieval(view, inputs=inputs, documents=outputs, **more)
    elif run.kind == "tool":
        more["description"] = (run.description or "")[:most]
        step = build.tool(view, inputs=inputs, outputs=outputs, **more)
    else:
        step = build.chain(view, run.kind, inputs=inputs, outputs=outputs, **more)
        if run.is_prompt:
            shown = build.llm(view, messages=outputs, reply=None)
            step = replace(step, input=shown.input, prompt=shown.prompt, output=None)
    # A reader may have stripped white space from a text that was cut, or taken a part of it.
    is_cut = copier.is_cut and has_longer_text(step, most // 2)
    return replace(step, is_cut=True) if is_cut else step


def _said(runs: Sequence[Run]) -> dict[int, dict[Part, Any]]:
    """Return by run id what ``record_...()`` set; all but documents also for runs above without."""
    by_id: dict[int | None, Run] = {run.id: run for run in runs}
    said: dict[int, dict[Part, Any]] = {}
    for run in runs:
        if run.said is None:
            continue
        said.setdefault(run.id, {}).update(run.said)
        of_turn: dict[Part, Any] = {p: value for p, value in run.said.items() if p != "documents"}
        above = by_id.get(run.parent)
        while of_turn and above is not None:
            said[above.id] = {**said.get(above.id, {}), **of_turn, **(above.said or {})}
            above = by_id.get(above.parent)
    return said


def _with_said(step: Step, run: Run, said: Mapping[Part, Any], *, most: int) -> Step:
    """Return ``step`` with the recorded texts ``said``; those longer than ``most`` count as cut."""
    parts: dict[Any, Any] = dict(said)
    cut: set[Part] = set()
    for part, value in said.items():
        texts = [value] if isinstance(value, str) else [passage.text for passage in value]
        if max(map(len, texts), default=0) > most:
            cut.add(part)
            parts[part] = None
    if parts.get("documents") is not None:
        parts["documents"] = distinct(parts["documents"])
    recorded, query = frozenset(said), (run.query or "")[:most] or None
    all_cut = (step.cut - recorded) | cut
    return replace(step, **parts, query=query, recorded=recorded, cut=all_cut, flat=False)


def size_of(*values: Any) -> int:
    """Return the characters of all texts in plain data; keys and numbers count 0."""
    size, level, seen = 0, list(values), set[int]()
    while level:
        parts: list[Any] = []
        for value in level:
            kind = type(value)  # `isinstance` of an abstract class takes time
            if kind is str:
                size += len(value)
            elif (kind is dict or kind is list) and id(value) not in seen:
                seen.add(id(value))  # an application's own metadata may be circular
                parts += value.values() if kind is dict else value
        level = parts
    return size


@dataclass(eq=False, repr=False)
class RunRecorder:
    """Stores the runs of every LangChain root run until its tree is complete, then passes it on."""

    finished: Callable[[RunTree], object]  # takes each complete tree
    waiting: Callable[[], object]  # called if runs outlast their root: `flush` must follow
    max_trees: int = 4096
    max_size: int = 256 * 1024 * 1024  # characters
    max_age: float = 3600.0  # seconds, as `grace`: a stream that is abandoned ends after its root
    grace: float = 0.5
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        # Reentrant, because garbage collection under the lock may close a stream and end its runs.
        self._lock = threading.RLock()
        self.runs: dict[int, Run] = {}
        self.trees: OrderedDict[int, RunTree] = OrderedDict()
        self._beside: OrderedDict[int, deque[RunTree]] = OrderedDict()  # by thread
        self._size = 0

    def start(
        self, kind: Kind, run_id: int, parent: int | None, name: str, metadata: Mapping[str, Any]
    ) -> Run | None:  # positional: see `Run`
        """Record the start of a run; return None if it is already known, or if its tree is full."""
        stale: list[RunTree] = []
        with self._lock:
            if run_id in self.runs:
                return None
            above = self.runs.get(parent) if parent is not None else None
            if above is None:
                stale = self._stale()
                tree = self.trees[run_id] = RunTree(otel_context.get_current(), self.clock())
                for search in self._take_searches(tree.thread):
                    self._keep_beside(search)
                if tree.thread in self._beside:
                    self._keep_beside(tree)
            else:
                tree = above.tree
                if len(tree.runs) >= MAX_RUNS:
                    tree.is_lost = True
                    return None
            run = Run(run_id, parent if above is not None else None, tree, kind, name, metadata)
            tree.runs.append(run)
            tree.open += 1
            self.runs[run_id] = run
            if kind == "llm":
                tree.called = run.start
            elif kind in {"retriever", "tool"} and tree.searched is None:
                tree.searched = run.start
        for old in stale:
            old.is_lost = True
            self.finished(old)
        return run

    def _keep_beside(self, tree: RunTree) -> None:
        """Keep ``tree`` for later root runs of its thread, from a tree on that only searched."""
        beside = self._beside.get(tree.thread, tree.beside)
        if tree not in beside:
            beside.append(tree)
        while sum(each.size for each in beside) > _BESIDE_SIZE:
            beside.popleft()
        tree.beside = beside
        if tree.has_only_searched and tree.thread not in self._beside:
            if len(self._beside) >= _THREADS:
                self._beside.clear()
            self._beside[tree.thread] = beside

    def _take_searches(self, thread: int) -> Sequence[RunTree]:
        """Remove and return the searches since the last root run of ``thread`` began or ended."""
        return () if self is SEARCHES else SEARCHES._beside.pop(thread, ())  # noqa: SLF001

    def _stale(self) -> list[RunTree]:
        stale: list[RunTree] = []
        while self.trees:
            oldest = next(iter(self.trees.values()))
            too_many = len(self.trees) >= self.max_trees or self._size > self.max_size
            if not too_many and self.clock() - oldest.started_at <= self.max_age:
                break
            self._forget(oldest)
            stale.append(oldest)
        return stale

    def end(self, run: Run) -> None:
        """Record the end of ``run`` once; pass its tree to ``finished`` if the tree is complete."""
        is_root = run.parent is None
        # Inner chains are not counted: they mostly pass on texts of other runs.
        size = size_of(run.told, run.asked) if is_root or run.kind != "chain" else 0
        with self._lock:
            if run.end is not None or run.id not in self.runs:
                return
            tree = run.tree
            run.end = max(time.time_ns(), run.start)
            tree.open -= 1
            tree.size += size
            self._size += size
            if is_root:
                tree.ended_at = self.clock()
                self._take_searches(tree.thread)  # they are a part of it
                if tree.has_only_searched or tree.beside:
                    self._keep_beside(tree)  # now its size is known
            elif tree.ended_at == _NEVER:
                return
            # After a retrieval, the next root run shows whether this one has only made a draft.
            is_waiting = tree.open or tree.may_follow_search
            is_finished = not is_waiting or tree.root.error is not None
            if is_finished:
                self._forget(tree)
        if is_finished:
            self.finished(tree)
        elif is_root:
            self.waiting()

    def flush(self, grace: float = 0.0) -> None:
        """Pass on trees whose root ended ``grace`` seconds ago or more, even if runs are open."""
        until = self.clock() - grace
        with self._lock:
            ready = [tree for tree in self.trees.values() if tree.ended_at <= until]
            for tree in ready:
                self._forget(tree)
        for tree in ready:
            self.finished(tree)

    def _forget(self, tree: RunTree) -> None:
        del self.trees[tree.root.id]
        for run in tree.runs:
            del self.runs[run.id]
            del run.tree  # without this cycle, no garbage collection is needed
        self._size -= tree.size


SEARCHES: Final = RunRecorder(finished=lambda _: None, waiting=lambda: None)  # outside any run
