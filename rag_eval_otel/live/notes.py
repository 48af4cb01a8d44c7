"""What a pipeline notes of itself for the doctor, where ``RAG_EVAL_DOCTOR`` asks for it.

``RAG_EVAL_DOCTOR=1`` prints one line to stderr when the program ends. With a folder each process
writes a file there, which ``rag-eval-otel doctor -- COMMAND`` reads. Notes hold counts, names and
versions, never texts, arguments or keys.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from rag_eval_otel.capture.dialects import dialect_of
from rag_eval_otel.capture.span import SdkSpan
from rag_eval_otel.config import KeySource, doctor_notes, key_source
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.installed import versions

if TYPE_CHECKING:
    from rag_eval_otel.live.instrument import Handle
    from rag_eval_otel.runtime.guard import Edge
    from rag_eval_otel.sinks.instruments import Counted

_SECONDS: Final = 0.5  # between two notes
_QUOTED: Final = 200  # characters of a log line that are noted
_LINES: Final = 5  # log lines of one cause that are noted
_COUNTED: Final[tuple[Counted, ...]] = ("turn", "source", "released", "failure")
_numbers = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One pipeline of one process, as of its last note.

    ``ended`` tells whether that was written when Python ended. ``spans`` counts the spans of the
    provider by the scope that made them, ``dialects`` by how they are read. ``processors`` are the
    types of the provider's own, None where they cannot be told. ``counts`` are those of the tally,
    by kind and name. ``judge_key`` says where the judge's key is from, never what it is.
    ``logged`` are log lines that have a cause, by that.
    """

    pid: int
    parent: int
    program: str
    executable: str
    ended: bool
    versions: Mapping[str, str] = field(default_factory=dict)
    provider: str
    sees_spans: bool
    sampler: str = ""
    processors: Sequence[str] | None = None
    spans: Mapping[str, int] = field(default_factory=dict)
    dialects: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    held: int = 0
    judge: str
    embedder: str
    judge_base_url: str | None = None
    judge_key: KeySource = "none"
    has_langchain: bool = False
    logged: Mapping[str, Sequence[str]] = field(default_factory=dict)


def take_notes(handle: Handle, provider: object) -> None:
    """Let ``handle`` report on itself at the end of the program, if that is asked for."""
    place = doctor_notes()
    if place:
        NoteTaker(handle, provider, folder=Path(place) if Path(place).is_absolute() else None)


class NoteTaker:
    """Notes what becomes of one handle: now and then in a file of ``folder``, or once on stderr."""

    def __init__(self, handle: Handle, provider: object, *, folder: Path | None) -> None:
        """Begin; ended by the end of the program alone."""
        self._handle = handle
        self._provider = getattr(provider, "provider", provider)
        self._folder = folder
        self._number = next(_numbers)
        self._versions = dict(versions())
        self._lock = threading.RLock()
        self._ended = False
        self._edge = handle.pipeline.edge("notes")
        self._spans = SpanCounter(self._edge, on_flush=self.write)
        self._log = _listener()
        self._log.told.append(self._logged)
        if handle.seat is not None and handle.seat.sees_spans:
            self._provider.add_span_processor(self._spans)  # type: ignore[attr-defined]
        atexit.register(self.end)
        call_in_child(self._begin)
        self._begin()

    def _begin(self) -> None:
        """Write from time to time; a forked child has a file and a thread of its own."""
        self._lock = threading.RLock()
        self.write()
        if self._folder is not None:
            threading.Thread(target=self._tick, name="rag-eval-otel-notes", daemon=True).start()

    def _tick(self) -> None:
        pause = threading.Event()
        while not self._ended:
            pause.wait(_SECONDS)
            self.write()

    def _logged(self) -> None:
        """Write again where the providers fail to export at their own end, which is after ours."""
        if self._ended:
            self.write()

    def end(self) -> None:
        """Write the last note."""
        self._ended = True
        self.write()
        if self._folder is None:
            sys.stderr.write(as_line(self.note()))

    def write(self) -> None:
        """Write the note whole, or leave the last one; a folder that is gone is no harm."""
        if self._folder is None:
            return
        with self._edge, self._lock:
            path = self._folder / f"{os.getpid()}-{self._number}.json"
            draft = path.with_suffix(".part")
            try:
                draft.write_text(json.dumps(asdict(self.note())), encoding="utf-8")
                draft.replace(path)
            except OSError:
                return

    def note(self) -> Note:
        """Return what there is to tell."""
        handle = self._handle
        config, seat = handle.config, handle.seat
        tally = handle.pipeline.instruments.tally
        others = None if seat is None else seat.processors
        sampler = getattr(self._provider, "sampler", None)
        return Note(
            pid=os.getpid(),
            parent=os.getppid(),
            program=_program(),
            executable=sys.executable,
            ended=self._ended,
            versions=self._versions,
            provider=f"{type(self._provider).__module__}.{type(self._provider).__qualname__}",
            sees_spans=handle.processor is not None,
            sampler="" if sampler is None else sampler.get_description(),
            processors=others and [one for one in others if one != SpanCounter.__name__],
            spans=dict(self._spans.scopes),
            dialects=dict(self._spans.dialects),
            counts={kind: tally.of(kind) for kind in _COUNTED},
            held=handle.pipeline.count_held(),
            judge=_named(config.judge),
            embedder=_named(config.embedder),
            judge_base_url=config.judge_base_url,
            judge_key=key_source(config.judge_api_key, config.judge),
            has_langchain="langchain_core.runnables" in sys.modules,
            logged=dict(self._log.seen),
        )


