"""Read the LangChain run trees that have ended, and write their spans.

A run tree is a root run of LangChain and all runs below it. A *turn* is one question of a user and
its answer. `read_tree` finds the turns of a tree. `SpanWriter` starts its spans with the recorded
times, because the id of a turn's span must be known before the judge is paid. The clock ends the
spans: those that are no turn at once, the others with their scores.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    set_span_in_context,
)

from rag_eval_otel import semconv
from rag_eval_otel.capture.conventions import openinference
from rag_eval_otel.capture.runs import Run, RunTree
from rag_eval_otel.capture.span import about
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.values import exportable, messages_in, plain
from rag_eval_otel.config import Spans
from rag_eval_otel.errors import RedactionError
from rag_eval_otel.redaction import Redactor
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.types import Passage

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

    Attributes = Mapping[str, AttributeValue | None]


_ESSENTIAL = frozenset({"llm", "retriever", "tool"})
_CLIENT = frozenset({"llm", "retriever"})


TreeUse: TypeAlias = Literal["read", "joined", "evicted"]
"""How a run tree is used. ``read``: turns are looked for in the tree alone. ``joined``: turns are
looked for in the trace around it. ``evicted``: its spans are written, no turn is looked for."""

_OVERHEAD = 4096  # bytes of a held tree without its texts


@dataclass(frozen=True, slots=True, eq=False)
class EndedTree:
    """A run tree whose root has ended, and how it is used."""

    tree: RunTree
    use: TreeUse

    @property
    def size(self) -> int:
        """About how many bytes this tree keeps in memory."""
        return _OVERHEAD + self.tree.size


@dataclass(frozen=True, slots=True, eq=False)
class RunSpans:
    """Started spans of a run tree, each with its run. The clock ends them, in this order."""

    spans: Sequence[tuple[Span, Run]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanWriter:
    """Write the spans of LangChain run trees by the GenAI semantic conventions, with ``tracer``.

    The spans have the attributes of OpenInference, too, and texts only if ``has_texts``.
    """

    tracer: Tracer
    spans: Spans = "essential"
    has_texts: bool = False
    redactor: Redactor = Redactor()  # noqa: RUF009  # frozen
    metadata_keys: Sequence[str] = ()

    def start(
        self,
        tree: RunTree,
        steps: Mapping[Hashable, Step],
        *,
        also: Iterable[Hashable],
        edge: Edge,
    ) -> dict[int, Span]:
        """Start the spans of the LangChain run tree ``tree``, and return the spans by run id.

        The root run, the runs with ids in ``also``, and the runs that the option ``spans`` selects
        get a span. Spans of parents are started first. ``steps`` maps a run id to the texts that
        were read from the run. If a span cannot be started, it is missing from the result, and
        ``edge`` handles the error.
        """
        if self.spans == "none":
            return {}
        by_id = {run.id: run for run in tree.runs}
        forced = {tree.root.id, *also}
        started: dict[int, Span] = {}
        for run in tree.runs:
            if run.id in forced or self._is_visible(run, by_id):
                with edge:
                    span = self._start(run, steps.get(run.id), by_id=by_id, started=started)
                    started[run.id] = span
        return started

    def _is_visible(self, run: Run, by_id: Mapping[int, Run]) -> bool:
        is_inner = run.kind == "retriever" and _is_inside_retriever(run, by_id)
        if self.spans == "all":
            return not (is_inner and run.is_search)  # LangChain has no run for it
        return run.kind in _ESSENTIAL and not is_inner

    def _start(
        self,
        run: Run,
        step: Step | None,
        *,
        by_id: Mapping[int, Run],
        started: Mapping[int, Span],
    ) -> Span:
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
            attributes=self._attributes(run, step, operation=operation),
            start_time=run.start,
        )

    def _attributes(
        self, run: Run, step: Step | None, *, operation: str | None
    ) -> dict[str, AttributeValue]:
        found: dict[str, AttributeValue | None] = {}
        if self.has_texts and step is not None:
            with suppress(RedactionError):  # then no text of the run is exported
                found.update(_content(run, step, clean=self.redactor))
        # After the texts: at a limit of attributes, the SDK drops the first ones.
        found.update(_by_openinference(run, operation))
        found[semconv.GEN_AI_OPERATION_NAME] = operation
        found.update(_described(run, operation))
        if run is run.tree.root:
            found.update(about([run.metadata], self.metadata_keys))
        return {
            key: exportable(value) if isinstance(value, str) else value
            for key, value in found.items()
            if value is not None
        }


def end_span(span: Span, run: Run) -> None:
    """End ``span`` at the time when ``run`` ended, with the run's error, if there is one.

    If the run has not ended, the span ends at the time when the root run ended.
    """
    if run.error is not None:
        span.set_attribute(semconv.ERROR_TYPE, run.error)
        span.set_status(Status(StatusCode.ERROR))
    at = run.end or run.tree.root.end
    span.end(end_time=None if at is None else max(at, run.start))


def _is_inside_retriever(run: Run, by_id: Mapping[int, Run]) -> bool:
    parent = by_id.get(run.parent) if run.parent else None
    while parent is not None:
        if parent.kind == "retriever":
            return True
        parent = by_id.get(parent.parent) if parent.parent else None
    return False


def operation_of(run: Run) -> str | None:
    """Return the GenAI operation name of a LangChain run, or None for a chain within a run."""
    if run.kind == "llm":
        is_chat = isinstance(run.asked, list)
        return semconv.OPERATION_CHAT if is_chat else semconv.OPERATION_TEXT_COMPLETION
    if run.kind == "retriever":
        return semconv.OPERATION_RETRIEVAL
    if run.kind == "tool":
        return semconv.OPERATION_EXECUTE_TOOL
    if run is not run.tree.root:
        return None
    called = any(_calls_tools(other) for other in run.tree.runs)
    ran = any(
        other.kind == "tool" for other in run.tree.runs
    )  # without one, the call of a tool is a structured output
    return semconv.OPERATION_INVOKE_AGENT if called and ran else semconv.OPERATION_INVOKE_WORKFLOW


def _calls_tools(run: Run) -> bool:
    return run.kind == "llm" and isinstance(run.told, dict) and bool(run.told.get("tool_calls"))


def span_name(run: Run, operation: str | None) -> str:
    """Return the span name of ``run``: the operation, then the model or the name of the run."""
    target = {"llm": run.model, "retriever": None}.get(run.kind, run.name)
    return " ".join(str(part) for part in (operation, target) if part) or run.name


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


def _by_openinference(run: Run, operation: str | None) -> Attributes:
    is_agent = operation == semconv.OPERATION_INVOKE_AGENT
    return openinference.described(
        "agent" if is_agent else run.kind,
        name=run.name,
        model=run.model or run.metadata.get("ls_model_name"),
        provider=run.metadata.get("ls_provider"),
        tokens=run.tokens,
    )


def _content(run: Run, step: Step, *, clean: Redactor) -> dict[str, AttributeValue | None]:
    """Return the attributes with the texts of ``run``."""
    asked = None if step.input is None else clean.text(step.input)
    told = None if step.output is None else clean.text(step.output)
    documents: list[Passage] = []
    messages: list[tuple[str, str]] = []
    if run.kind == "retriever":
        documents = [replace(p, text=clean.text(p.text)) for p in step.documents or ()]
        found: dict[str, AttributeValue | None] = {
            semconv.GEN_AI_RETRIEVAL_QUERY_TEXT: asked,
            semconv.GEN_AI_RETRIEVAL_DOCUMENTS: _json(
                [{"id": p.id, "score": p.score, "content": p.text} for p in documents]
            ),
        }
    elif run.kind == "tool":
        asked = clean.text(_arguments(run))
        found = {
            semconv.GEN_AI_TOOL_CALL_ARGUMENTS: asked,
            semconv.GEN_AI_TOOL_CALL_RESULT: told,
        }
    else:
        messages = [(role, clean.text(text)) for role, text in _messages_shown(run)]
        found = {
            semconv.GEN_AI_INPUT_MESSAGES: _messages(
                messages or ([("user", asked)] if asked else [])
            ),
            semconv.GEN_AI_OUTPUT_MESSAGES: _messages([("assistant", told)] if told else []),
        }
    same = openinference.texts(asked=asked, told=told, documents=documents, messages=messages)
    return {**same, **found}


def _arguments(run: Run) -> str:
    return run.asked if isinstance(run.asked, str) else _json(run.asked)


def _messages_shown(run: Run) -> list[tuple[str, str]]:
    if run.kind != "llm":
        return []
    if isinstance(run.asked, str):
        return [("user", run.asked)]
    return [(str(m["role"]), str(m.get("content") or "")) for m in messages_in(plain(run.asked))]


def _messages(messages: Iterable[tuple[str, str]]) -> str | None:
    found = [
        {"role": role, "parts": [{"type": "text", "content": text}]} for role, text in messages
    ]
    return _json(found) if found else None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
