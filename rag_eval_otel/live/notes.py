"""Write reports on this process for ``rag-eval-otel doctor``, if ``RAG_EVAL_DOCTOR`` is set.

A report is called a *note*. With ``RAG_EVAL_DOCTOR=1``, the process prints its note as one line to
stderr when the process ends. If the variable names a folder, each pipeline writes its note to a
file there, and ``rag-eval-otel doctor -- COMMAND`` reads the file. A note has counts, names,
versions and log lines of failures. It never has texts of the application, arguments or keys.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from rag_eval_otel.environment import KeySource, doctor_notes, key_source
from rag_eval_otel.runtime.endings import call_at_end
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.installed import versions

if TYPE_CHECKING:
    from rag_eval_otel.live.pipeline import Pipeline
    from rag_eval_otel.runtime.providers import Attachment
    from rag_eval_otel.sinks.instruments import Counted

_MAX_LINE: Final = 200  # characters of a log line in a note
_MAX_LINES: Final = 5  # log lines of one cause in a note
_COUNTED: Final[tuple[Counted, ...]] = ("source", "released", "failure")
_numbers = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The report of one pipeline in one process, for ``rag-eval-otel doctor``.

    - ``ended``: True if the note was written when Python ended, False if at a flush.
    - ``spans``: number of ended spans of the provider, by instrumentation scope.
    - ``processors``: class names of the provider's other span processors; None if they are unknown.
    - ``counts``: what the pipeline has counted, by kind and name.
    - ``captured``: number of turns that were found.
    - ``held``: number of spans and run trees that wait for scores.
    - ``judge_key``: where the API key of the judge comes from.
    - ``logged``: log lines of failures, by the name that the doctor gives to their cause.
    """

    pid: int
    program: str
    ended: bool
    versions: Mapping[str, str] = field(default_factory=dict)
    provider: str
    sees_spans: bool
    sampler: str = ""
    processors: Sequence[str] | None = None
    spans: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    captured: int = 0
    held: int = 0
    judge: str
    embedder: str
    judge_base_url: str | None = None
    judge_key: KeySource = "none"
    has_langchain: bool = False
    logged: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def pending(self) -> int:
        """The number of turns that were found and have no outcome yet."""
        return max(0, self.captured - sum(self.counts.get("turn", {}).values()))


def take_notes(pipeline: Pipeline, provider: object, attachment: Attachment | None = None) -> None:
    """If ``RAG_EVAL_DOCTOR`` is set, report on ``pipeline`` for ``rag-eval-otel doctor``.

    ``provider`` is the tracer provider of the pipeline. `NoteTaker` writes the report.
    """
    place = doctor_notes()
    if place:
        folder = Path(place) if Path(place).is_absolute() else None
        NoteTaker(pipeline, provider, attachment=attachment, folder=folder)