def _program() -> str:
    """Return what runs here, without its arguments, which may be secret."""
    arguments = getattr(sys, "argv", None) or [""]
    return Path(arguments[0]).name or Path(sys.executable).name


def _named(model: object) -> str:
    return model if isinstance(model, str) else f"an object, {type(model).__name__}"


class SpanCounter(SpanProcessor):
    """Stands beside the exporters and counts spans by who wrote them. A forked child counts anew.

    ``on_flush`` is called where the provider is flushed: the process may end right after it.
    """

    def __init__(self, edge: Edge, *, on_flush: Callable[[], None]) -> None:
        """Count from zero."""
        self._edge = edge
        self._on_flush = on_flush
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        self.scopes: Counter[str] = Counter()
        self.dialects: Counter[str] = Counter()

    def on_end(self, span: ReadableSpan) -> None:
        """Count."""
        with self._edge:
            view = SdkSpan(span)
            self.scopes[view.scope] += 1
            self.dialects[dialect_of(view) or "none"] += 1

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002
        """Tell of it; nothing is kept here."""
        self._on_flush()
        return True


class LogListener(logging.Handler):
    """Keeps the first log lines of each cause; each of ``told`` is called for them."""

    def __init__(self) -> None:
        """Listen to OpenTelemetry's log lines and to ours."""
        super().__init__(logging.WARNING)
        self.told: list[Callable[[], None]] = []
        self.seen: dict[str, list[str]] = {}
        for name in ("opentelemetry", "rag_eval_otel"):
            logging.getLogger(name).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep ``record``, and show it as Python would if nobody listened."""
        cause = _cause_of(record)
        if cause is not None:
            self._keep(cause, _said(record))
        if logging.lastResort is not None and self._is_alone(record.name):
            logging.lastResort.handle(record)

    def _keep(self, cause: str, line: str) -> None:
        lines = self.seen.setdefault(cause, [])
        if line not in lines and len(lines) < _LINES:
            lines.append(line)
            for told in self.told:
                told()

    def _is_alone(self, name: str) -> bool:
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            if any(one is not self for one in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return True


@cache
def _listener() -> LogListener:
    """Return the one of this process."""
    return LogListener()


_EXPORTING: Final = (
    "opentelemetry.exporter.",
    "opentelemetry.sdk._shared_internal",
    "opentelemetry.sdk.trace.export",
    "opentelemetry.sdk.metrics",
)
_OF_LINES: Final[Mapping[str, str]] = {
    "Overriding of current TracerProvider": "provider-late",
    "already instrumented: the options": "options-ignored",
    "() has no effect: no span is current": "record-lost",
}


def _cause_of(record: logging.LogRecord) -> str | None:
    """Return what a log line is a sign of. What is exported again later is none yet."""
    if record.name.startswith(_EXPORTING):
        is_lost = record.levelno >= logging.ERROR or "abort" in str(record.msg)
        return "export-failing" if is_lost else None
    return next((cause for text, cause in _OF_LINES.items() if text in str(record.msg)), None)


def _said(record: logging.LogRecord) -> str:
    """Return a log line without what a server has answered."""
    text = record.getMessage()
    for mark in (", reason:", ", error details:"):
        text = text.partition(mark)[0]
    return text[:_QUOTED]


def as_line(note: Note) -> str:
    """Return ``note`` as a line for people."""
    turns, read = note.counts.get("turn", {}), note.counts.get("source", {})
    told = (
        f"judge {note.judge}",
        f"{sum(note.spans.values())} spans ended, read: {listed(read) or 'none'}",
        f"turns: {listed(turns) or 'none'}",
    )
    return (
        f"rag-eval-otel, {note.program}, process {note.pid}: {'; '.join(told)}."
        " What to do for each reason: docs/doctor.md\n"
    )


def listed(counts: Mapping[str, int]) -> str:
    """Return ``counts`` as words, the largest first."""
    most = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name or 'no name'} {number}" for name, number in most)
