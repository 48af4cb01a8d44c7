"""Read the spans of agent frameworks into steps (calls in a trace).

The spans are those of OpenInference, and of Strands Agents itself, which follows the GenAI
conventions. Each framework keeps the question or the answer in another place.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rag_eval_otel.capture import step as build
from rag_eval_otel.capture.conventions import genai, openinference
from rag_eval_otel.capture.documents import passages_in, passages_in_text
from rag_eval_otel.capture.span import PlainSpan, SpanView, word
from rag_eval_otel.capture.step import Kind, Step
from rag_eval_otel.capture.values import (
    Lost,
    answer_in,
    json_in,
    nodes_of,
    plain,
    question_in,
    read,
    value,
)
from rag_eval_otel.types import Passage

# --- Google ADK -----------------------------------------------------------------------------------

_ADK_SCOPES: Final = ("openinference.instrumentation.google_adk", "gcp.vertex.agent")
_SEVERAL = "invoke_agent"  # on this span, each model call overwrites the attributes of the last one


def adk_step(view: PlainSpan, of: Kind) -> Step:
    """Read the span ``view`` of Google ADK into a `Step`, which describes one call in a trace.

    If several model calls wrote their attributes on this span, only the last of these calls is
    known.
    """
    if of == "tool":
        outputs = value(view, "output.value")
        response = outputs.get("response") if isinstance(outputs, Mapping) else None
        if isinstance(response, Mapping):
            view = replace(view, attributes={**view.attributes, "output.value": response})
    step = openinference.to_step(view, of)
    if of == "llm" and view.name.startswith(_SEVERAL) and view.end is not None:
        return replace(step, start=view.end)
    if of in {"agent", "chain"}:
        inputs = _said(value(view, "input.value"), "new_message", step.input)
        return replace(step, input=inputs, output=_said(value(view, "output.value"), "content"))
    return step


def _said(data: Any, key: str, instead: str | None = None) -> str | None:
    """Return the text of the message in ``data`` under the dict key ``key``.

    If there is no such message, return ``instead``.
    """
    message = data.get(key) if isinstance(data, Mapping) and not isinstance(data, Lost) else None
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, str) and content else instead


ADK: Final = replace(
    openinference.CONVENTION,
    name="adk",
    to_step=adk_step,
    scopes=frozenset(_ADK_SCOPES),
    content=(r"gcp\.vertex\.agent\.(llm_request|llm_response|tool_call_args|tool_response)",),
    instrumentations=r"gcp\.vertex",
)


# --- AutoGen --------------------------------------------------------------------------------------

_OWN_SCOPE = "autogen-core"  # spans of this scope have no texts, and repeat calls of other spans
_AUTOGEN_SCOPE: Final = "openinference.instrumentation.autogen_agentchat"
_AUTOGEN_SCOPES: Final = (_AUTOGEN_SCOPE, _OWN_SCOPE)
_AUTOGEN_RESULT = re.compile(r"(llm\.input_messages\.\d+)\.function\.\d+")


def autogen_kind(view: SpanView) -> Kind | None:
    return "other" if view.scope == _OWN_SCOPE else openinference.kind(view)


def autogen_step(view: PlainSpan, of: Kind) -> Step:
    if of == "other":
        return build.bare(view, of)
    texts: dict[str, str] = {}
    for key, item in view.attributes.items():
        found = _AUTOGEN_RESULT.fullmatch(key)
        if found is not None:
            name = f"{found[1]}.message.content"
            texts[name] = "\n".join(filter(None, (texts.get(name), _content(item))))
    return openinference.to_step(replace(view, attributes={**view.attributes, **texts}), of)


def _content(item: Any) -> str:
    data = read(item)
    content = data.get("content") if isinstance(data, Mapping) else None
    return content if isinstance(content, str) else ""


AUTOGEN: Final = replace(
    openinference.CONVENTION,
    name="autogen",
    kind=autogen_kind,
    to_step=autogen_step,
    marks=openinference.CONVENTION.marks | {"gen_ai.operation.name"},
    scopes=frozenset(_AUTOGEN_SCOPES),
    content=(r"llm\.input_messages\.\d+\.function\.\d+",),
)


# --- CrewAI ---------------------------------------------------------------------------------------

_CREWAI_SCOPE: Final = "openinference.instrumentation.crewai"


def crewai_step(view: PlainSpan, of: Kind) -> Step:
    """Read the span ``view`` of CrewAI into a `Step`, which describes one call in a trace.

    The question of a task is the description of the task. The answer is the field ``raw`` of the
    output. The prompt of the model is not used as the question, because it also contains the
    expected form of the answer.
    """
    step = openinference.to_step(view, of)
    if of not in {"agent", "chain"}:
        return step
    inputs, outputs = value(view, "input.value"), value(view, "output.value")
    question = None if isinstance(inputs, Lost) else _question(view, inputs, outputs)
    raw = outputs.get("raw") if isinstance(outputs, Mapping) else None
    return replace(
        step,
        input=step.input if question is None else question,
        output=raw if isinstance(raw, str) else step.output,
    )


def _question(view: PlainSpan, inputs: Any, outputs: Any) -> str | None:
    """Return the question of a crew, an agent or a task from the input and output on its span.

    The question is the message to an agent, the input of a crew, or the description of the only
    task. Return None if there is no such text.
    """
    if isinstance(inputs, Mapping) and "agent" not in inputs:
        messages = inputs.get("messages")
        found = messages if isinstance(messages, str) else question_in(inputs, view.keys)
        if found is not None:
            return found
    tasks = outputs.get("tasks_output", [outputs]) if isinstance(outputs, Mapping) else []
    described = [task.get("description") for task in tasks if isinstance(task, Mapping)]
    return described[0] if len(described) == 1 and isinstance(described[0], str) else None


CREWAI: Final = replace(
    openinference.CONVENTION,
    name="crewai",
    to_step=crewai_step,
    scopes=frozenset({_CREWAI_SCOPE}),
    content=(r"crew_(inputs|tasks)", r"task_(description|expected_output)"),
)


# --- DSPy -----------------------------------------------------------------------------------------

_DSPY_SCOPE: Final = "openinference.instrumentation.dspy"
_INNERMOST = re.compile(r"\w+\(.*\)\.forward", re.DOTALL)  # of a module's nested spans
_CONTEXT = ("context", "contexts", "passages", "documents", "docs", "retrieved")
_FIELD = re.compile(
    r"^\[\[ ## (\w+) ## \]\][ \t]*\n?(.*?)(?=^\[\[ ## \w+ ## \]\]|\Z)", re.MULTILINE | re.DOTALL
)
_SAID, _MARK = "llm.output_messages.0.message.content", "[[ ## "
_CALLS_TOOLS = "next_tool_name"


def dspy_kind(view: SpanView) -> Kind | None:
    reply = word(view, _SAID) or ""  # this may be a span of the model client's instrumentation
    return (
        openinference.kind(view) if view.scope == _DSPY_SCOPE or reply.startswith(_MARK) else None
    )


def holds_documents(view: SpanView) -> bool:
    """Return True if ``view`` is the span of a DSPy module with an argument such as ``context``.

    The argument must be a list.
    """
    if view.scope != _DSPY_SCOPE or not _INNERMOST.fullmatch(view.name):
        return False
    inputs = word(view, "input.value") or ""
    return any(f'"{name}": [' in inputs for name in _CONTEXT)


def dspy_step(view: PlainSpan, of: Kind) -> Step:
    inputs = value(view, "input.value")
    if of == "llm":
        return _dspy_llm(view)
    if isinstance(inputs, Mapping):
        inputs = inputs.get("input_args", inputs.get("kwargs", inputs))
        inputs = inputs if isinstance(inputs, Mapping) else {}
    step = replace(
        openinference.to_step(view, of),
        input=None if isinstance(inputs, Lost) else question_in(inputs, view.keys),
    )
    found = _context(inputs) if _INNERMOST.fullmatch(view.name) and step.input else None
    if found is None:
        return step
    return replace(step, documents=found, recorded=step.recorded | {"documents"})


def _context(inputs: Any) -> tuple[Passage, ...] | None:
    context = next((inputs[name] for name in _CONTEXT if inputs.get(name)), None)
    return passages_in_text(context) if isinstance(context, str) else passages_in(context)


def _dspy_llm(view: PlainSpan) -> Step:
    """Read the span of a model call into a `Step`. The reply contains several named fields.

    The answer is the field with a usual name of an answer, or else the last field. If a field says
    that a tool is called next, there is no answer.
    """
    step = openinference.to_step(view, "llm")
    fields = _fields(step.output or "")
    if not fields:
        return step
    if _CALLS_TOOLS in fields:
        return replace(step, output=None, calls_tools=True)
    reply = answer_in(fields, view.keys) or [*fields.values()][-1]
    return replace(step, output=reply)


def _fields(reply: str) -> dict[str, str]:
    """Return the named fields in the ``reply`` of a model.

    The fields are separated by DSPy's headings, or are the values of a JSON object.
    """
    found = {name: text.strip() for name, text in _FIELD.findall(reply) if name != "completed"}
    data = {} if found else plain(json_in(reply, opening="{") or {})
    return found or {name: text for name, text in data.items() if isinstance(text, str)}


DSPY: Final = replace(
    openinference.CONVENTION,
    name="dspy",
    kind=dspy_kind,
    to_step=dspy_step,
    holds_documents=holds_documents,
)


# --- smolagents -----------------------------------------------------------------------------------

_SMOLAGENTS_SCOPE: Final = "openinference.instrumentation.smolagents"
_ANSWERS = "final_answer"
_CODE, _END = re.compile(r"<code>|```(?:py(?:thon)?)?"), re.compile("</code>|```|<end_code>")
_CALL = re.compile(
    r"llm\.output_messages\.(\d+)\.message\.tool_calls\.(\d+)\.tool_call\.function\.name"
)


def smolagents_step(view: PlainSpan, of: Kind) -> Step:
    step = openinference.to_step(view, of)
    if of == "llm":
        return _smolagents_llm(view, step)
    if of == "tool" and step.documents is None and step.output is not None:
        return replace(step, documents=passages_in_text(step.output))
    inputs = value(view, "input.value")
    if of in {"agent", "chain"} and isinstance(inputs, Mapping):
        task = inputs.get("task")
        return replace(step, input=task if isinstance(task, str) else None)
    return step


def _smolagents_llm(view: PlainSpan, step: Step) -> Step:
    """Read the span of a model call, which answers by a tool or in Python code, into a `Step`."""
    answer = _by_tool(view.attributes)
    if answer is not None:
        return replace(step, output=answer, calls_tools=False)
    text = step.output or ""
    code = _CODE.search(text)
    end = None if code is None else _END.search(text, code.end())
    if code is None or end is None:
        return step
    return replace(step, output=_by_code(text[code.end() : end.start()]), calls_tools=True)


def _by_tool(attributes: Mapping[str, Any]) -> str | None:
    for key, name in attributes.items():
        if name == _ANSWERS and _CALL.fullmatch(key):
            given = attributes.get(key.removesuffix("name") + "arguments")
            data = json_in(given) if isinstance(given, str) else given
            answer = data.get("answer") if isinstance(data, Mapping) else None
            return answer if isinstance(answer, str) else None
    return None


def _by_code(code: str) -> str | None:
    """Return the text that ``code`` passes to ``final_answer``, or None if the text is computed."""
    for node in nodes_of(code.strip(), "exec"):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == _ANSWERS:
            given = [*node.args, *(word.value for word in node.keywords)]
            texts = [one.value for one in given if isinstance(one, ast.Constant)]
            return texts[0] if len(texts) == 1 and isinstance(texts[0], str) else None
    return None


SMOLAGENTS: Final = replace(
    openinference.CONVENTION,
    name="smolagents",
    to_step=smolagents_step,
    scopes=frozenset({_SMOLAGENTS_SCOPE}),
    content=(r"smolagents\.task",),
)


# --- Strands Agents -------------------------------------------------------------------------------

_STRANDS_SCOPE: Final = "strands.telemetry.tracer"
_STRANDS_RESULT = "gen_ai.tool.call.result"


def strands_step(view: PlainSpan, of: Kind) -> Step:
    """Read the span ``view`` of Strands Agents into a `Step`, which describes one call in a trace.

    The text blocks of a tool result are read as one text, not as separate documents.
    """
    view = genai.with_events(view)
    blocks = read(view.attributes.get(_STRANDS_RESULT), limit=view.value_limit)
    if of == "tool" and isinstance(blocks, list):
        typed = [_typed(block) for block in blocks]
        view = replace(view, attributes={**view.attributes, _STRANDS_RESULT: typed})
    return genai.to_step(view, of)


def _typed(block: Any) -> Any:
    is_text = isinstance(block, Mapping) and set(block) == {"text"}
    return {"type": "text", **block} if is_text else block


STRANDS: Final = replace(
    genai.CONVENTION,
    name="strands",
    to_step=strands_step,
    scopes=frozenset({_STRANDS_SCOPE}),
    content=(r"system_prompt|gen_ai\.agent\.(input|output)",),
    instrumentations=r"strands\.",
)
