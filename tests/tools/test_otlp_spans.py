"""Reading spans from OTLP files; tests/dataset/test_collect.py has those of whole files."""

from typing import Any

import pytest

from rag_eval_otel.capture.span import Span
from rag_eval_otel.tools.otlp import parts_of, spans_of

PARENT = "0000000000000007"


def read(**fields: Any) -> Span:
    span = {"traceId": "1" * 32, "spanId": "2" * 16, **fields}
    message = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    (found,) = spans_of(parts_of(message))
    return found


@pytest.mark.parametrize(
    ("fields", "is_remote"),
    [
        ({"flags": 0x300}, True),
        ({"flags": 0x100, "kind": 2}, False),
        ({"kind": 2}, True),  # a server
        ({"kind": "SPAN_KIND_CONSUMER"}, True),  # as protobuf writes it in JSON
        ({"kind": 3}, False),  # a client
        ({}, False),
    ],
)
def test_a_parent_in_another_service(fields: dict[str, Any], is_remote: object) -> None:
    """The flags say so, or the kind if the SDK does not write these flags, as in a worker."""
    assert read(parentSpanId=PARENT, **fields).parent_is_remote is is_remote


@pytest.mark.parametrize("given", [{}, {"parentSpanId": ""}, {"parentSpanId": "0" * 16}])
def test_a_span_without_a_parent(given: dict[str, Any]) -> None:
    """An id of zeros is none. A root has no parent in another service, whatever its kind is."""
    found = read(kind=2, **given)
    assert (found.parent_id, found.parent_is_remote) == (None, False)
