"""`SpanWriter`: make OpenTelemetry spans of LangChain runs that have ended."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from rag_eval_otel import semconv
from rag_eval_otel.capture.conventions import openinference
from rag_eval_otel.capture.runs import Run, RunTree
from rag_eval_otel.capture.span import about
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.values import exportable, messages_in, plain
from rag_eval_otel.config import Config
from rag_eval_otel.errors import RedactionError
from rag_eval_otel.export.attributes import exportable_attributes
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.types import Passage
from rag_eval_otel.untrusted import Redactor

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

    Attributes = dict[str, AttributeValue | None]

_OPERATIONS = {"retriever": semconv.OPERATION_RETRIEVAL, "tool": semconv.OPERATION_EXECUTE_TOOL}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanWriter:
    """Makes spans of LangChain runs, by the GenAI semantic conventions and OpenInference."""

    tracer: Tracer
    config: Config
    redactor: Redactor

    def start(
        self, tree: RunTree, steps: Mapping[Hashable, Step], *, also: Iterable[Hashable], edge: Edge
    ) -> dict[int, Span]:
        """Start the spans of the runs in ``tree``, parents first; return the spans by run id.

        ``steps`` are the runs as they were read, by run id. Besides those of the option ``spans``,
        the root and the runs with the ids ``also`` get a span, unless it is ``none``.
        """
        if self.config.spans == "none":
            return {}
        by_id = {run.id: run for run in tree.runs}
        forced = {tree.root.id, *also}
        started: dict[int, Span] = {}
        for run in tree.runs:
            above: list[Run] = []
            while (parent_run := by_id.get((above[-1] if above else run).parent or 0)) is not None:
                above.append(parent_run)
            is_inner = run.kind == "retriever" and any(each.kind == "retriever" for each in above)
            if self.config.spans == "all":
                is_visible = not (is_inner and run.is_search)  # LangChain has no run for it
            else:
                is_visible = run.kind in {"llm", "retriever", "tool"} and not is_inner
            if is_visible or run.id in forced:
                with edge:
                    parent = next((started[each.id] for each in above if each.id in started), None)
                    started[run.id] = self._start(run, steps.get(run.id), parent)
        return started

    def _start(self, run: Run, step: Step | None, parent: Span | None) -> Span:
        context, operation = run.tree.context, operation_of(run)
        target = {"llm": run.model, "retriever": None}.get(run.kind, run.name)
        name = " ".join(str(part) for part in (operation, target) if part) or run.name
        attributes: Attributes = {}
        if self.config.export_content == "all" and step is not None:
            with suppress(RedactionError):  # then no text of the run is exported
                attributes |= _content(run, step, clean=self.redactor)
        # After the texts: at a limit of attributes, the SDK drops the first ones.
        attributes |= openinference.described(
            "agent" if operation == semconv.OPERATION_INVOKE_AGENT else run.kind,
            name=run.name,
            model=run.model or run.metadata.get("ls_model_name"),
            provider=run.metadata.get("ls_provider"),
            tokens=run.tokens,
        )
        attributes[semconv.GEN_AI_OPERATION_NAME] = operation
        attributes |= _described(run, operation)
        if run is run.tree.root:
            attributes |= about([run.metadata], self.config.metadata_keys)
        return self.tracer.start_span(
            exportable(name),
            context=context if parent is None else set_span_in_context(parent, context),
            kind=SpanKind.CLIENT if run.kind in {"llm", "retriever"} else SpanKind.INTERNAL,
            attributes=exportable_attributes(attributes),
            start_time=run.start,
        )


def end_span(span: Span, run: Run) -> None:
    """End ``span`` with the error and the end time of ``run``, or else that of the root run."""
    if run.error is not None:
        span.set_attribute(semconv.ERROR_TYPE, run.error)
        span.set_status(Status(StatusCode.ERROR))
    at = run.end or run.tree.root.end
    span.end(end_time=None if at is None else max(at, run.start))


def operation_of(run: Run) -> str | None:
    """Return the GenAI operation name of a LangChain run, or None for a chain within a run."""
    if run.kind == "llm":
        is_chat = isinstance(run.asked, list)
        return semconv.OPERATION_CHAT if is_chat else semconv.OPERATION_TEXT_COMPLETION
    if run.kind in _OPERATIONS or run is not run.tree.root:
        return _OPERATIONS.get(run.kind)
    runs = run.tree.runs
    # Without the run of a tool, its call is a structured output.
    replies = (each.told for each in runs if each.kind == "llm" and isinstance(each.told, dict))
    calls = any(reply.get("tool_calls") for reply in replies)
    is_agent = calls and any(each.kind == "tool" for each in runs)
    return semconv.OPERATION_INVOKE_AGENT if is_agent else semconv.OPERATION_INVOKE_WORKFLOW


def _described(run: Run, operation: str | None) -> Attributes:
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
        count = len(run.told) if isinstance(run.told, list) else None
        return {semconv.DOCUMENT_COUNT: count}
    if run.kind == "tool":
        return {semconv.GEN_AI_TOOL_NAME: run.name}
    if operation == semconv.OPERATION_INVOKE_AGENT:
        return {semconv.GEN_AI_AGENT_NAME: run.name}
    return {semconv.GEN_AI_WORKFLOW_NAME: run.name}


def _content(run: Run, step: Step, *, clean: Redactor) -> Attributes:
    asked = None if step.input is None else clean.text(step.input)
    told = None if step.output is None else clean.text(step.output)
    documents: list[Passage] = []
    messages: list[tuple[str, str]] = []
    attributes: Attributes
    if run.kind == "retriever":
        documents = [replace(p, text=clean.text(p.text)) for p in step.documents or ()]
        attributes = {
            semconv.GEN_AI_RETRIEVAL_QUERY_TEXT: asked,
            semconv.GEN_AI_RETRIEVAL_DOCUMENTS: _json(
                [{"id": p.id, "score": p.score, "content": p.text} for p in documents]
            ),
        }
    elif run.kind == "tool":
        asked = clean.text(run.asked if isinstance(run.asked, str) else _json(run.asked))
        attributes = {
            semconv.GEN_AI_TOOL_CALL_ARGUMENTS: asked,
            semconv.GEN_AI_TOOL_CALL_RESULT: told,
        }
    else:
        if run.kind == "llm" and isinstance(run.asked, str):
            messages = [("user", clean.text(run.asked))]
        elif run.kind == "llm":
            parts = messages_in(plain(run.asked))
            messages = [(str(m["role"]), clean.text(str(m.get("content") or ""))) for m in parts]
        shown = messages or ([("user", asked)] if asked else [])
        attributes = {
            semconv.GEN_AI_INPUT_MESSAGES: messages_json(shown),
            semconv.GEN_AI_OUTPUT_MESSAGES: messages_json([("assistant", told)] if told else []),
        }
    same = openinference.texts(asked=asked, told=told, documents=documents, messages=messages)
    return {**same, **attributes}


def messages_json(messages: Iterable[tuple[str, str]]) -> str | None:
    parts = [
        {"role": role, "parts": [{"type": "text", "content": text}]} for role, text in messages
    ]
    return _json(parts) if parts else None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
