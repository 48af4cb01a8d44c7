"""Random judge replies, spans, files and options raise errors of this library, and no others."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.targets import TARGETS

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
_WORDS = st.sampled_from(
    [
        *("choices", "message", "content", "usage", "prompt_tokens", "total_tokens", "verdicts"),
        *("index", "verdict", "rating", "statements", "question", "noncommittal", "reason"),
        *("resourceSpans", "scopeSpans", "spans", "attributes", "key", "value", "intValue"),
        *("resourceMetrics", "scopeMetrics", "metrics", "sum", "dataPoints", "asInt", "score"),
        *("resourceLogs", "scopeLogs", "logRecords", "eventName", "stringValue", "doubleValue"),
        *("groundedness_1", "supported", "scores", "time", "name", "startTimeUnixNano"),
    ]
)
_VALUES: st.SearchStrategy[Any] = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(_WORDS | st.text(max_size=8), inner, max_size=5)
    ),
    max_leaves=25,
)
_INPUTS = (
    st.binary(max_size=400)
    | st.text(max_size=400).map(lambda text: text.encode("utf-8", "surrogatepass"))
    | _VALUES.map(lambda value: json.dumps(value).encode())
    | st.lists(st.sampled_from(["{", "[", '"', ",", ":", "}", "]", "1", "\n", "=", "e9"])).map(
        lambda parts: "".join(parts).encode()
    )
)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
@given(data=_INPUTS)
def test_only_errors_of_the_library_are_raised(name: str, data: bytes) -> None:
    """Each target checks what it gets, and raises nothing but a fault."""
    assert TARGETS[name](data) is None  # type: ignore[func-returns-value]
