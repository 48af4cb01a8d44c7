"""From a finished run tree to spans that follow the GenAI conventions.

Spans are made when the root run has ended, with the times of their runs: only then is it known
which runs stand for a turn, and nothing has to be attached to a context while the application
runs. Content goes on them only where the user asks for it.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import UUID

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from rag_eval_otel import semconv
from rag_eval_otel.capture.identities import about
from rag_eval_otel.capture.runs import Run, RunTree
from rag_eval_otel.capture.text import exportable
from rag_eval_otel.config import ContentCapture, Spans
from rag_eval_otel.redaction import Redactor
from rag_eval_otel.runtime.guard import Edge

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue


_ESSENTIAL = frozenset({"llm", "retriever", "tool"})
_CLIENT = frozenset({"llm", "retriever"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanWriter:
    """Writes the spans of run trees with ``tracer``."""

    tracer: Tracer
    spans: Spans = "essential"
    content: ContentCapture = "off"
    redactor: Redactor = Redactor()  # noqa: RUF009  # frozen
    metadata_keys: Sequence[str] = ()

    def start(self, tree: RunTree, *, also: Iterable[Hashable], edge: Edge) -> dict[UUID, Span]:
        """Start a span for every visible run of ``tree`` and those in ``also``, parents first.

        One that cannot be started, behind ``edge``, is left out.
        """
        if self.spans == "none":
            return {}
        by_id = {run.id: run for run in tree.runs}
        forced = {tree.root.id, *also}
        started: dict[UUID, Span] = {}
        for run in tree.runs:
            if run.id in forced or self._is_visible(run, by_id):
                with edge:
                    started[run.id] = self._start(run, by_id=by_id, started=started)
        return started

    def _is_visible(self, run: Run, by_id: Mapping[UUID, Run]) -> bool:
        if self.spans == "all":
            return True
        if run.kind not in _ESSENTIAL:
            return False
        return not (run.kind == "retriever" and _is_inside_retriever(run, by_id))

    def _start(self, run: Run, *, by_id: Mapping[UUID, Run], started: Mapping[UUID, Span]) -> Span:
        parent = by_id.get(run.parent) if run.parent else None
        while parent is not None and parent.id not in started:
            parent = by_id.get(parent.parent) if parent.parent else None
        context = run.tree.context
        if parent is not None:
            context = set_span_in_context(started[parent.id], context)
        operation = operation_of(run)
        return self.tracer.start_span(
            exportable(span_name(run, operation)),
            context=context,
            kind=SpanKind.CLIENT if run.kind in _CLIENT else SpanKind.INTERNAL,
            attributes=self._attributes(run, operation),
            start_time=run.start,
        )

    def _attributes(self, run: Run, operation: str | None) -> dict[str, AttributeValue]:
        found: dict[str, AttributeValue | None] = {semconv.GEN_AI_OPERATION_NAME: operation}
        found.update(_described(run))
        if run is run.tree.root:
            found.update(about([run.metadata], self.metadata_keys))
        if self.content == "span":
            found.update(_content(self._redacted(run)))
        return {
            key: exportable(value) if isinstance(value, str) else value
            for key, value in found.items()
            if value is not None
        }

    def _redacted(self, run: Run) -> Run:
        """Return ``run`` with its texts as they may be exported."""
        clean = self.redactor
        if not clean:
            return run
        return replace(
            run,
            input=None if run.input is None else clean.text(run.input),
            output=None if run.output is None else clean.text(run.output),
            messages=tuple((role, clean.text(text)) for role, text in run.messages),
            documents=tuple(replace(p, text=clean.text(p.text)) for p in run.documents or ()),
        )


def end(span: Span, run: Run) -> None:
    """End ``span`` when its run did, with its error; a run that never ended ends with its root."""
    if run.error is not None:
        span.set_attribute(semconv.ERROR_TYPE, run.error)
        span.set_status(Status(StatusCode.ERROR))
    at = run.end or run.tree.root.end
    span.end(end_time=None if at is None else max(at, run.start))


def _is_inside_retriever(run: Run, by_id: Mapping[UUID, Run]) -> bool:
    parent = by_id.get(run.parent) if run.parent else None
    while parent is not None:
        if parent.kind == "retriever":
            return True
        parent = by_id.get(parent.parent) if parent.parent else None
    return False


def operation_of(run: Run) -> str | None:
    """Return the GenAI operation of ``run``; inner chains have none."""
    if run.kind == "llm":
        chat = run.messages and run.messages[0][0] != "prompt"
        return semconv.OPERATION_CHAT if chat else semconv.OPERATION_TEXT_COMPLETION
    if run.kind == "retriever":
        return semconv.OPERATION_RETRIEVAL
    if run.kind == "tool":
        return semconv.OPERATION_EXECUTE_TOOL
    if run is not run.tree.root:
        return None
    called = any(other.calls_tools for other in run.tree.runs)
    ran = any(other.kind == "tool" for other in run.tree.runs)  # else it is a structured output
    return semconv.OPERATION_INVOKE_AGENT if called and ran else semconv.OPERATION_INVOKE_WORKFLOW


def span_name(run: Run, operation: str | None) -> str:
    """Return the span's name: the operation and what it is applied to."""
    target = {"llm": run.model, "retriever": None}.get(run.kind, run.name)
    return " ".join(str(part) for part in (operation, target) if part) or run.name


