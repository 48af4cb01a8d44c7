"""`SpanWriter`: make OpenTelemetry spans of LangChain runs that have ended."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from rag_eval_otel import semconv
from rag_eval_otel.capture.conventions import openinference
from rag_eval_otel.capture.runs import PARAMETERS, Run, RunTree
from rag_eval_otel.capture.span import about
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.values import exportable, messages_in, plain, provider_id
from rag_eval_otel.config import Config
from rag_eval_otel.errors import RedactionError
from rag_eval_otel.export.backends.annotation import exportable_attributes
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.types import Passage
from rag_eval_otel.untrusted import Redactor

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

    Attributes = dict[str, AttributeValue | None]

_TYPES: Final = frozenset({"LangGraph", "StateGraph", "CompiledStateGraph", "Pregel"})
# Other names of providers: GenAI's, OpenInference's, and its name of the models' maker.
PROVIDERS: Final[Mapping[str, tuple[str, str, str]]] = {
    "amazon_bedrock": ("aws.bedrock", "aws", "amazon"),
    "azure": ("azure.ai.openai", "azure", "openai"),
    "google": ("gcp.gemini", "google", "vertexai"),
    "google_genai": ("gcp.gemini", "google", "vertexai"),
    "google_vertexai": ("gcp.vertex_ai", "google", "vertexai"),
    "ibm": ("ibm.watsonx.ai", "ibm", "ibm"),
    "mistral": ("mistral_ai", "mistralai", "mistralai"),
    "mistralai": ("mistral_ai", "mistralai", "mistralai"),
    "xai": ("x_ai", "xai", "xai"),
}
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
        the root and the runs with the ids ``also`` get a span, unless the option is ``none``.
        """
        if self.config.spans == "none":
            return {}
        by_id: dict[int | None, Run] = {run.id: run for run in tree.runs}
        forced = {tree.root.id, *also}
        is_agent = operation_of(tree.root, tree) == semconv.OPERATION_INVOKE_AGENT
        agent = tree.root.name if is_agent else None
        started: dict[int, Span] = {}
        for run in tree.runs:
            line = [run]
            while (above := by_id.get(line[-1].parent)) is not None:
                line.append(above)
            is_inner = run.kind == "retriever" and any(r.kind == "retriever" for r in line[1:])
            if self.config.spans == "all":
                is_visible = not (is_inner and run.is_search)  # LangChain has no run for it
            else:
                is_visible = run.kind in {"llm", "retriever", "tool"} and not is_inner
            if is_visible or run.id in forced:
                with edge:
                    parent = next((started[each.id] for each in line if each.id in started), None)
                    step = steps.get(run.id)
                    started[run.id] = self._start(run, step, parent, tree=tree, agent=agent)
        return started

    def _start(
        self, run: Run, step: Step | None, parent: Span | None, *, tree: RunTree, agent: str | None
    ) -> Span:
        context, operation = tree.context, operation_of(run, tree)
        requested = _request(run) if run.kind == "llm" else {}
        model = _text(requested.get(semconv.GEN_AI_REQUEST_MODEL))
        is_workflow = operation == semconv.OPERATION_INVOKE_WORKFLOW
        named = {"llm": model, "retriever": None}
        target = named.get(run.kind, _own_name(run) if is_workflow else run.name)
        name = " ".join(str(part) for part in (operation, target) if part) or run.name
        attributes: Attributes = {}
        if self.config.export_content == "all" and step is not None:
            with suppress(RedactionError):  # then no text of the run is exported
                attributes |= _content(run, step, operation, clean=self.redactor)
        # After the texts: at a limit of attributes, the SDK drops the first ones.
        _, provider, system = _provider(run)
        attributes |= openinference.described(
            "agent" if operation == semconv.OPERATION_INVOKE_AGENT else run.kind,
            name=run.name,
            model=run.model or model,
            provider=provider,
            system=system,
            finish=run.finish,
            call_id=_call_id(run),
            tokens=run.tokens,
        )
        attributes |= {
            semconv.GEN_AI_OPERATION_NAME: operation,
            **requested,
            **_described(run, operation, agent=agent),
            **self._about(run, tree.root, operation),
            semconv.ERROR_TYPE: run.error,
        }
        return self.tracer.start_span(
            exportable(name),
            context=context if parent is None else set_span_in_context(parent, context),
            kind=SpanKind.CLIENT if run.kind in {"llm", "retriever"} else SpanKind.INTERNAL,
            attributes=exportable_attributes(attributes),
            start_time=run.start,
        )

    def _about(self, run: Run, root: Run, operation: str | None) -> Attributes:
        """Return session, user and, unless ``run`` is a retrieval or inner chain, conversation."""
        keys = self.config.metadata_keys if run is root else ()
        known: Attributes = dict(about([run.metadata, root.metadata], keys))
        if operation in {None, semconv.OPERATION_RETRIEVAL}:
            known.pop(semconv.GEN_AI_CONVERSATION_ID, None)
        return known


