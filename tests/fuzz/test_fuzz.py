"""Random judge replies, spans, files and options raise errors of this library, and no others."""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import questions
from plain_views import View
from rag_eval_otel.capture.conventions import CONVENTIONS, MARKS, read
from rag_eval_otel.capture.sample import extract, why_none
from rag_eval_otel.capture.span import LogView, Span
from rag_eval_otel.capture.turns import find_turns
from rag_eval_otel.config import Config
from rag_eval_otel.errors import ConfigError, JudgeError
from rag_eval_otel.judge.codec import read_parts
from rag_eval_otel.judge.openai import _replies
from rag_eval_otel.judge.tasks import Reply, Task
from rag_eval_otel.tools.scores import read_scores

TASKS: Sequence[Sequence[Task[Any]]] = (
    [questions.groundedness("a", ["c"], voice=1)],
    [questions.verdicts(["c"], ["one", "two"])],
    [questions.reverse_question("a", draw=i) for i in range(3)],
    [questions.statements("q", "a"), questions.context_relevance("q", ["c"], voice=1)],
    [questions.judged_statements("q", "a", ["c"]), questions.groundedness("a", ["c"], voice=2)],
)
_MARKS = sorted(MARKS)
_SCOPES = ["", *sorted(scope for convention in CONVENTIONS for scope in convention.scopes)]
_OPTIONS = sorted(Config.__dataclass_fields__)


def judge_reply(data: bytes) -> None:
    """Read ``data`` as the text of a judge's reply, and as the whole body of a response."""
    text = data.decode("utf-8", "surrogateescape")
    for tasks in TASKS:
        parts = read_parts(text, tasks)
        assert len(parts) == len(tasks)
        assert all(isinstance(part, Reply | JudgeError) for part in parts)
    try:
        payload = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(payload, dict):
        with suppress(JudgeError):
            _replies(payload, TASKS[0], model="m", requests=1)


def span_attributes(data: bytes) -> None:
    """Read ``data`` as the attributes of the spans of a trace, find its turns and their samples."""
    made = _Source(data)
    views = [_view(made, number) for number in range(1, 2 + made.below(4))]
    steps = [read(view) for view in views]
    for turn in find_turns(steps, loss="possible"):
        extract(turn)
    why_none(steps)


def _view(made: "_Source", number: int) -> Span:
    attributes = {made.of(_MARKS): made.value() for _ in range(made.below(6))}
    events = [(made.text(), {made.of(_MARKS): made.value()}) for _ in range(made.below(2))]
    logs = [LogView(event=made.text(), body=made.value()) for _ in range(made.below(2))]
    return View(
        attributes=attributes,
        events=events,
        logs=logs,
        name=made.text(),
        scope=made.of(_SCOPES),
        span_id=number,
        parent_id=made.below(number) or None,
        start=number,
        end=20 - number if made.below(8) else None,
        error=made.text() if not made.below(8) else None,
    )


def score_file(data: bytes) -> None:
    """Read ``data`` as a file of scores: OTLP JSON, JSONL and CSV."""
    with tempfile.TemporaryDirectory() as folder:
        for suffix in (".json", ".jsonl", ".csv"):
            path = Path(folder, f"scores{suffix}")
            path.write_bytes(data)
            with suppress(ConfigError):
                list(read_scores(path))


def configuration(data: bytes) -> None:
    """Read ``data`` as environment variables, and as values of options of any type."""
    made = _Source(data)
    names = [made.of(_OPTIONS) for _ in range(1 + made.below(3))]
    with suppress(ConfigError):
        Config.from_env({f"RAG_EVAL_{name.upper()}": made.text() for name in names})
    with suppress(ConfigError):
        Config(**{name: made.value() for name in names})


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "judge_reply": judge_reply,
    "span_attributes": span_attributes,
    "score_file": score_file,
    "configuration": configuration,
}


class _Source:
    """Makes numbers, texts and values of the bytes ``data``; when they end, everything is zero."""

    def __init__(self, data: bytes) -> None:
        self._bytes: Iterator[int] = iter(data)

    def below(self, limit: int) -> int:
        return next(self._bytes, 0) % max(limit, 1)

    def of(self, items: Sequence[Any]) -> Any:
        return items[(self.below(256) * 256 + self.below(256)) % len(items)]

    def text(self) -> str:
        raw = bytes(next(self._bytes, 0) for _ in range(self.below(24)))
        return raw.decode("utf-8", "surrogateescape")

    def value(self, depth: int = 0) -> Any:
        kind = self.below(10 if depth < 4 else 6)
        if kind < 3:
            return self.text()
        if kind < 6:
            return (None, True, 0, -1, 1.5, float("nan"), float("inf"), 10**20)[self.below(8)]
        if kind < 8:
            items = [self.value(depth + 1) for _ in range(self.below(4))]
            return items if kind == 6 else tuple(items)
        keys = ["content", "role", "text", "type", "parts", "document", "page_content", ""]
        found = {self.of(keys): self.value(depth + 1) for _ in range(self.below(4))}
        return found if kind == 8 else json.dumps(found)


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
