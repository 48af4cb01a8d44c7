"""The check of what is exported finds what the conventions do not allow."""

from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind

from conformance import FACTS, of_event, of_span
from rag_eval_otel import semconv

pytestmark = pytest.mark.skipif(not FACTS, reason="the facts of the conventions are missing")

CHAT = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "llm.system": "openai"}
OBJECT = "evaluations.0.evaluation."


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        ({}, None),
        ({"gen_ai.provider.name": None}, "gen_ai.provider.name is missing"),
        ({"gen_ai.usage.input_tokens": "7"}, "is no int"),
        ({"gen_ai.usage.prompt_tokens": 7}, "is not to be written"),
        ({"gen_ai.response.id": "lc_run--7"}, "is no id of a provider"),
        ({"gen_ai.tool.name": "search"}, "is not for"),
        ({"gen_ai.evaluation.name": "f"}, "is only for events"),
        ({"rag.evaluation.status": "done"}, "is none of"),
        ({f"{OBJECT}name": "f", f"{OBJECT}identifier": "rag_eval_otel"}, "is not complete"),
        ({f"{OBJECT}name": "f", f"{OBJECT}score": 1.0, f"{OBJECT}metadata": "[]"}, "json_object"),
        ({"gen_ai.input.messages": '[{"role": "user", "parts": [{"type": "text"}]}]'}, "part text"),
        ({"openinference.span.kind": "EVALUATOR"}, "one link"),
    ],
)
def test_a_span_that_is_wrong(attributes: dict[str, Any], told: str | None) -> None:
    """A call of a model, with the attributes of each row."""
    given = {"openinference.span.kind": "LLM", **CHAT, **attributes}
    known = {name: value for name, value in given.items() if value is not None}
    tracer = TracerProvider().get_tracer(semconv.SCOPE)
    span: Any = tracer.start_span("chat", Context(), SpanKind.CLIENT, attributes=known)
    assert (told or "") in "; ".join(of_span(span))
    assert bool([*of_span(span)]) == (told is not None)


@pytest.mark.parametrize(
    "attributes", [{}, {"gen_ai.evaluation.name": "f", "gen_ai.evaluation.evaluator.id": "x"}]
)
def test_an_event_that_is_wrong(attributes: dict[str, Any]) -> None:
    """Without a name, and with one that is only proposed."""
    assert [*of_event(attributes)]