def end_span(span: Span, run: Run) -> None:
    """End ``span`` at the end of ``run``, with the status of the run."""
    if run.error is not None:
        span.set_status(Status(StatusCode.ERROR))
    span.end(end_time=None if run.end is None else max(run.end, run.start))


def operation_of(run: Run, tree: RunTree) -> str | None:
    """Return the GenAI operation name of a LangChain run, or None for a chain within a run."""
    if run.kind == "llm":
        return "chat" if isinstance(run.asked, list) else "text_completion"
    if run.kind in _OPERATIONS or run is not tree.root:
        return _OPERATIONS.get(run.kind)
    # Without the run of a tool, its call is a structured output.
    replies = (
        each.told for each in tree.runs if each.kind == "llm" and isinstance(each.told, dict)
    )
    calls = any(reply.get("tool_calls") for reply in replies)
    is_agent = calls and any(each.kind == "tool" for each in tree.runs)
    return semconv.OPERATION_INVOKE_AGENT if is_agent else semconv.OPERATION_INVOKE_WORKFLOW


def _own_name(run: Run) -> str | None:
    """Return the name of ``run``, or None if it is a general type such as ``RunnableSequence``."""
    return None if run.name.startswith("Runnable") or run.name in _TYPES else run.name


def _call_id(run: Run) -> str | None:
    told = run.told if isinstance(run.told, dict) else {}
    found = run.call_id or told.get("call_id")
    return None if found is None else str(found)


def _provider(run: Run) -> tuple[str, str | None, str]:
    """Return the provider's name in GenAI, and OpenInference's names of provider and maker."""
    raw = _text(run.metadata.get("ls_provider"))
    name = raw or "unknown"
    return PROVIDERS.get(name, (name, raw, name))


def _request(run: Run) -> Attributes:
    """Return the parameters of a model call that the GenAI convention has, as attributes."""
    about = {name.removeprefix("ls_"): value for name, value in run.metadata.items()}
    given = {"model": about.get("model_name"), **run.request}
    given |= {name: about[name] for name in ("temperature", "max_tokens", "stop") if name in about}
    found: Attributes = {}
    for name, raw in given.items():
        leaf, kind = PARAMETERS[name]
        value: Any = [raw] if kind is list and isinstance(raw, str) else raw
        value = float(value) if kind is float and type(value) is int else value
        is_known = type(value) is kind and value != [] and (name, value) != ("n", 1)
        if is_known:
            found.setdefault("gen_ai.request." + leaf, value)
    return found


def _described(run: Run, operation: str | None, *, agent: str | None) -> Attributes:
    if run.kind == "llm":
        read, written = run.tokens or (None, None)
        return {
            semconv.GEN_AI_PROVIDER_NAME: _provider(run)[0],
            semconv.GEN_AI_RESPONSE_MODEL: run.model,
            semconv.GEN_AI_RESPONSE_ID: provider_id(run.response_id),
            semconv.GEN_AI_FINISH_REASONS: None if run.finish is None else [run.finish],
            semconv.GEN_AI_USAGE_INPUT_TOKENS: read,
            semconv.GEN_AI_USAGE_OUTPUT_TOKENS: written,
            "gen_ai.usage.cache_read.input_tokens": run.details.get("cache_read"),
            "gen_ai.usage.cache_write.input_tokens": run.details.get("cache_creation"),
            "gen_ai.usage.reasoning.output_tokens": run.details.get("reasoning"),
        }
    if run.kind == "retriever":
        return {
            semconv.DOCUMENT_COUNT: len(run.told) if isinstance(run.told, list) else None,
            semconv.GEN_AI_PROVIDER_NAME: _text(run.metadata.get("ls_vector_store_provider")),
            semconv.GEN_AI_REQUEST_MODEL: _text(run.metadata.get("ls_embedding_model")),
        }
    if run.kind == "tool":
        return {
            "gen_ai.tool.name": run.name,
            "gen_ai.tool.call.id": _call_id(run),
            "gen_ai.tool.type": "function",
            semconv.GEN_AI_AGENT_NAME: agent,
        }
    if operation == semconv.OPERATION_INVOKE_AGENT:
        return {semconv.GEN_AI_AGENT_NAME: agent}
    return {"gen_ai.workflow.name": _own_name(run) if operation else None}