class NoteTaker(SpanProcessor):
    """Count the spans of ``provider``, and write a report for ``rag-eval-otel doctor``.

    The report is about ``pipeline`` and ``provider``, its tracer provider. If there is a
    ``folder``, the report is written to a file when the pipeline is attached, at each flush, and
    when Python ends. Without a folder, the report is printed as one line when Python ends.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        provider: object,
        *,
        attachment: Attachment | None,
        folder: Path | None,
    ) -> None:
        self._pipeline = pipeline
        self._attachment = attachment
        self._provider = getattr(provider, "provider", provider)  # the SDK's, behind its proxy
        self._folder = folder
        self._number = next(_numbers)
        self._versions = versions()
        self._edge = pipeline.edge("notes")
        self._reset()
        call_in_child(self._reset)
        if attachment is not None and attachment.receives_spans:
            self._provider.add_span_processor(self)  # type: ignore[attr-defined]
        _log_listener().on_line.append(self._add_line)
        config = pipeline.config
        call_at_end(self, seconds=config.shutdown_seconds, on_sigterm=config.on_sigterm)
        self.write()

    def _reset(self) -> None:
        self._ended = False
        self._spans: Counter[str] = Counter()

    def _add_line(self) -> None:
        if self._ended:  # the provider exports the last spans after the last report was written
            self.write()

    def on_end(self, span: ReadableSpan) -> None:
        scope = span.instrumentation_scope
        self._spans[scope.name if scope is not None else ""] += 1

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002
        """Write the report to its file, because the process may end right after a flush."""
        self.write()
        return True

    def drain(self) -> None:
        """Write the last report to its file; without a folder, print it as one line to stderr."""
        is_first, self._ended = not self._ended, True
        self.write()
        if self._folder is None and is_first:
            sys.stderr.write(as_line(self.note()))

    def drain_and_flush(self, timeout: float) -> None:  # noqa: ARG002  # called at each ending
        self.drain()

    def flush(self, timeout: float) -> None:  # noqa: ARG002
        self.write()

    def write(self) -> None:
        """Write the report on the pipeline to a file in the folder, over the previous report.

        If there is no folder, or if the file cannot be written, do nothing.
        """
        if self._folder is None:
            return
        with self._edge:
            path = self._folder / f"{os.getpid()}-{self._number}.json"
            draft = path.with_suffix(f".{get_ident()}")
            try:
                draft.write_text(json.dumps(asdict(self.note())), encoding="utf-8")
                draft.replace(path)
            except OSError:
                return

    def note(self) -> Note:
        """Return a report on the current state of the pipeline."""
        pipeline, config = self._pipeline, self._pipeline.config
        tally = pipeline.instruments.tally
        captured, turns = tally.turns()
        others = None if self._attachment is None else self._attachment.others
        sampler = getattr(self._provider, "sampler", None)
        return Note(
            pid=os.getpid(),
            program=Path(sys.argv[0]).name or Path(sys.executable).name,
            ended=self._ended,
            versions=self._versions,
            provider=f"{type(self._provider).__module__}.{type(self._provider).__qualname__}",
            sees_spans=pipeline.has_spans,
            sampler="" if sampler is None else sampler.get_description(),
            processors=others
            and [type(one).__name__ for one in others if not isinstance(one, NoteTaker)],
            spans=dict(self._spans),
            counts={"turn": turns, **{kind: tally.of(kind) for kind in _COUNTED}},
            captured=captured,
            held=pipeline.count_held(),
            judge=_name_of(config.judge),
            embedder=_name_of(config.embedder),
            judge_base_url=config.judge_base_url,
            judge_key=key_source(config.judge_api_key, config.judge),
            has_langchain="langchain_core.runnables" in sys.modules,
            logged=dict(_log_listener().lines),
        )


def _name_of(model: object) -> str:
    return model if isinstance(model, str) else f"an object, {type(model).__name__}"


def as_line(note: Note) -> str:
    """Return the report ``note`` as one line of text for people."""
    turns, read = note.counts.get("turn", {}), note.counts.get("source", {})
    parts = (
        f"judge {note.judge}",
        f"{sum(note.spans.values())} spans ended, read: {listed(read) or 'none'}",
        f"turns: {listed(turns) or 'none'}" + (f", pending {note.pending}" if note.pending else ""),
    )
    return (
        f"rag-eval-otel, {note.program}, process {note.pid}: {'; '.join(parts)}."
        " What to do for each reason: docs/doctor.md\n"
    )


def listed(counts: Mapping[str, int]) -> str:
    """Return the names and numbers in ``counts`` as text, the largest number first."""
    most = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name or 'no name'} {number}" for name, number in most)


# --- log lines of failures ------------------------------------------------------------------------

_EXPORTING: Final = (
    "opentelemetry.exporter.",
    "opentelemetry.sdk._shared_internal",
    "opentelemetry.sdk.trace.export",
    "opentelemetry.sdk.metrics",
)
_CAUSES: Final[Mapping[str, str]] = {
    "Overriding of current TracerProvider": "provider-late",
    "already instrumented: the options": "options-ignored",
    "() has no effect: no span is current": "record-lost",
}


class LogListener(logging.Handler):
    """Keep log lines of failures for the report that ``rag-eval-otel doctor`` reads.

    ``lines`` maps the cause of a failure to its first five log lines. After a line was added, each
    function in ``on_line`` is called.
    """

    _LOGGERS: Final = ("opentelemetry", "rag_eval_otel")

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.on_line: list[Callable[[], None]] = []
        self.lines: dict[str, list[str]] = {}
        for name in self._LOGGERS:
            logging.getLogger(name).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the log line of ``record`` if it shows a failure with a known cause.

        If the program has no log handler of its own, print the line to stderr, as Python would do.
        """
        cause = _cause_of(record)
        if cause is not None:
            self._keep(cause, _without_reply(record))
        if logging.lastResort is not None and self._is_alone():
            logging.lastResort.handle(record)

    def _keep(self, cause: str, line: str) -> None:
        lines = self.lines.setdefault(cause, [])
        if line not in lines and len(lines) < _MAX_LINES:
            lines.append(line)
            for call in self.on_line:
                call()

    def _is_alone(self) -> bool:
        loggers = [logging.getLogger(), *map(logging.getLogger, self._LOGGERS)]
        return all(handler is self for logger in loggers for handler in logger.handlers)


@cache
def _log_listener() -> LogListener:
    """Return the `LogListener` that all pipelines of the process share."""
    return LogListener()


def _cause_of(record: logging.LogRecord) -> str | None:
    if record.name.startswith(_EXPORTING):
        is_lost = record.levelno >= logging.ERROR or "abort" in str(record.msg)  # else: it retries
        return "export-failing" if is_lost else None
    return next((cause for text, cause in _CAUSES.items() if text in str(record.msg)), None)


def _without_reply(record: logging.LogRecord) -> str:
    """Return the first 200 characters of the log line, without the reply of a server in it."""
    text = record.getMessage()
    for mark in (", reason:", ", error details:"):
        text = text.partition(mark)[0]
    return text[:_MAX_LINE]