def _described(run: Run) -> Mapping[str, AttributeValue | None]:
    if run.kind == "llm":
        read, written = run.tokens or (None, None)
        return {
            semconv.GEN_AI_PROVIDER_NAME: run.metadata.get("ls_provider"),
            semconv.GEN_AI_REQUEST_MODEL: run.metadata.get("ls_model_name"),
            semconv.GEN_AI_RESPONSE_MODEL: run.model,
            semconv.GEN_AI_RESPONSE_ID: run.response_id,
            semconv.GEN_AI_USAGE_INPUT_TOKENS: read,
            semconv.GEN_AI_USAGE_OUTPUT_TOKENS: written,
        }
    if run.kind == "retriever":
        count = None if run.documents is None else len(run.documents)
        return {semconv.DOCUMENT_COUNT: count}
    if run.kind == "tool":
        return {semconv.GEN_AI_TOOL_NAME: run.name}
    if operation_of(run) == semconv.OPERATION_INVOKE_AGENT:
        return {semconv.GEN_AI_AGENT_NAME: run.name}
    return {semconv.GEN_AI_WORKFLOW_NAME: run.name}


def _content(run: Run) -> Mapping[str, AttributeValue | None]:
    if run.kind == "retriever":
        documents = [{"id": p.id, "score": p.score, "content": p.text} for p in run.documents or ()]
        return {
            semconv.GEN_AI_RETRIEVAL_QUERY_TEXT: run.input,
            semconv.GEN_AI_RETRIEVAL_DOCUMENTS: _json(documents),
        }
    if run.kind == "tool":
        return {
            semconv.GEN_AI_TOOL_CALL_ARGUMENTS: run.input,
            semconv.GEN_AI_TOOL_CALL_RESULT: run.output,
        }
    shown = run.messages or ((("user", run.input),) if run.input else ())
    told = (("assistant", run.output),) if run.output else ()
    return {
        semconv.GEN_AI_INPUT_MESSAGES: _messages(shown),
        semconv.GEN_AI_OUTPUT_MESSAGES: _messages(told),
    }


_ROLES = {"human": "user", "ai": "assistant", "prompt": "user"}


def _messages(messages: Sequence[tuple[str, str]]) -> str | None:
    if not messages:
        return None
    return _json(
        [
            {"role": _ROLES.get(role, role), "parts": [{"type": "text", "content": text}]}
            for role, text in messages
        ]
    )


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