def _content(run: Run, step: Step, operation: str | None, *, clean: Redactor) -> Attributes:
    asked = None if step.input is None else clean.text(step.input)
    told = None if step.output is None else clean.text(step.output)
    documents: list[Passage] = []
    messages: list[dict[str, Any]] = []
    attributes: Attributes
    if run.kind == "retriever":
        documents = [replace(p, text=clean.text(p.text)) for p in step.documents or ()]
        entries = ({"id": p.id, "score": p.score, "content": p.text} for p in documents)
        attributes = {
            "gen_ai.retrieval.query.text": asked,
            "gen_ai.retrieval.documents": _json([*map(_known, entries)]),
        }
    elif run.kind == "tool":
        description = clean.text(run.description) if run.description else None
        arguments = _object(run.asked, "input", clean=clean)
        asked = arguments if asked is None else asked
        result = None if told is None else _object(step.output, "output", clean=clean)
        attributes = {
            "gen_ai.tool.call.arguments": arguments,
            "gen_ai.tool.call.result": result,
            "gen_ai.tool.description": description,
            "tool.description": description,
        }
    else:
        if run.kind == "llm" and run.asked:
            prompt = [{"type": "human", "content": run.asked}]
            given = run.asked if isinstance(run.asked, list) else prompt
            messages = [*_messages(given, clean=clean)]
        calls = run.told.get("tool_calls") if isinstance(run.told, dict) else None
        shown = messages or ([_message("user", asked, (), clean=clean)] if asked else [])
        replies = [_message("assistant", told or "", calls, clean=clean)]
        attributes = {
            semconv.GEN_AI_INPUT_MESSAGES: _json(shown) if shown else None,
            semconv.GEN_AI_OUTPUT_MESSAGES: _json(replies) if replies[0]["parts"] else None,
        }
    pairs = [
        (each["role"], "".join(str(p.get("content", p.get("response", ""))) for p in each["parts"]))
        for each in messages
    ]
    same = openinference.texts(asked=asked, told=told, documents=documents, messages=pairs)
    return {**same, **(attributes if operation else {})}


def messages_json(messages: Iterable[tuple[str, str]]) -> str | None:
    written = [_message(role, text, (), clean=Redactor()) for role, text in messages]
    return _json(written) if written else None


def _messages(given: Iterable[Any], *, clean: Redactor) -> Iterator[dict[str, Any]]:
    """Yield the messages to a model in the form of the GenAI convention."""
    for raw in given:
        for read in messages_in(plain([raw])):
            text, calls = clean.text(str(read.get("content") or "")), raw.get("tool_calls")
            yield _message(read["role"], text, calls, call_id=raw.get("call_id"), clean=clean)


def _message(
    role: str, text: str, calls: Any, *, call_id: str | None = None, clean: Redactor
) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if role == "tool":
        parts.append(_known({"type": "tool_call_response", "id": call_id, "response": text}))
    elif text:
        parts.append({"type": "text", "content": text})
    for call in calls or ():
        arguments = json.loads(_object(call.get("args") or {}, "input", clean=clean))
        about = {"id": call.get("id"), "name": call.get("name"), "arguments": arguments}
        parts.append(_known({"type": "tool_call", **about}))
    return {"role": role, "parts": parts}


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _object(value: Any, name: str, *, clean: Redactor) -> str:
    """Return ``value``, redacted, as a JSON object: as it is, or under the key ``name``."""
    found = value
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            found = json.loads(value)
    found = found if isinstance(found, dict) else {name: value}
    return str(clean.value(_json(found)))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
